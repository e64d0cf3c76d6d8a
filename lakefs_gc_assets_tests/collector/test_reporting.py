from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, COMMITTED_DF, STORE_DF, UNCOMMITTED_DF
from lakefs_gc_assets.collector.guards import Mark
from lakefs_gc_assets.collector.records.outcomes import Amount, Kept
from lakefs_gc_assets.collector.reporting import (
    by_class,
    describe_archived,
    describe_compacted,
    describe_unasked,
    find_empty_live_set,
    find_live_candidates,
    find_losses,
    find_young_candidates,
    foresee_archived,
    mark_of,
)
from lakefs_gc_assets.settings import UNKNOWN_CLASS, CollectionSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector import made_frames
from lakefs_gc_assets_tests.collector.made_frames import (
    CANDIDATE_FIGURES,
    COMMITTED_FIGURES,
    LISTED_FIGURES,
    UNCOMMITTED_FIGURES,
    frame_of_rows,
    made_frame,
    opener_in,
)
from lakefs_gc_assets_tests.spark.frame_rows import listed, live


class TestStorageClasses:
    @given(
        st.lists(
            st.dictionaries(st.sampled_from(["STANDARD", "GLACIER"]), st.tuples(st.integers(1, 9), st.integers(0, 99)))
        ),
        st.integers(0, 9),
        st.integers(0, 99),
    )
    def test_add_up_to_everything(
        self, classes: list[dict[str, tuple[int, int]]], unknown: int, unknown_bytes: int
    ) -> None:
        frame = made_frame(STORE_DF, 1, LISTED_FIGURES)
        files = tuple(replace(frame.manifest.files[0], classes=each) for each in classes)
        known = [amount for each in classes for amount in each.values()]
        objects, size = sum(each[0] for each in known) + unknown, sum(each[1] for each in known) + unknown_bytes
        found = by_class(replace(frame.manifest, files=files), Amount(objects, size))
        if not known:
            assert found == {}
        else:
            assert sum(amount["objects"] for amount in found.values()) == objects
            assert (UNKNOWN_CLASS in found) == bool(unknown)
            if unknown:
                assert found[UNKNOWN_CLASS] == {"objects": unknown, "bytes": unknown_bytes}


class TestShareOfCandidates:
    KEPT: ClassVar = {"too young": 4, "unrecognised": 7}

    def mark(self, flow: str, listed: int, committed: int, candidates: int, sealed: int = 0) -> Mark:
        figures = replace(LISTED_FIGURES, flow=flow, sealed_objects=sealed)
        return mark_of(
            made_frame(STORE_DF, listed, figures).manifest,
            made_frame(UNCOMMITTED_DF, 5, UNCOMMITTED_FIGURES).manifest,
            made_frame(COMMITTED_DF, committed, COMMITTED_FIGURES).manifest,
            made_frame(CANDIDATES_DF, candidates, replace(CANDIDATE_FIGURES, kept=self.KEPT)).manifest,
        )

    def test_counts_each_object_once_where_expired_and_live_commits_hold_the_same(self) -> None:
        """Expired commits hold 687 objects; live commits hold 355 of the same objects."""
        mark = self.mark("committed", listed=687, committed=355, candidates=321)
        assert (mark.listed, mark.known) == (687, 687)
        (tripped,) = guards.tripped(mark, CollectionSettings(max_candidate_share=0.4))
        assert "321 of 687 known objects would be deleted, 46.7%, more than 40.0%" in str(tripped)
        assert guards.tripped(mark, CollectionSettings(max_candidate_share=0.47)) == ()

    def test_is_that_of_listed_and_sealed_objects_in_other_flows(self) -> None:
        for flow in ("clean", "optimized", "unified"):
            assert self.mark(flow, listed=100, committed=80, candidates=9, sealed=50).known == 150


class TestArchivedObjects:
    def test_that_quarantine_kept_are_reported_with_the_way_out(self) -> None:
        assert describe_archived(Amount()) is None
        reported = describe_archived(Amount(3, 2**30)) or ""
        assert reported.startswith("3 objects of garbage, 1.0 GiB, kept") and "sweep_mode: delete" in reported

    @staticmethod
    def foreseen(settings: CollectionSettings, **classes: tuple[int, int]) -> str | None:
        frame = made_frame(CANDIDATES_DF, 1, CANDIDATE_FIGURES)
        (file,) = frame.manifest.files
        return foresee_archived(replace(frame.manifest, files=(replace(file, classes=classes),)).classes, settings)

    def test_that_quarantine_would_keep_are_reported_before_a_sweep(self) -> None:
        into_quarantine = CollectionSettings(sweep_mode="quarantine")
        classes = {"STANDARD": (1, 2**40), "DEEP_ARCHIVE": (2, 2**30), "Archive": (1, 0), "GLACIER_IR": (4, 2**40)}
        reported = self.foreseen(into_quarantine, **classes) or ""
        assert reported.startswith(
            "a sweep would keep 3 objects of garbage, 1.0 GiB, of storage class Archive, DEEP_ARCHIVE"
        )
        assert "sweep_mode: delete" in reported
        assert self.foreseen(into_quarantine, STANDARD=(1, 1), ARCHIVE=(2, 2)) is None
        assert self.foreseen(CollectionSettings(), **classes) is None


class TestServersThatCompact:
    SEEN = replace(COMMITTED_FIGURES, compacted_bases=2, unnamed_ranges=1_000)

    def test_the_settings_that_do_not_suit_one_are_named(self) -> None:
        kept = describe_compacted(self.SEEN, CollectionSettings())
        assert kept is not None and "2 compacted bases" in kept and "1,000 ranges" in kept
        assert "turn collection.keep_old_unnamed_ranges off, if no other repository" in kept
        loose = describe_compacted(self.SEEN, CollectionSettings(keep_unnamed_ranges=False))
        assert loose is not None and "collection.keep_unnamed_ranges is off" in loose

    def test_nothing_is_said_where_they_suit_it_or_none_was_seen(self) -> None:
        assert describe_compacted(self.SEEN, CollectionSettings(keep_old_unnamed_ranges=False)) is None
        assert describe_compacted(replace(self.SEEN, unnamed_ranges=0), CollectionSettings()) is None
        unseen = replace(self.SEEN, compacted_bases=0)
        for settings in (CollectionSettings(), CollectionSettings(keep_unnamed_ranges=False)):
            assert describe_compacted(unseen, settings) is None


class TestWhatCouldNotBeAskedFor:
    def test_names_the_setting_and_how_much_is_left(self) -> None:
        figures = replace(CANDIDATE_FIGURES, kept={Kept.UNCERTAIN.value: 100_500}, paths_unasked=20_000)
        reported = describe_unasked(
            made_frame(CANDIDATES_DF, 1, figures), CollectionSettings(hidden_suspect_limit=1000)
        )
        assert reported is not None
        assert "100,500 objects" in reported
        assert "collection.hidden_suspect_limit (1,000)" in reported
        assert "20,000 more" in reported

    def test_is_nothing_where_all_was_asked(self) -> None:
        kept = {Kept.HIDDEN_STAGED.value: 3, Kept.UNASKABLE.value: 4}
        frame = made_frame(CANDIDATES_DF, 1, replace(CANDIDATE_FIGURES, kept=kept))
        assert describe_unasked(frame, CollectionSettings()) is None


# Checks of candidates.


ENGINE = LocalEngine()
CUTOFF = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def opener(tmp_path: Path) -> StoreOpener:
    return opener_in(tmp_path, "repository")


def test_candidates_that_are_live_are_reported(opener: StoreOpener) -> None:
    rows = [listed(f"data/{number}") for number in range(60)]
    candidates = frame_of_rows(opener, CANDIDATES_DF, rows, CANDIDATE_FIGURES)
    held = [live(f"data/{number}") for number in range(25, 90)]
    committed = frame_of_rows(opener, COMMITTED_DF, [*held, live("data/25")], COMMITTED_FIGURES)
    staged = frame_of_rows(opener, UNCOMMITTED_DF, [live("data/7")], UNCOMMITTED_FIGURES)
    nothing = frame_of_rows(opener, UNCOMMITTED_DF, [], UNCOMMITTED_FIGURES)

    (violation,) = find_live_candidates(ENGINE, candidates, nothing, committed)
    both = find_live_candidates(ENGINE, candidates, staged, committed)

    assert (violation.rule, violation.rows) == ("disjoint from committed_df", 35)
    assert len(set(violation.detail.split(", "))) == 20
    assert [(each.rule, each.rows) for each in both] == [("disjoint from uncommitted_df", 1), (violation.rule, 35)]
    others = frame_of_rows(opener, CANDIDATES_DF, rows[:7] + rows[8:20], CANDIDATE_FIGURES)
    assert find_live_candidates(ENGINE, others, staged, committed) == []


@pytest.mark.parametrize(
    ("change", "young"),
    [
        ({}, False),
        ({"last_modified": CUTOFF}, True),
        ({"last_modified": CUTOFF - timedelta(microseconds=1)}, False),
        ({"issued_at": CUTOFF}, True),
        ({"issued_at": CUTOFF - timedelta(microseconds=1)}, False),
        ({"issued_at": None}, False),
        ({"issued_at": None, "last_modified": CUTOFF}, True),
    ],
)
def test_candidates_as_young_as_the_cutoff_are_reported(
    opener: StoreOpener, change: dict[str, Any], young: bool
) -> None:
    rows = [listed("data/a", **change), listed("data/b")]

    found = find_young_candidates(ENGINE, frame_of_rows(opener, CANDIDATES_DF, rows, CANDIDATE_FIGURES), CUTOFF)

    assert [violation.rows for violation in found] == ([1] if young else [])


@pytest.mark.parametrize(("committed", "candidates", "reported"), [(0, 1, True), (1, 1, False), (0, 0, False)])
def test_an_empty_live_set_is_reported_where_anything_would_go(committed: int, candidates: int, reported: bool) -> None:
    frames = made_frames.listed(100), made_frames.uncommitted(0), made_frames.committed(committed)

    found = find_empty_live_set(*frames, made_frames.candidates(candidates))

    assert [violation.rule for violation in found] == (["empty live set"] if reported else [])


def test_what_earlier_runs_deleted_and_is_held_is_reported() -> None:
    lost = replace(CANDIDATE_FIGURES, lost=2, lost_examples=("data/a", "data/b"))

    (violation,) = find_losses(made_frame(CANDIDATES_DF, 1, lost))

    assert (violation.rule, violation.rows) == ("nothing deleted is live", 2)
    assert "data/a, data/b" in violation.detail and "lakefs-gc restore" in violation.detail
    assert find_losses(made_frames.candidates(1)) == []
