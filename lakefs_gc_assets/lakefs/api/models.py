"""Facts that a lakeFS server states, and the port through which the collector asks for them.

Times are UTC. Addresses are as the server spells them unless said otherwise.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RepositoryFacts:
    """`GET /repositories/{repository}`.

    Attributes:
        storage_id: the storage that the namespace lies on, of an Enterprise server with several; empty where the server
            has one, or where it had one when the repository was made.
    """

    id: str
    storage_namespace: str
    default_branch: str
    read_only: bool
    creation_date: int = 0
    storage_id: str = ""


@dataclass(frozen=True, slots=True)
class UncommittedPage:
    """One answer of `prepare_uncommited`; an empty `location` means that the page wrote no file."""

    run_id: str
    location: str
    continuation_token: str | None


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch (hidden ones included) or a tag and the commit it points to."""

    id: str
    commit_id: str


@dataclass(frozen=True, slots=True)
class PullRequest:
    """An open pull request, by the names of its branches."""

    id: str
    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class DiffEntry:
    """One uncommitted change of a branch; `type` is added, changed, removed or conflict."""

    path: str
    type: str


@dataclass(frozen=True, slots=True)
class ObjectStats:
    """`stat` of a path; `physical_address` in full, as the server formats it.

    Attributes:
        mtime: when the path was written, seconds since 1970; None where the server does not say.
        checksum: of the entry; None where the server does not say.
    """

    path: str
    physical_address: str
    size: int | None
    mtime: int | None = field(default=None, compare=False)
    checksum: str | None = field(default=None, compare=False)


OBJECTS_ON_PAGE = 1000
"""Objects on one page of a listing, the server's limit."""


@dataclass(frozen=True, slots=True)
class ObjectsPage:
    """A part of the objects of a branch or commit, in order of their paths' bytes; `more` says whether some follow."""

    objects: tuple[ObjectStats, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class RefsDump:
    """State of a dump task; the ids name metaranges whose ranges hold all commits, branches and tags."""

    done: bool
    error: str | None = None
    commits_meta_range_id: str = ""
    branches_meta_range_id: str = ""
    tags_meta_range_id: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit; `parents` in order, the first parent first. `metarange_id` is empty for an empty first commit."""

    id: str
    metarange_id: str
    parents: tuple[str, ...]
    creation_date: int
    version: int = 1
    generation: int = 0


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """`settings/gc_rules`: for how many days replaced data stays, by branch and for all others, as the server says.

    The server checks no value: a number may be negative, a branch unknown.
    """

    default_days: int
    branches: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PreparedCommits:
    """Place of the server's list of the commits that its own retention keeps; `location` as the server spells it."""

    run_id: str
    location: str


@dataclass(frozen=True, slots=True)
class PrepareCommitsTask:
    """State of a preparation of commits; `result` and `error` are None until it is completed, then one of them is."""

    completed: bool
    error: str | None = None
    result: PreparedCommits | None = None


class LakeFSApi(Protocol):
    """Calls of the collector to a lakeFS server about one repository.

    Every method raises a subclass of LakeFSError whose message names the call, the answer and what to do.
    """

    server_clocks: "ServerClocks"

    def repository(self) -> RepositoryFacts:
        """The repository. Raises NotFound where there is none of this name."""
        ...

    def repositories(self) -> tuple[RepositoryFacts, ...]:
        """Every repository that this user may see, sorted by name."""
        ...

    def grace_period(self) -> timedelta:
        """How long after its issue an address may still be linked; a day where the server does not say."""
        ...

    def prepare_uncommitted(self, continuation_token: str | None) -> UncommittedPage:
        """Makes the server write the next part of its uncommitted data."""
        ...

    def branches(self) -> tuple[Branch, ...]:
        """Every branch, hidden ones included, sorted by name."""
        ...

    def tags(self) -> tuple[Branch, ...]:
        """Every tag, sorted by name."""
        ...

    def first_change(self, branch: str) -> DiffEntry | None:
        """The first uncommitted change of a branch (`diff?amount=1`), None where there is none."""
        ...

    def changes(self, branch: str) -> Iterator[DiffEntry]:
        """Every uncommitted change of a branch, in order of path."""
        ...

    def stat(self, reference: str, path: str) -> ObjectStats | None:
        """The object at a path of a branch or commit, staged changes included; None where there is none."""
        ...

    def list_objects(self, reference: str, after: str, prefix: str = "") -> ObjectsPage:
        """The objects of a branch or commit behind a path, staged changes included, at most OBJECTS_ON_PAGE.

        Only those whose path begins with `prefix`.

        There are none where there is no such branch or commit.
        """
        ...

    def start_refs_dump(self) -> str:
        """Starts a dump of commits, branches and tags; returns the task's id."""
        ...

    def refs_dump(self, task_id: str) -> RefsDump:
        """State of a dump task."""
        ...

    def commit(self, commit_id: str) -> Commit:
        """One commit. Raises NotFound."""
        ...

    def retention_rules(self) -> RetentionRules | None:
        """The rules of retention; None only where `settings/gc_rules` itself says that there are none."""
        ...

    def start_prepare_commits(self) -> str:
        """Starts listing the commits that the server's retention keeps; returns the task's id.

        Raises NotFound or NotSupported on servers that only know the blocking call.
        """
        ...

    def prepare_commits_task(self, task_id: str) -> PrepareCommitsTask:
        """State of a task that `start_prepare_commits` started."""
        ...

    def prepare_commits(self) -> PreparedCommits:
        """Makes the server list the commits that its retention keeps, in one call, which may take long."""
        ...


@dataclass(slots=True)
class ServerClocks:
    """Every `Date` header seen, as its difference from our own clock when the answer arrived.

    A header has whole seconds, so a server that agrees shows up to one second behind.
    """

    earliest: timedelta | None = None
    latest: timedelta | None = None

    def saw(self, server_date: datetime, own_now: datetime) -> None:
        """Notes one `Date` header."""
        difference = server_date - own_now
        self.earliest = difference if self.earliest is None else min(self.earliest, difference)
        self.latest = difference if self.latest is None else max(self.latest, difference)
