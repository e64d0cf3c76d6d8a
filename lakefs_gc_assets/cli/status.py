"""`lakefs-gc status`: the last runs, the quarantine, and the holder of the lock."""

import json
import sys
from collections.abc import Iterator
from itertools import islice

import click

from lakefs_gc_assets.cli.common import JSON, Target, on_repository, print_answer
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.quarantine.purge import plan_purge
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import CorruptFile, StorageError, counted, one_line


@click.command()
@on_repository
@click.option("--runs", default=10, show_default=True, help="Number of runs to show, newest first.")
@JSON
def status(target: Target, runs: int, as_json: bool) -> None:
    """Shows the last runs of a repository and who holds its lock.

    Exit status 6 if one of them cannot be read: it is named, and the others are shown.
    """
    opened, errors = target.open(to_read=True), list[str]()
    print_answer(as_json, lambda: _described(opened, runs, errors), summarize(opened, runs, errors))
    if errors:
        sys.exit(Status.INCOMPLETE)


def summarize(repository: OpenRepository, runs: int, errors: list[str]) -> Iterator[str]:
    """The lock, the quarantine, and the last runs, newest first, as lines.

    Args:
        errors: receives a line about each part that cannot be read.
    Raises:
        StorageError: runs cannot be listed.
    """
    read_only = ", read-only: nothing in it can become garbage" if repository.facts.read_only else ""
    yield f"{repository.facts.id} at {repository.namespace.uri}{read_only}"
    try:
        holder = lock.holder(repository.store)
        yield f"lock: {holder}" if holder else "lock: free"
    except (CorruptFile, StorageError) as error:
        yield _noted(errors, f"lock: it cannot be read: {error}")
    try:
        quarantine = plan_purge(repository, None)
        for moved in (*quarantine.due, *quarantine.waiting):
            yield f"quarantine: {moved.amount} of run {moved.run_id}, due {quarantine.due_at(moved):%F %T}Z"
        yield from (_noted(errors, line) for line in quarantine.describe_unreadable())
    except StorageError as error:
        yield _noted(errors, f"quarantine: it cannot be read: {error}")
    run_ids = tuple(islice(run_folder.newest_runs(repository.store), runs))
    for run_id in run_ids:
        run_report, why = _report_of(repository, run_id, errors)
        yield f"{run_id}  {_line(run_report) if run_report else why or 'not ended'}"
    if not run_ids:
        yield "no runs yet"


def _noted(errors: list[str], line: str) -> str:
    errors.append(line)
    return line


def _described(repository: OpenRepository, runs: int, errors: list[str]) -> dict[str, object]:
    """The facts of `summarize` for programs, with the whole report of each run. Errors are as there."""
    run_ids = tuple(islice(run_folder.newest_runs(repository.store), runs))
    reports = {run_id: _report_of(repository, run_id, errors) for run_id in run_ids}
    holder, quarantine = None, list[dict[str, object]]()
    try:
        holder = lock.holder(repository.store)
    except (CorruptFile, StorageError) as error:
        errors.append(f"lock: it cannot be read: {error}")
    try:
        planned = plan_purge(repository, None)
        quarantine = planned.described()
        errors.extend(planned.describe_unreadable())
    except StorageError as error:
        errors.append(f"quarantine: it cannot be read: {error}")
    return {
        "repository": repository.facts.id,
        "storage_namespace": repository.namespace.uri,
        "read_only": repository.facts.read_only,
        "lock": holder,
        "quarantine": quarantine,
        "runs": [
            {"run_id": run_id, "report": json.loads(run_report.to_json()) if run_report else None}
            | ({"error": why} if why else {})
            for run_id, (run_report, why) in reports.items()
        ],
        **({"errors": errors} if errors else {}),
    }


def _report_of(repository: OpenRepository, run_id: str, errors: list[str]) -> tuple[Report | None, str | None]:
    """The report of a run, None if there is none or it cannot be read, and the reason if it cannot."""
    try:
        return report.read(repository.store, run_id), None
    except CorruptFile as corrupt:
        why = f"its report cannot be read: {corrupt.file}: {corrupt.check}: {corrupt.detail}"
    except StorageError as error:
        why = f"its report cannot be read: {error}"
    errors.append(f"{run_id}: {why}")
    return None, why


def _line(run_report: Report) -> str:
    kind = "dry run" if run_report.dry_run else "sweep" if run_report.address_limit is None else "erasure"
    if run_report.address_limit is not None:
        kind = f"{kind} of {counted(run_report.address_limit, 'addresses')}"
    start = f"{run_report.started_at:%F %T}Z  {run_report.flow}, {kind}: {run_report.ending.value}"
    if not run_report.counts:
        return f"{start}: {one_line(run_report.error or '')}"
    return f"{start}; {counted(run_report.statistics.candidates or 0, 'candidates')}, {run_report.did}"
