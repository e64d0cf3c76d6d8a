"""`lakefs-gc metrics`: the newest figures of repositories, for Prometheus."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import CONFIG, JSON, answer, loaded_configurations, open_collector, show_progress
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.run_figures import RunFigures, figures_of
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.defs import maintenance
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore

_LOOKED_AT = 200
_PREFIX = "lakefs_gc_"
_COUNTED = (
    "listed",
    "uncommitted",
    "committed",
    "candidates",
    "deleted",
    "quarantined",
    "failed",
    "kept_live",
    "deleted_by_another_run",
    "lost",
    "named_again",
)

Sample = tuple[str, Mapping[str, str], float]
"""A measurement: name without prefix, labels, value."""

HELP = {
    "last_run_timestamp_seconds": "When the newest run ended that left a report.",
    "last_run_success": "Whether it came to its end, every deletion was accepted, and no earlier run lost an object.",
    "last_run_duration_seconds": "How long it took.",
    "last_run_step_duration_seconds": "How long each of its steps worked.",
    "last_run_step_wait_seconds": "For how long each of its steps waited because that protects; 0 where it did not.",
    "last_run_objects": "Objects of the newest run that came to its end, by what they were found to be.",
    "last_run_bytes": "Their bytes.",
    "last_run_kept_objects": "Unreferenced objects that it kept, by reason.",
    "stored_objects": "Objects that are stored, as far as that run knows of them.",
    "last_sweep_timestamp_seconds": "When the newest run ended that swept with success.",
    "quarantine_objects": "Objects in quarantine.",
    "quarantine_bytes": "Their bytes.",
}


@click.command()
@CONFIG
@JSON
def metrics(file: Path | None, as_json: bool) -> None:
    """Prints the newest figures of each repository in Prometheus' text format.

    Meant for the textfile collector of the node exporter: write it to a file beside, and move that over the old one.
    """
    samples: list[Sample] = []
    for loaded in loaded_configurations(file):
        label = loaded.configuration.label
        repository = open_collector(loaded).open_to_read()
        samples += [(name, {"repository": label, **labels}, value) for name, labels, value in measure(repository)]
    if as_json:
        answer([{"name": _PREFIX + name, "labels": labels, "value": value} for name, labels, value in samples])
        return
    for line in format_samples(samples):
        click.echo(line)


def measure(repository: OpenRepository) -> Iterator[Sample]:
    """The samples of one repository. Raises CollectionError."""
    store = repository.store
    run_ids = islice(run_folder.newest_runs(store), _LOOKED_AT)
    reports = [found for run_id in run_ids if (found := _read_report(store, run_id)) is not None]
    if reports:
        newest = reports[0]
        yield "last_run_timestamp_seconds", {}, newest.ended_at.timestamp()
        yield "last_run_success", {}, float(newest.success)
    ended = next((found for found in reports if found.ending is not Ending.FAILED), None)
    if ended is not None:
        yield from _measure_run(figures_of(store, ended))
    swept = next((found for found in reports if found.is_complete and not found.dry_run), None)
    if swept is not None:
        yield "last_sweep_timestamp_seconds", {}, swept.ended_at.timestamp()
    quarantine = maintenance.plan_purge(repository, None)
    moved = (*quarantine.due, *quarantine.waiting)
    yield "quarantine_objects", {}, sum(each.copies.num_rows for each in moved)
    yield "quarantine_bytes", {}, sum(each.size for each in moved)


def _read_report(store: ObjectStore, run_id: str) -> Report | None:
    """The report of a run; None where there is none, or where it cannot be read, which is printed as a warning."""
    try:
        return report.read(store, run_id)
    except CorruptFile as corrupt:
        show_progress(f"left out: {corrupt}")
        return None


def _measure_run(figures: RunFigures) -> Iterator[Sample]:
    found: Report = figures.report
    yield "last_run_duration_seconds", {}, (found.ended_at - found.started_at).total_seconds()
    for step, seconds in figures.seconds.items():
        yield "last_run_step_duration_seconds", {"step": step}, seconds
        yield "last_run_step_wait_seconds", {"step": step}, figures.waited.get(step, 0.0)
    for what in _COUNTED:
        if what in found.counts:
            yield "last_run_objects", {"kind": what}, found.counts[what]
    for what, size in found.object_bytes.items():
        yield "last_run_bytes", {"kind": what}, size
    for why, count in found.kept.items():
        yield "last_run_kept_objects", {"reason": why}, count
    if figures.stored is not None:
        yield "stored_objects", {}, figures.stored


def format_samples(samples: Iterable[Sample]) -> Iterator[str]:
    """Samples in Prometheus' text format, those of one name together."""
    grouped: dict[str, list[Sample]] = {}
    for sample in samples:
        grouped.setdefault(sample[0], []).append(sample)
    for name, of_one_name in grouped.items():
        yield f"# HELP {_PREFIX}{name} {HELP[name]}"
        yield f"# TYPE {_PREFIX}{name} gauge"
        for _, labels, value in of_one_name:
            told = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
            yield f"{_PREFIX}{name}{{{told}}} {value:.17g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
