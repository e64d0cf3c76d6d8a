"""Reading rules of retention for the server from a file: the JSON of its API, as `lakectl gc set-config` takes it.

{"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 28}]}
"""

import json
from pathlib import Path
from typing import Any, NoReturn

from lakefs_gc_assets.collector.retention.retention_rules import require_sane
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.api.models import RetentionRules

_KEYS = {"default_retention_days", "branches"}
_RULE_KEYS = {"branch_id", "retention_days"}


def load(file: Path) -> RetentionRules:
    """Reads rules. Raises ConfigurationError where they are no such JSON, or cannot be meant."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file} is not in UTF-8") from None
    return parse(text, str(file))


def parse(text: str, file: str) -> RetentionRules:
    """The rules that a text states; `file` is its name, for messages."""
    try:
        content = json.loads(text)
    except ValueError as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigurationError(
            f"{file}{line}: not JSON ({getattr(error, 'msg', error)}). The server's rules are JSON; a policy in YAML "
            "belongs into the setting collection.retention_policy"
        ) from None

    def wrong(problem: str) -> NoReturn:
        raise ConfigurationError(f"{file}: {problem}")

    def days(value: Any, name: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            wrong(f"{name} must be a whole number of days, not {json.dumps(value)}")
        return value

    if not isinstance(content, dict) or not content.keys() <= _KEYS or "default_retention_days" not in content:
        wrong("rules are an object of default_retention_days and branches")
    branches: dict[str, int] = {}
    rules = content.get("branches") or []
    if not isinstance(rules, list):
        wrong("branches must be a list")
    for rule in rules:
        if not isinstance(rule, dict) or rule.keys() != _RULE_KEYS:
            wrong("each rule of branches is an object of branch_id and retention_days")
        name = rule["branch_id"]
        if not isinstance(name, str) or not name or name in branches:
            wrong(f"branch_id must be the name of a branch without a rule so far, not {json.dumps(name)}")
        branches[name] = days(rule["retention_days"], f"retention_days of {name}")
    found = RetentionRules(days(content["default_retention_days"], "default_retention_days"), branches)
    require_sane(found)
    if not found.default_days and not found.branches:
        wrong("lakeFS takes zero days for all for no rules, by which everything stays. Name at least one branch")
    return found
