"""What an optimized run takes over from the run that it builds on."""

from lakefs_gc_assets.collector.engine import R
from lakefs_gc_assets.collector.frame.kinds import CARRIED_COMMITTED_DF, OPEN_DF, Frame, NoFigures
from lakefs_gc_assets.collector.incremental.inheritance import Inheritance
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CorruptFile, OrderViolation


class Inherited(Inheritance):
    """An earlier run's report, carry and frames.

    Raises CorruptFile where a file is not the one that the report names.
    """

    def open_objects(self, step: Step[R]) -> R:
        """Objects that wait (LISTED)."""
        return self._rows(step, OPEN_DF, self.carry.open_digest)

    def committed(self, step: Step[R]) -> R:
        """Committed addresses outside of settled slices (LIVE)."""
        return self._rows(step, CARRIED_COMMITTED_DF, self.carry.committed_digest)

    def _rows(self, step: Step[R], kind: Frame[NoFigures], digest: str) -> R:
        frame = step.stored_of(self.run_id, kind)
        if frame.manifest.digest != digest:
            raise CorruptFile(
                frame.uri, "digest", f"{kind.name} is not the frame that the report of run {self.run_id} names"
            )
        return frame.rows(step.engine)


def open_inherited(step: Step[R]) -> Inherited | None:
    """What an optimized run builds on; None for other flows.

    Raises OrderViolation where that run was made again since: parts of what its two attempts left do not fit.
    """
    if step.plan.predecessor is None:
        return None
    found = Inherited(step.repository.store, step.plan.predecessor)
    if found.carry.attempt != step.plan.predecessor_attempt:
        raise OrderViolation(
            f"run {found.run_id}, which this one builds on, was made again since this one began: open a new run"
        )
    return found
