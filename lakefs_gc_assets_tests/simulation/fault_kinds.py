"""The kinds of run in which every call is broken: their small worlds, their beginning, and how people go on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR
from lakefs_gc_assets_tests.simulation.commands import copies, purge, restore, stage_moved
from lakefs_gc_assets_tests.simulation.failing_calls import Faults
from lakefs_gc_assets_tests.simulation.fault_expectations import PurgeWatch, Watch
from lakefs_gc_assets_tests.simulation.run_requests import ASKED, Asked, settings
from lakefs_gc_assets_tests.simulation.scenes import Ended, Opened, Scene, require_well
from lakefs_gc_assets_tests.simulation.world import Setup

SWEEP, DRY = settings(True, 24.0, "month"), settings(False, 24.0, "month")
MOVE = SWEEP.model_copy(update={"sweep_mode": "quarantine"})
FOLLOWING = SWEEP.model_copy(update={"full_listing_days": 60.0})
"""A sweep by retention rules builds on the previous one."""
OPTIMIZED = Asked(Flow.OPTIMIZED)
_SETUP = Setup(rules="seed", listing_page=8, delete_limit=2, old_objects=5)
_BY_RULES = replace(_SETUP, retention=True)
RULES = RetentionRules(default_days=5, branches={"alpha": 6})
BEFORE: tuple[tuple[str, tuple[int, ...]], ...] = (
    # Two commits of main: only the first holds an object that was replaced; a tag holds the second.
    ("upload_now", (0, 0, 1, 0)),
    ("upload_now", (0, 1, 2, 1)),
    ("upload_now", (0, 2, 3, 0)),
    ("commit_now", (0, 0, 0)),
    ("upload_now", (0, 0, 4, 1)),
    ("delete", (0, 1)),
    ("commit_now", (0, 2, 0)),
    ("create_tag", (0, 0)),
    # Another branch with a commit of its own; and a commit held only by a tag.
    ("create_branch", (1, 0)),
    ("upload_now", (0, 3, 5, 0)),
    ("commit_now", (0, 3, 1)),
    ("create_branch", (2, 0)),
    ("upload_now", (1, 4, 6, 1)),
    ("commit_now", (1, 0, 0)),
    ("create_tag", (1, 1)),
    ("delete_branch", (1,)),
    # Garbage: replaced before a commit, deleted, reset; one object was a multipart upload.
    ("upload_now", (1, 5, 1, 0)),
    ("upload_now", (1, 5, 2, 1)),
    ("upload_now", (1, 6, 3, 0)),
    ("upload_now", (1, 6, 4, 0)),
    ("gateway_multipart", (1, 7, 5, 0)),
    ("upload_now", (1, 7, 1, 1)),
    ("upload_now", (0, 8, 6, 1)),
    ("upload_now", (0, 9, 2, 0)),
    ("reset_branch", (0,)),
    # Staged: alone, copied by reference, linked, hidden below an equal object of the head, committed and staged again.
    ("upload_now", (0, 6, 5, 1)),
    ("copy", (0, 2, 7, 0)),
    ("link", (1, 8, 3, 0, 1)),
    ("upload_again", (1, 0, 1)),
    ("set_metadata", (1, 2, 1)),
)
LATER: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("upload_now", (1, 9, 1, 0)),
    ("commit_now", (1, 0, 0)),
    ("upload_now", (1, 9, 3, 0)),
    ("upload_now", (1, 9, 4, 1)),
    ("upload_now", (0, 5, 3, 0)),
    ("upload_now", (0, 5, 4, 1)),
    ("upload_now", (0, 5, 5, 1)),
    ("delete", (0, 3)),
)
YOUNG: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("upload_now", (1, 3, 2, 0)),
    ("upload_now", (1, 3, 3, 1)),
    ("upload_now", (1, 4, 1, 1)),
)


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        prepare: events before it.
        run: makes it.
        resume: continues it.
        repeat: makes another one in its place.
        follow: makes a run days later, which deletes the objects that became old enough.
        flow: flow that the report of the run and of its repetition names; None without a report.
        deletes: True if it deletes.
        setup: setup of its world.
        watch: conditions afterwards.
    """

    prepare: Callable[[Scene], object]
    run: Callable[[Scene, Faults], Ended]
    resume: Callable[[Scene, Faults], Ended]
    repeat: Callable[[Scene, Faults], Ended]
    follow: Callable[[Scene, Faults], Ended]
    flow: Flow | None = Flow.CLEAN
    deletes: bool = True
    setup: Setup = _SETUP
    watch: type[Watch] = Watch


def _begin(scene: Scene) -> None:
    """Objects a few days old, seen by a dry run some hours ago."""
    scene.do(BEFORE)
    scene.world.pass_time(60 * HOUR)
    require_well(scene.start(DRY, Faults()))
    scene.world.pass_time(3 * HOUR)


def _young(scene: Scene) -> None:
    _begin(scene)
    scene.do(YOUNG)


def _after_clean(scene: Scene) -> None:
    _begin(scene)
    scene.do(YOUNG)
    require_well(scene.start(SWEEP, Faults()))
    scene.do(LATER)
    scene.world.pass_time(30 * HOUR)
    scene.do(YOUNG)


def _expired(scene: Scene) -> None:
    """Commits of two weeks ago that were replaced a few days later, with rules that keep a few days."""
    scene.do(tuple((name, _on_time(name, numbers)) for name, numbers in BEFORE))
    scene.world.pass_time(3 * DAY)
    scene.do((*LATER, ("commit_now", (0, 0, 0)), ("commit_now", (1, 0, 0))))
    scene.world.pass_time(10 * DAY)
    scene.world.repository.rules = RULES
    require_well(scene.start(DRY, Faults(), Asked(Flow.UNIFIED)))
    scene.world.pass_time(3 * HOUR)
    scene.do(YOUNG)


def _expired_since(scene: Scene) -> None:
    """A run by rules that listed everything, whose commits have expired since."""
    scene.do(tuple((name, _on_time(name, numbers)) for name, numbers in BEFORE))
    scene.world.repository.rules = RULES
    scene.world.pass_time(30 * HOUR)
    require_well(scene.start(FOLLOWING, Faults(), Asked(Flow.UNIFIED)))
    scene.do((*LATER, ("commit_now", (0, 0, 0)), ("commit_now", (1, 0, 0))))
    scene.world.pass_time(10 * DAY)
    scene.do(YOUNG)


def _on_time(name: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Sets the date of commits to the time when they are made."""
    return (numbers[0], 0, 0) if name == "commit_now" else numbers


def _marked(scene: Scene) -> None:
    _young(scene)
    require_well(scene.start(DRY, Faults()))
    scene.completed[cast(Opened, scene.opened).run_id].remove(STEPS[-1])
    scene.world.pass_time(2 * HOUR)


def _moved(scene: Scene) -> None:
    _young(scene)
    require_well(scene.start(MOVE, Faults()))
    scene.world.pass_time(2 * HOUR)


def _approve(scene: Scene, faults: Faults) -> Ended:
    assert scene.opened is not None
    return scene.go_on(DRY.model_copy(update={"approve_run": scene.opened.run_id}), faults)


def _due(scene: Scene) -> None:
    """Two runs moved objects to quarantine long enough ago; one object of each is live again."""
    _expired(scene)
    require_well(scene.start(MOVE, Faults(), _COMMITTED))
    require_well(scene.start(MOVE, Faults()))
    world = scene.world
    world.pass_time((MOVE.quarantine_days + 1) * DAY)
    moved, repository = set(copies(scene).values()), world.repository
    expired = (
        commit_id
        for commit_id, commit in sorted(repository.commits.items())
        if any(entry.address in moved for entry in commit.entries.values())
    )
    repository.new_branch("zeta", next(expired))
    world.oracle.look()
    stage_moved(scene, "back")


def _restored(scene: Scene, faults: Faults) -> Ended:
    return restore(scene, faults, MOVE)


def _purged(scene: Scene, faults: Faults) -> Ended:
    return purge(scene, faults, MOVE)


def _purged_after_a_run(scene: Scene, faults: Faults) -> Ended:
    ended = scene.start(SWEEP, faults)
    return purge(scene, Faults(), MOVE) if ended is Ended.WELL else ended


def _begun(options: CollectionSettings, asked: Asked = ASKED) -> Callable[[Scene, Faults], Ended]:
    return lambda scene, faults: scene.start(options, faults, asked)


def _resumed(options: CollectionSettings, asked: Asked = ASKED) -> Callable[[Scene, Faults], Ended]:
    def resume(scene: Scene, faults: Faults) -> Ended:
        return scene.start(options, faults, asked) if scene.opened is None else scene.go_on(options, faults, asked)

    return resume


_SWEPT, _REPEATED = _begun(SWEEP), _begun(SWEEP, OPTIMIZED)
_COMMITTED, _UNIFIED = Asked(Flow.COMMITTED), Asked(Flow.UNIFIED)
_BY_COMMITTED, _BY_UNIFIED = _begun(SWEEP, _COMMITTED), _begun(SWEEP, _UNIFIED)
_FOLLOWED = _begun(FOLLOWING, _UNIFIED)
KINDS = {
    "clean": Kind(_young, _SWEPT, _resumed(SWEEP), _SWEPT, _SWEPT),
    "dry": Kind(_young, _begun(DRY), _resumed(DRY), _begun(DRY), _SWEPT, deletes=False),
    "optimized": Kind(_after_clean, _REPEATED, _resumed(SWEEP, OPTIMIZED), _REPEATED, _REPEATED, Flow.OPTIMIZED),
    "approved": Kind(_marked, _approve, _approve, _SWEPT, _SWEPT),
    "quarantine": Kind(_young, _begun(MOVE), _resumed(MOVE), _begun(MOVE), _begun(MOVE)),
    "restore": Kind(_moved, _restored, _restored, _SWEPT, _SWEPT, flow=None, deletes=False),
    "purge": Kind(
        *(_due, _purged, _purged, _purged_after_a_run, _BY_UNIFIED),
        flow=None,
        deletes=False,
        setup=_BY_RULES,
        watch=PurgeWatch,
    ),
    "committed": Kind(
        *(_expired, _BY_COMMITTED, _resumed(SWEEP, _COMMITTED), _BY_COMMITTED, _BY_UNIFIED),
        flow=Flow.COMMITTED,
        setup=_BY_RULES,
    ),
    "unified": Kind(
        *(_expired, _BY_UNIFIED, _resumed(SWEEP, _UNIFIED), _BY_UNIFIED, _BY_UNIFIED),
        flow=Flow.UNIFIED,
        setup=_BY_RULES,
    ),
    "following": Kind(
        *(_expired_since, _FOLLOWED, _resumed(FOLLOWING, _UNIFIED), _FOLLOWED, _BY_UNIFIED),
        flow=Flow.UNIFIED,
        setup=_BY_RULES,
    ),
}
