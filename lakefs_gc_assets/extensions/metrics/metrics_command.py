"""`lakefs-gc metrics`: the newest figures of repositories, for Prometheus."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import (
    CONFIG,
    JSON,
    METRICS_PREFIX,
    Sample,
    format_samples,
    loaded_configurations,
    open_repository,
    print_answer,
    readable_report,
    show_progress,
)
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.quarantine.purge import plan_purge
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.figures import ADDRESSES, BYTES, OBJECTS
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError, ConfigurationError

_MAX_RUNS = 200

HELP = {
    "last_run_timestamp_seconds": "End of the newest run with a report. This and the figures below ignore runs limited "
    "to addresses or windows, and interrupted dry runs.",
    "last_run_success": "1 if it finished, every deletion was accepted, and no earlier run lost an object; else 0.",
    "last_run_duration_seconds": "Duration of its steps, waits included; no time between steps.",
    "last_run_step_duration_seconds": "Working time of each step.",
    "last_run_step_wait_seconds": "Time that each step waited for safety; 0 without a wait.",
    "last_run_objects": "Objects or addresses of the newest finished run, by kind, if known.",
    "last_run_bytes": "Their bytes.",
    "last_run_class_objects": "Objects of the newest finished run, by kind and storage class.",
    "last_run_class_bytes": "Their bytes.",
    "last_run_kept_objects": "Unreferenced objects that the run kept, by reason.",
    "stored_objects": "Stored objects known to the run.",
    "last_sweep_timestamp_seconds": "End of the newest successful sweep.",
    "quarantine_objects": "Objects in quarantine.",
    "quarantine_bytes": "Their bytes.",
}


@click.command()
@CONFIG
@JSON
def metrics(file: Path | None, as_json: bool) -> None:
    """Prints the newest figures of each repository in Prometheus' text format.

    For the textfile collector of the node exporter: write the output to a new file, then move it over the old one. If a
    repository or its quarantine cannot be measured, a line on standard error names it, the other figures are printed,
    and the exit status is 6.
    """
    samples: list[Sample] = []
    failed = False
    configurations = loaded_configurations(file)
    if not configurations:
        raise ConfigurationError("the configuration lists no repository, so there are no figures of runs")
    for loaded in configurations:
        label = loaded.configuration.label
        try:
            gaps = list[str]()
            measured = list(measure(open_repository(loaded, to_read=True), gaps))
        except CollectionError as error:
            failed = True
            show_progress(f"no figures of {label}: {error}")
            continue
        failed = failed or bool(gaps)
        for gap in gaps:
            show_progress(f"figures of {label} are incomplete: {gap}")
        samples += [(name, {"repository": label, **labels}, value) for name, labels, value in measured]
    encoded = [{"name": METRICS_PREFIX + name, "labels": labels, "value": value} for name, labels, value in samples]
    print_answer(as_json, lambda: encoded, format_samples(samples, HELP))
    if failed:
        sys.exit(Status.INCOMPLETE)


def measure(repository: OpenRepository, gaps: list[str]) -> Iterator[Sample]:
    """The samples of a repository. Raises CollectionError.

    Args:
        gaps: receives a line about each run whose copies in quarantine cannot be counted.
    """
    store = repository.store
    run_ids = islice(run_folder.newest_runs(store), _MAX_RUNS)
    reports = [
        run_report
        for run_id in run_ids
        if (run_report := readable_report(store, run_id)) is not None and not run_report.is_partial
    ]
    newest = next((run_report for run_report in reports if not run_report.was_broken_off), None)
    if newest is not None:
        yield "last_run_timestamp_seconds", {}, newest.ended_at.timestamp()
        yield "last_run_success", {}, float(newest.success)
    ended = next((run_report for run_report in reports if run_report.ending is not Ending.FAILED), None)
    if ended is not None:
        yield from _measure_run(ended)
    swept = next((run_report for run_report in reports if run_report.is_complete and not run_report.dry_run), None)
    if swept is not None:
        yield "last_sweep_timestamp_seconds", {}, swept.ended_at.timestamp()
    quarantine = plan_purge(repository, None)
    gaps.extend(quarantine.describe_unreadable())
    moved = (*quarantine.due, *quarantine.waiting)
    yield "quarantine_objects", {}, sum(run.copies.num_rows for run in moved)
    yield "quarantine_bytes", {}, sum(run.size for run in moved)


def _measure_run(run_report: Report) -> Iterator[Sample]:
    for step, seconds in run_report.worked_seconds.items():
        yield "last_run_step_duration_seconds", {"step": step}, seconds
        yield "last_run_step_wait_seconds", {"step": step}, run_report.waited_seconds.get(step, 0.0)
    for name, figure, value in run_report.statistics.items():
        if figure.unit in (OBJECTS, ADDRESSES):
            yield "last_run_objects", {"kind": name}, value
        elif figure.unit == BYTES:
            yield "last_run_bytes", {"kind": name.removesuffix("_bytes")}, value
    for kind, classes in run_report.storage_classes.items():
        for name, amount in classes.items():
            yield "last_run_class_objects", {"kind": kind, "class": name}, amount["objects"]
            yield "last_run_class_bytes", {"kind": kind, "class": name}, amount["bytes"]
    for reason, count in run_report.kept.items():
        yield "last_run_kept_objects", {"reason": reason}, count
    for metric, known in (
        ("stored_objects", run_report.statistics.stored),
        ("last_run_duration_seconds", run_report.statistics.seconds),
    ):
        if known is not None:
            yield metric, {}, known
