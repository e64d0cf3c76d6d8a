"""The plan: everything that a run decided before it read the first object, written first and never changed.

Runs of every kind go through the same five steps; they differ in their plan alone. Of a dry run, a person's approval
may stand beside the plan: the candidates are to be deleted after all.
"""

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

from lakefs_gc_assets.collector.records import records_json, run_folder
from lakefs_gc_assets.collector.records.outcomes import Why
from lakefs_gc_assets.errors import AlreadyExists, CollectionError, CorruptFile, NotOffered, OrderViolation
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.storage.interface import ObjectStore, keys_below

FORMAT_VERSION = 3
_WINDOWS_NAMED = 3
MAX_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9 ._:@+-]{{0,{MAX_NAME - 2}}}[A-Za-z0-9])?")
"""Dagster splits cells at `|`, ranges at `...`, and lists of them at commas and brackets."""


class Flow(StrEnum):
    """Kinds of run.

    | flow | what may be garbage | commits that are live |
    |---|---|---|
    | `clean` | every listed object | all |
    | `optimized` | objects of slices where something may be new, and those that waited | all |
    | `committed` | what expired commits hold; nothing is listed | active ones |
    | `unified` | every listed object | active ones |

    A run of the flow `unified` that builds on another one by retention rules looks at what an optimized one does, and
    at what expired since. One of the flow `committed` looks at what expired since, and at what its base run left.
    """

    CLEAN = "clean"
    OPTIMIZED = "optimized"
    COMMITTED = "committed"
    UNIFIED = "unified"

    @property
    def by_retention(self) -> bool:
        """True if only active commits are live, not all commits."""
        return self in (Flow.COMMITTED, Flow.UNIFIED)


_BY_FLOW = {
    Flow.CLEAN: Why.NO_COMMIT,
    Flow.OPTIMIZED: Why.NO_COMMIT,
    Flow.COMMITTED: Why.EXPIRED,
    Flow.UNIFIED: Why.NO_ACTIVE_COMMIT,
}


def by_flow(flow: Flow) -> Why:
    """Why everything is garbage that a run of this flow finds, unless an earlier run deleted it and it came back."""
    return _BY_FLOW[flow]


ALL_COMMITS = "all commits"
"""The live definition of flows that keep whatever any commit holds."""

ACTIVE_COMMITS = "active commits"
"""The live definition of flows that apply retention rules; the rules are read at each step that needs them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of one run. Times UTC, durations in seconds.

    Attributes:
        flow: which universe is collected against which live set.
        run_id: a descending xid, also the name of the run's folder.
        attempt: names one pass over the graph; frames of different attempts are never combined.
        owner: the first Dagster run of this collection; re-executions keep it.
        cutoff: nothing named or written at or after this moment is a candidate.
        earliest_clock: what the earliest of the clocks said: the moment that ages of commits count back from.
        windows: the slice windows that are collected. A run that builds on no other lists no other windows; elsewhere
            they are stored and subtracted, never collected.
        sweep: whether candidates are deleted; otherwise it is a dry run.
        previous_run: the newest run before this one, however it ended; None for the first.
        live_definition: what counts as live, in words or as a digest; runs that differ in it cannot build on others.
        base_run: the run that this one builds on; None where it looks at everything.
        base_run_attempt: the attempt of that run whose checkpoint is meant; one made again left another.
        why_clean: why a run that was to build on another one looks at everything: an optimized one is a clean one then.
            None where it does not, or where it was not to.
        inventory: manifest of the S3 Inventory that is read in place of a listing; None where the store is listed.
        loosened: settings that a launch changed for this run, `sweep` among them where it asked for that.
        opened: whether the run was opened, so that nobody chose its id; plans of earlier versions do not say.
        no_lock: why the run began without a lock that holds; None where it had one.
        name: the name under which somebody opened the run, see `RunName`; None where it has only its id.
        only_addresses: no other object is a candidate; None for all.
    """

    flow: Flow
    repository: str
    storage_namespace: str
    run_id: str
    attempt: str
    owner: str
    started_at: datetime
    cutoff: datetime
    earliest_clock: datetime
    min_age_seconds: float
    grace_period_seconds: float
    clock_skew_seconds: float
    slice_window: WindowSize
    windows: tuple[str, ...]
    sweep: bool
    previous_run: str | None = None
    live_definition: str = ALL_COMMITS
    base_run: str | None = None
    base_run_attempt: str | None = None
    why_clean: str | None = None
    inventory: str | None = None
    loosened: dict[str, bool | int | float] = field(default_factory=dict)
    opened: bool = True
    no_lock: str | None = None
    name: str | None = None
    only_addresses: tuple[str, ...] | None = None
    format_version: int = FORMAT_VERSION
    ADDED: ClassVar = ("opened", "no_lock", "name", "only_addresses")

    @property
    def scope(self) -> str:
        """Its windows in words."""
        return describe_windows(self.windows)

    @property
    def follows_expiry(self) -> bool:
        """True if it lists little, and looks at objects that expired since its base run besides."""
        return self.flow is Flow.UNIFIED and self.base_run is not None

    @property
    def believes_facts(self) -> bool:
        """True if it believes facts that other runs recorded about what is live.

        A run of the flow `committed` reads all that is live. It only believes facts about expired commits.
        """
        return self.flow is not Flow.COMMITTED and self.base_run is not None

    @property
    def skew(self) -> timedelta:
        """The margin below every clock."""
        return timedelta(seconds=self.clock_skew_seconds)

    def to_json(self) -> bytes:
        """The plan as it is stored."""
        return records_json.encode(self)


def describe_windows(windows: Sequence[str]) -> str:
    """Windows in words, of many the first and the last."""
    if len(windows) == 1:
        return f"the window {windows[0]}"
    if len(windows) <= _WINDOWS_NAMED:
        return f"the windows {', '.join(windows)}"
    return f"the windows {windows[0]} to {windows[-1]}, {len(windows):,} in all"


def read(store: ObjectStore, run_id: str) -> Plan:
    """The stored plan of a run. Raises CollectionError where there is none, CorruptFile where it is of another run."""
    plan = _stored(store, run_id)
    if plan is None:
        raise CollectionError(
            f"there is no run {run_id} of this repository: `lakefs-gc status` lists the ids of all runs, and the "
            "Dagster UI shows them as lakefs/run_id"
        )
    return plan


def write_first(store: ObjectStore, plan: Plan) -> None:
    """Writes the plan of a new run; a run that another Dagster run began is refused, its own next attempt is not.

    Raises OrderViolation.
    """
    key = run_folder.plan(plan.run_id)
    earlier: Plan | None
    try:
        store.put_if_absent(key, plan.to_json())
        return
    except AlreadyExists:
        earlier = read(store, plan.run_id)
    except NotOffered:
        earlier = _stored(store, plan.run_id)
    if earlier is not None and earlier.owner != plan.owner:
        raise OrderViolation(
            f"run {plan.run_id} is already collected by Dagster run {earlier.owner}: one run id belongs to one Dagster "
            "run. Re-execute that run, or open a new one with the job open_run"
        )
    store.put(key, plan.to_json())


@dataclass(frozen=True, slots=True)
class RunName:
    """Record that a name, which somebody chose, means a run over some windows.

    A name has a run for each selection of windows. The run has an id that nobody chose.
    """

    name: str
    windows: tuple[str, ...]
    run_id: str
    format_version: int = 1


def is_name(name: str) -> bool:
    """True if a run can be opened under this name."""
    return _NAME.fullmatch(name) is not None and ".." not in name


def require_name(name: str) -> None:
    """Raises OrderViolation if a run cannot be opened under this name."""
    if not is_name(name):
        raise OrderViolation(
            f"{name!r} cannot name a run: take up to {MAX_NAME} letters, digits, spaces and any of . _ : @ + -, with a "
            "letter or digit at both ends and no two dots in a row"
        )


def write_name(store: ObjectStore, plan: Plan) -> None:
    """Records the name of a run whose plan is stored. Raises OrderViolation if the name means another run already."""
    assert plan.name is not None
    key = run_folder.name(plan.name, plan.windows)
    data = records_json.encode(RunName(plan.name, plan.windows, plan.run_id))
    try:
        store.put_if_absent(key, data)
        return
    except AlreadyExists:
        found = find_named(store, plan.name, plan.windows)
    except NotOffered:
        found = find_named(store, plan.name, plan.windows)
        if found is None:
            store.put(key, data)
            return
    if found != plan.run_id:
        raise OrderViolation(f"{plan.name} was opened as run {found} at the same time: materialize it again")


def find_named(store: ObjectStore, name: str, windows: Collection[str]) -> str | None:
    """The id of the run that a name means over some windows, in any order; None if nobody opened one.

    Raises CorruptFile unless the run's own plan has that name and these windows.
    """
    key = run_folder.name(name, windows)
    record = records_json.read(store, RunName, key)
    if record is None:
        return None
    plan = _stored(store, record.run_id)
    if plan is None or plan.name != name or {*plan.windows} != {*windows}:
        raise CorruptFile(key, "name", f"run {record.run_id} is not called {name}, or covers other windows")
    return record.run_id


def runs_named(store: ObjectStore, name: str) -> list[str]:
    """The ids of all runs that were opened under a name, over any windows. Raises CorruptFile."""
    keys = keys_below(store, run_folder.names(name))
    return [record.run_id for key in keys if (record := records_json.read(store, RunName, key)) is not None]


def _stored(store: ObjectStore, run_id: str) -> Plan | None:
    return records_json.read(store, Plan, run_folder.plan(run_id), run_id)


KNOWN_BY = ", as the "
"""Separates the name of an approver from who says it, such as `Ada, as the launch says`."""


def person(approver: str) -> str:
    """The name of an approver for comparison: names that look alike are equal.

    Case, blanks, forms of one letter (NFKC) and invisible characters make no other person. Letters of other alphabets
    that look alike do.
    """
    name = unicodedata.normalize("NFKC", approver.partition(KNOWN_BY)[0])
    visible = (letter for letter in name if unicodedata.category(letter) != "Cf" and letter not in _VARIANTS)
    return " ".join(unicodedata.normalize("NFKC", "".join(visible).casefold()).split())


_VARIANTS = frozenset(map(chr, (0x034F, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
"""Marks that show nothing: the grapheme joiner and variation selectors."""


@dataclass(frozen=True, slots=True)
class Approval:
    """Approval to delete the candidates of one dry run.

    Attributes:
        attempt, candidates_digest: name the very frame of candidates; one that was made again needs a new approval.
        approved_at: UTC.
        approved_by: who approved, and how that is known; empty in approvals of earlier versions.
    """

    run_id: str
    attempt: str
    candidates_digest: str
    approved_at: datetime
    approved_by: str = ""
    format_version: int = 1
    ADDED: ClassVar = ("approved_by",)


def write_approval(store: ObjectStore, approval: Approval) -> None:
    """Stores an approval, in place of an earlier one of the run."""
    store.put(run_folder.approval(approval.run_id), records_json.encode(approval))


def write_first_approval(store: ObjectStore, approval: Approval) -> None:
    """Stores the first of two approvals, on the strength of which nothing is deleted."""
    store.put(run_folder.first_approval(approval.run_id), records_json.encode(approval))


def read_approval(store: ObjectStore, run_id: str) -> Approval | None:
    """The approval of a run; None where there is none. Raises CorruptFile."""
    return records_json.read(store, Approval, run_folder.approval(run_id), run_id)


def read_first_approval(store: ObjectStore, run_id: str) -> Approval | None:
    """The first of two approvals of a run; None where there is none. Raises CorruptFile."""
    return records_json.read(store, Approval, run_folder.first_approval(run_id), run_id)
