import base64
import io
import json
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import Item, ReadItem
from lakefs_gc_assets.collector.live import uncommitted
from lakefs_gc_assets.collector.live.uncommitted import Prepared, StagedSample, read_addresses
from lakefs_gc_assets.collector.repository.repository import OpenRepository, SystemClock
from lakefs_gc_assets.errors import CorruptFile, GuardTripped, LakeFSError, NotFound, OrderViolation, ServerUnavailable
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import Branch, DiffEntry, ObjectStats, UncommittedPage
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.made_frames import opened_by, opener_in
from lakefs_gc_assets_tests.collector.scripted import NOW, HandClock, Script, ScriptedApi, branches, opened, page
from lakefs_gc_assets_tests.collector.written import put_uncommitted
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, folder_of, needs_recordings, recorded_and_made

NAMESPACE = Namespace.parse("s3://bucket/repo")
SETTINGS = CollectionSettings()
PREFIX = "_lakefs/retention/gc/uncommitted/{}/uncommitted/"
LOCATION = "s3://bucket/repo/" + PREFIX
CUTOFF = NOW - timedelta(hours=25)
ISSUE = layout.XidGenerator()
OLD_SLICE = ISSUE.descending(CUTOFF - timedelta(days=3))


def name(age: timedelta) -> str:
    """An address of this age in an old slice."""
    return f"data/{OLD_SLICE}/{ISSUE.ascending(NOW - age)}"


OLD, YOUNG = name(timedelta(days=3)), name(timedelta(hours=2))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def prepare(api: ScriptedApi, store: ObjectStore, clock: HandClock | None = None, **settings: float) -> Prepared:
    chosen = CollectionSettings.model_validate(settings)
    return uncommitted.prepare(opened(api, store, NAMESPACE, chosen, clock))


def written(store: ObjectStore, file: str, *addresses: str, run_id: str = "run1") -> str:
    """Writes a file of a run; returns the run's location."""
    put_uncommitted(store, PREFIX.format(run_id) + file, addresses)
    return LOCATION.format(run_id)


def addresses(store: ObjectStore, prepared: Prepared) -> list[str]:
    return [address for file in prepared.files for address in uncommitted.read_addresses(store, file).to_pylist()]


class TestPages:
    def test_one_page(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x", "data/y")
        api = ScriptedApi(pages=Script(page(location)))
        prepared = prepare(api, store)
        assert addresses(store, prepared) == ["data/x", "data/y"]
        assert (prepared.server_run_ids, prepared.pages, api.tokens) == (("run1",), 1, [None])

    def test_each_page_is_asked_with_the_token_of_the_one_before(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x")
        written(store, "b", "data/y")
        written(store, "c", "data/z")
        api = ScriptedApi(pages=Script(page(location, "t1"), page(location, "t2"), page(location)))
        assert addresses(store, prepare(api, store)) == ["data/x", "data/y", "data/z"]
        assert api.tokens == [None, "t1", "t2"]

    def test_all_pages_count_though_the_last_has_no_location(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x")
        api = ScriptedApi(pages=Script(page(location, "t1"), page("")))
        prepared = prepare(api, store)
        assert addresses(store, prepared) == ["data/x"]
        assert api.tokens == [None, "t1", "t1", "t1"]

    def test_a_place_without_trailing_slash_and_another_scheme(self, store: LocalStore) -> None:
        written(store, "a", "data/x")
        api = ScriptedApi(pages=Script(page("s3a://bucket/repo/" + PREFIX.format("run1").rstrip("/"))))
        assert addresses(store, prepare(api, store)) == ["data/x"]

    def test_a_place_below_the_folder_of_a_servers_local_blockstore(self, store: LocalStore) -> None:
        written(store, "a", "data/x")
        place = "local:///var/lakefs/data/locns/" + PREFIX.format("run1").rstrip("/")
        api, namespace = ScriptedApi(pages=Script(page(place))), Namespace.parse("local://locns")
        prepared = uncommitted.prepare(opened(api, store, namespace))
        assert addresses(store, prepared) == ["data/x"]
        assert prepared.files == (PREFIX.format("run1") + "a",)

    def test_files_of_repeated_pages_count_too(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x")
        written(store, "a-again", "data/x")
        assert addresses(store, prepare(ScriptedApi(pages=Script(page(location))), store)) == ["data/x", "data/x"]

    def test_files_of_another_place_than_the_usual_are_found(self, store: LocalStore) -> None:
        put_uncommitted(store, "_lakefs/elsewhere/f", ["data/x"])
        written(store, "a", "data/y")
        api = ScriptedApi(pages=Script(page("s3://bucket/repo/_lakefs/elsewhere/")))
        assert addresses(store, prepare(api, store)) == ["data/x", "data/y"]

    @pytest.mark.parametrize(
        "location",
        [
            "s3://bucket/repo2/_lakefs/retention/gc/uncommitted/run1/uncommitted/",
            "s3://other/repo/_lakefs/retention/gc/uncommitted/run1/uncommitted/",
            "/_lakefs/retention/gc/uncommitted/run1/uncommitted/",
        ],
    )
    def test_a_page_written_outside_of_the_namespace_ends_the_run(self, store: LocalStore, location: str) -> None:
        written(store, "a", "data/x")
        with pytest.raises(LakeFSError, match="outside of the repository"):
            prepare(ScriptedApi(pages=Script(page(location))), store)

    def test_no_file_is_left_out_where_a_listing_ends_early(self, store: LocalStore, tmp_path: Path) -> None:
        """obstore takes any page that is not a listing, such as a proxy's, for the end of the listing."""

        class EndsEarly(LocalStore):
            def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
                return (batch.slice(0, 1) for batch in super().list(prefix))

        location = written(store, "a", "data/x")
        written(store, "a-again", "data/y")
        prepared = prepare(ScriptedApi(pages=Script(page(location))), EndsEarly(tmp_path))
        assert addresses(store, prepared) == ["data/x", "data/y"]

    def test_fewer_files_than_pages_that_wrote_one_end_the_run(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x")
        api = ScriptedApi(pages=Script(page(location, "t1"), page(location)))
        with pytest.raises(CorruptFile, match="reported 2 files written, but the store lists 1") as refused:
            prepare(api, store)
        assert (refused.value.file, refused.value.check) == (PREFIX.format("run1"), "uncommitted files")
        with pytest.raises(CorruptFile, match="reported 1 file written, but the store lists 0: check that `store`"):
            prepare(ScriptedApi(pages=Script(page(LOCATION.format("run2"), run_id="run2"))), store)

    def test_a_run_id_that_changes_between_pages_ends_the_run(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x")
        api = ScriptedApi(pages=Script(page(location, "t1"), page(location, None, "run2")))
        with pytest.raises(OrderViolation, match="changed its run id from run1 to run2"):
            prepare(api, store)

    def test_a_page_that_fails_ends_the_run(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x")
        api = ScriptedApi(pages=Script(page(location, "t1"), ServerUnavailable("POST: 503")))
        with pytest.raises(ServerUnavailable):
            prepare(api, store)

    def test_times_are_those_around_the_pages(self, store: LocalStore) -> None:
        written(store, "a", "data/x")
        location = written(store, "b", "data/y")
        clock = HandClock(tick=timedelta(minutes=1))
        asked_at = []

        def asked() -> UncommittedPage:
            asked_at.append(clock.now())
            return page(location, "t" if len(asked_at) == 1 else None)

        prepared = prepare(ScriptedApi(pages=Script(asked)), store, clock)
        assert NOW == prepared.started_at < asked_at[0] < asked_at[1] < prepared.ended_at


class TestRepeatedTokens:
    def test_are_legal_while_the_server_works(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x")
        same = [page("", "t1", "run1")] * 400
        api = ScriptedApi(pages=Script(page("", "t1"), page("", "t1"), *same, page(location)))
        prepared = prepare(api, store, HandClock(tick=timedelta(seconds=1)))
        assert addresses(store, prepared) == ["data/x"]

    @pytest.mark.parametrize("limit", [1, 2, 5])
    def test_end_the_run_after_a_number(self, store: LocalStore, limit: int) -> None:
        location = self._files(store, 20)
        api = ScriptedApi(pages=Script(*[page(location, "t1")] * 20, AssertionError("it would never end")))
        with pytest.raises(LakeFSError, match=f"repeated one continuation token {limit} times"):
            prepare(api, store, prepare_page_limit=limit)
        assert len(api.tokens) == limit + 1

    def test_one_less_than_the_number_is_fine(self, store: LocalStore) -> None:
        location = self._files(store, 4)
        api = ScriptedApi(
            pages=Script(page(location, "t1"), page(location, "t1"), page(location, "t1"), page(location))
        )
        assert prepare(api, store, prepare_page_limit=3).pages == 4

    def test_end_the_run_after_a_time(self, store: LocalStore) -> None:
        location = self._files(store, 20)
        api = ScriptedApi(pages=Script(*[page(location, "t1")] * 20, AssertionError("it would never end")))
        with pytest.raises(LakeFSError, match="without progress"):
            prepare(api, store, HandClock(tick=timedelta(minutes=6)))
        assert len(api.tokens) <= 4

    @pytest.mark.parametrize(("seconds", "ends"), [(450, False), (451, True)])
    def test_may_take_as_long_as_the_settings_say(self, store: LocalStore, seconds: int, ends: bool) -> None:
        location = self._files(store, 4)
        tokens = ("t1", "t1", None)
        api = ScriptedApi(pages=Script(*(page(location, token) for token in tokens)))
        clock = HandClock()
        answer = api.pages

        def slow() -> UncommittedPage:
            clock.sleep(2 * seconds if api.pages.calls == 2 else 0)
            return answer()

        api.pages = Script(slow)
        if ends:
            with pytest.raises(LakeFSError, match="repeated one continuation token 1 times in 902 s"):
                prepare(api, store, clock, prepare_timeout_seconds=900)
        else:
            assert prepare(api, store, clock, prepare_timeout_seconds=900).pages == 3

    def test_count_from_the_last_new_one(self, store: LocalStore) -> None:
        location = self._files(store, 20)
        tokens = ["t1", "t1", "t2", "t2", "t3", "t3", "t4", "t4", None]
        api = ScriptedApi(pages=Script(*(page(location, token) for token in tokens)))
        assert prepare(api, store, HandClock(tick=timedelta(minutes=6)), prepare_page_limit=2).pages == len(tokens)

    def test_that_come_back_after_others_end_the_run(self, store: LocalStore) -> None:
        location = self._files(store, 20)
        back_and_forth = [page(location, token) for token in ("t1", "t2") * 10]
        api = ScriptedApi(pages=Script(*back_and_forth, AssertionError("it would never end")))
        with pytest.raises(LakeFSError, match="continuation token"):
            prepare(api, store)
        assert len(api.tokens) < 10

    @pytest.mark.parametrize("path", ["donn\\ufffdes/x", "\\ufffd"])
    def test_that_name_a_path_of_other_bytes_end_the_run(self, store: LocalStore, path: str) -> None:
        """Go's JSON replaces bytes that are not UTF-8, so the server would skip entries behind such a path."""
        location = self._files(store, 2)
        token = self._token(f'{{"branch":"main","path":"{path}","run_id":"run1","key":""}}')
        api = ScriptedApi(pages=Script(page(location, token), page(location)))
        with pytest.raises(LakeFSError, match=r"not UTF-8.*\"branch\":\"main\",\"path\":\"") as ended:
            prepare(api, store)
        assert path in str(ended.value)
        assert api.tokens == [None]

    @pytest.mark.parametrize("path", ["données/x", "a replacement character \ufffd of the path itself", r"\u00e9"])
    def test_that_name_a_path_of_text_are_sent_back(self, store: LocalStore, path: str) -> None:
        location = self._files(store, 2)
        token = self._token(f'{{"branch":"main","path":"{path}","run_id":"run1","key":""}}')
        api = ScriptedApi(pages=Script(page(location, token), page(location)))
        assert prepare(api, store).pages == 2
        assert api.tokens == [None, token]

    @staticmethod
    def _token(content: str) -> str:
        return base64.b64encode(content.encode()).decode()

    @staticmethod
    def _files(store: ObjectStore, count: int) -> str:
        return [written(store, f"f{number}", "data/x") for number in range(count)][-1]


class TestPagesWithoutAFile:
    def test_nothing_uncommitted(self, store: LocalStore) -> None:
        prepared = prepare(ScriptedApi(), store)
        assert (prepared.files, prepared.pages) == ((), 1)

    def test_are_asked_again(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x", run_id="run2")
        api = ScriptedApi(pages=Script(page(""), page(location, None, "run2")))
        prepared = prepare(api, store)
        assert addresses(store, prepared) == ["data/x"]
        assert prepared.server_run_ids == ("run1", "run2")

    def test_are_believed_after_two_more_only(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x", run_id="run3")
        api = ScriptedApi(pages=Script(page(""), page("", None, "run2"), page(location, None, "run3")))
        assert addresses(store, prepare(api, store)) == ["data/x"]
        assert api.tokens == [None] * 3

    def test_one_with_a_file_is_believed_whatever_branches_do(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x", run_id="run3")
        changing = Script(branches("main", "a"), branches("main"), AssertionError("no more is asked"))
        pages = Script(page(""), page("", None, "run2"), page(location, None, "run3"))
        api = ScriptedApi(pages=pages, branch_lists=changing)
        assert addresses(store, prepare(api, store)) == ["data/x"]
        assert api.tokens == [None] * 3

    def test_are_not_believed_while_branches_change(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x", run_id="run9")
        changing = Script(branches("main", "a"), branches("main"), branches("main", "b"), branches("main"), branches())
        empty = [page("", None, f"run{number}") for number in range(5)]
        api = ScriptedApi(pages=Script(*empty, page(location, None, "run9")), branch_lists=changing)
        assert addresses(store, prepare(api, store)) == ["data/x"]

    def test_hidden_branches_count(self, store: LocalStore) -> None:
        changing = Script(branches("main", ".hidden"), branches("main"), branches("main"))
        api = ScriptedApi(pages=Script(page("")), branch_lists=changing)
        prepare(api, store)
        assert len(api.tokens) == 5

    def test_while_branches_never_rest_end_the_run(self, store: LocalStore) -> None:
        names = Script(*(branches("main", f"b{number}") for number in range(200)))
        with pytest.raises(LakeFSError, match="without a location while branches were created and deleted"):
            prepare(ScriptedApi(pages=Script(page("")), branch_lists=names), store)

    def test_what_the_first_try_wrote_all_the_same_is_read(self, store: LocalStore) -> None:
        written(store, "lost", "data/lost", run_id="run1")
        location = written(store, "a", "data/x", run_id="run2")
        api = ScriptedApi(pages=Script(page(""), page(location, None, "run2")))
        assert set(addresses(store, prepare(api, store))) == {"data/lost", "data/x"}

    def test_go_on_with_the_token_of_the_answer_that_was_believed(self, store: LocalStore) -> None:
        location = written(store, "a", "data/x", run_id="run3")
        empty = [page("", f"t{number}", f"run{number}") for number in (1, 2, 3)]
        api = ScriptedApi(pages=Script(*empty, page(location, None, "run3")))
        assert addresses(store, prepare(api, store)) == ["data/x"]
        assert api.tokens == [None, None, None, "t3"]


class TestFiles:
    def test_addresses_as_the_server_spelt_them(self, store: LocalStore) -> None:
        put_uncommitted(store, "f", ["data/a%20b", "s3://bucket/repo/data//x", "é", ""])
        found = uncommitted.read_addresses(store, "f")
        assert found.to_pylist() == ["data/a%20b", "s3://bucket/repo/data//x", "é", ""]

    def test_a_file_without_rows(self, store: LocalStore) -> None:
        put_uncommitted(store, "f", [])
        assert uncommitted.read_addresses(store, "f").to_pylist() == []

    def test_a_missing_address_ends_the_run(self, store: LocalStore) -> None:
        put_uncommitted(store, "f", ["data/x", None])
        with pytest.raises(CorruptFile) as refused:
            uncommitted.read_addresses(store, "f")
        reported = "2 addresses, 1 of them null, its footer says 2"
        assert refused.value.args == ("f", "uncommitted data", reported)

    def test_a_missing_file_ends_the_run(self, store: LocalStore) -> None:
        with pytest.raises(CorruptFile, match="existence"):
            uncommitted.read_addresses(store, "gone")

    @pytest.mark.parametrize("damage", ["empty", "cut", "text", "page"])
    def test_a_damaged_file_ends_the_run(self, store: LocalStore, damage: str) -> None:
        put_uncommitted(store, "f", [f"data/{number}" for number in range(500)])
        whole = store.get("f")
        middle = whole[:200] + bytes(200) + whole[400:]
        store.put("f", {"empty": b"", "cut": whole[:-20], "text": b"<Error/>", "page": middle}[damage])
        with pytest.raises(CorruptFile, match="uncommitted data"):
            uncommitted.read_addresses(store, "f")

    def test_an_address_that_is_no_text_ends_the_run(self, store: LocalStore) -> None:
        offsets, letters = pa.py_buffer(np.array([0, 6], np.int32)), pa.py_buffer(b"data/\xff")
        buffer = io.BytesIO()
        pq.write_table(pa.table({"physical_address": pa.StringArray.from_buffers(1, offsets, letters)}), buffer)
        store.put("f", buffer.getvalue())
        with pytest.raises(CorruptFile, match="uncommitted data"):
            uncommitted.read_addresses(store, "f")

    @pytest.mark.parametrize(
        "table",
        [
            pa.table({"address": ["data/x"]}),
            pa.table({"physical_address": [b"\xff\xfe"]}),
            pa.table({"physical_address": [7]}),
            pa.table({"physical_address": [["data/x"]]}),
        ],
    )
    def test_another_format_ends_the_run(self, store: LocalStore, table: pa.Table) -> None:
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        store.put("f", buffer.getvalue())
        with pytest.raises(CorruptFile, match="cannot be read as parquet: ") as refused:
            uncommitted.read_addresses(store, "f")
        assert (refused.value.file, refused.value.check) == ("f", "uncommitted data")

    def test_of_an_address_that_is_no_text_the_type_is_reported(self, store: LocalStore) -> None:
        buffer = io.BytesIO()
        pq.write_table(pa.table({"physical_address": [7]}), buffer)
        store.put("f", buffer.getvalue())
        with pytest.raises(CorruptFile, match="physical_address is int64, not text"):
            uncommitted.read_addresses(store, "f")


def staging(*entries: tuple[str, str, str]) -> ScriptedApi:
    """A server with one staged object on each branch: (branch, path, physical address)."""
    return ScriptedApi(
        branch_lists=Script(branches(*(branch for branch, _, _ in entries))),
        changes_of={branch: Script([DiffEntry(path, "added")]) for branch, path, _ in entries},
        stats={(branch, path): Script(ObjectStats(path, address, 1)) for branch, path, address in entries},
    )


def samples_of(api: ScriptedApi) -> dict[str, str]:
    return {
        sample.branch: sample.physical_address
        for sample in uncommitted.staged_samples(api, NAMESPACE, CUTOFF, commits_expire=True)
    }


class TestStagedSamples:
    def test_one_of_every_branch(self) -> None:
        other = name(timedelta(days=2))
        api = staging(("main", "p", NAMESPACE.uri + OLD), (".hidden", "q", NAMESPACE.uri + other))
        assert samples_of(api) == {"main": NAMESPACE.uri + OLD, ".hidden": NAMESPACE.uri + other}

    def test_none_where_nothing_is_staged(self) -> None:
        assert samples_of(ScriptedApi(branch_lists=Script(branches("a", "b")))) == {}

    def test_names_younger_than_the_cutoff_prove_nothing(self) -> None:
        at = f"data/{OLD_SLICE}/{ISSUE.ascending(CUTOFF)}"
        before = f"data/{OLD_SLICE}/{ISSUE.ascending(CUTOFF - timedelta(seconds=1))}"
        assert samples_of(staging(("main", "p", NAMESPACE.uri + at))) == {}
        assert samples_of(staging(("main", "p", NAMESPACE.uri + before))) == {"main": NAMESPACE.uri + before}

    def test_an_address_that_may_mean_an_old_name_counts_as_old(self) -> None:
        assert uncommitted._is_older((YOUNG, OLD), CUTOFF)
        assert uncommitted._is_older((OLD, YOUNG, "data/by-hand"), CUTOFF)
        assert not uncommitted._is_older((YOUNG, "data/by-hand"), CUTOFF)

    def test_a_name_without_a_time_counts_as_old(self) -> None:
        assert samples_of(staging(("main", "p", NAMESPACE.uri + "data/by-hand"))) != {}

    def test_objects_elsewhere_prove_nothing(self) -> None:
        assert samples_of(staging(("main", "p", "s3://bucket/repo2/" + OLD))) == {}

    def test_another_spelling_of_the_namespace_proves_nothing(self) -> None:
        address = NAMESPACE.uri.replace("s3://", "s3a://") + OLD
        assert NAMESPACE.relative(address) == OLD
        api = staging(("main", "p", address))
        assert uncommitted.staged_samples(api, NAMESPACE, CUTOFF, commits_expire=False) == ()

    def test_another_spelling_of_the_namespace_ends_a_run_by_retention(self) -> None:
        address = NAMESPACE.uri.replace("s3://", "s3a://") + OLD
        with pytest.raises(GuardTripped, match=r"address form: s3a://.* staged as 'p' on branch 'main'") as refused:
            samples_of(staging(("main", "p", address)))
        assert refused.value.lifted_by == "Commit or reset it, and start the collection again"

    def test_later_changes_are_looked_at_where_the_first_proves_nothing(self) -> None:
        api = staging(("main", "z", NAMESPACE.uri + OLD))
        before = [
            DiffEntry("a", "removed"),
            DiffEntry("b", "added"),
            DiffEntry("c", "changed"),
            DiffEntry("gone", "added"),
        ]
        api.changes_of["main"] = Script([*before, DiffEntry("z", "changed")])
        api.stats["main", "b"] = Script(ObjectStats("b", "s3://elsewhere/b", 1))
        api.stats["main", "c"] = Script(ObjectStats("c", NAMESPACE.uri + YOUNG, 1))
        assert samples_of(api) == {"main": NAMESPACE.uri + OLD}
        assert ("main", "a") not in api.asked

    def test_a_few_of_each_branch_since_one_may_be_held_by_another_too(self) -> None:
        addresses = [NAMESPACE.uri + name(timedelta(days=days)) for days in (2, 3, 4, 5)]
        paths = [f"p{number}" for number in range(4)]
        api = staging(("main", "p0", addresses[0]))
        api.changes_of["main"] = Script([DiffEntry(path, "added") for path in paths])
        for path, address in zip(paths, addresses, strict=True):
            api.stats["main", path] = Script(ObjectStats(path, address, 1))
        found = uncommitted.staged_samples(api, NAMESPACE, CUTOFF, commits_expire=True)
        assert [(sample.path, sample.physical_address) for sample in found] == list(
            zip(paths[:3], addresses[:3], strict=True)
        )

    def test_not_all_changes_of_a_huge_branch_are_looked_at(self) -> None:
        api = ScriptedApi(changes_of={"main": Script([DiffEntry(f"p{number}", "added") for number in range(50_000)])})
        assert samples_of(api) == {}
        assert len(api.asked) < 100

    @pytest.mark.parametrize(("removed", "found"), [(999, True), (1000, False)])
    def test_nor_all_removals(self, removed: int, found: bool) -> None:
        api = staging(("main", "z", NAMESPACE.uri + OLD))
        before = [DiffEntry(f"p{number:04}", "removed") for number in range(removed)]
        api.changes_of["main"] = Script([*before, DiffEntry("z", "added")])
        assert bool(samples_of(api)) == found

    def test_a_branch_deleted_meanwhile_has_none(self) -> None:
        api = staging(("main", "p", NAMESPACE.uri + OLD))
        api.changes_of["doomed"] = Script(NotFound("GET /branches/doomed/diff: 404"))
        api.branch_lists = Script(branches("main", "doomed"), branches("main"))
        assert samples_of(api) == {"main": NAMESPACE.uri + OLD}

    def test_a_branch_that_cannot_be_asked_ends_the_run(self) -> None:
        api = staging(("main", "p", NAMESPACE.uri + OLD), ("other", "p", NAMESPACE.uri + OLD))
        api.changes_of["other"] = Script(NotFound("GET /branches/other/diff: 404 of a proxy"))
        with pytest.raises(NotFound):
            samples_of(api)
        api.changes_of["other"] = Script(ServerUnavailable("GET /branches/other/diff: 503"))
        with pytest.raises(ServerUnavailable):
            samples_of(api)
        api = staging(("main", "p", NAMESPACE.uri + OLD))
        api.stats["main", "p"] = Script(ServerUnavailable("GET stat: 503"))
        with pytest.raises(ServerUnavailable):
            samples_of(api)

    def test_many_branches(self) -> None:
        entries = [(f"b{number}", "p", NAMESPACE.uri + name(timedelta(days=2))) for number in range(100)]
        assert samples_of(staging(*entries)) == {branch: address for branch, _, address in entries}


class Sending(LocalEngine):
    """An engine whose readers reach their tasks as Spark's do; it counts the files that they read."""

    def __init__(self) -> None:
        super().__init__()
        self.files = 0

    def read(self, groups: Sequence[Sequence[Item]], read: ReadItem[Item], schema: pa.Schema) -> ArrowRows:
        self.files += sum(map(len, groups))
        return super().read(groups, pickle.loads(pickle.dumps(read)), schema)


class TestMissingSamples:
    @pytest.fixture
    def repository(self, tmp_path: Path) -> OpenRepository:
        return opened_by(opener_in(tmp_path))

    def test_those_that_no_file_holds(self, repository: OpenRepository) -> None:
        put_uncommitted(repository.store, "f", ["data/x", OLD])
        other = name(timedelta(days=2))
        samples = [sample(OLD), sample(other)]
        assert missing(repository, ["f"], *samples) == (samples[1],)
        put_uncommitted(repository.store, "g", [other])
        assert missing(repository, ["f", "g"], *samples) == ()

    def test_all_without_files(self, repository: OpenRepository) -> None:
        assert missing(repository, [], sample(OLD)) == (sample(OLD),)

    def test_files_may_spell_addresses_in_full(self, repository: OpenRepository) -> None:
        put_uncommitted(repository.store, "f", [repository.namespace.uri + OLD])
        assert missing(repository, ["f"], sample(OLD)) == ()

    def test_a_longer_name_is_not_the_sample(self, repository: OpenRepository) -> None:
        put_uncommitted(repository.store, "f", [OLD + "x", OLD[:-1], "local://other/" + OLD])
        assert missing(repository, ["f"], sample(OLD)) == (sample(OLD),)

    def test_files_are_not_read_without_need(self, repository: OpenRepository) -> None:
        assert missing(repository, ["gone"]) == ()
        with pytest.raises(CorruptFile):
            missing(repository, ["gone"], sample(OLD))

    def test_four_files_are_read_at_once(self, repository: OpenRepository, monkeypatch: pytest.MonkeyPatch) -> None:
        files, together, read = [f"f{number}" for number in range(8)], Barrier(4, timeout=900), read_addresses
        for file in files:
            put_uncommitted(repository.store, file, [OLD] if file == "f7" else ["data/x"])

        def at_once(*arguments: Any) -> pa.ChunkedArray:
            together.wait()
            return read(*arguments)

        monkeypatch.setattr(uncommitted, "read_addresses", at_once)
        assert missing(repository, files, sample(OLD)) == ()

    def test_tasks_read_more_files(self, repository: OpenRepository) -> None:
        files, other = [f"f{number}" for number in range(17)], name(timedelta(days=2))
        for file in files:
            put_uncommitted(repository.store, file, ["data/x", OLD, repository.namespace.uri + OLD, OLD])
        engine = Sending()
        assert missing(repository, files, sample(OLD), sample(other), engine=engine) == (sample(other),)
        assert engine.files == 17
        repository.store.delete(["f16"])
        with pytest.raises(CorruptFile, match="f16"):
            missing(repository, files, sample(OLD))


def sample(address: str) -> StagedSample:
    return StagedSample("main", "p", (address,), NAMESPACE.uri + address)


def missing(
    repository: OpenRepository, files: Sequence[str], *samples: StagedSample, engine: LocalEngine | None = None
) -> tuple[StagedSample, ...]:
    return uncommitted.missing_samples(engine or LocalEngine(), repository, files, samples)


@dataclass
class Preparing:
    """A server that prepares several times: each time one file with these addresses, or no file for None."""

    api: ScriptedApi
    store: ObjectStore

    def times(self, *preparations: list[str] | None) -> None:
        pages = []
        for number, found in enumerate(preparations):
            run_id = f"run{number}"
            location = "" if found is None else written(self.store, "f", *found, run_id=run_id)
            # A page without a file is requested three times.
            pages += [page(location, None, run_id)] * (3 if found is None else 1)
        self.api.pages = Script(*pages)

    def checked(self, *, commits_expire: bool = True) -> Prepared:
        samples = uncommitted.staged_samples(self.api, NAMESPACE, CUTOFF, commits_expire=commits_expire)
        repository = opened(self.api, self.store, NAMESPACE, SETTINGS)
        return uncommitted.prepare_checked(LocalEngine(), repository, CUTOFF, samples, commits_expire=commits_expire)


class TestPreparingChecked:
    BY_ALIAS = NAMESPACE.uri.replace("bucket", "point-abc-s3alias") + OLD

    def test_an_object_that_is_staged_by_an_access_point_must_be_there(self, store: LocalStore) -> None:
        """If a server spells all its objects this way, no other object could be looked up."""
        store.put(OLD, b"content")
        server = Preparing(staging(("main", "some/path", self.BY_ALIAS)), store)
        server.times(["data/x"], ["data/y"])
        with pytest.raises(
            GuardTripped, match=rf"address form: s3://point.* staged as 'some/path' .*may be {OLD}"
        ) as refused:
            server.checked(commits_expire=False)
        assert refused.value.lifted_by.startswith("Commit or reset it if it was imported by an access point. ")
        server = Preparing(staging(("main", "some/path", self.BY_ALIAS)), store)
        server.times([OLD], [])
        assert server.checked(commits_expire=False).server_run_ids == ("run0",)

    def test_an_object_of_another_bucket_proves_nothing(self, store: LocalStore) -> None:
        server = Preparing(staging(("main", "some/path", self.BY_ALIAS)), store)
        server.times(["data/x"], [])
        assert server.checked(commits_expire=False).server_run_ids == ("run0",)

    def test_those_of_other_buckets_do_not_stand_for_own_ones(self, store: LocalStore) -> None:
        api = staging(("main", "z", NAMESPACE.uri + OLD))
        api.changes_of["main"] = Script([DiffEntry(path, "added") for path in "abcz"])
        for path in "abc":
            api.stats["main", path] = Script(ObjectStats(path, self.BY_ALIAS.replace(OLD, name(timedelta(days=4))), 1))
        server = Preparing(api, store)
        server.times([], [])
        with pytest.raises(LakeFSError, match="staged as 'z'"):
            server.checked(commits_expire=False)

    def test_once_where_samples_are_there(self, store: LocalStore) -> None:
        server = Preparing(staging(("main", "p", NAMESPACE.uri + OLD)), store)
        server.times([OLD], ["data/never-asked"])
        prepared = server.checked()
        assert prepared.server_run_ids == ("run0",)
        assert addresses(store, prepared) == [OLD]

    def test_again_where_one_is_missing_and_both_count(self, store: LocalStore) -> None:
        server = Preparing(staging(("main", "p", NAMESPACE.uri + OLD)), store)
        server.times(["data/only-first"], [OLD])
        prepared = server.checked()
        assert prepared.server_run_ids == ("run0", "run1")
        assert set(addresses(store, prepared)) == {"data/only-first", OLD}
        assert prepared.pages == 2

    def test_again_where_the_server_lost_everything(self, store: LocalStore) -> None:
        server = Preparing(staging(("main", "p", NAMESPACE.uri + OLD)), store)
        server.times(None, [OLD])
        assert addresses(store, server.checked()) == [OLD]

    def test_still_missing_ends_the_run(self, store: LocalStore) -> None:
        server = Preparing(staging(("main", "some/path", NAMESPACE.uri + OLD)), store)
        server.times(["data/x"], ["data/y"], [OLD])
        with pytest.raises(LakeFSError, match=rf"lacks s3://bucket/repo/{OLD}, staged as 'some/path' on branch 'main'"):
            server.checked()

    def test_a_sample_missing_of_one_branch_of_many(self, store: LocalStore) -> None:
        other = name(timedelta(days=4))
        server = Preparing(staging(("a", "p", NAMESPACE.uri + OLD), ("b", "q", NAMESPACE.uri + other)), store)
        server.times([OLD], [OLD])
        with pytest.raises(LakeFSError, match="on branch 'b'"):
            server.checked()

    def test_both_preparations_go_by_the_settings_and_tell_their_pages(self, store: LocalStore) -> None:
        api = staging(("main", "p", NAMESPACE.uri + OLD))
        pages: list[UncommittedPage] = []
        for run_id, address in (("run0", "data/x"), ("run1", OLD)):
            location = written(store, "f", address, run_id=run_id)
            pages += [page(location, "t", run_id), page("", "t", run_id), page("", "t", run_id), page("", None, run_id)]
            # A page without a file is requested three times.
            pages[-3:] = [each for each in pages[-3:] for _ in range(3)]
        api.pages = Script(*pages)
        reported: list[int] = []
        clock = HandClock(tick=timedelta(seconds=1))
        samples = uncommitted.staged_samples(api, NAMESPACE, CUTOFF, commits_expire=False)
        prepared = uncommitted.prepare_checked(
            LocalEngine(),
            opened(api, store, NAMESPACE, SETTINGS, clock),
            CUTOFF,
            samples,
            reported.append,
            commits_expire=False,
        )
        assert reported == [1, 2, 3, 4] * 2 and prepared.pages == 8
        assert prepared.started_at == NOW and prepared.ended_at == clock.moment - timedelta(seconds=1)
        api.pages = Script(*pages[:1], *[page(location, "t", "run0")] * 9)
        with pytest.raises(LakeFSError, match="repeated one continuation token 2 times"):
            uncommitted.prepare_checked(
                LocalEngine(),
                opened(api, store, NAMESPACE, CollectionSettings(prepare_page_limit=2), clock),
                CUTOFF,
                samples,
                commits_expire=False,
            )

    @pytest.mark.parametrize("staged_at", ["before the first preparation", "before the second preparation"])
    def test_an_address_that_uncommitted_data_leaves_out_ends_a_run_by_retention(
        self, store: LocalStore, staged_at: str
    ) -> None:
        api = staging(("main", "p", NAMESPACE.uri + OLD))
        otherwise = ObjectStats("p", NAMESPACE.uri.replace("s3://", "s3a://") + OLD, 1)
        own = ObjectStats("p", NAMESPACE.uri + OLD, 1)
        api.stats["main", "p"] = Script(*([own] if staged_at.startswith("before the second") else []), otherwise)
        server = Preparing(api, store)
        server.times(["data/x"], ["data/y"])
        with pytest.raises(GuardTripped, match="address form"):
            server.checked(commits_expire=True)

    def test_what_was_committed_since_it_was_sampled_is_no_reason(self, store: LocalStore) -> None:
        api = staging(("a", "p", NAMESPACE.uri + OLD), ("b", "q", NAMESPACE.uri + name(timedelta(days=4))))
        # A sample requests each branch's changes twice.
        api.changes_of["b"] = Script(*[[DiffEntry("q", "added")]] * 2, [])
        server = Preparing(api, store)
        server.times([OLD], ["data/never-asked"])
        assert server.checked().server_run_ids == ("run0",)
        assert api.changes_of["b"].calls == 3

    def test_what_was_staged_over_a_sample_is_looked_for_as_well(self, store: LocalStore) -> None:
        api, other = staging(("main", "p", NAMESPACE.uri + OLD)), name(timedelta(days=4))
        api.stats["main", "p"] = Script(*(ObjectStats("p", NAMESPACE.uri + each, 1) for each in (OLD, other)))
        server = Preparing(api, store)
        server.times(["data/x"], ["data/y"])
        with pytest.raises(LakeFSError, match=f"lacks s3://bucket/repo/{other}, staged as 'p'"):
            server.checked()

    def test_after_the_preparation_only_a_branch_that_lacks_a_sample_is_asked(self, store: LocalStore) -> None:
        lost, kept = name(timedelta(days=4)), name(timedelta(days=5))
        api = staging(("a", "p", NAMESPACE.uri + lost), ("b", "q", NAMESPACE.uri + kept))
        server = Preparing(api, store)
        server.times([kept], [lost])
        assert server.checked().server_run_ids == ("run0", "run1")
        assert Counter(api.asked) == {("a", "p"): 3, ("b", "q"): 1}
        assert api.branch_lists.calls == 1

    def test_what_was_staged_since_is_no_reason(self, store: LocalStore) -> None:
        server = Preparing(staging(("main", "p", NAMESPACE.uri + YOUNG)), store)
        server.times(["data/x"], ["data/never-asked"])
        assert server.checked().server_run_ids == ("run0",)


@pytest.fixture(scope="module", params=["by-time", "by-size", "row-groups"])
def paging(request: pytest.FixtureRequest) -> Iterator[tuple[ReplayServer, Path]]:
    folder = FIXTURES / "uncommitted-paging" / request.param
    with ReplayServer(folder) as server:
        yield server, folder


class CalmClient(LakeFSClient):
    """For recordings without a list of branches."""

    def branches(self) -> tuple[Branch, ...]:
        return branches("main")


class TestRecordedServers:
    @needs_recordings
    def test_pages_of_several_kinds(self, paging: tuple[ReplayServer, Path]) -> None:
        server, folder = paging
        found = self._prepared(server)
        files = [path for path in (folder / "namespace").rglob("*") if path.is_file()]
        expected = [address for path in files for address in pq.read_table(path)["physical_address"].to_pylist()]
        assert sorted(found) == sorted(expected)
        assert len(set(found)) == 1000

    @pytest.mark.parametrize("recording", recorded_and_made("small", "chain/4"))
    def test_everything_staged_is_found(self, recording: str) -> None:
        truth = json.loads((folder_of(recording) / "truth.json").read_text())
        with ReplayServer(folder_of(recording)) as server:
            settings = server.configuration()
            namespace = Namespace.parse(server.storage_namespace)
            store = open_store(settings.store, namespace)
            client = LakeFSClient(settings.lakefs, server.repository, SystemClock())
            cutoff = server.recorded_at + timedelta(days=1)
            samples = uncommitted.staged_samples(client, namespace, cutoff, commits_expire=True)
            repository = opened(client, store, namespace, SETTINGS, SystemClock())
            prepared = uncommitted.prepare_checked(LocalEngine(), repository, cutoff, samples, commits_expire=True)
            found = set(addresses(store, prepared))
        staged = {row["address"] for row in truth["objects"] if row["staged_in"] and row["inside_namespace"]}
        assert len(staged) > 3
        assert found >= staged
        assert samples
        assert {key for sample in samples for key in sample.keys} <= staged

    @staticmethod
    def _prepared(server: ReplayServer) -> list[str]:
        settings = server.configuration()
        namespace = Namespace.parse(server.storage_namespace)
        store = open_store(settings.store, namespace)
        client = CalmClient(settings.lakefs, server.repository, SystemClock())
        return addresses(store, uncommitted.prepare(opened(client, store, namespace, SETTINGS, SystemClock())))
