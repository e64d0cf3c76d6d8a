"""lakeFS servers of the simulated world: they issue names, answer the collector's calls, and write its files.

They have the faults of real servers, too (see the protocol's notes): pages without a file while branches are deleted,
the same continuation token again, a dump that lacks commits which its own branches name. They can also fail as a
damaged database might make them: branches or unnamed commits are missing from every answer.

Their answers to a collector about refs and retention are recorded, to check its conclusions. Servers make their own
list of the commits that retention keeps as real servers make it, with its known gap.
"""

import base64
import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from lakefs_gc_assets.errors import AccessDenied, LakeFSError, NotFound, NotSupported
from lakefs_gc_assets.extensions.playground.embedded import collection
from lakefs_gc_assets.extensions.playground.embedded.collection import Rules
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import (
    Branch,
    Commit,
    DiffEntry,
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
from lakefs_gc_assets_tests.simulation import lakefs_files
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE, MachineClock, moment
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry, embedded_commit
from lakefs_gc_assets_tests.simulation.repository import DEFAULT_BRANCH, Repository
from lakefs_gc_assets_tests.simulation.repository import Branch as BranchState


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


@dataclass
class ListedCommits:
    """Makes such lists in the background.

    Attributes:
        vanished: returns the commits that the server does not know.
        made: the commit ids in each list, by its run id.
        asked: number of status requests for each task.
        answers: results of ended tasks.
    """

    repository: Repository
    vanished: Callable[[], Collection[str]]
    made: dict[str, frozenset[str]] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    answers: dict[str, PrepareCommitsTask] = field(default_factory=dict)

    def start(self) -> str:
        """Begins a list; returns its task."""
        self.asked.append(0)
        return str(len(self.asked) - 1)

    def state(
        self, task: str, now: float, run_id: str, branches: Mapping[str, BranchState], *, fails: bool, old: bool
    ) -> PrepareCommitsTask:
        """Returns the state of a task: running at the first request, ended at the second."""
        self.asked[int(task)] += 1
        if self.asked[int(task)] == 1:
            return PrepareCommitsTask(False)
        if task not in self.answers:
            try:
                result = None if fails else self.write(now, run_id, branches, old=old)
                self.answers[task] = PrepareCommitsTask(True, "failed" if fails else None, result)
            except NotFound as refusal:
                self.answers[task] = PrepareCommitsTask(True, str(refusal))
        return self.answers[task]

    def write(self, now: float, run_id: str, branches: Mapping[str, BranchState], *, old: bool) -> PreparedCommits:
        """Writes a list by a server's clock.

        Args:
            branches: the branches that the server knows.
            old: as servers before v0.101: expired commits too, and no metaranges.

        Raises:
            NotFound: there are no rules.
        """
        repository = self.repository
        if repository.rules is None:
            raise NotFound("get gc rules: not found")
        vanished = self.vanished()
        commits = sorted(repository.commits.items())
        every = {id_: record.facts for id_, record in commits if id_ not in vanished}
        heads = {name: branch.commit_id for name, branch in branches.items()}
        rules = Rules(repository.rules.default_days, dict(repository.rules.branches))
        active = collection.active_commits(heads, map(embedded_commit, every.values()), rules, moment(now))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if old:
            writer.writerow(("commit_id", "expired"))
            writer.writerows((id_, str(id_ not in active).lower()) for id_ in every)
        else:
            writer.writerow(collection.COMMITS_HEADER)
            writer.writerows((id_, "false", every[id_].metarange_id) for id_ in every if id_ in active)
        key = f"_lakefs/retention/gc/commits/run_id={run_id}/commits.csv"
        repository.bucket.put(key, text.getvalue().encode())
        self.made[run_id] = frozenset(active)
        return PreparedCommits(run_id, repository.uri + key)


LINK_SECONDS = DAY
"""Seconds during which an issued address may be linked."""
_YEAR_4000 = 64_060_588_800
_MISSED_SECONDS = 10 * MINUTE
_BLANKS_IN_A_ROW = 2
"""Maximum repeated pages without a location: a collector believes a further one."""
_ALIAS = "point-s3alias"
"""An access point of the bucket."""
ACTION_KEY = "actions/slow.yaml"
"""Object of the action file, which every branch has if hooks hold commits; no listing of a collector shows it."""
_ACTION_PATH = "_lakefs_actions/slow.yaml"
_OBJECTS_ON_PAGE = 2


def action_file(minutes: int) -> bytes:
    """An action whose webhook may hold commits and merges for some minutes."""
    return (
        "name: slow\non:\n  pre-commit:\n  pre-merge:\nhooks:\n"
        f"  - id: hold\n    type: webhook\n    properties: {{url: http://127.0.0.1/hold, timeout: {minutes}m}}\n"
    ).encode()


@dataclass
class Server:
    """One server process: its clock, its slice, its names.

    Attributes:
        sharded_from: when it begins to name objects by the sharded layout, by its clock.
    """

    number: int
    clock: MachineClock
    sharded_from: float
    slice: str = ""
    slice_created: int = 0
    names: int = 0

    def _id(self, seconds: int) -> str:
        self.names += 1
        return layout.encode_xid(
            (seconds & 0xFFFF_FFFF).to_bytes(4) + bytes((0, 0, 0, 0, self.number)) + self.names.to_bytes(3)
        )

    def issue_name(self, *, linkable: bool = False) -> tuple[str, int]:
        """Issues a new address; returns it with the time in it. A linkable one has a signature."""
        now = int(self.clock.seconds())
        if not self.slice or now - self.slice_created > HOUR:
            self.slice, self.slice_created = self.descending(), now
        name = self._id(now)
        if linkable:
            digest = hashlib.sha256(name.encode()).digest()
            name += "," + base64.urlsafe_b64encode(digest).decode().rstrip("=")
        shard = f"!{name[17:19]}/{name[16]}/" if now >= self.sharded_from else ""
        return f"data/{shard}{self.slice}/{name}", now

    def descending(self) -> str:
        return self._id(_YEAR_4000 - int(self.clock.seconds()))

    def accepts(self, issued: int) -> bool:
        """True if an address issued at this time may still be linked."""
        return self.clock.seconds() - issued <= LINK_SECONDS


@dataclass
class Misbehaviour:
    """Faults of the servers from now on, as seen in real ones.

    Attributes:
        page_rows: rows of one page of uncommitted data.
        stuck_pages: number of pages that are empty and repeat the same token.
        lost_branches: number of branches whose staging cannot be read, unnoticed by the server.
        failed_dumps: number of dumps that end with an error.
        missing_commits: dumps lack young commits that their own branches, tags or commits name.
        refuse_dumps: dumps are forbidden.
        failed_lists: number of lists of active commits that end with an error.
        blocking_lists: such lists are not made in the background.
        old_lists: such lists have the format of very old servers.
        copies_first: remembered copies are written before uncommitted data (no server does that).
        blank_pages: number of pages without a location, though there are rows to write.
        lost_branches_but_one: all branches but the default one are missing from every answer.
        vanished: ids of commits that dumps lack as long as nothing names them.
        aliased: addresses of objects are spelled by an access point of the bucket.
    """

    page_rows: int = 3
    stuck_pages: int = 0
    lost_branches: int = 0
    failed_dumps: int = 0
    missing_commits: bool = False
    refuse_dumps: bool = False
    failed_lists: int = 0
    blocking_lists: bool = False
    old_lists: bool = False
    copies_first: bool = False
    blank_pages: int = 0
    lost_branches_but_one: bool = False
    vanished: set[str] = field(default_factory=set)
    aliased: bool = False


Branches = Callable[[], Mapping[str, BranchState]]
"""The branches that a server shows at the moment."""


@dataclass
class _Dump:
    """A dump in progress; each status request takes it one step further."""

    stage: int = 0
    ids: list[str] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    tags: list[Branch] = field(default_factory=list)
    answer: RefsDump | None = None

    def reported(self) -> ServerAnswers:
        """The answers in the dump."""
        branches, tags = ({ref.id: ref.commit_id for ref in refs} for refs in (self.branches, self.tags))
        return ServerAnswers(branches, tags, {commit.id: commit for commit in self.commits})


@dataclass
class Servers:
    """All servers of the installation, for one repository.

    Attributes:
        others: returns the other repositories that they list. Raises AccessDenied if that is forbidden.
        hook_minutes: timeout of the hook in the action file of every branch; 0 for no such file.
    """

    repository: Repository
    servers: list[Server]
    misbehaviour: Misbehaviour = field(default_factory=Misbehaviour)
    dumps: list[_Dump] = field(default_factory=list)
    others: Callable[[], tuple[RepositoryFacts, ...]] = tuple
    lists: ListedCommits = field(init=False)
    hook_minutes: int = 0
    _blank: int = 0

    def __post_init__(self) -> None:
        self.lists = ListedCommits(self.repository, self.vanished)

    def branches(self, *, lost: bool) -> Mapping[str, BranchState]:
        """The branches shown to a caller for whom they may be lost or not."""
        every = self.repository.branches
        if lost and self.misbehaviour.lost_branches_but_one:
            return {name: branch for name, branch in every.items() if name == DEFAULT_BRANCH}
        return every

    def vanished(self) -> frozenset[str]:
        """Commits missing from the servers' answers, as long as no ref and no other commit names them.

        Commits whose metarange another commit shares stay: their entries could not be told apart from that commit's.
        """
        lost = self.misbehaviour.vanished
        if not lost:
            return frozenset()
        repository = self.repository
        there = [record.facts for id_, record in repository.commits.items() if id_ not in lost]
        named = {parent for commit in there for parent in commit.parents} | set(repository.tags.values())
        named |= {branch.commit_id for branch in repository.branches.values()}
        shared = {commit.metarange_id for commit in there}
        return frozenset(
            id_ for id_ in lost if id_ not in named and repository.commits[id_].facts.metarange_id not in {"", *shared}
        )

    def prepare(
        self, server: Server, token: str | None, step: Callable[[], object], branches: Branches
    ) -> UncommittedPage:
        """One page of prepare_uncommited; `step` lets the world go on between two branches."""
        start = json.loads(base64.b64decode(token)) if token else None
        run_id = start["run_id"] if start else server.descending()
        at, behind = (start["branch"], start["path"]) if start else ("", "")
        wrong = self.misbehaviour
        if start and wrong.stuck_pages:
            wrong.stuck_pages -= 1
            return UncommittedPage(run_id, "", token)
        rows: list[str] = []
        counted = 0
        if wrong.copies_first and start is None:
            rows += [address for address, _ in self.repository.copies]
            counted = len(rows)
        following: dict[str, str] | None = None
        for name in sorted(branches()):
            if name < at:
                continue
            before = branches().get(name)
            rested_on = None if before is None else before.compacted
            step()
            branch = branches().get(name)
            if branch is None:
                # The server loses count of the rows; it does not upload a page that counts none.
                counted = 0
                continue
            if wrong.lost_branches and self._can_be_missed(branch):
                wrong.lost_branches -= 1
                continue
            # A server reads a branch first, then its tokens: entries compacted in between are in neither.
            compacted = rested_on if before is branch else branch.compacted
            for path, entry in self.repository.changes_over(branch, compacted):
                if name == at and path < behind:
                    continue
                if len(rows) >= wrong.page_rows:
                    following = {"branch": name, "path": path, "run_id": run_id, "key": ""}
                    break
                address = self._relative(entry)
                if address is not None:
                    rows.append(address)
                    counted += 1
            if following:
                break
        if following is None and not wrong.copies_first:
            rows += [address for address, _ in self.repository.copies]
            counted += len(self.repository.copies)
        location = ""
        if counted and wrong.blank_pages and self._blank < _BLANKS_IN_A_ROW:
            wrong.blank_pages -= 1
            self._blank += 1
        elif counted:
            self._blank = 0
            folder = f"_lakefs/retention/gc/uncommitted/{run_id}/uncommitted/"
            self.repository.bucket.put(folder + server.descending(), lakefs_files.uncommitted_file(tuple(rows)))
            location = self.repository.uri + folder
        next_token = base64.b64encode(json.dumps(following).encode()).decode() if following else None
        return UncommittedPage(run_id, location, next_token)

    def _can_be_missed(self, branch: BranchState) -> bool:
        """True if the absence of a branch shows: none of its addresses is written for another reason."""
        own = {entry.address for entry in self.repository.staged(branch).values() if entry}
        elsewhere = {address for address, _ in self.repository.copies}
        for other in self.repository.branches.values():
            if other is not branch:
                elsewhere.update(entry.address for entry in self.repository.staged(other).values() if entry)
        return bool(own) and own.isdisjoint(elsewhere)

    def _relative(self, entry: Entry | None) -> str | None:
        if entry is None:
            return None
        if entry.address_type == 1:
            return entry.address
        uri = self.repository.uri
        return entry.address.removeprefix(uri) if entry.address.startswith(uri) else None

    def start_dump(self) -> str:
        if self.misbehaviour.refuse_dumps:
            raise AccessDenied("POST /dump: 403")
        self.dumps.append(_Dump())
        return str(len(self.dumps) - 1)

    def dump_state(self, task: str, now: float, branches: Mapping[str, BranchState]) -> RefsDump:
        """Returns a dump's state: two halves of the commits, branches, then tags, one at each status request."""
        dump = self.dumps[int(task)]
        if dump.answer is not None:
            return dump.answer
        repository, wrong = self.repository, self.misbehaviour
        if dump.stage < 2:
            half, vanished = "8" * 64, self.vanished()
            dump.commits += [
                record.facts
                for id_, record in sorted(repository.commits.items())
                if record.visible_at <= now and (id_ >= half) == (dump.stage == 1) and id_ not in vanished
            ]
        elif dump.stage == 2:
            if wrong.failed_dumps:
                wrong.failed_dumps -= 1
                dump.answer = RefsDump(True, "dump failed", "", "", "")
                return dump.answer
            heads = [Branch(name, branch.commit_id) for name, branch in sorted(branches.items())]
            tags = [Branch(name, commit_id) for name, commit_id in sorted(repository.tags.items())]
            if wrong.missing_commits:
                dump.commits = self._without_young_named(dump.commits, heads + tags, now)
            dump.branches, dump.tags = heads, tags
            dump.ids = [
                lakefs_files.put_dumped_commits(repository.bucket, dump.commits),
                lakefs_files.put_dumped_branches(repository.bucket, [branch for _, branch in sorted(branches.items())]),
                lakefs_files.put_dumped_tags(repository.bucket, tags),
            ]
        else:
            dump.answer = RefsDump(True, None, *dump.ids)
            return dump.answer
        dump.stage += 1
        return RefsDump(False)

    def _without_young_named(self, commits: list[Commit], refs: list[Branch], now: float) -> list[Commit]:
        named = {ref.commit_id for ref in refs}
        ancestors = [self.repository.commits[id_].facts for id_ in sorted(named)]
        while ancestors:
            for parent in ancestors.pop().parents:
                if parent not in named:
                    named.add(parent)
                    ancestors.append(self.repository.commits[parent].facts)
        return [
            commit
            for commit in commits
            if commit.id not in named or self.repository.commits[commit.id].made_at < now - _MISSED_SECONDS
        ]


class CollectorsApi:
    """`LakeFSApi` for one collector: at each call the world may go on, fail the call or end the collector.

    Attributes:
        answered: true time of each answer, and seconds by which its server's clock is ahead.
        reported: the last answers. Rules, branches and tags read before uncommitted data are in its `before`.
        dump_refused: True if the last requested dump was refused.
    """

    def __init__(
        self,
        servers: Servers,
        point: Callable[[str], bool],
        prepares: Callable[[], None],
        own_clock: MachineClock,
        sees: int,
        loses_branches: Callable[[], bool] = lambda: False,
    ) -> None:
        """Opens the API for a collector.

        Args:
            prepares: called when a preparation begins.
            sees: the number of servers that answer this collector.
            loses_branches: returns True if lost branches are to be hidden from it, in case the servers lose them.
        """
        self._servers, self._point, self._prepares, self._own = servers, point, prepares, own_clock
        self._sees, self._loses_branches = sees, loses_branches
        self._calls = 0
        self.server_clocks = ServerClocks()
        self.answered: list[tuple[float, float]] = []
        self.reported = ServerAnswers()
        self.dump_refused = False
        self._before: ServerAnswers | None = None

    def _branches(self) -> Mapping[str, BranchState]:
        return self._servers.branches(lost=self._servers.misbehaviour.lost_branches_but_one and self._loses_branches())

    def _ask(self, call: str) -> Server:
        self._calls += 1
        if self._point(call):
            raise LakeFSError(f"{call}: 503 after 4 retries")
        server = self._servers.servers[self._calls % self._sees]
        self.answered.append((self._now(), server.clock.skew))
        self.server_clocks.saw(moment(float(int(server.clock.seconds()))), moment(self._own.seconds()))
        return server

    def _now(self) -> float:
        return self._own.time.now

    def repository(self) -> RepositoryFacts:
        self._ask("repository")
        return self._servers.repository.facts("repo")

    def repositories(self) -> tuple[RepositoryFacts, ...]:
        return (self.repository(), *self._servers.others())

    def grace_period(self) -> timedelta:
        self._ask("grace_period")
        return timedelta(seconds=LINK_SECONDS)

    def prepare_uncommitted(self, continuation_token: str | None) -> UncommittedPage:
        if continuation_token is None:
            self._prepares()
        server = self._ask("prepare_uncommitted")
        return self._servers.prepare(
            server, continuation_token, lambda: self._point("prepare_uncommitted goes on"), self._branches
        )

    def branches(self) -> tuple[Branch, ...]:
        self._ask("branches")
        heads = {name: branch.commit_id for name, branch in sorted(self._branches().items())}
        if self._before is not None and not self._before.branches:
            self._before.branches = heads
        return tuple(Branch(name, commit_id) for name, commit_id in heads.items())

    def tags(self) -> tuple[Branch, ...]:
        self._ask("tags")
        tags = dict(sorted(self._servers.repository.tags.items()))
        if self._before is not None:
            self._before.tags |= tags
        return tuple(Branch(name, commit_id) for name, commit_id in tags.items())

    def first_change(self, branch: str) -> DiffEntry | None:
        return next(self.changes(branch), None)

    def changes(self, branch: str) -> Iterator[DiffEntry]:
        self._ask(f"diff {branch}")
        branches = self._branches()
        if branch not in branches:
            raise NotFound(f"diff {branch}: 404")
        repository, shown = self._servers.repository, branches[branch]
        head = repository.head(shown)
        for path, entry in list(repository.changes(shown)):
            yield DiffEntry(path, "removed" if entry is None else "changed" if path in head else "added")

    def stat(self, reference: str, path: str) -> ObjectStats | None:
        self._ask(f"stat {reference} {path}")
        repository = self._servers.repository
        if reference in repository.branches and reference not in self._branches():
            return None
        entry = repository.find(reference, path)
        if entry is None:
            return None
        return self._stats(path, entry)

    def _stats(self, path: str, entry: Entry) -> ObjectStats:
        return ObjectStats(path, self._physical_address(entry), entry.size, entry.mtime, entry.etag)

    def _physical_address(self, entry: Entry) -> str:
        if entry.address_type == 2:
            return entry.address
        uri = self._servers.repository.uri
        if self._servers.misbehaviour.aliased:
            uri = f"s3://{_ALIAS}/{uri.removeprefix('s3://').partition('/')[2]}"
        return uri + entry.address

    def list_objects(self, reference: str, after: str, prefix: str = "") -> ObjectsPage:
        self._ask(f"list_objects {reference} {after} {prefix}")
        repository = self._servers.repository
        entries = repository.shown(reference)
        is_lost = reference in repository.branches and reference not in self._branches()
        if entries is None or is_lost:
            return ObjectsPage((), more=False)
        if _ACTION_PATH.startswith(prefix) and prefix:
            is_there = bool(self._servers.hook_minutes) and after < _ACTION_PATH
            file = ObjectStats(_ACTION_PATH, repository.uri + ACTION_KEY, len(action_file(self._servers.hook_minutes)))
            return ObjectsPage((file,) if is_there else (), more=False)
        paths = sorted(path for path in entries if path > after and path.startswith(prefix))
        objects = tuple(self._stats(path, entries[path]) for path in paths[:_OBJECTS_ON_PAGE])
        return ObjectsPage(objects, more=len(paths) > len(objects))

    def start_refs_dump(self) -> str:
        self._ask("start_refs_dump")
        self.dump_refused = self._servers.misbehaviour.refuse_dumps
        return self._servers.start_dump()

    def refs_dump(self, task_id: str) -> RefsDump:
        self._ask("refs_dump")
        found = self._servers.dump_state(task_id, self._now(), self._branches())
        if found.done and not found.error:
            self.reported = self._servers.dumps[int(task_id)].reported()
            self.reported.before = self._before
        return found

    def commit(self, commit_id: str) -> Commit:
        self._ask(f"commit {commit_id[:8]}")
        record = self._servers.repository.commits.get(commit_id)
        if record is None:
            raise NotFound(f"commit {commit_id}: 404")
        if not self.reported.asked_rules and commit_id not in self.reported.commits:
            self.reported.commits[commit_id] = record.facts
            self.reported.fetched.add(commit_id)
        return record.facts

    def retention_rules(self) -> RetentionRules | None:
        self._ask("retention_rules")
        rules = self._servers.repository.rules
        self.reported.asked_rules, self.reported.rules = True, rules
        # Answers from here on count as earlier ones, if uncommitted data and a dump follow.
        self._before = ServerAnswers(rules=rules)
        return rules

    def start_prepare_commits(self) -> str:
        self._ask("start_prepare_commits")
        if self._servers.misbehaviour.blocking_lists:
            raise NotSupported("POST prepare_commits/async: 501")
        return self._servers.lists.start()

    def prepare_commits_task(self, task_id: str) -> PrepareCommitsTask:
        server = self._ask("prepare_commits_task")
        wrong, lists = self._servers.misbehaviour, self._servers.lists
        fails = wrong.failed_lists > 0
        now, branches = server.clock.seconds(), self._branches()
        found = lists.state(task_id, now, server.descending(), branches, fails=fails, old=wrong.old_lists)
        if found.completed:
            wrong.failed_lists -= fails
        if found.result is not None:
            self.reported.listed = lists.made[found.result.run_id]
        return found

    def prepare_commits(self) -> PreparedCommits:
        server = self._ask("prepare_commits")
        lists = self._servers.lists
        now, old = server.clock.seconds(), self._servers.misbehaviour.old_lists
        found = lists.write(now, server.descending(), self._branches(), old=old)
        self.reported.listed = lists.made[found.run_id]
        return found
