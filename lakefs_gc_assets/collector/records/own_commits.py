"""Receipts for commits that object lifecycle made, which rules that count commits leave out.

Such a commit only removes expired entries, so it is no work of a user. Its metadata has MARK, but any client can set
metadata. So only a receipt in the bucket counts. Receipts never expire: lakeFS keeps commits forever, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from lakefs_gc_assets.collector.records import records_json
from lakefs_gc_assets.errors import CorruptFile, LogLine
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore, keys_below

MARK = "lakefs-gc-lifecycle"
"""Metadata key of these commits; its value is the id of the lifecycle run."""
_RECEIPTS = f"{layout.RUNS_PREFIX}lifecycle/commits/"
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class OwnCommit:
    """Receipt for a commit that object lifecycle made on a branch.

    Attributes:
        run_id: the lifecycle run.
        at: time of the receipt, UTC.
    """

    repository: str
    commit_id: str
    branch: str
    run_id: str
    at: datetime
    format_version: int = 1


def _folder(repository_id: str) -> str:
    return f"{_RECEIPTS}{repository_id}/"


def record_own_commit(store: ObjectStore, own: OwnCommit) -> None:
    """Stores a receipt, under the repository's lock. May be repeated. Raises StorageError."""
    store.put(f"{_folder(own.repository)}{own.commit_id}{_SUFFIX}", records_json.encode(own))


def list_own_commits(store: ObjectStore, repository_id: str) -> frozenset[str]:
    """Ids of commits that have a receipt, by the receipts' names alone. Raises StorageError.

    Only for rules that count: a commit that is not counted never lets another one expire. So a receipt whose content is
    damaged is believed here. One listing is enough for any number of receipts.
    """
    folder = _folder(repository_id)
    return frozenset(key.removeprefix(folder).removesuffix(_SUFFIX) for key in keys_below(store, folder))


def read_own_commits(
    store: ObjectStore, repository_id: str, warn: LogLine, commit_ids: Iterable[str]
) -> frozenset[str]:
    """The commits, by id, that have an intact receipt. Raises StorageError.

    For decisions that treat a commit as no use of its branch. A damaged receipt counts as absent, with a warning: the
    commit then counts as use, and the branch stays.
    """
    return frozenset(commit_id for commit_id in commit_ids if _is_intact(store, repository_id, commit_id, warn))


def _is_intact(store: ObjectStore, repository_id: str, commit_id: str, warn: LogLine) -> bool:
    try:
        own = records_json.read(store, OwnCommit, f"{_folder(repository_id)}{commit_id}{_SUFFIX}")
    except CorruptFile as corrupt:
        warn(f"WARNING: the receipt of lifecycle's commit is damaged, so {commit_id} counts as a user's: {corrupt}")
        return False
    return own is not None and (own.repository, own.commit_id) == (repository_id, commit_id)
