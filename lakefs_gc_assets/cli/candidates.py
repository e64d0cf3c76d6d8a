"""`lakefs-gc candidates`: lists the garbage of a run. Writes any frame of a past run, for people or for programs.

The files of a frame are written one after another, so a frame need not fit into memory.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

import click
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from lakefs_gc_assets.cli.common import CONFIG, QUIET, REPOSITORY, loaded_configuration, open_collector, progress_unless
from lakefs_gc_assets.collector.earlier import history
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.frames import FRAMES
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.repository import OpenRepository

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
    """A column of a table for people.

    Attributes:
        width: in characters; 0 for no alignment.
        shown: formats a value.
    """

    name: str
    width: int = 0
    shown: Callable[[Any], str] = str

    def cell(self, value: object) -> str:
        """A value as text on one line, with other characters escaped."""
        text = f"{value:%F %T}Z" if isinstance(value, datetime) else "" if value is None else self.shown(value)
        return (text if text.isprintable() else text.encode("unicode_escape").decode()).ljust(self.width)


def shown_size(value: int) -> str:
    """A size with its unit, aligned to the right."""
    return size(value).rjust(10)


def require_file(form: Format, out: BinaryIO) -> None:
    """Raises UsageError for bytes that would go to the terminal."""
    if form == "parquet" and out.name == "-":
        raise click.UsageError("parquet is not for the terminal: give --out FILE.")


def write_frame(
    repository: OpenRepository,
    frame: str,
    run_id: str,
    columns: Sequence[TextColumn],
    form: Format,
    out: BinaryIO,
) -> str:
    """Writes a frame of a run; returns a line that names the run and the number and size of objects.

    Args:
        columns: columns of the table for people; the other formats have all columns.
    Raises:
        CollectionError: there is no such run, or the frame is missing or damaged.
    """
    manifest = history.read_manifest(repository.store, frame, run_id)
    kind = FRAMES[frame]
    schema = nullable(kind.schema)
    tables = (files.read_file(repository.store, file, kind.schema, added=kind.added) for file in manifest.files)
    _WRITERS[form](tables, schema, columns, out)
    return f"run {run_id}: {manifest.rows:,} objects, {size(manifest.object_bytes)}"


def _write_table(tables: Iterator[pa.Table], schema: pa.Schema, columns: Sequence[TextColumn], out: BinaryIO) -> None:
    for table in tables:
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
            out.write(f"{json.dumps(row, default=datetime.isoformat, ensure_ascii=False)}\n".encode())


def _write_parquet(tables: Iterator[pa.Table], schema: pa.Schema, columns: Sequence[TextColumn], out: BinaryIO) -> None:
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)


_WRITERS = {"table": _write_table, "csv": _write_csv, "json": _write_json, "parquet": _write_parquet}

_COLUMNS = (
    TextColumn("last_modified", 20),
    TextColumn("size", 11, shown_size),
    TextColumn("why", 31),
    TextColumn("address"),
)


@click.command()
@CONFIG
@REPOSITORY
@FORMAT
@JSON_LINES
@OUT
@QUIET
@click.argument("run_id", metavar="[RUN]", required=False)
def candidates(
    file: Path | None, repository: str | None, form: Format, out: BinaryIO, quiet: bool, run_id: str | None
) -> None:
    """Lists the garbage of a run: the objects that a sweep deletes.

    Defaults to the newest finished run.
    """
    require_file(form, out)
    opened = open_collector(loaded_configuration(file, repository)).open()
    run_id = run_id or history.newest_run(opened.store)
    progress_unless(quiet)(write_frame(opened, "candidates", run_id, _COLUMNS, form, out))
