"""Commits, branches and tags as a dump of references holds them (`POST /repositories/{repository}/dump`).

A dump names three metaranges; their ranges are tables whose property `entity` is commit, branch or tag and whose
records are the protobuf messages CommitData, BranchData and TagData of `pkg/graveler/graveler.proto` in lakeFS. Such a
metarange is read with `ranges.read_metarange(…, entity=…)`, each of its ranges with the functions below. Every function
raises CorruptFile like `ranges.read_range`, and where the key of a record is not the id in its message.

A repository may have a million commits, so they are columns, without a Python object for each. Single commits that the
API describes can be added.

A server that compacts staging records a metarange on the branch, its compacted base. The open source server reads such
branches (`Branch.CompactedBaseMetaRangeID` in `pkg/graveler/graveler.go`), and its BranchData, as of 1.80, has no field
for it: the number is of whoever compacts. A table states its own fields in its property `schema_definition`, a
descriptor of the message in the JSON form of protobuf (`pkg/graveler/serde.go`), so the field is found by its name.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.lakefs.api.models import Branch, Commit
from lakefs_gc_assets.lakefs.formats import records
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord, read_checked, strings
from lakefs_gc_assets.lakefs.formats.records import DATA_END, DATA_START
from lakefs_gc_assets.lakefs.formats.sstables import BYTES, SSTable, fields, parsing, raise_fault

Integers = npt.NDArray[np.int64]

LATEST_NANO = 999_999_999
_PARENTS_EXPECTED = 2
_FEW = 8


@dataclass(frozen=True, slots=True)
class CommitColumns:
    """Commits; columns without nulls.

    Attributes:
        ids: string.
        metarange_ids: string, empty for a commit without objects.
        seconds, nanos: creation date as its committer gave it, since 1970-01-01 UTC.
        versions: 0 for very old commits, whose main parent is the last one.
        parents: string, the parents of all commits one after the other, each commit's in order.
        parent_offsets: where those of a commit begin; one longer than the other columns.
    """

    ids: pa.StringArray
    metarange_ids: pa.StringArray
    seconds: Integers
    nanos: Integers
    versions: Integers
    parents: pa.StringArray
    parent_offsets: Integers

    def __len__(self) -> int:
        return len(self.ids)

    def positions(self, ids: pa.StringArray) -> Integers:
        """The positions of the commits with these ids; -1 for missing ones."""
        if len(ids) * _FEW > len(self):
            positions: Integers = pc.fill_null(pc.index_in(ids, value_set=self.ids), -1).to_numpy(zero_copy_only=False)
            return positions.astype(np.int64)
        # A table of few ids that all commits are looked up in is made faster than the reverse.
        asked = ids.dictionary_encode()
        at = pc.index_in(self.ids, value_set=asked.dictionary)
        known = pc.indices_nonzero(at.is_valid()).to_numpy()
        places = np.full(len(asked.dictionary), -1, np.int64)
        places[at.take(pa.array(known)).to_numpy()] = known
        answer: Integers = places[asked.indices.to_numpy()]
        return answer

    @classmethod
    def from_commits(cls, commits: Sequence[Commit]) -> "CommitColumns":
        """Columns of commits that the API gave. It cuts dates to seconds: each counts as the latest in its second."""
        return cls(
            pa.array([commit.id for commit in commits], pa.string()),
            pa.array([commit.metarange_id for commit in commits], pa.string()),
            np.array([commit.creation_date for commit in commits], np.int64),
            np.full(len(commits), LATEST_NANO, np.int64),
            np.array([commit.version for commit in commits], np.int64),
            pa.array([parent for commit in commits for parent in commit.parents], pa.string()),
            np.cumsum([0, *(len(commit.parents) for commit in commits)], dtype=np.int64),
        )

    @classmethod
    def joined(cls, parts: Sequence["CommitColumns"]) -> "CommitColumns":
        """The commits of all parts, in their order."""
        parts = parts or [cls.from_commits([])]
        columns: dict[str, Any] = {}
        for name in (field.name for field in dataclasses.fields(cls)):
            values = [getattr(part, name) for part in parts]
            columns[name] = np.concatenate(values) if isinstance(values[0], np.ndarray) else pa.concat_arrays(values)
        counts = np.concatenate([np.diff(part.parent_offsets) for part in parts])
        return cls(**columns | {"parent_offsets": np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])})


def read_commits(data: bytes | memoryview, file: str, *, expected: RangeRecord | None = None) -> CommitColumns:
    """Reads one file of a dump's table of commits, in order of their ids.

    Args:
        data: the whole file.
        file: its name, for messages.
        expected: what its metarange says of it.
    Raises:
        CorruptFile: the file is not exactly what lakeFS wrote, or no such table.
    """
    table = read_checked(data, file, "ranges", "commit", expected)
    count = len(table)
    offsets, keys = table.keys()
    fields, parent_offsets = np.empty((count, 5), np.int64), np.empty(count + 1, np.int64)
    room = _PARENTS_EXPECTED * count
    while True:
        parents = np.empty((room, 2), np.int64)
        fault, record, parent_count = records.decode_commits(
            table.buffer, table.values, (offsets, keys), fields, parent_offsets, parents
        )
        raise_fault(fault, file, f"commit {record}")
        if parent_count <= room:
            break
        room = parent_count
    spans = np.stack([offsets[:-1], offsets[1:]], axis=1).astype(np.int64)
    return CommitColumns(
        ids=strings(keys, spans, "commit id", file),
        metarange_ids=strings(table.buffer, fields[:, :2].copy(), "metarange id", file),
        seconds=fields[:, 2].copy(),
        nanos=fields[:, 3].copy(),
        versions=fields[:, 4].copy(),
        parents=strings(table.buffer, parents[:parent_count], "parent", file),
        parent_offsets=parent_offsets,
    )


Entity = Literal["commit", "branch", "tag"]

_LAST_FIELD = 5
"""The last field of BranchData in the open source server."""
_SCHEMA = b"schema_definition"
_METARANGE_ID = re.compile(r"[0-9a-f]{64}")
_NAMES_METARANGE = re.compile(r"meta_?range", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BranchRecord:
    """A branch as a dump holds it: its id and its commit.

    The message has fields for staging tokens and for hidden branches too, and servers leave them out of dumps
    (`branchValueIterator.setValue` in `pkg/graveler/graveler.go` as of 1.86).

    Attributes:
        compacted_bases: metaranges that the branch rests on in place of its commit's, which a compaction of staging
            wrote: one, or none where nothing was compacted since the commit.
    """

    id: str
    commit_id: str
    compacted_bases: tuple[str, ...] = ()


class _Message:
    """A protobuf message: the last value of each number and text, all values where a field is repeated.

    Raises ValueError where it is malformed, or where a field is asked for by another wire type than its own.
    """

    def __init__(self, data: bytes) -> None:
        self._values_of: dict[int, list[tuple[int, int | bytes]]] = {}
        for number, wire, value in fields(data):
            self._values_of.setdefault(number, []).append((wire, value))

    def _values(self, number: int, wire: int) -> list[int | bytes]:
        values = self._values_of.get(number, [])
        if any(actual != wire for actual, _ in values):
            raise ValueError(f"field {number} has the wrong wire type")
        return [value for _, value in values]

    def texts(self, number: int) -> tuple[str, ...]:
        """All values of a repeated string."""
        return tuple(bytes(value).decode() for value in self._values(number, BYTES))

    def text(self, number: int) -> str:
        """A string, empty where absent."""
        return (self.texts(number) or ("",))[-1]

    def metarange_ids_beyond(self, number: int) -> tuple[str, ...]:
        """Every value that has the form of a metarange's id, in fields of a higher number."""
        values = (value for at, listed in self._values_of.items() if at > number for _, value in listed)
        texts = (value.decode("latin-1") for value in values if isinstance(value, bytes))
        return tuple(text for text in texts if _METARANGE_ID.fullmatch(text))


def read_branches(data: bytes | memoryview, file: str, *, expected: RangeRecord | None = None) -> list[BranchRecord]:
    """Branches in order of their names, hidden ones included.

    Where the table does not state its fields, each value beyond the known ones that looks like the id of a metarange is
    taken for a compacted base: what is read for nothing only keeps more.
    """
    table = read_checked(data, file, "ranges", "branch", expected)
    with parsing(file, "branch"):
        numbers = _field_numbers(table.layout.properties)
        return [_branch(message, numbers) for message in _messages(table)]


def _field_numbers(properties: Mapping[bytes, bytes]) -> dict[str, int] | None:
    """The number of each field of the message by its name, as the table states them; None where it does not."""
    if _SCHEMA not in properties:
        return None
    try:
        fields = json.loads(properties[_SCHEMA])["field"]
        return {str(each["name"]): int(each["number"]) for each in fields}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"its {_SCHEMA.decode()} cannot be read: {error!r}") from None


def _branch(message: _Message, numbers: Mapping[str, int] | None) -> BranchRecord:
    if numbers is None:
        bases = message.metarange_ids_beyond(_LAST_FIELD)
    else:
        named = [number for name, number in numbers.items() if _NAMES_METARANGE.search(name)]
        bases = tuple(base for number in named for base in message.texts(number) if base)
        for base in bases:
            if not _METARANGE_ID.fullmatch(base):
                raise ValueError(f"{base!r} is no id of a metarange")
    return BranchRecord(message.text(1), message.text(2), bases)


def read_tags(data: bytes | memoryview, file: str, *, expected: RangeRecord | None = None) -> list[Branch]:
    """Tags in order of their names, each with its commit."""
    table = read_checked(data, file, "ranges", "tag", expected)
    with parsing(file, "tag"):
        return [Branch(message.text(1), message.text(2)) for message in _messages(table)]


def _messages(table: SSTable) -> Iterator[_Message]:
    """The message of each record. Raises ValueError where one is malformed or its id is not the record's key."""
    buffer = table.buffer.tobytes()
    offsets, joined = table.keys()
    keys = joined.tobytes()
    bounds = offsets.tolist()
    spans = table.values[:, DATA_START : DATA_END + 1].tolist()
    for (start, end), key_start, key_end in zip(spans, bounds, bounds[1:], strict=False):
        message = _Message(buffer[start:end])
        id_ = message.text(1).encode()
        if id_ != keys[key_start:key_end]:
            raise ValueError(f"the record {keys[key_start:key_end]!r} holds {id_!r}")
        yield message
