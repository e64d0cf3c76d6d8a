"""The simulated world: time, store, repository, servers, users' unfinished work, and the oracle that watches."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from lakefs_gc_assets.lakefs.api.models import RepositoryFacts
from lakefs_gc_assets.storage.signing import Signer
from lakefs_gc_assets_tests.simulation.bucket import Bucket, ETags, md5
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MachineClock, TrueTime
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.oracle import Oracle
from lakefs_gc_assets_tests.simulation.other_repository import ALONE, Around, OtherRepository, listed
from lakefs_gc_assets_tests.simulation.repository import Refused, Repository
from lakefs_gc_assets_tests.simulation.retention_oracle import RetentionOracle
from lakefs_gc_assets_tests.simulation.servers import (
    ACTION_KEY,
    LINK_SECONDS,
    Misbehaviour,
    Server,
    Servers,
    action_file,
)

Rules = Literal["oss", "seed"]
"""Copies are full ("oss"), or by reference and remembered within one staging area ("seed")."""

START = 1_794_000_000.0
"""2026-11-06 21:20 UTC."""
PATHS = ("a", "b", "d/a", "d/b", "d/c", "e", "f/1", "f/2", "g", "z")
CONTENTS = (b"", b"one", b"two", b"three", b"seven", b"content of eleven", b"x" * 40)
BRANCHES = ("main", "alpha", "dev", "omega", "zeta")
TAGS = ("v1", "v2", "v3")
SIGNING_KEY = "key-of-the-simulation-and-of-nothing-else"
COPY_SECONDS = 48 * HOUR
"""Seconds for which a copy is remembered."""

Job = Iterator[float | None]
"""An operation of several steps. It yields the maximum seconds until its next step, or None for no limit."""


@dataclass(frozen=True)
class Setup:
    """Setup of a world.

    Attributes:
        server_skews: clock skew of each server, seconds.
        seen_servers: number of servers that ever answer the collector.
        dumps: True if the collector may dump refs.
        layout: layout of new names. With `switched`, one server after another begins to use the sharded one.
        retention: True if some runs go by retention rules.
        signed: True if collectors sign their files, and trust no unsigned ones.
        around: other repositories, and the permissions in the settings.
        hook_minutes: timeout of a webhook that holds commits and merges on every branch; 0 for none.
    """

    seed: int = 0
    start: float = START
    rules: Rules = "oss"
    etags: ETags = "md5"
    layout: Literal["slice", "sharded", "switched"] = "slice"
    uri: str = "s3://bucket/repo/"
    server_skews: tuple[float, ...] = (0.0, 0.0)
    seen_servers: int = 1
    store_skew: float = 0.0
    collector_skew: float = 0.0
    listing_page: int = 1000
    delete_limit: int = 3
    page_rows: int = 3
    old_objects: int = 4
    dumps: bool = True
    retention: bool = False
    signed: bool = False
    around: Around = ALONE
    hook_minutes: int = 0


@dataclass
class Running:
    """A job in progress; `due` is the latest true time of its next step."""

    name: str
    job: Job
    due: float | None


@dataclass
class World:
    """Everything but the collectors.

    Attributes:
        other: the other repository, if any.
        branches_reported: by run id the branches that its report counts, and True if it is a sweep that succeeded.
    """

    setup: Setup
    time: TrueTime
    bucket: Bucket
    repository: Repository
    servers: Servers
    oracle: Oracle
    jobs: list[Running] = field(default_factory=list)
    background: list[Callable[[], None]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    imports: int = 0
    other: OtherRepository | None = None
    branches_reported: dict[str, tuple[int, bool]] = field(default_factory=dict)
    collector_skew: float = field(init=False)

    def __post_init__(self) -> None:
        self.collector_skew = self.setup.collector_skew

    @classmethod
    def from_setup(cls, setup: Setup) -> "World":
        """Makes a repository with an empty first commit, and objects of older layouts."""
        time = TrueTime(setup.start)
        signer = Signer.from_setting(SIGNING_KEY, setup.uri) if setup.signed else None
        bucket = Bucket(MachineClock(time, setup.store_skew), setup.etags, signer)
        repository = Repository(setup.uri, bucket)
        machines = [
            Server(number, MachineClock(time, skew), _sharded_from(setup, number))
            for number, skew in enumerate(setup.server_skews)
        ]
        servers = Servers(repository, machines)
        servers.misbehaviour.page_rows = setup.page_rows
        servers.misbehaviour.refuse_dumps = not setup.dumps
        servers.hook_minutes = setup.hook_minutes
        kind = RetentionOracle if setup.retention else Oracle
        oracle = kind(time, repository, bucket, min(setup.server_skews))
        if isinstance(oracle, RetentionOracle):
            oracle.policy = setup.around.policy
        world = cls(setup, time, bucket, repository, servers, oracle)
        if setup.around.other != "none":
            world.other = oracle.other = OtherRepository.from_scene(setup.around, time, repository, servers)
            oracle.mislead("the twin", world.other.stages_unseen)
        # Scenes are pickled, and a local function could not be.
        servers.others = partial(_listed_in, world)
        world.begin()
        return world

    def begin(self) -> None:
        first = self.commit({}, (), 0.0)
        self.repository.new_branch("main", first)
        self.bucket.put("_lakefs/dummy", b"")
        if self.setup.old_objects:
            # Versions of lakeFS that had no `_lakefs/dummy` marked a namespace so.
            self.bucket.put("dummy", b"")
        if self.setup.hook_minutes:
            self.bucket.put(ACTION_KEY, action_file(self.setup.hook_minutes))
        for number in range(self.setup.old_objects):
            content = CONTENTS[1 + number % 4]
            names = (f"data/repo:token-{number}/{number:021d}", md5(str(number).encode()), f"data/foreign/{number}")
            key = names[number % 3]
            self.bucket.put_data(key, content, begun=self.time.now - 400 * HOUR)
            if number % 3 == 2:
                self.oracle.foreign.add(key)
            elif number % 2:
                entry = Entry(key, 1, len(content), md5(content))
                self.repository.stage(self.repository.branches["main"], f"old/{number}", entry)
        self.oracle.look()

    def commit(
        self,
        entries: dict[str, Entry],
        parents: tuple[str, ...],
        lag: float,
        date: float = 0.0,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> str:
        """Adds a commit; its date is off by `date` seconds."""
        now = self.time.now
        id_ = self.repository.add_commit(entries, parents, now + date, now, lag, metadata)
        self.oracle.note_commit(entries.values())
        return id_

    def issue(self, server: Server, *, linkable: bool = False) -> tuple[str, int]:
        """Issues a new name of one server, and records in the oracle until when it can be linked."""
        key, issued = server.issue_name(linkable=linkable)
        self.oracle.issued[key] = self.time.now
        if linkable:
            self.oracle.linkable_until[key] = issued + LINK_SECONDS - self.oracle.slowest_skew
        return key, issued

    def set_clock(self, machine: int, skew: float) -> None:
        """Sets a clock: of the collectors' machine, for later runs, of the store, or of a server."""
        machines = [self.bucket.clock, *(server.clock for server in self.servers.servers)]
        if machine % (1 + len(machines)) == 0:
            self.collector_skew = skew
            return
        machines[machine % (1 + len(machines)) - 1].skew = skew
        slower = self.oracle.slowest_skew - skew
        if slower > 0:
            self.oracle.slowest_skew = skew
            for key in self.oracle.linkable_until:
                self.oracle.linkable_until[key] += slower

    def dismiss_twin(self) -> None:
        """The twin is abandoned: its commits stay in our namespace, its staged entries are gone."""
        if self.other is not None and self.other.stages_unseen:
            self.other.leave()
            self.oracle.mislead("the twin", False)
            self.oracle.look()

    def misbehave(self, what: str, number: int) -> None:
        """Begins or ends a fault of the servers."""
        wrong = self.servers.misbehaviour
        match what:
            case "vanish_commit":
                # With rules a replaced commit stays as long as the next one is young: a limit, see docs/limits.md.
                tips = [] if self.setup.retention else self._unnamed_commits()
                wrong.vanished |= {tips[number % len(tips)]} if tips else set()
            case "lost_branches_but_one":
                wrong.lost_branches_but_one = bool(number)
                self.oracle.mislead("the servers", bool(number))
            case "aliased":
                wrong.aliased, self.oracle.aliased_since = bool(number), self.time.now if number else None
            case "refuse_dumps":
                wrong.refuse_dumps = bool(number) or not self.setup.dumps
            case _:
                setattr(wrong, what, number)

    def _unnamed_commits(self) -> list[str]:
        """Commits that no branch, tag or other commit names."""
        repository = self.repository
        named = {parent for record in repository.commits.values() for parent in record.facts.parents}
        named |= {branch.commit_id for branch in repository.branches.values()} | set(repository.tags.values())
        return sorted(repository.commits.keys() - named)

    def behave(self) -> None:
        """Ends all faults of the servers, except permanent ones."""
        wrong = self.servers.misbehaviour
        self.misbehave("lost_branches_but_one", 0)
        self.misbehave("aliased", 0)
        self.servers.misbehaviour = Misbehaviour(
            page_rows=self.setup.page_rows, refuse_dumps=not self.setup.dumps, copies_first=wrong.copies_first
        )

    def branches_before(self, run_id: str) -> int:
        """Minimum branches that a run must know of: the maximum reported since the newest sweep that succeeded."""
        most = 0
        for earlier in sorted(earlier for earlier in self.branches_reported if earlier > run_id):
            count, swept = self.branches_reported[earlier]
            most = max(most, count)
            if swept:
                break
        return most

    def start(self, name: str, job: Job) -> None:
        """Begins an operation; its first step happens at once."""
        running = Running(name, job, None)
        self.jobs.append(running)
        self.go_on(running)

    def go_on(self, running: Running) -> None:
        """Makes the next step of an operation."""
        if running not in self.jobs:
            return
        try:
            within = next(running.job)
            running.due = None if within is None else self.time.now + within
        except StopIteration:
            self.jobs.remove(running)
        except Refused:
            self.jobs.remove(running)
        self.oracle.look()

    def abandon(self, running: Running) -> None:
        """Ends an operation where it is, as a crash does."""
        self.jobs.remove(running)
        running.job.close()  # type: ignore[attr-defined]
        self.oracle.look()

    def tick(self, seconds: float) -> None:
        """Passes the time that a call takes."""
        self.time.now += seconds
        now = self.time.now
        for running in self.jobs:
            if running.due is not None and running.due <= now:
                self.pass_time(0.0)
                return

    def pass_time(self, seconds: float) -> None:
        """Lets time pass and makes the steps that are due meanwhile."""
        until = self.time.now + seconds
        while True:
            due = [running for running in self.jobs if running.due is not None and running.due <= until]
            if not due:
                break
            first = min(due, key=lambda running: running.due or 0.0)
            self.time.now = max(self.time.now, first.due or 0.0)
            self.go_on(first)
        self.time.now = max(self.time.now, until)
        copies = self.repository.copies
        if copies and copies[0][1] < self.time.now - COPY_SECONDS:
            self.repository.copies = [row for row in copies if row[1] >= self.time.now - COPY_SECONDS]
            self.oracle.look()
        for each in self.background:
            each()

    def garbage(self) -> list[str]:
        """Unreachable objects of lakeFS."""
        return [
            key
            for key in self.bucket.keys
            if not key.startswith("_lakefs/") and key != "dummy" and not self.oracle.reachable(key)
        ]


def _sharded_from(setup: Setup, number: int) -> float:
    """When a server begins to name objects by the sharded layout."""
    return {"slice": math.inf, "sharded": -math.inf, "switched": setup.start + (number + 2) * 2 * DAY}[setup.layout]


def _listed_in(world: World) -> tuple[RepositoryFacts, ...]:
    """The other repositories that the server lists now."""
    return listed(world.setup.around, world.other)
