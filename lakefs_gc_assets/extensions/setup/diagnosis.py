"""Checks, before any run, the rights and features that runs need from the server and the store.

Each right and feature is tried with the calls of a run, but without deleting any user's objects. The check writes two
small files. It deletes these, and the data that the server prepared for it.

It stops early if the server or the store does not answer, rejects the credentials, or lacks the repository or bucket.
The first call of each gives up soon, so that this takes less than ten seconds.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from lakefs_gc_assets.collector import commits, guards
from lakefs_gc_assets.collector.live import other_repositories, uncommitted
from lakefs_gc_assets.collector.live.other_repositories import OtherRepositories
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.repository.repository import Clock, Clocks, require_writable
from lakefs_gc_assets.errors import (
    AccessDenied,
    AlreadyExists,
    CollectionError,
    LakeFSError,
    NotOffered,
    ObjectNotFound,
    PermissionMissing,
    PreconditionFailed,
    ReadOnlyRepository,
    StorageError,
    WrongKeys,
    counted,
)
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import LakeFSApi, RepositoryFacts
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage import cloud, opening
from lakefs_gc_assets.storage.interface import (
    NULL_VERSION,
    POLICIES,
    DeleteOutcome,
    DeleteResult,
    KeepsVersions,
    ObjectStore,
    fetch,
    head_if_there,
)

FOLDER = "_lakefs/retention/gc/doctor/"
KEY = f"{FOLDER}probe"
"""The file that is written. Its key is fixed, so that at most one file stays if it may not be deleted."""
COPY = f"{FOLDER}copy"
_ABSENT = f"{FOLDER}absent"
_LISTS_OF_COMMITS = "_lakefs/retention/gc/commits/"
_CONTENT = b"written by lakefs-gc doctor, which deletes it again\n"
_NO_ETAG = "0" * 32


class Purpose(StrEnum):
    """Uses of a repository that need rights."""

    DRY_RUN = "dry run"
    SWEEP = "sweep"
    QUARANTINE = "quarantine"
    RETENTION = "retention"
    RESTORE = "restore"


class State(StrEnum):
    """State of one right or feature; NOT_NEEDED if it is missing and no wanted purpose needs it."""

    WORKS = "works"
    MISSING = "missing"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True, slots=True)
class DiagnosisFinding:
    """One right or feature.

    Attributes:
        purposes: uses that need it.
        detail: result or error.
        given_by: the right, and the document that grants it; empty if the result does not depend on a right.
    """

    name: str
    purposes: tuple[Purpose, ...]
    state: State
    detail: str
    given_by: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, in order.

    Attributes:
        left: keys of files written by the check that could not be deleted.
        stopped: True if the last finding made further checks pointless, so that they were skipped.
    """

    findings: tuple[DiagnosisFinding, ...]
    left: tuple[str, ...] = ()
    stopped: bool = False

    @property
    def well(self) -> bool:
        """True if no wanted purpose lacks anything."""
        return all(finding.state is not State.MISSING for finding in self.findings)

    def missing_for(self, purpose: Purpose) -> tuple[str, ...]:
        """Names of missing rights and features that a wanted purpose needs."""
        missing = (finding for finding in self.findings if finding.state is State.MISSING)
        return tuple(finding.name for finding in missing if purpose in finding.purposes)


def wanted_by(settings: CollectionSettings) -> frozenset[Purpose]:
    """Purposes of a configuration: a dry run and a sweep, and quarantine or retention if configured."""
    purposes = {Purpose.DRY_RUN, Purpose.SWEEP}
    if settings.quarantines:
        purposes.add(Purpose.QUARANTINE)
    if settings.retention_policy:
        purposes.add(Purpose.RETENTION)
    return frozenset(purposes)


@dataclass(frozen=True, slots=True)
class Services:
    """The server and the store to examine.

    Attributes:
        api: client of the server.
        first_api: client of the same server for the first call; gives up within eight seconds.
        open_store: opens the store of a storage namespace; raises CollectionError.
    """

    api: LakeFSApi
    first_api: LakeFSApi
    open_store: Callable[[Namespace], ObjectStore]


def diagnose(
    services: Services,
    settings: CollectionSettings,
    clock: Clock,
    wanted: Collection[Purpose],
    note: Callable[[DiagnosisFinding], None] = lambda finding: None,
) -> Diagnosis:
    """Tries everything, wanted or not. Errors become findings and are not raised.

    Args:
        note: receives each finding as it is made.
    """
    examined = _Examination(services, settings, clock)
    findings: list[DiagnosisFinding] = []
    try:
        for check in examined.checks():
            findings.append(_judged(check, wanted))
            note(findings[-1])
            if examined.pointless:
                break
    finally:
        left = examined.tidy_up()
    return Diagnosis(tuple(findings), left, examined.pointless)


@dataclass(frozen=True, slots=True)
class _Check:
    """A right or feature to try.

    Attributes:
        given_by: the right that it needs, and the document that grants it.
        attempt: returns the observation. Raises CollectionError if it does not work, _DoesNotApply if it cannot be
            tried.
        refusal: error of `attempt` if the right is missing. Server and store may both refuse: data that lakeFS prepared
            are read from the store, whose rights have their own findings.
    """

    name: str
    purposes: tuple[Purpose, ...]
    given_by: str
    attempt: Callable[[], str]
    refusal: type[CollectionError] = PermissionMissing


class _DoesNotApply(Exception):
    """There is nothing to try, and nothing is missing."""


def _judged(check: _Check, wanted: Collection[Purpose]) -> DiagnosisFinding:
    try:
        state, detail = State.WORKS, check.attempt()
    except _DoesNotApply as reason:
        return DiagnosisFinding(check.name, check.purposes, State.NOT_NEEDED, str(reason))
    except CollectionError as error:
        needed = not set(wanted).isdisjoint(check.purposes)
        state, detail = State.MISSING if needed else State.NOT_NEEDED, str(error)
        if not isinstance(error, check.refusal) or isinstance(error, WrongKeys):
            return DiagnosisFinding(check.name, check.purposes, state, detail)
    return DiagnosisFinding(check.name, check.purposes, state, detail, check.given_by)


_ALL = tuple(Purpose)
_SWEEPS = (Purpose.SWEEP, Purpose.QUARANTINE)


def _of_server(
    name: str, purposes: tuple[Purpose, ...], actions: str, attempt: Callable[[], str], document: str = "lakefs-collect"
) -> _Check:
    """A check that needs server rights, which a document grants."""
    return _Check(name, purposes, f"{actions}, {POLICIES}/{document}.json", attempt, AccessDenied)


@dataclass
class _Examination:
    """Facts learned so far, and files and preparations to remove at the end.

    Attributes:
        pointless: True if nothing else can work, since the server or the store does not accept these settings.
    """

    services: Services
    settings: CollectionSettings
    clock: Clock
    repository: RepositoryFacts | None = None
    opened: ObjectStore | None = None
    heads: dict[str, str] = field(default_factory=dict)
    other_repositories: OtherRepositories | None = None
    pointless: bool = False
    writes: bool = False
    reads: bool = False
    lists: bool = False
    stored: str | None = None
    written: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    deleted: DeleteOutcome | None = None

    def checks(self) -> Iterator[_Check]:
        """All checks; later ones build on earlier ones."""
        yield _of_server("read the repository", _ALL, "fs:ReadRepository", self._read_repository)
        yield _of_server("ask for the grace period", _ALL, "fs:ReadConfig", self._grace_period)
        yield _of_server("list branches", _ALL, "fs:ListBranches", self._list_branches)
        yield _of_server("read commits", _ALL, "fs:ReadCommit", self._read_commit)
        yield _of_server("list staged objects", _ALL, "fs:ListObjects", self._list_objects)
        yield _of_server("look at a path", _ALL, "fs:ReadObject", self._stat)
        unknown = () if self.settings.allow_unknown_repositories else _SWEEPS
        yield _of_server("list repositories", unknown, "fs:ListRepositories", self._list_repositories)
        yield _Check("open the store", _ALL, "", self._open)
        yield _Check("list objects", _ALL, self._given("list"), self._list_stored)
        yield _Check("a storage namespace of its own", _SWEEPS, "", self._compare_namespaces)
        # Without rights to list or read, a store does not reveal that an object is missing.
        hidden_without = self._given("read" if self.lists else "list")
        yield _Check("tell a missing object from a refused one", _ALL, hidden_without, self._look_for_nothing)
        yield _Check("write its own files", _ALL, self._given("write"), self._write)
        yield _Check("read objects", _ALL, self._given("read"), self._read)
        deletes = () if self.settings.no_lock_reason else (*_SWEEPS, Purpose.RESTORE)
        yield _Check("lock: put if absent, compare-and-swap", deletes, self._given("write"), self._prove_conditions)
        yield _Check("clocks agree", _ALL, "", self._compare_clocks)
        yield _Check("copy objects", (Purpose.QUARANTINE,), self._given("write"), self._copy)
        prepare = "retention:PrepareGarbageCollectionUncommitted"
        yield _of_server("prepare uncommitted data", _ALL, prepare, self._prepare)
        yield _Check("addresses are spelt as the namespace", _SWEEPS, "", self._compare_addresses)
        dump = "fs:ListBranches, fs:ListTags and fs:ListCommits"
        yield _of_server("dump refs", (Purpose.RETENTION,), dump, self._dump)
        purposes, document = (Purpose.RETENTION,), "lakefs-retention"
        rules, prepare = "retention:GetGarbageCollectionRules", "retention:PrepareGarbageCollectionCommits"
        yield _of_server("read retention rules", purposes, rules, self._rules, document)
        yield _of_server("list the commits that rules keep", purposes, prepare, self._prepare_commits, document)
        yield _Check("delete", _SWEEPS, self._given("delete"), self._delete)
        yield _Check("undo deletes by versions", (Purpose.RESTORE,), self._given("versions"), self._undo)

    def _given(self, right: str) -> str:
        """The right that this kind of store needs; empty if it has none, such as a folder."""
        if self.repository is None:
            return ""
        try:
            return opening.kind_of(self._namespace).rights.get(right, "")
        except CollectionError:
            return ""

    @property
    def _server(self) -> LakeFSApi:
        return self.services.api

    @property
    def _known(self) -> RepositoryFacts:
        if self.repository is None:
            raise LakeFSError("not tried, since the repository could not be read")
        return self.repository

    @property
    def _namespace(self) -> Namespace:
        return Namespace.parse(self._known.storage_namespace)

    @property
    def _storage(self) -> str:
        """Storage of the repository, on a server with several storages."""
        return f" on storage {self._known.storage_id}" if self._known.storage_id else ""

    @property
    def _store(self) -> ObjectStore:
        if self.opened is None:
            raise StorageError("not tried, since the repository could not be read")
        return self.opened

    def _read_repository(self) -> str:
        try:
            self.repository = self.services.first_api.repository()
        except LakeFSError as error:
            is_known = isinstance(error, AccessDenied | ReadOnlyRepository) and not isinstance(error, WrongKeys)
            self.pointless = not is_known
            raise
        require_writable(self.repository)
        return f"{self.repository.id} at {self.repository.storage_namespace}"

    def _grace_period(self) -> str:
        seconds = self._server.grace_period().total_seconds()
        period = f"{seconds / 3600:g} hours" if seconds >= 3600 else f"{seconds:g} seconds"
        return f"addresses may be linked for {period} after their issue"

    def _list_branches(self) -> str:
        branches = self._server.branches()
        self.heads = {branch.id: branch.commit_id for branch in branches}
        return f"{counted(len(branches), 'branches')}"

    def _a_branch(self) -> str:
        """An existing branch: the default one unless it was removed, else any."""
        default = self._known.default_branch
        return default if default in self.heads or not self.heads else min(self.heads)

    def _read_commit(self) -> str:
        branch = self._a_branch()
        if branch not in self.heads:
            raise LakeFSError("not tried, since branches could not be listed")
        return f"{branch} is at {self._server.commit(self.heads[branch]).id}"

    def _list_objects(self) -> str:
        branch = self._a_branch()
        self._server.list_objects(branch, "")
        change = self._server.first_change(branch)
        return f"{branch} has {'no uncommitted changes' if change is None else 'uncommitted changes'}"

    def _stat(self) -> str:
        self._server.stat(self._a_branch(), FOLDER)
        return "the server says if there is an object at a path"

    def _list_repositories(self) -> str:
        also_live = self.settings.also_live
        self.other_repositories = other_repositories.compare_namespaces(self._server, self._known, None, also_live)
        if self.other_repositories.refusal is not None:
            raise AccessDenied(self.other_repositories.refusal)
        if not self.other_repositories.unchecked:
            return "no other one on the same bucket needs to be named in collection.also_live"
        unchecked = ", ".join(self.other_repositories.unchecked)
        return f"on the same bucket and not looked at, as collection.also_live does not name them: {unchecked}"

    def _compare_namespaces(self) -> str:
        if self.other_repositories is None or self.other_repositories.refusal is not None:
            raise _DoesNotApply("not tried, since repositories could not be listed")
        # Repeated, since the store could not be compared before it was open.
        also_live = self.settings.also_live
        found = other_repositories.compare_namespaces(self._server, self._known, self._store, also_live)
        if found.nested:
            others = ", ".join(found.nested)
            raise LakeFSError(f"{self._namespace.uri} lies inside or around the storage namespace of {others}")
        return f"no other repository{self._storage} is known to lie inside or around it"

    def _open(self) -> str:
        namespace = self._namespace
        try:
            with cloud.first_contact(), suppress(ObjectNotFound, PermissionMissing):
                self.services.open_store(namespace).get(_ABSENT)
            self.opened = self.services.open_store(namespace)
        except CollectionError:
            self.pointless = True
            raise
        return namespace.uri

    def _list_stored(self) -> str:
        batches = self._store.list(DATA_PREFIX)
        self.stored = next((key for batch in batches for key in batch["key"].to_pylist()), None)
        self.lists = True
        return f"{'something' if self.stored else 'nothing'} is stored below {DATA_PREFIX}"

    def _look_for_nothing(self) -> str:
        if head_if_there(self._store, _ABSENT) is not None:
            raise StorageError(f"{_ABSENT} exists, although no program should write it: delete it")
        return "a missing object is reported as missing"

    def _write(self) -> str:
        store = self._store
        # The file exists if an earlier check was not allowed to delete it. Conditions have a check of their own.
        with suppress(AlreadyExists, NotOffered), self._writing(KEY):
            store.put_if_absent(KEY, b"1")
        with self._writing(KEY):
            store.put(KEY, _CONTENT)
        self.writes = True
        return KEY

    @contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        """Records a file to remove, unless the store refused to write it."""
        try:
            yield
        except (PermissionMissing, NotOffered):
            raise
        except StorageError:
            self.written.append(key)
            raise
        self.written.append(key)

    def _require_writes(self) -> None:
        if not self.writes:
            raise StorageError("not tried, since nothing could be written")

    def _require_reads(self) -> None:
        self._require_writes()
        if not self.reads:
            raise StorageError("not tried, since nothing could be read")

    def _read(self) -> str:
        if self.stored is not None:
            # Its size is unknown, so only its facts are read: they need the same right.
            self._store.head(self.stored)
        self._require_writes()
        if self._store.get(KEY) != _CONTENT:
            raise StorageError(f"{KEY} does not contain the last write: another program may have changed it. Try again")
        self.reads = True
        return "reads return the last write"

    def _prove_conditions(self) -> str:
        self._require_reads()
        wrong = (
            "locks cannot be enforced: sweep with a version of the store that honours If-None-Match and If-Match, or "
            "set collection.no_lock_reason; dry runs need none"
        )
        store, etag = self._store, self._store.head(KEY).etag
        if etag is None:
            raise NotOffered(f"the store gives {KEY} no ETag; {wrong}")
        try:
            store.put_if_absent(KEY, _CONTENT)
        except AlreadyExists:
            store.put_if_match(KEY, _CONTENT, etag)
        except NotOffered as error:
            raise NotOffered(f"{error}; {wrong}") from None
        else:
            raise NotOffered(f"a put `if absent` replaced an existing object; {wrong}")
        try:
            store.put_if_match(KEY, _CONTENT, _NO_ETAG)
        except PreconditionFailed:
            return "a conditional write succeeds if its condition holds, and is refused otherwise"
        raise NotOffered(f"a put `if match` replaced an object with another ETag; {wrong}")

    def _compare_clocks(self) -> str:
        self._require_reads()
        self._store.put(KEY, _CONTENT)
        store, own = self._store.head(KEY).last_modified, self.clock.now()
        clocks = Clocks.read(own, self._server.server_clocks, store)
        skew = self.settings.clock_skew_minutes
        guards.require_clocks_agree(clocks, timedelta(minutes=skew))
        apart = (clocks.latest - clocks.earliest).total_seconds()
        return f"our clock, the server's and the store's are {apart:.0f} s apart; {skew * 30:.0f} s are allowed"

    def _copy(self) -> str:
        self._require_reads()
        with self._writing(COPY):
            self._store.copy(KEY, COPY)
        return "by the store itself"

    def _prepare(self) -> str:
        store = self._store  # First: without it, the server's files could not be removed again.
        page = self._server.prepare_uncommitted(None)
        self.prepared.append(page.run_id)
        if not page.location:
            return "nothing is staged or tracked as copied"
        folder = self._namespace.relative(page.location)
        if folder is None:
            raise LakeFSError(f"the server writes to {page.location}, which is outside of {self._namespace.uri}")
        if not any(batch.num_rows for batch in store.list(folder.rstrip("/") + "/")):
            raise StorageError(
                f"the server wrote to {folder}{self._storage}, but the store has nothing there: `store` must be the "
                "endpoint and the account on which the server keeps this repository"
            )
        return "files that the server wrote are found in the store"

    def _compare_addresses(self) -> str:
        branch = self._a_branch()
        if branch not in self.heads:
            raise LakeFSError("not tried, since branches could not be listed")
        metarange_id = self._server.commit(self.heads[branch]).metarange_id
        heads = {branch: metarange_id} if metarange_id else {}
        other_repositories.require_own_addresses(self._server, self._store, self._namespace, heads)
        return "staged objects can be distinguished from garbage"

    def _dump(self) -> str:
        try:
            dump = commits.dump_refs(self._server, self._store, self.settings, self.clock)
        except LakeFSError as error:
            raise type(error)(
                f"{error}; without a dump, runs read every range file, and flows by retention are impossible"
            ) from None
        return f"{counted(len(dump.commits.ids), 'commits')}; the server keeps its files, as after each run"

    def _rules(self) -> str:
        rules = self._server.retention_rules()
        if rules is None:
            return "the repository has none"
        return f"{rules.default_days} days, and {counted(len(rules.branches), 'branches')} with their own rule"

    def _prepare_commits(self) -> str:
        try:
            without_rules = self._server.retention_rules() is None
        except LakeFSError:
            raise LakeFSError("not tried, since retention rules could not be read") from None
        if without_rules:
            raise _DoesNotApply("the repository has no retention rules")
        store = self._store
        prepared = commits.prepare_server_commits(self._server, self.settings, self.clock)
        file = self._namespace.relative(prepared.location)
        if file is None or not file.startswith(_LISTS_OF_COMMITS):
            raise LakeFSError(f"the server writes its list to {prepared.location}, which is not below its namespace")
        self.written.append(file)
        return f"{counted(len(commits.read_server_commits(fetch(store, file), file).ids), 'commits stay')}"

    def _delete(self) -> str:
        self._require_reads()
        [self.deleted] = self._store.delete([KEY])
        if self.deleted.result is not DeleteResult.ACCEPTED:
            raise PermissionMissing(f"{KEY} was not deleted: {self.deleted.error}")
        if head_if_there(self._store, KEY) is not None:
            raise StorageError(f"the store reported {KEY} as deleted, but it still exists")
        self.written = [key for key in self.written if key != KEY]
        kept = "; the service keeps deleted objects for some time" if self.deleted.soft_deleted else ""
        return f"a test file in {FOLDER}; nothing below {DATA_PREFIX} was tested{kept}"

    def _undo(self) -> str:
        if self.deleted is None or self.deleted.result is not DeleteResult.ACCEPTED:
            raise StorageError("not tried, since nothing could be deleted")
        version_id, store = self.deleted.version_id, self._store
        if version_id is None or version_id == NULL_VERSION or not isinstance(store, KeepsVersions):
            if self.settings.quarantines:
                raise _DoesNotApply("the store keeps no versions, and quarantine lets deletions be undone")
            raise StorageError("the store keeps no versions: deletions can be undone only with sweep_mode: quarantine")
        if not store.remove_delete_marker(KEY, version_id):
            raise StorageError(f"the delete marker of {KEY} is not its newest version: did another program change it?")
        self.written.append(KEY)
        return "the bucket keeps versions; the test file's stay until the bucket's lifecycle removes them"

    def tidy_up(self) -> tuple[str, ...]:
        """Deletes the files and data written for the check; returns the keys of remaining ones."""
        if self.opened is None:
            return ()
        left = [key for key in dict.fromkeys(self.written) if not _is_gone(self.opened, key)]
        for server_run_id in self.prepared:
            try:
                uncommitted.remove_preparation(self.opened, server_run_id)
            except StorageError:
                left.append(run_folder.folder(server_run_id))
        return tuple(left)


def _is_gone(store: ObjectStore, key: str) -> bool:
    """Deletes a file if it exists; returns True if it is gone."""
    try:
        # In a versioned bucket, deleting a missing object leaves a delete marker.
        with suppress(StorageError):
            if head_if_there(store, key) is None:
                return True
        [outcome] = store.delete([key])
    except StorageError:
        return False
    return outcome.result is DeleteResult.ACCEPTED
