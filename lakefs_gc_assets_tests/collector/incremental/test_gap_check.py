from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
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
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import (
    COMMITTED_FIGURES,
    LISTED_FIGURES,
    UNCOMMITTED_FIGURES,
    frame_of_rows,
)
from lakefs_gc_assets_tests.collector.made_steps import made_step, opened_by
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, IDS, NOW, began
from lakefs_gc_assets_tests.collector.written import Staged, put_metarange, put_range
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
        (folder / "repository").mkdir()
        self.opener = StoreOpener(StoreSettings(local_root=str(folder)), "local://repository")
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
            return [row(address, slice=address.split("/")[1]) for address in addresses]

        return find_gap(
            self.step,
            frame_of_rows(self.opener, STORE_DF, rows(there, listed), LISTED_FIGURES),
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
