"""The asset `repository_check`: the result of `lakefs-gc fsck` for a repository.

It has no partitions, so Dagster plots its numbers over time. It is independent of runs: it takes no lock, deletes
nothing, and no schedule launches it. Its asset check fails while anything is missing or wrong.
"""

from collections import Counter
from typing import Any

import dagster as dg
from pydantic import Field

from lakefs_gc_assets.collector.survey import Finding
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import history
from lakefs_gc_assets.defs.history import CheckVerdict
from lakefs_gc_assets.defs.jobs import one_op_job
from lakefs_gc_assets.defs.pages import bullets
from lakefs_gc_assets.defs.partitions import Names, newest_metadata
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import Additions
from lakefs_gc_assets.errors import LogLine
from lakefs_gc_assets.extensions.check import fsck
from lakefs_gc_assets.extensions.check.fsck import EVERYTHING, Checkup
from lakefs_gc_assets.spark.faults import errors_of_spark

JOB = "fsck"
NAME = "repository_check"
IS_WHOLE = "repository_is_whole"
_NOT_CHECKED = "the job fsck has not checked it yet"
_SHOWN = 100


class FsckConfig(dg.Config):
    """Checks beside those of existence and size."""

    deep: int = Field(
        default=0, ge=-1, description="Objects whose content is read, chosen at random; -1 for all, 0 for none."
    )
    every_commit: bool = Field(default=False, description="Also check commits that retention rules let expire.")


def check_now(collector: Collector, note: LogLine, every_commit: bool, deep: int) -> Checkup:
    """Checks a repository on Spark. Does not wait, since nothing will be deleted.

    Args:
        note: receives log lines.
        every_commit, deep: as for `fsck.check`.
    Raises:
        CollectionError: as `fsck.check`, also if a Spark worker raised it.
    """
    opened = collector.open(to_read=True).dumping_at_once()
    with errors_of_spark():
        return fsck.check(opened, collector.engine(opened.settings), note, every_commit=every_commit, deep=deep)


def define(names: Names, loaded: Loaded) -> Additions:
    """Definitions of checks for a repository."""
    return Additions(assets=[check_asset(names)], checks=[define_check(names)], jobs=[fsck_job(names)])


def check_asset(names: Names) -> dg.AssetSpec:
    """The asset of one repository, which the job `fsck` reports."""
    return dg.AssetSpec(
        key=names.asset(NAME),
        description=f"State of {names.repository}: it is whole if each object that live commits, branches and tags "
        f"need is stored with its size, and metadata can be read. Launch the job {names.qualified(JOB)} to see it "
        "here. The job deletes nothing, takes no lock, and may run beside a collection.",
        kinds={"lakefs", "pyspark"},
    )


def define_check(names: Names) -> dg.AssetChecksDefinition:
    """The asset's check, which the job `fsck` evaluates; evaluated alone, it repeats the newest verdict."""

    def judge(instance: dg.DagsterInstance) -> CheckVerdict:
        shown = newest_metadata(instance, names.asset(NAME))
        return (
            CheckVerdict(not shown["is_damaged"], str(shown["verdict"])) if shown else CheckVerdict(True, _NOT_CHECKED)
        )

    return history.define_check(names, NAME, IS_WHOLE, "Nothing that is needed is missing or wrong.", judge)


def fsck_job(names: Names) -> dg.JobDefinition:
    """The job that checks a repository, and reports it as a materialization of the asset and an evaluation."""
    description = (
        f"Checks whether {names.repository} is whole: each object that live commits, branches and tags need is in the "
        "store with its size, and metadata can be read. Deletes nothing."
    )

    @one_op_job(names, JOB, NAME, FsckConfig, description, in_pool=False)
    def repository_check(context: dg.OpExecutionContext, collector: Collector, config: FsckConfig) -> None:
        """Checks the repository."""
        deep = EVERYTHING if config.deep < 0 else config.deep
        checkup = check_now(collector, context.log.info, config.every_commit, deep)
        context.log_event(dg.AssetMaterialization(names.asset(NAME), metadata=described(checkup)))
        verdict = CheckVerdict(not checkup.is_damaged, checkup.verdict)
        history.report_check(context.instance, names, NAME, IS_WHOLE, verdict)

    return repository_check


def described(checkup: Checkup) -> dict[str, Any]:
    """Metadata of a check for the UI: numbers, which are plotted, and the findings."""
    counts = Counter(finding.kind for finding in checkup.findings)
    return {
        "verdict": checkup.verdict,
        "is_damaged": checkup.is_damaged,
        "findings": len(checkup.findings),
        **{str(kind).replace(" ", "_"): counts[kind] for kind in sorted(counts)},
        "commits": checkup.commits,
        "ranges": checkup.ranges,
        "entries": checkup.entries,
        "contents_read": checkup.contents_read,
        "contents_without_checksum": checkup.contents_without_checksum,
        **({"what_is_wrong": _list(checkup.findings)} if checkup.findings else {}),
        **({"not_checked": bullets(checkup.unchecked)} if checkup.unchecked else {}),
    }


def _list(findings: tuple[Finding, ...]) -> dg.MarkdownMetadataValue:
    lines = tuple(
        f"{finding.kind}: {finding.address}: {finding.detail}. {finding.remedy}. " + "; ".join(map(str, finding.places))
        for finding in findings[:_SHOWN]
    )
    more = (f"and {len(findings) - _SHOWN:,} more: lakefs-gc fsck",) if len(findings) > _SHOWN else ()
    return bullets(lines + more)
