"""Makes the server write its uncommitted data, checks by samples that it is complete, and removes the files later.

A few staged entries of every branch are sampled before the preparation, and looked up in the written files.

The files are of no use once the run that asked for them has ended, and a server never removes them. The run states
which files are its own: in its manifest of `uncommitted_df`, in its report, and in records in its folder, which also
name the preparations of its rechecks. Records in a separate folder name the preparations for `explain`. Files of other
clients' preparations lie in the same folder, and stay.
"""

import base64
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import spread, work_ahead
from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CorruptFile, LakeFSError, LogLine, NotFound, OrderViolation, StorageError, counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.models import DiffEntry, LakeFSApi, UncommittedPage
from lakefs_gc_assets.storage.interface import (
    GivesObjects,
    ObjectStore,
    OpensStore,
    delete_all,
    fetch,
    get_if_there,
    head_if_there,
    keys_below,
)

_EMPTY_PAGE_TRIES = 20
_CONCURRENT_QUESTIONS = 32
_FILES_READ_HERE = 16
"""Maximum files that the driver reads itself: more files take longer than starting tasks."""
_FILES_AT_ONCE = 4
"""Files of uncommitted data in the driver's memory at one time: a server ends each after some 20 MB."""
_CHANGES_READ = 1000
_PATHS_TRIED = 10
_SAMPLES = 3
"""Entries of a branch to look up: a single one may have been written only because another branch holds it too."""
_TEXT = (pa.string(), pa.large_string(), pa.binary())


@dataclass(frozen=True, slots=True)
class Prepared:
    """One complete preparation of uncommitted data, or two that count together. Times are UTC.

    Attributes:
        server_run_ids: ids under which the server wrote; several if a first page was asked for again.
        files: keys of all parquet files, relative to the storage namespace.
        pages: number of answers that count: with a location, or empty and repeated by the server.
    """

    started_at: datetime
    ended_at: datetime
    server_run_ids: tuple[str, ...]
    files: tuple[str, ...]
    pages: int


@dataclass(slots=True)
class _Progress:
    run_ids: list[str] = field(default_factory=list)
    prefixes: dict[str, int] = field(default_factory=dict)
    pages: int = 0


def prepare(repository: OpenRepository, progress: Callable[[int], None] = lambda pages: None) -> Prepared:
    """Pages through `prepare_uncommited` to its end and lists the files it wrote.

    Args:
        progress: gets the number of pages so far, after each page.

    Raises:
        LakeFSError: the server fails, makes no progress, or writes outside of the storage namespace.
        OrderViolation: the server changed its run id between two pages.
        CorruptFile: the store lists fewer files than the server said that it wrote.
    """
    api, settings, clock = repository.api, repository.settings, repository.clock
    started_at = clock.now()
    state = _Progress()
    token: str | None = None
    token_since, repeats = started_at, 0
    left_behind: set[str | None] = set()
    while True:
        page = _request_trusted_page(api, token, state)
        if page.location:
            prefix = _prefix(repository.namespace, page)
            state.prefixes[prefix] = state.prefixes.get(prefix, 0) + 1
        state.pages += 1
        progress(state.pages)
        if not page.continuation_token:
            break
        _require_text(page.continuation_token)
        if page.continuation_token in left_behind:
            raise LakeFSError(
                f"prepare_uncommited returned to an earlier continuation token after {state.pages} pages, so it would "
                "never end. See the server's log, and start the collection again"
            )
        if page.continuation_token != token:
            left_behind.add(token)
            token, token_since, repeats = page.continuation_token, clock.now(), 0
            continue
        repeats += 1
        waited = (clock.now() - token_since).total_seconds()
        if repeats >= settings.prepare_page_limit or waited > settings.prepare_timeout_seconds:
            raise LakeFSError(
                f"prepare_uncommited repeated one continuation token {repeats} times in {waited:.0f} s without "
                "progress. See the server's log; if it is only slow, raise collection.prepare_timeout_seconds"
            )
    ended_at = clock.now()
    return Prepared(started_at, ended_at, tuple(state.run_ids), _written(repository.store, state), state.pages)


def _require_text(token: str) -> None:
    r"""Raises LakeFSError if a continuation token names a path that is not UTF-8: the server would skip entries there.

    A token is the path of the next entry as JSON, in base64 (`encodeGCUncommittedMark` in `pkg/api/controller.go` of
    lakeFS 1.86). Go writes each byte that is not UTF-8 as `\ufffd`, and reads it as a character that sorts behind most
    such bytes. Below a folder with such a name, that skips all further entries. A replacement character that the path
    itself has is not escaped.
    """
    with suppress(ValueError):
        mark = base64.b64decode(token).decode()
        if r"\ufffd" in mark:
            raise LakeFSError(
                "a page of prepare_uncommited ended at a path that is not UTF-8, and the server would skip staged "
                f"entries there: {mark}. Commit or reset such paths, and start the collection again"
            )


def _request_trusted_page(api: LakeFSApi, token: str | None, state: _Progress) -> UncommittedPage:
    """Requests a page until it has a location, or is repeated without one while the branches stay the same.

    A page for which no file was written has no location. A server also answers so if a branch is deleted meanwhile and
    it loses count.
    """
    page = _ask(api, token, state)
    if page.location:
        return page
    for _ in range(_EMPTY_PAGE_TRIES):
        before = {branch.id for branch in api.branches()}
        page = _ask(api, token, state)
        if not page.location:
            page = _ask(api, token, state)
        after = {branch.id for branch in api.branches()}
        if page.location or before == after:
            return page
    raise LakeFSError(
        "prepare_uncommited kept answering without a location while branches were created and deleted, so "
        "uncommitted data may be missing. Collect when fewer branches are being deleted"
    )


def _ask(api: LakeFSApi, token: str | None, state: _Progress) -> UncommittedPage:
    page = api.prepare_uncommitted(token)
    if not state.run_ids or token is None:
        state.run_ids.append(page.run_id)
    elif page.run_id not in state.run_ids:
        raise OrderViolation(
            f"prepare_uncommited changed its run id from {state.run_ids[-1]} to {page.run_id} between pages: "
            "parts of two preparations cannot be combined. Start the collection again"
        )
    return page


def _prefix(namespace: Namespace, page: UncommittedPage) -> str:
    relative = namespace.relative(page.location)
    if relative is None:
        raise LakeFSError(
            f"prepare_uncommited wrote to {page.location}, which is outside of the repository's {namespace.uri}: "
            "check that repository and object store belong together"
        )
    return relative.rstrip("/") + "/"


def _written(store: ObjectStore, state: _Progress) -> tuple[str, ...]:
    prefixes = dict.fromkeys(
        [*state.prefixes, *(f"_lakefs/retention/gc/uncommitted/{run_id}/uncommitted/" for run_id in state.run_ids)]
    )
    files: list[str] = []
    for prefix in prefixes:
        # `list_level` follows the service's own pages: a listing that ends early would miss live objects.
        keys = [each.key for each in store.list_level(prefix).objects]
        file_count = state.prefixes.get(prefix, 0)
        if len(keys) < file_count:
            raise CorruptFile(
                prefix,
                "uncommitted files",
                f"the server reported {counted(file_count, 'files')} written, but the store lists {len(keys)}"
                + ("" if keys else ": check that `store` has the endpoint and the account to which the server writes"),
            )
        files.extend(keys)
    return tuple(sorted(files))


def read_addresses(store: GivesObjects, file: str) -> pa.ChunkedArray:
    """The column `physical_address` of one file, as the server spelled it.

    Raises CorruptFile if the file is missing, is not such a parquet file, or has a null.
    """
    data = fetch(store, file)
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data))
        stored = tables.read_rows(parquet, ["physical_address"]).column("physical_address")
        if stored.type not in _TEXT:
            raise ValueError(f"physical_address is {stored.type}, not text")
        column = stored.cast(pa.string())
        column.validate(full=True)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise CorruptFile(file, "uncommitted data", f"cannot be read as parquet: {error}") from None
    if column.null_count or len(column) != parquet.metadata.num_rows:
        raise CorruptFile(
            file,
            "uncommitted data",
            f"{counted(len(column), 'addresses')}, {column.null_count} of them null, its footer says "
            f"{parquet.metadata.num_rows}",
        )
    return column


@dataclass(frozen=True, slots=True)
class StagedSample:
    """One staged entry of a branch, as the server shows it, and the addresses it may mean.

    Attributes:
        elsewhere: True if it may be an object of another bucket, which uncommitted data rightly lacks.
    """

    branch: str
    path: str
    keys: tuple[str, ...]
    physical_address: str
    elsewhere: bool = False


STAGED = pa.schema([pa.field("address", pa.string()), pa.field("branch", pa.string()), pa.field("path", pa.string())])
"""Staged entries: address, branch and path."""


def write_samples(store: ObjectStore, run_id: str, attempt: str, samples: Iterable[StagedSample]) -> None:
    """Stores branch and path of staged entries, since uncommitted data has only addresses; nothing without samples."""
    rows = [{"address": key, "branch": sample.branch, "path": sample.path} for sample in samples for key in sample.keys]
    if rows:
        tables.put(store, _samples_key(run_id, attempt), pa.Table.from_pylist(rows, STAGED))


def read_samples(store: ObjectStore, run_id: str, attempt: str) -> pa.Table:
    """Staged entries that a run stored (STAGED); no rows if it stored none. Raises CorruptFile."""
    key = _samples_key(run_id, attempt)
    data = get_if_there(store, key)
    return STAGED.empty_table() if data is None else tables.decode(STAGED, data, key, "staged entries")


def _samples_key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'uncommitted_df')}staged-{attempt}.parquet"


def staged_samples(
    api: LakeFSApi,
    namespace: Namespace,
    cutoff: datetime,
    *,
    commits_expire: bool,
    branches: Collection[str] | None = None,
) -> tuple[StagedSample, ...]:
    """Samples the first changes of branches: staged objects that must be in uncommitted data.

    These are objects inside the storage namespace whose name is older than the cutoff; a name without a time counts as
    old. A younger object may have been staged after the preparation.

    An address in another spelling than the namespace, such as s3a:// for s3://, proves nothing: servers omit it from
    uncommitted data. Such an object is assumed to be in a commit too, which is enough as long as no commit expires. An
    address by an access point counts, since a server may spell all its objects so.

    Args:
        commits_expire: True if the run applies retention rules.
        branches: branches to sample; None for all.

    Raises:
        GuardTripped: commits expire, and the address of a staged object is spelled otherwise than the namespace.
        LakeFSError: a branch cannot be listed.
    """
    if branches is None:
        branches = [branch.id for branch in api.branches()]
    with ThreadPoolExecutor(_CONCURRENT_QUESTIONS) as pool:
        samples = pool.map(lambda branch: _samples(api, namespace, branch, cutoff, commits_expire), branches)
        return tuple(sample for of_branch in samples for sample in of_branch)


def _samples(
    api: LakeFSApi, namespace: Namespace, branch: str, cutoff: datetime, commits_expire: bool
) -> list[StagedSample]:
    samples: list[StagedSample] = []
    try:
        for change in islice(_staged(api, branch), _PATHS_TRIED):
            stats = api.stat(branch, change.path)
            keys = () if stats is None else namespace.live_keys(stats.physical_address, AddressType.FULL)
            if stats is None or not keys:
                continue
            own = stats.physical_address.startswith(namespace.uri)
            if not own and commits_expire:
                guards.refuse_staged_spelling(
                    stats.physical_address, f"{change.path!r} on branch {branch!r}", namespace
                )
            # Servers of a local store spell every address so. Their repositories can be marked, but not swept.
            by_access_point = namespace.location.kind != "local" and namespace.may_lie_elsewhere(stats.physical_address)
            if (own or by_access_point) and _is_older(keys, cutoff):
                samples.append(StagedSample(branch, change.path, keys, stats.physical_address, elsewhere=not own))
            if sum(not sample.elsewhere for sample in samples) == _SAMPLES:
                break
    except NotFound:
        if any(existing.id == branch for existing in api.branches()):
            raise
    return samples


def _staged(api: LakeFSApi, branch: str) -> Iterator[DiffEntry]:
    """The first changes of a branch except removals; the very first comes from a cheaper call."""
    first = api.first_change(branch)
    if first is None:
        return
    if first.type != "removed":
        yield first
    for change in islice(api.changes(branch), _CHANGES_READ):
        if change.type != "removed" and change != first:
            yield change


def _is_older(keys: Sequence[str], cutoff: datetime) -> bool:
    issued = [time for key in keys if (time := layout.parse(key).issued_at) is not None]
    return not issued or layout.as_datetime(min(issued)) < cutoff


_SPELLED = pa.schema([pa.field("physical_address", pa.string())])
"""Addresses as the server spelled them."""


def missing_samples(
    engine: Engine[R], repository: OpenRepository, files: Sequence[str], samples: Sequence[StagedSample]
) -> tuple[StagedSample, ...]:
    """Samples that no file holds. A sample that may lie elsewhere is missing only if its object is in this store.

    If there are many files, tasks read them and return only addresses of samples.
    """
    if not samples:
        return ()
    store, namespace = repository.store, repository.namespace
    wanted = {key for sample in samples for key in sample.keys}
    wanted |= {namespace.uri + key for key in wanted}
    values = pa.array(sorted(wanted), pa.string())
    if len(files) <= _FILES_READ_HERE:
        parts = work_ahead(partial(_read_some, values, store), files, _FILES_AT_ONCE)
        spelled = {address for part in parts for address in part.column(0).to_pylist()}
    else:
        read = partial(_read_some_in_task, values, repository.opener)
        rows = engine.read(spread(files, engine.tasks), read, _SPELLED)
        spelled = {*engine.collect(rows).column(0).to_pylist()}
    known = {key for address in spelled for key in namespace.live_keys(address, AddressType.BY_PREFIX_DEPRECATED)}
    missing = (sample for sample in samples if known.isdisjoint(sample.keys))
    return tuple(sample for sample in missing if not sample.elsewhere or _is_there(store, sample.keys))


def _read_some(values: pa.StringArray, store: GivesObjects, file: str) -> pa.Table:
    """Distinct addresses of a file that are among the given ones."""
    column = read_addresses(store, file)
    return pa.table([column.filter(pc.is_in(column, value_set=values)).unique()], schema=_SPELLED)


def _read_some_in_task(values: pa.StringArray, opener: OpensStore, file: str) -> Iterator[pa.RecordBatch]:
    yield from _read_some(values, opener.open(), file).to_batches()


def _is_there(store: ObjectStore, keys: Sequence[str]) -> bool:
    """True if the store has an object with one of these names."""
    return any(head_if_there(store, key) is not None for key in keys)


def prepare_checked(
    engine: Engine[R],
    repository: OpenRepository,
    cutoff: datetime,
    samples: Sequence[StagedSample],
    progress: Callable[[int], None] = lambda pages: None,
    *,
    commits_expire: bool,
) -> Prepared:
    """Prepares and looks up samples that were staged right before; prepares once more if one is missing.

    Both preparations count then. A branch that lacks a sample is sampled again: the object may have been committed,
    reset or overwritten since, which is no fault of the preparation.

    Args:
        engine: reads the written files, if there are many.
        cutoff: only entries whose names are older are looked up, UTC.
        samples: result of `staged_samples` for these arguments.
        progress: gets the number of pages so far, after each page.
        commits_expire: True if the run applies retention rules.

    Raises:
        LakeFSError: an old staged entry is missing from both preparations, or the server fails.
        GuardTripped: commits expire and an entry is staged that uncommitted data cannot hold, or uncommitted data
            lacks an object of this store that is staged by an access point.
        OrderViolation, CorruptFile: see `prepare`.
    """
    api, namespace = repository.api, repository.namespace

    def missing_still(missing: Sequence[StagedSample], files: Sequence[str]) -> tuple[StagedSample, ...]:
        branches = dict.fromkeys(sample.branch for sample in missing)
        again = staged_samples(api, namespace, cutoff, commits_expire=commits_expire, branches=branches)
        return missing_samples(engine, repository, files, again)

    first = prepare(repository, progress)
    missing = missing_samples(engine, repository, first.files, samples)
    if missing:
        missing = missing_still(missing, first.files)
    if not missing:
        return first
    second = prepare(repository, progress)
    both = Prepared(
        first.started_at,
        second.ended_at,
        first.server_run_ids + second.server_run_ids,
        tuple(sorted({*first.files, *second.files})),
        first.pages + second.pages,
    )
    still = missing_still(missing, both.files)
    if still:
        sample = still[0]
        staged_as = f"{sample.path!r} on branch {sample.branch!r}"
        if sample.elsewhere:
            guards.refuse_access_point(sample.physical_address, staged_as, sample.keys[0], namespace)
        raise LakeFSError(
            f"the server's uncommitted data lacks {sample.physical_address}, staged as {staged_as} ({len(still)} such "
            "branches): its preparation is incomplete, so nothing may be deleted. Start the collection again; if this "
            "persists, see the server's log"
        )
    return both


_RECORDS = "preparations/"
_WITHOUT_RUN = f"{layout.RUNS_PREFIX}explained/"
"""Folder of records about preparations for a question, without a run."""


def folder_of_records(run_id: str) -> str:
    """Folder of the records of a run's preparations, with a trailing slash."""
    return f"{run_folder.folder(run_id)}{_RECORDS}"


def record_preparations(store: ObjectStore, run_id: str, server_run_ids: Iterable[str]) -> None:
    """Records the server's ids of a run's preparations; to be called right after each preparation."""
    for server_run_id in filter(layout.is_xid, server_run_ids):
        store.put(folder_of_records(run_id) + server_run_id, b"")


def record_without_run(repository: OpenRepository, prepared: Prepared, warn: LogLine) -> datetime | None:
    """Records the server's ids of a preparation for a question, without a run.

    Returns the store's time of the last record, UTC; None if none was written.
    """
    store, recorded_at = repository.store, None
    try:
        for server_run_id in filter(layout.is_xid, prepared.server_run_ids):
            store.put(_WITHOUT_RUN + server_run_id, b"")
            recorded_at = store.head(_WITHOUT_RUN + server_run_id).last_modified
    except StorageError as error:
        warn(f"the files that the server wrote for this check stay, since they could not be recorded: {error}")
    return recorded_at


def remove_preparation_without_run(store: ObjectStore, server_run_id: str) -> int:
    """Deletes the files of a preparation for a question, and then its record; returns the number of deleted objects.

    Raises StorageError if one could not be deleted.
    """
    return remove_preparation(store, server_run_id) + delete_all(store, [_WITHOUT_RUN + server_run_id])


def recorded_preparations(store: ObjectStore, run_id: str | None) -> list[str]:
    """The recorded ids of a run's preparations, newest first; if `run_id` is None, of preparations without a run."""
    folder = _WITHOUT_RUN if run_id is None else folder_of_records(run_id)
    return sorted(filter(layout.is_xid, (key.removeprefix(folder) for key in keys_below(store, folder))))


def delete_records_of_preparations(store: ObjectStore, run_id: str) -> int:
    """Deletes the records of a run's preparations, once their files are gone; returns the number of records.

    Raises StorageError.
    """
    return delete_all(store, sorted(keys_below(store, folder_of_records(run_id))))


def remove_preparation(store: ObjectStore, server_run_id: str) -> int:
    """Deletes the files of a preparation, and no other files beside them; returns the number of files.

    Raises StorageError if one could not be deleted.
    """
    if not layout.is_xid(server_run_id) or run_folder.has_plan(store, server_run_id):
        return 0
    folder = f"{run_folder.folder(server_run_id)}uncommitted/"
    return delete_all(store, [key for key in keys_below(store, folder) if layout.is_xid(key.removeprefix(folder))])
