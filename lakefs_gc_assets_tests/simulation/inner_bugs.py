"""Seeded bugs in readers and in checks inside of other checks, each with the unit test that fails with it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lakefs_gc_assets.collector import expiring, guards, reporting
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Manifest
from lakefs_gc_assets.collector.frame.frames import PENDING_DF
from lakefs_gc_assets.collector.incremental import checkpoint, planning
from lakefs_gc_assets.collector.live import facts_of_ranges, uncommitted
from lakefs_gc_assets.collector.live.uncommitted import StagedSample
from lakefs_gc_assets.collector.records import records_json
from lakefs_gc_assets.collector.retention import rules
from lakefs_gc_assets.collector.sweep import recheck
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.collector import test_guards, test_reporting, test_run_guards
from lakefs_gc_assets_tests.collector.frame import test_files
from lakefs_gc_assets_tests.collector.incremental import test_planning
from lakefs_gc_assets_tests.collector.live import (
    test_facts_of_ranges,
    test_facts_of_ranges_metaranges,
    test_uncommitted,
    test_uncommitted_preparations,
)
from lakefs_gc_assets_tests.collector.past_runs import empty_repository
from lakefs_gc_assets_tests.collector.records import test_plan
from lakefs_gc_assets_tests.collector.retention import test_rules
from lakefs_gc_assets_tests.simulation.bug import TestedBug, replaced, without_call


def _with_repository(test: Callable[..., None], *values: object) -> Callable[[], None]:
    """Runs the test with an empty repository in its own folder, and with some of its parameters."""

    @wraps(test)
    def once() -> None:
        with TemporaryDirectory() as folder:
            test(empty_repository(Path(folder)), *values)

    return once


def _with_store(test: Callable[..., None], *values: object) -> Callable[[], None]:
    """Runs the test with an empty store, and with some of its parameters."""

    @wraps(test)
    def once() -> None:
        with TemporaryDirectory() as folder:
            test(LocalStore(Path(folder)), *values)

    return once


def _with(test: Callable[..., None], *values: object) -> Callable[[], None]:
    """Runs the test with some of its parameters."""

    @wraps(test)
    def once() -> None:
        test(*values)

    return once


_missing_samples = uncommitted.missing_samples


def _never_by_access_points(*arguments: Any) -> tuple[StagedSample, ...]:
    """Takes every object staged by an access point for one of another bucket."""
    return tuple(sample for sample in _missing_samples(*arguments) if not sample.elsewhere)


def _without_a_range(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["id"] != "b"]


_notes_with_a_range_left_out = _with_store(
    test_facts_of_ranges_metaranges.TestDamage().test_rows_that_do_not_fit_what_was_noted_of_each_metarange,
    _without_a_range,
)


INNER_BUGS: dict[str, TestedBug] = {
    "staged by an access point taken for elsewhere": TestedBug(
        replaced((uncommitted, "missing_samples", _never_by_access_points)),
        _with_store(
            test_uncommitted.TestPreparingChecked().test_an_object_that_is_staged_by_an_access_point_must_be_there
        ),
    ),
    "notes of metaranges put as they are": TestedBug(
        without_call(facts_of_ranges, "require_metaranges_whole", facts_of_ranges.put_metaranges),
        _notes_with_a_range_left_out,
    ),
    "notes of metaranges believed as they are": TestedBug(
        without_call(facts_of_ranges, "require_metaranges_whole", facts_of_ranges.read_metaranges),
        _notes_with_a_range_left_out,
    ),
    "hits in notes of some ranges taken for those of all": TestedBug(
        without_call(facts_of_ranges, "require_all_looked_up", facts_of_ranges.split_sums_and_hits),
        _with_store(test_facts_of_ranges.TestDamage().test_what_is_reported_in_part),
    ),
    "live set: committed addresses not looked at": TestedBug(
        without_call(guards, "require_committed", guards.require_live_set),
        test_guards.TestTheLiveSet().test_nothing_committed_although_commits_promise_entries_stops_the_run,
    ),
    "order: attempts not compared": TestedBug(
        without_call(files, "require_same_attempt", files.require_safe_order),
        _with(
            test_files.test_frames_of_different_attempts_are_never_combined,
            1,
            partial(replace, run_id="another"),
        ),
    ),
    "recheck: uncommitted data counted in vain": TestedBug(
        without_call(guards, "require_uncommitted_kept", recheck.require_uncommitted_kept),
        test_run_guards.TestRecheck().test_uncommitted_data_that_is_gone_since_the_mark,
    ),
    "recheck: other repositories asked for in vain": TestedBug(
        without_call(guards, "require_own_namespace", recheck.require_own_namespace),
        test_run_guards.TestRecheck().test_a_repository_that_was_made_on_this_namespace_since_the_mark,
    ),
    "check of candidates: empty live set accepted": TestedBug(
        without_call(guards, "require_live_set", reporting.find_empty_live_set),
        _with(test_reporting.test_an_empty_live_set_is_reported_where_anything_would_go, 0, 1, True),
    ),
    "records changed after they were written": TestedBug(
        without_call(records_json, "require_digest", records_json.decode),
        test_plan.test_another_plan_than_was_written_is_refused,
    ),
    "manifests changed after they were written": TestedBug(
        without_call(files, "require_digest", Manifest.from_json),
        test_files.test_a_manifest_that_was_changed_ends_the_run,
    ),
    "manifests that were changed name what expires": TestedBug(
        without_call(records_json, "require_digest", expiring._by_manifest),
        _with_repository(
            test_uncommitted_preparations.test_a_manifest_that_cannot_be_read_names_nothing, "changed", Path()
        ),
    ),
    "rules that cannot be meant": TestedBug(
        without_call(rules, "require_sane", rules.effective),
        _with(
            test_rules.test_numbers_that_cannot_be_meant,
            RetentionRules(-1, {}),
            "default_retention_days is negative (-1 days)",
        ),
    ),
    "run before whose frames were made again": TestedBug(
        without_call(checkpoint, "require_frames", planning.find, ()),
        _with_repository(test_planning.test_a_frame_that_is_gone_or_was_made_again_is_named, PENDING_DF.name),
    ),
}
"""Seeded bugs by name."""
