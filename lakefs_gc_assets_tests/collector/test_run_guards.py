"""Each call of a run that may refuse: the run makes it where it must, and then deletes nothing.

Whole runs in a small world, on plain tables. Decisions of the checks themselves are tested beside them; here a test
fails if a run does not call a check. Tests have no fixtures, because `simulation.guard_bugs` calls them with the check
left out.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector import commits, reporting, run
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    COMMITTED_DF,
    EXPIRED_DF,
    PENDING_DF,
    STEPS,
    STORE_DF,
    TIME,
    UNCOMMITTED_DF,
    CommittedFigures,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.incremental import checkpoint, earlier_runs, planning
from lakefs_gc_assets.collector.incremental.checkpoint import BaseCheckpoint
from lakefs_gc_assets.collector.incremental.earlier_runs import deleted_before
from lakefs_gc_assets.collector.live import facts, uncommitted
from lakefs_gc_assets.collector.live.current import ask_committed, define_live
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES, METARANGES
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import records_json, run_folder
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, Limits, StandingApproval
from lakefs_gc_assets.collector.step import Step, universe_of
from lakefs_gc_assets.collector.sweep import recheck, sweeping
from lakefs_gc_assets.errors import AccessDenied, CorruptFile, OrderViolation
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import ObjectStats, RepositoryFacts, RetentionRules
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation.clean_bugs import nothing_of_a_range
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE, CollectorClock, MachineClock, moment
from lakefs_gc_assets_tests.simulation.collecting import Run, open_repository
from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.failing_calls import Fault, Faults
from lakefs_gc_assets_tests.simulation.fault_kinds import DRY, FOLLOWING, MOVE, OPTIMIZED, RULES, SWEEP
from lakefs_gc_assets_tests.simulation.faults import scene_before
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry, put_commit_objects
from lakefs_gc_assets_tests.simulation.playing import deterministic
from lakefs_gc_assets_tests.simulation.run_oracles import RetentionExactness
from lakefs_gc_assets_tests.simulation.run_requests import ASKED, LOCK_EXPIRY, Asked
from lakefs_gc_assets_tests.simulation.scenes import Ended, Scene, copies, purge, restore
from lakefs_gc_assets_tests.simulation.servers import ACTION_KEY, CollectorsApi, action_file
from lakefs_gc_assets_tests.simulation.stored_results import addresses
from lakefs_gc_assets_tests.simulation.world import START

UNIFIED, BY_COMMITS = Asked(Flow.UNIFIED), Asked(Flow.COMMITTED)
WITHOUT_LEGACY = Asked(Flow.UNIFIED, -1)
LISTED, STAGED, COMMITTED, MARKED, SWEPT = STEPS
_MANY_CALLS = 1_500
DELETES = "delete (?!_lakefs/)"


@dataclass
class Dying(Faults):
    """The process dies right before a call of some kind."""

    before: str = ""

    def next(self, call: str) -> Fault | None:
        if self.before and not self.dead and re.match(self.before, call):
            self.die()
        return super().next(call)


def before(calls: str) -> Dying:
    return Dying(before=calls)


@contextmanager
def world_of(kind: str) -> Iterator[Scene]:
    """The small world right before a run of this kind begins."""
    with remembering(), deterministic(2):
        yield scene_before(kind)


def refused(scene: Scene, ended: Ended, why: str, reported: Faults | None = None, never: str = DELETES) -> None:
    """Requires that a run ended with an error that gives this reason.

    Args:
        reported: the calls of its last process.
        never: calls that must not have happened by then.
    """
    assert ended is Ended.FAILED, f"the run ended {ended}"
    assert why in scene.world.log[-1]
    calls = reported.reported if reported else ()
    assert not [call for call in calls if re.match(never, call)]


def only(scene: Scene, options: CollectionSettings, *names: str, faults: Faults | None = None) -> Ended:
    """Makes some steps of the last run, regardless of earlier ones."""
    assert scene.opened is not None
    scene.completed[scene.opened.run_id] = [name for name in STEPS if name not in names]
    return scene.go_on(options, faults or Faults())


def died(scene: Scene, options: CollectionSettings, calls: str, asked: Asked = ASKED) -> None:
    """A run whose process dies before a call."""
    assert scene.start(options, before(calls), asked) is Ended.DIED


def begun_again(scene: Scene, options: CollectionSettings) -> None:
    """A new attempt of the last run has only a plan: the stored frames are of the previous attempt."""
    assert only(scene, options, LISTED, faults=before(f"put .*/{LISTED}/manifest.json")) is Ended.DIED


def dry(scene: Scene, options: CollectionSettings = DRY, asked: Asked = ASKED) -> None:
    """Finishes a dry run."""
    assert scene.start(options, Faults(), asked) is Ended.WELL


def approved(
    scene: Scene, options: CollectionSettings = DRY, faults: Faults | None = None, asked: Asked = ASKED
) -> Ended:
    """Approves the candidates of the last run, a dry run."""
    assert scene.opened is not None
    scene.completed[scene.opened.run_id] = [*STEPS[:4]]
    changed = options.model_copy(update={"approve_run": scene.opened.run_id})
    return scene.go_on(changed, faults or Faults(), asked)


def approve_standing(scene: Scene) -> StandingApproval:
    """Approves the candidates of the last run, a dry run, by a standing approval."""
    repository, store = step_of(scene).repository, scene.store
    assert scene.opened is not None
    now = repository.clock.now()
    approval = StandingApproval(
        approval_id="a",
        repository=repository.facts.id,
        storage_namespace=repository.namespace.uri,
        kind=ApprovedWork.COLLECTION,
        limits=Limits(objects=1_000),
        until=now + timedelta(days=100),
        granted_by="Ada, as the command line says",
        granted_at=now,
    )
    put_standing(scene, approval)
    candidates = sweeping.require_dry_run(store, scene.opened.run_id)
    with mock.patch.object(store, "put", scene.world.bucket.put):
        sweeping.store_approval(store, candidates, now, approval)
    return approval


def put_standing(scene: Scene, approval: StandingApproval) -> None:
    scene.world.bucket.put(approval.key, records_json.encode(approval))


def by_standing(scene: Scene, reported: Faults) -> Ended:
    """Repeats the last step of the last run, which is approved."""
    return only(scene, DRY, SWEPT, faults=reported)


def step_of(scene: Scene, **changes: Any) -> Step[ArrowRows]:
    """A step of the last run, with a changed plan; it can write nothing."""
    assert scene.opened is not None
    machine = MachineClock(scene.world.time, 0.0)
    api = CollectorsApi(scene.world.servers, lambda call: False, lambda: None, machine, 1)
    clock = CollectorClock(machine, scene.world.pass_time)
    repository = open_repository(api, scene.store, SWEEP, clock)
    plan = replace(plans.read(scene.store, scene.opened.run_id), **changes)
    return Step(lambda line: None, lambda line: None, repository, LocalEngine(), plan, cast(Lock, None))


def allowing(options: CollectionSettings = SWEEP, **settings: float | str | tuple[str, ...]) -> CollectionSettings:
    return options.model_copy(update=settings)


STRICT = allowing(DRY, allow_rules_of_unknown_branches=False)
UNKNOWN = RetentionRules(RULES.default_days, {**RULES.branches, "misspelt": 3})


@contextmanager
def nothing_committed() -> Iterator[None]:
    """Reads ranges as if they were empty."""
    with mock.patch.object(LiveFiles, "range", nothing_of_a_range):
        yield


@contextmanager
def foreign_addresses() -> Iterator[None]:
    """The server spells addresses of objects differently from the storage namespace."""
    ask = CollectorsApi.stat

    def stat(api: CollectorsApi, reference: str, path: str) -> ObjectStats | None:
        found = ask(api, reference, path)
        return found and replace(found, physical_address=found.physical_address.replace("s3://", "local://"))

    with mock.patch.object(CollectorsApi, "stat", stat):
        yield


@contextmanager
def noting(owner: object, name: str, note: Callable[[], Any]) -> Iterator[list[Any]]:
    """Records, or acts, whenever a function has returned."""
    work, noted = getattr(owner, name), list[Any]()

    def watched(*arguments: Any, **named: Any) -> Any:
        noted.append(None)
        found = work(*arguments, **named)
        noted[-1] = note()
        return found

    with mock.patch.object(owner, name, watched):
        yield noted


def lose_branch(scene: Scene) -> None:
    """A user deletes a branch with a non-empty commit."""
    repository = scene.world.repository
    del repository.branches[max(name for name in repository.branches if name != "main")]
    scene.world.oracle.look()


def marked(scene: Scene) -> list[str]:
    """The candidates of the last run, sorted."""
    assert scene.opened is not None
    return sorted(addresses(scene.store, scene.opened.run_id, MARKED))


def dry_run_of_old_garbage(scene: Scene) -> str:
    """The oldest candidate of a dry run by retention rules, whose slice the next run seals."""
    dry(scene, allowing(FOLLOWING, sweep=False), UNIFIED)
    return max(address for address in marked(scene) if layout.is_xid(address[5:25]))


def set_clocks_back(scene: Scene) -> None:
    """Sets the servers' clocks back, so that the next cutoff is earlier than the last one."""
    for server in scene.world.servers.servers:
        server.clock.skew = -14 * MINUTE
    scene.world.pass_time(MINUTE)


def commit_elsewhere(scene: Scene, address: str) -> None:
    """A repository unknown here, on the same storage namespace, commits an object."""
    entry = Entry(address, 1, len(scene.world.bucket.objects[address].data), "f" * 32)
    put_commit_objects(scene.world.bucket, {"elsewhere": entry})


def commit_on_new_branch(scene: Scene, address: str) -> None:
    """A user commits the same entry as `commit_elsewhere`, on the new branch zeta."""
    repository = scene.world.repository
    entry = Entry(address, 1, len(scene.world.bucket.objects[address].data), "f" * 32)
    made = scene.world.commit({"elsewhere": entry}, (repository.branches["main"].commit_id,), 0.0)
    repository.new_branch("zeta", made)
    scene.world.oracle.look()


@contextmanager
def _another_policy(text: str) -> Iterator[Path]:
    """A policy file that the world's own model of retention ignores."""
    with (
        TemporaryDirectory() as folder,
        mock.patch.object(RetentionExactness, "defined", lambda *arguments, **named: None),
    ):
        file = Path(folder) / "policy.yaml"
        file.write_text(text)
        yield file


class TestAttempts:
    """No step uses frames of another attempt, or makes any request before it checks."""

    @staticmethod
    def go_on(scene: Scene, done: int, never: str) -> None:
        assert scene.opened is not None
        begun_again(scene, SWEEP)
        scene.completed[scene.opened.run_id] = [*STEPS[:done]]
        reported = Faults()
        refused(scene, scene.go_on(SWEEP, reported), "is of attempt", reported, never)

    def test_uncommitted_data_is_not_asked_for(self) -> None:
        with world_of("clean") as scene:
            died(scene, SWEEP, "prepare_uncommitted")
            self.go_on(scene, 1, "prepare_uncommitted")

    def test_commits_are_not_asked_for(self) -> None:
        with world_of("clean") as scene:
            died(scene, SWEEP, "start_refs_dump")
            self.go_on(scene, 2, "start_refs_dump")

    def test_nothing_is_marked(self) -> None:
        with world_of("clean") as scene:
            died(scene, SWEEP, "put .*/candidates/manifest.json")
            self.go_on(scene, 3, "put .*/(unheld|sightings|unrecognised|candidates)/")

    def test_nothing_is_swept(self) -> None:
        with world_of("clean") as scene:
            died(scene, SWEEP, DELETES)
            self.go_on(scene, 4, DELETES)

    def test_no_frame_is_made_of_it(self) -> None:
        with world_of("approved") as scene:
            step = step_of(scene, attempt="another")
            with pytest.raises(OrderViolation, match="is of attempt"):
                step.complete(UNCOMMITTED_DF, UncommittedFigures((), (), pages=0), (), (step.stored(STORE_DF),))


class TestOrder:
    """Steps repeated or made out of order."""

    def test_nothing_is_marked_by_uncommitted_data_that_is_newer_than_the_commits(self) -> None:
        with world_of("clean") as scene:
            died(scene, SWEEP, "put .*/candidates/manifest.json")
            assert only(scene, SWEEP, STAGED) is Ended.WELL
            reported = Faults()
            refused(
                scene,
                only(scene, SWEEP, MARKED, faults=reported),
                "before uncommitted_df",
                reported,
                "put .*/candidates/",
            )

    def test_nothing_is_swept_whose_commits_were_read_again(self) -> None:
        with world_of("clean") as scene:
            died(scene, SWEEP, DELETES)
            assert only(scene, SWEEP, COMMITTED) is Ended.WELL
            reported = Faults()
            refused(
                scene,
                only(scene, SWEEP, SWEPT, faults=reported),
                "was materialized again after",
                reported,
                "prepare_uncommitted",
            )

    def test_nothing_is_swept_whose_commits_were_read_again_while_it_waited(self) -> None:
        """Another process of the run, which lost the lock unnoticed, read them: the recheck skips those commits."""
        wait = sweeping.wait_for_recheck

        def read_again(step: Step[ArrowRows], uncommitted_data: StoredFrame[UncommittedFigures]) -> None:
            wait(step, uncommitted_data)
            commit_elsewhere(scene, garbage)
            run.read_committed(step, step.stored(UNCOMMITTED_DF))

        with world_of("clean") as scene:
            died(scene, SWEEP, DELETES)
            garbage, reported = marked(scene)[0], Faults()
            with mock.patch.object(sweeping, "wait_for_recheck", read_again):
                refused(scene, only(scene, SWEEP, SWEPT, faults=reported), "was materialized again after", reported)
            assert garbage in scene.world.bucket.objects

    def test_an_approval_is_of_these_very_candidates(self) -> None:
        with world_of("clean") as scene:
            dry(scene)
            assert approved(scene, faults=before(DELETES)) is Ended.DIED
            assert only(scene, DRY, MARKED) is Ended.WELL
            reported = Faults()
            assert only(scene, DRY, SWEPT, faults=reported) is Ended.WELL
            assert scene.reported.dry_run
            assert not [call for call in reported.reported if re.match(DELETES, call)]

    def test_a_later_step_is_of_the_windows_of_the_plan(self) -> None:
        with world_of("clean") as scene:
            died(scene, SWEEP, DELETES)
            assert scene.opened is not None
            scene.opened = replace(scene.opened, windows=scene.opened.windows[:1])
            reported = Faults()
            refused(scene, only(scene, SWEEP, SWEPT, faults=reported), "select the same windows", reported)

    def test_a_run_that_ended_well_is_not_begun_again(self) -> None:
        with world_of("clean") as scene:
            assert scene.start(SWEEP, Faults()) is Ended.WELL
            refused(scene, only(scene, SWEEP, *STEPS), "there is nothing to do")

    def test_clocks_that_disagree_end_it(self) -> None:
        with world_of("clean") as scene:
            for server in scene.world.servers.servers:
                server.clock.skew = 3 * HOUR
            refused(scene, scene.start(SWEEP, Faults()), "clock")

    def test_every_candidate_is_decided_about(self) -> None:
        with (
            world_of("clean") as scene,
            mock.patch.object(sweeping, "resume", lambda step, candidates: (candidates.rows(step.engine), 0, ())),
        ):
            refused(scene, scene.start(SWEEP, Faults()), "is unknown. Materialize deleted_report")


def test_a_sweep_that_is_resumed_reports_what_was_deleted_before() -> None:
    with world_of("clean") as scene:
        died(scene, SWEEP, f"put .*/{SWEPT}/manifest.json")
        candidates = marked(scene)
        assert candidates and not scene.world.bucket.objects.keys() & {*candidates}
        assert only(scene, SWEEP, SWEPT) is Ended.WELL
        assert scene.reported.counts["deleted"] == len(candidates)


def test_what_was_uploaded_in_parts_was_seen_long_before_the_listing() -> None:
    engine, listed_at = LocalEngine(), moment(START)
    seen = {"a": listed_at - timedelta(minutes=1), "b": listed_at - timedelta(days=30)}
    columns = {"address": pa.array(seen), "first_listed_at": pa.array(seen.values(), TIME)}
    rows = earlier_runs.select_old_enough(engine, engine.table(pa.table(columns)), listed_at)
    assert engine.collect(rows).column("address").to_pylist() == ["b"]


def test_what_another_repository_has_committed_here_stays() -> None:
    with world_of("clean") as scene:
        dry(scene)
        (garbage, *_) = marked(scene)
        commit_elsewhere(scene, garbage)
        assert scene.start(SWEEP, Faults()) is Ended.WELL
        assert garbage in scene.world.bucket.objects


class TestGuards:
    """Figures that look like a mistake."""

    def test_the_guards_of_amount(self) -> None:
        with world_of("clean") as scene:
            reported = Faults()
            refused(scene, scene.start(allowing(max_candidate_share=0), reported), "share of candidates", reported)

    def test_a_gap_in_the_listing(self) -> None:
        with world_of("clean") as scene:
            repository, bucket = scene.world.repository, scene.world.bucket
            held = {entry.address for entry in repository.head(repository.branches["main"]).values()}
            bucket.remove(min(key for key in held & bucket.objects.keys() if layout.is_xid(key[5:25])))
            reported = Faults()
            options = allowing(max_missing_share=0, max_missing=0)
            refused(scene, scene.start(options, reported), "gap in the listing", reported)

    def test_a_run_that_is_limited_to_an_object_deletes_no_other(self) -> None:
        with world_of("unified") as scene:
            dry(scene, DRY, UNIFIED)
            asked_for, *others = sorted(marked(scene))
            assert scene.start(allowing(only_addresses=(asked_for,)), Faults(), UNIFIED) is Ended.WELL
            objects = scene.world.bucket.objects.keys()
            assert asked_for not in objects and objects >= {*others} and others

    def test_what_a_branch_on_an_expired_commit_names_is_no_loss(self) -> None:
        with world_of("unified") as scene:
            assert scene.start(SWEEP, Faults(), UNIFIED) is Ended.WELL
            taken, repository = {*marked(scene)}, scene.world.repository
            for commit_id in repository.commits:
                branch = repository.new_branch("back", commit_id)
                if again := taken.intersection(entry.address for entry in repository.head(branch).values()):
                    break
            scene.world.oracle.look()
            dry(scene, allowing(DRY, full_listing_days=0), UNIFIED)
            assert (scene.reported.counts["lost"], scene.reported.counts["named_again"]) == (0, len(again))
            assert again and scene.reported.success

    def test_a_namespace_inside_of_this_one(self) -> None:
        inner = RepositoryFacts("inner", "s3://bucket/repo/inner/", "main", False)
        with world_of("clean") as scene, mock.patch.object(CollectorsApi, "repositories", lambda api: (inner,)):
            reported = Faults()
            refused(scene, scene.start(SWEEP, reported), "inner", reported)

    def test_other_repositories_that_the_server_does_not_list(self) -> None:
        refusal = mock.Mock(side_effect=AccessDenied("GET /repositories: 403"))
        with world_of("clean") as scene, mock.patch.object(CollectorsApi, "repositories", refusal):
            reported = Faults()
            asked = allowing(allow_unknown_repositories=False)
            refused(scene, scene.start(asked, reported), "guard other repositories", reported)
            lifted = scene.start(allowing(allow_unknown_repositories=True), Faults())
            assert lifted is Ended.WELL

    def test_branches_that_are_gone_since_an_earlier_run(self) -> None:
        with world_of("clean") as scene:
            lose_branch(scene)
            reported = Faults()
            refused(scene, scene.start(allowing(max_branch_loss_share=0), reported), " left of the ", reported)

    def test_a_mark_that_is_too_old(self) -> None:
        with world_of("clean") as scene:
            dry(scene)
            scene.world.pass_time(31 * HOUR)
            reported = Faults()
            refused(scene, approved(scene, faults=reported), "age of the mark", reported)

    def test_nothing_live_at_the_mark_which_does_not_wait_for_a_check_to_say_so(self) -> None:
        check = mock.Mock(return_value=[])
        with (
            world_of("clean") as scene,
            nothing_committed(),
            mock.patch.object(reporting, "find_empty_live_set", check),
        ):
            reported = Faults()
            refused(scene, scene.start(SWEEP, reported), "no committed address was found", reported)
            check.assert_not_called()

    def test_nothing_live_at_a_mark_that_somebody_sweeps_all_the_same(self) -> None:
        with world_of("clean") as scene:
            with nothing_committed():
                refused(scene, scene.start(SWEEP, Faults()), "no committed address was found")
            reported = Faults()
            refused(scene, only(scene, SWEEP, SWEPT, faults=reported), "no committed address was found", reported)

    def test_addresses_that_the_server_spells_otherwise(self) -> None:
        with world_of("clean") as scene:
            dry(scene)
            reported = Faults()
            with foreign_addresses():
                refused(scene, approved(scene, faults=reported), "the server gives", reported)

    def test_objects_that_were_brought_back_since(self) -> None:
        with world_of("clean") as scene:
            dry(scene)
            opened = scene.opened
            assert scene.start(MOVE, Faults()) is Ended.WELL
            assert restore(scene, Faults(), MOVE) is Ended.WELL
            scene.opened, reported = opened, Faults()
            refused(scene, approved(scene, faults=reported), "were restored", reported)

    def test_a_newer_run_that_swept(self) -> None:
        with world_of("clean") as scene:
            dry(scene)
            opened = scene.opened
            assert scene.start(SWEEP, Faults()) is Ended.WELL
            scene.opened, reported = opened, Faults()
            refused(scene, approved(scene, faults=reported), "is newer than run", reported)

    def test_a_standing_approval_that_ended_or_was_withdrawn_since_it_was_used(self) -> None:
        changes: tuple[dict[str, Any], ...] = (
            {"withdrawn_at": moment(START)},
            {"until": moment(START)},
            {"limits": Limits(objects=1)},
            {"approval_id": "b"},
        )
        for change in changes:
            with world_of("clean") as scene:
                dry(scene)
                approval = approve_standing(scene)
                put_standing(scene, replace(approval, **change))
                reported = Faults()
                refused(scene, by_standing(scene, reported), "guard standing approval", reported)
                put_standing(scene, approval)
                assert by_standing(scene, Faults()) is Ended.WELL
                assert scene.reported.approved_by == str(approval)

    def test_a_standing_approval_withdrawn_during_the_sweep(self) -> None:
        with world_of("clean") as scene:
            dry(scene)
            approval = approve_standing(scene)
            find = sweeping.standing_approval

            def withdraw(step: Step[ArrowRows]) -> StandingApproval | None:
                found = find(step)
                put_standing(scene, replace(approval, withdrawn_at=moment(START)))
                return found

            reported = Faults()
            with mock.patch.object(sweeping, "standing_approval", withdraw):
                refused(scene, by_standing(scene, reported), "was withdrawn or replaced", reported)

    def test_what_an_older_run_deleted_since_the_listing_is_left_out(self) -> None:
        with world_of("clean") as scene:
            dry(scene)
            older, reported = scene.opened, Faults()
            dry(scene)
            newer = scene.opened
            scene.opened = older
            assert approved(scene) is Ended.WELL
            deleted = scene.reported.counts["deleted"]
            scene.opened = newer
            assert approved(scene, faults=reported) is Ended.WELL
            assert not [call for call in reported.reported if re.match(DELETES, call)]
            assert scene.reported.counts["deleted_by_another_run"] == deleted > 0
            assert (scene.reported.counts["deleted"], scene.reported.success) == (0, True)
            assert scene.reported.ending is Ending.NOTHING_TO_DELETE


class TestRecheck:
    """Checks right before anything is deleted."""

    def test_commits_come_from_the_same_source(self) -> None:
        with world_of("clean") as scene:
            dry(scene)
            scene.world.servers.misbehaviour.refuse_dumps = True
            reported = Faults()
            refused(scene, approved(scene, faults=reported), "at the mark from the refs dump", reported)

    def test_the_rules_hold(self) -> None:
        with world_of("unified") as scene:
            dry(scene, STRICT, UNIFIED)
            scene.world.repository.rules = UNKNOWN
            reported = Faults()
            refused(scene, approved(scene, STRICT, reported, UNIFIED), "rules of unknown branches", reported)

    def test_what_the_mark_reported_of_single_commits_is_not_reported_again(self) -> None:
        describe, said = run.describe_committed, list[str]()

        def telling(*arguments: Any) -> CommittedFigures:
            return replace(describe(*arguments), retention_differences="one\ntwo")

        def asking(step: Step[ArrowRows], *more: Any) -> Any:
            for line in ("two", "three"):
                step.log(line)
            return ask_committed(step, *more)

        with world_of("unified") as scene:
            with mock.patch.object(run, "describe_committed", telling):
                dry(scene, asked=UNIFIED)
            with (
                mock.patch.object(recheck, "ask_committed", asking),
                mock.patch.object(Run, "log", lambda process, line: said.append(line)),
            ):
                assert approved(scene, asked=UNIFIED) is Ended.WELL
        assert "three" in said and "two" not in said

    @staticmethod
    def put_action(scene: Scene, content: bytes) -> None:
        """Gives every branch an action file with this content."""
        scene.world.servers.hook_minutes = 1
        scene.world.bucket.put(ACTION_KEY, content)

    def test_it_waits_as_long_as_hooks_can_hold_a_commit(self) -> None:
        with world_of("clean") as scene, noting(sweeping, "find_live_again", lambda: scene.world.time.now) as asked:
            self.put_action(scene, action_file(minutes=17))
            assert scene.start(SWEEP, Faults()) is Ended.WELL
            prepared = step_of(scene).stored(UNCOMMITTED_DF).manifest.span.ended_at
            assert asked[0] - prepared.timestamp() >= SWEEP.wait_before_recheck_seconds + 10 * 17 * MINUTE

    def test_it_waits_as_long_as_a_commit_lasts_by_the_settings(self) -> None:
        with world_of("clean") as scene, noting(sweeping, "find_live_again", lambda: scene.world.time.now) as asked:
            assert scene.start(allowing(longest_commit_minutes=45), Faults()) is Ended.WELL
            prepared = step_of(scene).stored(UNCOMMITTED_DF).manifest.span.ended_at
            assert asked[0] - prepared.timestamp() >= 45 * MINUTE

    def test_an_approval_on_a_machine_whose_clock_is_ahead_waits_by_the_clock_of_the_store(self) -> None:
        with world_of("clean") as scene, noting(sweeping, "find_live_again", lambda: scene.world.time.now) as asked:
            dry(scene)
            prepared = step_of(scene).stored(UNCOMMITTED_DF).manifest.span.ended_at.timestamp()
            scene.world.collector_skew = 14 * MINUTE
            assert approved(scene) is Ended.WELL
            assert asked[0] - prepared >= SWEEP.wait_before_recheck_seconds

    def test_hooks_without_a_time_limit(self) -> None:
        lua = b"name: lua\non: {pre-commit: }\nhooks: [{id: check, type: lua, properties: {script: x}}]\n"
        with world_of("clean") as scene:
            self.put_action(scene, lua)
            dry(scene)
            assert any("hook check is of type lua" in warning for warning in scene.reported.warnings)
            reported = Faults()
            refused(scene, approved(scene, faults=reported), "guard commits under way", reported)
            assert approved(scene, allowing(DRY, longest_commit_minutes=30)) is Ended.WELL

    def test_a_repository_that_was_made_on_this_namespace_since_the_mark(self) -> None:
        twin = RepositoryFacts("twin", "s3://bucket/repo/", "main", False)
        with world_of("clean") as scene:
            dry(scene)
            with mock.patch.object(CollectorsApi, "repositories", lambda api: (twin,)):
                reported = Faults()
                refused(scene, approved(scene, faults=reported), "twin", reported)

    def test_other_repositories_that_the_server_no_longer_lists(self) -> None:
        refusal = mock.Mock(side_effect=AccessDenied("GET /repositories: 403"))
        with world_of("clean") as scene:
            dry(scene)
            with mock.patch.object(CollectorsApi, "repositories", refusal):
                reported = Faults()
                asked = allowing(DRY, allow_unknown_repositories=False)
                refused(scene, approved(scene, asked, reported), "guard other repositories", reported)
                assert approved(scene, allowing(DRY, allow_unknown_repositories=True)) is Ended.WELL

    def test_branches_that_are_gone_since_the_mark(self) -> None:
        with world_of("clean") as scene:
            dry(scene)
            lose_branch(scene)
            reported = Faults()
            refused(scene, approved(scene, allowing(DRY, max_branch_loss_share=0), reported), " left of the ", reported)

    def test_what_another_repository_has_committed_here_since_the_mark_stays(self) -> None:
        with world_of("clean") as scene:
            dry(scene)
            (garbage, *others) = marked(scene)
            commit_elsewhere(scene, garbage)
            assert approved(scene) is Ended.WELL
            assert garbage in scene.world.bucket.objects
            assert not scene.world.bucket.objects.keys() & set(others)

    def test_uncommitted_data_that_is_gone_since_the_mark(self) -> None:
        with world_of("clean") as scene:
            dry(scene)
            for branch in scene.world.repository.branches.values():
                branch.tokens[0].clear()
            scene.world.repository.copies.clear()
            reported, options = Faults(), allowing(DRY, max_uncommitted_loss_share=0)
            refused(scene, approved(scene, options, reported), "loss of uncommitted data", reported)

    def test_it_waits_until_uncommitted_data_is_some_minutes_old(self) -> None:
        with world_of("clean") as scene, noting(sweeping, "find_live_again", lambda: scene.world.time.now) as asked:
            assert scene.start(SWEEP, Faults()) is Ended.WELL
            prepared = step_of(scene).stored(UNCOMMITTED_DF).manifest.span.ended_at
            assert asked[0] - prepared.timestamp() >= SWEEP.wait_before_recheck_seconds

    def test_a_dump_waits_until_uncommitted_data_is_some_seconds_old(self) -> None:
        with world_of("clean") as scene, noting(commits, "_finished_dump", lambda: scene.world.time.now) as asked:
            assert scene.start(SWEEP, Faults()) is Ended.WELL
            prepared = step_of(scene).stored(UNCOMMITTED_DF).manifest.span
            assert asked[0] - prepared.ended_at.timestamp() >= SWEEP.wait_before_dump_seconds - MINUTE / 60
            waited = scene.reported.waited_seconds
            assert 0 <= SWEEP.wait_before_dump_seconds - waited[COMMITTED] < MINUTE / 60
            assert SWEEP.wait_before_recheck_seconds < waited[SWEPT] + waited[COMMITTED] + 2 * MINUTE

    @pytest.mark.parametrize("asked", [ASKED, UNIFIED])
    def test_a_dry_run_waits_only_where_commits_that_no_dump_shows_yet_would_not_count(self, asked: Asked) -> None:
        for options, waits in ((DRY, False), (allowing(DRY, keep_unnamed_ranges=False), True)):
            with world_of("unified") as scene:
                assert scene.start(options, Faults(), asked) is Ended.WELL
                waited = step_of(scene).stored(COMMITTED_DF).manifest.span.waited_seconds
                assert 0 <= waits * DRY.wait_before_dump_seconds - waited < MINUTE / 60

    def test_it_is_not_believed_for_long_and_not_asked_for_ever(self) -> None:
        with world_of("clean") as scene:

            def pass_time() -> None:
                scene.world.pass_time(20 * MINUTE)

            with noting(sweeping, "find_live_again", pass_time):
                reported = Faults(Fault.DIES, _MANY_CALLS)
                refused(scene, scene.start(SWEEP, reported), "nothing could be deleted", reported)

    def test_samples_of_many_branches_may_take_longer_than_it_is_believed(self) -> None:
        with world_of("clean") as scene:

            def pass_time() -> None:
                scene.world.pass_time(20 * MINUTE)

            with noting(uncommitted, "staged_samples", pass_time) as sampled:
                assert scene.start(SWEEP, Faults()) is Ended.WELL
            assert len(sampled) == 2
            assert scene.reported.counts["deleted"] > 0

    def test_nothing_is_deleted_when_somebody_else_has_taken_the_lock(self) -> None:
        with world_of("clean") as scene:

            def take() -> None:
                held = json.loads(scene.store.get(lock.KEY))
                scene.world.bucket.put(lock.KEY, json.dumps({**held, "nonce": "0", "owner": "another"}).encode())

            with noting(sweeping, "find_live_again", take):
                reported = Faults()
                refused(scene, scene.start(SWEEP, reported), "now belongs to another", reported)


class TestRetention:
    """Runs by retention rules."""

    def test_what_is_staged_by_an_address_that_uncommitted_data_leaves_out(self) -> None:
        with world_of("unified") as scene:
            key = min(key for key in scene.world.bucket.objects if key.startswith("data/"))
            repository = scene.world.repository
            entry = Entry(f"s3a://bucket/repo/{key}", 2, 1, "other")
            repository.stage(repository.branches["alpha"], "aa", entry)
            scene.world.oracle.look()
            refused(scene, scene.start(SWEEP, Faults(), UNIFIED), "is spelled differently from")

    def test_a_recheck_knows_the_heads_there_were_before_it_asked_for_uncommitted_data(self) -> None:
        with world_of("unified") as scene, mock.patch.object(recheck, "ask_committed", wraps=ask_committed) as ask:
            heads = {name: branch.commit_id for name, branch in scene.world.repository.branches.items()}
            assert scene.start(SWEEP, Faults(), UNIFIED) is Ended.WELL
            before = ask.call_args.args[3]
            assert before is not None and before.branches == heads

    def test_a_head_that_is_gone_before_refs_are_dumped_stays(self) -> None:
        """One of its objects may be staged unchanged, and sealed by a commit before the recheck reads."""
        with world_of("unified") as scene:
            dry(scene, asked=UNIFIED)
            repository, candidates = scene.world.repository, {*marked(scene)}
            commit_id, address = min(
                (commit_id, entry.address)
                for commit_id, record in repository.commits.items()
                for entry in record.entries.values()
                if entry.address in candidates
            )
            repository.new_branch("zeta", commit_id)
            scene.world.oracle.look()
            with noting(uncommitted, "record_preparations", lambda: repository.branches.pop("zeta", None)):
                dry(scene, asked=UNIFIED)
            again = {*marked(scene)}
            assert again < candidates
            assert address not in again

    @staticmethod
    def expired(scene: Scene, options: CollectionSettings = DRY) -> tuple[set[str], str, set[str]]:
        """Candidates of a dry run, the first commit that holds some of them, and those candidates."""
        dry(scene, options, UNIFIED)
        candidates, commits = {*marked(scene)}, scene.world.repository.commits
        held = {id_: {each.address for each in commits[id_].entries.values()} & candidates for id_ in sorted(commits)}
        commit_id = next(id_ for id_, addresses in held.items() if addresses)
        return candidates, commit_id, held[commit_id]

    def tagged_until(self, owner: object, name: str) -> None:
        """Removes a tag on an expired commit right after a function has returned: its objects are not candidates."""
        with world_of("unified") as scene:
            candidates, commit_id, held = self.expired(scene)
            tags = scene.world.repository.tags
            tags["keep"] = commit_id
            scene.world.oracle.look()
            with noting(owner, name, lambda: tags.pop("keep", None)):
                dry(scene, asked=UNIFIED)
            assert not held & {*marked(scene)} and {*marked(scene)} < candidates

    def test_a_tag_that_is_gone_before_refs_are_dumped_keeps_its_commit(self) -> None:
        self.tagged_until(uncommitted, "record_preparations")

    def test_a_tag_that_is_gone_before_uncommitted_data_is_asked_for_keeps_its_commit(self) -> None:
        self.tagged_until(run, "read_reasons")

    def test_rules_that_are_shortened_before_refs_are_dumped_keep_their_commits(self) -> None:
        with world_of("unified") as scene:
            candidates, _, _ = self.expired(scene)
            repository = scene.world.repository
            short, repository.rules = repository.rules, RetentionRules(1000, {})
            scene.world.oracle.look()

            def shorten() -> None:
                repository.rules = short

            with noting(uncommitted, "record_preparations", shorten):
                dry(scene, asked=UNIFIED)
            assert candidates and not candidates & self.committed_ever(scene) & {*marked(scene)}

    @staticmethod
    def committed_ever(scene: Scene) -> set[str]:
        records = scene.world.repository.commits.values()
        return {entry.address for record in records for entry in record.entries.values()}

    def test_a_branch_with_counts_that_is_gone_before_refs_are_dumped_keeps_them(self) -> None:
        with world_of("unified") as scene, _another_policy("branches: {zeta: {retention: 0d, keep_last: 100}}") as file:
            options = allowing(DRY, retention_policy=str(file), allow_rules_of_unknown_branches=True)
            repository = scene.world.repository
            repository.branches.pop("zeta", None)
            candidates, _, _ = self.expired(scene, options)
            repository.new_branch("zeta", repository.branches["main"].commit_id)
            scene.world.oracle.look()
            dry(scene, options, UNIFIED)
            counted = {*marked(scene)}
            assert counted < candidates
            with noting(uncommitted, "record_preparations", lambda: repository.branches.pop("zeta", None)):
                dry(scene, options, UNIFIED)
            assert {*marked(scene)} == counted

    def test_a_pin_that_is_gone_before_refs_are_dumped_keeps_its_commit(self) -> None:
        with world_of("unified") as scene, _another_policy("") as policy:
            options = allowing(DRY, retention_policy=str(policy))
            candidates, commit_id, held = self.expired(scene, options)
            policy.write_text(f"pinned: [{commit_id}]\n")
            with noting(uncommitted, "record_preparations", lambda: policy.write_text("")):
                dry(scene, options, UNIFIED)
            assert not held & {*marked(scene)} and {*marked(scene)} < candidates

    def test_a_head_that_is_gone_once_uncommitted_data_was_asked_for_stays(self) -> None:
        """One of its objects is staged again after uncommitted data was prepared, and before the branch goes."""
        with world_of("unified") as scene:
            dry(scene, asked=UNIFIED)
            repository, candidates = scene.world.repository, {*marked(scene)}
            commit_id, path, entry = min(
                (commit_id, path, entry)
                for commit_id, record in repository.commits.items()
                for path, entry in record.entries.items()
                if entry.address in candidates
            )
            repository.new_branch("zeta", commit_id)
            scene.world.oracle.look()

            def stage_and_delete_branch() -> None:
                repository.stage(repository.branches["main"], path, replace(entry, metadata=entry.metadata + 1))
                repository.branches.pop("zeta", None)

            with noting(uncommitted, "record_preparations", stage_and_delete_branch):
                assert approved(scene, asked=UNIFIED) is Ended.WELL
            there = scene.world.bucket.objects.keys() & candidates
            assert entry.address in there
            assert there < candidates

    def test_the_report_of_a_dry_run_tells_of_guards_of_the_rules(self) -> None:
        with world_of("unified") as scene:
            scene.world.repository.rules = UNKNOWN
            dry(scene, STRICT, UNIFIED)
            assert any("a sweep would be refused: guard rules of unknown" in line for line in scene.reported.warnings)


class TestOptimized:
    """A run builds on exactly the files that an earlier run left."""

    def test_commits_come_from_the_same_source(self) -> None:
        with world_of("optimized") as scene:
            scene.world.servers.misbehaviour.refuse_dumps = True
            reported = Faults()
            refused(scene, scene.start(SWEEP, reported, OPTIMIZED), "they came from the refs dump", reported)

    def test_the_run_before_was_not_made_again(self) -> None:
        with world_of("optimized") as scene:
            died(scene, SWEEP, "prepare_uncommitted", OPTIMIZED)
            with pytest.raises(OrderViolation, match="was repeated after this run began"):
                vars(checkpoint)["open_base_checkpoint"](step_of(scene, base_run_attempt="another"))

    def test_its_frames_are_those_that_its_report_names(self) -> None:
        with world_of("optimized") as scene:
            died(scene, SWEEP, "prepare_uncommitted", OPTIMIZED)
            step = step_of(scene)
            assert step.plan.base_run is not None
            key = run_folder.manifest(step.plan.base_run, PENDING_DF.name)
            scene.world.bucket.put(key, scene.store.get(key) + b"\n")
            with pytest.raises(CorruptFile, match="differs from the frame in the report"):
                BaseCheckpoint(scene.store, step.plan.base_run).pending_objects(step)

    def test_it_had_the_same_minimum_age(self) -> None:
        with world_of("optimized") as scene:
            assert scene.start(allowing(min_age_hours=48), Faults(), OPTIMIZED) is Ended.WELL
            assert "another minimum age" in str(scene.reported.why_clean)

    def test_nothing_came_back_since(self) -> None:
        with world_of("optimized") as scene:
            assert scene.start(MOVE, Faults()) is Ended.WELL
            assert restore(scene, Faults(), MOVE) is Ended.WELL
            assert scene.start(SWEEP, Faults(), OPTIMIZED) is Ended.WELL
            assert "were restored" in str(scene.reported.why_clean)

    def test_what_earlier_runs_deleted_and_somebody_staged_again_is_reported(self) -> None:
        with world_of("optimized") as scene:
            assert scene.start(SWEEP, Faults()) is Ended.WELL
            address = min(key for each in scene.world.oracle.runs.values() for key in each.receipted)
            branch = scene.world.repository.branches["alpha"]
            entry = Entry(address, 1, 1, "again", soft_at=scene.world.time.now)
            scene.world.repository.stage(branch, "again", entry)
            scene.world.oracle.look()
            for _ in range(2):
                assert scene.start(SWEEP, Faults(), OPTIMIZED) is Ended.WELL
                assert (scene.reported.flow, scene.reported.counts["lost"]) == (Flow.OPTIMIZED, 1)

    def test_a_run_limited_to_some_windows_looks_whether_what_it_did_not_list_is_lost(self) -> None:
        with world_of("optimized") as scene:
            assert scene.start(SWEEP, Faults()) is Ended.WELL
            deleted = [key for each in scene.world.oracle.runs.values() for key in each.receipted]
            address = max(key for key in deleted if layout.parse(key).slice)
            branch = scene.world.repository.branches["alpha"]
            entry = Entry(address, 1, 1, "again", soft_at=scene.world.time.now)
            scene.world.repository.stage(branch, "again", entry)
            scene.world.oracle.look()
            for is_there in (False, True):
                if is_there:
                    scene.world.bucket.put(address, b"x")
                with mock.patch.object(planning, "windows_to_collect", lambda *_: (("legacy",), None)):
                    assert scene.start(SWEEP, Faults()) is Ended.WELL
                assert scene.reported.limited_to == "the window legacy"
                assert address not in addresses(scene.store, scene.reported.run_id, LISTED)
                assert scene.reported.counts["lost"] == int(not is_there)

    def test_an_approved_sweep_that_died_is_not_passed_over(self) -> None:
        """While it was a dry run, the index of runs called it settled."""
        with world_of("optimized") as scene:
            dry(scene, asked=OPTIMIZED)
            faults = before(f"put .*/{SWEPT}/manifest.json")
            assert approved(scene, faults=faults, asked=OPTIMIZED) is Ended.DIED
            run_id = scene.reported.run_id
            scene.world.pass_time(LOCK_EXPIRY + MINUTE)
            assert scene.start(SWEEP, Faults(), OPTIMIZED) is Ended.WELL
            assert f"run {run_id} stored nothing to build on" in str(scene.reported.why_clean)

    def test_its_cutoff_was_not_later(self) -> None:
        with world_of("optimized") as scene:
            assert scene.start(SWEEP, Faults(), OPTIMIZED) is Ended.WELL
            set_clocks_back(scene)
            assert scene.start(SWEEP, Faults(), OPTIMIZED) is Ended.WELL
            assert "had a later cutoff" in str(scene.reported.why_clean)


class TestFollowingExpiry:
    """A run by retention rules builds on another only if its mark equals that of a full run."""

    @staticmethod
    def lists_everything(scene: Scene, why: str, **settings: float) -> None:
        assert scene.start(allowing(FOLLOWING, **settings), Faults(), UNIFIED) is Ended.WELL
        assert (scene.reported.base_run, why in str(scene.reported.why_clean)) == (None, True), scene.reported.why_clean

    def test_it_looks_at_what_expired(self) -> None:
        with world_of("following") as scene:
            assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
            assert scene.reported.base_run is not None and scene.reported.why_clean is None
            assert scene.exactness.went > 0
            assert scene.reported.counts["expired_objects"] > 0
            # The next run learns of no newly expired objects.
            assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
            assert (scene.reported.counts["expired_objects"], scene.reported.counts["candidates"]) == (0, 0)

    def test_facts_are_known_to_every_later_run(self) -> None:
        with world_of("following") as scene:
            known = []
            for _ in range(3):
                assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
                assert scene.reported.base_run is not None
                known.append(scene.reported.counts["ranges_from_facts"])
            # Without new commits, the ranges that one run reads are known to the next run.
            assert 0 < known[0] <= known[1] <= known[2]

    def test_metaranges_that_the_base_run_knew_are_not_read(self) -> None:
        with world_of("following") as scene:
            read = []
            ids = {record.facts.metarange_id for record in scene.world.repository.commits.values()} - {""}
            for _ in range(2):
                reported = Faults()
                assert scene.start(FOLLOWING, reported, UNIFIED) is Ended.WELL
                assert scene.reported.base_run is not None
                read.append([call for call in reported.reported if call.rpartition("/")[2] in ids])
            assert read[0] and not read[1]

    def test_facts_of_another_version_are_not_believed(self) -> None:
        warnings: list[str] = []
        with world_of("following") as scene:
            run_id = next(run_folder.newest_runs(scene.store))
            for kind in (HASHES, METARANGES):
                for file in facts.files_of(kind, facts.list_files(scene.store, kind.root)):
                    data, (folder, _, name) = scene.store.get(file.key), file.key.rpartition("/")
                    scene.world.bucket.remove(file.key)
                    other = name.replace(f"{kind.version}-", f"{kind.version + 1}-", 1)
                    scene.world.bucket.put(f"{folder}/{other}", data)
            with mock.patch.object(Run, "warn", lambda self, line: warnings.append(line)):
                assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
            assert scene.reported.base_run == run_id
            assert scene.reported.counts["ranges_from_facts"] == 0
            reported = {line for line in warnings if "have another version and cannot be used" in line}
            assert {line[: line.index(")")].rpartition("(")[2] for line in reported} == {HASHES.what, METARANGES.what}

    def test_what_is_recorded_of_ranges_is_compared_with_some(self) -> None:
        with world_of("following") as scene:
            self.record_less(scene)
            assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.FAILED
            assert "differs from its recorded facts" in scene.world.log[-1]
            self.lists_everything(scene, "differs from its recorded facts")

    @staticmethod
    def record_less(scene: Scene) -> None:
        """The facts lack one address of each range, and every checksum of the file is valid."""
        for file in facts.files_of(HASHES, facts.list_files(scene.store, HASHES.root)):
            rows = facts.read(HASHES, scene.store, file).to_pylist()
            less = pa.Table.from_pylist([{**row, "hashes": row["hashes"][1:]} for row in rows], HASHES.schema)
            scene.world.bucket.remove(file.key)
            folder = file.key.rpartition("/")[0] + "/"
            facts.put(HASHES, cast(ObjectStore, scene.world.bucket), folder, less)

    def test_what_is_unstaged_and_held_by_ranges_that_are_known_is_not_lost(self) -> None:
        """An object staged again at the address of a committed object: the recheck must know that it is committed."""
        options = allowing(FOLLOWING, sweep=False)
        with world_of("following") as scene:
            # This run reads the new ranges, and records them.
            assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
            repository = scene.world.repository
            for branch in repository.branches.values():
                branch.tokens[0].clear()
            repository.copies.clear()
            path, entry = min(repository.commits[repository.branches["main"].commit_id].entries.items())
            repository.branches["main"].tokens[0][path] = replace(entry, metadata=entry.metadata + 1)
            dry(scene, options, UNIFIED)
            assert (scene.reported.counts["ranges_read"], scene.reported.counts["ranges_from_facts"]) == (0, 5)
            assert addresses(scene.store, scene.reported.run_id, STAGED) == {entry.address}
            assert addresses(scene.store, scene.reported.run_id, COMMITTED) == {entry.address}

    def test_it_looks_at_what_no_commit_named_and_only_expired_ones_name_now(self) -> None:
        with world_of("following") as scene:
            garbage = dry_run_of_old_garbage(scene)
            commit_elsewhere(scene, garbage)
            assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
            base_run = scene.reported.run_id
            assert garbage in scene.world.bucket.objects
            commit_on_new_branch(scene, garbage)
            del scene.world.repository.branches["zeta"]
            scene.world.pass_time(10 * DAY)
            assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
            assert scene.reported.base_run == base_run
            assert garbage not in scene.world.bucket.objects

    def test_a_run_that_kept_all_commits_is_no_base(self) -> None:
        with world_of("following") as scene:
            assert scene.start(SWEEP, Faults()) is Ended.WELL
            self.lists_everything(scene, "another definition of what is live: all commits, now active commits")

    def test_a_run_that_keeps_all_commits_builds_on_none_by_rules(self) -> None:
        with world_of("following") as scene:
            assert scene.start(SWEEP, Faults(), OPTIMIZED) is Ended.WELL
            assert "another definition of what is live: active commits, now all" in str(scene.reported.why_clean)

    def test_no_run_of_another_flow_builds_on_one_without_a_listing(self) -> None:
        with world_of("following") as scene:
            assert scene.start(FOLLOWING, Faults(), Asked(Flow.COMMITTED)) is Ended.WELL
            without_listing = scene.reported
            assert without_listing.checkpoint is not None
            assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
            assert scene.reported.base_run not in (None, without_listing.run_id)

    def test_its_cutoff_was_not_later(self) -> None:
        with world_of("following") as scene:
            assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
            set_clocks_back(scene)
            self.lists_everything(scene, "had a later cutoff")

    def test_everything_was_listed_not_long_ago(self) -> None:
        with world_of("following") as scene:
            assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
            assert scene.reported.base_run is not None and scene.reported.checkpoint is not None
            # Counted from the run that listed everything, not from the previous run.
            assert scene.reported.checkpoint.full_run == scene.reported.base_run
            scene.world.pass_time(HOUR)
            self.lists_everything(scene, "to examine everything", full_listing_days=7)
            assert scene.reported.checkpoint.full_run == scene.reported.run_id

    def test_it_is_not_limited_to_some_windows(self) -> None:
        with world_of("following") as scene:
            assert scene.start(FOLLOWING, Faults(), WITHOUT_LEGACY) is Ended.WELL
            assert (scene.reported.base_run, scene.reported.checkpoint) == (None, None)
            assert "it was limited to the window" in str(scene.reported.why_clean)
            assert scene.reported.limited_to and "stored" not in scene.reported.counts
            self.lists_everything(scene, "it was limited to the window")

    def test_no_run_that_built_on_the_same_failed(self) -> None:
        """An expired range is gone, so a run that reads it fails. If that is a dry run, it hides no base run."""
        with world_of("following") as scene:
            options = allowing(DRY, full_listing_days=60)
            died(scene, options, "prepare_uncommitted", UNIFIED)
            for key in self.expired(scene):
                scene.world.bucket.remove(key)
            scene.world.pass_time(2 * HOUR)
            assert scene.start(options, Faults(), UNIFIED) is Ended.FAILED
            assert "missing from the object store" in scene.world.log[-1]
            scene.world.pass_time(HOUR)
            assert scene.start(options, Faults(), UNIFIED) is Ended.WELL
            assert scene.reported.base_run is None and "missing from the object store" in str(scene.reported.why_clean)

    @staticmethod
    def expired(scene: Scene) -> list[str]:
        """Files of ranges that the base run tracked, and that are no longer live."""
        step = step_of(scene)
        assert step.plan.base_run is not None
        before = BaseCheckpoint(scene.store, step.plan.base_run)
        live = define_live(step, step.plan.cutoff).live.metarange_ids
        ids = {record.id for record in References.from_step(step).range_records(live)}
        gone = [METADATA_PREFIX + record.id for record in before.tracked if record.id not in ids]
        assert gone
        return gone

    def test_the_frame_of_what_expired_is_the_one_that_the_commits_name(self) -> None:
        with world_of("following") as scene:
            died(scene, FOLLOWING, f"put .*/{MARKED}/manifest.json", UNIFIED)
            step = step_of(scene)
            listed, committed = step.stored(STORE_DF), step.stored(COMMITTED_DF)
            assert len(universe_of(step, listed, committed).frames) == 2
            key = run_folder.manifest(step.plan.run_id, EXPIRED_DF.name)
            scene.world.bucket.put(key, scene.store.get(key) + b"\n")
            with pytest.raises(OrderViolation, match="expired was materialized again"):
                universe_of(step_of(scene), listed, committed)

    def test_so_is_the_listing_of_which_the_commits_tell(self) -> None:
        with world_of("following") as scene:
            died(scene, FOLLOWING, f"put .*/{MARKED}/manifest.json", UNIFIED)
            step = step_of(scene)
            listed, committed = step.stored(STORE_DF), step.stored(COMMITTED_DF)
            listed = replace(listed, manifest=replace(listed.manifest, files=()))
            with pytest.raises(OrderViolation, match="store_df was materialized again"):
                universe_of(step, listed, committed)

    def test_pending_objects_that_a_run_without_a_listing_deleted_are_left_out(self) -> None:
        with world_of("following") as scene:
            base_run = next(run_folder.newest_runs(scene.store))
            assert scene.start(FOLLOWING, Faults(), Asked(Flow.COMMITTED)) is Ended.WELL
            gone = {*addresses(scene.store, scene.reported.run_id, MARKED)} - scene.world.bucket.objects.keys()
            assert gone
            died(scene, FOLLOWING, "prepare_uncommitted", UNIFIED)
            step = step_of(scene)
            assert step.plan.base_run == base_run

            def addresses_in(rows: ArrowRows) -> set[str]:
                return {*step.engine.collect(rows).column("address").to_pylist()}

            assert addresses_in(deleted_before(step, newer_than=base_run)) == gone < addresses_in(deleted_before(step))
            waiting = step.engine.table(pa.table({"address": [min(gone), "data/other"]}))
            with mock.patch.object(BaseCheckpoint, "_rows", lambda *about: waiting):
                assert addresses_in(BaseCheckpoint(scene.store, base_run).pending_objects(step)) == {"data/other"}


class TestPurge:
    """Purging the quarantine makes the same checks as a sweep."""

    @staticmethod
    def refused(scene: Scene, why: str, options: CollectionSettings = MOVE) -> None:
        reported = Faults()
        refused(scene, purge(scene, reported, options), why, reported, "delete .*/quarantine/.*/data/")

    def test_commits_come_from_the_same_source(self) -> None:
        with world_of("purge") as scene:
            pass_time = scene.world.pass_time

            def refuse_dumps(seconds: float) -> None:
                scene.world.servers.misbehaviour.refuse_dumps |= seconds > 15 * MINUTE
                pass_time(seconds)

            with mock.patch.object(scene.world, "pass_time", refuse_dumps):
                self.refused(scene, "at the mark from the")

    def test_clocks_that_disagree(self) -> None:
        with world_of("purge") as scene:
            for server in scene.world.servers.servers:
                server.clock.skew = 3 * HOUR
            self.refused(scene, "clock")

    def test_a_repository_that_was_made_on_this_namespace_since_the_run(self) -> None:
        twin = RepositoryFacts("twin", "s3://bucket/repo/", "main", False)
        with world_of("purge") as scene, mock.patch.object(CollectorsApi, "repositories", lambda api: (twin,)):
            self.refused(scene, "twin")

    def test_the_rules_hold(self) -> None:
        with world_of("purge") as scene:
            scene.world.repository.rules = UNKNOWN
            reported, options = Faults(), allowing(MOVE, allow_rules_of_unknown_branches=False)
            assert purge(scene, reported, options) is Ended.FAILED
            assert "rules of unknown branches" in scene.world.log[-1]

    def test_a_head_that_is_gone_once_uncommitted_data_was_asked_for_stays(self) -> None:
        """The branch is made after the first check.

        In the second one it goes, and one of its objects is staged again.
        """
        with world_of("purge") as scene:
            repository, moved = scene.world.repository, {*copies(scene).values()}
            zeta = repository.branches.pop("zeta")
            path, entry = min((path, entry) for path, entry in repository.head(zeta).items() if entry.address in moved)

            def make_branch() -> None:
                repository.branches["zeta"] = zeta
                scene.world.oracle.look()

            def stage_and_delete_branch() -> None:
                if repository.branches.pop("zeta", None):
                    repository.stage(repository.branches["main"], path, replace(entry, metadata=entry.metadata + 1))

            with (
                noting(LiveCheck, "_look", make_branch),
                noting(uncommitted, "record_preparations", stage_and_delete_branch),
            ):
                assert purge(scene, Faults(), MOVE) is Ended.WELL
            assert entry.address in scene.world.bucket.objects

    def test_nothing_live(self) -> None:
        with world_of("purge") as scene, nothing_committed():
            self.refused(scene, "no committed address was found")

    def test_addresses_that_the_server_spells_otherwise(self) -> None:
        with world_of("purge") as scene, foreign_addresses():
            self.refused(scene, "the server gives")

    def test_branches_that_are_gone_since_the_run(self) -> None:
        with world_of("purge") as scene:
            repository = scene.world.repository
            del repository.branches["zeta"]
            # A user resets it to the first commit, which is empty.
            repository.branches["main"].commit_id = next(iter(repository.commits))
            self.refused(scene, " left of the ", allowing(MOVE, max_branch_loss_share=0))
