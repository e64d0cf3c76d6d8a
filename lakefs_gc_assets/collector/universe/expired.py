"""The universe of a run of the flow `committed`, which lists nothing: the objects that expired commits hold."""

from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.history import deleted_before
from lakefs_gc_assets.collector.live.current import define_live
from lakefs_gc_assets.collector.live.noted_metaranges import find_ranges
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.step import Step


def find_expired(step: Step[R]) -> R:
    """Finds the objects (LISTED) of ranges that only expired commits have, without those that earlier runs deleted.

    An active commit may hold such an object through another range: the subtraction finds that out later.
    """
    # No uncommitted data was prepared yet that commits must be read after, so there is no need to wait.
    found = define_live(step, prepared_until=step.plan.cutoff)
    active = find_ranges(step, step.repository, found.live.metarange_ids).ids
    expired = find_ranges(step, step.repository, found.expired_metaranges).without(active)
    step.log(f"{len(found.expired_metaranges):,} expired metaranges have {len(expired):,} ranges of their own")
    return step.engine.without_exactly(References.from_step(step).entries(expired), deleted_before(step))
