"""Everything that keeps commits by retention rules at one moment. Runs store it with the data they read then."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakefs_gc_assets.lakefs.api.models import RetentionRules


@dataclass(frozen=True)
class ReasonsToStay:
    """Branches, tags, rules and policy at one moment. Without rules every commit stays.

    Attributes:
        branches, tags: commit id by name, hidden branches included; empty if every commit stays.
        rules: the server's rules; None if it has none.
        policy: the text of the policy file; empty without one.
    """

    branches: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    rules: RetentionRules | None = None
    policy: str = ""

    @property
    def commit_ids(self) -> frozenset[str]:
        """The commits that branches and tags name."""
        return frozenset((*self.branches.values(), *self.tags.values()))
