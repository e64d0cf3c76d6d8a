"""Garbage counts, computed by tasks or in this process: every object is in one group by age and in one by size."""

import csv
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.cli.candidates import _find_last_seen, group_by_path, select_first, write_frame
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, COMMITTED_DF, UNCOMMITTED_DF, CandidateFigures
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.page import page
from lakefs_gc_assets.collector.page.garbage import (
    AGES,
    LARGEST,
    SIZES,
    UNKNOWN_WHY,
    FrameReader,
    Garbage,
    LargeObject,
    LastHeld,
    LastHolder,
    LastStaged,
    PastRun,
    count_batches,
    count_by_month,
    count_by_tasks,
    count_here,
    count_last_staged,
    find_last_held,
    written_by,
)
from lakefs_gc_assets.collector.page.page import Counting, RunFacts, _decoded, find_last_seen, gather, render, trace
from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import Amount, Why
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import active_commits
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import CollectionSettings, ReportSettings
from lakefs_gc_assets.storage.interface import delete_all, keys_below
from lakefs_gc_assets_tests.collector.made_frames import (
    CANDIDATE_FIGURES,
    UNCOMMITTED_FIGURES,
    frame_of_rows,
    opener_in,
)
from lakefs_gc_assets_tests.collector.page.test_page import text
from lakefs_gc_assets_tests.collector.retention.test_active_commits import line_of, recorded_graph
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.lakefs.formats.commit_rows import rows
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.plain_runs import Replaying, replaying
from lakefs_gc_assets_tests.runs.recordings import folder_of, needs_recordings

__all__ = ["replaying"]

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def counted(*objects: tuple[timedelta, int]) -> Garbage:
    written = pa.array([NOW - age for age, _ in objects], pa.timestamp("us", "UTC"))
    sizes = pa.array([size for _, size in objects], pa.int64())
    addresses = pa.array([f"data/{place:04}" for place in range(len(objects))])
    why = pa.array([Why.NO_COMMIT.value, None] * len(objects))[: len(objects)]
    columns = {"address": addresses, "last_modified": written, "size": sizes, "why": why}
    batch = pa.RecordBatch.from_pydict(columns)
    parts = [count_batches([batch.slice(0, 2), batch.slice(0, 0)], NOW), count_batches([batch.slice(2)], NOW)]
    return Garbage.from_counts(each for part in parts for each in part)


def candidates(folder: Path, rows: int, window: str = "2026-11") -> StoredFrame[CandidateFigures]:
    """Candidates of 1, 2, 3… bytes, each a day older than the previous one."""
    objects: list[dict[str, Any]] = [
        {
            "address": f"data/{place:04}",
            "slice_window": window if place % 2 else "legacy",
            "layout": "slice",
            "last_modified": NOW - place * DAY,
            "size": place + 1,
            "why": Why.RESTORED.value if place < 2 else Why.NO_COMMIT.value,
        }
        for place in range(rows)
    ]
    opener = opener_in(folder)
    return frame_of_rows(opener, CANDIDATES_DF, objects, CANDIDATE_FIGURES)


def test_every_object_is_in_one_group_by_age_and_in_one_by_size() -> None:
    borders = [
        (age + moment, size)
        for age in AGES.values()
        for moment in (-timedelta.resolution, timedelta())
        for size in SIZES.values()
    ]
    found = counted(*borders)

    for groups in (found.by_age, found.by_size, found.by_why):
        assert sum(objects for objects, _ in groups.values()) == len(borders)
        assert sum(total for _, total in groups.values()) == sum(size for _, size in borders)
    assert found.oldest == NOW - max(AGES.values())


def test_borders_belong_to_the_older_and_larger_group() -> None:
    found = counted((2 * DAY, 2**16), (2 * DAY - timedelta.resolution, 2**16 - 1), (-DAY, 0), (3650 * DAY, 2**40))

    assert found.by_age == {"< 2 days": (2, 2**16 - 1), "2 to 7 days": (1, 2**16), "over a year": (1, 2**40)}
    assert found.by_size == {"< 64 KiB": (2, 2**16 - 1), "64 KiB to 1 MiB": (1, 2**16), "> 4 GiB": (1, 2**40)}


def test_the_largest_are_named_whichever_task_saw_them() -> None:
    found = counted(*((DAY, size) for size in range(50)), (2 * DAY, 49))

    assert found.largest[:3] == (
        LargeObject("data/0049", 49, NOW - DAY),
        LargeObject("data/0050", 49, NOW - 2 * DAY),
        LargeObject("data/0048", 48, NOW - DAY),
    )
    assert [each.size for each in found.largest] == sorted([49, *range(50)], reverse=True)[:LARGEST]


def test_candidates_of_earlier_versions_say_no_reason() -> None:
    assert counted((DAY, 1), (DAY, 2)).by_why == {Why.NO_COMMIT: (1, 1), UNKNOWN_WHY: (1, 2)}


def test_nothing_is_counted_where_nothing_is() -> None:
    assert Garbage.from_counts(count_batches([], NOW)) == Garbage({}, {}, None)


def test_many_are_counted_by_tasks_and_few_here_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = candidates(tmp_path, 60)
    here = count_here(frame.opener.open(), frame.manifest, NOW)
    assert sum(objects for objects, _ in here.by_age.values()) == 60
    assert here.largest[0] == LargeObject("data/0059", 60, NOW - 59 * DAY)
    assert here.by_why == {Why.RESTORED: (2, 3), Why.NO_COMMIT: (58, 60 * 61 // 2 - 3)}

    assert count_by_tasks(frame, LocalEngine(), NOW) == here
    monkeypatch.setattr(files, "LOCAL_ROWS", 0)
    assert count_by_tasks(frame, LocalEngine(), NOW) == here


def test_files_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    frame = candidates(tmp_path, 4)
    store = frame.opener.open()
    store.delete([frame.manifest.files[0].key])
    with pytest.raises(CorruptFile, match="missing from the object store"):
        count_here(store, frame.manifest, NOW)


@pytest.mark.parametrize("size", ["month", "day", "hour", "slice"])
def test_months_whatever_slices_are_grouped_by(tmp_path: Path, size: Any) -> None:
    windows = {
        "month": "2026-11",
        "day": "2026-11-22",
        "hour": "2026-11-22T10",
        "slice": layout.XidGenerator().descending(NOW),
    }
    frame = candidates(tmp_path, 3, windows[size])

    assert count_by_month(frame.manifest, size) == {"2026-11": (1, 2), "legacy": (2, 4)}


def test_what_wrote_an_object_is_told_by_its_name_and_its_etag() -> None:
    name = "data/g4uk6erfnfus73frbnqg/dc0n8tpksdu988af5sdg"
    parts = "a" * 32 + "-2"
    expected = {
        (name, None): "upload or copy by lakeFS",
        (name, "a" * 32): "upload or copy by lakeFS",
        ("a" * 32, None): "upload or copy by lakeFS",
        (name, parts): "upload in parts",
        (f"{name},{'A' * 43}", None): "client, at an address that lakeFS issued",
        (f"{name},{'A' * 43}", parts): "upload in parts",
        ("data/repo:token/V1StGXR8_Z5jdHi6B-myT", None): "client, at an address that lakeFS issued",
        (f"{name}.part_00001", None): "upload in parts that has not ended",
        (f"{name}.multipart", "a" * 32): "upload in parts that has not ended",
    }
    columns = zip(*expected, strict=True)
    rows = pa.table([pa.array(column, pa.string()) for column in columns], names=["address", "etag"])
    assert dict(zip(expected, written_by(rows).to_pylist(), strict=True)) == expected
    assert written_by(rows.slice(0, 0)).to_pylist() == []


# Commits that held garbage last.


NOTHING = Garbage({}, {}, None)


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


@pytest.mark.parametrize(
    ("name", "flow"),
    [
        ("merge-dangling", Flow.UNIFIED),
        pytest.param("random-dag/11", Flow.COMMITTED, marks=needs_recordings),
    ],
)
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


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OpenRepository, str]]:
    """A dry run on an embedded server, with objects expired on branches, on a deleted branch, and under a long rule."""
    with EmbeddedServer(tmp_path_factory.mktemp("expired")) as server:
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


@contextmanager
def put_back(opened: OpenRepository, key: str) -> Iterator[bytes]:
    """Puts a file back that a test damages or removes."""
    before = opened.store.get(key)
    yield before
    opened.store.put(key, before)


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

    monkeypatch.setattr(page, "WITH_A_PREVIEW", 3 * 20_000)
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
    write_frame(stored, [], "csv", top, partial(select_first, "size", True, 2), find_places=places)
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

    out, key = BytesIO(), run_folder.manifest(run_id, COMMITTED_DF.name)
    with put_back(opened, key):
        opened.store.delete([key])
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
    with put_back(opened, key) as before:
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


# Branches that staged garbage last.


def facts_of_staged(opened: OpenRepository, run_id: str) -> RunFacts:
    counting = Counting(lambda _: NOTHING, frames=FrameReader(LocalEngine(), opened.opener))
    return gather(opened.store, run_id, CollectionSettings(), ReportSettings(), opened.clock.now(), counting)


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[tuple[ArrowRuns, EmbeddedServer]]:
    """Two entries staged on one branch, one on another branch, and an object that no run could see staged."""
    with EmbeddedServer(tmp_path) as server:
        with server.clock.at(datetime.now(UTC) - 10 * DAY):
            repository = clients.repository(server)
            clients.upload(server, "kept", b"kept")
            clients.commit(server, "first")
            for branch in ("dev", "other"):
                body = {"name": branch, "source": "main"}
                assert clients.call(server, "POST", f"/repositories/{repository}/branches", body)[0] == 201
            clients.upload(server, "tmp/a", b"aaaa", branch="dev")
            clients.upload(server, "tmp/b", b"bb", branch="dev")
            clients.upload(server, "draft", b"d", branch="other")
            clients.upload(server, "unseen", b"unseen")
            remove(server, "unseen", "main")
        given = demo.configuration(server, repository)
        collection = given.collection.model_copy(update={"max_candidate_share": 1.0})
        yield ArrowRuns(Loaded(given.model_copy(update={"collection": collection}), {})), server


def remove(server: EmbeddedServer, path: str, branch: str) -> None:
    assert clients.call(server, "DELETE", f"/repositories/repo/branches/{branch}/objects", path=path)[0] == 204


def test_garbage_that_was_only_staged_has_its_run_its_branch_and_its_path(
    staged: tuple[ArrowRuns, EmbeddedServer],
) -> None:
    runs, server = staged
    opened = runs.open()
    first = runs.collect()
    assert facts_of_staged(opened, first.run_id).last_staged is None
    assert "lakeFS keeps no names of objects that were never committed" in text(
        render(facts_of_staged(opened, first.run_id))
    )

    assert clients.call(server, "DELETE", "/repositories/repo/branches/dev")[0] == 204
    second = runs.collect()
    remove(server, "draft", "other")
    third = runs.collect(Flow.UNIFIED)

    facts = facts_of_staged(opened, third.run_id)
    found = facts.last_staged
    assert found is not None
    assert found.until == {second.started_at: (1, 1), first.started_at: (2, 6)}
    assert (found.unseen, found.since) == ((1, len("unseen")), first.started_at)
    assert sorted((each.branch, each.path, each.size, each.seen_at) for each in found.entries) == [
        ("dev", "tmp/a", 4, first.started_at),
        ("dev", "tmp/b", 2, first.started_at),
        ("other", "draft", 1, second.started_at),
    ]
    assert facts.gone_branches == {"dev"}
    paths = group_by_path(facts, Amount(4, 13)).to_pylist()
    until_first = f"staged until the run of {first.started_at:%F %H:%M}Z"
    assert [*map(tuple, (each.values() for each in paths))] == [
        ("(no path is known)", 1, 6),
        (f"dev: tmp/, {until_first}", 2, 6),
        (f"other: (no folder), staged until the run of {second.started_at:%F %H:%M}Z", 1, 1),
    ]
    candidates = StoredFrame.from_run(opened.store, opened.opener, third.run_id, CANDIDATES_DF).table()
    seen = find_last_seen(opened.store, third.run_id, candidates, FrameReader(LocalEngine(), opened.opener), 1000)
    rows = seen.rows.append_column("size", candidates.column("size")).to_pylist()
    assert sorted((row["size"], row["branch"], row["path"], row["last_staged_at"]) for row in rows) == [
        (1, "other", "draft", second.started_at),
        (2, "dev", "tmp/b", first.started_at),
        (4, "dev", "tmp/a", first.started_at),
        (6, None, None, None),
    ]
    assert "Runs note a few staged paths" in " ".join(seen.describe_unknown())
    holders = trace(opened.store, third.run_id, candidates, FrameReader(LocalEngine(), opened.opener))
    assert ("tmp/a", f"staged on branch dev until the run of {first.started_at:%F %H:%M}Z") in holders
    assert ("", "no commit") in holders
    page = text(render(facts))
    assert "not known in a first run" not in page
    assert f"staged until the run of {first.started_at:%F %H:%M}Z | 2 | 6 B" in page
    assert f"not staged in any run since {first.started_at:%F %H:%M}Z | 1 | 6 B" in page
    assert f"dev (deleted since) | tmp/a | {first.started_at:%F %H:%M}Z | 4 B" in page
    assert f"other | draft | {second.started_at:%F %H:%M}Z | 1 B" in page


def test_runs_whose_frames_are_gone_or_damaged_say_nothing(staged: tuple[ArrowRuns, EmbeddedServer]) -> None:
    runs, server = staged
    opened = runs.open()
    first = runs.collect()
    remove(server, "draft", "other")
    second = runs.collect()
    folder = run_folder.frame(first.run_id, UNCOMMITTED_DF.name)
    (noted,) = (key for key in keys_below(opened.store, folder) if "/staged-" in key)
    opened.store.put(noted, b"damaged")
    found = facts_of_staged(opened, second.run_id).last_staged
    assert found is not None and found.until == {first.started_at: (1, 1)} and found.entries == ()

    delete_all(opened.store, [*keys_below(opened.store, folder)])
    assert facts_of_staged(opened, second.run_id).last_staged is None
    assert "saw it staged" not in text(render(facts_of_staged(opened, second.run_id)))


def test_tasks_count_what_many_candidates_and_many_runs_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opener = opener_in(tmp_path)

    def rows(numbers: range, **more: Any) -> list[dict[str, Any]]:
        return [{"address": f"data/{each:04}", "slice_window": f"2026-{each % 3 + 1:02}", **more} for each in numbers]

    garbage = rows(range(60), layout="slice", last_modified=NOW, size=2)
    candidates = frame_of_rows(opener, CANDIDATES_DF, garbage, CANDIDATE_FIGURES)
    past = [
        PastRun(NOW - age * DAY, frame_of_rows(opener, UNCOMMITTED_DF, rows(numbers), UNCOMMITTED_FIGURES).manifest)
        for age, numbers in ((1, range(0)), (2, range(50, 200)), (3, range(40, 60)), (4, range(30)))
    ]

    def counted(most: int | None = None) -> LastStaged | None:
        reader = FrameReader(LocalEngine(), opener)
        total = Amount(candidates.count, candidates.manifest.object_bytes)
        return count_last_staged(reader, reader.rows(CANDIDATES_DF, candidates.manifest), total, past, most)

    everything = LastStaged(
        {NOW - 2 * DAY: Amount(10, 20), NOW - 3 * DAY: Amount(10, 20), NOW - 4 * DAY: Amount(30, 60)},
        Amount(10, 20),
        NOW - 4 * DAY,
    )
    assert counted() == everything
    assert counted(60 + 150) == LastStaged({NOW - 2 * DAY: Amount(10, 20)}, Amount(50, 100), NOW - 2 * DAY)
    assert counted(60) == LastStaged({}, Amount(60, 120), NOW - DAY) and counted(59) is None
    monkeypatch.setattr(files, "LOCAL_ROWS", 0)
    assert counted() == everything
    del past[1:]
    assert counted() == LastStaged({}, Amount(60, 120), NOW - DAY)
