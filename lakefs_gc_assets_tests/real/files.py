"""Files below `_lakefs/` in a form that can be compared between two servers."""

import csv
import io
from typing import Any

import pyarrow.parquet as pq

from lakefs_gc_assets.lakefs.formats.ranges import read_metarange
from lakefs_gc_assets.lakefs.formats.records import DATA_END, DATA_START
from lakefs_gc_assets.lakefs.formats.sstables import fields, read_layout, read_table
from lakefs_gc_assets_tests.real.calls import Server

_PROPERTIES = ("count", "entity", "max_key", "min_key", "schema_name", "type", "rocksdb.compression")
"""Properties that the collector reads, or could read."""
_TIME_FIELDS = {"commit": 4, "": 2}
"""The Timestamp field by kind of record; a record without an entity is an object's."""


def tables(server: Server, namespace: str, metarange_id: str) -> dict[str, Any]:
    """A metarange and its ranges: properties, and the fields of records in order of their content.

    Ids of commits are in no common order, and paths are split into ranges by other hashes, so ranges are joined.
    """
    folder = server.folder() / namespace / "_lakefs"
    metarange = (folder / metarange_id).read_bytes()
    properties = _properties(server, metarange)
    entity = properties.get("entity")
    records = read_metarange(metarange, metarange_id, entity=entity)
    ranges = [(folder / each.id).read_bytes() for each in records]
    if "min_key" in properties:
        is_first = bool(records) and properties["min_key"] == records[0].max_key.decode("utf-8", "backslashreplace")
        properties["min_key"] = f"is the last key of the first range: {is_first}"
    kinds = {str({**_properties(server, each), "count": "", "min_key": "", "max_key": ""}) for each in ranges}
    return {
        "metarange": {**properties, "count": "", "max_key": ""},
        "kinds of ranges": sorted(kinds),
        "records": sorted(
            (_record(server, entity or "", value) for each in ranges for value in _values(each)), key=str
        ),
    }


def _properties(server: Server, data: bytes) -> dict[str, str]:
    known = {name.decode(): value for name, value in read_layout(data, "a table").properties.items()}
    return {
        name: server.comparable(known[name].decode("utf-8", "backslashreplace"), call="files")
        for name in _PROPERTIES
        if name in known and not ("key" in name and "entity" in known)
    }


def _values(data: bytes) -> list[bytes]:
    table = read_table(data, "a table")
    return [bytes(table.buffer[row[DATA_START] : row[DATA_END]]) for row in table.values]


def _record(server: Server, entity: str, message: bytes) -> list[Any]:
    """Number and value by present field; a time is only reported as present."""
    shown: list[Any] = []
    for tag, _, value in fields(message):
        if tag == _TIME_FIELDS.get(entity):
            shown.append([tag, "time"])
        elif isinstance(value, bytes):
            shown.append([tag, server.comparable(value.decode("utf-8", "backslashreplace"), call="files")])
        else:
            shown.append([tag, value])
    return sorted(shown, key=lambda field: (field[0], str(field[1])))


def uncommitted(server: Server, location: str) -> dict[str, Any]:
    """The files of a prepare_uncommited call: their schema, and all rows in order."""
    folder = server.folder() / location.removeprefix("s3://")
    files = [pq.ParquetFile(path) for path in sorted(folder.iterdir())]
    columns = [
        (chunk.path_in_schema, chunk.physical_type, chunk.compression, column.max_definition_level)
        for file in files
        for number in range(file.metadata.num_columns)
        for chunk, column in [(file.metadata.row_group(0).column(number), file.metadata.schema.column(number))]
    ]
    rows = [row for file in files for row in file.read().to_pylist()]
    return {
        "columns": columns,
        "dates are numbers": {type(row["creation_date"]).__name__ for row in rows},
        "addresses": sorted(server.comparable(row["physical_address"], call="files") for row in rows),
    }


def prepared_commits(server: Server, location: str) -> dict[str, Any]:
    """The list of commits that one call wrote, without its order."""
    text = (server.folder() / location.removeprefix("s3://")).read_text()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    return {"header": rows[0], "rows": sorted(server.comparable(row, call="files") for row in rows[1:])}
