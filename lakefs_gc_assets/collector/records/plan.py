"""The plan: everything that a run decided before it read the first object. It is written first and never changed.

Runs of every kind take the same five steps; they differ only in their plan. A person's approval can stand beside the
plan of a dry run. Its candidates are then deleted.
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
from lakefs_gc_assets.errors import (
    AlreadyExists,
    CollectionError,
    ConfigurationError,
    CorruptFile,
    NotOffered,
    OrderViolation,
)
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.storage.interface import ObjectStore, keys_below

FORMAT_VERSION = 3
_WINDOWS_NAMED = 3
MAX_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9 ._:@+-]{{0,{MAX_NAME - 2}}}[A-Za-z0-9])?")
"""Pattern of run names. Dagster splits cells at `|`, ranges at `...`, and lists at commas and brackets."""


class Flow(StrEnum):
    """Kinds of run.

    | flow | possible garbage | live commits |
    |---|---|---|
    | `clean` | every listed object | all |
    | `optimized` | objects of slices that may have new objects, and pending objects | all |
    | `committed` | objects of expired commits; nothing is listed | active ones |
    | `unified` | every listed object | active ones |

    If a run of the flow `unified` builds on another run by retention rules, it examines the objects of an optimized
    run, and those that expired since. If a run of the flow `committed` builds on another, it examines the objects that
    expired since and the pending objects of its base run.
    """

    CLEAN = "clean"
    OPTIMIZED = "optimized"
    COMMITTED = "committed"
    UNIFIED = "unified"

    @property
    def by_retention(self) -> bool:
        """True if only active commits are live."""
        return self in (Flow.COMMITTED, Flow.UNIFIED)


_BY_FLOW = {
    Flow.CLEAN: Why.NO_COMMIT,
    Flow.OPTIMIZED: Why.NO_COMMIT,
    Flow.COMMITTED: Why.EXPIRED,
    Flow.UNIFIED: Why.NO_ACTIVE_COMMIT,
}


def by_flow(flow: Flow) -> Why:
    """Reason why garbage found in this flow is garbage, except for objects that were restored after a deletion."""
    return _BY_FLOW[flow]


ALL_COMMITS = "all commits"
"""The live definition of flows that keep the objects of every commit."""

ACTIVE_COMMITS = "active commits"
"""The live definition of flows that apply retention rules; each step that needs the rules reads them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run. Times UTC, durations in seconds.

    Attributes:
        flow: kind of run: the universe and the live set.
        run_id: a descending xid, also the name of the run's folder.
        attempt: id of a pass over the graph; frames of different attempts are never combined.
        owner: the first Dagster run of this collection; re-executions keep it.
        cutoff: an object named or written at or after this moment is no candidate.
        earliest_clock: time of the earliest clock; ages of commits count back from it.
        windows: the slice windows that are collected. A run without a base run lists only these. Other runs store and
            subtract other windows, but never collect them.
        sweep: True if candidates are deleted, False for a dry run.
        previous_run: the newest run before this one, however it ended; None for the first.
        live_definition: definition of the live set, in words or as a digest. A run builds only on runs with the same
            one.
        base_run: the run that this one builds on; None if it examines everything.
        base_run_attempt: attempt of the base run whose checkpoint is used; another attempt leaves another checkpoint.
        why_clean: reason why a run that was to build on another one examines everything; an optimized run is then a
            clean one. None for other runs.
        inventory: manifest of the S3 Inventory that replaces a listing; None if the store is listed.
        loosened: settings that the launch changed for this run, including `sweep` if requested.
        opened: True if the run was opened, so that its id was generated; plans of earlier versions lack it.
        no_lock: reason why the run began without an enforced lock, or None.
        name: the name under which the run was opened, see `RunName`; None if it has only its id.
        only_addresses: the only addresses that can be candidates; None for all.
        limited: True if the run builds on no other one and leaves out windows whose slices are old enough. Plans of
            earlier versions lack it.
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
    limited: bool = False
    format_version: int = FORMAT_VERSION
    ADDED: ClassVar = ("opened", "no_lock", "name", "only_addresses", "limited")

    @property
    def scope(self) -> str:
        """The windows in words."""
        return describe_windows(self.windows)

    @property
    def follows_expiry(self) -> bool:
        """True if the run lists only unsealed slices, and also examines objects that expired since its base run."""
        return self.flow is Flow.UNIFIED and self.base_run is not None

    @property
    def uses_facts_of_all_runs(self) -> bool:
        """True if the run trusts facts that other runs recorded about live ranges.

        A run of the flow `committed` reads all live ranges. It only trusts facts about expired commits.
        """
        return self.limited or (self.flow is not Flow.COMMITTED and self.base_run is not None)

    @property
    def skew(self) -> timedelta:
        """The margin below every clock."""
        return timedelta(seconds=self.clock_skew_seconds)

    def to_json(self) -> bytes:
        """The plan as it is stored."""
        return records_json.encode(self)


def describe_windows(windows: Sequence[str]) -> str:
    """Windows in words; the first and the last if there are many."""
    if len(windows) == 1:
        return f"the window {windows[0]}"
    if len(windows) <= _WINDOWS_NAMED:
        return f"the windows {', '.join(windows)}"
    return f"the windows {windows[0]} to {windows[-1]}, {len(windows):,} in all"


def read(store: ObjectStore, run_id: str) -> Plan:
    """The stored plan of a run. Raises CollectionError if there is none, CorruptFile if it names another run."""
    plan = _stored(store, run_id)
    if plan is None:
        raise CollectionError(
            f"this repository has no run {run_id}: `lakefs-gc status` lists the ids of all runs, and the "
            "Dagster UI shows them as lakefs/run_id"
        )
    return plan


def write_first(store: ObjectStore, plan: Plan) -> None:
    """Writes the plan of a new run, or of its next attempt.

    Raises OrderViolation if another Dagster run began this run.
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
    """Record of the run that a user's name stands for, over some windows.

    A name has one run for each selection of windows. The id of that run is generated.
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
            f"{name!r} is not valid as the name of a run: use up to {MAX_NAME} letters, digits, spaces and any of . _ "
            ": @ + -, with a letter or digit at both ends and no two dots in a row"
        )


def write_name(store: ObjectStore, plan: Plan) -> None:
    """Records the name of a run whose plan is stored. Raises OrderViolation if another run has that name already."""
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
        raise OrderViolation(f"{plan.name} was also opened as run {found} at the same time: materialize it again")


def find_named(store: ObjectStore, name: str, windows: Collection[str]) -> str | None:
    """The id of the run with a name over some windows, in any order; None if there is none.

    Raises CorruptFile unless the run's own plan has that name and these windows.
    """
    key = run_folder.name(name, windows)
    record = records_json.read(store, RunName, key)
    if record is None:
        return None
    plan = _stored(store, record.run_id)
    if plan is None or plan.name != name or {*plan.windows} != {*windows}:
        raise CorruptFile(key, "name", f"run {record.run_id} does not have the name {name}, or covers other windows")
    return record.run_id


def runs_named(store: ObjectStore, name: str) -> list[str]:
    """Ids of all runs that were opened under a name, over any windows. Raises CorruptFile."""
    keys = keys_below(store, run_folder.names(name))
    return [record.run_id for key in keys if (record := records_json.read(store, RunName, key)) is not None]


def _stored(store: ObjectStore, run_id: str) -> Plan | None:
    return records_json.read(store, Plan, run_folder.plan(run_id), run_id)


KNOWN_BY = ", as the "
"""Separates the name of an approver from its source, such as `Ada, as the launch says`."""


def single_name(name: str) -> str:
    """A name of an approver, without needless blanks. Raises ConfigurationError if it could be read as more."""
    shown = " ".join(name.split())
    if ";" in shown or KNOWN_BY in shown.casefold():
        raise ConfigurationError(
            f"{shown!r} is no name of an approver: a name contains neither a semicolon nor {KNOWN_BY!r}"
        )
    return shown


def person(approver: str) -> str:
    """The name of an approver for comparison: names that look alike are equal.

    Names that differ only in case, blanks, forms of a letter (NFKC) or invisible characters are the same person.
    Letters of other alphabets that look alike make another person.
    """
    name = unicodedata.normalize("NFKC", approver.partition(KNOWN_BY)[0])
    visible = (letter for letter in name if unicodedata.category(letter) != "Cf" and letter not in _VARIANTS)
    return " ".join(unicodedata.normalize("NFKC", "".join(visible).casefold()).split())


_VARIANTS = frozenset(map(chr, (0x034F, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
"""Marks without an appearance of their own: the grapheme joiner and variation selectors."""


@dataclass(frozen=True, slots=True)
class Approval:
    """Approval to delete a dry run's candidates.

    Attributes:
        attempt, candidates_digest: identify the exact frame of candidates. A frame that is made again needs a new
            approval.
        approved_at: UTC.
        approved_by: name of the approver and its source; empty in approvals of earlier versions.
        standing: id of the standing approval by which the candidates are approved; empty if a person approved them.
    """

    run_id: str
    attempt: str
    candidates_digest: str
    approved_at: datetime
    approved_by: str = ""
    standing: str = ""
    format_version: int = 1
    ADDED: ClassVar = ("approved_by", "standing")


def write_approval(store: ObjectStore, approval: Approval) -> None:
    """Stores an approval, replacing an earlier one of the run."""
    store.put(run_folder.approval(approval.run_id), records_json.encode(approval))


def write_first_approval(store: ObjectStore, approval: Approval) -> None:
    """Stores the first of two approvals. It alone permits no deletion."""
    store.put(run_folder.first_approval(approval.run_id), records_json.encode(approval))


def read_approval(store: ObjectStore, run_id: str) -> Approval | None:
    """The approval of a run; None if there is none. Raises CorruptFile."""
    return records_json.read(store, Approval, run_folder.approval(run_id), run_id)


def read_first_approval(store: ObjectStore, run_id: str) -> Approval | None:
    """The first of two approvals of a run; None if there is none. Raises CorruptFile."""
    return records_json.read(store, Approval, run_folder.first_approval(run_id), run_id)
