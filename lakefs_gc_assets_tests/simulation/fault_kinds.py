"""The kinds of run in which every call is broken: their small worlds, their beginning, and how people go on."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, cast

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records import across_runs
from lakefs_gc_assets.collector.records.outcomes import MULTIPART_ETAG, Outcome
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.simulation.bucket import address_of, is_back
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.failing_calls import Fault, Faults
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.run_requests import ASKED, Asked, settings
from lakefs_gc_assets_tests.simulation.scenes import (
    Ended,
    NotFinished,
    Opened,
    Scene,
    copies,
    purge,
    require_well,
    restore,
    stage_moved,
)
from lakefs_gc_assets_tests.simulation.world import Setup

_COLLECTORS_OWN = "_lakefs/retention/"
_MEANWHILE_SECONDS = 20 * MINUTE
"""Longer than a recheck is valid, and less than the lock of a dead process."""


@dataclass(frozen=True)
class Whole:
    """A run without faults: its calls, and the garbage that is gone or restored afterwards."""

    calls: tuple[str, ...]
    gone: frozenset[str]
    back: frozenset[str]


class Watch:
    """Checks runs that delete, or that restore deleted objects."""

    def __init__(self, scene: Scene, expected: Whole, flow: Flow | None, deletes: bool) -> None:
        """Records the state right before the run.

        Args:
            flow: flow that its report names; None if it writes no report.
            deletes: True if it deletes.
        """
        self.scene, self.expected, self._flow, self._deletes = scene, expected, flow, deletes
        bucket = scene.world.bucket
        self._there = {key: bucket.objects[key] for key in bucket.keys if not key.startswith(_COLLECTORS_OWN)}
        self._garbage = {key: bucket.objects[key] for key in scene.world.garbage()}
        self._kept_for_longer: frozenset[str] = frozenset()

    @staticmethod
    def garbage(scene: Scene) -> Iterable[str]:
        """Garbage that such a run must remove."""
        return scene.world.garbage()

    def look(self, ended: Ended, faults: Faults) -> None:
        """Raises Violation if the run claims work that it did not do.

        If damaged sightings were left out, multipart uploads wait for a later run.
        """
        if faults.fault is Fault.TRUNCATED and "/sightings/" in (faults.struck or ""):
            parts = [key for key, stored in self._garbage.items() if re.fullmatch(MULTIPART_ETAG, stored.etag or "")]
            self._kept_for_longer = frozenset(parts)
        self.require_live()
        scene = self.scene
        if scene.opened is None or self._flow is None:
            return
        reported = scene.last_report()
        if ended is Ended.WELL and (reported is None or reported.ending is Ending.FAILED):
            raise Violation("the run ends well and has no report that says so")
        if reported is not None and reported.success and not reported.dry_run:
            self._require_gone()

    def meanwhile(self) -> None:
        """Changes made by users before the run goes on: garbage is staged again, staged entries are committed."""
        self.stage_again()
        self.scene.do((("commit_now", (1, 2, 0)), ("upload_now", (1, 0, 2, 0))))
        self.scene.world.pass_time(_MEANWHILE_SECONDS)

    def stage_again(self) -> None:
        """Stages one object again that was garbage."""
        world, expected = self.scene.world, self.expected
        left = sorted((expected.gone | expected.back).intersection(world.garbage()))
        if left:
            entry = Entry(left[-1], 1, len(world.bucket.objects[left[-1]].data), "again", soft_at=world.time.now)
            world.repository.stage(world.repository.branches["alpha"], "again", entry)
            world.oracle.look()

    @property
    def all_done(self) -> bool:
        """True if a run that ended well has nothing left to do. Failed deletions wait for the next run."""
        return self._flow is None or self.scene.reported.success

    def finish(self) -> None:
        """Raises Violation if the work is not done, or if the next run is blocked."""
        self.require_live()
        scene = self.scene
        if holder := lock.holder(scene.store):
            raise NotFinished(f"the lock is still {holder}")
        if self._flow is not None:
            reported = scene.reported
            if not reported.success:
                raise NotFinished(f"the report tells of {reported.ending}: {reported.error}")
            if reported.flow != self._flow and reported.why_clean is None:
                raise NotFinished(f"the report tells of a {reported.flow} run")
        if self._deletes:
            self._require_gone()

    def end(self) -> None:
        """Raises Violation if an object is lost, garbage is left, or runs do not build on each other again."""
        self.require_live()
        if self._flow is Flow.OPTIMIZED and self.scene.reported.why_clean is not None:
            raise NotFinished(f"the last run is a clean one: {self.scene.reported.why_clean}")
        if left := self.scene.world.garbage():
            raise NotFinished(f"{len(left)} objects stay although nothing reaches them: {left[0]}")

    def require_live(self) -> None:
        """Raises Violation if a reachable object is lost."""
        bucket, oracle = self.scene.world.bucket, self.scene.world.oracle
        for key, stored in self._there.items():
            if oracle.reachable(key) and bucket.objects.get(key) != stored:
                raise Violation(f"{key} is lost")

    def _require_gone(self) -> None:
        bucket = self.scene.world.bucket
        left = sorted(self.expected.gone.intersection(self.scene.world.garbage()) - self._kept_for_longer)
        if left:
            raise NotFinished(f"{len(left)} objects are still there: {left[0]}")
        if self.scene.opened is not None and self.scene.opened.options.sweep_mode == "quarantine":
            for key in self.expected.gone - bucket.objects.keys():
                found = [each for each in bucket.keys_below(layout.QUARANTINE_PREFIX) if each.endswith(f"/{key}")]
                if self._garbage[key].data not in [bucket.objects[copy].data for copy in found]:
                    raise Violation(f"{key} is gone without a copy in quarantine")


class PurgeWatch(Watch):
    """Checks a command that empties the quarantine."""

    _RECEIPTED: ClassVar = (Outcome.PURGED.value, Outcome.RESTORED.value)

    def __init__(self, scene: Scene, expected: Whole, flow: Flow | None, deletes: bool) -> None:
        super().__init__(scene, expected, flow, deletes)
        self._copies = {key: scene.world.bucket.objects[key].data for key in copies(scene)}

    @staticmethod
    def garbage(scene: Scene) -> Iterable[str]:
        return copies(scene)

    def stage_again(self) -> None:
        stage_moved(self.scene, "again")

    def finish(self) -> None:
        super().finish()
        store, denied = self.scene.store, self.scene.denied
        bucket = self.scene.world.bucket
        kept = bucket.keys_below(layout.QUARANTINE_PREFIX)
        # A copy stays for the next purge if its object is back.
        if left := [key for key in kept if address_of(key) is None or not is_back(bucket, key)]:
            raise NotFinished(f"{len(left)} copies or notes are still in quarantine: {left[0]}")
        back = False
        for key in self._copies.keys() - denied:
            run_id, address = address_of(key) or ("", "")
            rows = receipts.read(store, run_id).to_pylist()
            reported = {
                row["outcome"] for row in rows if row["address"] == address and row["outcome"] in self._RECEIPTED
            }
            there = address in self.scene.world.bucket.objects
            back |= there
            # If an object is back and the answer to its copy's deletion is lost, no receipt names it.
            if (not there and reported != {"purged"}) or (key in kept and "purged" in reported):
                raise Violation(f"receipts of run {run_id} tell of {address}: {reported}")
        if back and across_runs.read_restoration(store) is None:
            raise Violation("something was brought back, and the next run does not know")

    def require_live(self) -> None:
        super().require_live()
        objects, oracle = self.scene.world.bucket.objects, self.scene.world.oracle
        for key, data in self._copies.items():
            _, address = address_of(key) or ("", "")
            held = [objects[each].data for each in (address, key) if each in objects]
            if oracle.reachable(address) and data not in held:
                raise Violation(f"{key} is gone although its address is referenced again")


SWEEP, DRY = settings(True, 24.0, "month"), settings(False, 24.0, "month")
MOVE = SWEEP.model_copy(update={"sweep_mode": "quarantine"})
FOLLOWING = SWEEP.model_copy(update={"full_listing_days": 60.0})
"""A sweep by retention rules builds on the previous one."""
OPTIMIZED = Asked(Flow.OPTIMIZED)
_SETUP = Setup(rules="seed", listing_page=8, delete_limit=2, old_objects=5)
_BY_RULES = replace(_SETUP, retention=True)
RULES = RetentionRules(default_days=5, branches={"alpha": 6})
BEFORE: tuple[tuple[str, tuple[int, ...]], ...] = (
    # Two commits of main: only the first holds an object that was replaced; a tag holds the second.
    ("upload_now", (0, 0, 1, 0)),
    ("upload_now", (0, 1, 2, 1)),
    ("upload_now", (0, 2, 3, 0)),
    ("commit_now", (0, 0, 0)),
    ("upload_now", (0, 0, 4, 1)),
    ("delete", (0, 1)),
    ("commit_now", (0, 2, 0)),
    ("create_tag", (0, 0)),
    # Another branch with a commit of its own; and a commit held only by a tag.
    ("create_branch", (1, 0)),
    ("upload_now", (0, 3, 5, 0)),
    ("commit_now", (0, 3, 1)),
    ("create_branch", (2, 0)),
    ("upload_now", (1, 4, 6, 1)),
    ("commit_now", (1, 0, 0)),
    ("create_tag", (1, 1)),
    ("delete_branch", (1,)),
    # Garbage: replaced before a commit, deleted, reset; one object was a multipart upload.
    ("upload_now", (1, 5, 1, 0)),
    ("upload_now", (1, 5, 2, 1)),
    ("upload_now", (1, 6, 3, 0)),
    ("upload_now", (1, 6, 4, 0)),
    ("gateway_multipart", (1, 7, 5, 0)),
    ("upload_now", (1, 7, 1, 1)),
    ("upload_now", (0, 8, 6, 1)),
    ("upload_now", (0, 9, 2, 0)),
    ("reset_branch", (0,)),
    # Staged: alone, copied by reference, linked, hidden below an equal object of the head, committed and staged again.
    ("upload_now", (0, 6, 5, 1)),
    ("copy", (0, 2, 7, 0)),
    ("link", (1, 8, 3, 0, 1)),
    ("upload_again", (1, 0, 1)),
    ("set_metadata", (1, 2, 1)),
)
LATER: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("upload_now", (1, 9, 1, 0)),
    ("commit_now", (1, 0, 0)),
    ("upload_now", (1, 9, 3, 0)),
    ("upload_now", (1, 9, 4, 1)),
    ("upload_now", (0, 5, 3, 0)),
    ("upload_now", (0, 5, 4, 1)),
    ("upload_now", (0, 5, 5, 1)),
    ("delete", (0, 3)),
)
YOUNG: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("upload_now", (1, 3, 2, 0)),
    ("upload_now", (1, 3, 3, 1)),
    ("upload_now", (1, 4, 1, 1)),
)


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        prepare: events before it.
        run: makes it.
        resume: continues it.
        repeat: makes another one in its place.
        follow: makes a run days later, which deletes the objects that became old enough.
        flow: flow that the report of the run and of its repetition names; None without a report.
        deletes: True if it deletes.
        setup: setup of its world.
        watch: conditions afterwards.
    """

    prepare: Callable[[Scene], object]
    run: Callable[[Scene, Faults], Ended]
    resume: Callable[[Scene, Faults], Ended]
    repeat: Callable[[Scene, Faults], Ended]
    follow: Callable[[Scene, Faults], Ended]
    flow: Flow | None = Flow.CLEAN
    deletes: bool = True
    setup: Setup = _SETUP
    watch: type[Watch] = Watch


def _begin(scene: Scene) -> None:
    """Objects a few days old, seen by a dry run some hours ago."""
    scene.do(BEFORE)
    scene.world.pass_time(60 * HOUR)
    require_well(scene.start(DRY, Faults()))
    scene.world.pass_time(3 * HOUR)


def _young(scene: Scene) -> None:
    _begin(scene)
    scene.do(YOUNG)


def _after_clean(scene: Scene) -> None:
    _begin(scene)
    scene.do(YOUNG)
    require_well(scene.start(SWEEP, Faults()))
    scene.do(LATER)
    scene.world.pass_time(30 * HOUR)
    scene.do(YOUNG)


def _expired(scene: Scene) -> None:
    """Commits of two weeks ago that were replaced a few days later, with rules that keep a few days."""
    scene.do(tuple((name, _on_time(name, numbers)) for name, numbers in BEFORE))
    scene.world.pass_time(3 * DAY)
    scene.do((*LATER, ("commit_now", (0, 0, 0)), ("commit_now", (1, 0, 0))))
    scene.world.pass_time(10 * DAY)
    scene.world.repository.rules = RULES
    require_well(scene.start(DRY, Faults(), Asked(Flow.UNIFIED)))
    scene.world.pass_time(3 * HOUR)
    scene.do(YOUNG)


def _expired_since(scene: Scene) -> None:
    """A run by rules that listed everything, whose commits have expired since."""
    scene.do(tuple((name, _on_time(name, numbers)) for name, numbers in BEFORE))
    scene.world.repository.rules = RULES
    scene.world.pass_time(30 * HOUR)
    require_well(scene.start(FOLLOWING, Faults(), Asked(Flow.UNIFIED)))
    scene.do((*LATER, ("commit_now", (0, 0, 0)), ("commit_now", (1, 0, 0))))
    scene.world.pass_time(10 * DAY)
    scene.do(YOUNG)


def _on_time(name: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Sets the date of commits to the time when they are made."""
    return (numbers[0], 0, 0) if name == "commit_now" else numbers


def _marked(scene: Scene) -> None:
    _young(scene)
    require_well(scene.start(DRY, Faults()))
    scene.completed[cast(Opened, scene.opened).run_id].remove(STEPS[-1])
    scene.world.pass_time(2 * HOUR)


def _moved(scene: Scene) -> None:
    _young(scene)
    require_well(scene.start(MOVE, Faults()))
    scene.world.pass_time(2 * HOUR)


def _approve(scene: Scene, faults: Faults) -> Ended:
    assert scene.opened is not None
    return scene.go_on(DRY.model_copy(update={"approve_run": scene.opened.run_id}), faults)


def _due(scene: Scene) -> None:
    """Two runs moved objects to quarantine long enough ago; one object of each is live again."""
    _expired(scene)
    require_well(scene.start(MOVE, Faults(), _COMMITTED))
    require_well(scene.start(MOVE, Faults()))
    world = scene.world
    world.pass_time((MOVE.quarantine_days + 1) * DAY)
    moved, repository = set(copies(scene).values()), world.repository
    expired = (
        commit_id
        for commit_id, commit in sorted(repository.commits.items())
        if any(entry.address in moved for entry in commit.entries.values())
    )
    repository.new_branch("zeta", next(expired))
    world.oracle.look()
    stage_moved(scene, "back")


def _restored(scene: Scene, faults: Faults) -> Ended:
    return restore(scene, faults, MOVE)


def _purged(scene: Scene, faults: Faults) -> Ended:
    return purge(scene, faults, MOVE)


def _purged_after_a_run(scene: Scene, faults: Faults) -> Ended:
    ended = scene.start(SWEEP, faults)
    return purge(scene, Faults(), MOVE) if ended is Ended.WELL else ended


def _begun(options: CollectionSettings, asked: Asked = ASKED) -> Callable[[Scene, Faults], Ended]:
    return lambda scene, faults: scene.start(options, faults, asked)


def _resumed(options: CollectionSettings, asked: Asked = ASKED) -> Callable[[Scene, Faults], Ended]:
    def resume(scene: Scene, faults: Faults) -> Ended:
        return scene.start(options, faults, asked) if scene.opened is None else scene.go_on(options, faults, asked)

    return resume


_SWEPT, _REPEATED = _begun(SWEEP), _begun(SWEEP, OPTIMIZED)
_COMMITTED, _UNIFIED = Asked(Flow.COMMITTED), Asked(Flow.UNIFIED)
_BY_COMMITTED, _BY_UNIFIED = _begun(SWEEP, _COMMITTED), _begun(SWEEP, _UNIFIED)
_FOLLOWED = _begun(FOLLOWING, _UNIFIED)
KINDS = {
    "clean": Kind(_young, _SWEPT, _resumed(SWEEP), _SWEPT, _SWEPT),
    "dry": Kind(_young, _begun(DRY), _resumed(DRY), _begun(DRY), _SWEPT, deletes=False),
    "optimized": Kind(_after_clean, _REPEATED, _resumed(SWEEP, OPTIMIZED), _REPEATED, _REPEATED, Flow.OPTIMIZED),
    "approved": Kind(_marked, _approve, _approve, _SWEPT, _SWEPT),
    "quarantine": Kind(_young, _begun(MOVE), _resumed(MOVE), _begun(MOVE), _begun(MOVE)),
    "restore": Kind(_moved, _restored, _restored, _SWEPT, _SWEPT, flow=None, deletes=False),
    "purge": Kind(
        *(_due, _purged, _purged, _purged_after_a_run, _BY_UNIFIED),
        flow=None,
        deletes=False,
        setup=_BY_RULES,
        watch=PurgeWatch,
    ),
    "committed": Kind(
        *(_expired, _BY_COMMITTED, _resumed(SWEEP, _COMMITTED), _BY_COMMITTED, _BY_UNIFIED),
        flow=Flow.COMMITTED,
        setup=_BY_RULES,
    ),
    "unified": Kind(
        *(_expired, _BY_UNIFIED, _resumed(SWEEP, _UNIFIED), _BY_UNIFIED, _BY_UNIFIED),
        flow=Flow.UNIFIED,
        setup=_BY_RULES,
    ),
    "following": Kind(
        *(_expired_since, _FOLLOWED, _resumed(FOLLOWING, _UNIFIED), _FOLLOWED, _BY_UNIFIED),
        flow=Flow.UNIFIED,
        setup=_BY_RULES,
    ),
}
