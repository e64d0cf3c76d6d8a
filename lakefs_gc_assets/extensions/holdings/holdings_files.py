"""Holdings of a repository after a run: the meaning of their rows, and the history of stored holdings."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa

from lakefs_gc_assets.collector.records import stored_holdings, tables
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.stored_holdings import HOLDINGS
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore

METADATA_DIMENSION = "metadata:"
"""Beginning of a dimension whose keys are the values of a key in the metadata of commits."""
_FACTS = ("repository", "namespace", "run_id", "time", "rules")
"""Columns of HOLDINGS that are the same in all rows of a file."""


class Dimension(StrEnum):
    """Property by which rows are grouped. Metadata of commits has a dimension for each key, see METADATA_DIMENSION."""

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
        state: None in dimension `storage_class` for `head` and `history` together.
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


def write(store: ObjectStore, holdings: Holdings) -> str:
    """Stores holdings as one file and returns its key. Raises StorageError."""
    facts = {name: getattr(holdings, name) for name in _FACTS}
    rows = [{**facts, **asdict(row)} for row in holdings.rows]
    key = stored_holdings.key_of(holdings.run_id)
    store.put(key, tables.encode(pa.Table.from_pylist(rows, schema=HOLDINGS)))
    return key


def read(store: ObjectStore, run_id: str) -> Holdings:
    """The holdings after a run. Raises CorruptFile if the file is missing, damaged or of a newer version."""
    rows = stored_holdings.read(store, run_id).to_pylist()
    try:
        if not rows:
            raise ValueError("it has no rows")
        repository, namespace, ended_run, time, rules = (rows[0][name] for name in _FACTS)
        return Holdings(repository, namespace, ended_run, time, rules, tuple(map(_read_row, rows)))
    except ValueError as error:
        raise CorruptFile(stored_holdings.key_of(run_id), stored_holdings.NAME, str(error)) from None


def _read_row(row: Mapping[str, Any]) -> HoldingsRow:
    held, state = row["held"], row["state"]
    return HoldingsRow(
        row["dimension"],
        row["key"],
        None if held is None else Sharing(held),
        None if state is None else HoldingState(state),
        row["objects"],
        row["bytes"],
    )


def history(store: ObjectStore, repository: str | None = None, since: datetime | None = None) -> Iterator[Holdings]:
    """Yields the holdings of a repository, newest first; each file is read on demand. Unreadable files are skipped.

    Args:
        repository: its name, since several repositories can share a storage namespace; None for all.
        since: earlier runs are left out, by the time in their ids, UTC; None for no limit.
    """
    for run_id in stored_holdings.run_ids(store):
        if since is not None and layout.created_at(run_id) < since.timestamp():
            return
        try:
            holdings = read(store, run_id)
        except CorruptFile:
            continue
        if repository in (None, holdings.repository):
            yield holdings
