"""The universe of a run by retention rules that lists nothing: what only expired commits hold."""

from lakefs_gc_assets.collector.engine import R
from lakefs_gc_assets.collector.history import deleted_before
from lakefs_gc_assets.collector.live.current import define_live
from lakefs_gc_assets.collector.step import Step


def find_expired(step: Step[R]) -> R:
    """What ranges that no active commit has hold (LISTED), but for what earlier runs deleted.

    Whether an active commit holds it through another range is found out later, by the subtraction.
    """
    # Nothing was prepared yet that commits must be read after, so there is no need to wait.
    found = define_live(step, prepared_until=step.plan.cutoff)
    references = step.references()
    active = {record.id for record in references.range_records(found.live.metarange_ids)}
    expired = [record for record in references.range_records(found.expired_metaranges) if record.id not in active]
    step.log(f"{len(found.expired_metaranges):,} expired metaranges have {len(expired):,} ranges of their own")
    return step.engine.without_exactly(references.entries(expired), deleted_before(step))
