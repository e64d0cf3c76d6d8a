"""Seeded bugs that tests of the run find: each guard call left out, and each figure changed that such a call uses.

If the small worlds of histories cannot show a bug, or several checks back each other up, a test of the run shows it:
with the bug that test fails. So it is with the search for staged objects that the server does not list: samples hold
every object of a small world, and every path is looked up. Others are in readers, and in checks inside of other checks.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits, expiring, guards, make_step, reporting, run, standing_approvals
from lakefs_gc_assets.collector.commits import LiveCommits
from lakefs_gc_assets.collector.engine.local import ArrowRows
from lakefs_gc_assets.collector.frame import files, frames
from lakefs_gc_assets.collector.frame.files import Manifest, StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    DELETED_REPORT,
    LIVE,
    PENDING_DF,
    UNCOMMITTED_DF,
    CandidateFigures,
    CommittedFigures,
    DeletedFigures,
    ReasonsToStay,
    StoredFigures,
)
from lakefs_gc_assets.collector.incremental import checkpoint, earlier_runs, gap_check, planning
from lakefs_gc_assets.collector.incremental.checkpoint import BaseCheckpoint, find_stored_live
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
from lakefs_gc_assets.collector.live.commits_under_way import SlowestHooks
from lakefs_gc_assets.collector.live.contents import ContentSample
from lakefs_gc_assets.collector.live.current import (
    Committed,
    KnownLive,
    Samples,
    Unread,
    ask_committed,
    find_known_live,
    find_unread,
    prepare_uncommitted,
    read_reasons,
)
from lakefs_gc_assets.collector.live.facts import FactFile, FactKind
from lakefs_gc_assets.collector.live.facts_of_ranges import SIZES
from lakefs_gc_assets.collector.live.hidden import clear_hidden
from lakefs_gc_assets.collector.live.live_files import RangeRecords
from lakefs_gc_assets.collector.live.uncommitted import StagedSample
from lakefs_gc_assets.collector.quarantine import purge
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck, PurgeVerdict, plan_purge
from lakefs_gc_assets.collector.records import across_runs, plan, records_json, report
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.repository.repository import Moment, OpenRepository
from lakefs_gc_assets.collector.retention import rules
from lakefs_gc_assets.collector.run import mark, sweep_candidates
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import recheck, sweeping
from lakefs_gc_assets.collector.sweep.recheck import Validity, find_live_again
from lakefs_gc_assets.collector.sweep.sweeping import Sweep
from lakefs_gc_assets.errors import CollectionError, CorruptFile, ObjectNotFound
from lakefs_gc_assets.lakefs.api.models import LakeFSApi, ObjectStats, RetentionRules
from lakefs_gc_assets.storage.interface import ObjectStore, head_if_there
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.signing import SignedStore, Signer
from lakefs_gc_assets_tests.collector import test_guards, test_reporting, test_run_guards
from lakefs_gc_assets_tests.collector import test_run_guards as tests
from lakefs_gc_assets_tests.collector.frame import test_files
from lakefs_gc_assets_tests.collector.incremental import test_limited_runs, test_planning
from lakefs_gc_assets_tests.collector.live import (
    test_contents,
    test_facts_of_ranges,
    test_facts_of_ranges_metaranges,
    test_uncommitted,
    test_uncommitted_preparations,
)
from lakefs_gc_assets_tests.collector.live.test_contents import EncryptingStore, World
from lakefs_gc_assets_tests.collector.live.test_hidden import TestListing
from lakefs_gc_assets_tests.collector.live.test_known_live import (
    test_of_a_range_whose_metarange_counts_otherwise_the_fact_is_not_believed,
)
from lakefs_gc_assets_tests.collector.live.test_known_sizes import test_a_range_without_facts_is_read
from lakefs_gc_assets_tests.collector.past_runs import empty_repository
from lakefs_gc_assets_tests.collector.quarantine import test_purge
from lakefs_gc_assets_tests.collector.records import test_plan
from lakefs_gc_assets_tests.collector.retention import test_rules
from lakefs_gc_assets_tests.extensions.branches.branch_bugs import BRANCH_BUGS
from lakefs_gc_assets_tests.extensions.lifecycle.lifecycle_bugs import LIFECYCLE_BUGS
from lakefs_gc_assets_tests.runs.made_ranges import range_records
from lakefs_gc_assets_tests.simulation import test_compaction, test_limits
from lakefs_gc_assets_tests.simulation.bug import (
    UNNAMED_LEFT_OUT,
    ArrowStep,
    Bug,
    Replacement,
    TestedBug,
    ignored,
    replaced,
    without_call,
    without_unnamed,
)
from lakefs_gc_assets_tests.simulation.flow_bugs import TESTED_CHAIN_BUGS, TESTED_RETENTION_BUGS
from lakefs_gc_assets_tests.simulation.playing import Kind
from lakefs_gc_assets_tests.storage.test_signing import (
    test_a_file_that_was_signed_for_another_run_or_repository_is_refused,
    test_a_file_without_a_signature_is_refused,
)


def _own_commits_alone(step: ArrowStep, repository: Any, live: Any, known: frozenset[str]) -> Unread:
    """Skips the commits of other repositories."""
    if repository is step.repository:
        return find_unread(step, repository, live, known)
    return Unread(repository, live.source, (), range_records([]), ())


def _alone(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Requests data of this repository alone."""

    def asked(step: ArrowStep, *more: Any, **named: Any) -> Any:
        samples = {name: Samples(given.heads[:1], given.staged[:1]) for name, given in named.items()}
        return ask(replace(step, repository=replace(step.repository, others=())), *more, **samples)

    return asked


def _nothing_is_live(self: LiveCheck[Any], moved: object) -> PurgeVerdict:
    """Takes everything that has been in quarantine long enough for garbage."""
    return PurgeVerdict(frozenset(), frozenset(), Moment.now(self._step.repository.clock))


def _nothing_staged_elsewhere(*arguments: object) -> Any:
    return LIVE.empty_table()


AROUND_BUGS: dict[str, Bug] = {
    "other repositories: staged references not asked for": replaced(
        (other_repositories, "staged_elsewhere", _nothing_staged_elsewhere)
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


_contents, _Learned, _within, _listed = contents._contents, contents._Learned, hidden._choose_contents, hidden._listed
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
    return _in_a_world(test, test_contents.look_at_all)


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


_REQUESTS, _BOUND = test_contents.TestRequests(), test_contents.TestBoundOfCandidates()

HIDDEN_BUGS: dict[str, TestedBug] = {
    "any ETag taken for the MD5": TestedBug(
        replaced((contents, "_ask_md5", _etag_as_md5)),
        _looking(test_contents.test_plain_objects_say_nothing_of_an_encrypted_one_beside_them),
    ),
    "sizes that clients named believed": TestedBug(
        replaced((contents, "_ask_md5", _any_size)),
        _looking(test_contents.test_a_committed_object_of_another_size_than_was_named_is_not_read),
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
        replaced((hidden, "_choose_contents", _nothing_left_out)),
        _looking(test_contents.test_a_content_at_many_paths_does_not_keep_all_others),
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


def _in_purge_world(test: Callable[[test_purge.World], None]) -> Callable[[], None]:
    """Runs the test in a repository with copies in quarantine, in its own folder."""

    @wraps(test)
    def once() -> None:
        with TemporaryDirectory() as folder:
            test(test_purge.World(Path(folder)))

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
        without_call(checkpoint, "require_frames", planning.find_newest, ()),
        _with_repository(test_planning.test_a_frame_that_is_gone_or_was_made_again_is_named, PENDING_DF.name),
    ),
}
"""Seeded bugs by name."""


_describe, _staged_samples, _dump = run.describe_committed, uncommitted.staged_samples, commits.complete_dump
_once, _deleter = sweeping.sweep_once, sweeping._deleter
_newest_sweep, _approve = planning.newest_sweep, sweeping.approve
_files_of, _track = facts.files_of, run.store_tracked_ranges
_verified, _sign = SignedStore._verified, Signer._sign


def _no_names(addresses: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray]:
    return (pa.nulls(len(addresses), pa.string()),) * 2


_NO_GAP = CandidateFigures({}, (), missing=0, expected=0, lost=0, named_again=0)


def _describing(**changes: Any) -> Bug:
    """Drops facts from the figures of the third step."""

    def describe(*arguments: Any) -> CommittedFigures:
        return replace(_describe(*arguments), **changes)

    return replaced((run, "describe_committed", describe))


def _no_nested(**figures: Any) -> StoredFigures:
    return StoredFigures(**{**figures, "nested_namespaces": ()})


def _all_known(**figures: Any) -> StoredFigures:
    return StoredFigures(**{**figures, "repositories_unknown": None})


def _of_the_listing(figures: Callable[..., StoredFigures]) -> Bug:
    """Changes figures of the first step, without the recheck that would hide it."""
    return Bug(
        lambda: ((frames, "StoredFigures", figures), (guards, "require_own_namespace", ignored)), (run.list_stored,)
    )


def _commits_stay(*arguments: Any, commits_expire: bool, **named: Any) -> tuple[StagedSample, ...]:
    """Treats entries that a commit holds as seen, though that commit may expire."""
    return _staged_samples(*arguments, commits_expire=False, **named)


def _unnamed_at_the_mark_alone() -> tuple[Replacement, ...]:
    """Treats ranges that no commit names as orphans in the recheck."""

    def ask(step: ArrowStep, *more: Any) -> Committed:
        return replace(ask_committed(step, *more), unnamed=None)

    return ((recheck, "ask_committed", ask),)


def _dump_at_once(repository: OpenRepository, *more: Any, **named: Any) -> commits.Dump:
    """Requests a dump right after uncommitted data."""
    settings = repository.settings.model_copy(update={"wait_before_dump_seconds": 0.0})
    return _dump(replace(repository, settings=settings), *more, **named)


def _valid_from_now(step: ArrowStep, valid: Validity, *more: Any) -> Any:
    """Trusts a recheck from its end on, however long it took."""
    return _deleter(step, Validity.begin(step.repository.store, step.plan.run_id, valid.span), *more)


def _reasons_read_late(asking: object) -> tuple[Replacement, ...]:
    """A module that rechecks reads the reasons that keep commits after uncommitted data."""

    def ask(step: ArrowStep, until: datetime, known: Any, before: Any = None, **named: Any) -> Committed:
        return ask_committed(step, until, known, read_reasons(step), **named)

    return ((asking, "ask_committed", ask),)


def _later_heads_alone(step: ArrowStep, *rows: Any, before: object = (), **named: Any) -> Any:
    """Looks up hidden entries by the heads of the refs dump alone."""
    return clear_hidden(step, *rows, **named)


def _reasons_without(**parts: Any) -> Bug:
    """The mark forgets some reasons that kept commits before uncommitted data was requested."""

    def read(step: ArrowStep) -> ReasonsToStay | None:
        reasons = read_reasons(step)
        return None if reasons is None else replace(reasons, **parts)

    return replaced((run, "read_reasons", read))


def _any_version(kind: FactKind, *where: Any) -> list[FactFile]:
    """Accepts facts of other versions."""
    versions = (kind.version - 1, kind.version, kind.version + 1)
    return [file for version in versions for file in _files_of(replace(kind, version=version), *where)]


def _own_files(step: ArrowStep, kind: FactKind, **about: bool) -> list[FactFile]:
    """Uses only facts that this run recorded."""
    return _files_of(kind, facts.list_files(step.repository.store, references.facts_folder(step, kind).key))


def _track_named(step: ArrowStep, found: Committed) -> str | None:
    """Tracks only ranges that commits name."""
    return _track(step, replace(found, unnamed=None))


def _asks_for_ever(step: ArrowStep, *more: Any) -> StoredFrame[DeletedFigures]:
    with suppress(CollectionError):
        return _once(step, *more)
    return step.unfinished(DELETED_REPORT, DeletedFigures(swept=True), ())


def _newest_of_any_flow(
    store: ObjectStore, before: str | None = None, among: int | None = None, *, committed: bool = False
) -> Plan | None:
    """Builds on a run that listed nothing. Ids of newer runs sort first."""
    newest = (_newest_sweep(store, before, among, committed=each) for each in (False, True))
    return min(filter(None, newest), key=lambda each: each.run_id, default=None)


def _taken_from_any(step: ArrowStep, committed: Committed) -> KnownLive[ArrowRows]:
    """Takes the committed addresses of any previous run, as if it had been limited."""
    read = plan.read
    with mock.patch.object(plan, "read", lambda store, run_id: replace(read(store, run_id), limited=True)):
        return find_stored_live(step, committed)


def _ranges_of_any_attempt(store: ObjectStore, earlier: Plan, committed: StoredFrame[CommittedFigures]) -> RangeRecords:
    tracked = committed.figures.tracked_sha256
    assert tracked is not None
    return checkpoint.read_ranges(store, earlier.run_id, committed.manifest.span.attempt, tracked)


def _nothing_deleted(step: ArrowStep, **about: Any) -> Any:
    return step.engine.table(pa.table({"address": pa.array([], pa.string())}))


def _nothing_deleted_since(step: ArrowStep, moment: datetime) -> Any:
    return step.engine.table(earlier_runs.DELETIONS.empty_table())


def _any_content(self: BaseCheckpoint, step: ArrowStep, kind: Any, digest: str) -> Any:
    return step.stored_of(self.run_id, kind).rows(step.engine)


def _nothing_staged(step: ArrowStep, found: Committed, asked: Any, *more: Any) -> KnownLive[Any]:
    """Looks up only the examined addresses, not the uncommitted ones."""
    return find_known_live(step, found, [frame for frame in asked if frame.name != UNCOMMITTED_DF.name], *more)


def _any_attempt(step: ArrowStep) -> BaseCheckpoint | None:
    """Builds on an earlier run of any attempt."""
    return None if step.plan.base_run is None else BaseCheckpoint(step.repository.store, step.plan.base_run)


def _approve_any(step: ArrowStep, candidates: Any) -> bool:
    """Accepts an approval for any candidates."""
    _approve(step, candidates)
    return plan.read_approval(step.repository.store, step.plan.run_id) is not None


def _guarding(owner: object, name: str, caller: Callable[..., object], test: Callable[[], None]) -> TestedBug:
    return TestedBug(without_call(owner, name, caller), test)


_ATTEMPTS, _ORDER, _GUARDS = tests.TestAttempts(), tests.TestOrder(), tests.TestGuards()
_RECHECK, _RETENTION, _OPTIMIZED, _FOLLOWING, _PURGE = (
    tests.TestRecheck(),
    tests.TestRetention(),
    tests.TestOptimized(),
    tests.TestFollowingExpiry(),
    tests.TestPurge(),
)
_UNLOCKED = tuple((owner, "verify", ignored) for owner in (sweeping, sweeping))


def _nothing_compacted(step: ArrowStep, repository: OpenRepository, live: LiveCommits, *more: object) -> Unread:
    return Unread(repository, live.source, (), range_records([]), ())


def _unsigned_believed(store: SignedStore, key: str, stored: bytes) -> bytes:
    """Rejects a wrong signature, but accepts a missing one."""
    try:
        return _verified(store, key, stored)
    except CorruptFile as refusal:
        if "it is not signed" not in str(refusal):
            raise
        return stored


def _sign_anywhere(self: Signer, secret: bytes, key: str, data: bytes | bytearray) -> str:
    """Signs a content regardless of its run and repository."""
    return _sign(replace(self, namespace=""), secret, "", data)


def _everything(step: ArrowStep, eligible: object) -> object:
    return eligible


TESTED_BUGS: dict[str, TestedBug] = {
    "signatures: a file without one believed": TestedBug(
        replaced((SignedStore, "_verified", _unsigned_believed)), test_a_file_without_a_signature_is_refused
    ),
    "signatures: a file of another run or repository believed": TestedBug(
        replaced((Signer, "_sign", _sign_anywhere)),
        test_a_file_that_was_signed_for_another_run_or_repository_is_refused,
    ),
    "limited to objects: others deleted too": TestedBug(
        replaced((run, "restrict_to_plan", _everything)),
        _GUARDS.test_a_run_that_is_limited_to_an_object_deletes_no_other,
    ),
    "compacted bases taken for nothing": TestedBug(
        without_unnamed(replaced((current, "find_compacted", _nothing_compacted))),
        test_compaction.test_what_is_compacted_while_the_server_lists_it_is_live_at_the_mark,
    ),
    "recheck: what is live for now not asked again": TestedBug(
        without_unnamed(without_call(Committed, "provisional_addresses", find_live_again, [])),
        test_compaction.test_what_is_compacted_while_the_server_lists_it_again_is_live_at_the_recheck,
    ),
    # Guards that the earlier simulated run lacked.
    "brought back since: not asked": _guarding(
        across_runs, "require_not_restored_since", sweep_candidates, _GUARDS.test_objects_that_were_brought_back_since
    ),
    "own addresses: not asked": _guarding(
        other_repositories,
        "require_own_addresses",
        sweep_candidates,
        _GUARDS.test_addresses_that_the_server_spells_otherwise,
    ),
    "recheck: source of commits not compared": _guarding(
        files, "require_same_source", find_live_again, _RECHECK.test_commits_come_from_the_same_source
    ),
    "recheck: guards of the rules not raised": _guarding(
        recheck, "require_retention_holds", find_live_again, _RECHECK.test_the_rules_hold
    ),
    "hooks without a time limit accepted": _guarding(
        guards, "require_limited_commits", sweeping.wait_for_recheck, _RECHECK.test_hooks_without_a_time_limit
    ),
    "hooks not looked for": TestedBug(
        replaced((run, "find_slowest_hooks", lambda repository: SlowestHooks())),
        _RECHECK.test_it_waits_as_long_as_hooks_can_hold_a_commit,
    ),
    "recheck: other repositories not asked for": _guarding(
        recheck,
        "require_own_namespace",
        find_live_again,
        _RECHECK.test_a_repository_that_was_made_on_this_namespace_since_the_mark,
    ),
    "recheck: branches not counted": _guarding(
        guards, "require_branches", find_live_again, _RECHECK.test_branches_that_are_gone_since_the_mark
    ),
    "recheck: uncommitted data not compared": _guarding(
        recheck,
        "require_uncommitted_kept",
        find_live_again,
        _RECHECK.test_uncommitted_data_that_is_gone_since_the_mark,
    ),
    "commits that expire taken for lasting": TestedBug(
        replaced((uncommitted, "staged_samples", _commits_stay)),
        _RETENTION.test_what_is_staged_by_an_address_that_uncommitted_data_leaves_out,
    ),
    "figures: no nested namespaces": TestedBug(
        _of_the_listing(_no_nested),
        _GUARDS.test_a_namespace_inside_of_this_one,
    ),
    "figures: other repositories taken for none": TestedBug(
        _of_the_listing(_all_known),
        _GUARDS.test_other_repositories_that_the_server_does_not_list,
    ),
    "ranges that no commit names taken for orphans": TestedBug(
        replaced(UNNAMED_LEFT_OUT), tests.test_what_another_repository_has_committed_here_stays
    ),
    "recheck: ranges that no commit names taken for orphans": TestedBug(
        Bug(_unnamed_at_the_mark_alone), _RECHECK.test_what_another_repository_has_committed_here_since_the_mark_stays
    ),
    "figures: no branches before": TestedBug(
        _describing(branches_before=None), _GUARDS.test_branches_that_are_gone_since_an_earlier_run
    ),
    "figures: no guards of the rules": TestedBug(
        _describing(retention_guards=()), _RETENTION.test_the_report_of_a_dry_run_tells_of_guards_of_the_rules
    ),
    "reasons before the recheck forgotten": TestedBug(
        replaced((recheck, "read_reasons", lambda step: None)),
        _RETENTION.test_a_recheck_knows_the_heads_there_were_before_it_asked_for_uncommitted_data,
    ),
    "reasons before the mark forgotten": TestedBug(
        replaced((run, "read_reasons", lambda step: None)),
        _RETENTION.test_a_head_that_is_gone_before_refs_are_dumped_stays,
    ),
    "tags before the mark forgotten": TestedBug(
        _reasons_without(tags={}), _RETENTION.test_a_tag_that_is_gone_before_refs_are_dumped_keeps_its_commit
    ),
    "rules before the mark forgotten": TestedBug(
        _reasons_without(rules=RetentionRules(0, {})),
        _RETENTION.test_rules_that_are_shortened_before_refs_are_dumped_keep_their_commits,
    ),
    "policy before the mark forgotten": TestedBug(
        _reasons_without(policy=""), _RETENTION.test_a_pin_that_is_gone_before_refs_are_dumped_keeps_its_commit
    ),
    "recheck: reasons read after uncommitted data": TestedBug(
        Bug(partial(_reasons_read_late, recheck)),
        _RETENTION.test_a_head_that_is_gone_once_uncommitted_data_was_asked_for_stays,
    ),
    # Attempts and order.
    "uncommitted data: listing of any attempt": _guarding(
        Step, "require_attempt", run.read_uncommitted, _ATTEMPTS.test_uncommitted_data_is_not_asked_for
    ),
    "commits: uncommitted data of any attempt": _guarding(
        Step, "require_attempt", run.read_committed, _ATTEMPTS.test_commits_are_not_asked_for
    ),
    "mark: frames of any attempt": _guarding(Step, "require_attempt", mark, _ATTEMPTS.test_nothing_is_marked),
    "sweep: candidates of any attempt": _guarding(Step, "require_attempt", run.sweep, _ATTEMPTS.test_nothing_is_swept),
    "frame made of any attempt": _guarding(
        Step, "require_attempt", Step.complete, _ATTEMPTS.test_no_frame_is_made_of_it
    ),
    "mark: frames in any order": _guarding(
        files,
        "require_safe_order",
        mark,
        _ORDER.test_nothing_is_marked_by_uncommitted_data_that_is_newer_than_the_commits,
    ),
    "sweep: inputs made again": _guarding(
        sweeping, "require_inputs", run.sweep, _ORDER.test_nothing_is_swept_whose_commits_were_read_again
    ),
    "recheck: inputs made again": _guarding(
        sweeping,
        "require_inputs",
        sweeping.sweep_once,
        _ORDER.test_nothing_is_swept_whose_commits_were_read_again_while_it_waited,
    ),
    "approval of any candidates": TestedBug(
        replaced((sweeping, "approve", _approve_any)), _ORDER.test_an_approval_is_of_these_very_candidates
    ),
    "later step of any windows": TestedBug(
        replaced((make_step, "require_windows", ignored)), _ORDER.test_a_later_step_is_of_the_windows_of_the_plan
    ),
    "run begun again after its end": TestedBug(
        replaced((report, "require_not_ended", ignored)),
        _ORDER.test_a_run_that_ended_well_is_not_begun_again,
    ),
    "clocks may disagree": _guarding(
        guards, "require_clocks_agree", planning.make_plan, _ORDER.test_clocks_that_disagree_end_it
    ),
    "report may lack candidates": _guarding(
        sweeping, "require_all_decided", run.sweep, _ORDER.test_every_candidate_is_decided_about
    ),
    # Guards of a sweep.
    "guards of amount not raised": TestedBug(
        without_call(guards, "tripped", sweep_candidates, ()), _GUARDS.test_the_guards_of_amount
    ),
    "gap in the listing not looked for": TestedBug(
        replaced((gap_check, "find_gap", lambda *arguments: _NO_GAP)), _GUARDS.test_a_gap_in_the_listing
    ),
    "losses looked for in runs that list everything alone": TestedBug(
        replaced((gap_check, "deleted_before", _nothing_deleted)),
        _OPTIMIZED.test_what_earlier_runs_deleted_and_somebody_staged_again_is_reported,
    ),
    "run limited to some windows takes the rest for gone": TestedBug(
        replaced((gap_check, "lists_everything", lambda plan, figures: True)),
        _OPTIMIZED.test_a_run_limited_to_some_windows_looks_whether_what_it_did_not_list_is_lost,
    ),
    "every loss taken for what expired by rule": TestedBug(
        replaced((gap_check, "select_expired", lambda step, gone, count, find_read: gone)),
        _OPTIMIZED.test_what_earlier_runs_deleted_and_somebody_staged_again_is_reported,
    ),
    "what expired by rule taken for a loss": TestedBug(
        replaced((gap_check, "find_expired_then", lambda step, rows: {})),
        _GUARDS.test_what_a_branch_on_an_expired_commit_names_is_no_loss,
    ),
    "mark: empty live set accepted": _guarding(
        guards,
        "require_live_set",
        mark,
        _GUARDS.test_nothing_live_at_the_mark_which_does_not_wait_for_a_check_to_say_so,
    ),
    "sweep: empty live set accepted": _guarding(
        guards,
        "require_live_set",
        sweep_candidates,
        _GUARDS.test_nothing_live_at_a_mark_that_somebody_sweeps_all_the_same,
    ),
    "overtaken run sweeps": _guarding(
        run, "require_not_overtaken", sweep_candidates, _GUARDS.test_a_newer_run_that_swept
    ),
    "standing approval not read again": _guarding(
        standing_approvals,
        "require_covered",
        sweeping.standing_approval,
        _GUARDS.test_a_standing_approval_that_ended_or_was_withdrawn_since_it_was_used,
    ),
    "standing approval not read before a batch": _guarding(
        sweeping,
        "require_standing",
        Sweep.verify_permitted,
        _GUARDS.test_a_standing_approval_withdrawn_during_the_sweep,
    ),
    "what other runs deleted since the listing not asked": TestedBug(
        replaced((sweeping, "deleted_since", _nothing_deleted_since)),
        _GUARDS.test_what_an_older_run_deleted_since_the_listing_is_left_out,
    ),
    "heads before uncommitted data not looked up": TestedBug(
        replaced((run, "clear_hidden", _later_heads_alone)),
        test_limits.TestHardResetsThatHideAStagedObject().test_a_second_one_that_hides_it_again_keeps_it,
    ),
    "multipart seen a moment ago": TestedBug(
        replaced((earlier_runs, "MULTIPART_SIGHTING_SECONDS", 0)),
        tests.test_what_was_uploaded_in_parts_was_seen_long_before_the_listing,
    ),
    # Waits, and how long a recheck stays valid.
    "recheck right after the listing": _guarding(
        sweeping,
        "wait_for_recheck",
        sweep_candidates,
        _RECHECK.test_it_waits_until_uncommitted_data_is_some_minutes_old,
    ),
    "recheck believed from its end": TestedBug(
        replaced((sweeping, "_deleter", _valid_from_now)),
        _RECHECK.test_it_is_not_believed_for_long_and_not_asked_for_ever,
    ),
    "recheck believed from before its samples": TestedBug(
        replaced((sweeping, "sample_staged", lambda step: None)),
        _RECHECK.test_samples_of_many_branches_may_take_longer_than_it_is_believed,
    ),
    "recheck believed for ever": TestedBug(
        replaced((Sweep, "is_over", lambda self: False)),
        _RECHECK.test_it_is_not_believed_for_long_and_not_asked_for_ever,
    ),
    "recheck asked for ever": TestedBug(
        replaced((sweeping, "sweep_once", _asks_for_ever)),
        _RECHECK.test_it_is_not_believed_for_long_and_not_asked_for_ever,
    ),
    "lock not looked at before deleting": TestedBug(
        replaced(*_UNLOCKED), _RECHECK.test_nothing_is_deleted_when_somebody_else_has_taken_the_lock
    ),
    # Checks of an optimized run's base run.
    "source of commits of the run before not compared": _guarding(
        run, "require_source_of_base_run", run.read_committed, _OPTIMIZED.test_commits_come_from_the_same_source
    ),
    "run before at any attempt": TestedBug(
        replaced((checkpoint, "open_base_checkpoint", _any_attempt)), _OPTIMIZED.test_the_run_before_was_not_made_again
    ),
    "frames of the run before with any content": TestedBug(
        replaced((BaseCheckpoint, "_rows", _any_content)), _OPTIMIZED.test_its_frames_are_those_that_its_report_names
    ),
    "run before with another minimum age": _guarding(
        planning, "_require_alike", planning.find_newest, _OPTIMIZED.test_it_had_the_same_minimum_age
    ),
    "run before whose deletions were undone": _guarding(
        planning, "_require_not_undone", planning.find_newest, _OPTIMIZED.test_nothing_came_back_since
    ),
    "run before with a later cutoff": _guarding(
        planning, "require_earlier_cutoff", planning._build_on_base_run, _OPTIMIZED.test_its_cutoff_was_not_later
    ),
    "approved run left in the index of runs": _guarding(
        earlier_runs, "forget", run.sweep, _OPTIMIZED.test_an_approved_sweep_that_died_is_not_passed_over
    ),
    # Checks of the base run of a run by retention rules.
    "run without a listing built on": TestedBug(
        replaced((planning, "newest_sweep", _newest_of_any_flow)),
        _FOLLOWING.test_no_run_of_another_flow_builds_on_one_without_a_listing,
    ),
    "run by retention rules built on": TestedBug(
        replaced((planning, "_require_alike", ignored)),
        _FOLLOWING.test_a_run_that_keeps_all_commits_builds_on_none_by_rules,
    ),
    "by rules: everything listed long ago": TestedBug(
        replaced((planning, "require_recent_full_listing", ignored)),
        _FOLLOWING.test_everything_was_listed_not_long_ago,
    ),
    "by rules: run limited to some windows builds on another one": TestedBug(
        replaced((planning, "require_every_window", ignored)), _FOLLOWING.test_it_is_not_limited_to_some_windows
    ),
    "run limited to some windows built on": TestedBug(
        replaced((checkpoint, "is_limited", lambda listed, universe: False)),
        _FOLLOWING.test_it_is_not_limited_to_some_windows,
    ),
    # Checks of the limited run whose committed addresses a limited run takes.
    "limited: addresses of any run taken": TestedBug(
        replaced((checkpoint, "find_stored_live", _taken_from_any)),
        test_limited_runs.test_nothing_is_taken_from_a_run_that_stored_only_a_part,
    ),
    "limited: addresses of another repository taken": _guarding(
        checkpoint,
        "require_own_plan",
        find_stored_live,
        test_limited_runs.test_nothing_is_taken_from_a_run_of_another_repository,
    ),
    "limited: addresses of another attempt taken": TestedBug(
        replaced((checkpoint, "_read_live_ranges", _ranges_of_any_attempt)),
        test_limited_runs.test_nothing_is_taken_from_frames_of_another_attempt,
    ),
    "limited: files not read beforehand": _guarding(
        checkpoint, "require_files", find_stored_live, test_limited_runs.test_of_damaged_files_nothing_is_taken
    ),
    "by rules: run before that failed": TestedBug(
        replaced((planning, "require_none_failed_on", ignored)), _FOLLOWING.test_no_run_that_built_on_the_same_failed
    ),
    "by rules: deleted meanwhile and pending": TestedBug(
        replaced((checkpoint, "deleted_before", _nothing_deleted)),
        _FOLLOWING.test_pending_objects_that_a_run_without_a_listing_deleted_are_left_out,
    ),
    "by rules: notes of ranges not compared with ranges": _guarding(
        current,
        "_require_facts_match",
        find_known_live,
        _FOLLOWING.test_what_is_recorded_of_ranges_is_compared_with_some,
    ),
    "by rules: notes of the run before not taken over": TestedBug(
        replaced((references, "find_fact_files", _own_files)), _FOLLOWING.test_facts_are_known_to_every_later_run
    ),
    "by rules: notes of any version believed": TestedBug(
        replaced((facts, "files_of", _any_version)),
        _FOLLOWING.test_facts_of_another_version_are_not_believed,
    ),
    "by rules: ranges that no commit names not tracked": TestedBug(
        replaced((run, "store_tracked_ranges", _track_named)),
        _FOLLOWING.test_it_looks_at_what_no_commit_named_and_only_expired_ones_name_now,
    ),
    "by rules: notes of any number of entries believed": TestedBug(
        replaced((current, "_select_fitting", lambda step, reported, records: reported)),
        test_of_a_range_whose_metarange_counts_otherwise_the_fact_is_not_believed,
    ),
    "by rules: what is staged not looked up in notes": TestedBug(
        replaced((run, "find_known_live", _nothing_staged)),
        _FOLLOWING.test_what_is_unstaged_and_held_by_ranges_that_are_known_is_not_lost,
    ),
    # Checks of a purge.
    "purge: clocks may disagree": _guarding(
        guards, "require_clocks_agree", plan_purge, _PURGE.test_clocks_that_disagree
    ),
    "purge: source of commits not compared": _guarding(
        files, "require_same_source", LiveCheck._look, _PURGE.test_commits_come_from_the_same_source
    ),
    "purge: other repositories not asked for": _guarding(
        purge,
        "require_own_namespace",
        LiveCheck._look,
        _PURGE.test_a_repository_that_was_made_on_this_namespace_since_the_run,
    ),
    "purge: guards of the rules not raised": _guarding(
        purge, "require_retention_holds", LiveCheck._look, _PURGE.test_the_rules_hold
    ),
    "purge: heads before uncommitted data not looked up": TestedBug(
        replaced((purge, "clear_hidden", _later_heads_alone)),
        _in_purge_world(test_purge.test_a_copy_that_the_head_before_uncommitted_data_hid_is_live),
    ),
    "purge: reasons read after uncommitted data": TestedBug(
        Bug(partial(_reasons_read_late, purge)),
        _PURGE.test_a_head_that_is_gone_once_uncommitted_data_was_asked_for_stays,
    ),
    "purge: empty live set accepted": _guarding(
        guards, "require_committed", LiveCheck._require_believable, _PURGE.test_nothing_live
    ),
    "purge: own addresses not asked": _guarding(
        other_repositories,
        "require_own_addresses",
        LiveCheck._require_believable,
        _PURGE.test_addresses_that_the_server_spells_otherwise,
    ),
    "purge: branches not counted": _guarding(
        guards,
        "require_branches",
        LiveCheck._require_believable,
        _PURGE.test_branches_that_are_gone_since_the_run,
    ),
    **BRANCH_BUGS,
    **HIDDEN_BUGS,
    **INNER_BUGS,
    **LIFECYCLE_BUGS,
    **TESTED_RETENTION_BUGS,
    **TESTED_CHAIN_BUGS,
}
"""Seeded bugs that a test of the run finds, by name."""

_IN_HISTORIES: dict[Kind, tuple[str, ...]] = {
    "clean": (
        "brought back since: not asked",
        "own addresses: not asked",
        "recheck: source of commits not compared",
        "hooks not looked for",
        "recheck: branches not counted",
        "recheck: uncommitted data not compared",
        "figures: no nested namespaces",
        "figures: other repositories taken for none",
        "figures: no branches before",
        "ranges that no commit names taken for orphans",
        "recheck: ranges that no commit names taken for orphans",
        "gap in the listing not looked for",
        "guards of amount not raised",
        "what other runs deleted since the listing not asked",
    ),
    "optimized": (),
    "retention": (
        "recheck: guards of the rules not raised",
        "commits that expire taken for lasting",
        "figures: no guards of the rules",
        "reasons before the recheck forgotten",
    ),
    "unified": (),
}
"""Names of bugs above that histories find as well."""
HISTORY_BUGS: dict[Kind, dict[str, Bug]] = {
    kind: {name: TESTED_BUGS[name].bug for name in names} for kind, names in _IN_HISTORIES.items()
}
"""Seeded bugs that histories find, by kind and name."""
HISTORY_BUGS["clean"] |= {
    "mark never too old": without_call(guards, "require_fresh_mark", sweep_candidates),
    "gap in shards not looked for": replaced((gap_check, "read_names_in_shards", _no_names)),
    "dump right after uncommitted data": without_unnamed(replaced((commits, "complete_dump", _dump_at_once))),
}
