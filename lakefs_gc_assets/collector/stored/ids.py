"""Sets of ids in little memory, and files of ids in the store.

The id of a range or metarange is a digest in 64 hexadecimal digits: 32 bytes here, 160 and more in a set of Python's.
Other ids are kept as they are. A file holds ids of ranges, metaranges or slices, sorted; its SHA-256 identifies its
content.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import compress, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.stored import tables
from lakefs_gc_assets.storage.interface import ObjectStore

_DIGEST = "^[0-9a-f]{64}$"
_DIGITS = 64
_AT_ONCE = 65_536
"""Ids that there are as Python's strings at one time."""
Digests = npt.NDArray[np.bytes_]
_BYTES = np.dtype(f"S{_DIGITS // 2}")
_NONE: Digests = np.empty(0, _BYTES)


class IdSet(Set[str]):
    """Ids, each once. Its iteration is in order, digests first."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._digests, self._others = _NONE, frozenset[str]()
        self._take(pa.array(some, pa.string()) for some in _parts(ids))

    @classmethod
    def from_ids(cls, ids: Iterable[str]) -> "IdSet":
        """These ids, which may be in such a set already."""
        return ids if isinstance(ids, IdSet) else cls(ids)

    @classmethod
    def of_columns(cls, columns: Iterable[pa.StringArray]) -> "IdSet":
        """The ids of columns without nulls, each at most some 100,000 long."""
        id_set = cls()
        id_set._take(columns)
        return id_set

    def _take(self, columns: Iterable[pa.StringArray]) -> None:
        """For a new set only: makes it one of the ids of columns."""
        digests, others = [self._digests], set[str]()
        for column in columns:
            are_digests = pc.match_substring_regex(column, _DIGEST)
            digests.append(_as_digests(column.filter(are_digests)))
            others.update(column.filter(pc.invert(are_digests)).to_pylist())
        # `np.unique` puts values into a table of hashes, which takes eight times as long.
        ordered = np.sort(np.concatenate(digests), kind="stable")
        is_first = np.ones(len(ordered), np.bool_)
        is_first[1:] = ordered[1:] != ordered[:-1]
        self._digests, self._others = ordered[is_first], frozenset(others)

    def __len__(self) -> int:
        return len(self._digests) + len(self._others)

    def __iter__(self) -> Iterator[str]:
        for chunk in self.column().iterchunks():
            yield from chunk.to_pylist()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and not self.lacking([name])

    def __or__(self, others: Set[str]) -> "IdSet":  # type: ignore[override]
        more, joined = IdSet.from_ids(others), IdSet()
        new = more._digests[~self._has(more._digests)]
        joined._digests = np.insert(self._digests, np.searchsorted(self._digests, new), new)
        joined._others = self._others | more._others
        return joined

    __ror__ = __or__

    def __sub__(self, others: Set[Any]) -> "IdSet":
        fewer, left = IdSet.from_ids(others), IdSet()
        left._digests = self._digests[~fewer._has(self._digests)]
        left._others = self._others - fewer._others
        return left

    def lacking(self, ids: Iterable[str]) -> list[str]:
        """Those of some ids that are not in this set, in their order."""
        return [name for some in _parts(ids) for name in compress(some, self.lacks(pa.array(some, pa.string())))]

    def lacks(self, ids: pa.StringArray) -> npt.NDArray[np.bool_]:
        """True for each id that is not in this set; at most about 100,000 ids, without nulls."""
        are_digests = pc.match_substring_regex(ids, _DIGEST)
        others = ids.filter(pc.invert(are_digests)).to_pylist()
        lacks, places = np.empty(len(ids), np.bool_), are_digests.to_numpy(zero_copy_only=False)
        lacks[places] = ~self._has(_as_digests(ids.filter(are_digests)))
        lacks[~places] = [name not in self._others for name in others]
        return lacks

    def _has(self, digests: Digests) -> npt.NDArray[np.bool_]:
        if not len(self._digests):
            return np.zeros(len(digests), np.bool_)
        at = np.minimum(np.searchsorted(self._digests, digests), len(self._digests) - 1)
        there: npt.NDArray[np.bool_] = self._digests[at] == digests
        return there

    def column(self) -> pa.ChunkedArray:
        """The ids as text, in the order of the iteration."""
        starts = range(0, len(self._digests), _AT_ONCE)
        chunks = [_as_text(self._digests[start : start + _AT_ONCE]) for start in starts]
        return pa.chunked_array([*chunks, pa.array(sorted(self._others), pa.string())], pa.string())


def lacking(known: Set[str], ids: Sequence[str]) -> list[str]:
    """Those of some ids that are not known, in their order."""
    return known.lacking(ids) if isinstance(known, IdSet) else [name for name in ids if name not in known]


def _parts(ids: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(ids)
    while some := list(islice(remaining, _AT_ONCE)):
        yield some


def _as_digests(names: pa.StringArray) -> Digests:
    """Names as digests; each name must be one."""
    if not len(names):
        return _NONE
    _, ends, text = names.buffers()
    start = np.frombuffer(ends, np.int32)[names.offset]
    digits = text.slice(start, len(names) * _DIGITS).to_pybytes().decode()
    return np.frombuffer(bytes.fromhex(digits), _BYTES)


def _as_text(digests: Digests) -> pa.StringArray:
    ends = pa.array(np.arange(len(digests) + 1, dtype=np.int32) * _DIGITS)
    return pa.StringArray.from_buffers(len(digests), ends.buffers()[1], pa.py_buffer(digests.tobytes().hex().encode()))


_SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False)])


def write(store: ObjectStore, key: str, ids: Iterable[str]) -> str:
    """Stores ids; returns the SHA-256 of the file."""
    column = ids.column() if isinstance(ids, IdSet) else pa.chunked_array([sorted(set(ids))], pa.string())
    return tables.put(store, key, pa.table([column], schema=_SCHEMA))


def read(store: ObjectStore, key: str, sha256: str | None = None) -> frozenset[str]:
    """The ids of a file. Raises CorruptFile where it is missing, unreadable or, given its SHA-256, another one."""
    return frozenset(name for part in read_parts(store, key, sha256) for name in part.to_pylist())


def read_parts(store: ObjectStore, key: str, sha256: str | None = None) -> Iterator[pa.StringArray]:
    """The ids of a file, a few at a time as they are asked for. Raises CorruptFile as `read` does."""
    data = tables.get(store, key, sha256)
    for batch in tables.decode_parts(_SCHEMA, data, key, "ids"):
        yield batch.column("id")


def count(store: ObjectStore, key: str, sha256: str | None = None) -> int:
    """The number of ids in a file, by its footer. Raises CorruptFile as `read` does, but for damage within the file."""
    return tables.count(tables.get(store, key, sha256), key, "ids")
