"""Answers of servers to a collector about refs and retention, to check its conclusions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lakefs_gc_assets.lakefs.api.models import Commit, RetentionRules


@dataclass
class ServerAnswers:
    """The last complete refs dump, and the answers after it.

    Attributes:
        branches, tags: commit by name.
        commits: commits of the dump, and those missing from it that the collector fetched.
        fetched: ids of fetched commits; their dates are cut to seconds, and count as the latest in that second.
        asked_rules: True if rules were requested since; they may be None.
        listed: ids in the server's own list of commits that stay; None without a list.
        before: branches, tags and rules reported before uncommitted data was prepared; None if there were none.
        written: write time of each file in the metadata folder, by the last listing; seconds by the store's clock.
    """

    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    fetched: set[str] = field(default_factory=set)
    asked_rules: bool = False
    rules: RetentionRules | None = None
    listed: frozenset[str] | None = None
    before: "ServerAnswers | None" = None
    written: Mapping[str, float] = field(default_factory=dict)

    def as_before(self) -> "ServerAnswers | None":
        """The same commits with the earlier branches, tags and rules; None without earlier answers."""
        if self.before is None:
            return None
        before = self.before
        return replace(self, branches=before.branches, tags=before.tags, rules=before.rules, listed=None, before=None)

    def claims(self) -> dict[str, float]:
        """The date that each commit claims."""
        return {
            id_: commit.creation_date + (0.999_999_999 if id_ in self.fetched else 0.0)
            for id_, commit in self.commits.items()
        }

    def dates(self, now: float) -> dict[str, float]:
        """Dates of commits, as far as the collector can know."""
        return effective_dates(self.commits, self.claims(), self.written, now)


def effective_dates(
    commits: Mapping[str, Commit], claims: Mapping[str, float], written: Mapping[str, float], now: float
) -> dict[str, float]:
    """The latest known dates of commits.

    A commit is made after its parents, and after its metarange was written. A parent's own claim counts only if it can
    be true: nothing was made in the future.

    Args:
        written: write time by metarange, seconds by the store's clock; one not listed may have been written just now.
        now: a claim later than this counts for its own commit only.
    """
    proved: dict[str, float] = {}
    open_ = [*commits]
    while open_:
        id_ = open_[-1]
        missing = [parent for parent in commits[id_].parents if parent in commits and parent not in proved]
        if missing:
            open_ += missing
            continue
        open_.pop()
        said = claims[id_] if claims[id_] <= now else -math.inf
        before = [proved[parent] for parent in commits[id_].parents if parent in commits]
        proved[id_] = max(said, written.get(commits[id_].metarange_id, -math.inf), *before)
    unknown = {id_ for id_, commit in commits.items() if commit.metarange_id and commit.metarange_id not in written}
    return {id_: max(claims[id_], date, now if id_ in unknown else date) for id_, date in proved.items()}
