"""`lakefs-gc status`: the last runs, the quarantine, and the holder of the lock."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

import click

from lakefs_gc_assets.cli.common import JSON, Target, on_repository, print_answer
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.quarantine.purge import PurgePlan, plan_purge
from lakefs_gc_assets.collector.records import report, run_folder
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, describe_all
from lakefs_gc_assets.errors import CorruptFile, StorageError, counted, one_line

Part = TypeVar("Part")


@click.command()
@on_repository
@click.option("--runs", default=10, show_default=True, help="Number of runs to show, newest first.")
@JSON
def status(target: Target, runs: int, as_json: bool) -> None:
    """Shows the last runs of a repository and who holds its lock.

    If a part cannot be read, a line gives the reason, the other parts are shown, and the exit status is 6.
    """
    standing = read(target.open(to_read=True), runs, target.loaded.configuration.launch.approvers)
    print_answer(as_json, lambda: _described(standing), describe(standing))
    if standing.errors:
        sys.exit(Status.INCOMPLETE)


@dataclass(frozen=True)
class RepositoryStatus:
    """The lock, the quarantine and the last runs of a repository.

    Attributes:
        holder: description of the lock's holder; None if the lock is free.
        quarantine: content of the quarantine; None if it cannot be read.
        approvals: descriptions of standing approvals, by the kind of work.
        reports: reports by run, newest first; None if the run has not ended, or its report cannot be read.
        unreadable: reasons for unreadable parts, by `lock`, `quarantine`, `standing approvals`, or the id of a run.
    """

    repository: OpenRepository
    holder: str | None
    quarantine: PurgePlan | None
    approvals: Mapping[ApprovedWork, str]
    reports: Mapping[str, Report | None]
    unreadable: Mapping[str, str]

    @property
    def errors(self) -> list[str]:
        """A line about each unreadable part."""
        copies = self.quarantine.describe_unreadable() if self.quarantine else ()
        return [*(f"{part}: {why}" for part, why in self.unreadable.items()), *copies]


def read(repository: OpenRepository, runs: int, approvers: int = 1) -> RepositoryStatus:
    """Reads the lock, the quarantine, the standing approvals and the reports of the newest `runs` runs.

    Raises StorageError if runs cannot be listed.
    """
    unreadable: dict[str, str] = {}

    def read_part(part: str, what: str, read_it: Callable[[], Part]) -> Part | None:
        try:
            return read_it()
        except CorruptFile as corrupt:
            unreadable[part] = f"{what} cannot be read: {corrupt.file}: {corrupt.check}: {corrupt.detail}"
        except StorageError as error:
            unreadable[part] = f"{what} cannot be read: {error}"
        return None

    store = repository.store
    run_ids = islice(run_folder.newest_runs(store), runs)
    reports = {run_id: read_part(run_id, "its report", partial(report.read, store, run_id)) for run_id in run_ids}
    holder = read_part("lock", "it", partial(lock.holder, store))
    quarantine = read_part("quarantine", "it", partial(plan_purge, repository, None))
    approvals = read_part("standing approvals", "they", lambda: dict(describe_all(repository, approvers)))
    return RepositoryStatus(repository, holder, quarantine, approvals or {}, reports, unreadable)


def describe(standing: RepositoryStatus) -> Iterator[str]:
    """The lock, the quarantine, and the last runs, newest first, as lines."""
    repository, unreadable = standing.repository, standing.unreadable
    read_only = ", read-only: nothing in it can become garbage" if repository.facts.read_only else ""
    yield f"{repository.facts.id} at {repository.namespace.uri}{read_only}"
    yield f"lock: {unreadable.get('lock') or standing.holder or 'free'}"
    if quarantine := standing.quarantine:
        for moved in (*quarantine.due, *quarantine.waiting):
            yield f"quarantine: {moved.amount} of run {moved.run_id}, due {quarantine.due_at(moved):%F %T}Z"
        yield from quarantine.describe_unreadable()
    else:
        yield f"quarantine: {unreadable['quarantine']}"
    yield from (f"standing approval for {kind}: {text}" for kind, text in standing.approvals.items())
    if why := unreadable.get("standing approvals"):
        yield f"standing approvals: {why}"
    for run_id, run_report in standing.reports.items():
        yield f"{run_id}  {_line(run_report) if run_report else unreadable.get(run_id, 'not ended')}"
    if not standing.reports:
        yield "no runs yet"


def _described(standing: RepositoryStatus) -> dict[str, object]:
    """The facts of `describe` for programs, with whole reports."""
    return {
        "repository": standing.repository.facts.id,
        "storage_namespace": standing.repository.namespace.uri,
        "read_only": standing.repository.facts.read_only,
        "lock": standing.holder,
        "quarantine": standing.quarantine.described() if standing.quarantine else [],
        "standing_approvals": standing.approvals,
        "runs": [
            {"run_id": run_id, "report": json.loads(run_report.to_json()) if run_report else None}
            | ({"error": standing.unreadable[run_id]} if run_id in standing.unreadable else {})
            for run_id, run_report in standing.reports.items()
        ],
        **({"errors": standing.errors} if standing.errors else {}),
    }


def _line(run_report: Report) -> str:
    kind = "dry run" if run_report.dry_run else "sweep" if run_report.address_limit is None else "erasure"
    if run_report.address_limit is not None:
        kind = f"{kind} of {counted(run_report.address_limit, 'addresses')}"
    start = f"{run_report.started_at:%F %T}Z  {run_report.flow}, {kind}: {run_report.ending.value}"
    if not run_report.counts:
        return f"{start}: {one_line(run_report.error or '')}"
    return f"{start}; {counted(run_report.statistics.candidates or 0, 'candidates')}, {run_report.did}"
