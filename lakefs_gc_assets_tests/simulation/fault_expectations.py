"""Conditions after a run in which a call went wrong, and at the end."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.records import across_runs
from lakefs_gc_assets.collector.records.outcomes import MULTIPART_ETAG, Outcome
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.simulation.clocks import MINUTE
from lakefs_gc_assets_tests.simulation.commands import copies, stage_moved
from lakefs_gc_assets_tests.simulation.failing_calls import Fault, Faults
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.quarantine import address_of, is_back
from lakefs_gc_assets_tests.simulation.scenes import Ended, NotFinished, Scene

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
