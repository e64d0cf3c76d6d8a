"""Brings back the entries that a run of object lifecycle deleted, in one commit for each rule and branch.

The run's commit is reverted on a hidden branch that begins at it. The merge of that branch into the target is then
based on the commit itself: it changes only paths that the commit deleted, and the target wins at paths that were
written again.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.incremental.deleted_data import DeletedData
from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.records.outcomes import one_by_one
from lakefs_gc_assets.collector.repository.lock import locked
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import (
    CollectionError,
    ConfigurationError,
    CorruptFile,
    HookFailed,
    LakeFSError,
    LogLine,
    ServerUnavailable,
    counted,
)
from lakefs_gc_assets.extensions.lifecycle.acts import (
    WORK,
    Act,
    ActState,
    LifecycleFate,
    LifecycleOutcome,
    LifecycleWork,
    acts_of,
)
from lakefs_gc_assets.extensions.lifecycle.listing import ENTRIES
from lakefs_gc_assets.extensions.lifecycle.merging import (
    GroupKept,
    bring_back,
    protecting,
    request_bringing_back,
    settle,
)
from lakefs_gc_assets.lakefs import layout


def revert(
    repository: OpenRepository, run_id: str, owner: str, note: LogLine, warn: LogLine
) -> Iterator[LifecycleOutcome]:
    """Brings back what a run deleted, during iteration; yields the outcome of each group. May be repeated.

    Args:
        owner: owner of the repository's lock.
        note, warn: receive log lines.
    Raises:
        ConfigurationError: there is no such run.
        ServerUnavailable: the server fails at two groups in a row.
        CollectionError: the server or the store fails, or a record is damaged.
    """
    with locked(repository, WORK, owner, warn) as lock:
        acts = [*acts_of(repository, run_id)] if layout.is_xid(run_id) else []
        if not acts:
            raise ConfigurationError(f"{run_id!r} is no run of `lakefs-gc lifecycle approve` in {repository.facts.id}")
        work = LifecycleWork(repository, lock, note, warn)
        data = DeletedData(repository, lock, WORK, warn)

        def act_on(act: Act | CorruptFile) -> LifecycleOutcome:
            return failed(act, act) if isinstance(act, CorruptFile) else _revert_one(work, data, act)

        def failed(act: Act | CorruptFile, error: CollectionError) -> LifecycleOutcome:
            if isinstance(act, CorruptFile):
                return LifecycleOutcome(run_id, "unknown", "unknown", LifecycleFate.FAILED, str(error))
            return work.outcome(act, LifecycleFate.FAILED, str(error))

        yield from one_by_one(acts, act_on, failed)


def _revert_one(work: LifecycleWork, data: DeletedData, act: Act) -> LifecycleOutcome:
    was = act.state
    act = settle(work, act)
    if act.state is ActState.REVERTED and was is ActState.REVERTED:
        return work.outcome(act, LifecycleFate.UNNEEDED, f"brought back at {act.at:%F %T}Z")
    if act.state in (ActState.REVERTED, ActState.REVERT_WAITING):
        return _settled(work, data, act)
    if act.state is ActState.WAITING:
        work.api.close_pull_request(act.pull_id)
        # A reviewer may have merged it right before.
        act = settle(work, act)
    if act.state is not ActState.DELETED:
        return work.outcome(act, LifecycleFate.UNNEEDED, "nothing was deleted")
    if work.api.branch(act.branch) is None:
        return work.outcome(act, LifecycleFate.KEPT, "the branch was deleted")
    return _bring_back(work, data, act)


def _bring_back(work: LifecycleWork, data: DeletedData, act: Act) -> LifecycleOutcome:
    """Brings back the entries of a deleted group, or asks for a review if the branch is protected."""
    act = work.put(act, ActState.REVERTING)
    try:
        if protecting(work, act.branch):
            return _settled(work, data, request_bringing_back(work, act))
        paths = bring_back(work, act, act.commit_id)
    except ServerUnavailable as error:
        raise ServerUnavailable(f"{error}; the entries may be back: repeat the command to find out") from error
    except (GroupKept, LakeFSError) as error:
        # The server may have merged, although it failed then, or its answer could not be read.
        act = settle(work, act)
        if act.state is not ActState.DELETED:
            return _settled(work, data, act)
        if isinstance(error, GroupKept | HookFailed):
            return work.outcome(act, LifecycleFate.KEPT, str(error))
        raise
    act = work.put(act, ActState.REVERTED)
    came = f"{counted(len(paths), 'entries')} of {act.objects:,}"
    stay = "" if len(paths) == act.objects else "; the other paths were written again, and stay so"
    return _came_back(work, data, act, f"{came}{stay}", paths)


def _settled(work: LifecycleWork, data: DeletedData, act: Act) -> LifecycleOutcome:
    """The outcome for an act whose entries were brought back, or wait for that."""
    if act.state is ActState.REVERT_WAITING:
        return work.waiting(act)
    return _came_back(work, data, act, f"brought back at {act.at:%F %T}Z")


def _came_back(
    work: LifecycleWork, data: DeletedData, act: Act, why: str, paths: tuple[str, ...] | None = None
) -> LifecycleOutcome:
    """The outcome for entries that came back, with their data or without. `paths`: None for all of the act."""
    gone = _describe_gone(data, act, paths)
    return work.outcome(act, LifecycleFate.INCOMPLETE if gone else LifecycleFate.REVERTED, f"{why}{gone}")


def _describe_gone(data: DeletedData, act: Act, paths: tuple[str, ...] | None) -> str:
    """Number of entries whose objects earlier runs deleted, or why it is unknown, in words; empty for none."""
    try:
        repository, store = data.repository, data.repository.store
        data_of_act = tables.get(store, act.entries_key, act.entries_sha256)
        stored = tables.decode(ENTRIES, data_of_act, act.entries_key, WORK)
        came = stored if paths is None else stored.filter(pc.is_in(stored["path"], pa.array(paths, pa.string())))
        keys = [repository.namespace.relative(each) or each for each in came["address"].to_pylist()]
        deleted = data.addresses.filter(pc.is_in(data.addresses["address"], value_set=pa.array(keys, pa.string())))
        count = data.count_gone(data.step.engine.table(deleted))
    except ServerUnavailable:
        raise
    except CollectionError as error:
        return f"; whether their data still exists is unknown: {error}"
    if not count:
        return ""
    return (
        f"; the data of {counted(count, 'objects are')} gone: earlier runs deleted them. `lakefs-gc fsck` names each, "
        "and whether it can be restored"
    )
