"""`lakefs-gc candidates`: lists the garbage of a run. Writes any frame of a past run, for users or programs.

The files of a frame are written one by one, so a frame need not fit into memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, BinaryIO, Literal, TypedDict, Unpack

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from lakefs_gc_assets.cli.common import QUIET, Target, encode, on_repository, progress_unless
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import FRAMES
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.page import page
from lakefs_gc_assets.collector.page.garbage import SIZES, WITH_A_RUN, FrameReader, written_by
from lakefs_gc_assets.collector.page.page import LAST_SEEN, Counting, LastSeen, RunFacts
from lakefs_gc_assets.collector.records.outcomes import Amount, size
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError, counted, printable
from lakefs_gc_assets.settings import ReportSettings

Format = Literal["table", "csv", "json", "parquet"]

FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="A table for people; csv, json (an object on each line) and parquet have every column.",
)
JSON_LINES = click.option("--json", "form", flag_value="json", help="The same as --format json.")
OUT = click.option(
    "--out",
    type=click.File("wb", lazy=True, atomic=True),
    default="-",
    help="File to write, which appears once it is complete; defaults to standard output.",
)


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of a table for users.

    Attributes:
        width: width in characters; 0 for no alignment.
        shown: formats a value.
    """

    name: str
    width: int = 0
    shown: Callable[[Any], str] = str

    def cell(self, value: object) -> str:
        """A value as text on one line, with unprintable characters escaped."""
        text = f"{value:%F %T}Z" if isinstance(value, datetime) else "" if value is None else self.shown(value)
        return printable(text).ljust(self.width)


def shown_size(value: int) -> str:
    """A size with its unit, right-aligned."""
    return size(value).rjust(10)


def require_file(form: Format, out: BinaryIO) -> None:
    """Raises UsageError if a binary format would go to standard output."""
    if form == "parquet" and out.name == "-":
        raise click.UsageError("parquet cannot be printed on a terminal: give --out FILE.")


Selection = Callable[[Iterator[pa.Table]], pa.Table]
"""Selects or groups the rows of tables that are read one by one."""


def select_first(column: str, descending: bool, most: int, tables: Iterator[pa.Table]) -> pa.Table:
    """The first rows by a column, such as the largest objects. At most these rows and one table are in memory."""
    order = [(column, "descending" if descending else "ascending")]
    first: pa.Table | None = None
    for table in tables:
        rows = table if first is None else pa.concat_tables([first, table])
        first = rows.take(pc.sort_indices(rows, order)[:most])
    return first


def group_by(value: Callable[[pa.Table], pa.ChunkedArray | pa.Array], tables: Iterator[pa.Table]) -> pa.Table:
    """Objects and bytes by a value of the rows (GROUPED), most bytes first."""
    counts = [
        pa.table({"group": value(table), "bytes": table.column("size")})
        .group_by("group")
        .aggregate([("bytes", "count"), ("bytes", "sum")])
        for table in tables
    ]
    added = pa.concat_tables(counts).group_by("group").aggregate([("bytes_count", "sum"), ("bytes_sum", "sum")])
    rows = added.select(["group", "bytes_count_sum", "bytes_sum_sum"]).rename_columns(GROUPED.names).cast(GROUPED)
    return rows.sort_by([("bytes", "descending"), ("group", "ascending")])


def group_by_path(facts: RunFacts, total: Amount) -> pa.Table:
    """Objects and bytes by branch and folder (GROUPED), most bytes first; unknown paths form their own group.

    Branch and folder come from the expired commit that last held an object, or the run that last saw it staged.

    Args:
        total: objects and bytes of all candidates.
    """
    amounts: dict[str, Amount] = {}

    def add(group: str, amount: Amount) -> None:
        amounts[group] = amounts.get(group, Amount()).plus(*amount)

    for kind in facts.last_held.held if facts.last_held else ():
        add(f"{kind.branch or '(no branch)'}: {kind.folder or '(no folder)'}", Amount(kind.objects, kind.bytes))
    if staged := facts.last_staged:
        elsewhere = dict(staged.until)
        for entry in staged.entries:
            folder, slash, _ = entry.path.partition("/")
            place = f"{entry.branch}: {folder + slash if slash else '(no folder)'}"
            add(f"{place}, {_staged_until(entry.seen_at)}", Amount(1, entry.size))
            elsewhere[entry.seen_at] -= Amount(1, entry.size)
        for seen_at, amount in elsewhere.items():
            add(f"({_staged_until(seen_at)})", amount)
    add("(no path is known)", total - Amount.total([Amount(), *amounts.values()]))
    rows = [{"group": group, **amount._asdict()} for group, amount in amounts.items() if amount.objects]
    return pa.Table.from_pylist(rows, GROUPED).sort_by([("bytes", "descending"), ("group", "ascending")])


def _staged_until(began: datetime) -> str:
    return f"staged until the run of {began:%F %H:%M}Z"


GROUPED = pa.schema([("group", pa.string()), ("objects", pa.int64()), ("bytes", pa.int64())])


PLACES = pa.schema([*LAST_SEEN, pa.field("written_by", pa.string())])
"""Columns with the last location of a candidate (LAST_SEEN), and its writer."""


def _add_places(tables: Iterable[pa.Table], rows: pa.Table) -> Iterator[pa.Table]:
    """Adds the columns PLACES to tables of candidates; `rows` has the columns LAST_SEEN for all tables, in order."""
    start = 0
    for table in tables:
        places = rows.slice(start, table.num_rows)
        start += table.num_rows
        yield pa.table([*table.columns, *places.columns, written_by(table)], [*table.column_names, *PLACES.names])


def write_frame(
    stored: StoredFrame[Any],
    columns: Sequence[TextColumn],
    form: Format,
    out: BinaryIO,
    select: Selection | None = None,
    schema: pa.Schema | None = None,
    find_places: Callable[[pa.Table], LastSeen] | None = None,
) -> str:
    """Writes a frame of a run; returns lines with the run, the number and size of objects, and unknown facts.

    Args:
        columns: columns of the table for users; the other formats have all columns.
        select: selects or groups the rows; by default all rows in stored order.
        schema: schema of the selected rows; by default that of the frame.
        find_places: finds the last locations of candidates, to add the columns PLACES. The table for users omits
            columns without known values.
    Raises:
        CorruptFile: the frame is damaged.
    """
    manifest = stored.manifest
    line = f"run {manifest.span.run_id}: {counted(manifest.rows, 'objects')}, {size(manifest.object_bytes)}"
    chosen = select(stored.tables()) if select and manifest.files else None
    tables = stored.tables() if chosen is None else iter([chosen])
    schema = schema or nullable(stored.frame.schema)
    if find_places is not None:
        seen = find_places(_names(stored) if chosen is None else chosen)
        tables, schema = _add_places(tables, seen.rows), pa.schema([*schema, *PLACES])
        unknown = {name for name in LAST_SEEN.names if seen.rows.column(name).null_count == seen.rows.num_rows}
        columns = [column for column in columns if column.name not in unknown]
        line = "\n".join([line, *seen.describe_unknown()])
    _WRITERS[form](tables, schema, columns, out)
    return line


def _names(stored: StoredFrame[Any]) -> pa.Table:
    """Addresses and sizes of all objects of a frame."""
    schema = pa.schema([nullable(stored.frame.schema).field(name) for name in ("address", "size")])
    return pa.concat_tables([schema.empty_table(), *(table.select(schema.names) for table in stored.tables())])


def stored_frame(repository: OpenRepository, frame: str, run_id: str) -> StoredFrame[Any]:
    """A frame of a run. Raises CollectionError if there is no such run, or the frame is missing."""
    manifest = earlier_runs.read_manifest(repository.store, frame, run_id)
    return StoredFrame(FRAMES[frame], manifest, repository.opener)


def _write_table(tables: Iterator[pa.Table], schema: pa.Schema, columns: Sequence[TextColumn], out: BinaryIO) -> None:
    header = "  ".join(column.name.ljust(column.width) for column in columns)
    for number, table in enumerate(tables):
        # The first write creates the file, so it comes after the first successful read.
        if number == 0:
            out.write(f"{header.rstrip()}\n".encode())
        for row in table.select([column.name for column in columns]).to_pylist():
            line = "  ".join(column.cell(row[column.name]) for column in columns)
            out.write(f"{line.rstrip()}\n".encode())


def _write_csv(tables: Iterator[pa.Table], schema: pa.Schema, columns: Sequence[TextColumn], out: BinaryIO) -> None:
    with csv.CSVWriter(out, schema) as writer:
        for table in tables:
            writer.write_table(table)


def _write_json(tables: Iterator[pa.Table], schema: pa.Schema, columns: Sequence[TextColumn], out: BinaryIO) -> None:
    for table in tables:
        for row in table.to_pylist():
            out.write(f"{encode(row)}\n".encode())


def _write_parquet(tables: Iterator[pa.Table], schema: pa.Schema, columns: Sequence[TextColumn], out: BinaryIO) -> None:
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)


_WRITERS = {"table": _write_table, "csv": _write_csv, "json": _write_json, "parquet": _write_parquet}

_ORDERS = {"size": ("size", True), "age": ("last_modified", False), "address": ("address", False)}
"""Column to sort by, and True for descending order."""
_MOST = 100_000
"""Maximum rows to sort; twice as many, and the rows of one file, are in memory."""
_COLUMNS = (
    TextColumn("last_modified", 20),
    TextColumn("size", 11, shown_size),
    TextColumn("why", 31),
    TextColumn("branch", 16),
    TextColumn("path", 32),
    TextColumn("last_staged_at", 20),
    TextColumn("address"),
)


def _size_group(rows: pa.Table) -> pa.Array:
    places = np.searchsorted([*SIZES.values()], rows.column("size").to_numpy(), side="right") - 1
    return pa.array([*SIZES]).take(pa.array(places))


_GROUPS: dict[str, Callable[[pa.Table], pa.ChunkedArray | pa.Array]] = {
    "slice": lambda rows: pc.fill_null(rows.column("slice"), "(none)"),
    "month": lambda rows: pc.strftime(rows.column("last_modified"), "%Y-%m"),
    "size": _size_group,
}
_PATH = "path"
_GROUP_COLUMNS = (
    TextColumn("group", 20),
    TextColumn("objects", 13, lambda objects: f"{objects:,}".rjust(13)),
    TextColumn("bytes", 11, shown_size),
)
_PATH_COLUMNS = (*_GROUP_COLUMNS[1:], TextColumn("group"))


class ShownCandidate(TypedDict):
    """Options that select, sort or group candidates."""

    top: int | None
    sort: str | None
    by: str | None


def _require_choice(shown: ShownCandidate) -> None:
    """Raises UsageError for options that exclude each other."""
    if shown["by"] and (shown["top"] or shown["sort"]):
        raise click.UsageError("--by shows groups, not objects: omit --top and --sort.")
    if shown["sort"] and not shown["top"]:
        raise click.UsageError("--sort needs --top N.")


def _selection(shown: ShownCandidate, find_paths: Callable[[], pa.Table]) -> Selection | None:
    """Selection or grouping of the candidates; None for all candidates in stored order."""
    if shown["by"] == _PATH:
        paths = find_paths()
        return lambda _: paths
    if shown["by"]:
        return partial(group_by, _GROUPS[shown["by"]])
    return partial(select_first, *_ORDERS[shown["sort"] or "size"], shown["top"]) if shown["top"] else None


def _find_paths(opened: OpenRepository, stored: StoredFrame[Any]) -> pa.Table:
    """Candidates by their last locations (GROUPED). Raises CollectionError."""
    manifest = stored.manifest
    counting = Counting(lambda _: None, frames=FrameReader(LocalEngine(), opened.opener))
    now = opened.clock.now()
    facts = page.gather(opened.store, manifest.span.run_id, opened.settings, ReportSettings(), now, counting)
    return group_by_path(facts, Amount(manifest.rows, manifest.object_bytes))


def _find_last_seen(opened: OpenRepository, stored: StoredFrame[Any], some: pa.Table) -> LastSeen:
    """Reads the last locations of some candidates; the result has a reason if that fails or they are too many."""
    reader = FrameReader(LocalEngine(), opened.opener)
    try:
        return page.find_last_seen(opened.store, stored.manifest.span.run_id, some, reader, WITH_A_RUN)
    except CollectionError as error:
        return LastSeen.nowhere(some.num_rows, str(error))


@click.command()
@on_repository
@FORMAT
@JSON_LINES
@OUT
@click.option("--top", type=click.IntRange(1, _MOST), help="Maximum objects to list, the first ones by --sort.")
@click.option(
    "--sort",
    type=click.Choice([*_ORDERS]),
    help="Order for --top: largest first (default), oldest first, or by name.",
)
@click.option(
    "--by",
    type=click.Choice([_PATH, *_GROUPS]),
    help="Instead of objects, show their number and bytes: by branch and folder, for paths known from an expired "
    "commit or an earlier run; by slice; by the month in which they were written; or by size.",
)
@QUIET
@click.argument("run_id", metavar="[RUN]", required=False)
def candidates(
    target: Target,
    form: Format,
    out: BinaryIO,
    quiet: bool,
    run_id: str | None,
    **shown: Unpack[ShownCandidate],
) -> None:
    """Lists the garbage of a run: the objects that a sweep deletes.

    Defaults to the newest finished run. If an expired commit references an object, its row has the newest such commit,
    its branch and path, and the rule. Otherwise it has the newest earlier run that saw it staged, and the branch and
    path if that run recorded them. Unknown values are empty. In csv, json and parquet, written_by is the kind of
    program that wrote the object.
    """
    require_file(form, out)
    _require_choice(shown)
    opened = target.open()
    stored = stored_frame(opened, "candidates", run_id or earlier_runs.newest_run(opened.store))
    select = _selection(shown, partial(_find_paths, opened, stored))
    columns = _PATH_COLUMNS if shown["by"] == _PATH else _GROUP_COLUMNS if shown["by"] else _COLUMNS
    find_places = None if shown["by"] else partial(_find_last_seen, opened, stored)
    schema = GROUPED if shown["by"] else None
    progress_unless(quiet)(write_frame(stored, columns, form, out, select, schema, find_places))
