"""The retention rule that applies to each branch: the server's rules, and a policy of our own on top of them.

Without rules on the server everything is kept, whatever a policy says, unless the policy replaces the server's rules.
`load` reads rules for the server from a file in the JSON of its API, as `lakectl gc set-config` takes it:

{"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 28}]}
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from lakefs_gc_assets.collector.retention.policy import LONGEST_RETENTION, Policy, in_units
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.settings import CommitDates

_DAY = timedelta(days=1)
_CORRECT = "Correct the rules (`lakefs-gc policy set`, or `lakectl gc set-config`)"


@dataclass(frozen=True, slots=True)
class Rule:
    """For how long a replaced head stays; `source` says who asks for it."""

    retention: timedelta
    source: str

    def __str__(self) -> str:
        return f"{in_units(self.retention)} by {self.source}"


@dataclass(frozen=True, slots=True)
class EffectiveRules:
    """The rule of each branch that exists, and the one of dangling commits."""

    default: Rule
    branches: dict[str, Rule]


def require_sane(server: RetentionRules) -> None:
    """Raises ConfigurationError where a number of days cannot be meant."""
    for name, days in (("default_retention_days", server.default_days), *server.branches.items()):
        what = name if name == "default_retention_days" else f"the rule of branch {name}"
        if days < 0:
            raise ConfigurationError(f"the repository's retention rules: {what} is negative ({days} days). {_CORRECT}")
        if days > LONGEST_RETENTION // _DAY:
            raise ConfigurationError(
                f"the repository's retention rules: {what} is {days} days, more than the "
                f"{LONGEST_RETENTION // _DAY:,} that can be meant. {_CORRECT}"
            )


def effective(server: RetentionRules | None, policy: Policy, branches: Iterable[str]) -> EffectiveRules | None:
    """The rules that apply; None where everything is kept.

    Args:
        server: None where the repository has no rules.
        branches: every branch there is.
    Raises:
        ConfigurationError: a rule of the server cannot be meant.
    """
    if server is not None:
        require_sane(server)
    if policy.replace:
        default = policy.default
        if default is None:
            raise ConfigurationError("a policy that replaces the server's rules needs a default")
        base = Rule(default, "the policy's default")
        return EffectiveRules(base, {branch: _of_policy(policy, branch) or base for branch in branches})
    if server is None:
        return None
    base = Rule(server.default_days * _DAY, "the server's default")
    own = {branch: Rule(days * _DAY, f"the server's rule of {branch}") for branch, days in server.branches.items()}
    return EffectiveRules(
        _longer(base, None if policy.default is None else Rule(policy.default, "the policy's default")),
        {branch: _longer(own.get(branch, base), _of_policy(policy, branch)) for branch in branches},
    )


def unknown_branches(server: RetentionRules | None, policy: Policy, branches: Iterable[str]) -> tuple[str, ...]:
    """Rules for branches that do not exist: perhaps gone, perhaps misspelt."""
    known = set(branches)
    unmatched = [
        f"the server's rule of {branch}" for branch in (server.branches if server else ()) if branch not in known
    ]
    unmatched += [
        f"the policy's rule of {name}, line {line}" for name, line in policy.exact_names() if name not in known
    ]
    return tuple(unmatched)


def headless(rules: EffectiveRules) -> Iterator[str]:
    """Warnings about rules of zero days, which keep nothing but branch heads."""
    branches = [branch for branch, rule in rules.branches.items() if not rule.retention]
    if branches:
        named = ", ".join(sorted(branches)[:10]) + (" …" if len(branches) > 10 else "")
        yield (
            f"RETENTION OF ZERO: {len(branches)} of {len(rules.branches)} branches keep their head and nothing of what "
            f"it replaced ({named})"
        )
    if not rules.default.retention:
        yield f"RETENTION OF ZERO: dangling commits keep nothing ({rules.default.source})"


def digest(server: RetentionRules | None, policy: Policy, commit_dates: CommitDates) -> str:
    """Names the rules: two runs with the same digest applied the same ones, to dates of the same kind."""
    stated = None if server is None else [server.default_days, sorted(server.branches.items())]
    return hashlib.sha256(json.dumps([stated, policy.stated(), commit_dates]).encode()).hexdigest()


def _of_policy(policy: Policy, branch: str) -> Rule | None:
    policy_rule = policy.rule_of(branch)
    if policy_rule is not None:
        return Rule(policy_rule.retention, f"the policy's rule {policy_rule.pattern}, line {policy_rule.line}")
    return None if policy.default is None else Rule(policy.default, "the policy's default")


def _longer(first: Rule, second: Rule | None) -> Rule:
    return second if second is not None and second.retention > first.retention else first


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
    parsed = RetentionRules(days(content["default_retention_days"], "default_retention_days"), branches)
    require_sane(parsed)
    if not parsed.default_days and not parsed.branches:
        wrong("lakeFS takes zero days for all for no rules, by which everything stays. Name at least one branch")
    return parsed
