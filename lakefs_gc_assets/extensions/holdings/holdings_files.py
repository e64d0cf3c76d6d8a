"""Holdings of a repository after a run: one small table by state and holder, kept as a file of its own.

Files lie in one folder beside the folders of runs, so one listing shows the whole history. The newest sorts first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore, fetch

FORMAT_VERSION = "1"
METADATA_DIMENSION = "metadata:"
"""Beginning of a dimension whose keys are the values of a key in the metadata of commits."""
_SUFFIX = ".parquet"
_WHAT = "holdings"

ROWS = pa.schema(
    [
        pa.field("dimension", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("held", pa.string()),
        pa.field("state", pa.string()),
        pa.field("objects", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64()),
    ]
)
"""Rows of a file, as `HoldingsRow` describes them."""


class Dimension(StrEnum):
    """What rows are grouped by. Metadata of commits has a dimension for each key, see METADATA_DIMENSION."""

    STATE = "state"
    BRANCH = "branch"
    PATH = "path"
    STORAGE_CLASS = "storage_class"
    COMMITTER = "committer"
    COMMIT = "commit"
    AGE = "age"


class HoldingState(StrEnum):
    """Reason why an object is stored. Each object has one, the first that applies.

    | state | objects |
    |---|---|
    | `head` | needed by the head of a branch |
    | `history` | needed by another commit that the rules keep, or by a range of no known commit |
    | `staged` | staged or tracked as copied, and in no commit that the rules keep |
    | `expired` | candidates of a run of flow `committed`: only expired commits have them |
    | `garbage` | candidates of a run of another flow |
    | `young` | unreferenced when the run marked, and kept: too young, in use by the recheck, or for another reason |
    | `quarantine` | moved to quarantine, and not purged yet |
    | `metadata` | ranges, metaranges and other files of lakeFS and of this collector |
    """

    HEAD = "head"
    HISTORY = "history"
    EXPIRED = "expired"
    STAGED = "staged"
    GARBAGE = "garbage"
    YOUNG = "young"
    QUARANTINE = "quarantine"
    METADATA = "metadata"


class Sharing(StrEnum):
    """How a holder holds an object. Shared bytes are never split: each holder has them in full."""

    ALONE = "alone"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class HoldingsRow:
    """Objects of one state and holder.

    Attributes:
        dimension: a Dimension, or METADATA_DIMENSION and a key.
        key: the holder: a branch, a folder with its slash (empty at the top), a class, a committer, a commit, a value,
            or the month of the upload such as `2026-11`. The name of the state in dimension `state`.
        held: alone or shared; None if it does not apply.
        state: None for objects of all states together.
        bytes: total size; None if unknown.
    """

    dimension: str
    key: str
    held: Sharing | None
    state: HoldingState | None
    objects: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Holdings:
    """Holdings of a repository after a run.

    Attributes:
        repository: name of the repository.
        namespace: URI of its storage namespace.
        run_id: the run whose frames were added up.
        time: when the run ended, UTC.
        rules: digest of the rules by which commits expire; empty if all stay.
    """

    repository: str
    namespace: str
    run_id: str
    time: datetime
    rules: str
    rows: tuple[HoldingsRow, ...]

    def of(self, dimension: str) -> Iterator[HoldingsRow]:
        """The rows of a dimension, in their order."""
        return (row for row in self.rows if row.dimension == dimension)

    def states(self) -> dict[HoldingState, Amount]:
        """Objects and bytes by state; states without objects or of unknown size are left out."""
        amounts: dict[HoldingState, Amount] = {}
        for row in self.of(Dimension.STATE):
            if row.state is not None and row.bytes is not None:
                amounts[row.state] = Amount(row.objects, row.bytes)
        return amounts


def key_of(run_id: str) -> str:
    """Key of the holdings after a run."""
    run_folder.folder(run_id)  # Refuses what is not a run id.
    return f"{run_folder.HOLDINGS}{run_id}{_SUFFIX}"


def write(store: ObjectStore, holdings: Holdings) -> str:
    """Stores holdings as one file and returns its key. Raises StorageError."""
    texts = {
        "format": FORMAT_VERSION,
        "repository": holdings.repository,
        "namespace": holdings.namespace,
        "run_id": holdings.run_id,
        "time": holdings.time.isoformat(),
        "rules": holdings.rules,
    }
    columns = [[getattr(row, name) for row in holdings.rows] for name in ROWS.names]
    data = tables.encode(pa.table(columns, schema=ROWS.with_metadata(texts)))
    key = key_of(holdings.run_id)
    store.put(key, data)
    return key


def read(store: ObjectStore, run_id: str) -> Holdings:
    """The holdings after a run. Raises CorruptFile if the file is missing, damaged or of a newer version."""
    key = key_of(run_id)
    data = fetch(store, key)
    rows = tables.decode(ROWS, data, key, _WHAT).to_pylist()
    with tables.opened(data, key, _WHAT) as stored:
        texts = _texts(stored)
        return Holdings(
            texts["repository"],
            texts["namespace"],
            texts["run_id"],
            datetime.fromisoformat(texts["time"]),
            texts["rules"],
            tuple(_read_row(row) for row in rows),
        )


def _texts(stored: pq.ParquetFile) -> Mapping[str, str]:
    """Metadata of a file. Raises ValueError if texts are missing or the file has another format."""
    texts = {name.decode(): text.decode() for name, text in (stored.schema_arrow.metadata or {}).items()}
    missing = {"format", "repository", "namespace", "run_id", "time", "rules"} - texts.keys()
    if missing or texts["format"] != FORMAT_VERSION:
        raise ValueError(f"its format is {texts.get('format')!r}, and it lacks {sorted(missing)}")
    return texts


def _read_row(row: Mapping[str, object]) -> HoldingsRow:
    held, state = row["held"], row["state"]
    values = {
        **row,
        "held": None if held is None else Sharing(str(held)),
        "state": None if state is None else HoldingState(str(state)),
    }
    return HoldingsRow(**values)  # type: ignore[arg-type]


def run_ids(store: ObjectStore) -> list[str]:
    """Ids of the runs that have holdings, newest first."""
    names = (
        listed.key.removeprefix(run_folder.HOLDINGS).removesuffix(_SUFFIX)
        for listed in store.list_level(run_folder.HOLDINGS).objects
    )
    return sorted(name for name in names if layout.is_xid(name))


def history(store: ObjectStore, repository: str | None = None, since: datetime | None = None) -> Iterator[Holdings]:
    """Yields the holdings of a repository, newest first; each file is read on demand. Unreadable files are skipped.

    Args:
        repository: its name, since several repositories can share a storage namespace; None for all.
        since: earlier runs are left out, by the time in their ids, UTC; None for no limit.
    """
    for run_id in run_ids(store):
        if since is not None and layout.created_at(run_id) < since.timestamp():
            return
        try:
            holdings = read(store, run_id)
        except CorruptFile:
            continue
        if repository in (None, holdings.repository):
            yield holdings
