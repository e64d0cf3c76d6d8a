"""What is around the repository of a history, and what the settings of its runs allow."""

from dataclasses import dataclass, replace
from typing import Literal

Other = Literal["none", "importer", "committing twin", "staging twin"]
"""Another repository: one that imports from ours and that `also_live` names, or a twin on the very same namespace.

Of a twin what it has committed is seen. Where it has staged as well, no run may sweep as long as it is there.
"""
Repositories = Literal["all", "own alone", "refused"]
"""What a server says when it is asked for its repositories; a twin may be another server's."""


@dataclass(frozen=True)
class Around:
    """What is around a repository.

    Attributes:
        branches_stay: no branch may be lost, by the settings.
        uncommitted_stays: no uncommitted address may be lost.
        branches_known: rules may name no branch that does not exist.
        objects_lost: somebody deletes live objects past lakeFS.
        gaps_allowed: the listing may lack what branches hold: somebody looked, and it is lost.
        only_young_count: ranges that nothing names count only while they are young: the server compacts staging, and
            nobody else is on the namespace.
        policy: the name of the policy that rules come with, see `counting`.
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
        """Whether a sweep goes on where the server does not list its repositories."""
        return self.other != "staging twin"

    @property
    def lenient(self) -> "Around":
        """The same, after somebody looked at everything that a guard of amount refuses for."""
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
