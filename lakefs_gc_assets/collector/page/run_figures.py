"""The figures of a run that ended, as histories and monitoring want them: from its report and its frames' manifests."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.frames import FRAMES, STEPS, StoredFigures
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.errors import CorruptFile, OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Duration, figures and outcome of one run.

    Attributes:
        seconds: how long each step worked, by the name of its frame; steps that the run did not reach are left out.
        waited: for how long steps waited because that protects, by the names of those that did.
        stored: objects in the store as far as the run knows of them; an optimized run lists only some, and knows the
            others from the run that it builds on. None where it did not list.
    """

    report: Report
    seconds: Mapping[str, float]
    stored: int | None = None
    waited: Mapping[str, float] = field(default_factory=dict)

    @property
    def freed(self) -> int:
        """Bytes that it freed; what moved to quarantine is not freed."""
        return self.report.object_bytes.get("deleted", 0)


def figures_of(store: ObjectStore, report: Report) -> RunFigures:
    """The figures of a run out of what it left; what cannot be read is left out.

    Raises StorageError where the store cannot be asked.
    """
    seconds: dict[str, float] = {}
    waited: dict[str, float] = {}
    stored = None
    for name in STEPS:
        try:
            manifest = manifests.read(store, report.run_id, FRAMES[name])
        except (OrderViolation, CorruptFile):
            continue
        if manifest.span.attempt != report.attempt:
            continue
        seconds[name] = manifest.span.worked_seconds
        if manifest.span.waited_seconds:
            waited[name] = manifest.span.waited_seconds
        if isinstance(manifest.figures, StoredFigures) and report.flow != Flow.COMMITTED:
            stored = manifest.rows + manifest.figures.sealed_objects
    return RunFigures(report, seconds, stored, waited)


def freed_in_all(store: ObjectStore, run_ids: Iterable[str]) -> int:
    """Bytes that runs freed, by their reports; a report that cannot be read counts as none."""
    freed = 0
    for run_id in run_ids:
        try:
            report = reports.read(store, run_id)
        except CorruptFile:
            continue
        freed += report.object_bytes.get("deleted", 0) if report else 0
    return freed
