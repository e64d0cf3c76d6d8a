"""Commits under way: the server does not show them, so only time protects the objects that they are about to hold.

A commit seals the staged entries of its branch, runs hooks, writes ranges, and moves the head. Merges, reverts,
cherry-picks, imports and hard updates of branches do the same. If a sealed path is staged anew or removed meanwhile,
the server lists only the newer entry: no answer and no refs dump shows the sealed one until the commit ends. Before the
commit the entry was listed, and after it the entry is committed. So an object may be deleted only if two checks found
it unused, and if the second check's refs were dumped later than the first check's end plus the longest commit.

The longest commit is an allowance for the server's own work plus the limits of hooks. Hooks are defined in action
files in each branch's own tree, and may be staged there. The format is `Action` in `pkg/actions/action.go` of lakeFS
1.86. The limits are in `webhook.go`, `airflow.go` and `lua.go` beside it. Hooks of an action run in sequence, actions
run in parallel. A branch update that loses against another one is retried, hooks included, up to
`BranchUpdateMaxTries` times (`pkg/graveler/graveler.go`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any

import yaml

from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.api.models import ObjectStats
from lakefs_gc_assets.settings import CollectionSettings

_CONCURRENT_QUESTIONS = 16
ACTIONS_PREFIX = "_lakefs_actions/"
"""Folder of action files on a branch; the server reads every file in it, with any extension."""
TRIES = 10
"""Maximum tries of the server for one branch update."""
HOLDING_EVENTS = frozenset({"pre-commit", "pre-merge", "pre-revert", "pre-cherry-pick"})
"""Events whose hooks run after staged data is sealed and before the branch has its new head."""
_DEFAULT_SECONDS = 60.0
_AIRFLOW_REQUEST_SECONDS = 5.0
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)")
_DURATIONS = re.compile(rf"\+?(?:{_DURATION.pattern})+")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
LARGEST_FILE = 1_000_000
"""Maximum bytes of an action file to read."""


@dataclass(frozen=True, slots=True)
class HookLimit:
    """Maximum time that the hooks of one action file can delay a commit.

    Attributes:
        seconds: limit for one try; 0 if no hook of the file delays a commit.
        why_unknown: reason for a missing limit, such as a Lua hook; empty if there is a limit.
    """

    seconds: float = 0.0
    why_unknown: str = ""


@dataclass(frozen=True, slots=True)
class SlowestHooks:
    """The action files that can hold commits longest.

    Attributes:
        seconds: maximum duration of all tries together; 0 without hooks.
        where: the file and branch with this limit; empty without hooks.
        without_limit: a file and branch whose hooks have no known limit, with the reason; empty if there is none.
    """

    seconds: float = 0.0
    where: str = ""
    without_limit: str = ""


def find_slowest_hooks(repository: OpenRepository) -> SlowestHooks:
    """Reads the action files of all branches of this repository and of the repositories in `also_live`.

    Staged files are read, too. It makes one call for each branch, and one request to the store for each distinct file.

    Raises LakeFSError if a branch cannot be listed. A file that cannot be read has no known limit.
    """
    found: list[tuple[HookLimit, str]] = []
    for each in (repository, *repository.others):
        name = "" if each is repository else f" of repository {each.facts.id}"
        limits: dict[str, HookLimit] = {}
        for branch, file in _list_action_files(each):
            if file.physical_address not in limits:
                limits[file.physical_address] = _read_file(each, file)
            found.append((limits[file.physical_address], f"{file.path} on branch {branch}{name}"))
    unknown = (f"{where}: {limit.why_unknown}" for limit, where in found if limit.why_unknown)
    slowest, where = max(found, key=lambda one: one[0].seconds, default=(HookLimit(), ""))
    return SlowestHooks(slowest.seconds * TRIES, where if slowest.seconds else "", next(unknown, ""))


def longest_commit(hooks_seconds: float, settings: CollectionSettings) -> timedelta:
    """Maximum duration of a commit, from its seal to the new head.

    Args:
        hooks_seconds: maximum duration of its hooks, all tries together.
    """
    by_hooks = settings.wait_before_recheck_seconds + hooks_seconds
    return timedelta(seconds=max(by_hooks, 60 * settings.longest_commit_minutes))


def _list_action_files(repository: OpenRepository) -> Iterator[tuple[str, ObjectStats]]:
    """The action files of all branches, each with its branch."""
    api = repository.api

    def list_files(branch: str) -> list[tuple[str, ObjectStats]]:
        files: list[tuple[str, ObjectStats]] = []
        after, more = "", True
        while more:
            page = api.list_objects(branch, after, ACTIONS_PREFIX)
            files += [(branch, each) for each in page.objects]
            after, more = (page.objects[-1].path if page.objects else after), page.more
        return files

    branches = (branch.id for branch in api.branches())
    return chain.from_iterable(work_ahead(list_files, branches, _CONCURRENT_QUESTIONS))


def _read_file(repository: OpenRepository, file: ObjectStats) -> HookLimit:
    keys = repository.namespace.live_keys(file.physical_address, AddressType.FULL)
    if not keys:
        return HookLimit(why_unknown="it is outside of the storage namespace")
    if file.size is None or file.size > LARGEST_FILE:
        return HookLimit(why_unknown=f"it is larger than {LARGEST_FILE:,} bytes")
    try:
        return read_hook_limit(repository.store.get(keys[0]))
    except StorageError as error:
        return HookLimit(why_unknown=f"it cannot be read: {error}")


def read_hook_limit(data: bytes) -> HookLimit:
    """The limit of an action file. An unreadable file has no limit, because the server may be able to read it."""
    try:
        action = yaml.safe_load(data.decode())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return HookLimit(why_unknown=f"it cannot be read as YAML: {type(error).__name__}")
    # PyYAML parses a bare `on` as true, as in YAML 1.1; lakeFS parses YAML 1.2.
    events = action.get("on", action.get(True)) if isinstance(action, Mapping) else None
    if not isinstance(events, Mapping):
        return HookLimit(why_unknown="it does not say on which events it runs")
    if not HOLDING_EVENTS.intersection(events):
        return HookLimit()
    hooks = action.get("hooks") or []
    if not isinstance(hooks, list):
        return HookLimit(why_unknown="its hooks are no list")
    limits = [_hook_limit(hook) for hook in hooks]
    unknown = next((limit.why_unknown for limit in limits if limit.why_unknown), "")
    return HookLimit(sum(limit.seconds for limit in limits), unknown)


def _hook_limit(hook: Any) -> HookLimit:
    if not isinstance(hook, Mapping):
        return HookLimit(why_unknown="one of its hooks is no mapping")
    name, kind, properties = hook.get("id"), hook.get("type"), hook.get("properties") or {}
    if not isinstance(properties, Mapping):
        return HookLimit(why_unknown=f"the properties of hook {name} are no mapping")
    seconds = _timeout(properties.get("timeout"))
    if kind not in ("webhook", "airflow"):
        return HookLimit(why_unknown=f"hook {name} is of type {kind}, which has no time limit")
    # Go's HTTP client takes 0 for no timeout, and durations are whole nanoseconds.
    if seconds is None or (kind == "webhook" and seconds < 1e-9):
        return HookLimit(why_unknown=f"the timeout of hook {name} is no duration above 0, such as 90s")
    if kind == "webhook":
        return HookLimit(seconds)
    waits = properties.get("wait_for_dag") is True
    # The last status request for the DAG may begin right before the timeout.
    return HookLimit(_AIRFLOW_REQUEST_SECONDS + (seconds + _AIRFLOW_REQUEST_SECONDS if waits else 0.0))


def _timeout(stated: object) -> float | None:
    """Seconds of a timeout as Go's `time.ParseDuration` parses it; None for a text that is not a duration.

    The server's default of one minute applies if there is no text, also for a bare number.
    """
    if not isinstance(stated, str) or not stated:
        return _DEFAULT_SECONDS
    if not _DURATIONS.fullmatch(stated):
        return None
    return sum(float(part.rstrip("nuµμmsh")) * _UNITS[part.lstrip("0123456789.")] for part in _DURATION.findall(stated))
