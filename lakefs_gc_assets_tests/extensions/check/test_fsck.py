"""Damage of every kind is made in a repository of the embedded server, and found; an intact one has none."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pytest

from lakefs_gc_assets.cli.common import loaded_configuration, open_repository
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.live import uncommitted
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.survey import Finding, FindingKind
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.errors import AccessDenied, CorruptFile, LakeFSError, NotFound, ServerUnavailable, StorageError
from lakefs_gc_assets.extensions.check.fsck import EVERYTHING, Checkup, check
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.api.models import LakeFSApi
from lakefs_gc_assets.lakefs.formats import ranges, refs
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.storage.interface import ObjectFacts, ObjectStore, keys_below
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE, RetainedRepository, with_history

Damage = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RetainedRepository]:
    """Versions of a file by age, and a staged object; by the rules, only branch `dev` holds the second version."""
    folder = tmp_path_factory.mktemp("fsck")
    with EmbeddedServer(folder / "server", routes=ROUTES) as server:
        repository = with_history(server, folder)
        repository.rules(7, main=28)
        repository.put("staged one", "staged")
        repository.configuration()
        with mock.patch.dict(os.environ, {SECRET_VARIABLE: server.secret_access_key}):
            yield repository


def opened(made: RetainedRepository) -> OpenRepository:
    loaded = loaded_configuration(made.folder / "lakefs-gc.yaml", None)
    repository = open_repository(loaded, to_read=True)
    settings = repository.settings.model_copy(update={"wait_before_dump_seconds": 0})
    return replace(repository, settings=settings)


def checked(made: RetainedRepository, **options: Any) -> Checkup:
    return check(opened(made), LocalEngine(), lambda line: None, **options)


def store_of(made: RetainedRepository) -> LocalStore:
    return LocalStore(made.server.objects_folder / "repo")


@contextmanager
def damaged(made: RetainedRepository, key: str, damage: Damage | None = None) -> Iterator[None]:
    """Removes an object or file, or changes its content."""
    store = store_of(made)
    content = store.get(key)
    if damage is None:
        store.delete([key])
    else:
        store.put(key, damage(content))
    try:
        yield
    finally:
        store.put(key, content)


def only(checkup: Checkup) -> Finding:
    (finding,) = checkup.findings
    return finding


def places(finding: Finding) -> set[str]:
    return {f"{place.reference} {place.path}" for place in finding.places}


class Asked:
    """A server or a store with other answers to some calls."""

    def __init__(self, real: object, **answers: Callable[..., Any]) -> None:
        self._real, self._answers = real, answers

    def __getattr__(self, name: str) -> Any:
        return self._answers.get(name) or getattr(self._real, name)


class TestWhole:
    def test_nothing_is_found_and_nothing_is_written_but_what_the_server_writes(self, made: RetainedRepository) -> None:
        store = store_of(made)
        before = {*keys_below(store, "")}
        for options in ({}, {"deep": EVERYTHING}, {"every_commit": True, "deep": EVERYTHING}):
            checkup = checked(made, **options)
            assert (checkup.findings, checkup.unchecked, checkup.verdict) == ((), (), "whole")
        assert checkup.contents_read == len({*made.addresses.values()})
        written = {*keys_below(store, "")} - before
        notes = {key for key in written if key.startswith("_lakefs/retention/gc/uncommitted/explained/")}
        assert len(notes) == len(uncommitted.recorded_preparations(store, None)) == 3
        for note in notes:
            uncommitted.remove_preparation_without_run(store, note.rpartition("/")[2])
        dumped = {
            key for key in {*keys_below(store, "")} - before if not key.startswith(METADATA_PREFIX + "retention/")
        }
        assert all(len(key) == len(METADATA_PREFIX) + 64 for key in dumped)

    def test_a_sample_reads_as_many_contents_as_asked_for(self, made: RetainedRepository) -> None:
        assert checked(made, deep=2).contents_read == 2

    def test_expired_commits_are_checked_where_asked_for(self, made: RetainedRepository) -> None:
        with damaged(made, made.addresses["v1"]):
            tagged = checked(made)
            assert "tag v1.0 file" in places(only(tagged))


class TestObjects:
    def test_missing(self, made: RetainedRepository) -> None:
        with damaged(made, made.addresses["v4"]):
            finding = only(checked(made))
        assert (finding.kind, finding.address) == (FindingKind.MISSING, made.addresses["v4"])
        assert finding.detail == "it is not in the object store; no run deleted it"
        assert "branch main file" in places(finding)
        assert {place.commit_id for place in finding.places} >= {made.commits["fourth"]}

    def test_truncated(self, made: RetainedRepository) -> None:
        with damaged(made, made.addresses["other"], lambda content: content[:-1]):
            finding = only(checked(made))
        assert (finding.kind, finding.address) == (FindingKind.SIZE, made.addresses["other"])
        assert finding.detail == "it has 4 bytes, its entry says 5" and "branch dev elsewhere" in places(finding)

    def test_same_size_other_content(self, made: RetainedRepository) -> None:
        with damaged(made, made.addresses["v4"], lambda content: content[::-1]):
            assert not checked(made).findings, "this store tells no MD5"
            finding = only(checked(made, deep=EVERYTHING))
        assert (finding.kind, finding.address) == (FindingKind.CONTENT, made.addresses["v4"])
        assert "branch main file" in places(finding)

    def test_a_store_that_tells_md5s_shows_other_content_at_once(self, made: RetainedRepository) -> None:
        repository, real = opened(made), store_of(made)
        digest = "0" * 32

        def head(key: str) -> ObjectFacts:
            return replace(real.head(key), etag=digest, md5=digest)

        def list_between(*arguments: Any, **options: Any) -> Iterator[Any]:
            for batch in real.list_between(*arguments, **options):
                etags = pa.array([digest] * batch.num_rows)
                yield batch.set_column(batch.schema.get_field_index("etag"), "etag", etags)

        store = cast(ObjectStore, Asked(real, head=head, list_between=list_between))
        opener = mock.Mock(open=lambda: store)
        changed = replace(repository, store=store, opener=opener)
        kinds = {finding.kind for finding in check(changed, LocalEngine(), lambda line: None).findings}
        assert kinds == {FindingKind.CONTENT}

    def test_an_entry_with_a_wrong_size(self, tmp_path: Path) -> None:
        with EmbeddedServer(tmp_path / "server", routes=ROUTES) as server:
            alone = RetainedRepository(server, tmp_path)
            clients.repository(server)
            alone.put("one")
            alone.commit("first", 0)
            alone.configuration()
            address = f"{server.core.blockstore.scheme}repo/{alone.addresses['one']}"
            body = {"physical_address": address, "checksum": "0" * 32, "size_bytes": 77}
            with mock.patch.dict(os.environ, {SECRET_VARIABLE: server.secret_access_key}):
                clients.call(server, "PUT", "/repositories/repo/branches/main/objects", body, path="wrong")
                staged = only(checked(alone))
                elsewhere = {**body, "physical_address": f"{server.core.blockstore.scheme}elsewhere/object"}
                clients.call(server, "PUT", "/repositories/repo/branches/main/objects", elsewhere, path="elsewhere")
                alone.commit("second", 0)
                lines = list[str]()
                committed = only(check(opened(alone), LocalEngine(), lines.append))
        assert staged.detail == committed.detail == "it has 3 bytes, its entry says 77"
        assert [line for line in lines if line.startswith("1 entry is not compared: their objects lie outside")]
        assert places(staged) >= {"staged on branch main wrong"} and "branch main wrong" in places(committed)

    def test_staged(self, made: RetainedRepository) -> None:
        with damaged(made, made.addresses["staged one"]):
            finding = only(checked(made))
        assert finding.kind is FindingKind.MISSING and places(finding) == {"staged on branch main staged"}
        with damaged(made, made.addresses["staged one"], lambda content: b"other"):
            assert only(checked(made)).detail == "it has 5 bytes, its entry says 10"
        with damaged(made, made.addresses["staged one"], lambda content: content[::-1]):
            finding = only(checked(made, deep=EVERYTHING))
        assert finding.kind is FindingKind.CONTENT and places(finding) == {"staged on branch main staged"}

    def test_in_quarantine_and_referenced(self, made: RetainedRepository) -> None:
        store, address, run_id = store_of(made), made.addresses["v4"], "9m4e2mr0ui3e8a215n4g"
        copy = sweeping.key(run_id, address)
        store.put(copy, store.get(address))
        try:
            assert not checked(made).findings, "a copy beside the object is no damage"
            with damaged(made, address):
                finding = only(checked(made))
        finally:
            store.delete([copy])
        assert finding.kind is FindingKind.QUARANTINED
        assert f"lakefs-gc restore {run_id} --address {address}" in finding.remedy

    def test_a_folder_of_the_quarantine_that_cannot_be_listed_keeps_no_other_unread(
        self, made: RetainedRepository
    ) -> None:
        store, address = store_of(made), made.addresses["v4"]
        copies = [sweeping.key(f"9m4e2mr0ui3e8a215n{number}g", address) for number in (1, 2, 3)]
        store.put(copies[1], b"another")
        for copy in (copies[0], copies[2]):
            store.put(copy, store.get(address))
        list_below = LocalStore.list

        def fail(self: LocalStore, prefix: str) -> object:
            if prefix == sweeping.key("9m4e2mr0ui3e8a215n2g", ""):
                raise StorageError("403")
            return list_below(self, prefix)

        try:
            with damaged(made, address), mock.patch.object(LocalStore, "list", fail):
                checkup = checked(made)
        finally:
            store.delete(copies)
        assert only(checkup).kind is FindingKind.QUARANTINED
        assert "9m4e2mr0ui3e8a215n3g" in only(checkup).remedy
        assert [each for each in checkup.unchecked if each.endswith("n2g/: 403")]


def _metarange(made: RetainedRepository, commit: str) -> str:
    return str(made.call("GET", f"/commits/{made.commits[commit]}")["meta_range_id"])


def _range(made: RetainedRepository, commit: str) -> str:
    key = METADATA_PREFIX + _metarange(made, commit)
    return ranges.read_metarange(store_of(made).get(key), key)[0].id


BROKEN = {"missing": None, "garbled": lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:]}


class TestMetadata:
    @pytest.mark.parametrize("how", BROKEN)
    @pytest.mark.parametrize(
        ("named", "detail"),
        [(_range, "It holds 1 entry, from file to file"), (_metarange, "")],
        ids=["range", "metarange"],
    )
    def test_a_range_or_metarange(
        self, made: RetainedRepository, how: str, named: Callable[[RetainedRepository, str], str], detail: str
    ) -> None:
        key = METADATA_PREFIX + named(made, "fourth")
        with damaged(made, key, BROKEN[how]), damaged(made, made.addresses["other"]):
            checkup = checked(made)
        assert {finding.address: finding.kind for finding in checkup.findings} == {
            key: FindingKind.METADATA,
            made.addresses["other"]: FindingKind.MISSING,
        }
        (finding,) = (finding for finding in checkup.findings if finding.kind is FindingKind.METADATA)
        assert detail in finding.detail and places(finding) == {"branch main "}

    def test_a_file_that_no_commit_names(self, made: RetainedRepository) -> None:
        store, key = store_of(made), METADATA_PREFIX + "f" * 64
        store.put(key, b"strange")
        try:
            finding = only(checked(made))
        finally:
            store.delete([key])
        assert finding.address == key and "no commit of the repository refers to the file" in finding.detail

    @pytest.mark.parametrize("entity", ["commits", "branches", "tags"])
    def test_a_table_of_the_refs_dump(self, made: RetainedRepository, entity: str) -> None:
        def fail(*arguments: object, **options: object) -> None:
            raise CorruptFile("_lakefs/table", "magic", "garbled")

        with mock.patch.object(refs, f"read_{entity}", fail), damaged(made, made.addresses["v4"]):
            checkup = checked(made)
        assert {finding.kind for finding in checkup.findings} == {FindingKind.METADATA, FindingKind.MISSING}
        assert checkup.unchecked == ("commits of repo that no branch or tag names, since _lakefs/table is damaged",)

    def test_a_commit_that_the_server_does_not_know(self, made: RetainedRepository) -> None:
        repository = opened(made)
        real = repository.api

        def refuse() -> str:
            raise AccessDenied("no")

        def commit(commit_id: str) -> object:
            if commit_id == made.commits["of dev"]:
                raise NotFound("no such commit")
            return real.commit(commit_id)

        api = cast(LakeFSApi, Asked(real, start_refs_dump=refuse, commit=commit))
        checkup = check(replace(repository, api=api), LocalEngine(), lambda line: None)
        finding = only(checkup)
        assert finding.address == f"commit {made.commits['of dev']}" and places(finding) == {"branch dev "}
        assert checkup.unchecked and checkup.unchecked[0].startswith("commits of repo that no branch or tag names")

    def test_a_commit_that_the_server_fails_at_keeps_no_other_unchecked(self, made: RetainedRepository) -> None:
        repository = opened(made)
        real, asked_for = repository.api, list[str]()

        def refuse() -> str:
            raise AccessDenied("no")

        def commit(commit_id: str) -> object:
            asked_for.append(commit_id)
            if len(asked_for) == 2:
                raise ServerUnavailable("500")
            return real.commit(commit_id)

        api = cast(LakeFSApi, Asked(real, start_refs_dump=refuse, commit=commit))
        checkup = check(replace(repository, api=api), LocalEngine(), lambda line: None)
        assert not checkup.findings and len({*asked_for}) > 2
        (skipped,) = [each for each in checkup.unchecked if "500" in each]
        assert skipped == "objects that branch main of repo needs: 500"

    def test_another_repository_that_cannot_be_looked_at_is_not_checked_and_the_rest_is(
        self, made: RetainedRepository
    ) -> None:
        repository = opened(made)

        def fail(*arguments: object) -> None:
            raise ServerUnavailable("gone")

        away = cast(LakeFSApi, Asked(repository.api, branches=fail, start_refs_dump=fail))
        others = tuple(
            replace(repository, facts=replace(repository.facts, id=name), api=api, others=())
            for name, api in (("second", away), ("third", repository.api))
        )
        with damaged(made, made.addresses["v4"]):
            checkup = check(replace(repository, others=others), LocalEngine(), lambda line: None)
        assert {place.repository for place in only(checkup).places} == {"repo", "third"}
        assert checkup.unchecked == (
            "objects that repository second needs: gone",
            "sizes of objects staged in second: gone",
        )

    def test_uncommitted_data_that_cannot_be_had(self, made: RetainedRepository) -> None:
        repository = opened(made)

        def refuse(token: str | None) -> object:
            raise LakeFSError("broken")

        api = cast(LakeFSApi, Asked(repository.api, prepare_uncommitted=refuse))
        with damaged(made, made.addresses["staged one"]):
            checkup = check(replace(repository, api=api), LocalEngine(), lambda line: None)
        assert only(checkup).address == made.addresses["staged one"], "the branch shows it"
        assert checkup.unchecked[0].startswith("staged objects that no branch lists")

    def test_damaged_uncommitted_data(self, made: RetainedRepository) -> None:
        def fail(*arguments: object) -> None:
            raise CorruptFile("some.parquet", "uncommitted data", "garbled")

        with mock.patch("lakefs_gc_assets.collector.live.live_files.read_addresses", fail):
            finding = only(checked(made))
        assert (finding.kind, finding.address) == (FindingKind.METADATA, "some.parquet")


def test_another_repository_on_the_very_same_namespace(made: RetainedRepository) -> None:
    repository = opened(made)
    real = repository.api
    other = replace(repository.facts, id="other")
    api = cast(LakeFSApi, Asked(real, repositories=lambda: (*real.repositories(), other)))
    finding = only(check(replace(repository, api=api), LocalEngine(), lambda line: None))
    assert (finding.kind, finding.address) == (FindingKind.SHARED, "other")


def test_two_repositories_on_one_namespace(made: RetainedRepository) -> None:
    body = {"name": "inner", "storage_namespace": f"{made.server.core.blockstore.scheme}repo/data/inner"}
    assert clients.call(made.server, "POST", "/repositories", body)[0] == 201
    try:
        finding = only(checked(made))
    finally:
        clients.call(made.server, "DELETE", "/repositories/inner", force="true")
    assert (finding.kind, finding.address) == (FindingKind.SHARED, "inner")
