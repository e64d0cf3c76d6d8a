"""Object lifecycle and stale branches in simulated histories: lists, approvals and undo, beside writers and collectors.

The process of lifecycle stops at each call, while the rest of the world goes on. Its calls may fail or lose their
answers, and it may be killed. An oracle watches each change that it makes. It knows from the world's own record when
each entry was written, and when it came to its path. Collectors are watched by the oracle of retention, so that nothing
is lost that rules keep.
"""

import random
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from unittest import mock

from lakefs_gc_assets.collector.records.own_commits import list_own_commits
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError, Conflict, LakeFSError, ServerUnavailable
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.branches.stale_branches import BranchFate
from lakefs_gc_assets.extensions.lifecycle.acting import approve
from lakefs_gc_assets.extensions.lifecycle.acts import BRANCH_PREFIX, REVERT, LifecycleFate, LifecycleOutcome
from lakefs_gc_assets.extensions.lifecycle.expired import list_expired
from lakefs_gc_assets.extensions.lifecycle.reverting import revert
from lakefs_gc_assets.extensions.playground.embedded import formats
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.api.models import Branch as BranchFacts
from lakefs_gc_assets.lakefs.api.models import DiffEntry
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation import lakefs_files, writers
from lakefs_gc_assets_tests.simulation.bucket import BucketView
from lakefs_gc_assets_tests.simulation.bug import Bug
from lakefs_gc_assets_tests.simulation.clocks import DAY, MINUTE, CollectorClock, MachineClock
from lakefs_gc_assets_tests.simulation.collecting import Killed, open_repository
from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.oracle import Violation, refuse_change
from lakefs_gc_assets_tests.simulation.playing import (
    NONE,
    History,
    Player,
    Quiet,
    Step,
    deterministic,
    uncollected,
)
from lakefs_gc_assets_tests.simulation.processes import Coroutine, Crash
from lakefs_gc_assets_tests.simulation.repository import Branch, applied
from lakefs_gc_assets_tests.simulation.retention_histories import RetentionMaker
from lakefs_gc_assets_tests.simulation.retention_oracle import POLICIES
from lakefs_gc_assets_tests.simulation.run_requests import LOCK_EXPIRY, settings
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi, Server
from lakefs_gc_assets_tests.simulation.world import World

ACTOR = "l0"
PERIOD_DAYS = 2
NEWEST = 2
RULES = f"""
lifecycle:
- {{name: age, branches: '*', paths: d/, older_than: {PERIOD_DAYS}d}}
- {{name: came, branches: '*', paths: f/, unchanged_for: {PERIOD_DAYS}d}}
- {{name: newest, branches: '*', paths: '*', keep_newest: {NEWEST}, of: objects}}
stale_branches:
- {{branches: '*', max_inactivity: {PERIOD_DAYS}d}}
"""
CLOCKS_APART = 45 * MINUTE
"""Ages of entries are as exact as the clocks of servers and store, and the names that servers issue."""
_CALL_SECONDS = 0.05
_LEAST_STEPS = 40
_LONG_AGO = 1_700_000_000
_record = lakefs_files._record
Entries = Mapping[str, Entry]


@cache
def policy_file(policy: str) -> str:
    """Path of a file with a policy of the simulation and the rules of lifecycle."""
    file = Path(tempfile.mkdtemp(prefix="lifecycle-")) / "policy.yaml"
    file.write_text(POLICIES[policy] + RULES)
    return str(file)


def rule_of(path: str) -> str:
    """The rule that decides about a path; empty for none."""
    folder, slash, _ = path.rpartition("/")
    return {"d": "age", "f": "came", "": "newest"}.get(folder, "") if slash or folder == "" else ""


def merge_base(world: World, source: str, branch: str) -> str:
    """The newest commit on all lines of parents of both."""
    commits = world.repository.commits

    def ancestors(commit_id: str) -> list[str]:
        found, open_ = dict[str, None](), [commit_id]
        while open_:
            each = open_.pop(0)
            if each not in found:
                found[each] = None
                open_ += commits[each].facts.parents
        return [*found]

    ours = {*ancestors(branch)}
    return next(each for each in ancestors(source) if each in ours)


@dataclass(frozen=True)
class Removal:
    """Entries that a merge of lifecycle removed from a branch."""

    branch: str
    commit_id: str
    entries: Entries


@dataclass
class LifecycleOracle:
    """What lifecycle may do to branches, by the world's own record.

    Attributes:
        removals: by the branch that was merged, which names the act; the newest one of each.
        made: commits on users' branches that lifecycle made.
        expired, came_back: number of entries removed from and brought back to branches.
        retired: number of stale branches deleted.
    """

    world: World
    removals: dict[str, Removal] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    expired: int = 0
    came_back: int = 0
    retired: int = 0
    _came: dict[str, dict[str, float]] = field(default_factory=dict)

    def came(self, commit_id: str) -> dict[str, float]:
        """When each entry of a commit came to its path, on its line of first parents; true time."""
        commits, line = self.world.repository.commits, [commit_id]
        while line[-1] not in self._came and commits[line[-1]].facts.parents:
            line.append(commits[line[-1]].facts.parents[0])
        for each in reversed(line):
            if each in self._came:
                continue
            record, parents = commits[each], commits[each].facts.parents
            before = commits[parents[0]].entries if parents else {}
            times = self._came[parents[0]] if parents else {}
            self._came[each] = {
                path: times[path] if path in before and before[path].address == entry.address else record.made_at
                for path, entry in record.entries.items()
            }
        return self._came[commit_id]

    @contextmanager
    def change(self, call: str, own: str, target: str = "") -> Iterator[None]:
        """Watches a call that may change the branch `own`, and move the branch `target`."""
        before = self._users_branches()
        yield
        after = self._users_branches()
        before.pop(own, None)
        after.pop(own, None)
        if target:
            before[target] = before[target][0], after[target][1]
        if before != after:
            changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            raise Violation(f"{call} changes what users have on {', '.join(changed)}")
        self.world.oracle.look()

    def _users_branches(self) -> dict[str, tuple[list[dict[str, Entry | None]], str]]:
        """Staged entries and heads of all branches that lifecycle did not make; of its own ones, too."""
        branches = self.world.repository.branches
        return {
            name: ([dict(token) for token in branch.tokens if token], branch.commit_id)
            for name, branch in branches.items()
        }

    def merged(self, source: str, branch: str, base: str, head: str, commit_id: str) -> None:
        """Lifecycle merged a branch of its own into a user's branch. `base`: the commit on which the merge is based."""
        commits = self.world.repository.commits
        before, after = commits[head].entries, commits[commit_id].entries
        added = {path: entry for path, entry in after.items() if path not in before}
        removed = {path: entry for path, entry in before.items() if path not in after}
        if changed := [path for path in before.keys() & after.keys() if before[path] != after[path]]:
            raise Violation(f"{source} overwrites {', '.join(sorted(changed))} of branch {branch}")
        self.made.append(commit_id)
        if source.endswith(REVERT):
            self._require_brought_back(source.removesuffix(REVERT), added, removed)
            return
        if added:
            raise Violation(f"{source} adds {', '.join(sorted(added))} to branch {branch}")
        for path in removed:
            self._require_expired(base, path, f"{source} removes {path} of branch {branch}")
        self.removals[source] = Removal(branch, commit_id, removed)
        self.expired += len(removed)

    def _require_expired(self, commit_id: str, path: str, what: str) -> None:
        entries, now = self.world.repository.commits[commit_id].entries, self.world.time.now
        entry, rule, period = entries[path], rule_of(path), PERIOD_DAYS * DAY - CLOCKS_APART
        if not rule:
            raise Violation(f"{what}, which no rule matches")
        if rule == "age" and entry.mtime > now - period:
            raise Violation(f"{what}, written {(now - entry.mtime) / DAY:.2f} days ago")
        if rule == "came" and (came := self.came(commit_id)[path]) > now - period:
            raise Violation(f"{what}, which came there {(now - came) / DAY:.2f} days ago")
        if rule == "newest":
            others = [
                each
                for name, each in entries.items()
                if name != path and rule_of(name) == rule and each.mtime >= entry.mtime - CLOCKS_APART
            ]
            if len(others) < NEWEST:
                raise Violation(f"{what}, which is among the newest")

    def _require_brought_back(self, act: str, added: Entries, removed: Entries) -> None:
        before = self.removals[act].entries
        if removed or any(before.get(path) != entry for path, entry in added.items()):
            raise Violation(f"the revert of {act} brings back other entries than were removed")
        self.came_back += len(added)

    def require_stale(self, name: str, commit_id: str, staged: bool, tagged: Collection[str]) -> None:
        """A branch is deleted as stale.

        Args:
            commit_id, staged, tagged: its head, whether it had uncommitted changes, and the commits of all tags, as
                read last. A use after that goes unnoticed, since lakeFS has no conditional deletion.
        """
        commits = self.world.repository.commits
        if name == "main" or staged or commit_id in tagged:
            raise Violation(
                f"branch {name} is deleted although it is the default one, tagged, or has uncommitted changes"
            )
        while commit_id in self.made:
            commit_id = commits[commit_id].facts.parents[0]
        if (age := self.world.time.now - commits[commit_id].made_at) < PERIOD_DAYS * DAY - CLOCKS_APART:
            raise Violation(f"branch {name} is deleted {age / DAY:.2f} days after its last commit")
        self.retired += 1

    def missing(self, act: str) -> list[str]:
        """Paths that an act removed, that nobody has touched since, and that its branch still lacks."""
        removal, repository = self.removals[act], self.world.repository
        branch = repository.branches.get(removal.branch)
        if branch is None:
            return []
        left, at = {*removal.entries}, branch.commit_id
        staged = branch.staged()
        while at != removal.commit_id:
            record = repository.commits[at]
            left -= record.entries.keys()
            if not record.facts.parents:
                return []
            at = record.facts.parents[0]
        return sorted(left - staged.keys())

    def require_receipts(self, store: ObjectStore) -> None:
        """An approval came to its end, so what earlier commands left is settled, too."""
        if unknown := {*self.made} - list_own_commits(store, "repo"):
            raise Violation(f"{len(unknown)} commits of lifecycle have no receipt")

    def ended(self, outcomes: Sequence[LifecycleOutcome]) -> None:
        """An approval or revert came to its end."""
        for outcome in outcomes:
            if outcome.fate not in (LifecycleFate.REVERTED, LifecycleFate.INCOMPLETE):
                continue
            for act, removal in self.removals.items():
                if removal.branch == outcome.branch and act.startswith(f"{BRANCH_PREFIX}{outcome.run_id}-"):
                    rules = {rule_of(path) for path in removal.entries}
                    if rules == {outcome.rule} and (missing := self.missing(act)):
                        raise Violation(f"the revert of {act} does not bring back {', '.join(missing)}")


class LifecycleApi(CollectorsApi):
    """The calls of `LakeFSClient` that lifecycle makes, each one transaction."""

    oracle: LifecycleOracle
    heads: dict[str, str]
    staged: dict[str, bool]
    tagged: frozenset[str] = frozenset()

    @property
    def _world(self) -> World:
        return self.oracle.world

    def _ask(self, call: str) -> Server:
        try:
            return super()._ask(call)
        except LakeFSError as error:
            raise ServerUnavailable(str(error)) from error

    def visible_branches(self) -> frozenset[str]:
        self._ask("visible branches")
        return frozenset(name for name, branch in self._world.repository.branches.items() if not branch.hidden)

    def branch(self, name: str) -> BranchFacts | None:
        self._ask(f"branch {name}")
        branch = self._world.repository.branches.get(name)
        if branch is not None:
            self.heads[name] = branch.commit_id
        return None if branch is None else BranchFacts(name, branch.commit_id)

    def tags(self) -> tuple[BranchFacts, ...]:
        found = super().tags()
        self.tagged = frozenset(tag.commit_id for tag in found)
        return found

    def first_change(self, branch: str) -> DiffEntry | None:
        change = super().first_change(branch)
        self.staged[branch] = change is not None
        return change

    def last_action_run(self, branch: str, ignored: Collection[str] = ()) -> None:
        self._ask(f"action runs of {branch}")

    def protection_patterns(self) -> tuple[str, ...]:
        self._ask("protection patterns")
        return ()

    def open_pull_requests(self) -> tuple[str, ...]:
        self._ask("open pull requests")
        return ()

    @contextmanager
    def _changing(self, call: str, own: str, target: str = "") -> Iterator[None]:
        """A call that changes something: it may fail before, or lose its answer after."""
        self._calls += 1
        loses = self._point(call)
        with self.oracle.change(call, own, target):
            yield
        if loses:
            raise ServerUnavailable(f"{call}: the answer was lost")

    def _found(self, name: str) -> Branch:
        branch = self._world.repository.branches.get(name)
        if branch is None:
            raise LakeFSError(f"branch {name}: 404")
        return branch

    def create_branch(self, name: str, commit_id: str, hidden: bool) -> None:
        with self._changing(f"create branch {name}", name):
            if name in self._world.repository.branches:
                raise Conflict(f"branch {name}: 409")
            self._world.repository.new_branch(name, commit_id, hidden=hidden)

    def delete_branch(self, name: str) -> None:
        with self._changing(f"delete branch {name}", name):
            branch = self._world.repository.branches.get(name)
            if branch is not None and not name.startswith(BRANCH_PREFIX):
                # What was not read counts as it is now.
                head, staged = self.heads.get(name, branch.commit_id), self.staged.get(name, any(branch.tokens))
                self.oracle.require_stale(name, head, staged, self.tagged)
            self._world.repository.branches.pop(name, None)

    def delete_paths(self, name: str, paths: Sequence[str]) -> tuple[tuple[str, str], ...]:
        with self._changing(f"delete paths of {name}", name if name.startswith(BRANCH_PREFIX) else ""):
            for path in paths:
                self._world.repository.remove(self._found(name), path)
        return ()

    def commit_changes(self, name: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        with self._changing(f"commit {name}", name if name.startswith(BRANCH_PREFIX) else "", ""):
            branch, repository = self._found(name), self._world.repository
            if not any(True for _ in repository.changes(branch)):
                raise LakeFSError(f"commit {name}: no changes")
            entries = applied(repository.rests_on(branch), branch.staged())
            branch.commit_id = self._commit(entries, branch.commit_id, metadata)
            branch.tokens = [repository.new_token()]

    def _commit(self, entries: dict[str, Entry], parent: str, metadata: Mapping[str, str] | None) -> str:
        return self._world.commit(entries, (parent,), 0.0, metadata=tuple((metadata or {}).items()))

    def revert(self, name: str, commit_id: str) -> None:
        with self._changing(f"revert {commit_id[:8]} on {name}", name):
            branch, repository = self._found(name), self._world.repository
            record = repository.commits[commit_id]
            before = repository.commits[record.facts.parents[0]].entries
            entries, _ = three_way(record.entries, before, repository.head(branch))
            branch.commit_id = self._commit(entries, branch.commit_id, None)

    def merge_base(self, source: str, branch: str) -> str:
        self._ask(f"merge base of {source} and {branch}")
        return merge_base(self._world, self._found(source).commit_id, self._found(branch).commit_id)

    def merge_changes(self, source: str, branch: str) -> Iterator[DiffEntry]:
        self._ask(f"diff {source} {branch}")
        repository = self._world.repository
        theirs, ours = self._found(source), self._found(branch)
        base = repository.commits[merge_base(self._world, theirs.commit_id, ours.commit_id)].entries
        entries, conflicts = three_way(base, repository.head(theirs), repository.head(ours))
        head = repository.head(ours)
        for path in sorted(head.keys() | entries.keys() | conflicts):
            if path in conflicts:
                yield DiffEntry(path, "conflict")
            elif head.get(path) != entries.get(path):
                yield DiffEntry(path, "removed" if path not in entries else "changed" if path in head else "added")

    def squash_merge(
        self, source: str, branch: str, message: str, metadata: Mapping[str, str], strategy: str = ""
    ) -> str:
        with self._changing(f"merge {source} into {branch}", source, branch):
            repository, theirs, ours = self._world.repository, self._found(source), self._found(branch)
            if ours.base_id or any(ours.tokens):
                raise LakeFSError(f"merge into {branch}: uncommitted changes")
            head = ours.commit_id
            base = merge_base(self._world, theirs.commit_id, head)
            entries, conflicts = three_way(
                repository.commits[base].entries, repository.head(theirs), repository.head(ours)
            )
            if conflicts and not strategy:
                raise Conflict(f"merge into {branch}: 409")
            for path in conflicts if strategy == "source-wins" else ():
                _put(entries, path, repository.head(theirs).get(path))
            if entries == repository.head(ours):
                raise LakeFSError(f"merge into {branch}: no changes")
            ours.commit_id = made = self._commit(entries, head, metadata)
            self.oracle.merged(source, branch, base, head, made)
        return made


def three_way(base: Entries, theirs: Entries, ours: Entries) -> tuple[dict[str, Entry], set[str]]:
    """Our entries with their changes since the base, and the paths that both changed differently, which stay ours."""
    entries, conflicts = dict(ours), set[str]()
    for path in base.keys() | theirs.keys():
        before, after, own = (_identity(each.get(path)) for each in (base, theirs, ours))
        if before == after or after == own:
            continue
        if before != own:
            conflicts.add(path)
        else:
            _put(entries, path, theirs.get(path))
    return entries, conflicts


def _identity(entry: Entry | None) -> object:
    return entry and (entry.identity, entry.address)


def _put(entries: dict[str, Entry], path: str, entry: Entry | None) -> None:
    if entry is None:
        entries.pop(path, None)
    else:
        entries[path] = entry


@dataclass
class LifecycleProcess:
    """Runs one command of lifecycle at a time.

    Attributes:
        digest: digest of the last listing.
        runs: runs of approvals.
        commands, kills: number of commands and of killed ones.
        refusals: commands that ended with an error.
    """

    world: World
    oracle: LifecycleOracle
    digest: str = ""
    runs: list[str] = field(default_factory=list)
    commands: int = 0
    kills: int = 0
    refusals: int = 0
    budget: int | None = None
    fail_in: int | None = None
    loses_answer: bool = False
    dead: bool = False
    coroutine: Coroutine | None = None

    def do(self, what: str, numbers: tuple[int, ...]) -> None:
        """Plays a step."""
        match what:
            case "list":
                self._launch(self._list, numbers[0])
            case "approve" if self.digest:
                self._launch(lambda repository: self._approve(repository, self.digest), numbers[0])
            case "revert" if self.runs:
                run_id = self.runs[numbers[1] % len(self.runs)]
                self._launch(lambda repository: self._revert(repository, run_id), numbers[0])
            case "retire":
                self._launch(self._retire, numbers[0])
            case "recreate":
                self._launch(self._recreate, numbers[0])
            case "fail":
                self.fail_in, self.loses_answer = numbers[0], bool(numbers[1])
            case "go_on":
                self.go_on(numbers[0])
            case "finish":
                self.go_on(None)
            case "kill" if self.coroutine is not None:
                self.dead = True
                self.kills += 1
                self.go_on(None)

    def _launch(self, command: Callable[[OpenRepository], None], budget: int) -> None:
        if self.coroutine is not None:
            return
        self.commands += 1
        world, self.dead, self.fail_in = self.world, False, None
        machine = MachineClock(world.time, world.collector_skew)
        view = BucketView(world.bucket, self.point, refuse_change, lambda key, data: None, page=1000, delete_limit=1000)
        api = LifecycleApi(world.servers, self.point, lambda: None, machine, world.setup.seen_servers)
        api.oracle, api.heads, api.staged = self.oracle, {}, {}
        options = settings(True, 24.0, "month", around=world.setup.around)
        options = options.model_copy(
            update={"retention_policy": policy_file(world.setup.around.policy), "max_branch_loss_share": 1.0}
        )

        def run() -> None:
            clock = CollectorClock(machine, world.pass_time)
            command(open_repository(api, world.bucket.opened(view), options, clock))

        self.coroutine = Coroutine(run)
        self.go_on(budget)

    def _list(self, repository: OpenRepository) -> None:
        self.digest = list_expired(repository, lambda line: None).digest or self.digest

    def _approve(self, repository: OpenRepository, digest: str) -> None:
        if self._end(approve(repository, digest, f"lifecycle {self.commands}", self._note, self._note)):
            self.oracle.require_receipts(repository.store)

    def _revert(self, repository: OpenRepository, run_id: str) -> None:
        self._end(revert(repository, run_id, f"lifecycle {self.commands}", self._note, self._note))

    def _retire(self, repository: OpenRepository) -> None:
        listing = stale_branches.list_branches(repository, self._note)
        if listing.stale:
            owner = f"branches {self.commands}"
            for outcome in stale_branches.delete(repository, listing.digest, owner, self._note, self._note):
                self._note(f"{outcome}")

    def _recreate(self, repository: OpenRepository) -> None:
        for outcome in stale_branches.restore(repository, (), f"branches {self.commands}", self._note):
            self._note(f"{outcome}")
            branch = self.world.repository.branches.get(outcome.branch)
            if outcome.fate is BranchFate.RESTORED and (branch is None or branch.commit_id != outcome.commit_id):
                raise Violation(f"branch {outcome.branch} is not back on {outcome.commit_id}")

    def _end(self, acting: Iterator[LifecycleOutcome]) -> bool:
        """Acts to the end. Returns True if the server failed at no group."""
        outcomes = []
        for outcome in acting:
            self.world.log.append(f"{ACTOR}: {outcome}")
            outcomes.append(outcome)
            if outcome.run_id not in self.runs:
                self.runs.append(outcome.run_id)
        self.oracle.ended(outcomes)
        return not any(outcome.fate is LifecycleFate.FAILED for outcome in outcomes)

    def _note(self, line: str) -> None:
        self.world.log.append(f"{ACTOR}: {line}")

    def go_on(self, budget: int | None) -> None:
        """Makes up to `budget` more calls; None for all."""
        if self.coroutine is None:
            return
        self.budget = budget
        self.coroutine.resume()
        self.world.repository.by_lifecycle.update(self._receipts())
        if self.coroutine.ended:
            error, self.coroutine = self.coroutine.error, None
            if isinstance(error, CollectionError):
                self.refusals += 1
                self._note(str(error))
            elif isinstance(error, Violation):
                raise error
            elif error is not None and not isinstance(error, Killed):
                raise Crash(f"{ACTOR}: {error!r}") from error

    def _receipts(self) -> Iterator[str]:
        return (
            key.rpartition("/")[2].removesuffix(".json")
            for key in self.world.bucket.keys
            if "/lifecycle/commits/repo/" in key
        )

    def point(self, call: str) -> bool:
        """Handles a call: returns True to lose its answer."""
        if self.dead:
            raise Killed
        self.world.tick(_CALL_SECONDS)
        if self.budget is not None and self.coroutine is not None:
            if self.budget <= 0:
                self.coroutine.suspend()
            if self.budget is not None:
                self.budget -= 1
        if self.dead:
            raise Killed
        if self.fail_in is not None:
            self.fail_in -= 1
            if self.fail_in < 0:
                self.fail_in = None
                if not self.loses_answer:
                    raise ServerUnavailable(f"{call}: 503")
                return True
        return False


@dataclass
class Played:
    """What happened in a history."""

    expired: int
    came_back: int
    commands: int
    kills: int
    refusals: int
    deleted: int
    retired: int
    log: list[str] = field(repr=False)


def generate(seed: int, *, retires: bool = False) -> History:
    """A history of runs by retention rules, with commands of lifecycle at random moments.

    Args:
        retires: stale branches are deleted and recreated as well.
    """
    chance = random.Random(f"lifecycle {seed}")
    maker = RetentionMaker(random.Random(f"beside lifecycle {seed}"))
    setup = maker.setup(seed)
    maker.do("set_rules")
    while len(maker.steps) < _LEAST_STEPS:
        maker.round()
    setup = replace(setup, around=replace(setup.around, policy=chance.choice(sorted(POLICIES))))
    # Clients with false dates have histories of their own.
    steps = [
        replace(step, numbers=(step.numbers[0], 0, step.numbers[2])) if step.what in ("commit", "commit_now") else step
        for step in maker.steps
    ]
    for _ in range(chance.randint(3, 6)):
        at = chance.randrange(len(steps))
        for step in (*_episode(chance), *(_retirement(chance) if retires else ())):
            steps.insert(at, step)
            at = min(len(steps), at + 1 + chance.choice((0, 0, 1, 2, 3)))
    return History(setup, tuple(steps), "retention")


def _episode(chance: random.Random) -> Iterator[Step]:
    """A listing, its approval, perhaps broken off and repeated, and perhaps the revert of a run."""
    yield Step(ACTOR, "list", (chance.choice((5, 1000)),))
    yield Step(ACTOR, "finish")
    for attempt in range(chance.choice((1, 1, 2))):
        yield from _command(chance, "approve", (_budget(chance),), fails=attempt == 0)
    if chance.random() < 0.6:
        if chance.random() < 0.5:
            yield Step("time", "seconds", (chance.randint(1, int(3 * DAY)),))
        for attempt in range(chance.choice((1, 2))):
            yield from _command(chance, "revert", (_budget(chance), chance.randrange(9)), fails=attempt == 0)


def _retirement(chance: random.Random) -> Iterator[Step]:
    """Stale branches are deleted, perhaps broken off, and perhaps recreated."""
    for what in ("retire", "recreate") if chance.random() < 0.4 else ("retire",):
        yield from _command(chance, what, (_budget(chance),), fails=True)


def _budget(chance: random.Random) -> int:
    return chance.choice((5, 20, 40, 60, 90))


def _command(chance: random.Random, what: str, numbers: tuple[int, ...], *, fails: bool) -> Iterator[Step]:
    yield Step(ACTOR, what, numbers)
    for _ in range(chance.randint(0, 4)):
        yield Step(ACTOR, "go_on", (chance.choice((1, 2, 4, 8, 15)),))
    if fails and chance.random() < 0.25:
        yield Step(ACTOR, "fail", (chance.randrange(20), chance.randrange(2)))
    if fails and chance.random() < 0.2:
        yield Step(ACTOR, "kill")
    yield Step(ACTOR, "finish")


def play(history: History, bug: Bug = NONE) -> Played:
    """Plays a history to its end, then finishes what lifecycle has left, and some runs. Raises Violation."""
    with uncollected(), deterministic(history.setup.seed), remembering(), _users_alone(), bug.patches():
        player = Player(history.setup)
        oracle = LifecycleOracle(player.world)
        process = LifecycleProcess(player.world, oracle)
        try:
            for step in history.steps:
                if step.actor == ACTOR:
                    process.do(step.what, step.numbers)
                else:
                    player.do(step)
            process.do("finish", ())
            quiet = Quiet(player.world, player.collectors, player.figures)
            quiet.calm(history.kind)
            player.world.pass_time(2 * LOCK_EXPIRY)
            process.do("approve", (10_000,))
            process.do("finish", ())
            if left := [name for name in player.world.repository.branches if name.startswith(BRANCH_PREFIX)]:
                raise Violation(f"lifecycle leaves {', '.join(left)}")
            quiet.end(history.kind)
        finally:
            process.do("kill", ())
            player.stop()
    return Played(
        oracle.expired,
        oracle.came_back,
        process.commands,
        process.kills,
        process.refusals,
        player.world.oracle.deleted,
        oracle.retired,
        player.world.log,
    )


@contextmanager
def _users_alone() -> Iterator[None]:
    """Users choose among their own branches, and files state when each entry was written."""

    def branch_at(world: World, number: int) -> Branch:
        names = sorted(name for name in world.repository.branches if not name.startswith(BRANCH_PREFIX))
        return world.repository.branches[names[number % len(names)]]

    def record(path: str, entry: Entry) -> lakefs_files.Record:
        key, identity, _ = _record(path, entry)
        metadata = {"m": str(entry.metadata)} if entry.metadata else {}
        stored = formats.Entry(
            entry.address,
            AddressType(entry.address_type),
            entry.size,
            entry.etag,
            entry.mtime or _LONG_AGO,
            metadata=metadata,
        )
        return key, identity, stored.encode()

    with mock.patch.object(writers, "branch_at", branch_at), mock.patch.object(lakefs_files, "_record", record):
        yield
