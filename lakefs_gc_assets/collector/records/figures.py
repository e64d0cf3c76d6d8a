"""Every figure of a run, declared once: its unit, its step, where it is shown, and the first version that states it.

Manifests of frames, reports, metrics, pages, the UI and the reference page take names, units and definitions from here.
A figure that a run does not know is None and shown nowhere; 0 means that there is none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

ADDRESSES, BYTES, OBJECTS, RANGES, SECONDS = "addresses", "bytes", "objects", "ranges", "seconds"
LISTING, STAGING, COMMITTED, MARK, SWEEP = "store_df", "uncommitted_df", "committed_df", "candidates", "deleted_report"
"""Steps of a run, by the names of their frames."""
WHOLE_RUN = ""
_ORDER = (LISTING, STAGING, COMMITTED, MARK, SWEEP, WHOLE_RUN)
OLDEST = "0.2"
"""The oldest version whose manifests and reports are read: they have all figures of that version."""
_BYTES = "_bytes"


@dataclass(frozen=True, slots=True)
class Figure:
    """Declaration of a figure. `lakefs-gc metrics` shows objects, addresses and bytes of reports.

    Attributes:
        step: the step that counts it, by the name of its frame, or WHOLE_RUN.
        meaning: definition in one or two sentences.
        reported: true if reports store it, under `counts` or `object_bytes`.
        since: first version that states it; earlier manifests and reports lack it.
        optional: true if the step may not know it.
        event: its name in the history of runs; empty if it is not there.
        label: its name in the tables of pages and in the outcome of a sweep in the UI; empty if it is not there.
        formerly: its name in manifests and reports of earlier versions, if it was renamed.
    """

    unit: str
    step: str
    meaning: str
    reported: bool = True
    since: str = OLDEST
    optional: bool = False
    event: str = ""
    label: str = ""
    formerly: str = ""


def figure(unit: str, step: str, meaning: str, **places: Any) -> Any:
    """Declares a field of a dataclass as a figure, unknown by default. The arguments are those of Figure."""
    return field(default=None, metadata={"figure": Figure(unit, step, meaning, **places)})


unreported = partial(figure, reported=False)
"""Declares a figure that reports do not store."""


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """Figures in the manifests of frames. In each manifest, figures of other steps are None."""

    # Unformatted, to keep two or three lines per figure.
    # fmt: off
    slices_listed: int | None = figure("slices", LISTING, "slices that were listed.")
    slices_skipped: int | None = figure("slices", LISTING, "slices that were too young to be listed.")
    slices_elsewhere: int | None = figure("slices", LISTING,
        "slices of other windows than the run's, which were not listed.", since="0.3")
    sealed_objects: int | None = unreported(OBJECTS, LISTING,
        "objects in sealed slices, which were committed when the base run ended and are not listed.")
    pending_before: int | None = unreported(OBJECTS, LISTING,
        "objects that the base run left pending for this run to examine again.", optional=True)
    expired_ranges: int | None = unreported(RANGES, LISTING,
        "ranges that only expired commits had, in flows that list nothing.", since="0.3")
    expired_ranges_read: int | None = unreported(RANGES, LISTING,
        "ranges among `expired_ranges` that the run read, since the base run had not examined them.", since="0.3")
    pages: int | None = unreported("pages", STAGING,
        "pages of uncommitted data from the server: those with a location, and repeated empty ones.")
    hooks_seconds: float | None = unreported(SECONDS, STAGING,
        "maximum time that hooks can delay a commit in progress, over all retries.", since="0.3")
    commits: int | None = figure("commits", COMMITTED, "live commits.")
    commits_fetched: int | None = unreported("commits", COMMITTED, "live commits that the run fetched one by one.")
    metaranges_read: int | None = unreported("metaranges", COMMITTED, "metaranges that the run read.")
    ranges_read: int | None = figure(RANGES, COMMITTED, "ranges of live commits that the run read.")
    entries_promised: int | None = unreported("entries", COMMITTED,
        "entries of live commits by their metaranges; unknown if commits come from a listing of files.", optional=True)
    branches_before: int | None = unreported("branches", COMMITTED,
        "branches of the earlier run with which this run is compared.", optional=True)
    unnamed_ranges: int | None = figure(RANGES, COMMITTED,
        "ranges that belong to no commit; the run read them and keeps their objects.")
    compacted_bases: int | None = figure("bases", COMMITTED,
        "compacted bases of staging that branches use.", since="0.3")
    provisional_ranges: int | None = figure(RANGES, COMMITTED,
            "ranges of compacted staging, or young and of no commit; their objects are kept for now. For a run of flow "
            "`committed`, the page of the asset counts `unnamed_ranges` too.", since="0.3")
    expired_objects: int | None = figure(OBJECTS, COMMITTED,
        "objects that the run examined because they expired after its base run.", since="0.3", formerly="expired")
    expired_bytes: int | None = unreported(BYTES, COMMITTED, "total size of `expired_objects`.", since="0.3")
    ranges_from_facts: int | None = figure(RANGES, COMMITTED,
        "live ranges that were not read, since an earlier run recorded facts about them or stored their addresses.",
        since="0.3", formerly="ranges_noted")
    addresses_from_facts: int | None = unreported(ADDRESSES, COMMITTED,
        "addresses in `ranges_from_facts`, counted range by range; the frame has only addresses that were looked up. "
        "In a run limited to some windows: addresses taken from the limited run before it.",
        since="0.3", formerly="addresses_noted")
    paths_asked: int | None = unreported("paths", MARK,
        "lookups on the server of paths where a candidate may be staged; each branch counts.")
    paths_unasked: int | None = unreported("paths", MARK,
        "lookups not made because of collection.hidden_suspect_limit; candidates that may be staged there stay.")
    missing: int | None = figure(ADDRESSES, MARK,
        "addresses of branch heads or staging in the listed slices that are missing from the listing.")
    expected: int | None = unreported(ADDRESSES, MARK,
        "addresses of branch heads and staging in the listed slices, which should all be listed.")
    lost: int | None = figure(ADDRESSES, MARK,
        "addresses of branch heads or staging whose objects an earlier run deleted.")
    named_again: int | None = figure(ADDRESSES, MARK,
        "referenced addresses that had expired by rule when an earlier run deleted them.", since="0.3")
    unreadable: int | None = figure(OBJECTS, MARK,
        "unreferenced objects whose content could not be compared, since it is in an archive tier; "
        "`kept` of the report counts objects that stay for that reason.", since="0.3")
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class Statistics(StepFigures):
    """Figures of a run. Unknown ones are None, in a failed run all but its duration."""

    # fmt: off
    stored: int | None = figure(OBJECTS, LISTING,
        "objects in the store; unknown to runs of the flow `committed` and to runs limited to some windows.",
        since="0.3", event="stored_objects", label="Stored, as far as the run knows")
    listed: int | None = figure(OBJECTS, LISTING,
        "objects that the run examined: listed by it, pending since its base run, or expired since.",
        event="listed_objects", label="Examined by this run")
    listed_bytes: int | None = figure(BYTES, LISTING, "total size of `listed`.", event="listed_bytes")
    uncommitted: int | None = figure(ADDRESSES, STAGING,
        "distinct addresses that are staged or tracked as copied.",
        event="live_uncommitted_objects", label="Addresses that are staged or copied")
    committed: int | None = figure(ADDRESSES, COMMITTED,
        "distinct addresses that live commits reference; unknown to a run that builds on another one.",
        event="live_committed_objects", label="Addresses in live commits")
    branches: int | None = figure("branches", COMMITTED, "branches whose head has an object.")
    live: int | None = unreported(OBJECTS, MARK,
        "examined objects that something references: neither kept nor garbage.",
        label="Live: something references it")
    kept: int | None = unreported(OBJECTS, MARK,
        "unreferenced objects that stay; `kept` of the report counts them by reason.")
    candidates: int | None = figure(OBJECTS, MARK,
        "garbage: objects that nothing references and that are old enough to delete.",
        event="found_objects", label="Garbage: nothing references it")
    candidates_bytes: int | None = figure(BYTES, MARK, "total size of `candidates`.", event="found_bytes")
    late_arrivals: int | None = figure(OBJECTS, SWEEP,
        "garbage that was written to a slice after an earlier run had sealed it.")
    deleted: int | None = figure(OBJECTS, SWEEP,
        "garbage that the run deleted and whose bytes are free; excludes quarantined objects.",
        event="deleted_objects", label="Deleted")
    deleted_bytes: int | None = figure(BYTES, SWEEP, "total size of `deleted`.", event="freed_bytes")
    quarantined: int | None = figure(OBJECTS, SWEEP,
        "garbage that the run moved to quarantine: a purge frees its bytes.",
        event="quarantined_objects", label="Moved to quarantine")
    quarantined_bytes: int | None = figure(BYTES, SWEEP, "total size of `quarantined`.", event="quarantined_bytes")
    failed: int | None = figure(OBJECTS, SWEEP,
        "garbage that the run could not delete.", event="failed_objects", label="Deletions that failed")
    undeletable: int | None = figure(OBJECTS, SWEEP, "garbage that neither this run nor earlier runs could delete.")
    kept_live: int | None = figure(OBJECTS, SWEEP,
        "candidates that were live at the recheck right before deletion, so they stay.",
        event="kept_live_at_recheck", label="Live again at the recheck, kept")
    kept_archived: int | None = figure(OBJECTS, SWEEP,
        "candidates in an archive tier, which quarantine cannot copy, so they stay.",
        since="0.3", label="In an archive tier, kept")
    kept_archived_bytes: int | None = figure(BYTES, SWEEP, "total size of `kept_archived`.", since="0.3")
    deleted_by_another_run: int | None = figure(OBJECTS, SWEEP,
        "candidates that another run deleted after this run had listed them.",
        since="0.3", event="deleted_by_another_run", label="Deleted by another run since the listing")
    seconds: float | None = unreported(SECONDS, WHOLE_RUN,
            "time in the steps of the run, waits included; excludes time between steps, such as until an approval.",
        since="0.3", event="seconds")
    seconds_waited: float | None = unreported(SECONDS, WHOLE_RUN,
        "part of `seconds` that the steps waited for safety.", since="0.3", event="seconds_waited")
    # fmt: on

    @classmethod
    def from_stored(cls, counts: Mapping[str, int], object_bytes: Mapping[str, int], **derived: Any) -> "Statistics":
        """The figures of a report, which may lack some, and those derived from it."""
        stored = _renamed({**counts, **{f"{name}{_BYTES}": amount for name, amount in object_bytes.items()}})
        return cls(**{name: stored.get(name) for name, each in FIGURES.items() if each.reported} | derived)

    def items(self) -> Iterator[tuple[str, Figure, float]]:
        """Yields the figures that the run knows: name, declaration and value."""
        for name, each in FIGURES.items():
            if (value := getattr(self, name)) is not None:
                yield name, each, value

    @property
    def counts(self) -> dict[str, int]:
        """Figures that a report stores as `counts`."""
        return {name: int(value) for name, each, value in self.items() if each.reported and each.unit != BYTES}

    @property
    def object_bytes(self) -> dict[str, int]:
        """Figures that a report stores as `object_bytes`."""
        sizes = ((name, value) for name, each, value in self.items() if each.reported and each.unit == BYTES)
        return {name.removesuffix(_BYTES): int(value) for name, value in sizes}

    def labelled(self, *steps: str) -> Iterator[tuple[str, Figure, int, int | None]]:
        """Yields the known figures of steps with a label: name, declaration, objects, and bytes if known."""
        for name, each, value in self.items():
            if each.label and each.step in steps:
                yield name, each, int(value), getattr(self, name + _BYTES, None)


STEP_FIGURES: Mapping[str, Figure] = {each.name: each.metadata["figure"] for each in fields(StepFigures)}
"""Figures of manifests, by name."""
_ALL: Mapping[str, Figure] = {each.name: each.metadata["figure"] for each in fields(Statistics)}
FIGURES: Mapping[str, Figure] = dict(
    sorted(_ALL.items(), key=lambda item: (_ORDER.index(item[1].step), item[0] in STEP_FIGURES))
)
"""All figures of runs by name, in the order of the steps."""
HISTORY_FIGURES: Mapping[str, Figure] = {
    "seconds_STEP": Figure(SECONDS, WHOLE_RUN, "working time of the step without waits, such as `seconds_store_df`."),
    "kept: REASON": Figure(OBJECTS, MARK, "unreferenced objects that stay for this reason."),
    "freed_bytes_in_all": Figure(
        BYTES,
        WHOLE_RUN,
        "sum of `freed_bytes` of all runs of the repository up to this one. Excludes bytes that purges of the "
        "quarantine free, and includes objects that were restored.",
    ),
    "oldest_garbage_days": Figure("days", MARK, "age of the oldest garbage when `candidates` was stored."),
}
"""Figures that only the history of runs has."""


def of_step(step: str) -> dict[str, Figure]:
    """The figures in the manifest of a step, by name."""
    return {name: each for name, each in STEP_FIGURES.items() if each.step == step}


def in_events() -> dict[str, Figure]:
    """The figures in the history of runs, by their names there."""
    return {each.event: each for each in FIGURES.values() if each.event} | dict(HISTORY_FIGURES)


def stated(*figures: StepFigures) -> dict[str, Any]:
    """The figures that a run's steps counted, by name."""
    values = ((name, getattr(each, name)) for each in figures for name in STEP_FIGURES)
    return {name: value for name, value in values if value is not None}


def manifest_entries(step: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a manifest's figures without figures of other steps.

    Raises ValueError if an entry is missing that every version states: a guard would read it as 0.
    """
    entries = _renamed(entries)
    lacking = [
        name
        for name, each in of_step(step).items()
        if each.since == OLDEST and (name not in entries if each.optional else entries.get(name) is None)
    ]
    if lacking:
        raise ValueError(f"figures are missing: {', '.join(lacking)}")
    return {name: value for name, value in entries.items() if name not in STEP_FIGURES or name in of_step(step)}


def _renamed(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Entries under the present names of figures."""
    present = {each.formerly: name for name, each in FIGURES.items() if each.formerly}
    return {present.get(name, name): value for name, value in entries.items()}


def required(value: int | None) -> int:
    """A figure that a guard needs. Raises ValueError if it is unknown."""
    if value is None:
        raise ValueError("a figure that a guard needs is unknown")
    return value
