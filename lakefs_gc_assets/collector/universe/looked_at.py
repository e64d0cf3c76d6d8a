"""Everything that a run looks at: what it listed and, by retention rules, what expired since its base run."""

from dataclasses import dataclass
from typing import Any, Generic

from lakefs_gc_assets.collector.engine import Engine, R
from lakefs_gc_assets.collector.frame.kinds import EXPIRED_DF, CommittedFigures, StoredFigures
from lakefs_gc_assets.collector.frame.manifest import FrameFile
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import OrderViolation


@dataclass(frozen=True)
class LookedAt(Generic[R]):
    """The universe of a run, of which nothing is in two frames."""

    engine: Engine[R]
    frames: tuple[StoredFrame[Any], ...]

    def rows(self, *columns: str) -> R:
        """The objects (LISTED), or some of their columns."""
        first, *more = (frame.rows(self.engine, *columns) for frame in self.frames)
        return self.engine.union(first, *more)

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(frame.count for frame in self.frames)

    @property
    def files(self) -> tuple[FrameFile, ...]:
        """The files that they are stored in."""
        return tuple(file for frame in self.frames for file in frame.manifest.files)


def looked_at(
    step: Step[R], listed: StoredFrame[StoredFigures], committed: StoredFrame[CommittedFigures]
) -> LookedAt[R]:
    """What this run looks at.

    Raises OrderViolation where any of it was stored again after `committed_df` was, which may not tell of it.
    """
    if not step.plan.follows_expiry:
        return LookedAt(step.engine, (listed,))
    frames: tuple[StoredFrame[Any], ...] = (listed, step.stored(EXPIRED_DF))
    for frame in frames:
        if committed.manifest.inputs.get(frame.name) != frame.manifest.digest:
            raise OrderViolation(
                f"{frame.name} was made again after {committed.name}, which names it. Materialize {committed.name} "
                "again"
            )
    return LookedAt(step.engine, frames)
