"""Live objects of the quarantine: two checks at first, and one more for each further round of requests."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast
from unittest import mock

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame.frames import COPIES, LIVE
from lakefs_gc_assets.collector.live import other_repositories
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck, Moved, Purged
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import passes
from lakefs_gc_assets.defs import maintenance
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import (
    AccessDenied,
    GuardTripped,
    LakeFSError,
    OrderViolation,
    ServerUnavailable,
)
from lakefs_gc_assets.lakefs.api.models import (
    Branch,
    Commit,
    ObjectStats,
    PrepareCommitsTask,
    PreparedCommits,
    RepositoryFacts,
    RetentionRules,
)
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.settings import CollectionSettings, StoreSettings
from lakefs_gc_assets.spark import faults
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_steps import opened_by
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.collector.scripted import NOW, HandClock, Script, ScriptedApi, page
from lakefs_gc_assets_tests.collector.written import Staged, put_commit_objects, put_dump, put_uncommitted

PREPARED = "_lakefs/retention/gc/uncommitted/run1/uncommitted/"
LIST = "_lakefs/retention/gc/commits/run_id=r/commits.csv"
CONTENT = b"content"
MD5 = hashlib.md5(CONTENT).hexdigest()
HELD, OTHER = (f"data/g4uk6erfnfus73frbnqg/dc0n8tpksdu988af5s{number}0" for number in "ab")
COPIED = [f"data/g4uk6erfnfus73frbnqg/dc0n8tpksdu988af5s{number}0" for number in "0123"]


class World:
    """A repository with one branch, a run that moved COPIED to quarantine, and the check for live copies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        self.folder.mkdir()
        self.opened = opened_by(StoreOpener(StoreSettings(local_root=str(folder)), "local://repository"))
        self.api, self.store = cast(ScriptedApi, self.opened.api), self.opened.store
        self.clock = cast(HandClock, self.opened.clock)
        self.wait = timedelta(seconds=self.opened.settings.wait_before_dump_seconds)
        self.lines: list[str] = []
        plan = replace(PLAN, storage_namespace=self.opened.namespace.uri)
        self.step: Step[ArrowRows] = Step(self.lines.append, self.lines.append, self.opened, LocalEngine(), plan, None)
        self.check = LiveCheck(self.step)
        for address in COPIED:
            self.store.put(passes.key(plan.run_id, address), CONTENT)
        rows = [
            {
                "address": address,
                "size": len(CONTENT),
                "slice": None,
                "slice_window": "2026-11",
                "etag": None,
                "key": passes.key(plan.run_id, address),
            }
            for address in COPIED
        ]
        table = pa.Table.from_pylist(rows, schema=COPIES)
        self.moved = [Moved(plan, NOW, table.slice(0, 1)), Moved(plan, NOW, table.slice(1))]
        self.commit({"other": Staged(OTHER, size=1)})
        self.stage()

    def commit(self, entries: Mapping[str | bytes, Staged]) -> None:
        """Commits these entries as the branch's head; the server returns each as committed."""
        head = Commit("c" * 64, put_commit_objects(self.store, entries), (), 7)
        self.api.dumps = Script(put_dump(self.store, [head], [Branch("main", head.id)]))
        for path, entry in entries.items():
            if isinstance(path, str):
                self.show(path, entry.address)

    def collect_by(self, rules: RetentionRules, *heads: str) -> None:
        """Applies rules. The branch is on the commit `new`; requests for its head return these, one by one."""
        ids = {"old": "a" * 64, "new": "c" * 64}
        old = Commit(ids["old"], put_commit_objects(self.store, {"p": Staged(COPIED[0])}), (), 7)
        new = Commit(ids["new"], put_commit_objects(self.store, {"other": Staged(OTHER, size=1)}), (old.id,), 8)
        for each in (old, new):
            os.utime(self.folder / METADATA_PREFIX / each.metarange_id, (each.creation_date, each.creation_date))
        self.api.branch_lists = Script(*((Branch("main", ids[name]),) for name in heads))
        self.api.dumps = Script(put_dump(self.store, [old, new], [Branch("main", new.id)]))
        self.api.rules = Script(rules)
        self.store.put(LIST, f"commit_id,expired,metarange_id\n{new.id},false,{new.metarange_id}\n".encode())
        listed = PreparedCommits("r", f"local:///var/lakefs/repository/{LIST}")
        self.api.prepare_commits_tasks = Script(PrepareCommitsTask(True, None, listed))
        self.step.plan = replace(self.step.plan, flow=Flow.UNIFIED)

    def show(self, path: str, address: str) -> None:
        self.api.stats["main", path] = Script(ObjectStats(path, self.opened.namespace.uri + address, len(CONTENT)))

    def stage(self, *addresses: str) -> None:
        """Makes these addresses the only uncommitted data."""
        put_uncommitted(self.store, f"{PREPARED}a", addresses)
        self.api.pages = Script(page(f"local:///var/lakefs/repository/{PREPARED}"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_committed_or_staged_is_live(world: World) -> None:
    world.commit({"other": Staged(OTHER), "p": Staged(COPIED[1])})
    world.stage(COPIED[2], HELD)
    found = world.check(world.moved)
    assert (found.live, found.unsure) == (frozenset(COPIED[1:3]), frozenset())
    # One of the ranges belongs to a commit that is no longer on any branch.
    assert [line for line in world.lines if line.endswith(" live")] == [
        "1 file of uncommitted data, 1 commit, 2 ranges: 2 copies are live",
        "1 file of uncommitted data, 1 commit, 0 ranges: 1 copy is live",
    ]


def test_the_first_question_takes_two_looks_and_each_further_one_takes_one(world: World) -> None:
    assert world.check(world.moved).as_of.at == NOW + world.wait
    assert (len(world.api.tasks_asked), world.api.tokens) == (2, [None, None])
    began = world.clock.moment
    world.clock.sleep(60)
    assert world.check(world.moved).as_of.at == began + timedelta(minutes=1)
    assert (len(world.api.tasks_asked), world.api.tokens) == (3, [None] * 3)
    looks = [line for line in world.lines if line.endswith(" live")]
    assert ["1 range" in line for line in looks] == [True, False, False], "a range is read once"


def test_what_becomes_live_while_the_first_look_takes_its_time_is_found_by_the_next_one(world: World) -> None:
    first, second = (f"local:///var/lakefs/repository/{PREPARED.replace('run1', run)}" for run in ("run1", "run2"))
    put_uncommitted(world.store, f"{PREPARED.replace('run1', 'run2')}a", [COPIED[3]])
    world.api.pages = Script(page(first), page(second, run_id="run2"))
    assert world.check(world.moved).live == {COPIED[3]}


def test_what_was_live_once_stays_live(world: World) -> None:
    world.stage(COPIED[0])
    assert world.check(world.moved).live == {COPIED[0]}
    world.stage(COPIED[1])
    assert world.check(world.moved[1:]).live == {COPIED[0], COPIED[1]}


def test_what_is_committed_since_is_live_by_its_new_range_alone(world: World) -> None:
    assert world.check(world.moved).live == frozenset()
    world.commit({"other": Staged(OTHER, size=1), "p": Staged(COPIED[2])})
    assert world.check(world.moved).live == {COPIED[2]}


def test_a_copy_that_is_staged_with_the_content_of_a_committed_object_is_live(world: World) -> None:
    """It is missing from uncommitted data, so the branch is asked at the path of the committed object."""
    world.commit({"other": Staged(OTHER, size=1), "p": Staged(HELD, size=len(CONTENT), etag=MD5)})
    world.show("p", COPIED[3])
    found = world.check(world.moved)
    assert (found.live, found.unsure) == (frozenset(COPIED[3:]), frozenset())
    world.api.asked.clear()
    assert world.check(world.moved).live == {COPIED[3]}
    assert world.api.asked == [], "a further look is at uncommitted data and new ranges"


def test_what_is_committed_stays_live_where_something_is_staged_unseen_besides(world: World) -> None:
    """Only the first check reads the range that holds it."""
    held = Staged(HELD, size=len(CONTENT), etag=MD5)
    world.commit({"other": Staged(OTHER, size=1), "p": held, "q": Staged(COPIED[1], size=1)})
    world.show("p", COPIED[3])
    assert world.check(world.moved).live == {COPIED[1], COPIED[3]}


def test_what_may_be_staged_where_nobody_can_ask_is_told_apart(world: World) -> None:
    world.commit({"other": Staged(OTHER, size=1), b"\xff": Staged(HELD, size=len(CONTENT), etag=MD5)})
    world.stage(COPIED[1])
    found = world.check(world.moved)
    assert found.live == {COPIED[1]}
    assert found.unsure == {COPIED[0], *COPIED[2:]}


def test_what_is_live_anyway_is_not_looked_for_among_what_is_hidden(world: World) -> None:
    world.commit({"other": Staged(OTHER, size=1), "p": Staged(HELD, size=len(CONTENT), etag=MD5)})
    world.stage(*COPIED)
    assert world.check(world.moved).live == frozenset(COPIED)
    assert ("main", "p") not in world.api.asked


@pytest.mark.parametrize("shown", [True, False])
def test_by_retention_the_heads_that_there_were_before_uncommitted_data_was_prepared_stay(
    world: World, shown: bool
) -> None:
    """An object of such a head may have been staged, and the branch reset, in between."""
    # Branches are requested once more before, to sample their staged objects.
    world.collect_by(RetentionRules(0, {}), *(["old", "old"] if shown else []), "new")
    assert world.check(world.moved).live == frozenset(COPIED[:1] if shown else ())


def test_an_error_ends_it(world: World) -> None:
    failure = ServerUnavailable("GET dump: 503")
    world.api.dumps = Script(failure)
    with pytest.raises(ServerUnavailable) as reported:
        world.check(world.moved)
    assert reported.value is failure


def test_what_a_task_of_spark_said_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> Iterator[Purged]:
        raise RuntimeError
        yield

    monkeypatch.setattr(maintenance, "purge_by", fails)
    monkeypatch.setattr(faults, "from_spark", lambda error: LakeFSError("what a task said"))
    with pytest.raises(LakeFSError, match="what a task said"):
        [*maintenance.purge(mock.Mock(spec=Collector), None, "owner", pytest.fail, pytest.fail)]


class TestRefusals:
    """No answer is trusted, and no verdict is given."""

    def test_another_repository_on_the_namespace(self, world: World) -> None:
        world.api.repository_lists = Script((RepositoryFacts("twin", "s3://bucket/repo", "main", False),))
        world.api.pages = Script(AssertionError("uncommitted data was asked for"))
        with pytest.raises(GuardTripped, match="twin"):
            world.check(world.moved)

    def test_commits_of_another_source_than_at_the_first_look(self, world: World) -> None:
        world.api.dump_starts = Script("task", AccessDenied("POST dump: 403"))
        world.api.branch_lists = Script((Branch("main", "c" * 64),))
        world.api.commits = {"c" * 64: Script(Commit("c" * 64, "", (), 7))}
        with pytest.raises(OrderViolation, match="at the mark from the refs dump"):
            world.check(world.moved)

    def test_rules_that_trip_a_guard_of_theirs(self, world: World) -> None:
        world.collect_by(RetentionRules(0, {"misspelt": 3}), "new")
        world.step.repository = replace(world.opened, settings=CollectionSettings())
        with pytest.raises(GuardTripped, match="rules of unknown branches"):
            world.check(world.moved)

    def test_nothing_committed_although_commits_promise_entries(self, world: World) -> None:
        with (
            mock.patch.object(LiveFiles, "range", lambda files, record: LIVE.empty_table()),
            pytest.raises(GuardTripped, match="no committed address was found"),
        ):
            world.check(world.moved)

    def test_but_commits_that_hold_nothing_are_believed(self, world: World) -> None:
        world.store.delete([key for batch in world.store.list("_lakefs/") for key in batch["key"].to_pylist()])
        world.stage(COPIED[0])
        world.commit({})
        # On such a store, the server's spelling of addresses cannot be verified.
        with mock.patch.object(other_repositories, "require_own_addresses"):
            assert world.check(world.moved).live == {COPIED[0]}

    def test_addresses_that_the_server_spells_otherwise(self, world: World) -> None:
        world.api.stats["main", "other"] = Script(ObjectStats("other", f"s3://elsewhere/{OTHER}", 1))
        with pytest.raises(GuardTripped, match="address form"):
            world.check(world.moved)

    @pytest.mark.parametrize(("counted", "refused"), [({"branches": 3}, True), ({"branches": 1}, False), ({}, False)])
    def test_branches_that_are_gone_since_the_run(self, world: World, counted: dict[str, int], refused: bool) -> None:
        made = report.failed(world.step.plan, NOW, "")
        report.write(world.store, replace(made, counts=counted))
        world.step.repository = replace(world.opened, settings=CollectionSettings(max_branch_loss_share=0))
        if not refused:
            assert world.check(world.moved).live == frozenset()
            return
        with pytest.raises(GuardTripped, match=" left of the "):
            world.check(world.moved)
