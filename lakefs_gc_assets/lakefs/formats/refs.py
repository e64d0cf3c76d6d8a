"""Commits, branches and tags of a refs dump (`POST /repositories/{repository}/dump`).

A dump names three metaranges. Their ranges are tables with the property `entity`: commit, branch or tag. The records
are the protobuf messages CommitData, BranchData and TagData of `pkg/graveler/graveler.proto` in lakeFS.
`ranges.read_metarange(…, entity=…)` reads such a metarange, the functions below read its ranges. They raise CorruptFile
like `ranges.read_range`, and also if a record's key is not the id in its message.
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
    """Commits as columns without nulls. A repository may have a million, so there is no Python object per commit.

    Attributes:
        ids: string.
        metarange_ids: string, empty for a commit without objects.
        seconds, nanos: creation date from the committer, since 1970-01-01 UTC.
        versions: 0 for very old commits, whose main parent is the last one.
        parents: string, the concatenated parents of all commits, each commit's in order.
        parent_offsets: start of each commit's parents; one longer than the other columns.
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
        # For few ids, a hash table of the ids is faster than one of all commits.
        asked = ids.dictionary_encode()
        at = pc.index_in(self.ids, value_set=asked.dictionary)
        known = pc.indices_nonzero(at.is_valid()).to_numpy()
        places = np.full(len(asked.dictionary), -1, np.int64)
        places[at.take(pa.array(known)).to_numpy()] = known
        answer: Integers = places[asked.indices.to_numpy()]
        return answer

    @classmethod
    def from_commits(cls, commits: Sequence[Commit]) -> "CommitColumns":
        """Columns of commits from the API. It truncates dates to seconds, so each counts as the end of its second."""
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
        """The commits of all parts, in order."""
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
        file: name of the file, for messages.
        expected: the record in its metarange.
    Raises:
        CorruptFile: the file differs from the one lakeFS wrote, or is not such a table.
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
    """A branch in a dump: its id and its commit.

    The message also has fields for staging tokens and hidden branches, but servers omit them from dumps
    (`branchValueIterator.setValue` in `pkg/graveler/graveler.go` as of 1.86).

    Attributes:
        compacted_bases: metaranges that replace that of the branch's commit, written by a compaction of staging: one,
            or none if nothing was compacted since the commit.
    """

    id: str
    commit_id: str
    compacted_bases: tuple[str, ...] = ()


class _Message:
    """A parsed protobuf message. A scalar field has its last value, a repeated one all its values.

    Raises ValueError if the message is malformed, or if a requested field has another wire type.
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
        """A string, empty if absent."""
        return (self.texts(number) or ("",))[-1]

    def metarange_ids_beyond(self, number: int) -> tuple[str, ...]:
        """All values in the format of a metarange id, from fields with higher numbers."""
        values = (value for at, listed in self._values_of.items() if at > number for _, value in listed)
        texts = (value.decode("latin-1") for value in values if isinstance(value, bytes))
        return tuple(text for text in texts if _METARANGE_ID.fullmatch(text))


def read_branches(data: bytes | memoryview, file: str, *, expected: RangeRecord | None = None) -> list[BranchRecord]:
    """Branches in order of their names, hidden ones included.

    A server that compacts staging records a metarange in the branch, its compacted base. The open source server reads
    such branches (`Branch.CompactedBaseMetaRangeID` in `pkg/graveler/graveler.go`), but as of 1.80 its BranchData has
    no field for it, so other servers choose the field's number. The field is found by its name in the table's property
    `schema_definition`, a descriptor of the message in protobuf's JSON format (`pkg/graveler/serde.go`).

    Without that property, every value in an unknown field that looks like a metarange id counts as a compacted base. An
    extra metarange only keeps more.
    """
    table = read_checked(data, file, "ranges", "branch", expected)
    with parsing(file, "branch"):
        numbers = _field_numbers(table.layout.properties)
        return [_branch(message, numbers) for message in _messages(table)]


def _field_numbers(properties: Mapping[bytes, bytes]) -> dict[str, int] | None:
    """Field numbers of the message by field name, from the table's schema; None if the table has no schema."""
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
    """The message of each record. Raises ValueError if one is malformed or its id is not the record's key."""
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
