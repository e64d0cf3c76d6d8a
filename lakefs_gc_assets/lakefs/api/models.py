"""Data of a lakeFS server, and the collector's interface (port) to get them.

Times are UTC. Addresses are spelled as by the server unless stated otherwise.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RepositoryFacts:
    """`GET /repositories/{repository}`.

    Attributes:
        storage_id: storage of the namespace on an Enterprise server with several storages; empty if the server has only
            one, or had only one when the repository was created.
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
    """A branch (possibly hidden) or a tag, and its commit."""

    id: str
    commit_id: str


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request, by the names of its branches.

    Attributes:
        status: open, closed or merged.
        merged_commit_id: commit of its merge; empty if it is not merged.
    """

    id: str
    source: str
    destination: str
    status: str = "open"
    merged_commit_id: str = ""


@dataclass(frozen=True, slots=True)
class DiffEntry:
    """One uncommitted change of a branch; `type` is added, changed, removed or conflict."""

    path: str
    type: str


@dataclass(frozen=True, slots=True)
class ObjectStats:
    """Answer to `stat` of a path; `physical_address` in full, as the server formats it.

    Attributes:
        mtime: time of the write, in seconds since 1970; None if the server does not say.
        checksum: checksum of the entry; None if the server does not say.
    """

    path: str
    physical_address: str
    size: int | None
    mtime: int | None = field(default=None, compare=False)
    checksum: str | None = field(default=None, compare=False)


OBJECTS_ON_PAGE = 1000
"""Objects per page of a listing, the server's limit."""


@dataclass(frozen=True, slots=True)
class ObjectsPage:
    """One page of the objects of a branch or commit, in order of their paths' bytes; `more` is True if more follow."""

    objects: tuple[ObjectStats, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class RefsDump:
    """State of a dump task; the ids are metaranges of all commits, branches and tags."""

    done: bool
    error: str | None = None
    commits_meta_range_id: str = ""
    branches_meta_range_id: str = ""
    tags_meta_range_id: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit; `parents` are in order, the first parent first. `metarange_id` is empty for an empty first commit.

    `committer` and `metadata` (pairs of key and value) are known only of commits from the API.
    """

    id: str
    metarange_id: str
    parents: tuple[str, ...]
    creation_date: int
    version: int = 1
    generation: int = 0
    committer: str = ""
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """`settings/gc_rules`: days for which replaced data is kept, by branch and for all other branches.

    The server validates nothing: days may be negative, and a branch may not exist.
    """

    default_days: int
    branches: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PreparedCommits:
    """The server's list of the commits that its own retention keeps; `location` as the server spells it."""

    run_id: str
    location: str


@dataclass(frozen=True, slots=True)
class PrepareCommitsTask:
    """State of a preparation of commits. When completed, either `result` or `error` is set; before, neither is."""

    completed: bool
    error: str | None = None
    result: PreparedCommits | None = None


class LakeFSApi(Protocol):
    """Calls of the collector to a lakeFS server about one repository.

    Methods raise subclasses of LakeFSError, whose messages contain the call, the answer and a remedy.
    """

    server_clocks: "ServerClocks"

    def repository(self) -> RepositoryFacts:
        """The repository. Raises NotFound if it does not exist."""
        ...

    def repositories(self) -> tuple[RepositoryFacts, ...]:
        """Every repository that this user may see, sorted by name."""
        ...

    def grace_period(self) -> timedelta:
        """Period after its issue in which an address may still be linked; one day if the server does not say."""
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
        """The first uncommitted change of a branch (`diff?amount=1`); None if there is none."""
        ...

    def changes(self, branch: str) -> Iterator[DiffEntry]:
        """Every uncommitted change of a branch, in order of path."""
        ...

    def stat(self, reference: str, path: str) -> ObjectStats | None:
        """The object at a path of a branch or commit, staged changes included; None if there is none."""
        ...

    def list_objects(self, reference: str, after: str, prefix: str = "") -> ObjectsPage:
        """At most OBJECTS_ON_PAGE objects of a branch or commit after a path, staged changes included.

        Only objects whose path begins with `prefix`. Empty if the branch or commit does not exist.
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
        """The retention rules; None only if `settings/gc_rules` itself says that there are none."""
        ...

    def start_prepare_commits(self) -> str:
        """Starts listing the commits that the server's retention keeps; returns the task's id.

        Raises NotFound or NotSupported on servers that only have the blocking call.
        """
        ...

    def prepare_commits_task(self, task_id: str) -> PrepareCommitsTask:
        """State of a task that `start_prepare_commits` started."""
        ...

    def prepare_commits(self) -> PreparedCommits:
        """Makes the server list the commits that its retention keeps, in one call, which may be slow."""
        ...


@dataclass(slots=True)
class ServerClocks:
    """Minimum and maximum difference of the server's `Date` headers from our own clock at arrival.

    A header has whole seconds, so a server with the same time appears up to one second behind.
    """

    earliest: timedelta | None = None
    latest: timedelta | None = None

    def saw(self, server_date: datetime, own_now: datetime) -> None:
        """Records one `Date` header."""
        difference = server_date - own_now
        self.earliest = difference if self.earliest is None else min(self.earliest, difference)
        self.latest = difference if self.latest is None else max(self.latest, difference)
