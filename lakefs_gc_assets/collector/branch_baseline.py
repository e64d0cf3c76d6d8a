"""How many branches a repository had, for the guard that compares them with what is left.

The previous run is not the one to compare with: a run that the guard refused leaves no count, and a dry run counts what
is left although nobody has agreed to the loss. Only a sweep that succeeded has passed the guard, or a setting let it.
"""

from lakefs_gc_assets.collector import report as reports
from lakefs_gc_assets.collector.earlier_runs import EarlierRuns, SettledRun
from lakefs_gc_assets.collector.stored import records
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore


def branch_baseline(store: ObjectStore, run_id: str) -> int | None:
    """The most branches that any run counted since the newest successful sweep, that one included.

    Runs that failed count for nothing, however many there were; dry runs may raise the number and never lower it.
    Where no run swept yet, it is the most that any dry run counted. Goes by the index of runs and, where that does
    not name one since that sweep, by its report; one of another version of the program tells nothing.

    Args:
        run_id: only runs older than it are looked at.
    Returns:
        Branches with a commit that holds something; None where no earlier run counted them.
    Raises:
        CorruptFile: a report was damaged, so that the number cannot be known.
        StorageError: the store cannot be asked.
    """
    most: int | None = None
    runs = EarlierRuns(store)
    for earlier in runs.newest_first():
        if earlier <= run_id:
            continue
        branches, swept = _counted(store, earlier, runs.settled(earlier))
        if branches is None:
            continue
        most = branches if most is None else max(most, branches)
        if swept:
            break
    return most


def _counted(store: ObjectStore, run_id: str, settled: SettledRun | None) -> tuple[int | None, bool]:
    """How many branches a run counted, None where it did not, and whether it swept and succeeded."""
    if settled is not None:
        return settled.branches, settled.swept
    try:
        report = reports.read(store, run_id)
    except CorruptFile as corrupt:
        if corrupt.check == records.VERSION_CHECK:
            return None, False
        raise
    return (
        (None, False) if report is None else (report.counts.get("branches"), report.is_complete and not report.dry_run)
    )
