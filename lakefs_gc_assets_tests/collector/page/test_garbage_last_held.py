"""Garbage by the commit that held it last, object by object: on recordings with rules, and on the embedded server."""

import csv
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.cli.candidates import Order, _find_last_seen, write_frame
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, COMMITTED_DF
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.page import run_facts
from lakefs_gc_assets.collector.page.garbage import FrameReader, Garbage, LastHeld, LastHolder, find_last_held
from lakefs_gc_assets.collector.page.page import render
from lakefs_gc_assets.collector.page.run_facts import Counting, RunFacts, _decoded, find_last_seen, gather, trace
from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import active_commits
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import CollectionSettings, ReportSettings
from lakefs_gc_assets_tests.collector.page.test_page import text
from lakefs_gc_assets_tests.collector.retention.test_active_commits import line_of, recorded_graph
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.lakefs.formats.commit_rows import rows
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.plain_runs import Replaying, replaying
from lakefs_gc_assets_tests.runs.recordings import folder_of, needs_recordings

__all__ = ["replaying"]
NOTHING = Garbage({}, {}, None)
DAY = timedelta(days=1)


def facts_of(opened: OpenRepository, run_id: str, most: int | None = None) -> RunFacts:
    now = opened.clock.now()
    return gather(opened.store, run_id, CollectionSettings(), ReportSettings(), now, Counting(lambda _: NOTHING, most))


def reader_of(opened: OpenRepository) -> FrameReader[Any]:
    return FrameReader(LocalEngine(), opened.opener)


def of_each(opened: OpenRepository, run_id: str, *, skip_live: bool = True) -> list[dict[str, Any]]:
    """Each candidate with the commit that held it last, its branch, rule and folder."""
    candidates = files.read_manifest(opened.store, run_id, CANDIDATES_DF)
    attempt = candidates.span.attempt
    holders = active_commits.read_last_holders(opened.store, run_id, attempt)
    assert holders is not None
    live = tables.read_run_ids(opened.store, run_id, attempt) if skip_live else frozenset()
    found = find_last_held(LiveFiles(opened.store, opened.namespace, "month"), holders, live, candidates)
    assert found is not None
    named = holders.to_pylist()
    return [{**row, **({} if row["holder"] is None else named[row["holder"]])} for row in found.to_pylist()]


def lines(folder: Path) -> dict[str, list[tuple[str | None, int]]]:
    """True branches per commit of a recording, with their days; None for a line without a branch."""
    truth = json.loads((folder / "truth.json").read_text())
    rules = {each["branch_id"]: each["retention_days"] for each in truth["gc_rules"]["branches"]}
    default = truth["gc_rules"]["default_retention_days"]
    columns, heads = recorded_graph(folder)
    commits = list(zip(rows(columns), columns.nanos.tolist(), strict=True))
    found: dict[str, list[tuple[str | None, int]]] = {commit.id: [] for commit, _ in commits}
    for branch, head in heads.items():
        for commit, _ in line_of(commits, head):
            found[commit.id].append((branch, rules.get(branch, default)))
    on_branches = {commit_id for commit_id, named in found.items() if named}
    for each, _ in commits:
        if each.id not in on_branches:
            for commit, _ in line_of(commits, each.id):
                found[commit.id].append((None, default))
    return found


@pytest.mark.parametrize("flow", [Flow.COMMITTED, Flow.UNIFIED])
@pytest.mark.parametrize("name", ["merge-dangling", pytest.param("random-dag/11", marks=needs_recordings)])
def test_each_object_of_a_recording_is_its_newest_commits(
    replaying: Replaying, tmp_path: Path, name: str, flow: Flow
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("keep_tags: false")
    runs = replaying(name, retention_policy=str(policy), max_candidate_share=1)
    truth = json.loads((folder_of(name) / "truth.json").read_text())
    dates = {each["id"]: (each["creation_date"], each["id"]) for each in truth["commits"]}
    objects = {each["address"]: each for each in truth["objects"]}
    of_commit = lines(folder_of(name))
    opened = runs.open(flow)
    assert runs.make(opened).success

    found = of_each(runs.repository, opened.run_id)

    held = 0
    for each in found:
        stored = objects[each["address"]]
        if not stored["commits"]:
            assert each["holder"] is None and each["folder"] is None
            continue
        held += 1
        seconds = max(dates[commit_id][0] for commit_id in stored["commits"])
        # The truth cannot order commits of the same second.
        newest = {commit_id for commit_id in stored["commits"] if dates[commit_id][0] == seconds}
        assert each["commit_id"] in newest
        longest = max(days for _, days in of_commit[each["commit_id"]])
        assert each["branch"] in {branch for branch, days in of_commit[each["commit_id"]] if days == longest}
        assert each["rule"].startswith(f"{longest}d by ") or not longest
        assert each["folder"].decode() in {first_folder(path) for path in stored["paths"]}
    assert held == sum(bool(objects[each["address"]]["commits"]) for each in found) > 0
    assert of_each(runs.repository, opened.run_id, skip_live=False) == found
    counted = facts_of(runs.repository, opened.run_id).last_held
    assert counted is not None
    assert counted.not_committed_objects == len(found) - held
    of_kinds = Counter(
        (each["branch"], each["rule"], each["folder"].decode()) for each in found if each["folder"] is not None
    )
    assert {(each.branch, each.rule, each.folder): each.objects for each in counted.held} == of_kinds
    assert sum(each.bytes for each in counted.held) + counted.not_committed_bytes == sum(each["size"] for each in found)


def first_folder(path: str) -> str:
    folder, slash, _ = path.partition("/")
    return folder + slash if slash else ""


@pytest.fixture
def expired(tmp_path: Path) -> Iterator[tuple[OpenRepository, str]]:
    """A dry run on an embedded server, with objects expired on branches, on a deleted branch, and under a long rule."""
    with EmbeddedServer(tmp_path) as server:
        now = datetime.now(UTC)
        with server.clock.at(now - 40 * DAY):
            repository = clients.repository(server)
            for path in ("raw/2026/a", "raw/b", "top", "kept"):
                clients.upload(server, path, path.encode())
            clients.commit(server, "first")
            for branch in ("dev", "gone"):
                body = {"name": branch, "source": "main"}
                assert clients.call(server, "POST", f"/repositories/{repository}/branches", body)[0] == 201
            clients.upload(server, "lost/a", b"lost", branch="gone")
            clients.commit(server, "of gone", branch="gone")
            assert clients.call(server, "DELETE", f"/repositories/{repository}/branches/gone")[0] == 204
        with server.clock.at(now - 35 * DAY):
            clients.upload(server, "kept too", b"kept too")
            clients.commit(server, "of main")
        with server.clock.at(now - 30 * DAY):
            clients.upload(server, "work/x", b"work in progress", branch="dev")
            clients.upload(server, "raw/2026/a", b"of dev", branch="dev")
            clients.commit(server, "of dev", branch="dev")
        with server.clock.at(now - 20 * DAY):
            for path in ("raw/2026/a", "raw/b", "top"):
                clients.upload(server, path, b"anew")
            clients.commit(server, "second")
            for path in ("work/x", "raw/2026/a", "raw/b", "top"):
                clients.upload(server, path, b"of dev, anew", branch="dev")
            clients.commit(server, "of dev, anew", branch="dev")
            clients.upload(server, "staged", b"never committed")
            path = f"/repositories/{repository}/branches/main/objects"
            assert clients.call(server, "DELETE", path, path="staged")[0] == 204
        rules = {"default_retention_days": 5, "branches": [{"branch_id": "main", "retention_days": 12}]}
        assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204
        given = demo.configuration(server, repository)
        collection = given.collection.model_copy(update={"max_candidate_share": 1.0})
        runs = ArrowRuns(Loaded(given.model_copy(update={"collection": collection}), {}))
        report = runs.collect(Flow.UNIFIED)
        yield Collector.from_loaded(runs.loaded, runs.clock).open(), report.run_id


def test_the_branch_the_rule_and_the_folder_of_the_last_commit(expired: tuple[OpenRepository, str]) -> None:
    opened, run_id = expired

    found = facts_of(opened, run_id).last_held

    assert found is not None
    kinds = {(each.branch, each.rule, each.folder): (each.objects, each.bytes) for each in found.held}
    main, default = "12d by the server's rule of main", "5d by the server's default"
    # An object of several branches counts for the branch with the newest commit.
    assert kinds == {
        ("main", main, "raw/"): (1, len("raw/2026/a")),
        ("dev", default, "raw/"): (2, len("of dev") + len("raw/b")),
        ("dev", default, ""): (1, len("top")),
        ("dev", default, "work/"): (1, len("work in progress")),
        (None, default, "lost/"): (1, len("lost")),
    }
    assert (found.not_committed_objects, found.not_committed_bytes) == (1, len("never committed"))


def test_some_candidates_have_their_paths_and_commits(
    expired: tuple[OpenRepository, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, run_id = expired
    candidates = StoredFrame(CANDIDATES_DF, files.read_manifest(opened.store, run_id, CANDIDATES_DF), opened.opener)
    held = [each for each in of_each(opened, run_id) if each["holder"] is not None]
    commits = {str(each["commit_id"]): each["branch"] for each in held}
    assert {*commits.values()} == {"main", "dev", None}

    found = trace(opened.store, run_id, candidates.sample(20), reader_of(opened))

    assert not isinstance(found, str)
    assert sorted(path for path, _ in found) == ["", "lost/a", "raw/2026/a", "raw/2026/a", "raw/b", "top", "work/x"]
    names = {f"{commit[:12]} of {f'branch {branch}' if branch else 'no branch'}" for commit, branch in commits.items()}
    assert {holder for _, holder in found} == {*names, "no commit"}
    assert [holder for path, holder in found if not path] == ["no commit"]
    assert {holder[16:] for path, holder in found if path == "raw/2026/a"} == {"branch main", "branch dev"}

    monkeypatch.setattr(run_facts, "WITH_A_PREVIEW", 3 * 20_000)
    assert "too much to read for a preview" in trace(opened.store, run_id, candidates.sample(20), reader_of(opened))


def test_a_list_of_candidates_has_their_branch_path_commit_and_rule(expired: tuple[OpenRepository, str]) -> None:
    opened, run_id = expired
    counted = {each["address"]: each for each in of_each(opened, run_id)}
    stored = StoredFrame(CANDIDATES_DF, files.read_manifest(opened.store, run_id, CANDIDATES_DF), opened.opener)
    out = BytesIO()

    told = write_frame(stored, [], "csv", out, find_places=partial(_find_last_seen, opened, stored))

    found = [*csv.DictReader(out.getvalue().decode().splitlines())]
    assert {row["address"] for row in found} == counted.keys()
    for row in found:
        expected = counted[row["address"]]
        for name in ("branch", "commit_id", "rule"):
            assert row[name] == (expected.get(name) or "")
        assert first_folder(row["path"]) == (expected["folder"] or b"").decode()
        assert (row["last_staged_at"], row["written_by"]) == ("", "upload or copy by lakeFS")
    assert sorted(row["path"] for row in found) == ["", "lost/a", "raw/2026/a", "raw/2026/a", "raw/b", "top", "work/x"]
    assert told.splitlines()[1].startswith("no path is known for 1 object that no commit holds: lakeFS keeps no names")

    top = BytesIO()
    places = partial(_find_last_seen, opened, stored)
    write_frame(stored, [], "csv", top, Order("size", descending=True, most=2), places)
    assert [*csv.DictReader(top.getvalue().decode().splitlines())] == sorted(found, key=lambda row: -int(row["size"]))[
        :2
    ]


def test_a_list_that_would_take_long_or_is_damaged_has_no_places_and_says_so(
    expired: tuple[OpenRepository, str],
) -> None:
    opened, run_id = expired
    stored = StoredFrame(CANDIDATES_DF, files.read_manifest(opened.store, run_id, CANDIDATES_DF), opened.opener)
    some = stored.table()
    for most in (some.num_rows - 1, 3 * 20_000):
        seen = find_last_seen(opened.store, run_id, some, reader_of(opened), most)
        assert seen.rows.num_rows == some.num_rows
        assert all(column.null_count == some.num_rows for column in seen.rows.columns)
        assert "--by path" in " ".join(seen.describe_unknown())

    opened.store.delete([run_folder.manifest(run_id, COMMITTED_DF.name)])
    out = BytesIO()
    told = write_frame(stored, [], "json", out, find_places=partial(_find_last_seen, opened, stored))
    assert len(out.getvalue().splitlines()) == some.num_rows
    assert "branches, paths and commits are not known: " in told


def test_the_page_has_it_by_rule_by_folder_and_by_both(expired: tuple[OpenRepository, str]) -> None:
    opened, run_id = expired
    reported = text(render(facts_of(opened, run_id)))

    assert "Garbage by branch and rule of the commit that held it last" in reported
    assert "dev: 5d by the server's default | 4 | " in reported
    assert "(no expired commit holds it) | 1 | 15 B" in reported
    assert "(in no folder) | 1 | 3 B" in reported
    assert "dev | 5d by the server's default | work/ | 1 | 16 B" in reported
    assert "(no branch leads there) | 5d by the server's default | lost/ | 1 | 4 B" in reported


def test_what_would_take_a_run_long_is_left_to_the_command(
    expired: tuple[OpenRepository, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, run_id = expired
    reads: list[str] = []
    monkeypatch.setattr(LiveFiles, "folders", lambda self, record: reads.append(record.id))
    for most in (1, 3 * 20_000 + 7):
        facts = facts_of(opened, run_id, most)
        assert facts.last_held is None
        assert "lakefs-gc report --again RUN" in text(render(facts))
    assert reads == []


def test_what_is_damaged_or_was_not_noted_is_said(expired: tuple[OpenRepository, str]) -> None:
    opened, run_id = expired
    attempt = files.read_manifest(opened.store, run_id, CANDIDATES_DF).span.attempt
    key = f"{run_folder.frame(run_id, COMMITTED_DF.name)}expired-{attempt}.parquet"
    before = opened.store.get(key)
    opened.store.put(key, before[:-1])
    assert "expired commits" in text(render(facts_of(opened, run_id)))
    opened.store.delete([key])
    assert "the run did not note it" in text(render(facts_of(opened, run_id)))
    some = pa.table({"address": ["data/x"], "size": [1]})
    assert trace(opened.store, run_id, some, reader_of(opened)) == "the run did not note it"


def test_other_runs_have_nothing_of_it(replaying: Replaying) -> None:
    runs = replaying("small", max_candidate_share=1)
    opened = runs.open()
    assert runs.make(opened).success
    facts = facts_of(runs.repository, opened.run_id)
    assert (facts.last_held, facts.held_unknown) == (None, None)
    assert "held it last" not in text(render(facts))
    some = pa.table({"address": ["data/x"], "size": [1]})
    unknown = trace(runs.repository.store, opened.run_id, some, reader_of(runs.repository))
    assert unknown == "no commit holds these objects, and lakeFS keeps no names of objects that were never committed"


def test_kinds_are_ordered_by_bytes_and_limited(expired: tuple[OpenRepository, str]) -> None:
    opened, run_id = expired
    many = tuple(LastHolder("main", "a rule", f"{number}/", 1, 1000 - number) for number in range(100))
    reported = text(render(replace(facts_of(opened, run_id), last_held=LastHeld(many))))
    assert "the largest 40 of 100" in reported and "39/ | 1 | 961 B" in reported and "40/ | 1" not in reported


def test_paths_that_are_no_text_are_shown_with_replacements() -> None:
    paths = pa.chunked_array([[b"a/\xc3\xa4", None], [b"a/\xff"]])
    assert _decoded(paths).to_pylist() == ["a/ä", None, "a/\N{REPLACEMENT CHARACTER}"]
    assert _decoded(paths[:2]).to_pylist() == ["a/ä", None]
