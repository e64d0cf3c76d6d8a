"""Answers of servers to a collector about refs and retention: what its conclusions are compared with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lakefs_gc_assets.lakefs.api.models import Commit, RetentionRules


@dataclass
class ServerAnswers:
    """The last complete refs dump, and what was said after it.

    Attributes:
        branches, tags: the commit of each.
        commits: of the dump, and those that it lacked and the collector fetched.
        fetched: ids of the latter: their dates are cut to seconds, and count as the latest in that second.
        asked_rules: whether rules were told since; they may be None.
        listed: ids in the server's own list of commits that stay; None where there was none.
        before: what was said of branches, tags and rules before uncommitted data was prepared; None if nothing was.
        written: when each file of the metadata folder was written, by the last listing; seconds by the store's clock.
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
        """The same commits under the branches, tags and rules of the moment before; None if nothing was said then."""
        if self.before is None:
            return None
        before = self.before
        return replace(self, branches=before.branches, tags=before.tags, rules=before.rules, listed=None, before=None)

    def claims(self) -> dict[str, float]:
        """When each commit says that it was made."""
        return {
            id_: commit.creation_date + (0.999_999_999 if id_ in self.fetched else 0.0)
            for id_, commit in self.commits.items()
        }

    def dates(self, now: float) -> dict[str, float]:
        """When each commit was made, as far as the collector can know."""
        return effective_dates(self.commits, self.claims(), self.written, now)


def effective_dates(
    commits: Mapping[str, Commit], claims: Mapping[str, float], written: Mapping[str, float], now: float
) -> dict[str, float]:
    """The latest that is known of when each commit was made.

    A commit is made after its parents, and after its metarange was written. What its parents say of themselves counts
    where it can be true: nothing was made in the future.

    Args:
        written: by metarange, seconds by the store's clock; one that lacks may have been written just now.
        now: what a commit says to be later than that counts for itself alone.
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
