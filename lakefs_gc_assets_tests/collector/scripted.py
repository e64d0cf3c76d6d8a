"""A lakeFS that answers from a script, call by call, and a clock that tests move."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Generic, TypeVar

from lakefs_gc_assets.collector.repository.repository import Clock, OpenRepository
from lakefs_gc_assets.errors import NotFound
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import (
    OBJECTS_ON_PAGE,
    Branch,
    Commit,
    DiffEntry,
    LakeFSApi,
    ObjectsPage,
    ObjectStats,
    PrepareCommitsTask,
    PreparedCommits,
    RefsDump,
    RepositoryFacts,
    RetentionRules,
    ServerClocks,
    UncommittedPage,
)
from lakefs_gc_assets.settings import CollectionSettings, StoreSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NAMESPACE = Namespace.parse("s3://bucket/repo")
Answer = TypeVar("Answer")


@dataclass
class HandClock:
    """Advances only by `sleep` and, if `tick` is set, at each reading."""

    moment: datetime = NOW
    tick: timedelta = timedelta()
    slept: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        moment = self.moment
        self.moment += self.tick
        return moment

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.moment += timedelta(seconds=seconds)

    def monotonic(self) -> float:
        return self.now().timestamp()


def opened(
    api: LakeFSApi,
    store: ObjectStore,
    namespace: Namespace = NAMESPACE,
    settings: CollectionSettings | None = None,
    clock: Clock | None = None,
) -> OpenRepository:
    """A repository of a server and a store; no other process can open that store."""
    facts = RepositoryFacts("repo", namespace.uri, "main", False)
    opener = StoreOpener(StoreSettings(), namespace.uri)
    return OpenRepository(facts, namespace, api, store, opener, settings or CollectionSettings(), clock or HandClock())


class Script(Generic[Answer]):
    """Answers in order; the last one repeats forever. An exception is raised, a function is called."""

    def __init__(self, *answers: "Answer | Exception | Callable[[], Answer]") -> None:
        self._answers = answers
        self._lock = Lock()
        self.calls = 0

    def __call__(self) -> Answer:
        with self._lock:
            answer = self._answers[min(self.calls, len(self._answers) - 1)]
            self.calls += 1
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


def branches(*names: str, commit_id: str = "c" * 64) -> tuple[Branch, ...]:
    return tuple(Branch(name, commit_id) for name in sorted(names))


def page(location: str = "", token: str | None = None, run_id: str = "run1") -> UncommittedPage:
    return UncommittedPage(run_id, location, token)


@dataclass
class ScriptedApi:
    """`LakeFSApi` by script.

    Attributes:
        pages: answers of prepare_uncommitted for any token; `tokens` are the requested ones.
        branch_lists: answers of branches.
        changes_of: staged changes by branch; none for other branches.
        stats: by reference and path; `asked` are the requested ones.
        objects: listings by reference; `listed` are the requested start positions.
        tasks_asked: ids of tasks, dumps and commit preparations whose state was requested.
    """

    pages: Script[UncommittedPage] = field(default_factory=lambda: Script(page()))
    branch_lists: Script[tuple[Branch, ...]] = field(default_factory=lambda: Script(branches("main")))
    repository_lists: Script[tuple[RepositoryFacts, ...]] = field(
        default_factory=lambda: Script((RepositoryFacts("repo", "s3://bucket/repo", "main", False),))
    )
    changes_of: dict[str, Script[list[DiffEntry]]] = field(default_factory=dict)
    stats: dict[tuple[str, str], Script[ObjectStats]] = field(default_factory=dict)
    dump_starts: Script[str] = field(default_factory=lambda: Script("task"))
    dumps: Script[RefsDump] = field(default_factory=lambda: Script(AssertionError("no dump was expected")))
    commits: dict[str, Script[Commit]] = field(default_factory=dict)
    rules: Script[RetentionRules | None] = field(default_factory=lambda: Script(None))
    prepare_commits_starts: Script[str] = field(default_factory=lambda: Script("task"))
    prepare_commits_tasks: Script[PrepareCommitsTask] = field(
        default_factory=lambda: Script(AssertionError("no preparation of commits was expected"))
    )
    blocking_prepares: Script[PreparedCommits] = field(
        default_factory=lambda: Script(AssertionError("no blocking preparation of commits was expected"))
    )
    grace: timedelta = timedelta(days=1)
    server_clocks: ServerClocks = field(default_factory=ServerClocks)
    tag_lists: Script[tuple[Branch, ...]] = field(default_factory=lambda: Script(()))
    tokens: list[str | None] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    objects: dict[str, list[ObjectStats]] = field(default_factory=dict)
    objects_on_page: int = OBJECTS_ON_PAGE
    listed: list[tuple[str, str]] = field(default_factory=list)
    commits_asked: list[str] = field(default_factory=list)
    tasks_asked: list[str] = field(default_factory=list)

    def repository(self) -> RepositoryFacts:
        return RepositoryFacts("repo", "s3://bucket/repo", "main", False)

    def repositories(self) -> tuple[RepositoryFacts, ...]:
        return self.repository_lists()

    def grace_period(self) -> timedelta:
        return self.grace

    def prepare_uncommitted(self, continuation_token: str | None) -> UncommittedPage:
        self.tokens.append(continuation_token)
        return self.pages()

    def branches(self) -> tuple[Branch, ...]:
        return self.branch_lists()

    def tags(self) -> tuple[Branch, ...]:
        return self.tag_lists()

    def first_change(self, branch: str) -> DiffEntry | None:
        return next(self.changes(branch), None)

    def changes(self, branch: str) -> Iterator[DiffEntry]:
        return iter(self.changes_of[branch]() if branch in self.changes_of else [])

    def stat(self, reference: str, path: str) -> ObjectStats | None:
        self.asked.append((reference, path))
        return self.stats[reference, path]() if (reference, path) in self.stats else None

    def list_objects(self, reference: str, after: str, prefix: str = "") -> ObjectsPage:
        self.listed.append((reference, after))
        objects = self.objects.get(reference, ())
        behind = sorted(
            (stats for stats in objects if stats.path > after and stats.path.startswith(prefix)),
            key=lambda stats: stats.path,
        )
        return ObjectsPage(tuple(behind[: self.objects_on_page]), more=len(behind) > self.objects_on_page)

    def start_refs_dump(self) -> str:
        return self.dump_starts()

    def refs_dump(self, task_id: str) -> RefsDump:
        self.tasks_asked.append(task_id)
        return self.dumps()

    def commit(self, commit_id: str) -> Commit:
        self.commits_asked.append(commit_id)
        if commit_id not in self.commits:
            raise NotFound(f"GET /commits/{commit_id}: 404")
        return self.commits[commit_id]()

    def retention_rules(self) -> RetentionRules | None:
        return self.rules()

    def start_prepare_commits(self) -> str:
        return self.prepare_commits_starts()

    def prepare_commits_task(self, task_id: str) -> PrepareCommitsTask:
        self.tasks_asked.append(task_id)
        return self.prepare_commits_tasks()

    def prepare_commits(self) -> PreparedCommits:
        return self.blocking_prepares()
