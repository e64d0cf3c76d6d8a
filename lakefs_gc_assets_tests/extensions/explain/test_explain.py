"""`explain` predicts for every object of a small world how a run now treats it."""

import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from unittest import mock

import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.live import references
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES, METARANGES
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.extensions.explain import explain as explain_module
from lakefs_gc_assets.extensions.explain.explain import Decision, Explanation, explain
from lakefs_gc_assets.extensions.explain.explain_command import verdict
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.collector.test_run_guards import (
    UNIFIED,
    allowing,
    commit_elsewhere,
    commit_on_new_branch,
    dry,
    marked,
    noting,
    world_of,
)
from lakefs_gc_assets_tests.simulation.bucket import BucketView
from lakefs_gc_assets_tests.simulation.clocks import HOUR, CollectorClock, MachineClock
from lakefs_gc_assets_tests.simulation.collecting import open_repository
from lakefs_gc_assets_tests.simulation.failing_calls import Faults
from lakefs_gc_assets_tests.simulation.fault_kinds import DRY, FOLLOWING, LATER, MOVE, SWEEP
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.run_requests import ASKED, Asked
from lakefs_gc_assets_tests.simulation.scenes import Ended, Scene
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi

FULL = allowing(DRY, full_listing_days=0)


def opened(scene: Scene, options: CollectionSettings = DRY) -> OpenRepository:
    machine = MachineClock(scene.world.time, 0.0)
    api = CollectorsApi(scene.world.servers, lambda call: False, lambda: None, machine, 1)
    # It only writes a note about the server's preparation.
    store = BucketView(scene.world.bucket, lambda call: False, never_delete, only_note, page=1_000, delete_limit=0)
    return open_repository(api, store, options, CollectorClock(machine, scene.world.pass_time))


def only_note(key: str, what: object) -> None:
    assert key.startswith("_lakefs/retention/gc/uncommitted/explained/"), f"{key} is written"


def never_delete(key: str, what: object) -> None:
    raise AssertionError(f"{key} is deleted")


def explained(scene: Scene, *addresses: str) -> dict[str, Explanation]:
    repository = opened(scene)
    return {address: explain(repository, address) for address in addresses}


def read_in_full(scene: Scene, *addresses: str) -> dict[str, Explanation]:
    """Like `explained`, without any fact and without the newest run."""
    with (
        mock.patch.object(references, "find_fact_files", lambda step, kind: []),
        mock.patch.object(explain_module, "_ask_newest_run", lambda repository, key: (None, frozenset[str]())),
        mock.patch.object(explain_module, "_read_decisions", _read_receipts),
    ):
        return explained(scene, *addresses)


def _read_receipts(store: object, windows: object, exclude: object, run_id: str) -> object:
    return receipts.read(store, run_id)  # type: ignore[arg-type]


def stored(scene: Scene) -> list[str]:
    return [key for key in scene.world.bucket.objects if not key.startswith("_lakefs/") and key != "dummy"]


@pytest.mark.parametrize(("kind", "asked"), [("clean", ASKED), ("unified", UNIFIED)])
def test_of_every_object_it_says_what_a_run_does(kind: str, asked: Asked) -> None:
    with world_of(kind) as scene:
        dry(scene, FULL, asked)
        candidates, report = set(marked(scene)), scene.reported
        found = explained(scene, *stored(scene))
    goes = {key for key, each in found.items() if verdict(each).startswith("goes") and each.kept is None}
    assert candidates and goes == candidates
    assert {key for key, each in found.items() if each.listed_by == report.run_id} == candidates
    assert all(f"run {report.run_id} lists it as a candidate" in verdict(found[key]) for key in candidates)
    # The run keeps objects for the same reasons. Runs do not list slices that are too young.
    kept = Counter(each.kept for each in found.values() if each.kept is not None)
    older = {why: count for why, count in kept.items() if why != Kept.YOUNG}
    assert older == {why: count for why, count in report.kept.items() if why != Kept.YOUNG}
    assert kept[Kept.YOUNG] >= report.kept.get(Kept.YOUNG, 0)
    referenced = {key for key, each in found.items() if each.is_referenced}
    assert referenced and not referenced & candidates
    assert len(referenced) + len(candidates) + sum(kept.values()) == len(found)


def test_what_no_commit_held_is_looked_for_in_what_the_newest_run_did_not_read() -> None:
    with world_of("clean") as scene:
        dry(scene, FULL)
        first, second, *_, other = sorted(marked(scene))
        commit_on_new_branch(scene, first)
        commit_elsewhere(scene, second)
        with noting(LiveFiles, "paths", lambda: None) as read:
            assert verdict(explained(scene, first)[first]).startswith("stays: 1 active commit holds it")
            assert verdict(explained(scene, second)[second]).startswith("stays: 1 range of no commit holds it")
            assert verdict(explained(scene, other)[other]).startswith("goes: no commit holds it")
        assert len(read) == 5, "the new commit's range three times, the other one twice"
        scene.world.pass_time(HOUR)
        younger, _ = scene.world.issue(scene.world.servers.servers[0])
        scene.world.bucket.put_data(younger, b"younger than the run")
        with noting(LiveFiles, "paths", lambda: None) as read:
            assert explained(scene, younger)[younger].kept == Kept.YOUNG
        assert len(read) == 2
        head = scene.world.repository.branches["main"]
        held = min(entry.address for entry in scene.world.repository.head(head).values())
        with noting(LiveFiles, "paths", lambda: None) as read:
            assert explained(scene, held)[held].active
        assert len(read) > 1, "what a commit held is looked for in ranges that the run read"


@pytest.mark.parametrize("options", [SWEEP, MOVE])
def test_what_a_run_took_is_gone_whatever_references_it(options: CollectionSettings) -> None:
    with world_of("clean") as scene:
        assert scene.start(options, Faults()) is Ended.WELL
        run_id, repository = scene.reported.run_id, scene.world.repository
        taken = sorted(marked(scene))
        took = f"run {run_id} deleted it" if options is SWEEP else f"run {run_id} moved it to quarantine"
        found = explained(scene, *taken)
        assert {verdict(each) for each in found.values()} == {f"is gone: {took}"}
        entry = Entry(taken[-1], 1, 1, "again", soft_at=scene.world.time.now)
        repository.stage(repository.branches["alpha"], "again", entry)
        again = verdict(explained(scene, taken[-1])[taken[-1]])
        assert again == f"is gone: {took}, although it is staged: reading it fails"


def test_a_live_object_that_nobody_of_us_deleted_is_not_stored() -> None:
    with world_of("clean") as scene:
        repository = scene.world.repository
        held = {entry.address for entry in repository.head(repository.branches["main"]).values()}
        key = min(held.intersection(stored(scene)))
        scene.world.bucket.remove(key)
        said = verdict(explained(scene, key)[key])
        assert said.startswith("is not stored: no run deleted it; perhaps it was never stored, although ")
        assert said.endswith(" it: reading it fails")


def without_own_words(explanation: Explanation) -> Explanation:
    """Removes details that only a recent run has, decisions of a sweep without a receipt, and their ages."""
    holders = tuple(
        replace(holder, why=tuple(re.sub(r"made [^:]*:", "", why) for why in holder.why))
        for holder in explanation.holders
    )
    reported: tuple[Decision, ...] = tuple(each for each in explanation.decisions if each.outcome != "kept_live")
    return replace(explanation, holders=holders, listed_by=None, decisions=reported)


def test_by_facts_it_says_the_same_as_by_reading_everything() -> None:
    with world_of("unified") as scene:
        objects = stored(scene)
        assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
        scene.do(LATER)
        objects = sorted({*objects, *stored(scene), "data/gb6d7u3a3ogkm0c2mqu0/cr6d7u3a3ogkm0c2mqu0"})
        with noting(LiveFiles, "paths", lambda: None) as read:
            found = explained(scene, *objects)
        with noting(LiveFiles, "paths", lambda: None) as read_then:
            expected = read_in_full(scene, *objects)
        reported = {key: without_own_words(each) for key, each in found.items()}
        assert reported == {key: without_own_words(each) for key, each in expected.items()}
        assert any(each.holders for each in found.values()) and any(each.decisions for each in found.values())
        assert len(read) < len(read_then)


@pytest.mark.parametrize("damage", ["lost", "flipped"])
def test_what_a_damaged_fact_is_about_is_read(damage: str) -> None:
    with world_of("unified") as scene:
        assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
        head = scene.world.repository.branches["main"]
        held = min(entry.address for entry in scene.world.repository.head(head).values())
        with noting(LiveFiles, "paths", lambda: None) as read:
            by_facts = explained(scene, held)[held]
        for key in [key for key in scene.world.bucket.objects if key.startswith((HASHES.root, METARANGES.root))]:
            data = scene.world.bucket.objects[key].data
            if damage == "lost":
                scene.world.bucket.remove(key)
            else:
                wrong = bytes([*data[:-1], data[-1] ^ 1])
                scene.world.bucket.objects[key] = replace(scene.world.bucket.objects[key], data=wrong)
        with noting(LiveFiles, "paths", lambda: None) as read_then:
            by_ranges = explained(scene, held)[held]
        assert without_own_words(by_ranges) == without_own_words(by_facts) and by_facts.active
        assert len(read) < len(read_then)


@pytest.mark.parametrize("behind", [0, HOUR * 5 / 12])
def test_too_young_is_decided_by_the_clocks_of_a_run(behind: float) -> None:
    """If a store's clock is behind, a run's cutoff is earlier."""
    with world_of("clean") as scene:
        scene.world.bucket.clock.skew = -behind
        dry(scene, FULL)
        cutoff = plans.read(scene.store, scene.reported.run_id).cutoff
        steps = list[Step[ArrowRows]]()
        judge = explain_module._judge

        def watched(step: Step[ArrowRows], *others: object) -> object:
            steps.append(step)
            return judge(step, *others)  # type: ignore[arg-type]

        with mock.patch.object(explain_module, "_judge", watched):
            explained(scene, marked(scene)[0])
        assert abs(steps[0].plan.cutoff - cutoff) < timedelta(minutes=5)
