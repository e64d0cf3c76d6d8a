"""What servers told a collector last of refs and retention: what its conclusions are compared with."""

from dataclasses import dataclass, field

from lakefs_gc_assets.lakefs.api.models import Commit, RetentionRules


@dataclass
class Told:
    """The last complete refs dump, and what was said after it.

    Attributes:
        branches, tags: the commit of each.
        commits: of the dump, and those that it lacked and the collector fetched.
        fetched: ids of the latter: their dates are cut to seconds, and count as the latest in that second.
        asked_rules: whether rules were told since; they may be None.
        listed: ids in the server's own list of commits that stay; None where there was none.
    """

    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    fetched: set[str] = field(default_factory=set)
    asked_rules: bool = False
    rules: RetentionRules | None = None
    listed: frozenset[str] | None = None

    def date(self, commit_id: str) -> float:
        """When a commit was made, as far as the collector can know."""
        return self.commits[commit_id].creation_date + (0.999_999_999 if commit_id in self.fetched else 0.0)
