"""All commits of a repository as columns, without a Python object for each: a million of them is nothing unusual.

They come from the table of commits in a dump of references (`refs`); what the API says of single commits can be added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.lakefs.api.models import Commit
from lakefs_gc_assets.lakefs.formats import records
from lakefs_gc_assets.lakefs.formats.columns import strings
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord, read_checked
from lakefs_gc_assets.lakefs.formats.sstables import raise_fault

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
        """Where the commits of these ids are; -1 for those that are not there."""
        if len(ids) * _FEW > len(self):
            found: Integers = pc.fill_null(pc.index_in(ids, value_set=self.ids), -1).to_numpy(zero_copy_only=False)
            return found.astype(np.int64)
        # A table of few ids that all commits are looked up in is made faster than the reverse.
        asked = ids.dictionary_encode()
        at = pc.index_in(self.ids, value_set=asked.dictionary)
        there = pc.indices_nonzero(at.is_valid()).to_numpy()
        places = np.full(len(asked.dictionary), -1, np.int64)
        places[at.take(pa.array(there)).to_numpy()] = there
        answer: Integers = places[asked.indices.to_numpy()]
        return answer

    @classmethod
    def of(cls, commits: Sequence[Commit]) -> "CommitColumns":
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
        parts = parts or [cls.of([])]

        def integers(name: str) -> Integers:
            return np.concatenate([getattr(part, name) for part in parts])

        def strings(name: str) -> pa.StringArray:
            return pa.concat_arrays([getattr(part, name) for part in parts])

        counts: list[Any] = [np.diff(part.parent_offsets) for part in parts]
        return cls(
            strings("ids"),
            strings("metarange_ids"),
            integers("seconds"),
            integers("nanos"),
            integers("versions"),
            strings("parents"),
            np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))]),
        )


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
    metaranges, numbers = np.empty((count, 2), np.int64), np.empty((count, 3), np.int64)
    parent_offsets = np.empty(count + 1, np.int64)
    room = _PARENTS_EXPECTED * count
    while True:
        parents = np.empty((room, 2), np.int64)
        fault, record, found = records.decode_commits(
            table.buffer, table.values, keys, offsets, metaranges, numbers, parent_offsets, parents
        )
        raise_fault(fault, file, f"commit {record}")
        if found <= room:
            break
        room = found
    spans = np.stack([offsets[:-1], offsets[1:]], axis=1).astype(np.int64)
    return CommitColumns(
        ids=strings(keys, spans, "commit id", file),
        metarange_ids=strings(table.buffer, metaranges, "metarange id", file),
        seconds=numbers[:, 0].copy(),
        nanos=numbers[:, 1].copy(),
        versions=numbers[:, 2].copy(),
        parents=strings(table.buffer, parents[:found], "parent", file),
        parent_offsets=parent_offsets,
    )
