"""Every guard and every reason to keep an object: its input, and a scene on a real lakeFS in which it decides.

A guard without an input on a real server proves nothing, whatever simulated servers say. docs/evidence/real-servers.md
has the table (`python -m lakefs_gc_assets_tests.real.test_guard_inputs` prints it).
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.check import unneeded_metadata
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.collector.test_foreseen_guards import raised
from lakefs_gc_assets_tests.real.programs import CLOCK_OFFSET
from lakefs_gc_assets_tests.real.server import RealLakeFS, RealRepository, installation

LUA = b"name: script\non:\n  pre-commit:\nhooks:\n  - id: check\n    type: lua\n    properties: {script: 'print(1)'}\n"
_COMMITTED = b"the very same content"


def _nothing(repository: RealRepository) -> None:
    """Adds nothing to the common scene."""


def _sweep(repository: RealRepository, settings: dict[str, Any]) -> None:
    repository.runs(**settings).collect()


@dataclass(frozen=True)
class Row:
    """A guard, or a reason to keep.

    Attributes:
        reads: its input, in words.
        past, present: events 45 days ago and today, in addition to the 12 garbage objects of every repository.
        act: trips the guard; for a reason to keep, makes a dry run.
        settings: settings of `collection`.
        committed: True if main has its own committed object.
        namespace: suffix of the storage namespace, such as `/with%20escape`.
    """

    reads: str
    past: Callable[[RealRepository], object] = _nothing
    present: Callable[[RealRepository], object] = _nothing
    act: Callable[[RealRepository, dict[str, Any]], object] = _sweep
    settings: dict[str, Any] = field(default_factory=dict)
    committed: bool = True
    namespace: str = ""


def _lose_an_object(repository: RealRepository) -> None:
    repository.remove_file(repository.address("committed"))


def _nest(repository: RealRepository) -> None:
    body = {"name": f"{repository.name}-inner", "storage_namespace": f"{repository.namespace}/inner"}
    repository.lakefs.call("POST", "/repositories", body)


def _lose_branches(repository: RealRepository, settings: dict[str, Any]) -> None:
    for number in range(6):
        repository.branch(f"b{number}")
    _sweep(repository, {})
    for number in range(6):
        repository.delete_branch(f"b{number}")
    repository.upload("one more", b"1")
    _sweep(repository, settings)


def _approve_old_mark(repository: RealRepository, settings: dict[str, Any]) -> None:
    dry = repository.runs(sweep=False).collect()
    repository.approve(dry, **settings)


def _reset_since_the_mark(repository: RealRepository, settings: dict[str, Any]) -> None:
    dry = repository.runs(sweep=False).collect()
    repository.reset()
    repository.approve(dry, **settings)


def _by_rules(repository: RealRepository, settings: dict[str, Any]) -> None:
    repository.runs(**settings).collect(Flow.UNIFIED)


def _by_rules_with(policy: str) -> Callable[[RealRepository, dict[str, Any]], None]:
    def act(repository: RealRepository, settings: dict[str, Any]) -> None:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "policy.yaml"
            file.write_text(policy)
            _by_rules(repository, {**settings, "retention_policy": str(file)})

    return act


def _move_metadata(repository: RealRepository, settings: dict[str, Any]) -> None:
    opened = repository.runs(**settings).open()
    unneeded_metadata.list_movable(opened, LocalEngine(), print)


def _list_stale(repository: RealRepository, settings: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "policy.yaml"
        file.write_text('stale_branches: [{branches: ["old-*"], max_inactivity: 30d}]')
        opened = repository.runs(**settings, retention_policy=str(file)).open()
        listing = stale_branches.list_branches(opened, print)
        assert len(listing.stale) == 7 and "guard stale branches" in listing.refused_by
        [*stale_branches.delete(opened, listing.digest, "owner", print, print)]


def _make_stale(repository: RealRepository) -> None:
    for number in range(7):
        repository.branch(f"old-{number}")
        repository.upload("own", f"of {number}".encode(), f"old-{number}")
        repository.commit(f"old-{number}")


def _stage(
    path: str, address: Callable[[RealRepository], str], commits: bool = False
) -> Callable[[RealRepository], None]:
    """Stages an object by an address, with the deprecated call, which does not check it."""

    def act(repository: RealRepository) -> None:
        body = {"physical_address": address(repository), "checksum": "of a client", "size_bytes": 7}
        repository.lakefs.call("PUT", f"/repositories/{repository.name}/branches/main/objects?path={path}", body)
        if commits:
            repository.commit()

    return act


def _spell_with_escape(repository: RealRepository) -> str:
    """The committed object under another spelling of the storage namespace."""
    return f"{repository.namespace.replace('/lake', '/%6Cake')}/{repository.address('committed')}"


def _dry(repository: RealRepository, settings: dict[str, Any]) -> None:
    """Makes a dry run that keeps an object for this row's reason, which is the repository's name."""
    kept = repository.runs(**{"sweep": False, **settings}).collect().kept
    assert kept.get(_reason_of(repository).value, 0) >= 1, kept


def _reason_of(repository: RealRepository) -> Kept:
    return Kept[repository.name.upper().replace("-", "_")]


def _write_twice(path: str) -> Callable[[RealRepository], None]:
    def act(repository: RealRepository) -> None:
        for content in (b"garbage", b"what replaced it"):
            repository.upload(path, content)

    return act


def _write_files_anew(repository: RealRepository) -> None:
    """A user copies the objects: they are young by LastModified, although their names are old."""
    for key in repository.stored():
        repository.file(key).touch()


def _upload_parts_twice(repository: RealRepository) -> None:
    for content in (b"garbage", b"what replaced it"):
        repository.upload_in_parts("in parts", content)


def _stage_committed_content(repository: RealRepository) -> None:
    repository.upload("committed", _COMMITTED)


def _stage_at_a_path_that_is_no_text(repository: RealRepository) -> None:
    for _ in range(2):
        repository.lakefs.upload_raw(repository.name, "main", "%FF", b"content of no text")
        if _ == 0:
            repository.commit()


def _limited(repository: RealRepository, settings: dict[str, Any]) -> None:
    """A run of only the newest window."""
    runs = repository.runs(sweep=False)
    opened = runs.open_run(Flow.CLEAN, layout.issue_run_id(runs.now()))
    made = runs.make(replace(opened, windows=opened.windows[-1:]), STEPS, "owner")
    assert made.success, made.failures
    found = report.read(runs.open().store, opened.run_id)
    assert found is not None and found.kept.get(Kept.OTHER_WINDOW.value, 0) + found.counts["slices_elsewhere"] >= 1


GUARDS: dict[tuple[str, str], Row] = {
    ("too_many_candidates", "share of candidates"): Row(
        "listing, uncommitted data, ranges of commits", settings={"max_candidate_share": 0.1}
    ),
    ("_too_many", "number of candidates"): Row(
        "listing, uncommitted data, ranges of commits", settings={"max_candidates": 3}
    ),
    ("_tripped", "gap in the listing"): Row(
        "ranges of branch heads and staged samples beside the listing", present=_lose_an_object
    ),
    ("_shared_namespace", "namespaces"): Row("GET /repositories", present=_nest),
    ("_lost_branches", "number of branches"): Row(
        "branches of the refs dump beside the report of an earlier run",
        act=_lose_branches,
        settings={"max_branch_loss_share": 0},
    ),
    ("require_limited_commits", "commits under way"): Row(
        "_lakefs_actions/ of every branch",
        present=lambda repository: repository.upload("_lakefs_actions/script.yaml", LUA),
    ),
    ("require_fresh_mark", "age of the mark"): Row(
        "clocks of machine, server and store", act=_approve_old_mark, settings={"max_mark_age_hours": 1e-6}
    ),
    ("require_uncommitted_kept", "loss of uncommitted data"): Row(
        "uncommitted data of the mark and of the recheck",
        act=_reset_since_the_mark,
        settings={"max_uncommitted_loss_share": 0},
    ),
    ("list_rule_guards", "rules of unknown branches"): Row(
        "GET /settings/gc_rules and the branches of the refs dump",
        present=lambda repository: repository.set_rules(7, misspelt=3),
        act=_by_rules,
    ),
    ("list_rule_guards", "pinned commits"): Row(
        "the policy file and the commits of the refs dump",
        present=lambda repository: repository.set_rules(7),
        act=_by_rules_with(f"pinned: [{'e' * 64}]"),
    ),
    ("require_few_stale", "stale branches"): Row(
        "branches and commits of the refs dump",
        past=_make_stale,
        act=_list_stale,
    ),
    ("require_sole_writer", "other servers"): Row("the settings", act=_move_metadata),
    ("require_committed", "empty live set"): Row(
        "ranges of live commits, and the entries that their metaranges count",
        past=_stage("elsewhere", lambda repository: "s3://elsewhere/object", commits=True),
        committed=False,
    ),
    ("refuse_foreign_address", "address form"): Row(
        "stat of an object of a branch head",
        present=_stage("committed", lambda repository: "s3://elsewhere/object"),
    ),
    ("refuse_escaped_namespace", "address form"): Row("GET /repositories/{repository}", namespace="/with%20escape"),
    ("refuse_staged_spelling", "address form"): Row(
        "stat of staged samples",
        past=_stage("other", _spell_with_escape),
        present=lambda repository: repository.set_rules(7),
        act=_by_rules,
    ),
    ("refuse_access_point", "address form"): Row(
        "stat of staged samples and the store",
        past=_stage("alias", lambda repository: f"s3://point-s3alias/lake/{repository.address('committed')}"),
    ),
}
"""Guards that decide in their own scene, by the function that makes each guard, and its name."""

NOT_HERE: dict[tuple[str, str], str] = {
    (
        "refuse_orphan",
        "deleted repository",
    ): "no part of a run: `test_it_is_deleted_while_the_server_makes_no_repository_there_and_comes_back`",
    ("require_few_expired", "expired entries"): "no part of a run: `test_too_large_a_share_is_refused`",
    (
        "refuse_standing",
        "standing approval",
    ): "the collector's own record decides: `test_a_standing_approval_that_ended_or_was_withdrawn_since_it_was_used`",
    ("require_clocks_agree", "clocks"): "`test_server_whose_clock_is_ahead_ends_the_run`",
    ("refuse_unseen_spelling", "address form"): "`test_local_server_without_an_object_to_compare_ends_the_sweep`",
    (
        "_shared_namespace",
        "other repositories",
    ): "403 for GET /repositories, as servers with access control answer: the "
    "open source server has one user, who may do all",
}
"""Guards whose scene is elsewhere, or needs a server that is unavailable here, and the place of that scene."""

KEPT: dict[Kept, Row] = {
    Kept.YOUNG: Row("LastModified and the time in the name", present=_write_files_anew, act=_dry),
    Kept.UNRECOGNISED: Row("names in the listing", past=lambda each: each.put_file("data/foreign/x"), act=_dry),
    Kept.MULTIPART: Row("ETags of the listing", past=_upload_parts_twice, act=_dry),
    Kept.NOT_ASKED: Row("the settings", act=_dry, settings={"only_addresses": ("data/x/y",)}),
    Kept.OTHER_WINDOW: Row("windows of the run", present=_write_twice("young"), act=_limited),
    Kept.HIDDEN_STAGED: Row("stat of paths on branches", past=_stage_committed_content, act=_dry),
    Kept.UNCERTAIN: Row(
        "stat of paths on branches", past=_stage_committed_content, act=_dry, settings={"hidden_suspect_limit": 0}
    ),
    Kept.UNASKABLE: Row("paths in ranges", past=_stage_at_a_path_that_is_no_text, act=_dry),
}
"""Reasons to keep that decide in their own scene."""
KEPT_NOT_HERE = {
    Kept.UNREADABLE: "archive tiers are the store's, not lakeFS's: "
    "`test_the_content_of_an_archived_object_is_unknown_so_its_paths_are_asked_for`",
}


def test_every_guard_and_reason_to_keep_has_a_scene_or_says_where_it_is() -> None:
    assert {*raised()} == GUARDS.keys() | NOT_HERE.keys()
    assert {*Kept} == KEPT.keys() | KEPT_NOT_HERE.keys()


def test_page_has_the_table_of_today() -> None:
    assert "\n".join(table()) in (Path(__file__).parents[2] / "docs" / "evidence" / "real-servers.md").read_text()


def _name(key: tuple[str, str] | Kept) -> str:
    """The name of a row's repository."""
    words = key.name.lower() if isinstance(key, Kept) else "-".join(key).strip("_")
    return words.replace("_", "-").replace(" ", "-")


@pytest.fixture(scope="module")
def repositories() -> Iterator[dict[str, RealRepository]]:
    """Every scene's repository, with the past of its row."""
    with installation() as lakefs:
        lakefs.start(days_ago=45)
        rows = [(_name(key), row) for key, row in GUARDS.items()]
        rows += [(_name(key), row) for key, row in KEPT.items()]
        made = {name: _make(lakefs, name, row) for name, row in rows}
        lakefs.start()
        yield made


def _make(lakefs: RealLakeFS, name: str, row: Row) -> RealRepository:
    repository = RealRepository.make(lakefs, name, row.namespace)
    if row.committed:
        repository.upload("committed", _COMMITTED)
        repository.commit()
    row.past(repository)
    for number in range(12):
        _write_twice(f"replaced/{number}")(repository)
    return repository


@pytest.mark.parametrize("key", GUARDS, ids=lambda key: key[0])
def test_guard_decides_on_a_real_server(repositories: dict[str, RealRepository], key: tuple[str, str]) -> None:
    row, repository = GUARDS[key], repositories[_name(key)]
    row.present(repository)
    stored = repository.stored()
    with pytest.raises(GuardTripped) as refused:
        row.act(repository, row.settings)
    assert refused.value.guard == key[1]
    if key[1] != "number of branches":
        assert repository.stored() == stored


@pytest.mark.parametrize("reason", KEPT, ids=lambda reason: reason.name)
def test_reason_to_keep_decides_on_a_real_server(repositories: dict[str, RealRepository], reason: Kept) -> None:
    row, repository = KEPT[reason], repositories[_name(reason)]
    row.present(repository)
    row.act(repository, row.settings)


def test_server_whose_clock_is_ahead_ends_the_run() -> None:
    with installation({CLOCK_OFFSET: "600"}) as lakefs:
        lakefs.start()
        repository = RealRepository.make(lakefs, "ahead")
        with pytest.raises(GuardTripped, match=r"guard clocks: .* apart"):
            repository.runs(clock_skew_minutes=10).collect()


def test_local_server_without_an_object_to_compare_ends_the_sweep(tmp_path: Path) -> None:
    with installation({"LAKEFS_BLOCKSTORE_TYPE": "local", "LAKEFS_BLOCKSTORE_LOCAL_PATH": str(tmp_path)}) as lakefs:
        lakefs.start(days_ago=3)
        repository = RealRepository.make(lakefs, "repo", scheme="local")
        for number in range(2):
            _write_twice(f"replaced/{number}")(repository)
        for file in filter(Path.is_file, tmp_path.rglob("data/*/*")):
            os.utime(file, (file.stat().st_mtime - 3 * 86_400,) * 2)
        lakefs.start()
        with pytest.raises(GuardTripped, match=r"guard address form: no branch of local://.* has an object"):
            repository.runs(store={"local_root": str(tmp_path)}).collect()


def table() -> Iterator[str]:
    """The lines of the table in docs/evidence/real-servers.md."""
    yield "| guard, or reason to keep | reads | scene on a real server |"
    yield "|---|---|---|"
    for (function, guard), row in sorted(GUARDS.items()):
        yield f"| {guard} (`{function}`) | {row.reads} | `test_guard_decides_on_a_real_server[{function}]` |"
    for (function, guard), where in sorted(NOT_HERE.items()):
        yield f"| {guard} (`{function}`) | | {where} |"
    for reason, row in KEPT.items():
        yield f"| {reason.value} | {row.reads} | `test_reason_to_keep_decides_on_a_real_server[{reason.name}]` |"
    for reason, where in KEPT_NOT_HERE.items():
        yield f"| {reason.value} | | {where} |"


if __name__ == "__main__":
    print("\n".join(table()))
