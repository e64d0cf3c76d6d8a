import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, LISTED, STORE_DF, UNCOMMITTED_DF, CandidateFigures
from lakefs_gc_assets.collector.incremental import checkpoint, gap_check
from lakefs_gc_assets.collector.incremental.gap_check import find_gap, select_expected
from lakefs_gc_assets.collector.records import plan, run_folder
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.survey import FindingKind
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.check.fsck import Checkup, check
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.made_frames import (
    COMMITTED_FIGURES,
    LISTED_FIGURES,
    UNCOMMITTED_FIGURES,
    frame_of_rows,
    made_step,
    opened_by,
    opener_in,
)
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, IDS, NOW, began
from lakefs_gc_assets_tests.collector.written import Staged, put_metarange, put_range
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.spark.frame_rows import listed, live

SLICE, NOT_LISTED = IDS.descending(NOW - 9 * DAY), IDS.descending(NOW - 8 * DAY)
SECOND = timedelta(seconds=1)


def named(count: int, slice_: str = SLICE, at: datetime = NOW - 9 * DAY) -> list[str]:
    """New addresses of objects in a slice, sorted."""
    return sorted(f"data/{slice_}/{IDS.ascending(at)}" for _ in range(count))


class Noting(LocalEngine):
    """Records the stated numbers of rows of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int | None] = []

    def without(self, rows: ArrowRows, *live: ArrowRows, count: int, least: int = 0) -> ArrowRows:
        self.counts.append(count)
        return super().without(rows, *live, count=count, least=least)

    def count_by_sets(self, *frames: ArrowRows, count: int) -> dict[int, int]:
        self.counts.append(count)
        return super().count_by_sets(*frames, count=count)

    @contextmanager
    def cached(self, rows: ArrowRows, at_most: int) -> Iterator[ArrowRows]:
        self.counts.append(at_most)
        with super().cached(rows, at_most) as several:
            yield several


class World:
    """A run that has listed one slice, before its mark."""

    def __init__(self, folder: Path) -> None:
        self.opener = opener_in(folder, "repository")
        self.repository = opened_by(self.opener)
        self.store = self.repository.store
        self.engine = Noting()
        plan = began(self.repository, timedelta())
        self.step: Step[ArrowRows] = made_step(self.engine, self.repository, plan)
        self.cutoff = plan.cutoff
        self.list_slices(SLICE)

    def list_slices(self, *slices: str) -> None:
        checkpoint.write_listed_slices(self.store, self.step.plan.run_id, self.step.plan.attempt, slices)

    def gap(
        self,
        there: Sequence[str],
        staged: Sequence[str] = (),
        held: Sequence[str] = (),
        heads: Sequence[Sequence[str]] = (),
    ) -> CandidateFigures:
        """The gap if commits hold these addresses in addition to the heads', each head with its own range."""
        ranges = [put_range(self.store, {address: Staged(address) for address in each}) for each in heads]
        ids = {f"branch{number}": put_metarange(self.store, [part]) for number, part in enumerate(ranges)}
        self.ranges, self.heads = ranges, ids
        committed = {*held, *(address for each in heads for address in each)}
        figures = replace(COMMITTED_FIGURES, heads=ids)

        def rows(addresses: Sequence[str], row: Any) -> list[dict[str, Any]]:
            return [row(address, slice=layout.parse(address).slice) for address in addresses]

        shards = tuple({address.split("/")[1]: None for address in there if address.startswith("data/!")})
        return find_gap(
            self.step,
            frame_of_rows(self.opener, STORE_DF, rows(there, listed), replace(LISTED_FIGURES, other_folders=shards)),
            frame_of_rows(self.opener, UNCOMMITTED_DF, rows(staged, live), UNCOMMITTED_FIGURES),
            frame_of_rows(self.opener, COMMITTED_DF, rows(sorted(committed), live), figures),
        )

    def deleted(self, *addresses: str) -> None:
        """An earlier run deleted these objects."""
        rows = pa.Table.from_pylist([listed(address) for address in addresses], schema=LISTED)
        made = receipts.table(rows, [Outcome.ACCEPTED] * len(addresses), [None] * len(addresses), NOW - DAY)
        receipts.write(self.store, began(self.repository, DAY).run_id, "batch", made)


def gap_of(missing: int, expected: int, examples: tuple[str, ...] = ()) -> CandidateFigures:
    """A gap in which nothing is lost or named again."""
    return CandidateFigures({}, examples, missing=missing, expected=expected, lost=0, named_again=0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_where_nothing_was_listed_nothing_is_missing(world: World) -> None:
    world.list_slices()
    assert world.gap([], heads=[named(3)]) == gap_of(0, 0)


def test_where_all_is_listed_it_is_counted_once(world: World) -> None:
    staged, held, head, garbage = named(2), named(3), named(4), named(5)
    gap = world.gap([*staged, *held, *head, *garbage], [*staged, head[0]], held, [head])
    assert gap == gap_of(0, 9)
    assert world.engine.counts == [14 + 3 + 7]


def test_what_heads_and_staging_hold_is_missing_where_it_is_not_listed(world: World) -> None:
    staged, first, second = named(3), named(3), named(4)
    lost = sorted([staged[0], first[0], second[0], second[1]])
    there = [address for address in [*staged, *first, *second] if address not in lost]
    gap = world.gap(there, [*staged, first[1]], [], [first, second])
    assert (gap.missing, gap.expected) == (4, 10)
    examples = gap.missing_examples
    assert len(examples) == 3 and set(examples) <= set(lost) and examples == tuple(sorted(examples))
    assert (gap.lost, gap.lost_examples) == (0, ())
    count = 6 + 4 + 7
    assert world.engine.counts == [count] * 6


def test_a_single_object_that_staging_alone_holds_is_missing(world: World) -> None:
    staged, head = named(1), named(2)
    assert world.gap(head, staged, [], [head]) == gap_of(1, 3, tuple(staged))


def test_what_only_old_commits_hold_may_have_been_collected(world: World) -> None:
    """lakeFS's own retention may have deleted them; it leaves the commits."""
    old, head = named(3), named(2)
    assert world.gap([*old[1:], *head], [], old, [head]) == gap_of(0, 2)


def test_what_runs_of_ours_deleted_is_told_apart(world: World) -> None:
    head = named(6)
    world.deleted(*head[:4], *named(2))
    gap = world.gap(head[5:], [], [], [head])
    assert (gap.missing, gap.expected, gap.missing_examples, gap.lost) == (1, 6, (head[4],), 4)
    assert len(gap.lost_examples) == 3 and set(gap.lost_examples) <= set(head[:4])


def test_a_listing_need_not_have_other_slices_nor_what_is_young(world: World) -> None:
    cutoff = world.cutoff.replace(microsecond=0)
    before, at = named(1, at=cutoff - SECOND), named(1, at=cutoff)
    elsewhere = named(2, NOT_LISTED)
    assert world.gap([], [*at, *elsewhere], [], [at, elsewhere]) == gap_of(0, 0)
    assert world.gap([], [*before, *at], [], [elsewhere]) == gap_of(1, 1, tuple(before))


class TestShards:
    """A slice was listed if it has an object in any shard."""

    @staticmethod
    def sharded(addresses: Sequence[str], shard: str = "!ab/c") -> list[str]:
        return [address.replace("data/", f"data/{shard}/") for address in addresses]

    def test_in_every_shard_the_objects_of_listed_slices_must_be_there(self, world: World) -> None:
        world.list_slices()
        at = named(1, at=world.cutoff)
        there, gone = self.sharded(named(3)), [*self.sharded(named(2)), *self.sharded(named(1), "!de/f")]
        others = self.sharded([*at, *named(2, NOT_LISTED)])
        gap = world.gap(there, gone[2:], [], [[*there, *gone[:2], *others]])
        assert gap == gap_of(3, 6, tuple(sorted(gone)))
        # Names that lakeFS never makes are not in a slice, in shards as elsewhere.
        odd = [f"{address}/" for address in gone]
        assert world.gap(there, odd, [], [there]) == gap_of(0, 3)

    def test_sealed_slices_of_pending_objects_were_not_listed(self, world: World) -> None:
        world.list_slices()
        pending, carried = self.sharded(named(1)), self.sharded(named(2))
        new, gone = self.sharded(named(2, NOT_LISTED)), self.sharded(named(1, NOT_LISTED))

        def built_on(step: Step[ArrowRows]) -> Any:
            return SimpleNamespace(**vars(base_run(read=set(), heads=[])), sealed=frozenset([SLICE]))

        with mock.patch.object(gap_check, "open_base_checkpoint", built_on):
            gap = world.gap([*pending, *new], carried, [], [[*new, *gone]])
        assert gap == gap_of(1, 3, tuple(gone))

    def test_a_run_that_lists_nothing_expects_nothing(self, world: World) -> None:
        world.list_slices()
        world.step = replace(world.step, plan=replace(world.step.plan, flow=Flow.COMMITTED))
        assert world.gap(self.sharded(named(1)), [], [], [self.sharded(named(2))]) == gap_of(0, 0)


def base_run(read: set[str], heads: Sequence[str]) -> Any:
    """A base run without losses, by the ranges it read and the heads it saw."""
    return SimpleNamespace(run_id="base", read_ids=frozenset(read), lost=lambda step: None, heads=lambda step: {*heads})


def test_a_head_that_is_new_is_looked_into_although_its_ranges_were_read_before(world: World) -> None:
    known, new = named(2), named(3)

    def built_on(step: Step[ArrowRows]) -> Any:
        heads = [*world.heads.values()]
        return base_run(read={each.id for each in world.ranges} | {*heads}, heads=heads[:1])

    with mock.patch.object(gap_check, "open_base_checkpoint", built_on):
        gap = world.gap(new[1:], [], [], [known, new])
    assert gap == gap_of(1, 3, (new[0],))


def test_an_optimized_run_looks_only_into_ranges_that_it_read(world: World) -> None:
    known, new = named(2), named(3)

    def built_on(step: Step[ArrowRows]) -> Any:
        assert step is world.step
        return base_run(read={world.ranges[0].id}, heads=[*world.heads.values()])

    with mock.patch.object(gap_check, "open_base_checkpoint", built_on):
        gap = world.gap(new[1:], [], [], [known, new])
    assert gap == gap_of(1, 3, (new[0],))


def test_an_optimized_run_reads_no_head_that_was_read_before(world: World) -> None:
    known, new = named(2), named(3)

    def built_on(step: Step[ArrowRows]) -> Any:
        heads = [*world.heads.values()]
        world.step.repository.store.put(METADATA_PREFIX + heads[0], b"is not looked at")
        return base_run(read={world.ranges[0].id, heads[0]}, heads=heads)

    with mock.patch.object(gap_check, "open_base_checkpoint", built_on):
        gap = world.gap(new[1:], [], [], [known, new])
    assert gap == gap_of(1, 3, (new[0],))


@given(
    st.lists(st.tuples(st.sampled_from([SLICE, NOT_LISTED]), st.integers(-3, 3), st.booleans()), max_size=12),
    st.integers(0, 999_999),
)
def test_expected_is_what_was_named_in_a_listed_slice_before_the_second_of_the_cutoff(
    drawn: list[tuple[str, int, bool]], microsecond: int
) -> None:
    cutoff = (NOW - HOUR).replace(microsecond=microsecond)
    second, rows, expected = int(cutoff.timestamp()), [], []
    for slice_, late, first in drawn:
        raw = (second + late).to_bytes(4) + (bytes(8) if first else b"\xff" * 8)
        rows.append(live(f"data/{slice_}/{layout.encode_xid(raw)}", slice=slice_))
        if slice_ == SLICE and late < 0:
            expected.append(rows[-1]["address"])
    engine = LocalEngine()
    table = engine.table(pa.Table.from_pylist(rows, schema=cast(pa.Schema, COMMITTED_DF.schema)))
    found = engine.collect(select_expected(engine, table, {SLICE}, cutoff))
    assert found.column("address").to_pylist() == expected


# Objects that expired by rule and are referenced again, on the embedded server: no losses.


FULL: dict[str, Any] = {"full_listing_days": 0}


class Repository:
    """A file that was replaced 40 and 20 days ago, with rules that keep a week."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server, now = server, datetime.now(UTC)
        with server.clock.at(now - 60 * DAY):
            clients.repository(server)
        self.addresses: list[str] = []
        self.commits: list[dict[str, Any]] = []
        for number, days in enumerate((60, 40, 20)):
            with server.clock.at(now - days * DAY):
                self.addresses.append(clients.upload(server, "file", b"%d" % number))
                clients.upload(server, f"other{number}", b"stays")
                self.commits.append(clients.commit(server, f"{days} days ago"))
        self.rules(7)

    def rules(self, days: int) -> None:
        self.call("PUT", "/settings/gc_rules", {"default_retention_days": days, "branches": []})

    def folder_of(self, run_id: str) -> Path:
        return self.server.objects_folder / "repo" / run_folder.folder(run_id)

    def call(self, method: str, path: str, body: object = None, **query: str) -> object:
        status, answer = clients.call(self.server, method, f"/repositories/repo{path}", body, **query)
        assert status < 300, answer
        return answer

    def check(self, *, every_commit: bool = False) -> Checkup:
        runs = ArrowRuns(Loaded(demo.configuration(self.server, "repo"), {}))
        return check(runs.open(), LocalEngine(), runs.log, every_commit=every_commit)

    def collect(self, flow: Flow = Flow.UNIFIED, **collection: Any) -> Report:
        given = demo.configuration(self.server, "repo")
        changes = {"sweep": True, "max_candidate_share": 1.0, **collection}
        settings = given.collection.model_copy(update=changes)
        return ArrowRuns(Loaded(given.model_copy(update={"collection": settings}), {})).collect(flow)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    with EmbeddedServer(tmp_path) as server:
        yield Repository(server)


def gone(found: Report) -> tuple[int, int, bool]:
    """Number of lost objects, number of objects expired by rule, and True if the run succeeded."""
    return found.counts["lost"], found.counts["named_again"], found.success


def test_what_a_branch_or_a_merge_of_an_expired_commit_names_again_is_no_loss(repository: Repository) -> None:
    first = repository.collect()
    assert first.counts["deleted"] == 2
    repository.call("POST", "/branches", {"name": "back", "source": repository.commits[1]["id"]})
    found = repository.collect(Flow.CLEAN)
    assert gone(found) == (0, 1, True)
    (reported,) = [line for line in found.warnings if "referenced again" in line]
    assert reported.startswith("1 object is referenced again") and repository.addresses[1] in reported
    # No metarange of an expired commit is then live, but a head holds an object of an expired one.
    repository.call("DELETE", "/branches/back")
    repository.call("POST", "/branches/main/revert", {"ref": repository.commits[2]["id"], "parent_number": 0})
    assert gone(repository.collect(**FULL)) == (0, 1, True)
    # A run that builds on it reports the same, and objects referenced again since.
    repository.call("POST", "/branches", {"name": "first", "source": repository.commits[0]["id"]})
    building = repository.collect()
    assert (building.base_run is not None, *gone(building)) == (True, 0, 2, True)
    repository.call("DELETE", "/branches/first")
    # The frames of the run go, including its list of expired commits.
    shutil.rmtree(repository.folder_of(first.run_id) / "committed_df")
    assert gone(repository.collect(**FULL)) == (0, 1, True)


def test_branch_on_expired_commit_whose_ranges_are_known_is_reported_by_a_building_run(repository: Repository) -> None:
    """Facts about its ranges were recorded while it was live, so a building run reads no range."""
    repository.rules(50)
    assert repository.collect().base_run is None
    repository.rules(7)
    expiring = repository.collect()
    assert expiring.counts["deleted"] == 2 and expiring.base_run is not None
    repository.call("POST", "/branches", {"name": "back", "source": repository.commits[1]["id"]})
    for _ in range(2):
        building = repository.collect()
        assert (building.base_run is not None, *gone(building)) == (True, 0, 1, True)
    assert gone(repository.collect(**FULL)) == (0, 1, True)


def test_check_calls_head_that_cannot_be_read_damaged_and_expired_commits_whole(repository: Repository) -> None:
    assert repository.collect().counts["deleted"] == 2
    assert repository.check().verdict == "whole"
    assert repository.check(every_commit=True).verdict == "whole; 2 expired before"
    repository.call("POST", "/branches", {"name": "back", "source": repository.commits[1]["id"]})
    for every_commit in (False, True):
        checkup = repository.check(every_commit=every_commit)
        assert checkup.is_damaged
        (finding,) = (each for each in checkup.findings if each.kind is FindingKind.MISSING)
        assert finding.address == repository.addresses[1] and "had expired by the rules" in finding.detail
        assert "branch back" in {place.reference for place in finding.places}
    assert checkup.verdict == "damaged: 1 missing, 1 expired before"


def test_what_was_deleted_although_a_commit_held_it_is_lost(repository: Repository) -> None:
    first = repository.collect()
    live = repository.addresses[2]
    rows = pa.Table.from_pylist([listed(live)], schema=LISTED)
    store = LocalStore(repository.server.objects_folder / "repo")
    attempt = plan.read(store, first.run_id).attempt
    made = receipts.table(rows, [Outcome.ACCEPTED], [None], datetime.now(UTC), attempt)
    shutil.rmtree(repository.folder_of(first.run_id) / "deleted_report")
    receipts.write(store, first.run_id, "more", made)
    store.delete([live])
    found = repository.collect(**FULL, max_missing_share=1)
    assert gone(found) == (1, 0, False) and found.is_complete
    assert any(line.startswith("1 object that earlier runs deleted is referenced") for line in found.warnings)


def test_longer_rules_say_how_many_commits_earlier_sweeps_took_objects_of(repository: Repository) -> None:
    line = "2 of the 4 commits that stay had expired when earlier sweeps deleted objects"
    first = repository.collect(Flow.COMMITTED)
    assert first.counts["deleted"] == 2
    # Frames expire after some runs, but expired objects are still known.
    shutil.rmtree(repository.folder_of(first.run_id) / "committed_df")
    assert not [warning for warning in repository.collect(Flow.COMMITTED).warnings if "earlier sweeps" in warning]
    repository.call("PUT", "/settings/gc_rules", {"default_retention_days": 300, "branches": []})
    for flow in (Flow.COMMITTED, Flow.UNIFIED):
        (warning,) = [each for each in repository.collect(flow).warnings if "earlier sweeps" in each]
        assert warning.startswith(line)
    expired = repository.folder_of("x").parent / "expired.parquet"
    expired.write_bytes(b"damaged")
    damaged = repository.collect(Flow.COMMITTED)
    assert damaged.success and not [warning for warning in damaged.warnings if line in warning]


def test_only_a_sweep_notes_what_had_expired(repository: Repository) -> None:
    for sweep in (False, True):
        found = repository.collect(Flow.COMMITTED, sweep=sweep)
        assert found.counts["candidates"] == 2
        assert (repository.folder_of("x").parent / "expired.parquet").exists() == sweep
