import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collection import guards
from lakefs_gc_assets.collection.guards import Mark
from lakefs_gc_assets.configuration import CollectionSettings
from lakefs_gc_assets.errors import GuardTripped

MARK = Mark(
    listed=1000,
    stored=1000,
    listed_bytes=10_000,
    uncommitted=5,
    committed=900,
    entries_promised=950,
    candidates=95,
    candidate_bytes=950,
    kept={},
)


def names(mark: Mark, **settings: float) -> list[str]:
    return [guard.guard for guard in guards.tripped(mark, CollectionSettings.model_validate(settings))]


class TestTheLiveSet:
    def test_nothing_committed_although_commits_promise_entries_stops_the_run(self) -> None:
        with pytest.raises(GuardTripped, match=r"empty live set: .*count 950 entries, and 95 objects would go"):
            guards.require_live_set(replace(MARK, committed=0))

    def test_uncommitted_data_does_not_make_up_for_it(self) -> None:
        with pytest.raises(GuardTripped):
            guards.require_live_set(replace(MARK, committed=0, uncommitted=1000))

    @pytest.mark.parametrize(
        "mark",
        [
            MARK,
            replace(MARK, committed=1),
            replace(MARK, committed=0, candidates=0),
            replace(MARK, committed=0, entries_promised=0),
            replace(MARK, committed=0, entries_promised=None),
        ],
    )
    def test_otherwise_it_goes_on(self, mark: Mark) -> None:
        guards.require_live_set(mark)


class TestAmounts:
    def test_usual_ones_pass(self) -> None:
        assert names(MARK) == []
        assert names(replace(MARK, listed=0, stored=0, candidates=0)) == []

    @given(st.integers(1, 10_000), st.integers(0, 10_000), st.integers(0, 100))
    def test_a_share_is_exceeded_by_more_than_it(self, listed: int, candidates: int, percent: int) -> None:
        tripped = "share of candidates" in names(
            replace(MARK, stored=listed, candidates=candidates), max_candidate_share=percent / 100
        )
        assert tripped == (candidates * 100 > listed * percent)

    def test_candidates_of_nothing_exceed_any_share(self) -> None:
        assert names(replace(MARK, stored=0, candidates=1)) == ["share of candidates"]

    @pytest.mark.parametrize(("candidates", "expected"), [(94, []), (95, []), (96, ["number of candidates"])])
    def test_a_number_is_exceeded_by_one_more(self, candidates: int, expected: list[str]) -> None:
        assert names(replace(MARK, candidates=candidates), max_candidates=95) == expected

    def test_both_are_told_with_figures_and_the_setting_that_lifts_them(self) -> None:
        found = guards.tripped(
            replace(MARK, candidates=600), CollectionSettings(max_candidates=10, max_candidate_share=0.25)
        )
        assert [str(guard) for guard in found] == [
            "guard share of candidates: 600 of 1,000 stored objects would go, 60.0%, more than 25.0%. "
            "Look at the candidates; if they are right, raise collection.max_candidate_share",
            "guard number of candidates: 600 objects would go, more than 10. "
            "Look at the candidates; if they are right, raise collection.max_candidates",
        ]

    def test_all_may_go_where_the_settings_say_so(self) -> None:
        assert names(replace(MARK, candidates=1000), max_candidate_share=1) == []


def test_a_mark_fits_into_json() -> None:
    assert json.loads(json.dumps(MARK.to_dict()))["entries_promised"] == 950
