"""The third step: learn which commits are live, read each range that they hold once, and keep the addresses.

An optimized run reads only ranges that no run before it has read, and takes over what those held.
"""

from dataclasses import dataclass

import dagster as dg
from pyspark.sql import DataFrame

from lakefs_gc_assets.assets.carrying import inherited
from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.assets.step import Step, step
from lakefs_gc_assets.collection import commits, ranges_read
from lakefs_gc_assets.collection.commits import CommitSource, LiveCommits
from lakefs_gc_assets.errors import OrderViolation
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
            before = inherited(run)
            known = before.read_ids if before else frozenset()
            if before and before.report.commit_source != live.source.value:
                raise OrderViolation(
                    f"commits come from the {live.source.value}; in run {before.run_id}, which this one builds on, "
                    f"they came from the {before.report.commit_source}: open a clean run"
                )
            unread = Unread.of(run, live, known)
            figures = {
                "commit_source": live.source.value,
                "commits": live.commits,
                "commits_fetched": live.fetched,
                "metaranges_read": len(unread.metarange_ids),
                "ranges_read": len(unread.records) or len(unread.files),
                "entries_promised": unread.promised,
                "heads": live.heads,
            }
            run.log(f"{live.commits:,} commits, {figures['ranges_read']:,} ranges to read, by the {live.source.value}")
            addresses = unread.addresses(run)
            if before:
                addresses = addresses.unionByName(before.committed())
            stored = run.store("committed_df", addresses, (uncommitted_df,), figures, live.started_at)
            ranges_read.write(repository.store, run.plan.run_id, run.plan.attempt, known | unread.ids)
            return stored

    return committed_df


@dataclass(frozen=True, slots=True)
class Unread:
    """What of the live commits was not read before.

    Attributes:
        metarange_ids: metaranges, where commits are known.
        records: their ranges that were not read before.
        files: metadata files, with the fallback.
    """

    source: CommitSource
    metarange_ids: tuple[str, ...]
    records: tuple[RangeRecord, ...]
    files: tuple[str, ...]

    @classmethod
    def of(cls, run: Step, live: LiveCommits, known: frozenset[str]) -> "Unread":
        """Reads the metaranges that are not among the known ids."""
        metarange_ids = tuple(name for name in live.metarange_ids if name not in known)
        records = run.references().range_records(metarange_ids)
        return cls(
            live.source,
            metarange_ids,
            tuple(record for record in records if record.id not in known),
            tuple(name for name in live.files if name not in known),
        )

    @property
    def ids(self) -> frozenset[str]:
        """Ids of everything that is read."""
        return frozenset([*self.metarange_ids, *self.files, *(record.id for record in self.records)])

    @property
    def promised(self) -> int | None:
        """How many entries the metaranges count; None where none is read."""
        if self.source is CommitSource.METADATA_FOLDER:
            return None
        return sum(record.count for record in self.records)

    def addresses(self, run: Step) -> DataFrame:
        """The addresses (LIVE)."""
        if self.source is CommitSource.METADATA_FOLDER:
            return run.references().of_metadata_files(self.files)
        return run.references().committed(self.records)
