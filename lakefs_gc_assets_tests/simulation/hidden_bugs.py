"""Seeded bugs that unit tests find, each with the test that fails with it, and those of other repositories.

The first are in the search for staged objects that the server does not list. Histories hardly show them: their worlds
are so small that samples hold every object, and every path is looked up. The others are in readers, and in checks
inside of other checks.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import expiring, guards, recheck, reporting
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Manifest
from lakefs_gc_assets.collector.frame.frames import LIVE, PENDING_DF
from lakefs_gc_assets.collector.incremental import checkpoint, planning
from lakefs_gc_assets.collector.live import (
    contents,
    current,
    facts,
    facts_of_ranges,
    hidden,
    other_repositories,
    references,
    uncommitted,
)
from lakefs_gc_assets.collector.live.contents import ContentSample
from lakefs_gc_assets.collector.live.current import Unread, ask_committed, find_unread, prepare_uncommitted
from lakefs_gc_assets.collector.live.facts_of_ranges import SIZES
from lakefs_gc_assets.collector.live.uncommitted import StagedSample
from lakefs_gc_assets.collector.purge import LiveCheck, PurgeVerdict
from lakefs_gc_assets.collector.records import across_runs, records_json
from lakefs_gc_assets.collector.repository.repository import Moment
from lakefs_gc_assets.collector.retention import rules
from lakefs_gc_assets.errors import ObjectNotFound
from lakefs_gc_assets.lakefs.api.models import LakeFSApi, ObjectStats, RetentionRules
from lakefs_gc_assets.storage.interface import ObjectStore, head_if_there
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector import test_guards, test_reporting, test_run_guards
from lakefs_gc_assets_tests.collector.frame import test_files
from lakefs_gc_assets_tests.collector.incremental import test_planning
from lakefs_gc_assets_tests.collector.live import test_contents as tests
from lakefs_gc_assets_tests.collector.live import (
    test_facts_of_ranges,
    test_facts_of_ranges_metaranges,
    test_uncommitted,
    test_uncommitted_preparations,
)
from lakefs_gc_assets_tests.collector.live.test_contents import EncryptingStore, World
from lakefs_gc_assets_tests.collector.live.test_hidden import TestListing
from lakefs_gc_assets_tests.collector.live.test_known_sizes import test_a_range_without_facts_is_read
from lakefs_gc_assets_tests.collector.past_runs import empty_repository
from lakefs_gc_assets_tests.collector.records import test_plan
from lakefs_gc_assets_tests.collector.retention import test_rules
from lakefs_gc_assets_tests.runs.made_ranges import range_records
from lakefs_gc_assets_tests.simulation.bug import ArrowStep, Bug, TestedBug, ignored, replaced, without_call


def _own_commits_alone(step: ArrowStep, repository: Any, live: Any, known: frozenset[str]) -> Unread:
    """Skips the commits of other repositories."""
    if repository is step.repository:
        return find_unread(step, repository, live, known)
    return Unread(repository, live.source, (), range_records([]), ())


def _alone(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Requests data of this repository alone."""

    def asked(step: ArrowStep, *more: Any, **named: Any) -> Any:
        samples = {name: given[:1] for name, given in named.items()}
        return ask(replace(step, repository=replace(step.repository, others=())), *more, **samples)

    return asked


def _nothing_is_live(self: LiveCheck[Any], moved: object) -> PurgeVerdict:
    """Takes everything that has been in quarantine long enough for garbage."""
    return PurgeVerdict(frozenset(), frozenset(), Moment.now(self._step.repository.clock))


def _nothing_staged(*arguments: object) -> Any:
    return LIVE.empty_table()


AROUND_BUGS: dict[str, Bug] = {
    "other repositories: staged references not asked for": replaced(
        (other_repositories, "staged_elsewhere", _nothing_staged)
    ),
    "other repositories: commits not asked for": replaced((current, "find_unread", _own_commits_alone)),
    "recheck: other repositories not asked again": replaced(
        (recheck, "prepare_uncommitted", _alone(prepare_uncommitted)),
        (recheck, "ask_committed", _alone(ask_committed)),
    ),
    "purge: nothing looked for": replaced((LiveCheck, "__call__", _nothing_is_live)),
    "restoration not written down": replaced((across_runs, "write_restoration", ignored)),
}
"""Seeded bugs by name, found by histories of clean runs."""


_contents, _Learned, _within, _listed = contents._contents, contents._Learned, hidden._within, hidden._listed
_select_ranges = references.select_ranges_by_size


def _in_a_world(
    test: Callable[[World], None], choose_sizes: Callable[..., ContentSample] = contents.choose_sizes
) -> Callable[[], None]:
    """Runs the test in its own world."""

    @wraps(test)
    def alone() -> None:
        with TemporaryDirectory() as folder, mock.patch.object(hidden, "choose_sizes", choose_sizes):
            test(World(EncryptingStore(Path(folder))))

    return alone


def _looking(test: Callable[[World], None]) -> Callable[[], None]:
    return _in_a_world(test, tests.look_at_all)


def _etag_as_md5(store: ObjectStore, key: str, size: int, wanted: bool) -> tuple[bool, str | None, bool]:
    """Takes any ETag for the MD5."""
    try:
        return True, store.head(key).etag if wanted else None, wanted
    except ObjectNotFound:
        return False, None, True


def _any_size(store: ObjectStore, key: str, size: int, wanted: bool) -> tuple[bool, str | None, bool]:
    """Takes the size that a client named for the size of the object."""
    facts = head_if_there(store, key) if wanted else None
    return facts is not None or not wanted, facts.md5 if facts else None, wanted


@contextmanager
def _believing(step: object, entries: Any, *more: object) -> Iterator[Any]:
    """Takes every checksum for the MD5 of its object."""
    yield entries


def _listing_believed(objects: Any, trusted: bool, bytes_left: int) -> contents._Learned[Any]:
    """Takes ETags of a listing for MD5s on every store."""
    return _Learned(objects, True, bytes_left)


def _only_known(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes a candidate of unknown content for one that matches nothing."""
    for batch in _contents(batches):
        yield batch.filter(pc.is_valid(batch.column("etag")))


def _with_etags_of_linked(sizes: pa.Int64Array, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes checksums that clients named for the server's."""
    for batch in batches:
        yield pa.record_batch([batch.column("address"), batch.column("etag")], schema=contents._TRUE_CHECKSUMS)


def _nothing_left_out(limit: int, counted: pa.Table) -> tuple[frozenset[hidden.Content] | None, int]:
    """Takes contents above the lookup limit for not staged."""
    return _within(limit, counted)[0], 0


def _complete(api: LakeFSApi, branch: str, paths: Sequence[str]) -> tuple[Mapping[str, ObjectStats], int]:
    """Takes a path missing from a listing for deleted."""
    found, pages = _listed(api, branch, paths)
    return {path: ObjectStats(path, "", None) for path in paths} | found, pages


def _only_recorded(step: ArrowStep, range_ids: Collection[str], sizes: pa.Int64Array) -> list[str]:
    """Takes a range whose sizes are not recorded for empty."""
    known = {
        range_id
        for file in references.find_fact_files(step, SIZES)
        for range_id in facts_of_ranges.range_ids_of(facts.read(SIZES, step.repository.store, file).schema.metadata)
    }
    return _select_ranges(step, known.intersection(range_ids), sizes)


_REQUESTS, _BOUND = tests.TestRequests(), tests.TestBoundOfCandidates()

HIDDEN_BUGS: dict[str, TestedBug] = {
    "any ETag taken for the MD5": TestedBug(
        replaced((contents, "_ask_md5", _etag_as_md5)),
        _looking(tests.test_plain_objects_say_nothing_of_an_encrypted_one_beside_them),
    ),
    "sizes that clients named believed": TestedBug(
        replaced((contents, "_ask_md5", _any_size)),
        _looking(tests.test_a_committed_object_of_another_size_than_was_named_is_not_read),
    ),
    "checksums taken for the MD5 of what is committed": TestedBug(
        replaced((contents, "_without_doubtful_checksums", _believing)),
        _looking(_REQUESTS.test_of_another_etag_than_the_checksum_the_listing_says_nothing),
    ),
    "checksums that clients named taken for the server's": TestedBug(
        replaced((contents, "_computed_by_server", _with_etags_of_linked)),
        _looking(_REQUESTS.test_of_a_linked_object_the_listing_says_nothing),
    ),
    "listed ETags believed where ETags are nobody's MD5": TestedBug(
        replaced((contents, "_Learned", _listing_believed)),
        _looking(_REQUESTS.test_where_etags_are_nobodys_md5_the_listing_says_nothing),
    ),
    "unknown content taken for another": TestedBug(
        replaced((contents, "_contents", _only_known)),
        _in_a_world(_BOUND.test_few_paths_are_asked_for_and_many_candidates_not_looked_at),
    ),
    "what is not asked for taken for not staged": TestedBug(
        replaced((hidden, "_within", _nothing_left_out)),
        _looking(tests.test_a_content_at_many_paths_does_not_keep_all_others),
    ),
    "ranges that nobody noted taken for empty": TestedBug(
        replaced((references, "select_ranges_by_size", _only_recorded)), test_a_range_without_facts_is_read
    ),
    "paths that a listing lacks taken for gone": TestedBug(
        replaced((hidden, "_listed", _complete)),
        TestListing().test_a_path_that_a_listing_lacks_is_asked_for_by_itself,
    ),
}
"""Seeded bugs by name."""


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
