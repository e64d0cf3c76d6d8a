"""Whole runs of every kind in which one call goes wrong, and the recovery: resume the run, or begin a new one.

All runs of a kind are played in the same small world. A play is a kind of run, a fault, the number of the call, and the
recovery.
"""

import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets_tests.simulation.clocks import DAY, MINUTE
from lakefs_gc_assets_tests.simulation.failing_calls import Fault, Faults, distinct
from lakefs_gc_assets_tests.simulation.fault_kinds import KINDS, Kind, Whole
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
