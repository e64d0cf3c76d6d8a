"""Data of a deleted repository is deleted only if nothing and nobody changed anything, and comes back whole.

Each history is played twice: with the guards of the deletion, which keep every object, and without the guard that it is
for, where the deletion then goes through.
"""

import itertools
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.common import loaded_configuration, open_repository
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.quarantine.purge import PurgeFate, PurgeVerdict
from lakefs_gc_assets.collector.quarantine.restore import RestoreFate
from lakefs_gc_assets.collector.records import records_json, tables
from lakefs_gc_assets.collector.repository.lock import LockToken, locked
from lakefs_gc_assets.collector.repository.repository import Moment, OpenRepository, SystemClock
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.collector.sweep.recheck import Validity
from lakefs_gc_assets.collector.sweep.sweeping import Quarantine, key
from lakefs_gc_assets.errors import (
    AccessDenied,
    CollectionError,
    ConfigurationError,
    CorruptFile,
    GuardTripped,
    LockHeld,
    NotOffered,
    ObjectArchived,
    OrderViolation,
    StorageError,
)
from lakefs_gc_assets.extensions.orphans import deletion, looks, orphans_command
from lakefs_gc_assets.extensions.orphans.deletion import (
    Examined,
    OrphanAct,
    OrphanFate,
    OrphanOutcome,
    OrphanState,
    PlaceQuarantine,
)
from lakefs_gc_assets.extensions.orphans.looks import OrphanPlace, PlaceContents
from lakefs_gc_assets.extensions.orphans.orphans import find_orphans
from lakefs_gc_assets.extensions.orphans.place_store import PlaceStore
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.playground.embedded.stores import LocalBlockstore
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import keys_below
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.cli.test_json import require_documented
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE
from lakefs_gc_assets_tests.servers.s3_server import S3Server
from lakefs_gc_assets_tests.servers.stores import s3_server

__all__ = ["s3_server"]

OLD = timedelta(days=40)
DAY = timedelta(days=1)
Contents = dict[str, bytes]


def fill(server: EmbeddedServer, name: str, namespace: str) -> None:
    """A repository with three committed objects and a staged one."""
    creation = {"name": name, "storage_namespace": namespace}
    assert clients.call(server, "POST", "/repositories", creation)[0] == 201
    for path in ("raw/a", "raw/b", "gold/c"):
        clients.upload(server, path, f"{name} {path}".encode(), name=name)
    clients.commit(server, "first", name=name)
    clients.upload(server, "raw/staged", b"staged", name=name)


@dataclass
class Lake:
    """A bucket with the repository `one`, in use, and the data of the repository `two`, which was deleted.

    Attributes:
        place: folder of `two`, without slashes around it.
        backup: the server's metadata before `two` was deleted.
    """

    server: EmbeddedServer
    folder: Path
    number: int
    place: str = "gone"
    backup: Path = field(init=False)

    def __post_init__(self) -> None:
        self.bucket_name = f"lake{self.number}"
        self.bucket = self.server.objects_folder / self.bucket_name
        self.backup = self.folder / f"backup{self.number}"
        self.configure()
        self.fill_long_ago("one", "one")
        self.fill_long_ago("two", self.place)
        self.backup.mkdir()
        with sqlite3.connect(self.server.folder / "metadata.sqlite") as metadata:
            metadata.backup(sqlite3.connect(self.backup / "metadata.sqlite"))
        self.delete_repository("two")

    def name(self, repository: str) -> str:
        return f"{repository}{self.number}"

    def fill_long_ago(self, name: str, folder: str) -> None:
        """Makes a repository whose files are all old."""
        with self.long_ago():
            fill(self.server, self.name(name), f"local://{self.bucket_name}/{folder}")
        written_at = (datetime.now(UTC) - OLD).timestamp()
        for path in (self.bucket / folder).rglob("*"):
            os.utime(path, (written_at, written_at))

    def delete_repository(self, name: str) -> None:
        assert clients.call(self.server, "DELETE", f"/repositories/{self.name(name)}")[0] == 204

    @property
    def uri(self) -> str:
        return f"local://{self.bucket_name}/{self.place}/"

    def long_ago(self) -> Any:
        return self.server.clock.at(datetime.now(UTC) - OLD)

    def configure(self, **collection: Any) -> None:
        content = {
            "repository": self.name("one"),
            "lakefs": {
                "endpoint": self.server.url,
                "access_key_id": self.server.access_key_id,
                "secret_access_key": {"env": SECRET_VARIABLE},
                "retries": 0,
            },
            "store": {"local_root": str(self.server.objects_folder)},
            "collection": collection,
        }
        self.file.write_text(yaml.safe_dump(content))

    @property
    def file(self) -> Path:
        return self.folder / f"lakefs-gc-{self.number}.yaml"

    def opened(self) -> OpenRepository:
        return open_repository(loaded_configuration(self.file, None))

    def contents(self, place: str = "") -> Contents:
        """Bytes of every object of the place, by name."""
        root = self.bucket / (place or self.place)
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def write(self, name: str, content: bytes = b"x", *, age: timedelta = OLD) -> Path:
        """Writes a file into the bucket as another program would."""
        path = self.bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        written_at = (datetime.now(UTC) - age).timestamp()
        os.utime(path, (written_at, written_at))
        return path

    def data_file(self) -> Path:
        return sorted((self.bucket / self.place / "data").rglob("*/*"))[-1]

    def examine(self, repository: OpenRepository | None = None) -> Examined:
        return deletion.examine(repository or self.opened(), self.uri, "test", quiet, pytest.fail)

    def look_a_day_ago(self) -> None:
        self.examine()
        self.change_record(looked_at=datetime.now(UTC) - DAY - timedelta(minutes=1))

    def change_record(self, **changes: Any) -> None:
        place = OrphanPlace.open(self.opened(), self.uri)
        deletion._write(place, replace(self.act(), **changes))

    def act(self) -> OrphanAct:
        act = deletion.read_act(OrphanPlace.open(self.opened(), self.uri))
        assert act is not None
        return act

    def moving(self, repository: OpenRepository | None = None) -> Iterator[OrphanOutcome]:
        return deletion.move(repository or self.opened(), self.uri, "Ada", "test", quiet, pytest.fail)

    def move(self) -> list[OrphanOutcome]:
        return [*self.moving()]

    def restore(self) -> list[RestoreFate]:
        return [each.fate for each in deletion.restore(self.opened(), self.uri, "test", pytest.fail)]

    def purge(self) -> list[PurgeFate]:
        # By the server's answers, which have whole seconds, the move of a moment ago would be in the future.
        with self.server.clock.at(datetime.now(UTC) + timedelta(minutes=1)):
            return [each.fate for each in deletion.purge(self.opened(), self.uri, "test", quiet, pytest.fail)]

    def in_quarantine(self) -> list[str]:
        return keys_below(self.opened().store, layout.QUARANTINE_PREFIX)

    @contextmanager
    def restored_server(self) -> Iterator[EmbeddedServer]:
        """Another server, on the same buckets, made from a backup of before `two` was deleted."""
        blockstore = LocalBlockstore(self.server.objects_folder, self.server.clock)
        with EmbeddedServer(self.backup, blockstore=blockstore, routes=ROUTES) as server:
            yield server

    def make_anew(self, place: str = "") -> None:
        """Makes a repository in the place, or elsewhere."""
        (self.bucket / self.place / "_lakefs/dummy").unlink()
        self.fill_long_ago("anew", place or self.place)

    def import_from_place(self) -> None:
        source = {"type": "object", "path": f"{self.uri}{self.name_of(self.data_file())}", "destination": "got/x"}
        body = {"paths": [source], "commit": {"message": "import"}}
        path = f"/repositories/{self.name('one')}/branches/main/import"
        clients.commit(self.server, "what was staged", name=self.name("one"))
        assert clients.call(self.server, "POST", path, body)[0] == 202
        self.server.core.tasks.wait_for_all(900)

    def name_of(self, path: Path) -> str:
        return str(path.relative_to(self.bucket / self.place))


def quiet(line: str) -> None:
    """Logs nothing."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with (
        EmbeddedServer(tmp_path_factory.mktemp("orphans") / "server", routes=ROUTES) as server,
        mock.patch.dict(os.environ, {SECRET_VARIABLE: server.secret_access_key}),
    ):
        yield server


_NUMBERS = itertools.count()


@pytest.fixture
def lake(server: EmbeddedServer, tmp_path: Path) -> Iterator[Lake]:
    made = Lake(server, tmp_path, next(_NUMBERS))
    yield made
    for name in ("one", "anew"):
        # Later looks read the commits of every repository.
        clients.call(server, "DELETE", f"/repositories/{made.name(name)}")


class TestLife:
    def test_everything_moves_a_day_later_and_comes_back(self, lake: Lake) -> None:
        before, own = lake.contents(), lake.contents("one")
        assert len(before) > 6
        lake.look_a_day_ago()
        assert lake.contents() == before
        moved = lake.move()
        assert {each.fate for each in moved} == {OrphanFate.MOVED}
        assert {each.address for each in moved} == {f"gone/{name}" for name in before}
        assert lake.contents() == {} and len(lake.in_quarantine()) == len(before)
        assert lake.act().state is OrphanState.MOVED and lake.act().approved_by == "Ada"
        with pytest.raises(OrderViolation, match="its objects are moved since"):
            lake.move()
        for path in ("raw/a", "raw/b", "gold/c", "raw/staged"):
            status, _ = clients.call(
                lake.server, "GET", f"/repositories/{lake.name('one')}/refs/main/objects", None, path=path
            )
            assert status == 200
        assert find_orphans(lake.opened(), quiet).orphans == ()
        assert {*lake.restore()} == {RestoreFate.RESTORED}
        assert lake.contents() == before
        assert {name: data for name, data in lake.contents("one").items() if name in own} == own
        assert lake.act().state is OrphanState.RESTORED
        assert [orphan.uri for orphan in find_orphans(lake.opened(), quiet).orphans] == [lake.uri]

    def test_runs_of_the_repository_pass_over_records_and_copies(self, lake: Lake) -> None:
        lake.look_a_day_ago()
        lake.move()
        lake.restore()
        store = lake.opened().store
        names = {key.removeprefix(layout.RUNS_PREFIX).split("/")[0] for key in keys_below(store, layout.RUNS_PREFIX)}
        assert names == {"lock.json", "orphans", lake.act().act_id}, "no record of a restoration that runs heed"
        assert not any(layout.is_xid(name) for name in names)

    def test_markers_go_last_and_metadata_before_them(self, lake: Lake) -> None:
        lake.look_a_day_ago()
        names = [each.address.removeprefix("gone/") for each in lake.move()]
        kinds = [2 if name == "_lakefs/dummy" else int(name.startswith("_lakefs/")) for name in names]
        assert kinds == sorted(kinds) and {*kinds} == {0, 1, 2}

    def test_a_copy_that_is_gone_is_no_restored_object(self, lake: Lake) -> None:
        before = lake.contents()
        lake.look_a_day_ago()
        lake.move()
        lake.opened().store.delete(lake.in_quarantine()[:1])
        assert lake.restore().count(RestoreFate.HIDDEN) == 1
        assert len(lake.contents()) == len(before) - 1 and lake.act().state is OrphanState.MOVED

    def test_restoration_can_be_repeated_after_a_deletion_that_was_done_late(self, lake: Lake) -> None:
        before = lake.contents()
        lake.look_a_day_ago()
        lake.move()
        lake.restore()
        assert lake.act().state is OrphanState.RESTORED
        lake.data_file().unlink()
        assert RestoreFate.RESTORED in lake.restore()
        assert lake.contents() == before and lake.act().state is OrphanState.RESTORED

    def test_copies_are_purged_when_they_are_due(self, lake: Lake) -> None:
        lake.look_a_day_ago()
        count = len(lake.move())
        with pytest.raises(OrderViolation, match="may be purged from"):
            lake.purge()
        assert len(lake.in_quarantine()) == count
        lake.configure(quarantine_days=0)
        assert lake.purge() == [PurgeFate.PURGED] * count
        assert (lake.in_quarantine(), lake.act().state) == ([], OrphanState.PURGED)
        with pytest.raises(OrderViolation, match="are purged since"):
            lake.restore()

    def test_copies_of_restored_objects_are_purged_before_another_deletion(self, lake: Lake) -> None:
        before = lake.contents()
        lake.look_a_day_ago()
        lake.move()
        lake.restore()
        with pytest.raises(OrderViolation, match="purge them first"):
            lake.examine()
        lost = lake.data_file()
        lost.unlink()
        lake.configure(quarantine_days=0)
        fates = lake.purge()
        assert fates.count(PurgeFate.RESTORED) == 1, "a copy that is needed is not purged: it is restored"
        assert lake.contents() == before and len(fates) == len(before)
        assert lake.in_quarantine() == [key(lake.act().act_id, f"gone/{lake.name_of(lost)}")]
        assert lake.act().state is OrphanState.RESTORED
        assert lake.purge() == [PurgeFate.PURGED] and lake.in_quarantine() == []
        assert lake.act().state is OrphanState.PURGED and lake.contents() == before
        assert lake.examine().act.state is OrphanState.SEEN

    def test_a_deletion_that_was_killed_goes_on(self, lake: Lake) -> None:
        before = lake.contents()
        lake.look_a_day_ago()
        with mock.patch.object(sweeping, "BATCH", 2):
            first = next(lake.moving())
        assert lake.act().state is OrphanState.MOVING and 0 < len(lake.contents()) < len(before)
        with pytest.raises(OrderViolation, match="restore or purge them first"):
            lake.examine()
        with pytest.raises(OrderViolation, match="moving since"):
            lake.purge()
        rest = lake.move()
        assert first.address not in {each.address for each in rest} and lake.contents() == {}
        assert len(lake.in_quarantine()) == len(before)

    def test_a_deletion_killed_between_deletion_and_receipt_goes_on(self, lake: Lake) -> None:
        before = lake.contents()
        lake.look_a_day_ago()
        real = Quarantine.delete_batch

        def killed(*arguments: Any) -> pa.Table:
            real(*arguments)
            raise KeyboardInterrupt

        with mock.patch.object(Quarantine, "delete_batch", killed), pytest.raises(KeyboardInterrupt):
            lake.move()
        assert len(lake.contents()) < len(before)
        lake.move()
        assert lake.contents() == {} and {*lake.restore()} == {RestoreFate.RESTORED}
        assert lake.contents() == before

    @pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done, but its answer is lost"])
    def test_whatever_call_fails_everything_comes_back(self, lake: Lake, is_done: bool) -> None:
        """In each attempt the store is away from a later call on, until one meets no failure."""
        before = lake.contents()
        lake.look_a_day_ago()
        failures = 0
        with mock.patch.object(sweeping, "BATCH", 2):
            while lake.act().state is not OrphanState.MOVED:
                with failing_at(failures, is_done), suppress(StorageError):
                    list(lake.moving())
                assert {*before} == {*lake.contents()} | {copied(name) for name in lake.in_quarantine()}
                failures += 1
        assert failures > 5 and lake.contents() == {}
        assert {*lake.restore()} <= {RestoreFate.RESTORED, RestoreFate.THERE} and lake.contents() == before

    def test_an_object_that_cannot_be_copied_stays(self, lake: Lake) -> None:
        lake.look_a_day_ago()
        address = f"gone/{lake.name_of(lake.data_file())}"
        real = PlaceStore.copy

        def copy(store: PlaceStore, source: str, target: str) -> Any:
            if source == address:
                raise ObjectArchived("archived")
            return real(store, source, target)

        with mock.patch.object(PlaceStore, "copy", copy):
            kept = [each for each in lake.move() if each.fate is not OrphanFate.MOVED]
        assert [(each.address, each.fate) for each in kept] == [(address, OrphanFate.KEPT)]
        assert [*lake.contents()] == [address.removeprefix("gone/")] and lake.act().state is OrphanState.MOVING
        assert lake.move()[0].address == address and lake.act().state is OrphanState.MOVED


def copied(name: str) -> str:
    """Name in the place of an object with a copy in quarantine."""
    return layout.parse_copy(name)[1].removeprefix("gone/")


@contextmanager
def failing_at(number: int, is_done: bool) -> Iterator[None]:
    """A store whose writing calls fail from this number on: before or after they are done."""
    calls = itertools.count()

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            is_failing = next(calls) >= number
            if is_failing and not is_done:
                raise StorageError("failed")
            answer = real(*arguments)
            if is_failing:
                raise StorageError("its answer is lost")
            return answer

        return call

    with ExitStack() as stack:
        for name in ("copy", "put", "delete"):
            stack.enter_context(mock.patch.object(LocalStore, name, failing(getattr(LocalStore, name))))
        yield


@dataclass(frozen=True)
class History:
    """Something that happens, and the guards without which the deletion goes through all the same.

    Attributes:
        removed: modules, each with the name of a function that lets everything pass.
    """

    happens: Callable[[Lake], None]
    removed: Sequence[tuple[Any, str]]
    why: str

    @contextmanager
    def without_guards(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, name in self.removed:
                stack.enter_context(mock.patch.object(module, name, _PASSING[name]))
            yield


def _list_unchecked(place: OrphanPlace) -> Any:
    return place.repository.api.repositories()


def _pass(*arguments: object) -> None:
    """Lets everything pass."""


_PASSING: dict[str, Any] = {
    "require_no_repository": _list_unchecked,
    "require_no_imports": lambda place, repositories, read, note: frozenset(read),
    "_changes": lambda *arguments: "",
    **dict.fromkeys(
        (
            "require_no_namespace_around",
            "require_only_lakefs_files",
            "require_quiet",
            "require_signs",
            "require_few_orphaned",
            "require_clocks_agree",
            "require_unchanged",
        ),
        _pass,
    ),
}
REPOSITORIES = (looks, "require_no_repository")
LAKEFS_FILES = (looks, "require_only_lakefs_files")
AROUND = (looks, "require_no_namespace_around")
IMPORTS = (looks, "require_no_imports")
CHANGES = (deletion, "_changes")


def made_around(lake: Lake) -> None:
    lake.place = "around/gone"
    shutil.copytree(lake.bucket / "gone", lake.bucket / lake.place)
    lake.fill_long_ago("anew", "around")


def namespace_around(lake: Lake) -> None:
    lake.place = "gone/inner"
    shutil.copytree(lake.bucket / "one", lake.bucket / lake.place)


def without_signs(lake: Lake) -> None:
    lake.place = "plain"
    lake.write(f"plain/{'0' * 32}")


def damage_commits(lake: Lake) -> None:
    for path in (lake.bucket / "one/_lakefs").glob("?" * 64):
        path.write_bytes(b"damaged")


def writes(name: str, age: timedelta = OLD) -> Callable[[Lake], None]:
    """Another program writes a file into the bucket."""

    def write(lake: Lake) -> None:
        lake.write(name, age=age)

    return write


FIRST = {
    "a repository made anew in the place": History(Lake.make_anew, [REPOSITORIES], "repository anew"),
    "a repository in the place": History(
        lambda lake: lake.make_anew("gone/inner"), [REPOSITORIES, LAKEFS_FILES], "repository anew"
    ),
    "a repository around it": History(made_around, [REPOSITORIES, AROUND], "repository anew"),
    "another namespace around it": History(namespace_around, [AROUND], "looks like a storage namespace, too"),
    "files of another owner": History(writes("gone/report.csv"), [LAKEFS_FILES], "such as report.csv"),
    "another namespace in it": History(writes("gone/inner/_lakefs/dummy"), [LAKEFS_FILES], "inner/_lakefs/dummy"),
    "a quarantine of other places": History(
        writes("gone/_lakefs/retention/gc/quarantine/orphan-1/other/data/x"),
        [LAKEFS_FILES],
        "may not be of the deleted repository",
    ),
    "a write of last week": History(
        writes("gone/_lakefs/new", age=7 * DAY),
        [(deletion, "require_quiet")],
        "less than 30 days ago",
    ),
    "a folder that looks like no namespace": History(
        without_signs, [(deletion, "require_signs")], "does not look like a storage namespace"
    ),
    "an import from the place": History(Lake.import_from_place, [IMPORTS], "imported objects from there, such as"),
    "commits that cannot be read": History(damage_commits, [IMPORTS], "cannot be read, and may need objects"),
    "too many objects": History(
        lambda lake: lake.configure(max_candidates=3), [(guards, "require_few_orphaned")], "number of candidates"
    ),
}


class TestFirstLook:
    @pytest.mark.parametrize("name", FIRST)
    def test_it_refuses_and_records_nothing(self, lake: Lake, name: str) -> None:
        history = FIRST[name]
        history.happens(lake)
        with pytest.raises(GuardTripped, match=history.why):
            lake.examine()
        with pytest.raises(OrderViolation, match="no look is recorded"):
            lake.move()
        with history.without_guards():
            lake.look_a_day_ago()
            assert lake.move() and lake.contents() == {}, "the guard is needed"

    def test_an_empty_place(self, lake: Lake) -> None:
        place = OrphanPlace.open(lake.opened(), lake.uri)
        with pytest.raises(GuardTripped, match="it is empty"):
            looks.require_quiet(place, PlaceContents(looks.OBJECTS.empty_table(), (), frozenset()), datetime.now(UTC))

    def test_clocks_that_disagree(self, lake: Lake) -> None:
        with lake.server.clock.at(datetime.now(UTC) + timedelta(hours=2)):
            with pytest.raises(GuardTripped, match="clocks"):
                lake.examine()
            with mock.patch.object(guards, "require_clocks_agree", _pass):
                lake.examine()

    @pytest.mark.parametrize("answer", [AccessDenied("403"), ()], ids=["a refusal", "nothing"])
    def test_an_incomplete_list_of_repositories(self, lake: Lake, answer: Any) -> None:
        repository = lake.opened()
        api = mock.Mock(wraps=repository.api, server_clocks=repository.api.server_clocks)
        api.repositories.side_effect = [answer]
        with pytest.raises(ConfigurationError, match=r"fs:ListRepositories on \*"):
            lake.examine(replace(repository, api=api))

    @pytest.mark.parametrize(
        "uri",
        [
            "local://other/gone",
            "s3://lake/gone",
            "local://{}/",
            "local://{}/g%6fne/",
            "local://{}/a//gone",
            # In a bucket, folders may have empty names: neither means the folder gone/.
            "local://{}//gone/",
            "local://{}/gone//",
            "gone",
        ],
    )
    def test_an_address_that_is_no_single_folder_of_the_bucket(self, lake: Lake, uri: str) -> None:
        with pytest.raises(ConfigurationError):
            OrphanPlace.open(lake.opened(), uri.format(lake.bucket_name))

    def test_a_store_without_conditional_writes(self, lake: Lake) -> None:
        lake.configure(no_lock_reason="only one machine")
        repository = lake.opened()

        def refuse(*arguments: object) -> str:
            raise NotOffered("no")

        store = mock.Mock(wraps=repository.store, delete_limit=1000, put_if_absent=refuse, put_if_match=refuse)
        with pytest.raises(NotOffered, match="only listed there"):
            deletion.examine(replace(repository, store=store), lake.uri, "test", quiet, quiet)

    def test_while_a_run_holds_the_lock(self, lake: Lake) -> None:
        repository = lake.opened()
        with locked(repository, "run", "another", pytest.fail), pytest.raises(LockHeld):
            lake.examine()


def upload_by_restored_server(lake: Lake) -> None:
    with lake.restored_server() as server:
        clients.upload(server, "raw/new", b"new", name=lake.name("two"))


def commit_by_restored_server(lake: Lake) -> None:
    with lake.restored_server() as server, lake.long_ago():
        clients.commit(server, "second", name=lake.name("two"))


def rewrite(lake: Lake) -> None:
    """Rewrites the file that is deleted last of its group, with content of the same size."""
    path = lake.data_file()
    path.write_bytes(path.read_bytes()[::-1])


BETWEEN = {
    "a write by a server restored from a backup": History(upload_by_restored_server, [CHANGES], "1 object new"),
    "a commit by that server": History(commit_by_restored_server, [CHANGES], "objects? new"),
    "a rewritten object": History(rewrite, [CHANGES], "1 object changed"),
    "an object that is gone": History(lambda lake: lake.data_file().unlink(), [CHANGES], "1 object gone"),
    "a repository made anew": History(Lake.make_anew, [REPOSITORIES, CHANGES], "repository anew"),
    "an import": History(Lake.import_from_place, [IMPORTS], "imported objects from there"),
    "a lower limit": History(
        lambda lake: lake.configure(max_candidates=3), [(guards, "require_few_orphaned")], "number of candidates"
    ),
    "a repository that is no longer listed": History(
        lambda lake: lake.delete_repository("extra"), [CHANGES], "no longer lists repository extra"
    ),
}


class TestSecondLook:
    def test_not_before_a_day_has_passed(self, lake: Lake) -> None:
        lake.examine()
        before = lake.contents()
        with pytest.raises(OrderViolation, match="may be deleted from"):
            lake.move()
        lake.change_record(looked_at=datetime.now(UTC) - DAY + timedelta(minutes=5))
        with pytest.raises(OrderViolation, match="may be deleted from"):
            lake.move()
        assert lake.contents() == before
        assert not lake.examine().is_due

    def test_not_without_a_name(self, lake: Lake) -> None:
        lake.look_a_day_ago()
        with pytest.raises(ConfigurationError, match="name"):
            next(deletion.move(lake.opened(), lake.uri, " ", "test", quiet, quiet))

    def test_an_unchanged_place_keeps_its_first_look(self, lake: Lake) -> None:
        lake.look_a_day_ago()
        first = lake.act()
        examined = lake.examine()
        assert (examined.act, examined.is_due, examined.changes) == (first, True, "")

    @pytest.mark.parametrize("name", BETWEEN)
    def test_a_change_keeps_everything(self, lake: Lake, name: str) -> None:
        history = BETWEEN[name]
        lake.fill_long_ago("extra", "extra")
        lake.look_a_day_ago()
        history.happens(lake)
        before = lake.contents()
        with pytest.raises(GuardTripped, match=history.why):
            lake.move()
        assert lake.contents() == before and lake.in_quarantine() == []
        assert lake.act().state is OrphanState.SEEN
        with history.without_guards():
            assert lake.move() and lake.contents() == {}, "the guard is needed"
        clients.call(lake.server, "DELETE", f"/repositories/{lake.name('extra')}")

    def test_after_a_change_the_day_begins_anew(self, lake: Lake) -> None:
        lake.look_a_day_ago()
        first = lake.act()
        lake.write("gone/_lakefs/more")
        examined = lake.examine()
        assert "1 object new, such as gone/_lakefs/more" in examined.changes and not examined.is_due
        assert examined.act.act_id != first.act_id and examined.act.objects == first.objects + 1
        folders = lake.opened().store.list_level(layout.RUNS_PREFIX).prefixes
        assert f"{layout.RUNS_PREFIX}{first.act_id}/" not in folders

    def test_look_killed_after_a_change_can_be_repeated(self, lake: Lake) -> None:
        lake.examine()
        lake.data_file().unlink()
        with mock.patch.object(deletion, "_record", side_effect=StorageError("killed")), pytest.raises(StorageError):
            lake.examine()
        assert "1 object gone" in lake.examine().changes

    def test_a_changed_record_or_listing_is_not_believed(self, lake: Lake) -> None:
        lake.look_a_day_ago()
        store, act = lake.opened().store, lake.act()
        key = deletion._objects_key(act.act_id)
        data = store.get(key)
        store.put(key, data[:-4] + b"PAR2")
        with pytest.raises(CorruptFile):
            lake.move()
        tables.put(store, key, tables.decode(looks.OBJECTS, data, key, "objects").slice(1))
        with pytest.raises(CorruptFile, match="checksum"):
            lake.move()
        store.put(key, data)
        record = deletion._record_key(OrphanPlace.open(lake.opened(), lake.uri))
        store.put(record, store.get(record).replace(b'"seen"', b'"moved"'))
        with pytest.raises(CorruptFile):
            lake.restore()
        store.put(record, records_json.encode(replace(act, place="local://lake/other/")))
        with pytest.raises(OrderViolation, match="is of local://lake/other/"):
            lake.move()


def add_range(lake: Lake) -> None:
    lake.write(f"gone/_lakefs/{'0' * 64}")


MEANWHILE = {
    "a write by a server restored from a backup": History(upload_by_restored_server, [], "names? (is|are) new"),
    "a commit by that server": History(commit_by_restored_server, [], "names? (is|are) new"),
    "a new file of metadata": History(add_range, [], "1 name"),
    "a repository made anew": History(Lake.make_anew, [], "repository anew"),
    "a rewritten object": History(rewrite, [], "no longer as it was listed"),
}


class TestMeanwhile:
    @pytest.mark.parametrize("name", MEANWHILE)
    def test_a_change_before_a_batch_keeps_the_rest(self, lake: Lake, name: str) -> None:
        history = MEANWHILE[name]
        before = lake.contents()
        lake.look_a_day_ago()
        with mock.patch.object(sweeping, "BATCH", 2):
            moving = lake.moving()
            next(moving)
            history.happens(lake)
            left = lake.contents()
            with pytest.raises(GuardTripped, match=history.why):
                list(moving)
        assert lake.contents() == left and len(left) >= len(before) - 3
        assert {*lake.restore()} <= {RestoreFate.RESTORED, RestoreFate.THERE}
        now = lake.contents()
        changed = {lake.name_of(lake.data_file()), "_lakefs/dummy"}
        assert {name: now[name] for name in before if name not in changed} == {
            name: data for name, data in before.items() if name not in changed
        }

    def test_store_without_promised_order_lists_the_folders_of_a_batch(self, lake: Lake) -> None:
        lake.look_a_day_ago()
        unordered = type("Unordered", (), {})
        with mock.patch.object(sweeping, "BATCH", 2), mock.patch.object(looks, "ListsInOrder", unordered):
            moving = lake.moving()
            assert next(moving).fate is OrphanFate.MOVED
            rewrite(lake)
            with pytest.raises(GuardTripped, match="no longer as it was listed"):
                list(moving)

    @pytest.mark.parametrize("name", MEANWHILE)
    def test_without_the_look_before_a_batch_the_change_is_missed(self, lake: Lake, name: str) -> None:
        lake.look_a_day_ago()
        with (
            mock.patch.object(sweeping, "BATCH", 2),
            mock.patch.object(deletion, "require_unchanged", _pass),
            mock.patch.object(deletion, "look", _first_only()),
        ):
            moving = lake.moving()
            next(moving)
            MEANWHILE[name].happens(lake)
            assert {each.fate for each in moving} == {OrphanFate.MOVED}, "the guard is needed"

    def test_each_pass_looks_at_the_whole_place(self, lake: Lake) -> None:
        """A new object in an old slice has no new name in a folder that is looked at before each batch."""
        lake.look_a_day_ago()
        new = lake.data_file().with_name(layout.XidGenerator().ascending(datetime.now(UTC)))
        with mock.patch.object(sweeping, "BATCH", 2), mock.patch.object(Validity, "countdown", _one_batch()):
            moving = lake.moving()
            next(moving)
            new.write_bytes(b"new")
            with pytest.raises(GuardTripped, match="1 object new"):
                list(moving)
        assert new.exists()

    def test_a_lock_that_is_lost_ends_it(self, lake: Lake) -> None:
        lake.look_a_day_ago()
        with mock.patch.object(sweeping, "BATCH", 2):
            moving = lake.moving()
            next(moving)
            left = lake.contents()
            lake.opened().store.delete([f"{layout.RUNS_PREFIX}lock.json"])
            with pytest.raises(CollectionError, match="lock"):
                list(moving)
        assert lake.contents() == left


def _first_only() -> Callable[..., Any]:
    """Looks once, and then finds the same objects, except deleted ones."""
    seen = list[Any]()

    def look(place: OrphanPlace, read: Any, note: Any) -> Any:
        if not seen:
            seen.append(looks.look(place, read, note))
            return seen[0]
        return replace(seen[0], objects=seen[0].objects.slice(0, 0))

    return look


def _one_batch() -> Callable[..., Any]:
    """Countdowns that are over after one batch."""

    def countdown(*arguments: object) -> Any:
        answers = itertools.chain([False] * 4, itertools.repeat(True))
        return mock.Mock(is_over=lambda: next(answers))

    return countdown


BEFORE_PURGE = {
    "a write by a server restored from a backup": History(upload_by_restored_server, [], "written there again"),
    "a repository made anew": History(
        lambda lake: fill(lake.server, lake.name("anew"), lake.uri), [], "repository anew"
    ),
}


class TestPurge:
    @pytest.mark.parametrize("name", BEFORE_PURGE)
    def test_a_place_in_use_keeps_the_copies(self, lake: Lake, name: str) -> None:
        lake.look_a_day_ago()
        lake.move()
        copies = lake.in_quarantine()
        lake.configure(quarantine_days=0)
        BEFORE_PURGE[name].happens(lake)
        with pytest.raises(GuardTripped, match=BEFORE_PURGE[name].why):
            lake.purge()
        assert lake.in_quarantine() == copies
        with mock.patch.object(deletion, "_unused", _believe_unused):
            assert {*lake.purge()} == {PurgeFate.PURGED}, "the guard is needed"

    def test_an_entry_that_points_there_keeps_the_copies(self, lake: Lake) -> None:
        lake.look_a_day_ago()
        name = lake.name_of(lake.data_file())
        lake.move()
        lake.configure(quarantine_days=0)
        staged = {"physical_address": lake.uri + name, "checksum": "0" * 32, "size_bytes": 1}
        path = f"/repositories/{lake.name('one')}/branches/main/objects"
        assert clients.call(lake.server, "PUT", path, staged, path="linked")[0] < 300
        clients.commit(lake.server, "linked", name=lake.name("one"))
        with pytest.raises(GuardTripped, match="imported objects from there"):
            lake.purge()


def _believe_unused(place: OrphanPlace, *arguments: object) -> Any:
    moment = Moment.now(place.repository.clock)
    return lambda moved: PurgeVerdict(frozenset(), frozenset(), moment)


class TestCommand:
    def call(self, lake: Lake, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["orphans", arguments[0], "--config", str(lake.file), *arguments[1:]])
        return result.exit_code, result.output

    def test_the_whole_life(self, lake: Lake) -> None:
        stated = "--no-other-server-uses-it"
        before = lake.contents()
        status, output = self.call(lake, "delete", lake.uri)
        assert status == Status.USAGE and stated in output
        status, output = self.call(lake, "delete", lake.uri, stated)
        assert status == Status.WELL and "nothing was deleted" in output
        assert f'`lakefs-gc orphans delete {lake.uri} {stated} --approve "YOUR NAME"` moves it' in output
        assert self.call(lake, "delete", lake.uri, stated, "--approve", "Ada", "--yes")[0] != Status.WELL
        lake.change_record(looked_at=datetime.now(UTC) - DAY - timedelta(minutes=1))
        status, output = self.call(lake, "delete", lake.uri, stated, "--json", "--quiet")
        require_documented("orphans delete --json", json.loads(output))
        assert json.loads(output)["objects"] == len(before) == len(lake.contents())
        assert self.call(lake, "delete", lake.uri, stated, "--approve", "Ada")[0] != Status.WELL, "not confirmed"
        with mock.patch.object(orphans_command, "require_yes_or_terminal", _pass):
            status, output = self.call(lake, "delete", lake.uri, stated, "--approve", "Ada")
        assert status != Status.WELL and f"Move {len(before)} objects, " in output
        assert lake.contents() == before
        status, output = self.call(lake, "delete", lake.uri, stated, "--approve", "Ada", "--yes", "--quiet")
        assert (status, output) == (Status.WELL, f"{len(before)} moved to quarantine\n")
        status, output = self.call(lake, "purge", lake.uri, "--yes")
        assert status != Status.WELL and "may be purged from" in output
        status, output = self.call(lake, "restore", lake.uri, "--yes")
        assert (status, output) == (Status.WELL, f"{len(before)} restored\n") and lake.contents() == before


def test_in_a_bucket_with_a_signing_key(s3_server: S3Server, tmp_path: Path) -> None:
    """The whole life over S3: copies, receipts and records of the configured repository, signed."""
    bucket = s3_server.new_bucket()
    settings = s3_server.settings()
    with demo.open_server(tmp_path / "server", "oss", f"s3://{bucket}/lakes", settings) as server:
        fill(server, "one", f"s3://{bucket}/lakes/one")
        client = s3_server.client()

        def contents(folder: str) -> Contents:
            listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{folder}/").get("Contents", [])
            return {each["Key"]: client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read() for each in listed}

        for key, data in contents("lakes/one").items():
            client.put_object(Bucket=bucket, Key=key.replace("lakes/one/", "lakes/gone/"), Body=data)
        before, uri = contents("lakes/gone"), f"s3://{bucket}/lakes/gone/"
        content = {
            "repository": "one",
            "lakefs": {
                "endpoint": server.url,
                "access_key_id": server.access_key_id,
                "secret_access_key": {"env": SECRET_VARIABLE},
            },
            "store": {
                "endpoint_url": settings.endpoint_url,
                "path_style": True,
                "region": settings.region,
                "access_key_id": settings.access_key_id,
                "secret_access_key": {"env": "TEST_STORE_SECRET"},
                "signing_key": {"env": "TEST_SIGNING_KEY"},
            },
            "collection": {"quarantine_days": 0},
        }
        (tmp_path / "lakefs-gc.yaml").write_text(yaml.safe_dump(content))
        secrets = {
            SECRET_VARIABLE: server.secret_access_key,
            "TEST_STORE_SECRET": settings.secret_access_key,
            "TEST_SIGNING_KEY": "k" * 32,
        }
        with mock.patch.dict(os.environ, secrets), mock.patch.object(looks, "QUIET", -timedelta(minutes=1)):
            opened = open_repository(loaded_configuration(tmp_path / "lakefs-gc.yaml", None))

            def moved() -> list[OrphanOutcome]:
                deletion.examine(opened, uri, "test", quiet, pytest.fail)
                with mock.patch.object(deletion, "WAIT", -timedelta(minutes=1)):
                    return [*deletion.move(opened, uri, "Ada", "test", quiet, pytest.fail)]

            def purged() -> list[PurgeFate]:
                # The server's and the service's times have whole seconds: the move was in the future by them.
                with server.clock.at(datetime.now(UTC) + timedelta(minutes=1)):
                    again = open_repository(loaded_configuration(tmp_path / "lakefs-gc.yaml", None))
                    return [each.fate for each in deletion.purge(again, uri, "test", quiet, pytest.fail)]

            assert {each.address for each in moved()} == before.keys() and contents("lakes/gone") == {}
            back = [*deletion.restore(opened, uri, "test", pytest.fail)]
            assert {each.fate for each in back} == {RestoreFate.RESTORED} and contents("lakes/gone") == before
            assert len(purged()) == len(before) and contents("lakes/gone") == before
            assert len(moved()) == len(before)
            assert purged() == [PurgeFate.PURGED] * len(before)
            assert contents("lakes/gone") == {}


def test_nothing_outside_of_the_place_is_deleted(lake: Lake) -> None:
    place = OrphanPlace.open(lake.opened(), lake.uri)
    token = LockToken("")
    quarantine = PlaceQuarantine(place.store, "orphan-1", token, SystemClock(), place=place, names={})
    quarantine.check_names(["gone/data/x", "gone/_lakefs/dummy"])
    for address in ("one/data/x", "gone", "_lakefs/retention/gc/uncommitted/lock.json"):
        with pytest.raises(CollectionError, match="is not in local://"):
            quarantine.check_names(["gone/data/x", address])
    with pytest.raises(ValueError, match="either"):
        place.store.delete(["gone/data/x", "_lakefs/x"])


def listing(**facts: dict[str, Any]) -> pa.Table:
    """A listing (OBJECTS) of objects by name, with some facts of each."""
    usual = {"size": 1, "last_modified": datetime(2025, 1, 1, tzinfo=UTC), "etag": "e", "slice_window": "legacy"}
    rows = [{"address": name, **usual, **stated} for name, stated in facts.items()]
    return pa.Table.from_pylist(rows, looks.OBJECTS)


@pytest.mark.parametrize(
    ("fact", "value"), [("size", 2), ("last_modified", datetime(2025, 1, 2, tzinfo=UTC)), ("etag", "f"), ("etag", None)]
)
def test_each_fact_of_an_object_is_compared(fact: str, value: object) -> None:
    nothing = pa.array([], pa.string())
    before, after = listing(a={}, b={}), listing(a={}, b={fact: value})
    assert looks.describe_changes(before, after, nothing) == "1 object changed, such as b"
    assert looks.describe_changes(after, before, nothing) == "1 object changed, such as b"
    assert looks.describe_changes(after, after, nothing) == ""
    moved = pa.array(["a"])
    assert looks.describe_changes(after, after.slice(1), moved) == "", "an equal null is no change"
    assert looks.describe_changes(after, after.slice(1), nothing) == "1 object gone, such as a"
    assert looks.describe_changes(before.slice(1), before, moved) == "1 object new, such as a"
