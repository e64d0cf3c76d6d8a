"""Updates of branches that a hook holds during a run: objects that they will reference are not deleted."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock

import pytest
from lakefs_sdk import (
    BranchCreation,
    BranchesApi,
    CherryPickCreation,
    ExperimentalApi,
    Merge,
    ObjectsApi,
    RefsApi,
    RevertCreation,
)
from lakefs_sdk.exceptions import ApiException

from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.real.server import RealLakeFS, installation
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

_PATIENCE_SECONDS = 900


@dataclass
class Hook:
    """A webhook. It answers at once or, while holding, as soon as it is released.

    Attributes:
        url: address that lakeFS calls.
        asked: set once a call is held.
    """

    url: str = ""
    asked: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._released.set()

    def action(self, timeout: str) -> bytes:
        """An action file that calls the hook before every kind of new head."""
        events = "".join(f"  {event}:\n" for event in ("pre-commit", "pre-merge", "pre-revert", "pre-cherry-pick"))
        properties = f"      url: {self.url}\n      timeout: {timeout}\n"
        return (
            f"name: hold\non:\n{events}hooks:\n  - id: hold\n    type: webhook\n    properties:\n{properties}".encode()
        )

    @contextmanager
    def holding(self, update: Callable[[], object]) -> Iterator["Held"]:
        """Begins an update of a branch, which the hook holds once called, until it is released."""
        self.asked.clear()
        self._released.clear()
        held = Held(self._released.set, update)
        held.thread.start()
        try:
            assert self.asked.wait(_PATIENCE_SECONDS), f"no hook was called: {held.error}"
            yield held
        finally:
            held.release()

    def wait(self) -> None:
        """Waits, if the hook is holding, before a call is answered."""
        if not self._released.is_set():
            self.asked.set()
            self._released.wait(_PATIENCE_SECONDS)


class Held:
    """An update of a branch in progress.

    Attributes:
        result: its return value; None if it failed, with `error`.
    """

    def __init__(self, let_go: Callable[[], object], update: Callable[[], object]) -> None:
        self._let_go, self._update = let_go, update
        self.result: Any = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.result = self._update()
        except Exception as error:
            self.error = error

    def release(self) -> None:
        """Lets the hook answer, and waits until the update has ended."""
        self._let_go()
        self.thread.join(_PATIENCE_SECONDS)
        assert not self.thread.is_alive(), "the update did not end"


@contextmanager
def webhook() -> Iterator[Hook]:
    """A hook on a separate port."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            hook.wait()
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class PassingClock(SystemClock):
    """The true clock of a collector whose waits take no time: events that would happen meanwhile happen at once.

    Attributes:
        meanwhile: called with the seconds of a wait.
        waited: all waits, in seconds.
    """

    meanwhile: Callable[[float], object] = lambda seconds: None
    waited: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        """Calls `meanwhile` for a wait of minutes; pauses between polls stay pauses."""
        if seconds < 1:
            super().sleep(seconds)
            return
        self.waited.append(seconds)
        self.meanwhile(seconds)


PATHS = [f"table/part-{number:02}" for number in range(12)]
ACTION = "_lakefs_actions/hold.yaml"
LUA = b"name: script\non:\n  pre-commit:\nhooks:\n  - id: check\n    type: lua\n    properties: {script: 'print(1)'}\n"
HOOK_SECONDS = 10 * 600
"""A webhook of ten minutes, which the server may call ten times for one commit."""


@dataclass
class Scene:
    """A repository `repo` in which twelve paths of main were staged three days ago, beside one object of garbage."""

    lakefs: RealLakeFS
    hook: Hook

    def runs(self, clock: PassingClock, **collection: Any) -> ArrowRuns:
        """Runs that wait only for commits in progress."""
        waits = {"wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0, "max_candidate_share": 1}
        configuration = Configuration.model_validate(
            {
                "repository": "repo",
                "lakefs": self.lakefs.lakefs_settings().model_dump(),
                "store": self.lakefs.store_settings().model_dump(),
                "collection": {**waits, "sweep": True, **collection},
            }
        )
        return ArrowRuns(Loaded(configuration, {}), clock)

    def stage_anew(self) -> None:
        for path in PATHS:
            self.lakefs.upload("repo", "main", path, f"new content of {path}".encode())

    def unreadable(self, reference: str) -> list[str]:
        """Paths whose first content the server cannot return at a commit."""
        return [path for path in PATHS if self.read(reference, path) != f"content of {path}".encode()]

    def read(self, reference: str, path: str) -> bytes | None:
        """Content of an object as the server returns it; None if it is gone."""
        try:
            return bytes(ObjectsApi(self.lakefs.sdk()).get_object("repo", reference, path))
        except ApiException as error:
            assert error.status in (404, 410), error
            return None


@pytest.fixture
def scene() -> Iterator[Scene]:
    with installation() as lakefs, webhook() as hook:
        lakefs.start(days_ago=3)
        lakefs.new_repository("repo")
        lakefs.upload("repo", "main", ACTION, hook.action("10m"))
        lakefs.upload("repo", "main", "other", b"other")
        lakefs.commit("repo", "main")
        for path in PATHS:
            lakefs.upload("repo", "main", path, f"content of {path}".encode())
        for content in (b"garbage", b"what replaced it"):
            lakefs.upload("repo", "main", "replaced", content)
        lakefs.start()
        yield Scene(lakefs, hook)


def test_sweep_waits_until_a_held_commit_has_ended_and_keeps_its_objects(scene: Scene) -> None:
    with scene.hook.holding(lambda: scene.lakefs.commit("repo", "main")) as held:
        scene.stage_anew()
        clock = PassingClock(meanwhile=lambda seconds: held.release())
        found = scene.runs(clock).collect()
    assert clock.waited[0] == pytest.approx(HOOK_SECONDS, abs=60)
    assert (found.counts["candidates"], found.counts["kept_live"], found.counts["deleted"]) == (13, 12, 1)
    assert scene.unreadable(held.result.id) == []


def test_without_that_wait_the_objects_of_the_commit_are_lost(scene: Scene) -> None:
    """Proves that the scene depends on the wait."""
    with scene.hook.holding(lambda: scene.lakefs.commit("repo", "main")) as held:
        scene.stage_anew()
        with mock.patch.object(sweeping, "wait_for_recheck", lambda step, uncommitted: None):
            assert scene.runs(PassingClock()).collect().counts["deleted"] == 13
    assert held.error is None
    assert scene.unreadable(held.result.id) == PATHS


def test_approval_of_a_dry_run_waits_and_says_for_whose_hook(scene: Scene) -> None:
    with scene.hook.holding(lambda: scene.lakefs.commit("repo", "main")) as held:
        scene.stage_anew()
        clock = PassingClock(meanwhile=lambda seconds: held.release())
        dry = scene.runs(clock, sweep=False)
        found = dry.collect()
        assert found.counts["candidates"] == 13 and not clock.waited
        assert [line for line in dry.lines if f"which {ACTION} on branch main may delay" in line]
        approving = scene.runs(clock, sweep=False, approve_run=found.run_id)
        approved = _approve(approving, found)
    assert [line for line in approving.lines if f"{ACTION} on branch main may delay a commit" in line]
    assert (approved.counts["kept_live"], approved.counts["deleted"]) == (12, 1)
    assert scene.unreadable(held.result.id) == []


def _approve(runs: ArrowRuns, dry: Report) -> Report:
    """Repeats the last step of a dry run, as `lakefs-gc approve` does."""
    made = runs.make(runs.open_run(Flow.CLEAN, dry.run_id), ["deleted_report"], "owner")
    assert made.success, made.failures
    found = report.read(runs.open().store, dry.run_id)
    assert found is not None
    return found


def test_hook_without_a_time_limit_stops_the_sweep_until_the_settings_name_one(scene: Scene) -> None:
    scene.lakefs.upload("repo", "main", "_lakefs_actions/script.yaml", LUA)
    scene.stage_anew()
    with pytest.raises(GuardTripped, match=r"commits under way: .*script\.yaml on branch main: hook check is of type"):
        scene.runs(PassingClock()).collect()
    clock = PassingClock()
    assert scene.runs(clock, longest_commit_minutes=200).collect().counts["deleted"] == 13
    assert clock.waited[0] == pytest.approx(200 * 60, abs=60)


def test_action_file_that_is_staged_counts(scene: Scene) -> None:
    scene.lakefs.upload("repo", "main", ACTION, scene.hook.action("45m"))
    scene.stage_anew()
    clock = PassingClock()
    # The replaced action file is committed, and stays.
    assert scene.runs(clock).collect().counts["deleted"] == 13
    assert clock.waited[0] == pytest.approx(10 * 45 * 60, abs=60)


def _merge(scene: Scene, commit_id: str) -> object:
    return RefsApi(scene.lakefs.sdk()).merge_into_branch("repo", "side", "main", Merge.parse_obj({}))


def _revert(scene: Scene, commit_id: str) -> object:
    creation = RevertCreation.parse_obj({"ref": commit_id, "parent_number": 0})
    return BranchesApi(scene.lakefs.sdk()).revert_branch("repo", "main", creation)


def _cherry_pick(scene: Scene, commit_id: str) -> object:
    side = BranchesApi(scene.lakefs.sdk()).get_branch("repo", "side").commit_id
    return BranchesApi(scene.lakefs.sdk()).cherry_pick("repo", "main", CherryPickCreation.parse_obj({"ref": side}))


@pytest.mark.parametrize("update", [_merge, _revert, _cherry_pick])
def test_other_updates_that_a_hook_holds_lose_nothing(scene: Scene, update: Callable[[Scene, str], object]) -> None:
    """They seal as well, after checking that nothing is staged; objects staged meanwhile are in the new token."""
    lakefs = scene.lakefs
    commit_id = lakefs.commit("repo", "main").id
    creation = BranchCreation.parse_obj({"name": "side", "source": "main"})
    BranchesApi(lakefs.sdk()).create_branch("repo", creation)
    for number in range(3):
        lakefs.upload("repo", "side", f"side/{number}", f"of side {number}".encode())
    side = lakefs.commit("repo", "side").id
    with scene.hook.holding(lambda: update(scene, commit_id)) as held:
        scene.stage_anew()
        clock = PassingClock(meanwhile=lambda seconds: held.release())
        assert scene.runs(clock).collect().counts["deleted"] == 1
    assert held.error is None
    assert scene.unreadable(commit_id) == []
    assert [scene.read(side, f"side/{number}") for number in range(3)] == [b"of side 0", b"of side 1", b"of side 2"]
    assert [scene.read("main", path) for path in PATHS] == [f"new content of {path}".encode() for path in PATHS]


def test_hard_update_of_a_branch_loses_nothing_that_is_staged_after_it(scene: Scene) -> None:
    head = scene.lakefs.commit("repo", "main").id
    first = RefsApi(scene.lakefs.sdk()).log_commits("repo", "main").results[1].id
    ExperimentalApi(scene.lakefs.sdk()).hard_reset_branch("repo", "main", first)
    scene.stage_anew()
    assert scene.runs(PassingClock()).collect().counts["deleted"] == 1
    assert scene.unreadable(head) == []
    assert [scene.read("main", path) for path in PATHS] == [f"new content of {path}".encode() for path in PATHS]
