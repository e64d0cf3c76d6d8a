"""The page of a run: its text for each kind of run, based on the run's stored files."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Manifest
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, STEPS, CandidateFigures
from lakefs_gc_assets.collector.page import markup, page
from lakefs_gc_assets.collector.page.garbage import Garbage, LastHeld, LastHolder, LastStaged, StagedEntry, count_here
from lakefs_gc_assets.collector.page.page import Counting, gather
from lakefs_gc_assets.collector.records import report, run_folder
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.settings import CollectionSettings, ReportSettings, StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.page.stored_runs import BYTES, COUNTS, stored_run
from lakefs_gc_assets_tests.collector.page.test_markup import HOSTILE, Reader, read
from lakefs_gc_assets_tests.collector.past_runs import NOW, began, opened

__all__ = ["opened"]
Made = Callable[..., str]


@pytest.fixture
def repository(opened: OpenRepository, tmp_path: Any) -> OpenRepository:
    """An empty repository in which frames can also be written."""
    (tmp_path / "stored" / "repo").mkdir(parents=True)
    opener = StoreOpener(StoreSettings(local_root=str(tmp_path / "stored")), "local://repo/")
    return replace(opened, store=opener.open(), opener=opener)


def make(repository: OpenRepository, run_id: str, prices: ReportSettings | None = None, **settings: Any) -> bytes:
    store = repository.store
    chosen = CollectionSettings.model_validate(settings)
    counting = Counting(lambda manifest: count_here(store, manifest, NOW))
    return page.render(page.gather(store, run_id, chosen, prices or ReportSettings(), NOW, counting))


def text(made: bytes) -> str:
    """Text of the page as a reader sees it, without the style."""
    shown = made.decode()
    return " | ".join(read(re.sub(r"<style>.*?</style>", "", shown, flags=re.DOTALL).encode()).text)


def test_a_dry_run_says_what_a_sweep_would_do_and_how(repository: OpenRepository) -> None:
    found = stored_run(repository)
    reported = text(make(repository, found.run_id))

    assert f"Dry run of {found.started_at:%F}: marked, nothing deleted" in reported
    assert "A sweep would free 3.0 GiB. |" in reported
    assert (
        "10 objects are stored; 3 of them are garbage: no commit, branch or tag needs them. That is 30.0% of the 10 obj"
        in reported
    )
    assert "Guards: none refuses a sweep; nearest is max_candidate_share, 60% of which is used." in reported
    assert "There is no undo, unless the bucket keeps versions." in reported
    assert "Live: something references it | 6" in reported and "Unreferenced, kept: too young | 1" in reported
    assert (
        "Age: 31 to 90 days (all of the garbage)" in reported and "Size of an object: 256 MiB to 4 GiB (all" in reported
    )
    assert "Month: 2026-10 (all" in reported and "Reason: no commit holds it (all" in reported
    assert reported.index("lakefs-gc approve") < reported.index("Month: ") < reported.index("Live: something")
    assert "data/a" in reported and "1.0 GiB" in reported
    assert f"lakefs-gc approve {found.run_id}" in reported
    assert (
        f"Approve until {found.started_at + timedelta(hours=168):%F %T}Z" in reported and "The run deletes" in reported
    )
    assert "30.00% | 50.00% | collection. | max_candidate_share" in reported
    assert "store_df | 1 min 30 s" in reported
    assert "restore" not in reported


def test_steps_come_in_the_order_in_which_they_are_made(repository: OpenRepository) -> None:
    reported = text(
        make(repository, stored_run(repository, worked_seconds={"candidates": 2.0, "store_df": 5.0}).run_id)
    )

    assert "Waiting | store_df | 5.0 s | 0.0 s | candidates | 2.0 s" in reported


def test_storage_classes_are_shown_where_the_store_names_any(repository: OpenRepository) -> None:
    listed = {"GLACIER": {"objects": 4, "bytes": 2**30}, "STANDARD": {"objects": 6, "bytes": 2**20}}
    classes = {"listed": listed, "candidates": {"GLACIER": {"objects": 3, "bytes": 2**29}}}
    reported = text(make(repository, stored_run(repository, storage_classes=classes).run_id))

    assert "Class | Looked at | Bytes | Garbage | Bytes of garbage" in reported
    assert "GLACIER | 4 | 1.0 GiB | 3 | 512.0 MiB | STANDARD | 6 | 1.0 MiB | 0 | 0 B" in reported
    assert "Looked at | Bytes" not in text(make(repository, stored_run(repository).run_id))


def test_garbage_costs_what_the_settings_say(repository: OpenRepository) -> None:
    found = stored_run(repository)
    priced = text(make(repository, found.run_id, ReportSettings(price_per_gb_month=0.023, currency="EUR")))

    assert "A sweep would free 3.0 GiB, which cost 0.07 EUR a month." in priced
    assert " a month" not in text(make(repository, found.run_id))


def test_garbage_costs_what_its_classes_do(repository: OpenRepository) -> None:
    garbage = {"GLACIER": {"objects": 1, "bytes": 2**30}, "STANDARD": {"objects": 1, "bytes": 2**30}}
    unknown = {"unknown": {"objects": 1, "bytes": 2**30}}
    prices: dict[str, float] = {"STANDARD": 2, "GLACIER": 1}
    found = stored_run(repository, storage_classes={"candidates": garbage | unknown})
    reported = text(make(repository, found.run_id, ReportSettings(price_per_gb_month=prices)))
    free = "A sweep would free 3.0 GiB, which cost"
    assert f"{free} 3.00 USD a month (1.0 GiB have no price for their storage class)." in reported
    assert "STANDARD | 0 | 0 B, 0.00 USD a month | 1 | 1.0 GiB, 2.00 USD a month" in reported
    reported = text(make(repository, found.run_id, ReportSettings(price_per_gb_month=prices | {"unknown": 0.5})))
    assert f"{free} 3.50 USD a month." in reported

    swept: dict[str, Any] = {
        "dry_run": False,
        "ending": Ending.PARTLY_DELETED,
        "storage_classes": {"candidates": garbage},
    }
    sizes = BYTES | {"candidates": 2**31, "deleted": 2**30}
    found = stored_run(repository, object_bytes=sizes, plan={"sweep": True}, **swept)
    reported = text(make(repository, found.run_id, ReportSettings(price_per_gb_month=prices)))
    assert "The run freed 1.0 GiB, which cost 1.50 USD a month." in reported


def test_a_sweep_says_how_it_is_undone(repository: OpenRepository) -> None:
    counts, sizes = COUNTS | {"deleted": 2, "failed": 1}, BYTES | {"deleted": 2**31}
    swept: dict[str, Any] = {"ending": Ending.PARTLY_DELETED, "success": False, "counts": counts, "object_bytes": sizes}
    found = stored_run(repository, plan={"sweep": True}, **swept)
    reported = text(make(repository, found.run_id))

    assert f"Sweep of {found.started_at:%F}: some deletions failed" in reported
    assert "The run freed 2.0 GiB" in reported
    assert "Of 3 candidates, 2 were deleted and 0 moved to quarantine." in reported
    assert f"lakefs-gc restore {found.run_id} --yes" in reported and "a bucket that keeps versions" in reported
    assert f"lakefs-gc deleted {found.run_id}" in reported
    assert "approve" not in reported


def test_what_moved_to_quarantine_is_not_said_to_be_freed(repository: OpenRepository) -> None:
    counts, sizes = COUNTS | {"quarantined": 3}, BYTES | {"quarantined": 2**30}
    moved: dict[str, Any] = {"ending": Ending.QUARANTINED, "dry_run": False, "counts": counts, "object_bytes": sizes}
    found = stored_run(repository, **moved)
    reported = text(make(repository, found.run_id, quarantine_days=2))

    assert f"Sweep of an earlier dry run of {found.started_at:%F}: moved to quarantine" in reported
    assert "The run moved 1.0 GiB to quarantine." in reported and "where a purge frees it: 1.0 GiB" in reported
    assert "The run freed" not in reported
    assert f"A purge may delete the objects from {NOW + timedelta(days=2):%F %T}Z on" in reported


def test_a_run_that_failed_says_why_and_what_it_had_by_then(repository: OpenRepository) -> None:
    plan = began(repository, timedelta(hours=1), sweep=True)
    report.write(repository.store, report.failed(plan, NOW, "the server <b>is gone</b>"))
    reported = text(make(repository, plan.run_id))

    assert f"Sweep of {plan.started_at:%F}: failed" in reported and "the server <b>is gone</b>" in reported
    assert "before it had counted everything" in reported and "No step came to its end" in reported
    assert "Some objects may be gone already" in reported


def test_frames_of_an_earlier_attempt_say_nothing_of_this_one(repository: OpenRepository) -> None:
    found = stored_run(repository)
    report.write(repository.store, replace(found, attempt="another"))
    reported = text(make(repository, found.run_id))

    assert "Ages, sizes and the largest objects are not known" in reported
    assert "The frames that guards look at are not there" in reported


def test_an_old_run_whose_frames_were_removed_still_has_a_page(repository: OpenRepository) -> None:
    found = stored_run(repository)
    repository.store.delete([run_folder.manifest(found.run_id, name) for name in STEPS])
    reported = text(make(repository, found.run_id))

    assert "10 objects are stored" in reported
    assert "they were removed as it is old" in reported
    assert "Garbage: nothing references it | 3 | 3.0 GiB" in reported


def test_what_expired_commits_hold_is_not_said_to_be_all_that_is_stored(repository: OpenRepository) -> None:
    counts = {name: count for name, count in COUNTS.items() if name != "stored"}
    found = stored_run(repository, plan={"flow": Flow.COMMITTED}, counts=counts)
    reported = text(make(repository, found.run_id))
    assert "10 objects that expired commits hold were looked at; 3 of" in reported
    # Live commits hold 3, 3 are garbage, and one is too young.
    assert "That is 42.9% of the 7 objects that the run knows." in reported


def test_a_guard_that_would_refuse_the_sweep_is_named_first(repository: OpenRepository) -> None:
    reported = text(make(repository, stored_run(repository).run_id, max_candidates=2))
    refusal = "Guards: a sweep is refused: the number of candidates is 3, and collection.max_candidates is 2."
    assert refusal in reported and reported.index(refusal) < reported.index("lakefs-gc approve")


def test_a_run_without_garbage_asks_for_no_approval(repository: OpenRepository) -> None:
    counts = COUNTS | {"candidates": 0}
    reported = text(make(repository, stored_run(repository, counts=counts).run_id))
    assert "There is no garbage, so there is nothing to approve." in reported
    assert "lakefs-gc approve" not in reported and "What the garbage is" not in reported


def test_an_approver_reads_how_long_the_quarantine_keeps_it(repository: OpenRepository) -> None:
    reported = text(make(repository, stored_run(repository).run_id, sweep_mode="quarantine", quarantine_days=7))
    assert "The run moves the candidates to quarantine" in reported
    assert "A sweep would move to quarantine 3.0 GiB." in reported and "would free" not in reported
    assert "The move itself frees nothing: a purge frees the bytes after these days." in reported
    assert "Undo it with lakefs-gc restore for at least 7 days after the sweep." in reported


def test_runs_before_stand_beside_it_newest_first(repository: OpenRepository) -> None:
    first = stored_run(repository)
    deleted: dict[str, Any] = {"counts": COUNTS | {"deleted": 2}, "dry_run": False, "ending": Ending.PARTLY_DELETED}
    second = stored_run(repository, previous_run=first.run_id, **deleted)
    third = stored_run(repository, previous_run=second.run_id)
    reported = text(make(repository, third.run_id))

    rows = reported[reported.index("This run first") : reported.index("Objects by kind")]
    ran = f"{third.started_at:%F %H:%M}Z | 10 | 3 | 3.0 GiB"
    marked = "dry run: marked, nothing deleted"
    assert f"{ran} | {marked} | {ran} | 2 | some deletions failed | {ran} | {marked}" in rows
    assert "This run first" not in text(make(repository, first.run_id))


def test_runs_before_are_few_however_damaged(repository: OpenRepository) -> None:
    found = stored_run(repository)
    circle = stored_run(repository, previous_run=found.run_id)
    for previous in (circle.run_id, "../other", "z" * 20):
        report.write(repository.store, replace(found, previous_run=previous))
        assert text(make(repository, circle.run_id)).count("dry run: marked") <= 7


def test_a_run_that_was_limited_to_some_windows_says_so(repository: OpenRepository) -> None:
    assert "Limited to" not in text(make(repository, stored_run(repository).run_id))
    limited = stored_run(repository, limited_to="the window 2026-10")
    assert "the window 2026-10: 0 slices of other windows were not listed" in text(make(repository, limited.run_id))


def test_runs_of_the_same_minute_that_saw_garbage_staged_have_a_row_each(repository: OpenRepository) -> None:
    counting = Counting(lambda manifest: count_here(repository.store, manifest, NOW))
    found = stored_run(repository)
    facts = gather(repository.store, found.run_id, CollectionSettings(), ReportSettings(), NOW, counting)
    first = NOW.replace(second=0)
    until = {first + timedelta(seconds=1): Amount(1, 2**20), first: Amount(2, 2**30)}
    reported = text(page.render(replace(facts, last_staged=LastStaged(until, Amount(), NOW))))

    began = f"staged until the run of {first:%F %H:%M}Z"
    assert f"{began} | 1 | 1.0 MiB | {began} | 2 | 1.0 GiB" in reported


def test_candidates_that_cannot_be_read_leave_the_rest_of_the_page(repository: OpenRepository) -> None:
    found = stored_run(repository)
    manifest = files.read_manifest(repository.store, found.run_id, CANDIDATES_DF)
    repository.store.put(manifest.files[0].key, b"something else")
    reported = text(make(repository, found.run_id))

    assert "they cannot be read" in reported and "Month: 2026-10 (all" in reported


def test_too_many_to_count_after_a_failure_are_said_to_be(repository: OpenRepository) -> None:
    def count(manifest: Manifest[CandidateFigures]) -> Garbage | None:
        return None

    found = stored_run(repository)
    facts = page.gather(repository.store, found.run_id, CollectionSettings(), ReportSettings(), NOW, Counting(count))
    assert "lakefs-gc report --again" in text(page.render(facts))


def test_a_run_that_has_not_ended_has_no_page(repository: OpenRepository) -> None:
    plan = began(repository, timedelta(hours=1))
    with pytest.raises(CollectionError, match="left no report"):
        make(repository, plan.run_id)
    with pytest.raises(CollectionError, match="this repository has no run"):
        make(repository, "c" * 20)


def test_hostile_names_are_text_wherever_they_stand(repository: OpenRepository) -> None:
    names = tuple(name for name in HOSTILE if "\ud800" not in name)
    calm = stored_run(repository, *(f"data/{place}" for place in range(len(names))), warnings=("a",) * len(names))
    hostile = stored_run(
        repository,
        *names,
        repository=names[0],
        storage_namespace=names[1],
        warnings=names,
        kept={names[2]: 1},
        why_clean=names[3],
        loosened={names[4]: 1},
        commit_source=names[5],
        plan={"windows": (names[6],)},
    )
    plain, shown = read(make(repository, calm.run_id)), read(make(repository, hostile.run_id))

    assert shown.tags <= plain.tags
    assert {name for name, _ in shown.attributes} <= {name for name, _ in plain.attributes}
    reported = "".join(shown.text)
    for name in names[:5]:
        assert markup.shown(name) in reported


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_what_held_the_garbage_are_text(repository: OpenRepository, name: str) -> None:
    counting = Counting(lambda manifest: count_here(repository.store, manifest, NOW))
    found = stored_run(repository)
    facts = gather(repository.store, found.run_id, CollectionSettings(), ReportSettings(), NOW, counting)
    mark = facts.mark
    assert mark is not None

    def reader(name: str) -> Reader:
        holders = tuple(LastHolder(name, name, f"{name}{place}/", 1, 1) for place in range(2))
        staged = LastStaged({NOW: Amount(1, 1)}, Amount(1, 1), NOW, (StagedEntry(name, name, 1, NOW),))
        classes = {"listed": {name: {"objects": 1, "bytes": 1}}}
        changed = replace(
            facts,
            report=replace(
                found, storage_classes=classes, error=name, approved_by=name, limited_to=name, base_run=name
            ),
            mark=replace(mark, nested=(name,), repositories_unknown=name),
            held_unknown=name,
            last_held=LastHeld(holders),
            last_staged=staged,
            gone_branches=frozenset({name}),
            retention={name: 1},
        )
        return read(page.render(changed))

    plain, hostile = reader("plain"), reader(name)
    assert [name for name, _ in hostile.attributes] == [name for name, _ in plain.attributes]
    assert hostile.tags == plain.tags
    assert all(words.isprintable() for words in hostile.text)
    assert "".join(hostile.text).count(" ".join(markup.shown(name).split())) >= 20


def test_the_page_stays_small_however_much_there_is_to_say(repository: OpenRepository) -> None:
    long = "\u202e<&" * 1000
    found = stored_run(
        repository,
        *(f"data/{place:04}{'&' * 1000}" for place in range(200)),
        plan={"windows": tuple(f"{year}-{month:02}" for year in range(1000, 2026) for month in range(1, 13))},
        warnings=(long,) * 500,
        error=long,
        kept={f"{long}{place}": 1 for place in range(8)},
    )
    made = make(repository, found.run_id)
    assert len(made) < 2**20
    assert "450 more warnings are in report.json" in text(made)


def test_a_stored_page_is_read_while_it_is_that_of_the_report(repository: OpenRepository) -> None:
    found = stored_run(repository)
    assert page.read(repository.store, found) is None
    made = make(repository, found.run_id)
    page.write(repository.store, found.run_id, made)

    assert page.read(repository.store, found) == made
    later: Report = replace(found, ended_at=found.ended_at + timedelta(seconds=1))
    assert page.read(repository.store, later) is None
