"""How many branches a repository had, for the guard that compares them with what is left.

The previous run is not the one to compare with: a run that the guard refused leaves no count, and a dry run counts what
is left although nobody has agreed to the loss. Only a sweep that succeeded has passed the guard, or a setting let it.
"""

from lakefs_gc_assets.collector.earlier_runs import EarlierRuns, SettledRun
from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.kinds import COMMITTED_DF, DELETED_REPORT
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.errors import CorruptFile, LogLine, OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore


def branch_baseline(store: ObjectStore, run_id: str, repository: str, warn: LogLine) -> int | None:
    """The most branches that any run of a repository counted since its newest successful sweep, that one included.

    Runs that failed count for nothing, however many there were; dry runs may raise the number and never lower it.
    Where no run swept yet, it is the most that any dry run counted. Goes by `count_branches`; a run of which
    nothing can be read is passed over, and older runs count then as well.

    Args:
        run_id: only runs older than it are looked at.
        repository: its id; runs of others that share its storage namespace do not count.
        warn: receives a warning for each run whose report cannot be read.
    Returns:
        Branches with a commit that holds something; None where no earlier run counted them.
    Raises:
        StorageError: the store cannot be asked.
    """
    most: int | None = None
    runs = EarlierRuns(store)
    for earlier in runs.newest_first():
        if earlier <= run_id or not runs.is_of(earlier, repository):
            continue
        branches, swept = count_branches(store, earlier, runs.settled(earlier), warn)
        if branches is None:
            continue
        most = branches if most is None else max(most, branches)
        if swept:
            break
    return most


def count_branches(
    store: ObjectStore, run_id: str, settled: SettledRun | None, warn: LogLine
) -> tuple[int | None, bool]:
    """How many branches a run counted, None where it did not or nobody knows, and whether it swept and succeeded.

    The index of runs tells it, else the run's report. Where the report cannot be read or is gone, the manifests of its
    frames do, as far as the run came to its end.

    Args:
        settled: the index's facts about the run.
        warn: receives a warning where the report cannot be read.
    """
    if settled is not None:
        return settled.branches, settled.swept
    try:
        report = reports.read(store, run_id)
    except CorruptFile as corrupt:
        report = None
        warn(f"how many branches run {run_id} counted is not in its report, which cannot be read: {corrupt}")
    if report is not None:
        return report.counts.get("branches"), report.is_complete and not report.dry_run
    try:
        # Stored right before the report, when every guard had passed.
        ended, committed = manifests.read(store, run_id, DELETED_REPORT), manifests.read(store, run_id, COMMITTED_DF)
    except (OrderViolation, CorruptFile):
        return None, False
    if ended.span.attempt != committed.span.attempt:
        return None, False
    return len(committed.figures.heads), ended.figures.swept
