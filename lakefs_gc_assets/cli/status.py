"""`lakefs-gc status`: the last runs, what is in quarantine, and who holds the lock."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import CONFIG, JSON, REPOSITORY, answer, loaded_configuration, open_collector
from lakefs_gc_assets.collector import lock
from lakefs_gc_assets.collector.amount import size
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.defs import maintenance
from lakefs_gc_assets.defs.running import one_line
from lakefs_gc_assets.errors import CorruptFile


@click.command()
@CONFIG
@REPOSITORY
@click.option("--runs", default=10, show_default=True, help="How many runs to show, newest first.")
@JSON
def status(file: Path | None, repository: str | None, runs: int, as_json: bool) -> None:
    """Shows the last runs of a repository and who holds its lock."""
    opened = open_collector(loaded_configuration(file, repository)).open_to_read()
    if as_json:
        answer(_described(opened, runs))
        return
    for line in summarize(opened, runs):
        click.echo(line)


def summarize(repository: OpenRepository, runs: int) -> Iterator[str]:
    """The lock, the quarantine, and the last runs, newest first, as lines. Raises CollectionError."""
    read_only = ", read-only: nothing in it can become garbage" if repository.facts.read_only else ""
    yield f"{repository.facts.id} at {repository.namespace.uri}{read_only}"
    holder = lock.holder(repository.store)
    yield f"lock: {holder}" if holder else "lock: free"
    quarantine = maintenance.plan_purge(repository, None)
    for moved in (*quarantine.due, *quarantine.waiting):
        there = f"{moved.copies.num_rows:,} objects, {size(moved.size)}"
        yield f"quarantine: {there} of run {moved.run_id}, due {quarantine.due_at(moved):%F %T}Z"
    yield from quarantine.describe_unreadable()
    run_ids = tuple(islice(run_folder.newest_runs(repository.store), runs))
    for run_id in run_ids:
        found, error = _report_of(repository, run_id)
        yield f"{run_id}  {_line(found) if found else error or 'not ended'}"
    if not run_ids:
        yield "no runs yet"


def _described(repository: OpenRepository, runs: int) -> dict[str, object]:
    """What `summarize` says, with the whole report of each run. Raises CollectionError."""
    run_ids = tuple(islice(run_folder.newest_runs(repository.store), runs))
    reports = {run_id: _report_of(repository, run_id) for run_id in run_ids}
    return {
        "repository": repository.facts.id,
        "storage_namespace": repository.namespace.uri,
        "read_only": repository.facts.read_only,
        "lock": lock.holder(repository.store),
        "quarantine": maintenance.plan_purge(repository, None).described(),
        "runs": [
            {"run_id": run_id, "report": json.loads(found.to_json()) if found else None}
            | ({"error": error} if error else {})
            for run_id, (found, error) in reports.items()
        ],
    }


def _report_of(repository: OpenRepository, run_id: str) -> tuple[Report | None, str | None]:
    """The report of a run, None where there is none or it cannot be read, and why it cannot."""
    try:
        return report.read(repository.store, run_id), None
    except CorruptFile as corrupt:
        return None, f"its report cannot be read: {corrupt.file}: {corrupt.check}: {corrupt.detail}"


def _line(found: Report) -> str:
    kind = "dry run" if found.dry_run else "sweep"
    start = f"{found.started_at:%F %T}Z  {found.flow}, {kind}: {found.ending.value}"
    if not found.counts:
        return f"{start}: {one_line(found.error or '')}"
    return f"{start}; {found.counts['candidates']:,} candidates, {found.did}"
