import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.guards import Gauge, Mark
from lakefs_gc_assets.collector.repository.repository import Clocks
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import CollectionSettings

MARK = Mark(
    listed=1000,
    known=1000,
    listed_bytes=10_000,
    uncommitted=5,
    committed=900,
    entries_promised=950,
    candidates=95,
    candidates_bytes=950,
    missing=0,
    expected=0,
    branches=0,
)
NOW = datetime(2026, 11, 1, tzinfo=UTC)
NAMESPACE = Namespace.parse("s3://bucket/repository/")


def names(mark: Mark, **settings: float) -> list[str]:
    return [guard.guard for guard in guards.tripped(mark, CollectionSettings.model_validate(settings))]


class TestTheLiveSet:
    def test_nothing_committed_although_commits_promise_entries_stops_the_run(self) -> None:
        with pytest.raises(GuardTripped, match=r"empty live set: .*have 950 entries; 95 objects would be deleted"):
            guards.require_live_set(replace(MARK, committed=0))

    def test_uncommitted_data_does_not_make_up_for_it(self) -> None:
        with pytest.raises(GuardTripped):
            guards.require_live_set(replace(MARK, committed=0, uncommitted=1000))

    @pytest.mark.parametrize(
        "mark",
        [
            MARK,
            replace(MARK, committed=1),
            replace(MARK, committed=0, addresses_from_facts=1),
            replace(MARK, committed=0, candidates=0),
            replace(MARK, committed=0, entries_promised=0),
            replace(MARK, committed=0, entries_promised=None),
        ],
    )
    def test_otherwise_it_goes_on(self, mark: Mark) -> None:
        guards.require_live_set(mark)

    def test_one_object_or_one_entry_is_enough(self) -> None:
        with pytest.raises(GuardTripped, match=r"have 950 entries; 1 object would be deleted"):
            guards.require_live_set(replace(MARK, committed=0, candidates=1))
        with pytest.raises(GuardTripped, match=r"have 1 entry; 1 object would be deleted"):
            guards.require_committed(False, 1, 1)


class TestAmounts:
    def test_usual_ones_pass(self) -> None:
        assert names(MARK) == []
        assert names(replace(MARK, listed=0, known=0, candidates=0)) == []

    @given(st.integers(1, 10_000), st.integers(11, 10_000), st.integers(0, 100))
    def test_a_share_is_exceeded_by_more_than_it(self, listed: int, candidates: int, percent: int) -> None:
        tripped = "share of candidates" in names(
            replace(MARK, known=listed, candidates=candidates), max_candidate_share=percent / 100
        )
        assert tripped == (candidates * 100 > listed * percent)

    @pytest.mark.parametrize(
        ("candidates", "stored", "tripped"), [(10, 10, False), (10, 15, False), (11, 11, True), (11, 15, True)]
    )
    def test_a_handful_may_be_any_share_of_a_small_repository(
        self, candidates: int, stored: int, tripped: bool
    ) -> None:
        mark = replace(MARK, listed=stored, known=stored, candidates=candidates)
        assert names(mark) == (["share of candidates"] if tripped else [])

    def test_nobody_who_allows_none_is_asked_to_let_a_handful_go(self) -> None:
        assert names(replace(MARK, candidates=1), max_candidate_share=0) == ["share of candidates"]

    @pytest.mark.parametrize("stored", [0, 1])
    def test_more_candidates_than_objects_exceed_any_share(self, stored: int) -> None:
        assert names(replace(MARK, known=stored, candidates=2), max_candidate_share=1) == ["share of candidates"]
        assert names(replace(MARK, known=0, candidates=1), max_candidate_share=0.5) == ["share of candidates"]

    @pytest.mark.parametrize(("candidates", "expected"), [(94, []), (95, []), (96, ["number of candidates"])])
    def test_a_number_is_exceeded_by_one_more(self, candidates: int, expected: list[str]) -> None:
        assert names(replace(MARK, candidates=candidates), max_candidates=95) == expected

    def test_both_are_reported_with_figures_and_the_setting_that_lifts_them(self) -> None:
        found = guards.tripped(
            replace(MARK, candidates=600), CollectionSettings(max_candidates=10, max_candidate_share=0.25)
        )
        assert [str(guard) for guard in found] == [
            "guard share of candidates: 600 of 1,000 known objects would be deleted, 60.0%, more than 25.0%. "
            "Review the candidates; if they are right, raise collection.max_candidate_share",
            "guard number of candidates: 600 objects would be deleted, more than 10. "
            "Review the candidates; if they are right, raise collection.max_candidates",
        ]

    def test_windows_that_limit_the_run_are_named(self) -> None:
        limited = replace(MARK, candidates=600, limited_to="2 of 12 windows")
        (guard,) = guards.tripped(limited, CollectionSettings())
        assert "more than 50.0%, in 2 of 12 windows alone" in str(guard)

    def test_all_may_go_where_the_settings_say_so(self) -> None:
        assert names(replace(MARK, candidates=1000), max_candidate_share=1) == []


class TestGaps:
    @pytest.mark.parametrize(
        ("missing", "expected", "tripped"),
        [(0, 0, False), (0, 500, False), (5, 500, False), (6, 500, True), (1, 1, True)],
    )
    def test_a_share_of_what_the_listing_should_have(self, missing: int, expected: int, tripped: bool) -> None:
        mark = replace(MARK, missing=missing, expected=expected, missing_examples=("data/x/y",))
        assert ("gap in the listing" in names(mark)) == tripped

    def test_one_of_one_is_all_of_them(self) -> None:
        mark = replace(MARK, missing=1, expected=1, missing_examples=("data/x/y",))
        assert names(mark, max_missing_share=0.9) == ["gap in the listing"]

    @pytest.mark.parametrize(("missing", "tripped"), [(1000, False), (1001, True)])
    def test_a_number_however_small_the_share(self, missing: int, tripped: bool) -> None:
        assert ("gap in the listing" in names(replace(MARK, missing=missing, expected=10**9))) == tripped

    def test_examples_are_named_and_settings_lift_it(self) -> None:
        mark = replace(MARK, missing=9, expected=10, missing_examples=("data/x/y", "data/x/z"))
        (guard,) = guards.tripped(mark, CollectionSettings())
        assert "lacks 9 of 10 addresses" in str(guard) and "such as data/x/y, data/x/z" in str(guard)
        assert names(mark, max_missing_share=1) == []


class TestBranches:
    @pytest.mark.parametrize(
        ("before", "now", "tripped"),
        [
            (None, 0, False),
            (0, 0, False),
            (10, 5, False),
            (10, 4, True),
            (96, 12, True),
            (1, 0, True),
            (4, 40, False),
            # So few branches are merged and deleted in a day's work; no remaining branch at all is suspicious.
            (5, 2, False),
            (6, 1, False),
            (7, 1, True),
            (5, 0, True),
        ],
    )
    def test_too_many_that_are_gone(self, before: int | None, now: int, tripped: bool) -> None:
        mark = replace(MARK, branches=now, branches_before=before)
        assert names(mark) == (["number of branches"] if tripped else [])
        if tripped and before is not None:
            (guard,) = guards.tripped(mark, CollectionSettings())
            assert f"left of the {before} that existed before" in str(guard)
            with pytest.raises(GuardTripped, match=rf"{now} \w+ \w+ left of the {before}"):
                guards.require_branches(now, before, CollectionSettings())

    def test_a_setting_lifts_it(self) -> None:
        assert names(replace(MARK, branches=1, branches_before=10), max_branch_loss_share=0.9) == []
        assert names(replace(MARK, branches=0, branches_before=10), max_branch_loss_share=1) == []
        assert names(replace(MARK, branches=4, branches_before=5), max_branch_loss_share=0) == ["number of branches"]
        guards.require_branches(1, 10, CollectionSettings(max_branch_loss_share=0.9))


def test_nested_namespaces_are_never_swept() -> None:
    (guard,) = guards.tripped(replace(MARK, nested=("other",)), CollectionSettings(max_candidate_share=1))
    assert "namespaces" in guard.guard and "other" in str(guard) and "No setting lifts this guard" in str(guard)


def test_who_does_not_know_the_other_repositories_does_not_sweep() -> None:
    unknown = replace(MARK, repositories_unknown="GET /repositories: 403. Grant fs:ListRepositories")
    (guard,) = guards.tripped(unknown, CollectionSettings())
    assert guard.guard == "other repositories" and "GET /repositories: 403" in str(guard)
    assert names(unknown, allow_unknown_repositories=True) == []


def test_a_recheck_must_find_nobody_else_on_the_namespace() -> None:
    guards.require_own_namespace((), None, CollectionSettings())
    with pytest.raises(GuardTripped, match=r"guard namespaces: .*: another"):
        guards.require_own_namespace(("another",), None, CollectionSettings())
    with pytest.raises(GuardTripped, match=r"guard other repositories: .*: GET /repositories: 403"):
        guards.require_own_namespace((), "GET /repositories: 403", CollectionSettings())
    guards.require_own_namespace((), "403", CollectionSettings(allow_unknown_repositories=True))


def test_guards_of_the_retention_rules_are_passed_on() -> None:
    unknown = GuardTripped("rules of unknown branches", "mian: there is no such branch", "Correct the rules")
    assert guards.tripped(replace(MARK, retention=(unknown,)), CollectionSettings()) == (unknown,)


@pytest.mark.parametrize(
    ("lost", "marked", "tripped"), [(0, 0, False), (10, 10, False), (11, 22, False), (11, 21, True), (500, 999, True)]
)
def test_a_recheck_must_find_most_of_what_was_uncommitted(lost: int, marked: int, tripped: bool) -> None:
    if not tripped:
        guards.require_uncommitted_kept(lost, marked, CollectionSettings())
        return
    with pytest.raises(GuardTripped, match=f"{lost} of {marked} uncommitted addresses"):
        guards.require_uncommitted_kept(lost, marked, CollectionSettings())
    guards.require_uncommitted_kept(lost, marked, CollectionSettings(max_uncommitted_loss_share=1))


def test_nothing_uncommitted_may_be_lost_where_the_settings_say_so() -> None:
    with pytest.raises(GuardTripped, match="1 of 5 uncommitted addresses"):
        guards.require_uncommitted_kept(1, 5, CollectionSettings(max_uncommitted_loss_share=0))
    guards.require_uncommitted_kept(0, 5, CollectionSettings(max_uncommitted_loss_share=0))


def test_a_mark_grows_too_old() -> None:
    listed, hour = datetime(2026, 11, 1, tzinfo=UTC), timedelta(hours=1)
    guards.require_fresh_mark(listed, listed + 168 * hour, CollectionSettings())
    with pytest.raises(GuardTripped, match=r"listed at 2026-11-01 00:00:00Z, 169 hours ago"):
        guards.require_fresh_mark(listed, listed + 169 * hour, CollectionSettings())
    with pytest.raises(GuardTripped, match=r", 24,000 hours ago"):
        guards.require_fresh_mark(listed, listed + 24_000 * hour, CollectionSettings())
    guards.require_fresh_mark(listed, listed + 169 * hour, CollectionSettings(max_mark_age_hours=170))


@pytest.mark.parametrize(("minutes", "tripped"), [(15, False), (16, True)])
@pytest.mark.parametrize("clock", ["own", "server_latest", "store"])
def test_clocks_may_differ_by_half_of_the_skew(clock: str, minutes: int, tripped: bool) -> None:
    late = NOW + timedelta(minutes=minutes)
    clocks = replace(Clocks(NOW, NOW, NOW, NOW), **{clock: late})
    if not tripped:
        guards.require_clocks_agree(clocks, timedelta(minutes=30))
        return
    with pytest.raises(GuardTripped, match="0:16:00 apart, more than half of the allowed skew of 0:30:00"):
        guards.require_clocks_agree(clocks, timedelta(minutes=30))


@pytest.mark.parametrize(("going", "branches", "tripped"), [(5, 6, False), (6, 12, False), (6, 11, True)])
def test_few_branches_may_be_stale(going: int, branches: int, tripped: bool) -> None:
    if not tripped:
        guards.require_few_stale(going, branches, CollectionSettings())
        return
    with pytest.raises(GuardTripped, match=r"6 of 11 branches would be deleted, 54.5%, more than 50.0%"):
        guards.require_few_stale(going, branches, CollectionSettings())
    guards.require_few_stale(going, branches, CollectionSettings(max_branch_loss_share=0.6))


def test_metadata_is_swept_only_by_its_sole_writer() -> None:
    guards.require_sole_writer(CollectionSettings(keep_old_unnamed_ranges=False))
    with pytest.raises(GuardTripped, match="another server may have committed them"):
        guards.require_sole_writer(CollectionSettings(keep_old_unnamed_ranges=True))


class TestRules:
    """Guards that retention rules trip."""

    def test_rules_of_unknown_branches_and_lost_pins(self) -> None:
        found = list(guards.list_rule_guards(["mian: no such branch"], ["abc", "def"], CollectionSettings()))
        assert [str(guard) for guard in found] == [
            "guard rules of unknown branches: mian: no such branch. If a name is misspelt, data of the intended one is "
            "kept for too short a time. Correct the rules, or set collection.allow_rules_of_unknown_branches if the "
            "branch or tag was deleted or does not exist yet",
            "guard pinned commits: the policy pins commits that the repository does not have: abc, def. Correct the "
            "ids in the policy, or remove them",
        ]

    def test_a_setting_allows_unknown_branches_alone(self) -> None:
        allowed = CollectionSettings(allow_rules_of_unknown_branches=True)
        assert list(guards.list_rule_guards(["mian"], [], allowed)) == []
        assert [guard.guard for guard in guards.list_rule_guards(["mian"], ["abc"], allowed)] == ["pinned commits"]
        assert list(guards.list_rule_guards([], [], CollectionSettings())) == []


class TestCommitsUnderWay:
    def test_hooks_without_a_time_limit_stop_a_sweep(self) -> None:
        with pytest.raises(
            GuardTripped, match=r"guard commits under way: .*_lakefs_actions/a.yaml on branch main: Lua"
        ):
            guards.require_limited_commits("_lakefs_actions/a.yaml on branch main: Lua", CollectionSettings())

    def test_not_if_the_settings_say_how_long_a_commit_lasts_or_all_hooks_have_a_limit(self) -> None:
        guards.require_limited_commits("_lakefs_actions/a.yaml", CollectionSettings(longest_commit_minutes=30))
        guards.require_limited_commits("", CollectionSettings())


REFUSALS: dict[str, Callable[[], NoReturn]] = {
    "the server decodes the namespace s3://bucket/repository/": lambda: guards.refuse_escaped_namespace(NAMESPACE),
    "the server gives s3://other/a for an object": lambda: guards.refuse_foreign_address("s3://other/a", NAMESPACE),
    "no branch of s3://bucket/repository/ has an object": lambda: guards.refuse_unseen_spelling(NAMESPACE),
    "s3://other/a, staged as a on main, is spelled differently": lambda: guards.refuse_staged_spelling(
        "s3://other/a", "a on main", NAMESPACE
    ),
    "s3://arn/a, staged as a on main, may be data/a": lambda: guards.refuse_access_point(
        "s3://arn/a", "a on main", "data/a", NAMESPACE
    ),
}
"""Guards on the spelling of addresses, by the beginning of their figures."""


@pytest.mark.parametrize("figures", REFUSALS)
def test_a_doubtful_spelling_is_refused(figures: str) -> None:
    with pytest.raises(GuardTripped) as caught:
        REFUSALS[figures]()
    assert caught.value.guard == "address form" and caught.value.figures.startswith(figures)
    assert caught.value.lifted_by


def all_tripped() -> list[GuardTripped]:
    """Each guard once."""
    mark = replace(
        MARK,
        committed=0,
        candidates=600,
        missing=9,
        expected=10,
        branches=0,
        branches_before=9,
        nested=("other",),
        repositories_unknown="403",
    )
    settings = CollectionSettings(max_candidates=10, keep_old_unnamed_ranges=True)
    found = [*guards.tripped(mark, settings), *guards.list_rule_guards(["mian"], ["abc"], settings)]
    requires: tuple[Callable[[], None], ...] = (
        lambda: guards.require_live_set(mark),
        lambda: guards.require_limited_commits("a file", settings),
        lambda: guards.require_uncommitted_kept(500, 500, settings),
        lambda: guards.require_fresh_mark(NOW, NOW + timedelta(days=99), settings),
        lambda: guards.require_few_stale(9, 9, settings),
        lambda: guards.require_sole_writer(settings),
        lambda: guards.require_clocks_agree(Clocks(NOW, NOW, NOW, NOW + timedelta(days=1)), timedelta(hours=1)),
        *REFUSALS.values(),
    )
    for require in requires:
        with pytest.raises(GuardTripped) as caught:
            require()
        found.append(caught.value)
    return found


def test_every_guard_says_which_setting_lifts_it_or_what_to_do_instead() -> None:
    found = {guard.guard: guard.lifted_by for guard in all_tripped()}
    settings = {name: set(re.findall(r"collection\.(\w+)", lifted_by)) for name, lifted_by in found.items()}
    assert {name for each in settings.values() for name in each} <= CollectionSettings.model_fields.keys()
    assert settings == {
        "share of candidates": {"max_candidate_share"},
        "number of candidates": {"max_candidates"},
        "gap in the listing": {"max_missing_share", "max_missing"},
        "number of branches": {"max_branch_loss_share"},
        "namespaces": set(),
        "other repositories": {"allow_unknown_repositories"},
        "empty live set": set(),
        "commits under way": {"longest_commit_minutes"},
        "loss of uncommitted data": {"max_uncommitted_loss_share"},
        "age of the mark": {"max_mark_age_hours"},
        "rules of unknown branches": {"allow_rules_of_unknown_branches"},
        "pinned commits": set(),
        "stale branches": {"max_branch_loss_share"},
        "other servers": {"keep_old_unnamed_ranges"},
        "clocks": {"clock_skew_minutes"},
        "address form": set(),
    }
    assert (
        "No setting lifts this guard" in found["namespaces"]
        and "No setting lifts this guard" in found["empty live set"]
    )


class TestHowNearTheyAre:
    @pytest.mark.parametrize(
        ("mark", "settings", "guard"),
        [
            (replace(MARK, candidates=500), {"max_candidate_share": 0.5}, "share of candidates"),
            (replace(MARK, candidates=500), {"max_candidates": 500, "max_candidate_share": 1}, "number of candidates"),
            (replace(MARK, missing=10, expected=100), {"max_missing_share": 0.1}, "gap in the listing"),
            (
                replace(MARK, missing=10, expected=100),
                {"max_missing": 10, "max_missing_share": 1},
                "gap in the listing",
            ),
            (replace(MARK, branches=10, branches_before=20), {"max_branch_loss_share": 0.5}, "number of branches"),
        ],
    )
    def test_a_guard_is_tripped_beyond_the_limit_that_its_gauge_shows(
        self, mark: Mark, settings: dict[str, float], guard: str
    ) -> None:
        setting = next(iter(settings))
        chosen = CollectionSettings.model_validate(settings)
        (gauge,) = (each for each in guards.measure(mark, chosen) if each.setting == setting)

        assert (gauge.guard, gauge.figure) == (guard, gauge.limit)
        assert names(mark, **settings) == []
        assert names(mark, **{**settings, setting: gauge.limit * 0.9}) == [guard]

    def test_branches_are_not_compared_with_what_is_not_known(self) -> None:
        shown = [gauge.guard for gauge in guards.measure(MARK, CollectionSettings())]
        assert "number of branches" not in shown and "share of candidates" in shown

    def test_each_is_a_share_or_a_number_with_its_own_figure_and_limit(self) -> None:
        mark = replace(MARK, known=200, missing=3, expected=30, branches=9, branches_before=10)
        settings = CollectionSettings(
            max_candidate_share=0.1,
            max_candidates=20,
            max_missing_share=0.3,
            max_missing=40,
            max_branch_loss_share=0.5,
        )
        assert guards.measure(mark, settings) == (
            Gauge("share of candidates", "max_candidate_share", 95 / 200, 0.1, is_share=True, floor=10, count=95),
            Gauge("number of candidates", "max_candidates", 95, 20, count=95),
            Gauge("gap in the listing", "max_missing_share", 3 / 30, 0.3, is_share=True, count=3),
            Gauge("gap in the listing", "max_missing", 3, 40, count=3),
            Gauge("number of branches", "max_branch_loss_share", 1 / 10, 0.5, is_share=True, floor=5, count=1),
        )

    def test_of_an_empty_repository_no_share_is_gone(self) -> None:
        mark = replace(MARK, known=0, candidates=1, missing=1, expected=0, branches=2, branches_before=0)
        assert [gauge.figure for gauge in guards.measure(mark, CollectionSettings())] == [1, 1, 1, 1, 0]
        assert guards.measure(replace(mark, branches_before=1), CollectionSettings())[-1].figure == 0
        assert guards.measure(replace(mark, branches=0, branches_before=1), CollectionSettings())[-1].figure == 1
