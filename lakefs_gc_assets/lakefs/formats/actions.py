"""Action files (`_lakefs_actions/*.yaml`): how long their hooks can hold a commit.

The format is `Action` in `pkg/actions/action.go` of lakeFS 1.86, and the limits are those of `webhook.go`, `airflow.go`
and `lua.go` beside it. Hooks of an action run one after the other, actions run side by side. A branch update that loses
against another one is tried again, hooks included, `BranchUpdateMaxTries` times (`pkg/graveler/graveler.go`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

ACTIONS_PREFIX = "_lakefs_actions/"
"""Folder of action files on a branch; the server reads every file in it, whatever its name ends with."""
TRIES = 10
"""How often the server makes one update of a branch at most."""
HOLDING_EVENTS = frozenset({"pre-commit", "pre-merge", "pre-revert", "pre-cherry-pick"})
"""Events whose hooks run after staged data was sealed and before the branch has its new head."""
_DEFAULT_SECONDS = 60.0
_AIRFLOW_REQUEST_SECONDS = 5.0
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)")
_DURATIONS = re.compile(rf"\+?(?:{_DURATION.pattern})+")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
LARGEST_FILE = 1_000_000
"""Bytes of an action file that is read at most."""


@dataclass(frozen=True, slots=True)
class HookLimit:
    """How long the hooks of one action file can hold a commit.

    Attributes:
        seconds: for one try; 0 if no hook of the file holds one.
        why_unknown: why there is no limit, such as a Lua hook; empty if there is one.
    """

    seconds: float = 0.0
    why_unknown: str = ""


def read_hook_limit(data: bytes) -> HookLimit:
    """The limit that an action file states. A file that cannot be read has none: the server may read it otherwise."""
    try:
        action = yaml.safe_load(data.decode())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return HookLimit(why_unknown=f"it cannot be read as YAML: {type(error).__name__}")
    # PyYAML takes a bare `on` for true, as YAML 1.1 does; lakeFS reads YAML 1.2.
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
    if seconds is None:
        return HookLimit(why_unknown=f"the timeout of hook {name} is no duration such as 90s")
    if kind == "webhook":
        return HookLimit(seconds)
    waits = properties.get("wait_for_dag") is True
    # The last question about the DAG may begin right before the timeout.
    return HookLimit(_AIRFLOW_REQUEST_SECONDS + (seconds + _AIRFLOW_REQUEST_SECONDS if waits else 0.0))


def _timeout(stated: object) -> float | None:
    """Seconds of a timeout as Go's `time.ParseDuration` reads it; None for a text that is no duration.

    The server takes a minute if there is no text, for a bare number too.
    """
    if not isinstance(stated, str) or not stated:
        return _DEFAULT_SECONDS
    if not _DURATIONS.fullmatch(stated):
        return None
    return sum(float(part.rstrip("nuµμmsh")) * _UNITS[part.lstrip("0123456789.")] for part in _DURATION.findall(stated))
