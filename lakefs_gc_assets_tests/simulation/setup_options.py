"""Surroundings of a history's repository, and the permissions in the settings of its runs."""

from dataclasses import dataclass, replace
from typing import Literal

Other = Literal["none", "importer", "committing twin", "staging twin"]
"""Another repository: one that imports from ours and that `also_live` names, or a twin on our namespace.

Collections see a twin's commits. If it has staged entries as well, no run may sweep while it exists.
"""
Repositories = Literal["all", "own alone", "refused"]
"""A server's answer to a request for its repositories; a twin may belong to another server."""


@dataclass(frozen=True)
class Around:
    """Surroundings of a repository.

    Attributes:
        branches_stay: the settings allow no loss of branches.
        uncommitted_stays: the settings allow no loss of uncommitted addresses.
        branches_known: rules may not name a branch that does not exist.
        objects_lost: live objects are deleted past lakeFS.
        gaps_allowed: the listing may lack objects that branches hold; a person has confirmed that they are lost.
        only_young_count: unnamed ranges count only while they are young: the server compacts staging, and no other
            repository is on the namespace.
        policy: the name of the policy besides the rules, see `surroundings.counting`.
    """

    other: Other = "none"
    repositories: Repositories = "all"
    branches_stay: bool = False
    uncommitted_stays: bool = False
    branches_known: bool = False
    objects_lost: bool = False
    gaps_allowed: bool = False
    only_young_count: bool = False
    policy: str = ""

    @property
    def also_live(self) -> tuple[str, ...]:
        """The repositories that the settings name."""
        return (OTHER,) if self.other == "importer" else ()

    @property
    def unknown_allowed(self) -> bool:
        """True if a sweep goes on although the server does not list its repositories."""
        return self.other != "staging twin"

    @property
    def lenient(self) -> "Around":
        """The same, after a person checked everything that guards of amount refuse."""
        return replace(
            self,
            branches_stay=False,
            uncommitted_stays=False,
            branches_known=False,
            gaps_allowed=self.objects_lost,
        )


OTHER = "other"
"""The id of the other repository."""
ALONE = Around()
