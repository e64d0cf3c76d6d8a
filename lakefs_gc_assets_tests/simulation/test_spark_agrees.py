"""The plain functions of the simulation give what the product's Spark functions give, on frames of some histories."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakefs_gc_assets.collection.eligibility import Kept
from lakefs_gc_assets.collection.tables import LISTED
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.sources import carrying, subtraction, tasks
from lakefs_gc_assets_tests.simulation import plain
from lakefs_gc_assets_tests.simulation.collector import Run
from lakefs_gc_assets_tests.simulation.frames import Frame
from lakefs_gc_assets_tests.simulation.histories import generate
from lakefs_gc_assets_tests.simulation.plain import Row
from lakefs_gc_assets_tests.simulation.playing import play
from lakefs_gc_assets_tests.simulation.stepping import STEPS

_HISTORIES = 12
_MARKS = 8


@dataclass(frozen=True)
class Seen:
    """What one mark was made from, and what came of it."""

    listed: Frame
    live: tuple[Frame, Frame]
    cutoff: datetime
    windows: tuple[str, ...]
    sighted: frozenset[str]
    kept: dict[str, str | None]


def _marks() -> list[Seen]:
    """The marks of some histories with most reasons."""
    seen: list[Seen] = []

    class Watching(Run):
        def make_candidates(self) -> None:
            listed, staged, committed = (self.stored(name) for name in STEPS[:3])
            kept: dict[str, str | None] = {}
            sighted: set[str] = set()

            class Noting(Watching):
                def kept_because(self, row: Row, known: Collection[str]) -> Kept | None:
                    reason = super().kept_because(row, known)
                    kept[row["address"]] = reason.value if reason else None
                    sighted.update(known)
                    return reason

            self.__class__ = Noting
            try:
                super().make_candidates()
            finally:
                self.__class__ = Watching
            plan = self.plan
            seen.append(Seen(listed, (staged, committed), plan.cutoff, plan.windows, frozenset(sighted), kept))

    for seed in range(_HISTORIES):
        play(generate(seed), make_run=Watching)
    return sorted(seen, key=lambda mark: (-len(set(mark.kept.values())), -len(mark.kept)))[:_MARKS]


def _listed(spark: SparkSession, rows: tuple[Row, ...]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=LISTED).to_pandas()) if rows else _none(spark)


def _none(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(LISTED.empty_table().to_pandas())


def _addresses(spark: SparkSession, addresses: Collection[str]) -> DataFrame:
    return spark.createDataFrame([(address,) for address in sorted(addresses)], "address string")


def test_marks_keep_the_same_objects_for_the_same_reasons(spark: SparkSession) -> None:
    marks = _marks()
    assert len({reason for mark in marks for reason in mark.kept.values()}) >= 4
    for mark in marks:
        live = [_addresses(spark, frame.addresses) for frame in mark.live]
        unreferenced = subtraction.without(_listed(spark, mark.listed.rows), *live, rows=1)
        sighted = _addresses(spark, mark.sighted)
        found = subtraction.kept_because(unreferenced, mark.cutoff, mark.windows, sighted).collect()
        assert {row.address: row.kept for row in found} == mark.kept


def test_the_same_objects_have_the_same_content(spark: SparkSession) -> None:
    for mark in _marks()[:3]:
        rows = mark.listed.rows
        half = len(rows) // 2
        found = subtraction.same_content(_listed(spark, rows[:half]), _listed(spark, rows[half:])).collect()
        expected = plain.same_content(rows[:half], rows[half:])
        assert sorted(row.address for row in found) == sorted(row["address"] for row in expected)


def test_the_same_objects_are_left_to_the_next_run(spark: SparkSession) -> None:
    size: WindowSize = "day"
    for mark in _marks()[:3]:
        rows, committed = mark.listed.rows, mark.live[1].addresses
        slices = sorted({folder for row in rows if (folder := plain.slice_folder(row["address"]))})
        settled, deleted = frozenset(slices[1:]), frozenset(row["address"] for row in rows[::3])
        found = carrying.still_open(
            _listed(spark, rows), settled, _addresses(spark, committed), _addresses(spark, deleted), rows=len(rows)
        )
        expected = plain.in_windows(plain.still_open(rows, settled, committed, deleted), size)
        placed = [carrying.in_windows(batch, size) for batch in found.toArrow().to_batches()]
        windows = [(row["address"], row["slice_window"]) for batch in placed for row in batch.to_pylist()]
        assert sorted(windows) == sorted((row["address"], row["slice_window"]) for row in expected)
        assert expected
        unsettled = tasks.dataframe_of(carrying.of_unsettled(_listed(spark, rows), settled))
        assert sorted(row.address for row in unsettled.collect()) == sorted(
            row["address"] for row in plain.of_unsettled(rows, settled)
        )
