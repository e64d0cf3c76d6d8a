"""The third step: learn which commits are live, read each range that they hold once, and keep the addresses.

An optimized run reads only ranges that no run before it has read, and takes over what those held.
"""

from functools import partial
from typing import Any

import dagster as dg

from lakefs_gc_assets.assets.carrying import inherited
from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.assets.live import Committed
from lakefs_gc_assets.assets.step import Step, step
from lakefs_gc_assets.collection import ranges_read, report
from lakefs_gc_assets.collection.retention import LiveDefinition
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.resources import Collector


def define(graph: Graph) -> dg.AssetsDefinition:
    """The asset of one repository."""

    @graph.asset("committed_df")
    def committed_df(
        context: dg.AssetExecutionContext, collector: Collector, uncommitted_df: StoredFrame
    ) -> StoredFrame:
        with step(context, collector) as run:
            before = inherited(run)
            known = before.read_ids if before else frozenset()
            found = Committed.ask(run, uncommitted_df.manifest.span.ended_at, known)
            live = found.own
            if before and before.report.commit_source != found.source:
                raise OrderViolation(
                    f"commits come from the {found.source}; in run {before.run_id}, which this one builds on, "
                    f"they came from the {before.report.commit_source}: open a clean run"
                )
            figures = {
                "commit_source": found.source,
                "commits": live.commits,
                "commits_fetched": live.fetched,
                "metaranges_read": len(found.unread[0].metarange_ids),
                "ranges_read": found.ranges,
                "entries_promised": found.unread[0].promised,
                "heads": live.heads,
                "sealed": dict(live.sealed),
                "branches_before": branches_before(run),
                **(by_rules(found.definition) if found.definition else {}),
            }
            run.log(f"{live.commits:,} commits, {figures['ranges_read']:,} ranges to read, by the {found.source}")
            addresses, count = found.addresses(run), found.rows
            if before:
                addresses.append(before.committed())
                count += before.carry.committed
            # Ids and addresses belong together: a recheck skips what these ids name.
            ids = known | found.ids
            figures["read_sha256"] = ranges_read.write(run.repository.store, run.plan.run_id, run.plan.attempt, ids)
            store = partial(run.store_distinct, "committed_df", addresses, count)
            return run.store("committed_df", None, (uncommitted_df,), figures, live.started_at, further=store)

    return committed_df


def by_rules(definition: LiveDefinition) -> dict[str, Any]:
    """What retention rules kept, for the reports and the UI."""
    return {
        "retention": definition.counts,
        "retention_rules": definition.rules_digest,
        "retention_warnings": definition.warnings,
        "retention_guards": tuple((guard.guard, guard.figures, guard.lifted_by) for guard in definition.guards),
        "retention_differences": "\n".join(str(difference) for difference in definition.differences),
    }


def branches_before(run: Step) -> int | None:
    """How many branches the run before had; None where it did not come that far, or there was none."""
    if run.plan.previous_run is None:
        return None
    earlier = report.read(run.repository.store, run.plan.previous_run)
    return earlier.counts.get("branches") if earlier else None
