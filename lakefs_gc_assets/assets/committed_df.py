"""The third step: learn which commits are live, read each range that they hold once, and keep the addresses."""

import dagster as dg
from pyspark.sql import DataFrame

from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.assets.step import Step, step
from lakefs_gc_assets.collection import commits, ranges_read
from lakefs_gc_assets.collection.commits import CommitSource, LiveCommits
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.lakefs.ranges import RangeRecord
from lakefs_gc_assets.resources import Collector


def define(graph: Graph) -> dg.AssetsDefinition:
    """The asset of one repository."""

    @graph.asset("committed_df")
    def committed_df(
        context: dg.AssetExecutionContext, collector: Collector, uncommitted_df: StoredFrame
    ) -> StoredFrame:
        with step(context, collector) as run:
            prepared_until = uncommitted_df.manifest.span.ended_at
            repository = run.repository
            live = commits.live_commits(
                repository.api, repository.store, repository.settings, repository.clock, prepared_until, run.log
            )
            records = run.references().range_records(live.metarange_ids)
            figures = {
                "commit_source": live.source.value,
                "commits": live.commits,
                "commits_fetched": live.fetched,
                "metaranges_read": len(live.metarange_ids),
                "ranges_read": len(records) or len(live.files),
                "entries_promised": promised(live, records),
                "heads": live.heads,
            }
            run.log(f"{live.commits:,} commits hold {figures['ranges_read']:,} ranges, by the {live.source.value}")
            stored = run.store(
                "committed_df", addresses_of(run, live, records), (uncommitted_df,), figures, live.started_at
            )
            read = [record.id for record in records] + list(live.files) + list(live.metarange_ids)
            ranges_read.write(repository.store, run.plan.run_id, run.plan.attempt, read)
            return stored

    return committed_df


def addresses_of(run: Step, live: LiveCommits, records: list[RangeRecord]) -> DataFrame:
    """The addresses that live commits hold."""
    if live.source is CommitSource.METADATA_FOLDER:
        return run.references().of_metadata_files(live.files)
    return run.references().committed(records)


def promised(live: LiveCommits, records: list[RangeRecord]) -> int | None:
    """How many entries the metaranges of live commits count; None where no metarange was read."""
    if live.source is CommitSource.METADATA_FOLDER:
        return None
    return sum(record.count for record in records)
