"""The reference: an engine with plain Python lists, sets and dictionaries, and no code of other engines.

It passes the same contract, and is slow. Simulations compare exact results with its results.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import pyarrow as pa

from lakefs_gc_assets.collector.engine.port import (
    ChangeBatches,
    ChangePart,
    Holds,
    Item,
    ReadItem,
    Result,
)
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.lakefs.layout import LEFTOVER

Row = dict[str, Any]
_EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"


@dataclass(frozen=True)
class Rows:
    """Lazy rows: the columns, and a function that makes the rows by task."""

    schema: pa.Schema
    tasks: Callable[[], list[list[Row]]]

    def all(self) -> list[Row]:
        """The rows of all tasks."""
        return [row for task in self.tasks() for row in task]

    def addresses(self) -> set[str]:
        """Each address once, without nulls."""
        return {row["address"] for row in self.all()} - {None}


class ReferenceEngine:
    """Makes and compares all rows as dictionaries in memory; see `collector.engine.port.Engine`."""

    tasks = 2
    tasks_at_once = 1
    ran_on = "this process"

    def table(self, table: pa.Table) -> Rows:
        return Rows(table.schema, lambda: [table.to_pylist()])

    def read(self, groups: Sequence[Sequence[Item]], read: ReadItem[Item], schema: pa.Schema) -> Rows:
        work = [tuple(group) for group in groups if group]
        return Rows(schema, lambda: [[row for item in group for row in _rows(read(item))] for group in work])

    def union(self, first: Rows, *more: Rows) -> Rows:
        return Rows(first.schema, lambda: [task for rows in (first, *more) for task in rows.tasks()])

    def select(self, rows: Rows, *columns: str) -> Rows:
        schema = pa.schema([rows.schema.field(name) for name in columns])
        return Rows(schema, lambda: [[{name: row[name] for name in columns} for row in task] for task in rows.tasks()])

    def where(self, rows: Rows, holds: Holds) -> Rows:
        def left(task: list[Row]) -> list[Row]:
            return [
                row
                for batch in _batches(task, rows.schema)
                for row, kept in zip(batch.to_pylist(), holds(batch).to_pylist(), strict=True)
                if kept
            ]

        return Rows(rows.schema, lambda: [left(task) for task in rows.tasks()])

    def where_among(self, rows: Rows, column: str, values: Sequence[str | None]) -> Rows:
        return Rows(rows.schema, lambda: [[row for row in rows.all() if row[column] in values]])

    def map_batches(self, rows: Rows, change: ChangeBatches, schema: pa.Schema) -> Rows:
        return Rows(schema, lambda: [[*_rows(change(_batches(task, rows.schema)))] for task in rows.tasks()])

    def map_distinct(self, frames: Sequence[Rows], change: ChangeBatches, schema: pa.Schema, count: int) -> Rows:
        schema_of_frames = frames[0].schema

        def firsts() -> list[list[Row]]:
            first: dict[str, Row] = {}
            for row in _named(row for rows in frames for row in rows.all()):
                first.setdefault(row["address"], row)
            return [list(first.values())]

        return self.map_batches(Rows(schema_of_frames, firsts), change, schema)

    def map_by_address(self, rows: Rows, change: ChangePart, schema: pa.Schema, count: int) -> Rows:
        def parts() -> list[list[Row]]:
            by_length: dict[int, list[Row]] = defaultdict(list)
            for row in _named(rows.all()):
                by_length[len(row["address"]) % 2].append(row)
            made = (change(pa.Table.from_pylist(part, rows.schema)) for part in by_length.values())
            return [table.to_pylist() for table in made]

        return Rows(schema, parts)

    def distinct(self, rows: Rows) -> Rows:
        return Rows(rows.schema, lambda: [list({tuple(row.values()): row for row in rows.all()}.values())])

    def without(self, rows: Rows, *live: Rows, count: int, least: int = 0) -> Rows:
        def left() -> list[list[Row]]:
            known = set[str]().union(*(frame.addresses() for frame in live))
            return [[row for row in _named(rows.all()) if row["address"] not in known]]

        return Rows(rows.schema, left)

    def without_exactly(self, rows: Rows, addresses: Rows, count: int | None = None) -> Rows:
        return self._by_address(rows, addresses, among=False)

    def among_exactly(self, rows: Rows, addresses: Rows, count: int | None = None) -> Rows:
        return self._by_address(rows, addresses, among=True)

    def _by_address(self, rows: Rows, addresses: Rows, *, among: bool) -> Rows:
        def left() -> list[list[Row]]:
            known = addresses.addresses()
            return [[row for row in rows.all() if (row["address"] in known) is among]]

        return Rows(rows.schema, left)

    def without_matching(self, rows: Rows, others: Rows, columns: Sequence[str]) -> Rows:
        def key(row: Row) -> tuple[Any, ...]:
            return tuple(row[name] for name in columns)

        def left() -> list[list[Row]]:
            known = {key(row) for row in others.all() if None not in key(row)}
            return [[row for row in rows.all() if key(row) not in known]]

        return Rows(rows.schema, left)

    def kept_because(self, unreferenced: Rows, cutoff: datetime, windows: Collection[str], sighted: Rows) -> Rows:
        def reason(row: Row, seen: set[str]) -> Kept | None:
            if row["layout"] == "unrecognised":
                return Kept.UNRECOGNISED
            issued, has_time = row["issued_at"], row["layout"] in ("slice", "sharded")
            if row["last_modified"] >= cutoff or (has_time if issued is None else issued >= cutoff):
                return Kept.YOUNG
            if re.search(LEFTOVER + r"\Z", row["address"]) and row["last_modified"] >= cutoff - timedelta(days=7):
                return Kept.YOUNG
            if row["slice_window"] not in windows:
                return Kept.OTHER_WINDOW
            return Kept.MULTIPART if _is_multipart(row) and row["address"] not in seen else None

        def reported() -> list[list[Row]]:
            seen = sighted.addresses()
            return [[{**row, "kept": reason(row, seen)} for row in unreferenced.all()]]

        return Rows(unreferenced.schema.append(pa.field("kept", pa.string())), reported)

    def same_content(self, rows: Rows, others: Rows) -> Rows:
        def alike(row: Row, other: Row) -> bool:
            digests = {_digest(row), _digest(other)}
            return row["size"] == other["size"] and (len(digests) == 1 or None in digests)

        def found() -> list[list[Row]]:
            all_others = others.all()
            return [[row for row in rows.all() if any(alike(row, other) for other in all_others)]]

        return self.distinct(Rows(rows.schema, found))

    def count(self, rows: Rows) -> int:
        return len(rows.all())

    def collect(self, rows: Rows, limit: int | None = None) -> pa.Table:
        return pa.Table.from_pylist([*islice(rows.all(), limit)], rows.schema)

    def count_by_sets(self, *frames: Rows, count: int) -> dict[int, int]:
        sets: Counter[str] = Counter()
        for number, rows in enumerate(frames):
            sets.update(dict.fromkeys(rows.addresses(), 1 << number))
        return dict(Counter(sets.values()))

    def hold(self, rows: Rows, count: int) -> Rows:
        return rows

    def spread(self, rows: Rows, at_most: int | None = None) -> Rows:
        return rows

    @contextmanager
    def cached(self, rows: Rows, at_most: int) -> Iterator[Rows]:
        made = rows.tasks()
        yield Rows(rows.schema, lambda: made)

    def name_work(self, work: str, run: str = "") -> AbstractContextManager[None]:
        """Does nothing."""
        return nullcontext()

    @contextmanager
    def in_background(self, work: Callable[[], Result]) -> Iterator[Callable[[], Result]]:
        try:
            result = work()
        except Exception as error:
            failure = error

            def fail() -> Result:
                raise failure

            yield fail
        else:
            yield lambda: result


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        yield from batch.to_pylist()


def _batches(rows: list[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema)


def _named(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        if row["address"] is None:
            raise ValueError("an address is null")
        yield row


def _digest(row: Row) -> str | None:
    if row["size"] == 0:
        return _EMPTY_MD5
    return row["etag"] if re.fullmatch("[0-9a-f]{32}", row["etag"] or "") else None


def _is_multipart(row: Row) -> bool:
    return re.fullmatch("[0-9a-f]{32}-[0-9]+", row["etag"] or "") is not None
