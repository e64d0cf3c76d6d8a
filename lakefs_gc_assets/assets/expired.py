"""The universe of a run by retention rules that lists nothing: what only expired commits hold."""

from pyspark.sql import DataFrame

from lakefs_gc_assets.assets.history import deleted_before
from lakefs_gc_assets.assets.step import Step
from lakefs_gc_assets.collection import retention
from lakefs_gc_assets.sources.subtraction import without_exactly


def objects(run: Step) -> DataFrame:
    """What ranges that no active commit has hold (LISTED), but for what earlier runs deleted.

    Whether an active commit holds it through another range is found out later, by the subtraction.
    """
    repository, settings = run.repository, run.repository.settings
    found = retention.live_definition(
        repository.api,
        repository.store,
        repository.namespace,
        settings,
        repository.clock,
        run.plan.earliest_clock,
        # Nothing was prepared yet that commits must be read after, so there is no need to wait.
        run.plan.cutoff,
        run.log,
    )
    references = run.references()
    active = {record.id for record in references.range_records(found.live.metarange_ids)}
    expired = [record for record in references.range_records(found.expired_metaranges) if record.id not in active]
    run.log(f"{len(found.expired_metaranges):,} expired metaranges have {len(expired):,} ranges of their own")
    return without_exactly(references.entries(expired), deleted_before(run))
