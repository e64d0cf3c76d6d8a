import gzip
import json
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.formats import ranges, refs
from lakefs_gc_assets_tests.lakefs.formats.commit_rows import read_commits, rows
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, folder_of, needs_recordings, recorded_and_made

_FOLDERS = {"small": 20, "random-dag/14": 20, "empty": 3, "large": 2}
"""Folders, each with the minimum number of its tables."""


def _decoded(folder: Path) -> Iterator[dict[str, Any]]:
    plain = folder / "sstables.jsonl"
    lines = plain.read_bytes() if plain.exists() else gzip.decompress((folder / "sstables.jsonl.gz").read_bytes())
    for line in lines.splitlines():
        yield json.loads(line)


def _files(folder: Path) -> dict[str, bytes]:
    archive = folder / "namespace.tar.gz"
    if not archive.exists():
        return {path.name: path.read_bytes() for path in (folder / "namespace/_lakefs").iterdir() if path.is_file()}
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.isfile() and "/_lakefs/" in member.name]
        return {Path(member.name).name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def _raw(text: str) -> bytes:
    return text.encode()


def _seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone(UTC).timestamp())


def _check_range(data: bytes, file: str, entries: list[dict[str, Any]]) -> None:
    found = ranges.read_range(data, file, columns=("keys", "etags", "identities"))
    assert found.keys is not None and found.etags is not None and found.identities is not None
    assert found.keys.to_pylist() == [_raw(entry["key"]) for entry in entries]
    assert found.addresses.to_pylist() == [entry["address"] for entry in entries]
    assert found.address_types.to_pylist() == [AddressType[entry["address_type"]] for entry in entries]
    assert found.last_modified.to_pylist() == [_seconds(entry["last_modified"]) for entry in entries]
    assert found.sizes.to_pylist() == [entry["size"] for entry in entries]
    assert found.etags.to_pylist() == [entry["etag"] for entry in entries]
    assert found.identities.to_pylist() == [bytes.fromhex(entry["identity_hex"]) for entry in entries]


def _check_metarange(data: bytes, file: str, entity: str | None, entries: list[dict[str, Any]]) -> None:
    assert ranges.read_metarange(data, file, entity=entity) == [
        ranges.RangeRecord(
            entry["range_id"],
            _raw(entry["min_key"]),
            _raw(entry["max_key"]),
            entry["count"],
            entry["estimated_size"],
        )
        for entry in entries
    ]


def _check_refs(data: bytes, file: str, entity: str, entries: list[dict[str, Any]]) -> None:
    stated = [entry[entity] for entry in entries]
    if entity == "commit":
        columns = refs.read_commits(data, file)
        assert [
            (c.id, c.metarange_id, list(c.parents), c.creation_date, nanos, c.version)
            for c, nanos in zip(rows(columns), columns.nanos.tolist(), strict=True)
        ] == [
            (
                commit["id"],
                commit.get("meta_range_id", ""),
                commit.get("parents", []),
                commit["creation_date"]["seconds"],
                commit["creation_date"].get("nanos", 0),
                commit.get("version", 0),
            )
            for commit in stated
        ]
    elif entity == "branch":
        assert all(branch.keys() == {"id", "commit_id"} for branch in stated)
        assert refs.read_branches(data, file) == [
            refs.BranchRecord(branch["id"], branch["commit_id"]) for branch in stated
        ]
    else:
        assert [(t.id, t.commit_id) for t in refs.read_tags(data, file)] == [(t["id"], t["commit_id"]) for t in stated]


@needs_recordings
@pytest.mark.parametrize("name", _FOLDERS)
def test_every_recorded_table_reads_as_lakefs_reads_it(name: str) -> None:
    folder = FIXTURES / name
    files = _files(folder)
    checked = 0
    for table in _decoded(folder):
        file, data, entries = table["file"], files[table["file"]], table["entries"] or []
        properties = table["user_properties"]
        entity = properties.get("entity")
        assert ranges.table_kind(data, file) == ranges.Kind(properties["type"], entity, len(entries))
        if properties["type"] == "metaranges":
            _check_metarange(data, file, entity, entries)
        elif entity is None:
            _check_range(data, file, entries)
        else:
            _check_refs(data, file, entity, entries)
        checked += 1
    assert checked >= _FOLDERS[name]


@pytest.mark.parametrize("name", recorded_and_made("small", "chain/4"))
def test_each_range_agrees_with_every_metarange_that_names_it(name: str) -> None:
    files = {file: data for file, data in _files(folder_of(name)).items() if len(file) == 64}
    agreed = 0
    for file, data in files.items():
        kind = ranges.table_kind(data, file)
        if kind.type == "metaranges" and kind.entity is None:
            for record in ranges.read_metarange(data, file):
                assert len(ranges.read_range(files[record.id], record.id, expected=record)) == record.count
                agreed += 1
    assert agreed >= 3


@needs_recordings
def test_columns_are_complete_arrow_arrays() -> None:
    for file, data in _files(FIXTURES / "large").items():
        if ranges.table_kind(data, file).type == "ranges":
            found = ranges.read_range(data, file, columns=("keys", "etags", "identities"))
            columns = (found.addresses, found.address_types, found.sizes, found.last_modified)
            assert [column.type for column in columns] == [pa.string(), pa.uint8(), pa.int64(), pa.int64()]
            for column in (*columns, found.keys, found.etags, found.identities):
                assert column is not None
                column.validate(full=True)
                assert len(column) == len(found) == 5000
                assert column.null_count == 0


def test_a_dump_is_read_through_its_metaranges() -> None:
    files = _files(folder_of("small"))
    calls = [json.loads(line) for line in (folder_of("small") / "api.jsonl").read_text().splitlines()]
    done = [call["response_json"]["refs"] for call in calls if (call.get("response_json") or {}).get("refs")]
    assert done
    for dump in done:
        commits = _dumped(files, dump["commits_meta_range_id"], "commit", read_commits)
        branches = _dumped(files, dump["branches_meta_range_id"], "branch", refs.read_branches)
        tags = _dumped(files, dump["tags_meta_range_id"], "tag", refs.read_tags)
        ids = {commit.id for commit in commits}
        assert {parent for commit in commits for parent in commit.parents} <= ids
        assert branches and {branch.commit_id for branch in branches} <= ids
        assert tags and {tag.commit_id for tag in tags} <= ids


def _dumped(files: dict[str, bytes], metarange: str, entity: str, read: Any) -> list[Any]:
    parts = ranges.read_metarange(files[metarange], metarange, entity=entity)
    return [found for part in parts for found in read(files[part.id], part.id, expected=part)]
