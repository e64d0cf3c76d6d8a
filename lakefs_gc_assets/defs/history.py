"""Records of ended runs in Dagster: events of the asset `collection_history`, tags, and removal of old partitions.

`collection_history` has no partitions, so Dagster plots its numbers over time. It has one event for each ended run,
failed and refused ones included. A cell of the five assets describes a window of a run; an event here describes a whole
run.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import dagster as dg

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.figures import in_events
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.reporting import report_failure
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.pages import bullets, figure_definitions
from lakefs_gc_assets.defs.partitions import (
    FLOW_TAG,
    REPOSITORY_TAG,
    RUN_TAG,
    UNFINISHED,
    Names,
    newest_metadata,
    run_id_in,
    run_key_of,
    runs_of,
)
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import CollectionError, CorruptFile, LogLine, counted
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore

HISTORY = "collection_history"
SWEEPS = "sweeps"
MODE_TAG = "lakefs/mode"
APPROVED_BY_TAG = "lakefs/approved_by"
APPROVED_SWEEP = "approved sweep"
ENDING_TAG = "lakefs/ending"
FREED_TAG = "lakefs/freed"
FREED_IN_ALL = "freed_bytes_in_all"
OLDEST_GARBAGE = "oldest_garbage_days"
NEWEST_RUN_SUCCEEDED, SWEPT_IN_TIME = "newest_run_succeeded", "swept_in_time"
UNDO = "undo"
"""Metadata with a link that undoes a run's deletions."""
NOTHING_TO_DO, DRY_RUN = "nothing to do", "dry run"
BEGINS_OTHER = "launches all five assets"
"""Mode of a Dagster run of only later assets, under a name without a run."""
_BACKFILL_TAG = "dagster/backfill"
_BACKFILL_UNDER_WAY = ("REQUESTED", "CANCELING", "FAILING")
_REFUSED_TAG = ".dagster/lakefs-refused"
"""Tag of a refused Dagster run whose keys are to be removed; its value is the repository. The UI hides such tags."""
_REFUSED_KEYS_TAG = ".dagster/lakefs-refused-keys"
_BETWEEN_KEYS = "\n"
_REFUSED_IN_A_TICK = 100
_FAILED, _MADE = dg.AssetPartitionStatus.FAILED, dg.AssetPartitionStatus.MATERIALIZED
_RECENT_RUNS = 100
_UNUSED_SECONDS = 3600
_ERROR = 1000
_RECENT_EVENTS = 50
"""Maximum recent events of the history that are searched for a Dagster run, a link or a total."""


def define(names: Names, sweep_within: timedelta) -> list[dg.AssetSpec]:
    """The assets without partitions to which ended runs report; nothing materializes them.

    Args:
        sweep_within: maximum time between successful sweeps; zero for an installation that need not sweep.
    """
    history = dg.AssetSpec(
        key=names.asset(HISTORY),
        deps=[names.asset(STEPS[-1])],
        description=f"The runs of {names.repository}, one event each: how it ended; how many objects it found, deleted "
        "and kept; stored bytes; seconds of each step; and bytes freed by all runs. Runs report here when they end, "
        "failed runs included; nothing can materialize this asset. The metadata below has the plots."
        + figure_definitions(in_events()),
        kinds={"lakefs"},
    )
    days = sweep_within / timedelta(days=1)
    sweeps = dg.AssetSpec(
        key=names.asset(SWEEPS),
        deps=[names.asset(STEPS[-1])],
        description=f"Successful sweeps of {names.repository}, one event each. "
        + (
            f"A sweep is overdue after {counted(days, 'days')} without one (automation.sweep_within_days)."
            if days
            else "No sweep is ever overdue (automation.sweep_within_days is 0)."
        ),
        kinds={"lakefs"},
        freshness_policy=dg.FreshnessPolicy.time_window(fail_window=sweep_within) if days else None,
    )
    return [history, sweeps]


@dataclass(frozen=True)
class CheckVerdict:
    """The outcome of a check of an asset without partitions, and the reason."""

    passed: bool
    why: str


def define_checks(names: Names, sweep_within: timedelta) -> list[dg.AssetChecksDefinition]:
    """The checks of the history: runs report them when they end, a sensor when a sweep is overdue.

    Args:
        sweep_within: as for `define`.
    """
    days = sweep_within / timedelta(days=1)
    limit = (
        f"The last sweep is at most {counted(days, 'days')} old (automation.sweep_within_days)."
        if days
        else "No limit is set."
    )
    return [
        define_check(
            names,
            HISTORY,
            NEWEST_RUN_SUCCEEDED,
            "The newest run succeeded, or was a dry run that a user interrupted.",
            lambda instance: judge_newest(newest_metadata(instance, names.asset(HISTORY))),
        ),
        define_check(
            names,
            SWEEPS,
            SWEPT_IN_TIME,
            limit,
            lambda instance: judge_sweeps(instance, names, sweep_within, time.time()),
        ),
    ]


def define_check(
    names: Names, asset: str, name: str, description: str, judge: Callable[[dg.DagsterInstance], CheckVerdict]
) -> dg.AssetChecksDefinition:
    """A check of an asset without partitions, which only reads Dagster's own records."""

    @dg.asset_check(asset=names.asset(asset), name=name, description=description)
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        verdict = judge(context.instance)
        return dg.AssetCheckResult(passed=verdict.passed, description=verdict.why)

    return check


def judge_newest(shown: Mapping[str, Any]) -> CheckVerdict:
    """The verdict about the newest run, from the metadata of its event; empty if no run has ended."""
    if not shown:
        return CheckVerdict(True, "no run has ended yet")
    run = f"run {shown['run_id']}" if "run_id" in shown else "a run without an id"
    if shown.get("success"):
        return CheckVerdict(True, f"{run}: {shown['ending']}")
    error = shown.get("error", "")
    broken_off = shown.get("mode") == DRY_RUN and error == reports.INTERRUPTED
    return CheckVerdict(broken_off, f"{run}: {', '.join(filter(None, (shown['ending'], error)))}")


def judge_sweeps(instance: dg.DagsterInstance, names: Names, sweep_within: timedelta, now: float) -> CheckVerdict:
    """The verdict about the last sweep; before the first sweep, the time counts from the first run.

    Args:
        sweep_within: as for `define`.
        now: seconds since 1970.
    """
    swept = instance.fetch_materializations(names.asset(SWEEPS), limit=1).records
    first = instance.fetch_materializations(names.asset(HISTORY), limit=1, ascending=True).records
    if not sweep_within or not (swept or first):
        return CheckVerdict(True, "no sweep is due")
    since = datetime.fromtimestamp((swept or first)[0].timestamp, UTC)
    what = "the last sweep was recorded" if swept else "there was no sweep yet; the first run was recorded"
    return CheckVerdict(now - since.timestamp() <= sweep_within.total_seconds(), f"{what} at {since:%F %T}Z")


def report_check(instance: dg.DagsterInstance, names: Names, asset: str, name: str, verdict: CheckVerdict) -> None:
    """Records a verdict in Dagster without a run."""
    evaluation = dg.AssetCheckEvaluation(
        asset_key=names.asset(asset), check_name=name, passed=verdict.passed, description=verdict.why, metadata={}
    )
    instance.report_runless_asset_event(evaluation)


def mode_of(plan: Plan, approved: bool, settings: CollectionSettings) -> str:
    """The mode of a run, in a word or two."""
    if not plan.sweep:
        return APPROVED_SWEEP if approved else DRY_RUN
    return "quarantine" if settings.quarantines else "sweep"


@dataclass(frozen=True)
class Historian:
    """Records the end of a Dagster run in Dagster.

    Attributes:
        warn: called if a record cannot be written; the run does not fail.
    """

    instance: dg.DagsterInstance
    names: Names
    run: dg.DagsterRun
    warn: LogLine

    @classmethod
    def from_context(
        cls,
        context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext,
        collector: Collector,
    ) -> "Historian":
        """The historian of a step's Dagster run."""
        return cls(context.instance, collector.names, context.run, context.log.warning)

    def begins(self, store: ObjectStore, plan: Plan, settings: CollectionSettings) -> None:
        """Tags the Dagster run with the id and the mode of its run."""
        with self._harmless():
            approved = settings.approve_run == plan.run_id or plans.read_approval(store, plan.run_id) is not None
            tags = {
                REPOSITORY_TAG: self.names.repository,
                RUN_TAG: plan.run_id,
                MODE_TAG: mode_of(plan, approved, settings),
            }
            # A launch can have any tags, and a re-execution has those of its original.
            tags |= {tag: "under way" for tag in (ENDING_TAG, FREED_TAG) if tag in self.run.tags}
            self.instance.add_run_tags(self.run.run_id, tags)

    def did_nothing(self, run_id: str) -> None:
        """Tags a Dagster run whose run had already ended well."""
        with self._harmless():
            self.instance.add_run_tags(self.run.run_id, {RUN_TAG: run_id, MODE_TAG: NOTHING_TO_DO})

    def ended(self, store: ObjectStore, report: Report, undo: Mapping[str, dg.MetadataValue[Any]]) -> None:
        """Records a finished run. A successful one also removes overtaken runs from the partitions.

        Args:
            undo: metadata with a link that undoes its deletions; empty if it deleted nothing.
        """
        with self._harmless():
            self._note(report, store, undo)
        with self._harmless():
            if report.is_complete:
                forget_overtaken(self.instance, self.names, store, report)
        with self._harmless():
            if report.is_complete and not report.dry_run:
                self._report({"run_id": report.run_id, "ending": report.ending.value, **undo}, SWEEPS)

    def failed(self, store: ObjectStore | None, run_id: str | None, now: datetime, error: str) -> None:
        """Records a run that failed or was refused.

        Args:
            store: the repository's store if this process has opened it.
            run_id: None if the selection names no run.
            now: UTC.
        """
        with self._harmless():
            if self._is_recorded():
                return  # If several checks fail, the first one ended the run.
            plan = None
            if store is not None and run_id is not None:
                with suppress(CollectionError):
                    plan = plans.read(store, run_id)
            if store is not None and plan is not None:
                self._note(report_failure(store, plan, now, error), store)
                return
            self._tag(Ending.FAILED, 0)
            named = {"run_id": run_id, "flow": self.run.tags.get(FLOW_TAG)}
            shown = {"ending": Ending.FAILED.value, "success": False, "error": error[:_ERROR]}
            self._report({**shown, **{name: value for name, value in named.items() if value}})

    def _note(
        self, report: Report, store: ObjectStore, undo: Mapping[str, dg.MetadataValue[Any]] = MappingProxyType({})
    ) -> None:
        freed = report.statistics.deleted_bytes or 0
        self._tag(report.ending, freed)
        before = self._freed_before()
        if before is None:
            others = (other for other in run_folder.newest_runs(store) if other != report.run_id)
            before = reports.bytes_freed(store, others)
        mode = self._tags().get(MODE_TAG)
        shown = ({"mode": mode} if mode else {}) | run_metadata(report) | {FREED_IN_ALL: before + freed}
        oldest = self._oldest_garbage(report.run_id)
        if oldest is not None:
            shown[OLDEST_GARBAGE] = oldest
        self._report({**shown, **undo})

    def _tag(self, ending: Ending, freed: int) -> None:
        tags = {ENDING_TAG: ending.value, **({FREED_TAG: size(freed)} if freed or FREED_TAG in self._tags() else {})}
        self.instance.add_run_tags(self.run.run_id, tags)

    def _report(self, shown: Mapping[str, Any], asset: str = HISTORY) -> None:
        if self.instance.is_ephemeral:
            return  # The instance ends with this process, and with it the history.
        metadata = {**shown, "dagster_run": dg.MetadataValue.dagster_run(self.run.run_id)}
        event = dg.AssetMaterialization(self.names.asset(asset), metadata=metadata)
        self.instance.report_runless_asset_event(event)
        if asset == HISTORY:
            report_check(self.instance, self.names, HISTORY, NEWEST_RUN_SUCCEEDED, judge_newest(shown))
        else:
            report_check(
                self.instance, self.names, SWEEPS, SWEPT_IN_TIME, CheckVerdict(True, f"run {shown['run_id']} swept")
            )

    def _tags(self) -> Mapping[str, str]:
        """The current tags of the Dagster run."""
        run = self.instance.get_run_by_id(self.run.run_id)
        return run.tags if run else {}

    def _is_recorded(self) -> bool:
        """True if the history has the end of this Dagster run.

        Events reported by users through the webserver have metadata of plain types, and are ignored.
        """
        values = (shown.get("dagster_run") for shown in _recent_runs(self.instance, self.names))
        return any(isinstance(value, dg.DagsterRunMetadataValue) and value.value == self.run.run_id for value in values)

    def _freed_before(self) -> int | None:
        """The total of the newest event with a total; None if no recent event has one, 0 on an ephemeral instance."""
        if self.instance.is_ephemeral:
            return 0
        totals = (shown[FREED_IN_ALL] for shown in _recent_runs(self.instance, self.names) if FREED_IN_ALL in shown)
        return next((int(str(total.value)) for total in totals), None)

    def _oldest_garbage(self, run_id: str) -> float | None:
        """Age in days of the oldest garbage, from this run's event of the asset `candidates`; None if unknown."""
        shown = newest_metadata(self.instance, self.names.asset("candidates"))
        return float(shown[OLDEST_GARBAGE]) if shown.get("run_id") == run_id and OLDEST_GARBAGE in shown else None

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Turns a failure of Dagster's storage into a warning, so that the run does not fail."""
        try:
            yield
        except Exception as error:
            self.warn(f"this run could not be added to the history of {self.names.repository}: {error}")


def newest_undo(instance: dg.DagsterInstance, names: Names) -> dict[str, dg.MarkdownMetadataValue]:
    """Metadata with the link that undoes the newest deletion among the recent runs; empty if there is none.

    Events reported by users through the webserver have metadata of plain types, and are ignored.
    """
    links = (shown.get(UNDO) for shown in _recent_runs(instance, names))
    return next(({UNDO: undo} for undo in links if isinstance(undo, dg.MarkdownMetadataValue)), {})


def _recent_runs(instance: dg.DagsterInstance, names: Names) -> list[Mapping[str, dg.MetadataValue[Any]]]:
    """Metadata of recent events of the history, newest first."""
    records = instance.fetch_materializations(names.asset(HISTORY), limit=_RECENT_EVENTS).records
    return [event.metadata for record in records if (event := record.asset_materialization)]


def run_metadata(report: Report) -> dict[str, Any]:
    """Metadata of a run for the history; numbers are plotted, and figures in bytes have words beside them."""
    statistics = report.statistics
    words = [
        f"{what} {size(amount)}"
        for what, amount in (("found", statistics.candidates_bytes), ("freed", statistics.deleted_bytes))
        if amount is not None
    ]
    return {
        "run_id": report.run_id,
        "flow": report.flow,
        "ending": report.ending.value,
        "success": report.success,
        "in_words": ", ".join(words),
        **{figure.event: round(value, 1) for _, figure, value in statistics.items() if figure.event},
        **{f"seconds_{step}": round(seconds, 1) for step, seconds in report.worked_seconds.items()},
        **{f"kept: {why}": count for why, count in report.kept.items()},
        **({"error": report.error[:_ERROR]} if report.error else {}),
        **warnings_of(report),
    }


def warnings_of(report: Report) -> dict[str, dg.MarkdownMetadataValue]:
    """Metadata `warnings` of a run; empty without any."""
    return {"warnings": bullets(report.warnings)} if report.warnings else {}


def forget_overtaken(instance: dg.DagsterInstance, names: Names, store: ObjectStore, ended: Report) -> list[str]:
    """Removes the keys of failed or canceled runs that a newer run has overtaken; returns these keys.

    Their cells would be shown as failed or missing for ever. Plans and reports stay in the store, and all runs stay in
    the history. Names without a run are removed an hour after they were first seen.

    Args:
        ended: the report of the newer run, which has ended well.
    """
    keys = _not_waiting(instance, names)
    left = _failed(instance, names, keys) | _never_used(instance, names, store, keys, ended.ended_at)
    overtaken = sorted(key for key in left if _is_overtaken(store, ended, key))
    for key in overtaken:
        names.partitions.forget(instance, key)
    return overtaken


def _is_overtaken(store: ObjectStore, ended: Report, key: str) -> bool:
    """True if a newer run overtakes all runs of a key of the dimension run_id, if it has any."""
    try:
        return all(reports.overtakes(store, ended, run) for run in runs_of(store, key))
    except CorruptFile:
        return False


def forget_unused(
    instance: dg.DagsterInstance, collector: Collector, cells: Sequence[str], refused: dg.DagsterRun
) -> None:
    """Removes keys of the dimension run_id that a launch could not use: Dagster would show their cells as failed.

    A key stays if it has a run, if a run was opened with that id, or if another Dagster run waits for its cells. The
    keys of a backfill stay until `forget_refused` finds that it has ended. Otherwise Dagster would fail it with an
    error about missing keys, which hides the refusal.
    """
    names = collector.names
    keys = {cell.keys_by_dimension["run_id"] for cell in cells if isinstance(cell, dg.MultiPartitionKey)}
    with suppress(CollectionError):
        waiting = _not_waiting(instance, names, but_for=refused) & keys
        unused = [key for key in sorted(waiting) if not _means_run(instance, collector, key)]
        if unused and _BACKFILL_TAG in refused.tags:
            tags = {_REFUSED_TAG: names.repository, _REFUSED_KEYS_TAG: _BETWEEN_KEYS.join(unused)}
            instance.add_run_tags(refused.run_id, tags)
            return
        for key in unused:
            names.partitions.forget(instance, key)


def forget_refused(instance: dg.DagsterInstance, names: Names) -> None:
    """Removes the keys of refused launches whose backfills have ended, unless their cells are no longer failed.

    Users can set any tags on a launch, and remove keys in the UI, so their values never cause an error.
    """
    for refused in instance.get_runs(dg.RunsFilter(tags={_REFUSED_TAG: names.repository}), limit=_REFUSED_IN_A_TICK):
        backfill = instance.get_backfill(refused.tags.get(_BACKFILL_TAG, ""))
        if backfill is not None and backfill.status.value in _BACKFILL_UNDER_WAY:
            continue
        keys = _not_waiting(instance, names) & {*refused.tags.get(_REFUSED_KEYS_TAG, "").split(_BETWEEN_KEYS)}
        for key in _failed(instance, names, keys):
            names.partitions.forget(instance, key)
        instance.add_run_tags(refused.run_id, {_REFUSED_TAG: "removed"})


def _means_run(instance: dg.DagsterInstance, collector: Collector, key: str) -> bool:
    """True if a key has a run, or if a run was opened with it and waits for its launch. Raises CollectionError."""
    if run_id := run_id_in(key):
        opened = launching.find(instance, collector.name, run_id) is not None
        return opened or run_folder.has_plan(collector.store_at_hand(), run_id)
    return plans.is_name(key) and bool(plans.runs_named(collector.store_at_hand(), key))


def _not_waiting(instance: dg.DagsterInstance, names: Names, but_for: dg.DagsterRun | None = None) -> set[str]:
    """The keys of the dimension run_id without an active or waiting Dagster run, except `but_for`."""
    keys = set(instance.get_dynamic_partitions(names.partitions.run_ids.name or ""))
    waiting = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)) if keys else []
    return keys - {run_key_of(run) for run in waiting if but_for is None or run.run_id != but_for.run_id}


def _never_used(
    instance: dg.DagsterInstance, names: Names, store: ObjectStore, keys: set[str], now: datetime
) -> set[str]:
    """Names without a run that were already keys an hour ago; younger ones may be about to be launched."""
    place = launching.cursor_key("names", names.repository)
    unused = {key for key in keys if plans.is_name(key) and not run_id_in(key) and not plans.runs_named(store, key)}
    stored = instance.daemon_cursor_storage.get_cursor_values({place}).get(place)
    seen: dict[str, float] = {key: since for key, since in json.loads(stored or "{}").items() if key in unused}
    noticed = dict.fromkeys(unused, now.timestamp()) | seen
    instance.daemon_cursor_storage.set_cursor_values({place: json.dumps(noticed)})
    return {key for key, since in seen.items() if now.timestamp() - since >= _UNUSED_SECONDS}


def _failed(instance: dg.DagsterInstance, names: Names, keys: set[str]) -> set[str]:
    """The keys with a failed cell, and those of failed or canceled runs that made the last asset for no cell.

    Cells without a planned event of their own never count as failed (see `running.FEW_WRITES`).
    """
    ended_badly = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
    runs = instance.get_runs(dg.RunsFilter(statuses=ended_badly), limit=_RECENT_RUNS)
    unmade = keys & {run_key_of(run) for run in runs}
    return _cells_with(_FAILED, instance, names, keys, STEPS) | unmade - _cells_with(_MADE, instance, names, unmade)


def _cells_with(
    wanted: dg.AssetPartitionStatus,
    instance: dg.DagsterInstance,
    names: Names,
    keys: set[str],
    steps: Sequence[str] = STEPS[-1:],
) -> set[str]:
    """The keys with a cell in the wanted status, in some of the assets."""
    windows = instance.get_dynamic_partitions(names.partitions.windows.name or "")
    cells = {f"{key}|{window}": key for key in keys for window in windows}
    found = set()
    for step in steps if cells else ():
        statuses = instance.get_status_by_partition(names.asset(step), list(cells), names.partitions.definition) or {}
        found |= {cells[cell] for cell, status in statuses.items() if status is wanted}
    return found
