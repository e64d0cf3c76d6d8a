"""The record that a person approved a dry run: its candidates are to be deleted after all."""

from dataclasses import dataclass
from datetime import datetime

from lakefs_gc_assets.collector.stored import records_json, run_folder
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Approval:
    """Approval to delete the candidates of one dry run.

    Attributes:
        attempt, candidates_digest: name the very frame of candidates; one that was made again needs a new approval.
        approved_at: UTC.
    """

    run_id: str
    attempt: str
    candidates_digest: str
    approved_at: datetime
    format_version: int = FORMAT_VERSION


def write(store: ObjectStore, approval: Approval) -> None:
    """Stores an approval, in place of an earlier one of the run."""
    store.put(run_folder.approval(approval.run_id), records_json.encode(approval))


def read(store: ObjectStore, run_id: str) -> Approval | None:
    """The approval of a run; None where there is none. Raises CorruptFile."""
    key = run_folder.approval(run_id)
    data = get_if_there(store, key)
    if data is None:
        return None
    approval = records_json.decode(Approval, FORMAT_VERSION, data, key)
    if approval.run_id != run_id:
        raise CorruptFile(key, "approval", f"it is the approval of run {approval.run_id}")
    return approval
