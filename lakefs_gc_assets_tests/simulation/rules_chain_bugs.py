"""Seeded bugs of runs by retention rules that build on each other: other ways to look at what expired alone.

docs/retention.md names them. In a run that reads all that is live, those that compare with less than that are one and
the same: to take for known what was read before. That what expired is not learnt from commits that a server names shows
only where a server forgets commits; simulated ones forget none (`collector/universe/test_expired_since.py`).
"""

from collections.abc import Iterable, Sequence, Set
from typing import Any

from lakefs_gc_assets.collector import run
from lakefs_gc_assets.collector.arrow_engine import ArrowEngine, ArrowRows
from lakefs_gc_assets.collector.frame.kinds import COMMITTED_DF, NoFigures
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.incremental import leaving, ranges_read, tracked_ranges
from lakefs_gc_assets.collector.incremental.base_checkpoint import BaseCheckpoint, open_base_checkpoint
from lakefs_gc_assets.collector.live.current import Committed, ask_committed
from lakefs_gc_assets.collector.run import look_around, track
from lakefs_gc_assets.collector.stored.id_set import IdSet
from lakefs_gc_assets.collector.universe.expired_since import store_expired
from lakefs_gc_assets_tests.simulation.bug import ArrowStep, Bug, Replacement, replaced, without_unnamed

_UNCHECKED: Replacement = (leaving.CheckpointCounts, "contradiction", None)


def _read_once(self: BaseCheckpoint) -> IdSet:
    """Takes ranges for known that were live before: what they hold is not asked for again."""
    return self.tracked.ids


def _taken_over(self: BaseCheckpoint, step: ArrowStep) -> ArrowRows:
    """Takes over what was held at the base run, as optimized runs do."""
    return step.stored_of(self.run_id, COMMITTED_DF).rows(step.engine)


def _written_whole(self: BaseCheckpoint, run_id: str, attempt: str, known: Set[str], new: Iterable[str]) -> str:
    return ranges_read.write(self._store, run_id, attempt, new)


def _only_new(step: ArrowStep, found: Committed) -> str | None:
    """Tracks what was not live before."""
    sha256, before = track(step, found), open_base_checkpoint(step)
    if sha256 is None or before is None:
        return sha256
    new = found.records.without(_read_once(before))
    return tracked_ranges.write(step.repository.store, step.plan.run_id, step.plan.attempt, new)


def _nothing_pending(engine: ArrowEngine, unheld: ArrowRows, *more: Any) -> ArrowRows:
    return engine.where(unheld, lambda rows: rows.column("address").is_null())


def _first_look() -> Sequence[Replacement]:
    """Takes for expired what was so when the run began."""
    then: dict[str, Set[str]] = {}

    def look(step: ArrowStep) -> Any:
        if step.plan.follows_expiry:
            then[step.plan.run_id] = ask_committed(step, step.plan.cutoff, frozenset()).ids
        return look_around(step)

    def store(step: ArrowStep, before: BaseCheckpoint, live: Set[str]) -> StoredFrame[NoFigures]:
        return store_expired(step, before, then[step.plan.run_id])

    return (run, "look_around", look), (run, "store_expired", store)


RULES_CHAIN_BUGS: dict[str, Bug] = {
    "ranges that were live before taken for read": without_unnamed(
        replaced((BaseCheckpoint, "read_ids", property(_read_once)))
    ),
    "what was live before taken over": replaced(
        (BaseCheckpoint, "committed", _taken_over), (BaseCheckpoint, "add_read_ids", _written_whole)
    ),
    "only new ranges tracked": replaced((run, "track", _only_new)),
    "nothing pending by rules": replaced((leaving, "select_pending", _nothing_pending), _UNCHECKED),
    "expired as it was when the run began": Bug(_first_look),
}
"""By name."""
