"""Action files (`_lakefs_actions/*.yaml`): maximum time that their hooks can delay a commit.

The format is `Action` in `pkg/actions/action.go` of lakeFS 1.86. The limits are in `webhook.go`, `airflow.go` and
`lua.go` beside it. Hooks of an action run in sequence, actions run in parallel. A branch update that loses against
another one is retried, hooks included, up to `BranchUpdateMaxTries` times (`pkg/graveler/graveler.go`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

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
    if seconds is None:
        return HookLimit(why_unknown=f"the timeout of hook {name} is no duration such as 90s")
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
