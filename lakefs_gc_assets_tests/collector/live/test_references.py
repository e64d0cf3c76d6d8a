from dataclasses import replace
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.commits import CommitSource, live_commits
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.live.current import Unread, find_unread
from lakefs_gc_assets.collector.live.references import References, Unnamed, find_unnamed
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.repository import OpenRepository, SystemClock
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import Branch
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import made_step, opened_by, opener_in
from lakefs_gc_assets_tests.collector.test_commits import LINE
from lakefs_gc_assets_tests.collector.written import Staged, put_dump, put_metarange, put_range
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.made_ranges import range_records
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, REAL, folder_of, recorded_and_made

NOTHING = Unnamed((), range_records([]))


@pytest.fixture
def repository(tmp_path: Path) -> OpenRepository:
    return opened_by(opener_in(tmp_path, "repository"))


def found(repository: OpenRepository, read: set[str], expired: tuple[str, ...] = ()) -> Unnamed:
    references = References.from_step(made_step(LocalEngine(), repository))
    return find_unnamed(repository.store, references, read, references.range_records(expired).ids | IdSet(expired))


def held(repository: OpenRepository, unnamed: Unnamed) -> set[str]:
    """Addresses that unnamed ranges hold."""
    step = made_step(LocalEngine(), repository)
    unread = Unread(repository, CommitSource.REFS_DUMP, unnamed.ids, unnamed.records, ())
    return set(step.engine.collect(unread.addresses(step)).column("address").to_pylist())


def entry(name: str) -> dict[str | bytes, Staged]:
    return {name: Staged(f"data/{name}")}


def test_ranges_of_a_metarange_and_ranges_of_none(repository: OpenRepository) -> None:
    store = repository.store
    own, another, alone = (put_range(store, entry(name)) for name in ("own", "another", "alone"))
    metarange = put_metarange(store, [own])
    other = put_metarange(store, [own, another])

    unnamed = found(repository, {metarange, own.id})

    assert set(unnamed.ids) == {other, another.id, alone.id}
    assert {record.id for record in unnamed.records} == {another.id, alone.id}
    assert held(repository, unnamed) == {"data/another", "data/alone"}
    assert found(repository, {metarange, own.id, *unnamed.ids}) == NOTHING


def test_a_range_that_an_unnamed_metarange_names_is_read_once(repository: OpenRepository) -> None:
    part = put_range(repository.store, entry("part"))
    put_metarange(repository.store, [part])
    assert [record.id for record in found(repository, set()).records] == [part.id]


def test_two_statements_about_one_range_end_the_run(repository: OpenRepository) -> None:
    part = put_range(repository.store, entry("part"))
    put_metarange(repository.store, [replace(part, count=2)])
    with pytest.raises(CorruptFile, match="its metarange says"):
        held(repository, found(repository, set()))


def test_what_expired_commits_name_is_no_sign_of_another_repository(repository: OpenRepository) -> None:
    expired = put_metarange(repository.store, [put_range(repository.store, entry("expired"))])
    assert found(repository, set(), (expired,)) == NOTHING


def test_a_range_of_an_expired_commit_stays_where_an_unnamed_metarange_names_it(repository: OpenRepository) -> None:
    store = repository.store
    part, new = put_range(store, entry("expired")), put_range(store, entry("new"))
    expired, other = put_metarange(store, [part]), put_metarange(store, [part, new])

    unnamed = found(repository, set(), (expired,))

    assert set(unnamed.ids) == {other, new.id}
    assert held(repository, unnamed) == {"data/expired", "data/new"}


def test_tables_of_refs_dumps_hold_no_objects(repository: OpenRepository) -> None:
    put_dump(repository.store, LINE, [Branch("main", LINE[-1].id)], [Branch("v1", LINE[-1].id)])
    unnamed = found(repository, set())
    assert len(unnamed.ids) == 7 and not unnamed.records


@pytest.mark.parametrize("whole", [False, True])
def test_a_file_that_cannot_be_read_ends_the_run_and_names_the_setting(repository: OpenRepository, whole: bool) -> None:
    part = put_range(repository.store, entry("part"))
    key = f"_lakefs/{part.id}"
    data = bytearray(repository.store.get(key))
    data[3] ^= 1
    repository.store.put(key, bytes(data) if whole else b"short")
    with pytest.raises(
        CorruptFile, match=r"no commit of the repository refers to the file.*collection.keep_unnamed_ranges"
    ):
        found(repository, set())


ORPHANS = {"small": 1} if REAL else {}
"""Ranges of objects that no commit references: each import on a real server leaves one, of outside objects."""
RECORDINGS = ["small", "merge-dangling", "chain/1", "chain/2", "chain/3", "chain/4", "empty", "wide"]
DAGS = sorted(f"random-dag/{folder.name}" for folder in (FIXTURES / "random-dag").glob("*"))


@pytest.mark.parametrize("name", recorded_and_made(*RECORDINGS, *DAGS))
def test_what_servers_leave_keeps_no_object_of_the_repository(name: str) -> None:
    with ReplayServer(folder_of(name)) as server:
        given = server.configuration()
        namespace = Namespace.parse(server.storage_namespace)
        opener = StoreOpener(given.store, namespace.uri)
        settings = CollectionSettings(wait_before_dump_seconds=0)
        api = LakeFSClient(given.lakefs, server.repository, SystemClock())
        opened = OpenRepository(api.repository(), namespace, api, opener.open(), opener, settings, SystemClock())
        live = live_commits(opened, server.recorded_at)
        named = find_unread(made_step(LocalEngine(), opened), opened, live, frozenset())
        unnamed = found(opened, {*named.ids, *live.dump_tables})

        assert len(unnamed.records) == ORPHANS.get(name, 0)
        assert held(opened, unnamed) == set()
