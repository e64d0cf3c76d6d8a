"""The partitions of a repository's assets, the names of its definitions in Dagster, and its Dagster runs.

Every asset is partitioned in two dimensions: run ids and slice windows. Both are dynamic. A cell is a window of a run;
one Dagster run covers all windows of a run id.

A key of the dimension run_id is the time and the id of an opened run, or any name under which a user materializes a
run. Earlier versions added ids without the time, which mean the same.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, cast

import dagster as dg

from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore

RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"
_PARTITION_TAG = "dagster/partition"
REPOSITORY_TAG = "lakefs/repository"
RUN_TAG = "lakefs/run_id"
"""Tag with the id that the jobs approve and restore need; Dagster shows an id of its own beside it."""
FLOW_TAG = "lakefs/flow"
WHY_CLEAN_TAG = "lakefs/why_clean"
FOLLOWED_TAG = "lakefs/followed_run_id"
_FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in _FINISHED]
"""Statuses of Dagster runs that are under way or wait."""
Function = TypeVar("Function", bound=Callable[..., Any])
_CHUNK = 1000
_EVENTS_IN_A_TICK = 100
"""Maximum ends of runs that a tick reads."""
_BEFORE_ALL = -1
"""Storage id before all events."""


@dataclass(frozen=True)
class RunPartitions:
    """The partitions of a repository's assets."""

    repository: str

    @property
    def run_ids(self) -> dg.DynamicPartitionsDefinition:
        """One key for each collection."""
        return dg.DynamicPartitionsDefinition(name=f"gc_runs_{self.repository}")

    @property
    def windows(self) -> dg.DynamicPartitionsDefinition:
        """One key for each slice window, `legacy` first, then in order of discovery."""
        return dg.DynamicPartitionsDefinition(name=f"gc_slice_windows_{self.repository}")

    @property
    def definition(self) -> dg.MultiPartitionsDefinition:
        """Cells are written `<key of run_id>|<window>`."""
        return dg.MultiPartitionsDefinition({"run_id": self.run_ids, "slice": self.windows})

    def add(self, instance: dg.DagsterInstance, key: str, windows: Sequence[str]) -> tuple[str, ...]:
        """Adds a key of run_id and new windows; returns the shortest range of windows that includes the given ones."""
        covered = self._add_windows(instance, windows)
        instance.add_dynamic_partitions(self.run_ids.name or "", [key])
        return covered

    def add_again(self, instance: dg.DagsterInstance, plan: Plan) -> dict[str, str]:
        """Adds a run whose plan is stored; returns tags that make a Dagster run cover it.

        A run that was opened under a name has its cells there. A name means a run over exactly its windows. If other
        windows lie between these, the id is the key instead.
        """
        covered = self._add_windows(instance, plan.windows)
        if plan.name is not None and {*covered} == {*plan.windows}:
            key = plan.name
        else:
            existing = instance.get_dynamic_partitions(self.run_ids.name or "")
            key = next((key for key in existing if run_id_in(key) == plan.run_id), key_of(plan.run_id))
        instance.add_dynamic_partitions(self.run_ids.name or "", [key])
        return self.tags(key, covered, plan.flow.value)

    def _add_windows(self, instance: dg.DagsterInstance, windows: Sequence[str]) -> tuple[str, ...]:
        """Adds new windows, and removes invalid partitions; returns the range that includes the given windows.

        Windows keep the order in which they were first added, and a Dagster run covers a range of windows. Users can
        add partitions of any name in the UI. Invalid windows are removed, because every run across them would fail.
        Keys that are neither an id nor a name of a run are removed too, because their cells could only fail.
        """
        for key in instance.get_dynamic_partitions(self.run_ids.name or ""):
            if run_id_in(key) is None and not plans.is_name(key):
                self.forget(instance, key)
        name = self.windows.name or ""
        existing = instance.get_dynamic_partitions(name)
        for foreign in (window for window in existing if not layout.is_window(window)):
            instance.delete_dynamic_partition(name, foreign)
        new = [window for window in windows if window not in existing]
        for start in range(0, len(new), _CHUNK):
            instance.add_dynamic_partitions(name, new[start : start + _CHUNK])
        ordered = tuple(instance.get_dynamic_partitions(name))
        places = [ordered.index(window) for window in windows]
        return ordered[min(places) : max(places) + 1]

    def forget(self, instance: dg.DagsterInstance, key: str) -> None:
        """Removes a key of the dimension run_id, so that the UI no longer shows its cells."""
        instance.delete_dynamic_partition(self.run_ids.name or "", key)

    def covered(self, instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[dg.MultiPartitionKey]:
        """The cells of a Dagster run, by its tags, for steps without partitions of their own, such as checks."""
        keys = [run.tags[_PARTITION_TAG]] if _PARTITION_TAG in run.tags else []
        if RANGE_START_TAG in run.tags:
            covered = dg.PartitionKeyRange(run.tags[RANGE_START_TAG], run.tags[RANGE_END_TAG])
            keys = [*self.definition.get_partition_keys_in_range(covered, dynamic_partitions_store=instance)]
        return [self.definition.get_partition_key_from_str(key) for key in keys]

    def tags(self, key: str, windows: Sequence[str], flow: str) -> dict[str, str]:
        """Tags that make one Dagster run cover the windows of a key of run_id from the first to the last."""
        return {
            RANGE_START_TAG: f"{key}|{windows[0]}",
            RANGE_END_TAG: f"{key}|{windows[-1]}",
            REPOSITORY_TAG: self.repository,
            FLOW_TAG: flow,
        }


def key_of(run_id: str) -> str:
    """The key of the dimension run_id for a run without a name: the minute in which it was opened, UTC, and its id."""
    return f"{layout.as_datetime(layout.created_at(run_id)):%Y-%m-%d %H:%M} {run_id}"


def run_id_in(key: str) -> str | None:
    """The id in a key of the dimension run_id; None for a name. An id behind another time than its own is a name."""
    run_id = key[-layout.XID_LENGTH :]
    return run_id if layout.is_xid(run_id) and key in (run_id, key_of(run_id)) else None


def runs_of(store: ObjectStore, key: str) -> list[str]:
    """Ids of the runs that a key of the dimension run_id means; none for a name without a run. Raises CorruptFile."""
    if (run_id := run_id_in(key)) is not None:
        return [run_id]
    return plans.runs_named(store, key) if plans.is_name(key) else []


def selected(partition_keys: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The one run id and the windows that a Dagster run covers.

    Raises OrderViolation without any (a range whose end was added before its start), and for more than one run id.
    """
    cells = [key.keys_by_dimension for key in partition_keys if isinstance(key, dg.MultiPartitionKey)]
    run_ids = {cell["run_id"] for cell in cells}
    if not cells:
        raise OrderViolation(
            "the selection covers no partition: choose a range from an older to a newer window, or use the job open_run"
        )
    if len(run_ids) > 1:
        raise OrderViolation(
            f"the selection covers {len(run_ids)} run ids, but one Dagster run collects one: choose a single run_id"
        )
    return run_ids.pop(), tuple(dict.fromkeys(cell["slice"] for cell in cells))


def run_key_of(run: dg.DagsterRun) -> str | None:
    """The key of the dimension run_id that a Dagster run covers, an id or a name; None if it covers no partition."""
    cell = run.tags.get(RANGE_START_TAG) or run.tags.get(_PARTITION_TAG)
    return cell.partition("|")[0] if cell else None


def run_keys_of(run: dg.DagsterRun) -> set[str]:
    """The keys at the start and the end of the partitions that a Dagster run covers; empty if it covers none."""
    tags = (RANGE_START_TAG, RANGE_END_TAG, _PARTITION_TAG)
    return {run.tags[tag].partition("|")[0] for tag in tags if tag in run.tags}


def location_of(run: dg.DagsterRun) -> str | None:
    """The code location of a Dagster run, as in addresses of the UI; None outside of any."""
    origin = run.remote_job_origin.repository_origin if run.remote_job_origin else None
    return origin.code_location_origin.location_name if origin else None


def newest_metadata(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dict[str, Any]:
    """The metadata of the newest event of an asset; empty if there is none."""
    event = instance.get_latest_materialization_event(asset)
    materialization = event.asset_materialization if event else None
    return {name: value.value for name, value in materialization.metadata.items()} if materialization else {}


def requested_flow(run: dg.DagsterRun) -> Flow:
    """The flow in a Dagster run's tag, by default clean. Raises OrderViolation for an unknown flow."""
    flow = run.tags.get(FLOW_TAG, Flow.CLEAN.value)
    if flow not in tuple(Flow):
        raise OrderViolation(f"the tag {FLOW_TAG} is {flow!r}, which is none of the flows {', '.join(Flow)}")
    return Flow(flow)


def assets_to_make(run: dg.DagsterRun, assets: Iterable[str]) -> Iterator[str]:
    """Yields the assets that a Dagster run makes: those of its selection or re-execution, else all.

    A selection of only checks makes none.
    """
    if run.asset_check_selection and not run.asset_selection:
        return
    selection = {key.path[-1] for key in run.asset_selection or ()}
    steps = {asset_of(step) for step in run.step_keys_to_execute or ()}
    for name in assets:
        if (not selection or name in selection) and (not steps or name in steps):
            yield name


def asset_of(step_key: str) -> str:
    """Name of a step's asset, without the prefix of its key; for a check's step, some other name."""
    return step_key.rpartition("__")[-1]


Reaction: TypeAlias = Callable[[dg.SensorEvaluationContext, dg.DagsterRun, str], dg.RunRequest | dg.SkipReason | None]
"""Reacts to a Dagster run and the message of its end; returns None for a run that it ignores."""


def for_each_ended_run(
    event_type: Literal[dg.DagsterEventType.RUN_SUCCESS, dg.DagsterEventType.RUN_FAILURE], react: Reaction
) -> Callable[[dg.SensorEvaluationContext], dg.SensorResult]:
    """The function of a sensor that reacts to the ended runs of its code location, one per tick.

    A failed tick is repeated with the same run. The cursor is the storage id of the last event. Users can set any
    cursor in the UI. With an invalid cursor, or one beyond every event, the sensor continues from the newest event. A
    run status sensor of Dagster would wait for ever, or fail at each tick.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        instance, here = context.instance, context.code_location_origin
        newest = instance.fetch_run_status_changes(event_type, limit=1).records
        last = newest[0].storage_id if newest else _BEFORE_ALL
        if (seen := _event_in(context.cursor, last)) is None:
            return dg.SensorResult(skip_reason="continuing from the newest event", cursor=str(last))
        later = dg.RunStatusChangeRecordsFilter(event_type, after_storage_id=seen)
        for record in instance.fetch_run_status_changes(later, limit=_EVENTS_IN_A_TICK, ascending=True).records:
            seen, event = record.storage_id, record.event_log_entry.dagster_event
            run = instance.get_run_by_id(record.run_id)
            # Outside of any code location, both have none.
            if run is None or location_of(run) != (here.location_name if here else None):
                continue
            reaction = react(context, run, (event.message if event else None) or "")
            if isinstance(reaction, dg.RunRequest):
                return dg.SensorResult(run_requests=[reaction], cursor=str(seen))
            if reaction is not None:
                return dg.SensorResult(skip_reason=reaction, cursor=str(seen))
        return dg.SensorResult(skip_reason="no run has ended", cursor=str(seen))

    return evaluate


def _event_in(cursor: str | None, newest: int) -> int | None:
    """The storage id in a cursor; None for an invalid cursor, or one beyond the newest event."""
    try:
        event = int(cursor or "")
    except ValueError:
        return None
    return event if str(event) == cursor and _BEFORE_ALL <= event <= newest else None


@dataclass(frozen=True)
class Names:
    """Names of a repository's definitions in Dagster.

    They are plain if a code location collects one repository; with several, each repository has its own.

    Attributes:
        repository: the repository, or its name in the configuration if two servers have a repository of the same name.
        apart: True if its names must differ from those of other repositories: the repository is then a prefix of
            assets, and a suffix of all other names.
    """

    repository: str
    apart: bool = False

    @classmethod
    def from_loaded(cls, loaded: Loaded) -> "Names":
        """The names that a configuration gives its repository."""
        return cls(loaded.configuration.label, loaded.apart)

    @property
    def identifier(self) -> str:
        """The repository in characters that are valid in all names in Dagster."""
        return re.sub(r"[^A-Za-z0-9_]", "_", self.repository)

    @property
    def partitions(self) -> RunPartitions:
        """The partitions of its assets."""
        return RunPartitions(self.repository)

    @property
    def pool(self) -> str:
        """The concurrency pool of all work that collects it, for every kind of launch."""
        return f"lakefs_gc_{self.identifier}"

    def qualified(self, name: str) -> str:
        """Name of a job, op, sensor, schedule, group or resource."""
        return f"{name}_{self.identifier}" if self.apart else name

    def asset(self, name: str) -> dg.AssetKey:
        """Key of an asset."""
        return dg.AssetKey([self.identifier, name] if self.apart else [name])

    @property
    def collector(self) -> str:
        """Key of the resource that its assets, jobs and sensors use.

        Each repository has its own key. If two in one code location shared one, Dagster would refuse them. Resources of
        Definitions: "have different resources with same key 'collector'". Resources bound by `dg.with_resources`:
        "Conflicting versions of resource with key 'collector' were provided to different assets", since the UI
        materializes all assets by one implicit job.
        """
        return self.qualified("collector")

    def bound(self, function: Function) -> Function:
        """The function for Dagster, with its parameter `collector` renamed to this repository's key.

        Dagster takes the keys of resources from the names of typed parameters.
        """
        if not self.apart:
            return function
        signature, key = inspect.signature(function), self.collector

        def renamed(*args: Any, **given: Any) -> Any:
            return function(*args, collector=given.pop(key), **given)

        parameters = [
            each.replace(name=key) if each.name == "collector" else each for each in signature.parameters.values()
        ]
        renamed.__name__, renamed.__doc__ = function.__name__, function.__doc__
        renamed.__annotations__ = {each.name: each.annotation for each in parameters}
        vars(renamed)["__signature__"] = inspect.Signature(parameters)
        return cast("Function", renamed)
