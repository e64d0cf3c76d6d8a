"""Processes that use the product: collectors, which tests stop and resume between any two calls, make fail or kill, and
the commands that restore deleted objects and empty the quarantine.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.quarantine import restore
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck, purge_by
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CollectionError, LockLost, ServerUnavailable, StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import LakeFSApi
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation.bucket import BucketView, address_of, in_quarantine, is_back
from lakefs_gc_assets_tests.simulation.clocks import HOUR, MINUTE, CollectorClock, MachineClock
from lakefs_gc_assets_tests.simulation.collecting import TASKS, Killed, Reached, Run, Watch, open_repository
from lakefs_gc_assets_tests.simulation.oracle import Recheck, Violation, refuse_change
from lakefs_gc_assets_tests.simulation.retention_oracle import RetentionOracle
from lakefs_gc_assets_tests.simulation.run_oracles import Exactness, Refusals, RetentionExactness
from lakefs_gc_assets_tests.simulation.run_requests import ASKED, LOCK_EXPIRY, MARK_VALID, Asked
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi
from lakefs_gc_assets_tests.simulation.stored_results import addresses, exists, heads_marked
from lakefs_gc_assets_tests.simulation.world import World

_QUARANTINE_DAYS = 1.0


class Command:
    """The process of a command other than collection."""

    def __init__(
        self, world: World, seen_servers: int, removed: Callable[[str, bool], None], *, page: int = 1000
    ) -> None:
        """Prepares the process.

        Args:
            removed: receives each key that is about to be deleted.
        """
        self.world, self.recheck = world, Recheck(world.time)
        self.machine = MachineClock(world.time, world.collector_skew)
        self.clock = CollectorClock(self.machine, world.pass_time)
        limit = world.setup.delete_limit
        self.view = BucketView(world.bucket, self.point, removed, self._written, page=page, delete_limit=limit)
        self.store = world.bucket.opened(self.view)
        self.api = CollectorsApi(world.servers, self.point, self.recheck.begins, self.machine, seen_servers)

    def point(self, call: str) -> bool:
        self.world.tick(_CALL_SECONDS)
        self.recheck.asked_at = self.world.time.now
        return False

    def _written(self, key: str, data: bytes) -> None:
        for run_id in self.world.oracle.runs:
            if key.startswith(run_folder.receipts(run_id)):
                self.world.oracle.receipts(run_id, data)
                return


def put_back(world: World, run_id: str, options: CollectionSettings) -> int:
    """Restores everything that a run moved to quarantine, and returns the count; refusals are only logged."""

    def removed(key: str, gone: bool) -> None:
        if address_of(key) is not None:
            raise Violation(f"{key} is removed by a restoration, and a deletion may yet be done")

    command = Command(world, 1, removed)
    repository = open_repository(command.api, command.store, options, command.clock)
    came_back, there = 0, {address for moved_by, address in in_quarantine(world.bucket) if moved_by == run_id}
    try:
        for each in restore.restore(repository, run_id, (), f"restore at {world.time.now}", world.log.append):
            assert each.fate.is_well or each.address not in there, each
            came_back += each.fate.is_well
    except CollectionError as refusal:
        world.log.append(f"restore: {refusal}")
    return came_back


def purge(
    world: World, exactness: Exactness, retention: RetentionExactness | None, options: CollectionSettings
) -> None:
    """Purges objects of all runs that were in quarantine for a day; refusals are only logged."""
    settings = options.model_copy(update={"quarantine_days": _QUARANTINE_DAYS})

    def removed(key: str, gone: bool) -> None:
        moved = address_of(key)
        if moved is not None and not is_back(world.bucket, key):
            world.oracle.deletion(*moved, command.recheck)

    command = Command(world, world.setup.seen_servers, removed)
    api, store, clock, recheck = command.api, command.store, command.clock, command.recheck
    others: list[Reached] = []
    if world.other is not None and world.other.around.also_live:
        bucket = world.other.repository.bucket
        seen = BucketView(bucket, command.point, refuse_change, refuse_change, page=1000, delete_limit=0)
        others.append((CollectorsApi(world.other.servers, command.point, lambda: None, command.machine, 1), seen))
    repository = open_repository(api, store, settings, clock, others=others)
    watch = Watch(world.oracle.listing, world.oracle.marked, recheck.opens, recheck.ends, exactness, retention)

    def check(plan: Plan, lock: Lock) -> LiveCheck[ArrowRows]:
        run = Run(api, store, settings, clock, plan.run_id, plan.owner, watch, world.log.append, [])
        step = Step(world.log.append, world.log.append, replace(repository, run=run), LocalEngine(TASKS), plan, lock)
        return LiveCheck(step)

    try:
        for each in purge_by(repository, None, f"purge at {world.time.now}", check, world.log.append):
            world.log.append(f"{each.address}: {each.fate}")
    except CollectionError as refusal:
        world.log.append(f"purge: {refusal}")


SWEEPING = "sweeping: "
"""Prefix of patterns that match only calls of a run's last step."""
CALLS = tuple(
    re.compile(pattern)
    for pattern in (
        "list_level data/",
        "prepare_uncommitted",
        "diff|branches",
        "start_refs_dump",
        "refs_dump",
        "get _lakefs/[0-9a-f]{64}",
        "stat",
        "delete (?!_lakefs/retention/gc/uncommitted/)",
        "put_if_absent",
        "retention_rules",
        "start_prepare_commits|prepare_commits_task|prepare_commits$",
        # Listing and mark read this file too. A sweep reads it first, before all its other work.
        f"{SWEEPING}get _lakefs/retention/gc/uncommitted/restored.json",
    )
)
CALLS_OF_ALL = 9
"""Number of leading patterns whose calls runs of every flow make."""


def is_of(kind: re.Pattern[str], call: str, *, sweeping: bool) -> bool:
    """True if a call is of a kind.

    Args:
        sweeping: True if the run is at its last step.
    """
    return bool(kind.match(call) or (sweeping and kind.match(SWEEPING + call)))


class Coroutine:
    """Runs a function in its own thread, never at the same time as the thread that resumes it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._mine, self._theirs = threading.Lock(), threading.Lock()
        self._mine.acquire()
        self._theirs.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = False
        self.ended = False
        self.error: BaseException | None = None

    def _run(self) -> None:
        self._mine.acquire()
        try:
            self._function()
        except BaseException as error:
            self.error = error
        self.ended = True
        self._theirs.release()

    def resume(self) -> None:
        """Runs the function until it suspends itself or ends."""
        if not self._started:
            self._started = True
            self._thread.start()
        self._mine.release()
        self._theirs.acquire()
        if self.ended:
            self._thread.join()

    def suspend(self) -> None:
        """Waits until the function is resumed. Called by the function itself."""
        self._theirs.release()
        self._mine.acquire()

    @property
    def inside(self) -> bool:
        """True if the caller is the function itself."""
        return threading.current_thread() is self._thread


_CALL_SECONDS = 0.05
_YEAR_4000 = 64_060_588_800
_BRANCHES_THAT_SHOW = 2
"""Minimum of branches known to a run for it to notice that one is left."""


class Crash(Violation):
    """The collector ended with an exception other than its own errors."""


def is_own(key: str) -> bool:
    """True if a key is a collector's own file, copies in quarantine included."""
    return key.startswith((layout.RUNS_PREFIX, layout.QUARANTINE_PREFIX))


@dataclass
class Figures:
    """Figures of the collectors in a history.

    Attributes:
        optimized: completed optimized runs.
        instead: completed clean runs in place of an optimized one.
        by_rules: completed runs by retention rules.
        chains: number of runs built on each other that end with each run id.
    """

    runs: int = 0
    sweeps: int = 0
    kills: int = 0
    failed: int = 0
    calls: int = 0
    optimized: int = 0
    instead: int = 0
    by_rules: int = 0
    chains: dict[str, int] = field(default_factory=dict)

    @property
    def longest_chain(self) -> int:
        """Maximum number of runs that built on each other."""
        return max(self.chains.values(), default=0)


@dataclass
class Process:
    """Runs one collector process at a time.

    Attributes:
        budget: calls left before it stops; None for no limit.
        stop_before: stops at the nth call from now of a kind.
        fail_in: calls left before one fails.
        fail_at: the nth call from now of a kind fails.
        frozen: True if its background thread stands still as well.
        completed: steps that Dagster considers done, by run.
    """

    world: World
    name: str
    figures: Figures
    exactness: Exactness
    retention: RetentionExactness | None = None
    refusals: Refusals | None = None
    coroutine: Coroutine | None = None
    run: Run | None = None
    view: BucketView | None = None
    api: CollectorsApi | None = None
    machine: MachineClock = field(init=False)
    recheck: Recheck = field(init=False)
    budget: int | None = None
    stop_before: tuple[re.Pattern[str], int] | None = None
    fail_in: int | None = None
    fail_at: tuple[re.Pattern[str], int] | None = None
    lose_answer: bool = False
    frozen: bool = False
    dead: bool = False
    wake: float = 0.0
    last_renewed: float = 0.0
    unfenced: int = 0
    in_background: bool = False
    options: CollectionSettings | None = None
    asked: Asked = ASKED
    completed: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recheck = Recheck(self.world.time)
        self.world.background.append(self.keep_lock)

    @property
    def active(self) -> bool:
        return self.coroutine is not None

    @property
    def is_sweeping(self) -> bool:
        """True if a run is at its last step."""
        return self.active and self.run is not None and self.run.at == STEPS[4]

    def start(self, options: CollectionSettings, budget: int | None, asked: Asked = ASKED) -> None:
        """Starts a new run."""
        if self.active:
            return
        seconds = int(self.world.time.now + self.world.collector_skew)
        self.figures.runs += 1
        self.figures.sweeps += options.sweep
        prefix = ((_YEAR_4000 - seconds) & 0xFFFF_FFFF).to_bytes(4)
        run_id = layout.encode_xid(prefix + self.name.encode().ljust(5)[:5] + self.figures.runs.to_bytes(3))
        self.options, self.asked = options, asked
        oracle = self.world.oracle
        if isinstance(oracle, RetentionOracle) and asked.flow.by_retention:
            oracle.by_retention.add(run_id)
        self._launch(run_id, f"owner of {run_id}", (), (), budget)

    def resume(self, budget: int | None, *, whole: bool) -> None:
        """Resumes the last run from its first unfinished step, or from the start, as if on another machine."""
        if self.active or self.run is None or self.options is None:
            return
        run_id = self.run.run_id
        done = [] if whole else [*self.completed[run_id]]
        if len(done) == len(STEPS):
            return
        self._launch(run_id, self.run.owner, self.run.windows, done, budget)

    def approve(self, budget: int | None) -> None:
        """Approves the candidates of the last run, if it was a dry run."""
        if self.active or self.run is None or self.options is None or self.options.sweep:
            return
        if exists(self.exactness.store, self.run.run_id, STEPS[3]):
            self.options = self.options.model_copy(update={"approve_run": self.run.run_id})
            self._launch(self.run.run_id, self.run.owner, self.run.windows, STEPS[:4], budget)

    def put_back(self) -> None:
        """Restores the objects that the last run moved to quarantine."""
        if not self.active and self.run is not None and self.options is not None:
            came_back = put_back(self.world, self.run.run_id, self.options)
            if came_back and self.refusals is not None:
                self.refusals.restored_at = self.world.time.now

    def purge(self) -> None:
        """Purges objects that were moved to quarantine long enough ago."""
        if not self.active and self.options is not None:
            purge(self.world, self.exactness, self.retention, self.options)

    def _launch(
        self, run_id: str, owner: str, windows: tuple[str, ...], done: Sequence[str], budget: int | None
    ) -> None:
        world, setup = self.world, self.world.setup
        self.machine = machine = MachineClock(world.time, world.collector_skew)
        self.recheck = Recheck(world.time)
        self.dead, self.frozen, self.unfenced = False, False, 0
        self.fail_in, self.fail_at, self.stop_before = None, None, None
        world.oracle.begins(run_id)
        self.view = view = BucketView(
            world.bucket,
            self._store_point,
            lambda key, gone: self._deletes(run_id, key),
            lambda key, data: self._written(run_id, key, data),
            page=setup.listing_page,
            delete_limit=setup.delete_limit,
        )
        self.api = api = CollectorsApi(
            world.servers, self._api_point, self.recheck.begins, machine, setup.seen_servers, self._must_miss_branches
        )
        options = self.options
        assert options is not None
        self.run = run = Run(
            api=self.reached_api(api),
            store=self.reached_store(view),
            settings=options,
            clock=CollectorClock(machine, self._wait),
            run_id=run_id,
            owner=owner,
            watch=Watch(
                world.oracle.listing,
                world.oracle.marked,
                self.recheck.opens,
                self.recheck.ends,
                self.exactness,
                self.retention,
                lambda: replace(api.reported, written=view.metadata_written),
                self.refusals,
                lambda: api.dump_refused,
            ),
            note=world.log.append,
            completed=self.completed.setdefault(run_id, []),
            flow=self.asked.flow,
            windows=windows,
            only_windows=self.asked.only_windows,
            others=self._others(),
            ended=self.ended,
        )

        def collect() -> None:
            run.collect(done)

        self.coroutine = Coroutine(collect)
        self.go_on(budget)

    def _others(self) -> list[Reached]:
        """The repositories that `also_live` names, as the collector sees them."""
        other = self.world.other
        if other is None or not other.around.also_live:
            return []
        view = BucketView(
            other.repository.bucket,
            lambda call: self._store_point(f"other {call}"),
            refuse_change,
            refuse_change,
            page=self.world.setup.listing_page,
            delete_limit=0,
        )
        sees = self.world.setup.seen_servers
        api = CollectorsApi(
            other.servers, lambda call: self._api_point(f"other {call}"), lambda: None, self.machine, sees
        )
        return [(api, view)]

    def _deletes(self, run_id: str, key: str) -> None:
        """An object is being deleted."""
        if address_of(key) is not None and not is_back(self.world.bucket, key):
            raise Violation(f"run {run_id} removes {key}, the copy of an object that is gone")
        if is_own(key):
            return
        if self.refusals is not None:
            self.refusals.require_none(run_id, self.recheck.asked_at)
        self.world.oracle.deletion(run_id, key, self.recheck)

    def _must_miss_branches(self) -> bool:
        """True if the run can notice branches that servers no longer list."""
        run = self.run
        if run is None or not self.world.setup.around.branches_stay:
            return False
        if run.at == STEPS[4]:
            return heads_marked(self.exactness.store, run.run_id) >= _BRANCHES_THAT_SHOW
        return self.world.branches_before(run.run_id) >= _BRANCHES_THAT_SHOW

    def ended(self) -> None:
        """Called when all steps are done, before Dagster records the last one."""

    def reached_api(self, api: CollectorsApi) -> LakeFSApi:
        """The server as the collector sees it."""
        return api

    def reached_store(self, view: BucketView) -> ObjectStore:
        """The store as the collector sees it."""
        return self.world.bucket.opened(view)

    def go_on(self, budget: int | None) -> None:
        """Makes up to `budget` more calls; None for all."""
        if self.coroutine is None:
            return
        self.budget, self.frozen = budget, False
        self.coroutine.resume()
        if self.coroutine.ended:
            error, self.coroutine = self.coroutine.error, None
            if isinstance(error, CollectionError):
                self.figures.failed += 1
                self.world.log.append(f"{self.name}: {error}")
            elif isinstance(error, Violation):
                raise error
            elif error is not None and not isinstance(error, Killed):
                raise Crash(f"{self.name}: {error!r}") from error

    def go_on_until(self, kind: int, count: int) -> None:
        """Makes calls up to the nth of a kind."""
        self.stop_before = CALLS[kind % len(CALLS)], count
        self.go_on(None)
        self.stop_before = None

    def fail_on(self, kind: int, count: int) -> None:
        """Makes the nth call of a kind fail."""
        self.fail_at = CALLS[kind % len(CALLS)], count

    def kill(self) -> None:
        """Ends the process at once."""
        if self.coroutine is not None:
            self.dead = True
            self.figures.kills += 1
            self.go_on(None)

    def _suspend_if_spent(self) -> None:
        if self.budget is not None and self.coroutine is not None:
            if self.budget <= 0:
                self.coroutine.suspend()
            if self.budget is not None:
                self.budget -= 1

    def _point(self, call: str) -> bool | None:
        """Handles a call: returns True to lose its answer, None to fail it."""
        if self.in_background:
            return False
        if self.dead:
            raise Killed
        self.figures.calls += 1
        self.world.tick(_CALL_SECONDS)
        self.recheck.asked_at = self.world.time.now
        if self.stop_before is not None and self.coroutine is not None:
            kind, count = self.stop_before
            if is_of(kind, call, sweeping=self.is_sweeping):
                self.stop_before = (kind, count - 1) if count > 1 else None
                if count <= 1:
                    self.coroutine.suspend()
        self._suspend_if_spent()
        if self.dead:
            raise Killed
        if call.startswith("delete ") and not is_own(call.removeprefix("delete ")):
            self._require_fenced(call)
            self._require_fresh_mark()
        if self.fail_at is not None:
            kind, count = self.fail_at
            if is_of(kind, call, sweeping=self.is_sweeping):
                self.fail_at = (kind, count - 1) if count > 1 else None
                if count <= 1:
                    return None
        if self.fail_in is not None:
            self.fail_in -= 1
            if self.fail_in < 0:
                self.fail_in = None
                self.world.log.append(f"{self.name}: {call} fails")
                return True if self.lose_answer else None
        return False

    def _store_point(self, call: str) -> bool:
        said = self._point(call)
        if said is None:
            raise StorageError(f"{call}: 500 InternalError")
        return said

    def _api_point(self, call: str) -> bool:
        said = self._point(call)
        if said is None:
            raise ServerUnavailable(f"{call}: 503")
        return said

    def _wait(self, seconds: float) -> None:
        self.wake = self.world.time.now + seconds
        if self.budget is not None and self.coroutine is not None:
            self.coroutine.suspend()
        if self.dead:
            raise Killed
        if self.world.time.now < self.wake:
            self.world.pass_time(self.wake - self.world.time.now)

    def _written(self, run_id: str, key: str, data: bytes) -> None:
        if key == lock.KEY:
            self.last_renewed = self.world.time.now
        elif key.startswith(run_folder.receipts(run_id)):
            self.world.oracle.receipts(run_id, data)
        elif key == run_folder.report(run_id):
            self.world.oracle.report(run_id, data, addresses(self.exactness.store, run_id, STEPS[3]))
            self._count(json.loads(data))

    def _count(self, report: dict[str, Any]) -> None:
        figures, before = self.figures, report["base_run"]
        if "branches" in report["counts"]:
            swept = report["ended_well"] and not report["dry_run"]
            self.world.branches_reported[report["run_id"]] = report["counts"]["branches"], swept
        if report["ending"] != Ending.FAILED:
            figures.optimized += report["flow"] == Flow.OPTIMIZED
            figures.instead += report["why_clean"] is not None
            figures.by_rules += Flow(report["flow"] or "").by_retention
            figures.chains[report["run_id"] or ""] = 1 + figures.chains.get(before, 0) if before else 0

    def _require_fenced(self, call: str) -> None:
        """Allows one batch in progress when the lock is lost; a second one is a violation."""
        stored = self.world.bucket.objects.get(lock.KEY)
        record = json.loads(stored.data) if stored else {}
        this = self.run.this if self.run is not None else None
        held = this is not None and record.get("nonce") == this.lock_token
        self.unfenced = 0 if held and not record.get("released") else self.unfenced + 1
        if self.unfenced > 1:
            raise Violation(f"{self.name} goes on with deletes although the lock belongs to {record.get('owner')}")

    def _require_fresh_mark(self) -> None:
        """Raises Violation if the mark is too old by any clock that the collector sees."""
        run, own = self.run, self.machine.skew
        assert run is not None
        began = run.started_at.timestamp() - own
        seen = [skew for answered, skew in self.api.answered if answered <= began] if self.api else []
        ahead = max([0.0, *(skew - own for skew in seen)])
        age = began + ahead - self.world.oracle.runs[run.run_id].listing_began
        if age > MARK_VALID + 3 * MINUTE:
            raise Violation(f"{self.name} sweeps by a mark that is {age / HOUR:.1f} hours old")

    def keep_lock(self) -> None:
        """Does the work of the background thread: renews a held lock in time."""
        run = self.run
        if (
            self.coroutine is None
            or self.dead
            or self.frozen
            or run is None
            or run.this is None
            or run.this.lock is None
        ):
            return
        if self.world.time.now - self.last_renewed < LOCK_EXPIRY / 4:
            return
        self.in_background = True
        try:
            run.this.lock.renew(run.clock.now())
        except (LockLost, StorageError):
            # The next batch notices.
            self.last_renewed = self.world.time.now
        finally:
            self.in_background = False
