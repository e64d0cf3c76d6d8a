"""The surroundings of a history's repository, and another one whose references lead into ours.

The other one has its own namespace, or is a twin on ours.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from lakefs_gc_assets.errors import AccessDenied
from lakefs_gc_assets.lakefs.api.models import RepositoryFacts
from lakefs_gc_assets_tests.simulation.bucket import Bucket
from lakefs_gc_assets_tests.simulation.clocks import MachineClock, TrueTime
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.repository import Branch, Repository, equals_committed
from lakefs_gc_assets_tests.simulation.servers import Server, Servers

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


KeyOf = Callable[[Entry], str | None]
"""Our object that lakeFS reads for an entry; None for one outside of our repository."""
_BRANCH = "main"
_SERVER_NUMBER = 99
"""Number of the twin's own server: it issues names that no server of ours does."""


@dataclass
class OtherRepository:
    """The other repository and its servers.

    Attributes:
        around: the settings that describe it.
        own_uri: our storage namespace.
        firm, soft: our objects that its commits hold. Soft ones come with since when; nothing promises that they exist.
        is_there: True if it still exists; its ranges stay in the namespace forever.
    """

    around: Around
    own_uri: str
    time: TrueTime
    repository: Repository
    servers: Servers
    firm: set[str] = field(default_factory=set)
    soft: dict[str, float] = field(default_factory=dict)
    is_there: bool = True
    made: int = 0
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.server = Server(_SERVER_NUMBER, MachineClock(self.time, 0.0), sharded_from=math.inf)

    @classmethod
    def from_scene(cls, around: Around, time: TrueTime, own: Repository, servers: Servers) -> "OtherRepository":
        """An empty repository of a twin's server or of ours."""
        importer = around.other == "importer"
        bucket = Bucket(own.bucket.clock, own.bucket.etags) if importer else own.bucket
        repository = Repository(f"s3://bucket/{OTHER}/" if importer else own.uri, bucket)
        made = cls(around, own.uri, time, repository, Servers(repository, servers.servers))
        made.servers.misbehaviour.page_rows = servers.misbehaviour.page_rows
        made.servers.misbehaviour.refuse_dumps = servers.misbehaviour.refuse_dumps
        first = repository.add_commit({}, (), time.now, time.now, 0.0)
        repository.new_branch(_BRANCH, first)
        return made

    @property
    def branch(self) -> Branch:
        """Its only branch."""
        return self.repository.branches[_BRANCH]

    @property
    def stages_unseen(self) -> bool:
        """True if it may have staged entries that no collection of ours can know."""
        return self.is_there and self.around.other == "staging twin"

    def commit(self, entries: dict[str, Entry], key_of: KeyOf, lag: float = 0.0) -> None:
        """Adds a commit to the branch."""
        now, branch = self.time.now, self.branch
        branch.commit_id = self.repository.add_commit(entries, (branch.commit_id,), now, now, lag)
        _add(entries.values(), self.firm, self.soft, key_of)

    def add_held(self, firm: set[str], soft: dict[str, float], key_of: KeyOf) -> None:
        """Adds our objects that it holds, committed or staged."""
        firm |= self.firm
        for key, since in self.soft.items():
            soft[key] = min(since, soft.get(key, since))
        if self.is_there:
            _add(self._staged(), firm, soft, key_of)

    def _staged(self) -> Iterator[Entry]:
        """Staged entries. A recheck cannot know those that nothing promises and servers do not list."""
        head = self.repository.head(self.branch)
        for path, entry in self.branch.staged().items():
            if entry is not None:
                unknown = entry.soft_at is not None and equals_committed(head, path, entry)
                yield replace(entry, soft_at=math.inf) if unknown else entry

    def leave(self) -> None:
        """Abandons the repository; its files stay."""
        self.is_there = False
        self.branch.tokens = [self.repository.new_token()]


def _add(entries: Iterable[Entry], firm: set[str], soft: dict[str, float], key_of: KeyOf) -> None:
    """Adds our objects that entries hold."""
    for entry in entries:
        key = key_of(entry)
        if key is None:
            continue
        if entry.soft_at is None:
            firm.add(key)
        else:
            soft[key] = min(entry.soft_at, soft.get(key, entry.soft_at))


def listed(around: Around, other: OtherRepository | None) -> tuple[RepositoryFacts, ...]:
    """Other repositories that our servers list. Raises AccessDenied."""
    staging = other is not None and other.stages_unseen
    if around.repositories == "refused" and (staging or around.unknown_allowed):
        raise AccessDenied("GET /repositories: 403")
    if other is None or not other.is_there or around.repositories != "all":
        return ()
    return (other.repository.facts(OTHER),)
