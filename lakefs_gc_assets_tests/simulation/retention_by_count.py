"""Commits that policies keep by number, derived from the world's log of lines and from calendars.

It uses no graph, and no code of the product. `kept_by_true_times` is the requirement. `kept_as_told` is a run's
knowledge, which keeps doubtful commits as well.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lakefs_gc_assets_tests.simulation.clocks import HOUR

POLICIES = {
    "": "",
    "last": "branches: {'*': {retention: 0d, keep_last: 2}}\nkeep_tags: ['v[2]']",
    "days": "branches: {'*': {retention: 0d, keep: {daily: 3, monthly: 2}}}",
    "weeks": "branches: {'[ma]*': {retention: 0d, keep: {weekly: 2}}, '[doz]*': {retention: 0d, keep: {daily: 2}}}",
    "merges": "branches: {'*': {retention: 60h, keep_last: 1, follow: all-parents}}\nkeep_tags: ['v[13]']",
}
"""Policies by name. None names a branch or tag in full, which need not exist."""
Span = tuple[float, float]
"""The earliest and the latest moment at which a commit may have been made, seconds since 1970."""
_PERIODS: dict[str, Callable[[datetime], tuple[int, ...]]] = {
    "daily": lambda made: (made.year, made.month, made.day),
    "weekly": lambda made: made.isocalendar()[:2],
    "monthly": lambda made: (made.year, made.month),
}


@cache
def policy_file(name: str) -> str:
    """Path of a policy's file, for settings; empty for no policy."""
    if not name:
        return ""
    file = Path(tempfile.mkdtemp(prefix="policies-")) / f"{name}.yaml"
    file.write_text(POLICIES[name])
    return str(file)


@cache
def _period(kind: str, day: int) -> tuple[int, ...]:
    return _PERIODS[kind](datetime.fromtimestamp(max(day, 0) * 86_400, UTC))


def period(kind: str, moment: float) -> tuple[int, ...]:
    """The day, week or month of a moment."""
    return _period(kind, int(max(moment, 0.0) // 86_400))


@cache
def _content(policy: str) -> Mapping[str, Any]:
    return yaml.safe_load(POLICIES[policy]) or {}


def rule_of(policy: str, branch: str) -> Mapping[str, Any]:
    """A policy's rule for a branch, by the first letter of its name."""
    rules = _content(policy).get("branches", {})
    return next((rule for pattern, rule in rules.items() if pattern == "*" or branch[0] in pattern), {})


def keeps_tag(policy: str, tag: str) -> bool:
    """True if a policy keeps the commit of a tag."""
    return policy not in ("last", "merges") or (tag == "v2") == (policy == "last")


def followed(policy: str, branch: str) -> float | None:
    """Seconds for which a policy keeps merged commits; None if it does not follow merges."""
    return 60 * HOUR if rule_of(policy, branch).get("follow") else None


def _counts(policy: str, branch: str) -> Iterator[tuple[str, int]]:
    yield from rule_of(policy, branch).get("keep", {}).items()


def kept_by_true_times(
    policy: str, branch: str, line: Sequence[str], made: Callable[[str], float], reported: Callable[[str], Span]
) -> set[str]:
    """Commits of a line that a policy keeps; the line begins with its newest commit.

    If a commit's claim and file (`reported`) agree on a wrong period, nothing is promised from that commit on.
    """
    kept = {*line[: rule_of(policy, branch).get("keep_last", 0)]}
    for kind, count in _counts(policy, branch):
        newest: dict[tuple[int, ...], str] = {}
        for commit in line:
            made_in, said = period(kind, made(commit)), {period(kind, moment) for moment in reported(commit)}
            if (len(newest) == count and made_in not in newest) or (len(said) == 1 and made_in not in said):
                break
            newest.setdefault(made_in, commit)
        kept.update(newest.values())
    return kept


def kept_as_told(policy: str, branch: str, line: Sequence[str], span: Callable[[str], Span]) -> set[str]:
    """Commits of a line that a run keeps, knowing no more of dates than their spans; the line begins with its newest
    commit."""
    kept = {*line[: rule_of(policy, branch).get("keep_last", 0)]}
    for kind, count in _counts(policy, branch):
        filled: set[tuple[int, ...]] = set()
        said: list[tuple[int, ...]] = []
        for commit in line:
            if len(filled) == count:
                break
            first, last = (period(kind, moment) for moment in span(commit))
            if first != last or any(later < last for later in said):
                kept.add(commit)
            elif last not in filled:
                filled.add(last)
                kept.add(commit)
            said.append(last)
    return kept
