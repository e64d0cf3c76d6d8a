import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.commits import CommitSource, LiveCommits
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame.frames import LIVE, ReasonsToStay
from lakefs_gc_assets.collector.live import facts, other_repositories, references, uncommitted
from lakefs_gc_assets.collector.live.current import (
    Committed,
    Unread,
    ask_committed,
    find_committed,
    prepare_uncommitted,
    read_reasons,
)
from lakefs_gc_assets.collector.live.facts_of_ranges import SIZES
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.live.uncommitted import Prepared
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.retention.retention import LiveDefinition
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import AccessDenied
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.api.models import Branch, Commit, DiffEntry, ObjectStats, RetentionRules
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.settings import CollectionSettings, StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import made_step, opened_by
from lakefs_gc_assets_tests.collector.past_runs import NOW, opened
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.collector.scripted import Script, ScriptedApi
from lakefs_gc_assets_tests.collector.written import (
    Staged,
    put_commit_objects,
    put_dump,
    put_metarange,
    put_range,
    put_uncommitted,
)
from lakefs_gc_assets_tests.runs.made_ranges import range_records

__all__ = ["opened"]

NO_COMMITS = LiveCommits(CommitSource.REFS_DUMP, NOW, NOW, (), (), {})


def test_commits_are_read_after_the_last_question_about_staged_objects(
    opened: OpenRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other repositories are asked for staged objects of this repository, which may take long."""
    monkeypatch.setattr(uncommitted, "prepare_checked", lambda *given, **_: Prepared(NOW, NOW, ("run",), (), 1))

    def asked(*given: object) -> pa.Table:
        opened.clock.sleep(600)
        return LIVE.empty_table()

    monkeypatch.setattr(other_repositories, "staged_elsewhere", asked)
    monkeypatch.setattr(References, "uncommitted", lambda *given: LIVE.empty_table())
    step = SimpleNamespace(
        repository=replace(opened, others=(opened,)),
        plan=SimpleNamespace(run_id="run", flow=Flow.CLEAN, cutoff=NOW, slice_window="month"),
        tasks=lambda setting: 1,
        engine=SimpleNamespace(table=lambda table: table),
    )

    found = prepare_uncommitted(cast(Step[Any], step))

    assert (found.started_at, found.ended_at) == (NOW, NOW + timedelta(minutes=10))
    assert len(found.addresses) == 3


FOLDER = CommitSource.METADATA_FOLDER
NONE, ONE, TWO = (
    range_records(RangeRecord(name * 64, b"a", b"z", count, 0) for name, count in some)
    for some in ([], [("a", 3)], [("a", 3), ("b", 4)])
)


class Repositories:
    """A repository in a folder, and another one that counts as well."""

    def __init__(self, folder: Path) -> None:
        self.own, self.other = (self._opened(folder, name) for name in ("own", "other"))

    @staticmethod
    def _opened(folder: Path, name: str) -> OpenRepository:
        (folder / name).mkdir()
        return opened_by(StoreOpener(StoreSettings(local_root=str(folder)), f"local://{name}"))

    def step(self, **changes: Any) -> Step[ArrowRows]:
        return made_step(LocalEngine(), replace(self.own, others=(self.other,)), replace(PLAN, **changes))

    @staticmethod
    def commit(repository: OpenRepository, *addresses: str, compacted: str | None = None) -> str:
        """Commits these addresses on a branch, perhaps on a compacted base; returns the id of its metarange."""
        api = cast(ScriptedApi, repository.api)
        types = {each: AddressType.FULL if "://" in each else AddressType.RELATIVE for each in addresses}
        held = put_commit_objects(repository.store, {each: Staged(each, type_) for each, type_ in types.items()})
        head = Commit("c" * 64, held, (), 7)
        bases = {} if compacted is None else {"main": compacted}
        api.dumps = Script(put_dump(repository.store, [head], [Branch("main", head.id)], compacted=bases))
        api.branch_lists, api.commits = Script((Branch("main", head.id),)), {head.id: Script(head)}
        return held


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    return Repositories(tmp_path)


def addresses(step: Step[ArrowRows], rows: Sequence[ArrowRows]) -> set[str]:
    return {address for each in rows for address in step.engine.collect(each).column("address").to_pylist()}


class TestUncommittedData:
    def test_is_that_of_all_repositories_and_its_preparation_is_noted(
        self, repositories: Repositories, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step, asked = repositories.step(), list[tuple[object, ...]]()
        server_run = layout.XidGenerator().descending(NOW)
        put_uncommitted(repositories.own.store, "f", ["data/own"])
        put_uncommitted(repositories.other.store, "g", [f"{repositories.own.namespace.uri}data/others"])

        def prepared(*given: object, **named: object) -> Prepared:
            asked.append((*given, named))
            own = cast(OpenRepository, given[1]).store is repositories.own.store
            started_at = NOW + timedelta(minutes=2 if own else 1)
            return Prepared(started_at, NOW, (server_run if own else "other",), ("f",) if own else ("g",), 1)

        monkeypatch.setattr(uncommitted, "prepare_checked", prepared)
        its = cast(ScriptedApi, repositories.other.api)
        its.changes_of["main"] = Script([DiffEntry("p", "added")])
        slice_ = layout.XidGenerator().descending(NOW)
        staged = f"data/{slice_}/{layout.XidGenerator().ascending(NOW)}"
        its.stats["main", "p"] = Script(ObjectStats("p", repositories.own.namespace.uri + staged, 1))
        reported = list[int]()
        found = prepare_uncommitted(step, reported.append)

        given = [
            (step.engine, each, step.plan.cutoff, (), reported.append) for each in (step.repository, repositories.other)
        ]
        assert asked == [(*each, {"commits_expire": False}) for each in given]
        assert addresses(step, found.addresses) == {"data/own", "data/others", staged}
        (row,) = step.engine.collect(found.addresses[2]).to_pylist()
        assert row == {"address": staged, "slice": slice_, "slice_window": f"{NOW:%Y-%m}"}
        assert (found.started_at, found.ended_at) == (NOW + timedelta(minutes=1), step.repository.clock.now())
        assert (found.files, found.count) == (2, 500_000)
        assert uncommitted.recorded_preparations(repositories.own.store, step.plan.run_id) == [server_run]
        prepare_uncommitted(repositories.step(flow=Flow.UNIFIED))
        assert asked[-1][-1] == {"commits_expire": True}


class TestWhatWasNotRead:
    def test_by_a_refs_dump(self, opened: OpenRepository) -> None:
        unread = Unread(opened, CommitSource.REFS_DUMP, ("m",), TWO, ())
        assert set(unread.ids) == {"m", "a" * 64, "b" * 64}
        assert (unread.ranges, unread.promised, unread.count) == (2, 7, 7)
        nothing = Unread(opened, CommitSource.REFS_DUMP, (), NONE, ())
        assert (set(nothing.ids), nothing.ranges, nothing.promised, nothing.count) == (set(), 0, 0, 0)

    def test_by_the_metadata_folder(self, opened: OpenRepository) -> None:
        unread = Unread(opened, FOLDER, (), NONE, ("f", "g", "h"))
        assert set(unread.ids) == {"f", "g", "h"}
        assert (unread.ranges, unread.promised, unread.count) == (3, None, 150_000)

    def test_of_several_repositories(self, opened: OpenRepository) -> None:
        own = LiveCommits(CommitSource.REFS_DUMP, NOW, NOW, (), (), {}, dump_tables=("t",))
        one = Unread(opened, CommitSource.REFS_DUMP, ("m",), ONE, ())
        two = replace(one, metarange_ids=("n",))
        three = replace(one, metarange_ids=(), records=TWO.without({"a" * 64}))
        found = Committed(own, (one, two), None, three)
        assert found.everything == (one, two, three)
        assert set(found.ids) == {"m", "n", "t", "a" * 64, "b" * 64}
        assert (found.ranges, found.count, found.source) == (3, 10, "refs dump")
        folder = Unread(opened, FOLDER, (), NONE, ("f",))
        assert Committed(own, (one, folder), None).source == "refs dump, metadata folder"
        assert Committed(own, (folder,), None).everything == (folder,)


class TestCommits:
    def test_of_all_repositories_and_ranges_that_none_of_them_names(self, repositories: Repositories) -> None:
        own = repositories.commit(repositories.own, "data/x")
        other = repositories.commit(repositories.other, f"{repositories.own.namespace.uri}data/y")
        unnamed = put_commit_objects(repositories.own.store, {"z": Staged("data/z")})
        step = repositories.step()
        found = ask_committed(step, NOW, frozenset())
        assert [each.metarange_ids for each in found.unread] == [(own,), (other,)]
        assert [each.repository.namespace.uri for each in found.unread] == ["local://own/", "local://other/"]
        assert found.unnamed is not None and unnamed in found.unnamed.ids and len(found.unnamed.records) == 1
        assert (found.definition, found.own.commits) == (None, 1)
        assert (found.unnamed.repository, found.unnamed.source) == (step.repository, CommitSource.REFS_DUMP)
        assert addresses(step, found.addresses(step)) == {"data/x", "data/y", "data/z"}
        folder = references.facts_folder(step, SIZES)
        assert facts.list_files(repositories.own.store, folder.key) == {}
        assert addresses(step, found.addresses(step, [folder])) == {"data/x", "data/y", "data/z"}
        files = facts.files_of(SIZES, facts.list_files(repositories.own.store, folder.key))
        assert sum(file.values for file in files) == 3
        again = ask_committed(step, NOW, found.ids)
        assert (set(again.ids) - set(again.own.dump_tables), again.ranges) == (set(), 0)

    def test_ranges_that_no_commit_names_are_not_looked_for(self, repositories: Repositories) -> None:
        repositories.commit(repositories.own, "data/x")
        repositories.commit(repositories.other)
        put_commit_objects(repositories.own.store, {"z": Staged("data/z")})
        step = repositories.step()
        step.repository = replace(step.repository, settings=CollectionSettings(keep_unnamed_ranges=False))
        assert ask_committed(step, NOW, frozenset()).unnamed is None

    @pytest.mark.parametrize("unnamed", [True, False])
    def test_compacted_bases_of_all_repositories_are_live_for_now(
        self, repositories: Repositories, unnamed: bool
    ) -> None:
        base = put_commit_objects(repositories.own.store, {"s": Staged("data/s")})
        theirs = f"{repositories.own.namespace.uri}data/t"
        other = put_commit_objects(repositories.other.store, {"t": Staged(theirs, AddressType.FULL)})
        repositories.commit(repositories.own, "data/x", compacted=base)
        repositories.commit(repositories.other, "data/y", compacted=other)
        step = repositories.step()
        step.repository = replace(step.repository, settings=CollectionSettings(keep_unnamed_ranges=unnamed))
        found = ask_committed(step, NOW, frozenset())
        assert addresses(step, found.provisional_addresses(step)) == {"data/s", "data/t"}
        assert addresses(step, found.addresses(step)) == {"data/x", "data/y"}
        # A later run must read it again: the branch may have another base by then.
        assert not {base, other, *found.provisional[0].records.ids} & set(found.ids)
        again = ask_committed(step, NOW, found.ids)
        assert addresses(step, again.provisional_addresses(step)) == {"data/s", "data/t"}
        assert addresses(step, [again.provisional[1].addresses(step)]) == {"data/t"}

    def test_a_base_that_names_what_commits_hold_adds_nothing(self, repositories: Repositories) -> None:
        base = put_commit_objects(repositories.own.store, {"data/x": Staged("data/x")})
        assert repositories.commit(repositories.own, "data/x", compacted=base) == base
        repositories.commit(repositories.other)
        found = ask_committed(repositories.step(), NOW, frozenset())
        assert sum(each.ranges for each in found.provisional) == 0 and base in found.ids

    def test_a_range_of_a_base_that_another_metarange_names_too_is_read_for_good(
        self, repositories: Repositories
    ) -> None:
        part = put_range(repositories.own.store, {"s": Staged("data/s")})
        base = put_metarange(repositories.own.store, [part])
        more = put_range(repositories.own.store, {"t": Staged("data/t")})
        put_metarange(repositories.own.store, [part, more])
        repositories.commit(repositories.own, "data/x", compacted=base)
        repositories.commit(repositories.other)
        step = repositories.step()
        found = ask_committed(step, NOW, frozenset())
        assert addresses(step, found.addresses(step)) == {"data/s", "data/t", "data/x"}

    def test_where_old_ranges_do_not_count_young_ones_are_live_for_now(self, repositories: Repositories) -> None:
        repositories.commit(repositories.own, "data/x")
        repositories.commit(repositories.other)
        old = put_commit_objects(repositories.own.store, {"old": Staged("data/old")})
        put_commit_objects(repositories.own.store, {"young": Staged("data/young")})
        step = repositories.step()
        cutoff = step.plan.cutoff.timestamp()
        folder = Path(repositories.own.opener.settings.local_root or "") / "own" / "_lakefs"
        for file in folder.iterdir():
            os.utime(file, (cutoff, cutoff))
        for record in References.from_step(step).range_records([old]):
            os.utime(folder / record.id, (cutoff - 1, cutoff - 1))
        os.utime(folder / old, (cutoff - 1, cutoff - 1))
        settings = CollectionSettings(keep_old_unnamed_ranges=False)
        step.repository = replace(step.repository, settings=settings)
        found = ask_committed(step, NOW, frozenset())
        assert found.unnamed is None
        assert addresses(step, found.provisional_addresses(step)) == {"data/young"}
        assert addresses(step, found.addresses(step)) == {"data/x"}

    def test_by_the_metadata_folder_all_are_read_anyway(self, repositories: Repositories) -> None:
        repositories.commit(repositories.own, "data/x")
        repositories.commit(repositories.other)
        put_commit_objects(repositories.own.store, {"z": Staged("data/z")})
        cast(ScriptedApi, repositories.own.api).dump_starts = Script(AccessDenied("403"))
        step = repositories.step()
        found = ask_committed(step, NOW, frozenset())
        assert found.unnamed is None and found.source == "metadata folder, refs dump"
        assert addresses(step, found.addresses(step)) == {"data/x", "data/z"}
        known = found.unread[0].files[0]
        assert known not in ask_committed(step, NOW, frozenset([known])).unread[0].files

    def test_of_another_repository_are_read_whole(self, repositories: Repositories) -> None:
        held = repositories.commit(repositories.other, f"{repositories.own.namespace.uri}data/y")
        step = repositories.step()
        committed = find_committed(step, NO_COMMITS, NOW, frozenset(), IdSet)
        found = committed.unread[1]
        assert not committed.provisional and not committed.unread[0].ranges
        assert (found.metarange_ids, found.ranges, found.source) == ((held,), 1, CommitSource.REFS_DUMP)
        assert addresses(step, [found.addresses(step)]) == {"data/y"}

    def test_of_which_some_are_known_to_be_live(self, repositories: Repositories) -> None:
        held = repositories.commit(repositories.own, "data/x")
        repositories.commit(repositories.other)
        put_commit_objects(repositories.own.store, {"theirs": Staged("data/theirs")})
        step = repositories.step()
        expired = IdSet([held]) | IdSet(record.id for record in References.from_step(step).range_records([held]))
        found = find_committed(step, NO_COMMITS, NOW, frozenset(), lambda: expired)
        assert addresses(step, found.addresses(step)) == {"data/theirs"}
        assert held in find_committed(step, NO_COMMITS, NOW, frozenset(), IdSet).ids

    def test_are_asked_for_a_while_after_uncommitted_data_and_it_is_logged(self, repositories: Repositories) -> None:
        repositories.commit(repositories.own)
        repositories.commit(repositories.other)
        step, lines = repositories.step(), list[str]()
        step.log = lines.append
        ask_committed(step, step.repository.clock.now(), frozenset())
        assert "waiting 30 s before reading commits" in lines

    @pytest.mark.parametrize("flow", [Flow.UNIFIED, Flow.CLEAN])
    def test_by_retention_are_defined_by_everything_that_counts(
        self, repositories: Repositories, monkeypatch: pytest.MonkeyPatch, flow: Flow
    ) -> None:
        repositories.commit(repositories.other)
        repositories.commit(repositories.own)
        expired = put_commit_objects(repositories.own.store, {"old": Staged("data/old")})
        held = put_commit_objects(repositories.own.store, {"new": Staged("data/new")})
        live = LiveCommits(CommitSource.REFS_DUMP, NOW, NOW, (held,), (), {"main": held}, 1)
        definition = LiveDefinition(live, (expired,), "rules", {})
        asked = list[tuple[object, ...]]()

        def defined(*given: object, at_once: bool) -> LiveDefinition:
            asked.append((*given, at_once))
            return definition

        monkeypatch.setattr(retention, "live_definition", defined)
        step = repositories.step(flow=flow)
        own = step.repository
        before = ReasonsToStay({"main": "c" * 64})
        found = ask_committed(step, NOW, frozenset(), before, at_once=True)
        if flow is Flow.CLEAN:
            assert asked == [] and found.definition is None
            return
        until = (step.plan.earliest_clock, NOW, step.log, before, True)
        assert asked == [(own, *until)]
        assert (found.definition, found.own, found.unread[0].metarange_ids) == (definition, live, (held,))
        # Files of expired commits only belong to no other repository.
        assert found.unnamed is not None and expired not in found.unnamed.ids and not found.unnamed.records
        assert addresses(step, found.addresses(step)) == {"data/new"}


@pytest.mark.parametrize("flow", [Flow.UNIFIED, Flow.COMMITTED])
def test_reasons_to_stay_are_read_where_commits_expire(repositories: Repositories, flow: Flow) -> None:
    api = cast(ScriptedApi, repositories.own.api)
    api.rules = Script(RetentionRules(7, {"x": 9}))
    api.branch_lists = Script((Branch("main", "c" * 64), Branch("x", "d" * 64)))
    api.tag_lists = Script((Branch("v1", "e" * 64),))
    branches, tags = {"main": "c" * 64, "x": "d" * 64}, {"v1": "e" * 64}
    assert read_reasons(repositories.step(flow=flow)) == ReasonsToStay(branches, tags, RetentionRules(7, {"x": 9}))


def test_without_rules_nothing_but_their_absence_is_a_reason(repositories: Repositories) -> None:
    api = cast(ScriptedApi, repositories.own.api)
    api.rules, api.branch_lists = Script(None), Script(AssertionError("branches were asked for"))
    assert read_reasons(repositories.step(flow=Flow.UNIFIED)) == ReasonsToStay()


def test_where_every_commit_stays_nothing_is_asked_for(repositories: Repositories) -> None:
    api = cast(ScriptedApi, repositories.own.api)
    api.rules = Script(AssertionError("rules were asked for"))
    assert read_reasons(repositories.step()) is None


def test_tag_that_becomes_a_branch_while_reasons_are_read_is_one_of_them(repositories: Repositories) -> None:
    api = cast(ScriptedApi, repositories.own.api)
    api.rules = Script(RetentionRules(7, {}))
    api.branch_lists = Script((Branch("main", "c" * 64),))
    api.tag_lists = Script((Branch("gone", "d" * 64), Branch("moved", "e" * 64)), (Branch("moved", "f" * 64),))
    found = read_reasons(repositories.step(flow=Flow.UNIFIED))
    assert found is not None and found.tags == {"gone": "d" * 64, "moved": "f" * 64}
    assert found.commit_ids == {letter * 64 for letter in "cdef"}
