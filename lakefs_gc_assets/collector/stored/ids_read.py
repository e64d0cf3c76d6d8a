"""Ids of the ranges and metaranges that a run and those before it have read, as files of its commits step.

An id is a hash of the content, so no run needs to read a range again. Ids are in one file, or where they are many in
two. The run's own file has the ids that were read since all of them were written together, and names the SHA-256 of an
earlier file with all others. A run copies the earlier file from the run that it builds on, and writes its own; all are
written together again when those since are no longer few. So each run's folder has all that the run knows, and the
folders of earlier runs may go.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.stored import run_folder, tables
from lakefs_gc_assets.collector.stored.tables import IdSet
from lakefs_gc_assets.errors import CorruptFile, StorageError
from lakefs_gc_assets.storage import interface
from lakefs_gc_assets.storage.interface import ObjectStore

_SMALL = 65_536
"""Ids (2 MB) that a run may write beside an earlier file, which has the others; for a large file, its 32nd part."""
_SMALL_PART = 32
_IDS_OF_FILE = pa.field("ids_of_file", pa.int64())
_OWN_FILE = pa.schema([pa.field("id", pa.string(), nullable=False), _IDS_OF_FILE])
"""Ids that were read; in the row that names the earlier file, `id` is its SHA-256, and the other column tells how many
ids it has. That column is null for ids, and files of earlier versions, which have all ids, lack it."""


@dataclass(frozen=True, slots=True)
class StoredIds:
    """The ids that an attempt of a run stored, by the SHA-256 of its file; where that is None, whatever is there."""

    run_id: str
    attempt: str
    sha256: str | None = None

    @property
    def key(self) -> str:
        """Key of the run's own file."""
        return f"{run_folder.frame(self.run_id, 'committed_df')}read-{self.attempt}.parquet"

    @property
    def earlier_key(self) -> str:
        """Key of the earlier file, if there is one."""
        return f"{run_folder.frame(self.run_id, 'committed_df')}read-earlier-{self.attempt}.parquet"


@dataclass(frozen=True, slots=True)
class _EarlierFile:
    sha256: str
    ids: int


def write(store: ObjectStore, run_id: str, attempt: str, ids: Iterable[str]) -> str:
    """Stores the ids that an attempt's commits step and the runs before it have read; returns the file's SHA-256."""
    whole, stored = IdSet.from_ids(ids), StoredIds(run_id, attempt)
    if len(whole) <= _SMALL:
        return _put(store, stored, whole)
    sha256 = tables.write_ids(store, stored.earlier_key, whole)
    return _put(store, stored, IdSet(), _EarlierFile(sha256, len(whole)))


def add(
    store: ObjectStore, run_id: str, attempt: str, new: Iterable[str], known: Set[str], known_from: StoredIds
) -> str:
    """Stores ids that an attempt's commits step has read beside those of the run it builds on; as `write` does.

    Args:
        known: what `read` gave of `known_from`.
    Raises:
        CorruptFile: the file of that run is no longer what was read.
    """
    since, earlier = _read_own(store, known_from)
    since |= IdSet.from_ids(new) - known
    stored = StoredIds(run_id, attempt)
    few = max(_SMALL, earlier.ids // _SMALL_PART if earlier else 0)
    if len(since) <= few and (earlier is None or _copied(store, known_from.earlier_key, stored.earlier_key)):
        return _put(store, stored, since, earlier)
    return write(store, run_id, attempt, known | since)


def _copied(store: ObjectStore, source: str, target: str) -> bool:
    """Copies a file where the store can: it may be a file system without hard links."""
    try:
        interface.copy(store, source, target)
    except StorageError:
        return False
    return True


def read(store: ObjectStore, run_id: str, attempt: str, sha256: str | None = None) -> Set[str]:
    """The ids that an attempt's commits step and the runs before it have read. Raises CorruptFile."""
    stored = StoredIds(run_id, attempt, sha256)
    since, earlier = _read_own(store, stored)
    if earlier is None:
        return since
    others = IdSet.of_columns(tables.read_id_parts(store, stored.earlier_key, earlier.sha256))
    return others | since if since else others


def count(store: ObjectStore, run_id: str, attempt: str, sha256: str) -> int:
    """How many ids `read` gives, for less. Raises CorruptFile where a file is missing, or another one."""
    stored = StoredIds(run_id, attempt, sha256)
    since, earlier = _read_own(store, stored)
    return len(since) + (tables.count_ids(store, stored.earlier_key, earlier.sha256) if earlier else 0)


def _put(store: ObjectStore, stored: StoredIds, since: IdSet, earlier: _EarlierFile | None = None) -> str:
    """Stores a run's own file; returns its SHA-256."""
    names, numbers = since.column().chunks, [pa.nulls(len(since), pa.int64())]
    if earlier:
        names, numbers = [*names, pa.array([earlier.sha256])], [*numbers, pa.array([earlier.ids], pa.int64())]
    columns = [pa.chunked_array(names, pa.string()), pa.chunked_array(numbers, pa.int64())]
    return tables.put(store, stored.key, pa.table(columns, schema=_OWN_FILE))


def _read_own(store: ObjectStore, stored: StoredIds) -> tuple[IdSet, _EarlierFile | None]:
    """The ids in a run's own file, and the earlier file that it names. Raises CorruptFile."""
    named: list[_EarlierFile] = []

    def ids() -> Iterator[pa.StringArray]:
        data = tables.get(store, stored.key, stored.sha256)
        for batch in tables.decode_parts(_OWN_FILE, data, stored.key, "ids", added=[_IDS_OF_FILE.name]):
            names, numbers = batch.columns
            files = pc.is_valid(numbers)
            rows = zip(names.filter(files).to_pylist(), numbers.filter(files).to_pylist(), strict=True)
            named.extend(_EarlierFile(*row) for row in rows)
            yield names.filter(pc.invert(files))

    since = IdSet.of_columns(ids())
    if len(named) > 1:
        raise CorruptFile(stored.key, "ids", f"it names {len(named)} earlier files, and there can be one")
    return since, next(iter(named), None)
