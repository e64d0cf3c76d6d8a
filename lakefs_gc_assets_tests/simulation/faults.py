"""Whole runs of every kind in which one call goes wrong, and the recovery: resume the run, or begin a new one.

All runs of a kind are played in the same small world. A play is a kind of run, a fault, the number of the call, and the
recovery. The seeded bugs at the end are in the handling of failed calls, and plays show them.
"""

import pickle
import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any

import pyarrow as pa

from lakefs_gc_assets.collector import make_step, run
from lakefs_gc_assets.collector.engine.local import ArrowRows
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import DELETED_REPORT, LIVE
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.live import uncommitted
from lakefs_gc_assets.collector.live.current import Samples
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.quarantine import purge, restore
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck, Purged
from lakefs_gc_assets.collector.quarantine.restore import Restored, RestoreFate
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.reporting import count_amounts, make_report
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import Clock, Moment
from lakefs_gc_assets.collector.run import sweep_candidates
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.collector.sweep.recheck import find_live_again
from lakefs_gc_assets.collector.sweep.sweeping import Quarantine
from lakefs_gc_assets.errors import CorruptFile, StorageError
from lakefs_gc_assets.storage.interface import ObjectStore, head_if_there
from lakefs_gc_assets_tests.simulation.bug import ArrowStep, Bug, ignored, replaced
from lakefs_gc_assets_tests.simulation.clocks import DAY, MINUTE
from lakefs_gc_assets_tests.simulation.failing_calls import Fault, Faults, distinct
from lakefs_gc_assets_tests.simulation.fault_kinds import KINDS, Kind, Whole
from lakefs_gc_assets_tests.simulation.flow_bugs import all_accepted
from lakefs_gc_assets_tests.simulation.playing import deterministic
from lakefs_gc_assets_tests.simulation.run_requests import LOCK_EXPIRY
from lakefs_gc_assets_tests.simulation.scenes import Ended, NotFinished, Scene, require_well
from lakefs_gc_assets_tests.simulation.world import World

QUIET_SECONDS = 4 * DAY
"""After this time all young objects are old, and copies are forgotten."""


class Recovery(StrEnum):
    """Recovery from a run that did not end well."""

    RESUMED = "resumed"
    REPEATED = "a new run"


@cache
def _prepared(name: str) -> bytes:
    """A scene right before the run, pickled."""
    with deterministic(1):
        scene = Scene(World.from_setup(KINDS[name].setup))
        KINDS[name].prepare(scene)
        if name not in ("approved", "restore"):
            scene.opened = None
        scene.world.background.clear()
        scene.world.log.clear()
    return pickle.dumps(scene)


def scene_before(name: str) -> Scene:
    """A scene right before the run of a kind, for one use."""
    scene: Scene = pickle.loads(_prepared(name))
    return scene


@cache
def whole(name: str) -> Whole:
    """Makes a run of a kind without faults."""
    with deterministic(2):
        scene = scene_before(name)
        garbage = KINDS[name].watch.garbage
        before = frozenset(garbage(scene))
        faults = Faults()
        require_well(KINDS[name].run(scene, faults))
        after = frozenset(garbage(scene))
    return Whole(tuple(faults.reported), before - after, after - before)


@dataclass(frozen=True)
class Play:
    """A play: a kind of run with one fault and a recovery."""

    kind: str
    fault: Fault
    at: int
    recovery: Recovery

    def __str__(self) -> str:
        call = whole(self.kind).calls[self.at - 1]
        return f"{self.kind} run, call {self.at} ({call}) {self.fault}, then {self.recovery}"


def plays(kind: str) -> Iterator[Play]:
    """Every fault of every call of a kind of run, with every recovery."""
    for number, call in enumerate(whole(kind).calls, 1):
        for fault in distinct(call):
            for recovery in Recovery:
                yield Play(kind, fault, number, recovery)


def play(played: Play, *, follow: bool = True) -> None:
    """Makes a run in which one call goes wrong, recovers, and checks the result.

    Args:
        follow: if True, another run comes days later.

    Raises:
        Violation: the result is wrong.
    """
    kind, expected = KINDS[played.kind], whole(played.kind)
    with deterministic(2):
        scene = scene_before(played.kind)
        watch = kind.watch(scene, expected, kind.flow, kind.deletes)
        faults = Faults(played.fault, played.at, scene.world.pass_time)
        ended = kind.run(scene, faults)
        watch.look(ended, faults)
        watch.meanwhile()
        if ended is not Ended.WELL:
            recover(scene, kind, played.recovery, faults)
        elif not watch.all_done:
            require_well(kind.repeat(scene, Faults()))
        watch.finish()
        if follow:
            scene.world.pass_time(QUIET_SECONDS)
            require_well(kind.follow(scene, Faults()))
            watch.end()


def recover(scene: Scene, kind: Kind, recovery: Recovery, faults: Faults) -> None:
    """Resumes or repeats a run at once.

    It waits only for the lock of a process that died or could not write it. If a resumed run asks for a new one, it
    opens that.

    Raises:
        NotFinished: the run cannot go on.
    """
    again = kind.resume if recovery is Recovery.RESUMED else kind.repeat
    scene.world.log.clear()
    if again(scene, Faults()) is Ended.WELL:
        return
    reported = scene.world.log[-1]
    if again is kind.resume and "open a new run" in reported:
        require_well(kind.repeat(scene, Faults()))
        return
    if "wait until it ends" not in reported:
        raise NotFinished(f"nobody can go on: {reported}")
    if not faults.dead and not re.match(f"put_if.* {lock.KEY}", faults.struck or ""):
        raise NotFinished(f"the lock is held although its process could release it: {reported}")
    scene.world.pass_time(LOCK_EXPIRY + 5 * MINUTE)
    if again(scene, Faults()) is not Ended.WELL:
        raise NotFinished(f"nobody can go on even after the lock expired: {scene.world.log[-1]}")


@dataclass(frozen=True)
class FaultBug:
    """A bug, and the calls whose faults show it.

    Attributes:
        kind: kind of run.
        calls: pattern of the calls; a fault of one shows the bug.
        fault: the fault that shows it.
    """

    kind: str
    calls: str
    fault: Fault
    bug: Bug


def _swallowing(read: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
    def swallowed(*arguments: object) -> pa.Table:
        try:
            return read(*arguments)
        except (StorageError, CorruptFile):
            return LIVE.empty_table()

    return swallowed


def _as_far_as_it_went(store: ObjectStore, state: object) -> tuple[str, ...]:
    with suppress(StorageError):
        return _written(store, state)
    return ()


_METADATA = "get _lakefs/[0-9a-f]{64}"
_UNCOMMITTED = "get .*/uncommitted/.*/uncommitted/"
_written: Callable[..., tuple[str, ...]] = uncommitted._written
_release, _resume = Lock.release, sweeping.resume


def _kept_on_failure(self: Lock) -> None:
    if sys.exc_info()[0] is None:
        _release(self)


def _claims_success(store: ObjectStore, plan: Plan, now: Any, error: str) -> None:
    report.write(store, replace(report.failed(plan, now, error), success=True, ending=report.Ending.DELETED))


def _report_first(step: ArrowStep, candidates: StoredFrame[Any]) -> Iterator[Any]:
    """Stores the report, with its checkpoint, before it deletes."""
    claimed = all_accepted(step, candidates)
    outcomes = step.complete(DELETED_REPORT, claimed.figures, claimed.manifest.files, (candidates,))
    ended = make_report(
        step, outcomes, vars(checkpoint)["write_checkpoint"](step, outcomes), count_amounts(step, outcomes), 0, None
    )
    report.write(step.repository.store, ended)
    yield from sweep_candidates(step, candidates)


def _unchecked_once_begun(step: ArrowStep, samples: Samples) -> ArrowRows:
    """Resumes with the live addresses found before."""
    begun = receipts.keys(step.repository.store, step.plan.run_id)
    return step.engine.table(LIVE.empty_table()) if begun else find_live_again(step, samples)


def _forget_earlier_tries(step: ArrowStep, candidates: StoredFrame[Any]) -> Any:
    """Reports only its own deletions, not the deletions of earlier attempts."""
    remaining, left, _ = _resume(step, candidates)
    return remaining, left, ()


def _uncopied(self: Quarantine, address: str) -> str | None:
    with suppress(StorageError):
        self.store.copy(address, sweeping.key(self.run_id, address))
    return None


def _removed_first(store: ObjectStore, run_id: str, address: str, size: int, copy_etag: str | None = None) -> Restored:
    copy = sweeping.key(run_id, address)
    if copy_etag is not None:
        # Make the same calls as without the bug: faults are counted by calls.
        head_if_there(store, copy)
    with suppress(StorageError):
        store.copy_if_absent(copy, address)
    store.delete([copy])
    return Restored(address, RestoreFate.RESTORED)


def _all_back(store: ObjectStore, run_id: str, addresses: Sequence[str]) -> frozenset[str]:
    return frozenset(addresses)


_purge_batch = purge._delete


def _reported_first(
    store: ObjectStore, plan: Plan, batch: pa.Table, clock: Clock, is_over: Callable[[], bool]
) -> Generator[Purged, None, pa.Table]:
    reported = receipts.of_outcome(batch, Outcome.PURGED, clock.now())
    receipts.write(store, plan.run_id, f"{receipts.OF_PURGE}first", reported)
    return (yield from _purge_batch(store, plan, batch, clock, is_over))


def _not_again(self: LiveCheck[ArrowRows], copies: ArrowRows) -> None:
    self._as_of = Moment.now(self._step.repository.clock)


def _never(self: object, written_at: datetime) -> datetime:
    return written_at.replace(year=3000)


# A run looks one staged entry per branch up in the uncommitted data, which would hide the bug in a small world.
_AS_FAR_AS_IT_WENT = (
    (uncommitted, "_written", _as_far_as_it_went),
    (uncommitted, "missing_samples", lambda *about: ()),
)
_UNCHECKED = replaced((sweeping, "find_live_again", _unchecked_once_begun))
_REPORTED_FIRST = replaced((run, "sweep_candidates", _report_first))
_FORGETFUL = replaced((sweeping, "resume", _forget_earlier_tries), (sweeping, "require_all_decided", ignored))
FAULT_BUGS = {
    "a range that cannot be read is skipped": FaultBug(
        "clean", _METADATA, Fault.TRUNCATED, replaced((LiveFiles, "range", _swallowing(LiveFiles.range)))
    ),
    "uncommitted data that cannot be read is skipped": FaultBug(
        "clean", _UNCOMMITTED, Fault.TRUNCATED, replaced((LiveFiles, "uncommitted", _swallowing(LiveFiles.uncommitted)))
    ),
    "a listing that breaks off is taken for whole": FaultBug(
        "clean", "list_level .*/uncommitted/$", Fault.FAILS, replaced(*_AS_FAR_AS_IT_WENT)
    ),
    "report and checkpoint before the deletes": FaultBug("clean", "delete ", Fault.DIES, _REPORTED_FIRST),
    "lock kept on failure": FaultBug("dry", "grace_period", Fault.FAILS, replaced((Lock, "release", _kept_on_failure))),
    "lock kept on failure between steps": FaultBug(
        "dry", "get .*plan.json", Fault.FAILS, replaced((make_step, "end_between_steps", ignored))
    ),
    "lock of the dead never free": FaultBug(
        "dry",
        "grace_period",
        Fault.DIES,
        replaced((lock._Record, "expires_at", _never)),
    ),
    "failure reported as success": FaultBug(
        "clean", "delete ", Fault.FAILS, replaced((make_step, "store_report", _claims_success))
    ),
    "a resumed sweep without recheck": FaultBug("clean", "delete ", Fault.DIES, _UNCHECKED),
    "what a killed sweep had deleted is not told": FaultBug("clean", "delete ", Fault.DIES, _FORGETFUL),
    "copies removed of all that the store says to stay": FaultBug(
        "quarantine", "delete data/", Fault.DENIED, replaced((Quarantine, "_is_there", lambda *arguments: True))
    ),
    "moved without a copy": FaultBug("quarantine", "copy ", Fault.FAILS, replaced((Quarantine, "_copied", _uncopied))),
    "a restoration removes copies": FaultBug(
        "restore", "copy_if_absent", Fault.FAILS, replaced((restore, "from_quarantine", _removed_first))
    ),
    "a purge takes every copy of what is live for back": FaultBug(
        "purge", "delete .*/data/", Fault.DIES, replaced((restore, "find_back", _all_back))
    ),
    "a purge looks once": FaultBug(
        "purge", "delete .*/purging/", Fault.DIES, replaced((LiveCheck, "look_again", _not_again))
    ),
    "a purge writes receipts before it deletes": FaultBug(
        "purge", "delete .*/data/", Fault.FAILS, replaced((purge, "_delete", _reported_first))
    ),
    "what a purge that was killed had deleted is not told": FaultBug(
        "purge", "put .*/receipts/purged-", Fault.DIES, replaced((purge, "_settle", ignored))
    ),
}
"""Seeded bugs by name."""
