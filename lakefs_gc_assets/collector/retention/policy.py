"""What a policy file says: our own rules of retention on top of the server's.

A policy can only keep more than the server's rules, unless it says `replace: true`. `policy_file` reads it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import translate
from functools import cache

LONGEST_RETENTION = timedelta(days=36_500)
"""A hundred years: a longer one is taken for a mistake."""


@dataclass(frozen=True, slots=True)
class BranchRule:
    """The retention of branches whose name fits; in a pattern `*` stands for anything, `?` for one character."""

    pattern: str
    retention: timedelta
    line: int

    @property
    def exact(self) -> bool:
        """Whether it is the name of one branch."""
        return not {"*", "?"}.intersection(self.pattern)

    def fits(self, branch: str) -> bool:
        """Whether it applies to a branch."""
        return self.pattern == branch if self.exact else _expression(self.pattern).fullmatch(branch) is not None


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy; the default one adds nothing but the tags.

    Attributes:
        default: retention of branches that no rule fits, and of dangling commits; None for the server's alone.
        pinned: ids of commits that stay whatever their age.
        keep_tags: whether tagged commits stay.
        stale_after: branches whose head is older are reported, and nothing else.
        replace: whether the server's rules do not count.
    """

    default: timedelta | None = None
    rules: tuple[BranchRule, ...] = ()
    pinned: tuple[str, ...] = ()
    keep_tags: bool = True
    stale_after: timedelta | None = None
    replace: bool = False

    def rule_of(self, branch: str) -> BranchRule | None:
        """The rule that fits: an exact name wins over patterns, of patterns the longest, of equally long ones the one
        that keeps longer."""
        fitting = [rule for rule in self.rules if rule.fits(branch)]
        return max(fitting, key=lambda rule: (rule.exact, len(rule.pattern), rule.retention), default=None)

    def exact_names(self) -> Iterator[tuple[str, int]]:
        """The branches it names, with their lines."""
        return ((rule.pattern, rule.line) for rule in self.rules if rule.exact)

    def stated(self) -> list[object]:
        """Everything that decides what is kept, as JSON can hold it."""
        return [
            None if self.default is None else self.default.total_seconds(),
            sorted((rule.pattern, rule.retention.total_seconds()) for rule in self.rules),
            sorted(self.pinned),
            self.keep_tags,
            self.replace,
        ]


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    # `translate` never goes back behind a star that has matched: with plain `.*`, a pattern of many stars never ends.
    return re.compile(translate(pattern))


def in_units(duration: timedelta) -> str:
    """A duration as a policy file writes it."""
    hours = int(duration / timedelta(hours=1))
    if hours % 24:
        return f"{hours}h"
    return f"{hours // 24}d"
