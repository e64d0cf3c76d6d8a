import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.commits import (
    CommitSource,
    LiveCommits,
    ServerCommits,
    read_server_commits,
    server_commits,
)
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.errors import (
    AccessDenied,
    CorruptFile,
    LakeFSError,
    NotFound,
    NotSupported,
    ReadOnlyRepository,
    ServerUnavailable,
)
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import Branch, Commit, PrepareCommitsTask, PreparedCommits, RefsDump
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns, Entity
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.scripted import NOW, HandClock, Script, ScriptedApi, opened
from lakefs_gc_assets_tests.collector.written import METADATA, Staged, put_commit_objects, put_dump, put_metarange
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of, recorded_and_made

NO_WAIT = CollectionSettings(wait_before_dump_seconds=0)


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def commit(name: str, *parents: str, metarange: str | None = None) -> Commit:
    """A commit with a short name, and a metarange of the same name by default."""
    return Commit(
        digest(name), digest(f"metarange of {name}") if metarange is None else metarange, tuple(map(digest, parents)), 7
    )


def branch(name: str, head: str) -> Branch:
    return Branch(name, digest(head))


def metaranges(*names: str) -> tuple[str, ...]:
    return tuple(sorted(digest(f"metarange of {name}") for name in names))


def test_metaranges_are_in_the_order_in_which_commits_were_made() -> None:
    made = [("new", 9), ("old", 1), ("", 0), ("middle", 5), ("old", 7), ("as old", 1)]
    columns = CommitColumns.from_commits(
        [Commit(digest(str(at)), name, (), date) for at, (name, date) in enumerate(made)]
    )
    assert commits.distinct_metaranges(columns).to_pylist() == ["old", "as old", "middle", "new"]
    stays = np.array([True, False, True, True, True, False])
    assert commits.distinct_metaranges(columns, stays).to_pylist() == ["middle", "old", "new"]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


ROOT = commit("root", metarange="")
LINE = [ROOT, commit("a", "root"), commit("b", "a")]
MAIN = [branch("main", "b")]


def live(
    api: ScriptedApi, store: ObjectStore, clock: HandClock | None = None, settings: CollectionSettings = NO_WAIT
) -> LiveCommits:
    return commits.live_commits(opened(api, store, settings=settings, clock=clock), NOW)


def dumping(*dumps: RefsDump | Exception, known: list[Commit] | None = None) -> ScriptedApi:
    return ScriptedApi(dumps=Script(*dumps), commits={each.id: Script(each) for each in known or []})


class TestDumps:
    def test_all_commits_are_live_dangling_ones_too(self, store: LocalStore) -> None:
        dump = put_dump(store, [*LINE, commit("dangling", "a")], MAIN, [Branch("v1", digest("a"))])
        found = live(dumping(dump), store)
        assert found.source is CommitSource.REFS_DUMP
        assert tuple(sorted(found.metarange_ids)) == metaranges("a", "b", "dangling")
        assert (found.commits, found.fetched, found.files) == (4, 0, ())
        assert found.heads == {"main": digest("metarange of b")}

    def test_says_when_it_was_asked_for_and_read_and_which_files_it_has(self, store: LocalStore) -> None:
        dump = put_dump(store, LINE, MAIN, [Branch("v1", digest("a"))])
        api = dumping(RefsDump(False), dump)
        found = live(api, store, HandClock())
        assert api.tasks_asked == ["task", "task"]
        assert (found.started_at, found.ended_at) == (NOW, NOW + timedelta(seconds=0.2))
        assert sorted(found.dump_tables) == sorted(key.removeprefix(METADATA) for key in all_keys(store))

    def test_commits_with_the_same_objects_share_a_metarange(self, store: LocalStore) -> None:
        same = [commit("a", metarange=digest("m")), commit("b", "a", metarange=digest("m"))]
        found = live(dumping(put_dump(store, same, [branch("main", "b"), branch("x", "a")])), store)
        assert found.metarange_ids == (digest("m"),)
        assert found.heads == {"main": digest("m"), "x": digest("m")}

    def test_a_branch_whose_head_is_empty_has_no_objects(self, store: LocalStore) -> None:
        found = live(dumping(put_dump(store, [ROOT], [branch("main", "root")])), store)
        assert (found.metarange_ids, found.heads, found.commits) == ((), {}, 1)

    def test_compacted_bases_are_reported_by_their_branches_and_are_no_commits(self, store: LocalStore) -> None:
        dump = put_dump(store, LINE, [*MAIN, branch("x", "a")], compacted={"x": "b" * 64})
        found = live(dumping(dump), store)
        assert found.compacted == {"b" * 64: "x"}
        assert "b" * 64 not in (*found.metarange_ids, *found.heads.values())

    def test_whichever_file_of_a_table_is_damaged_is_named(self, store: LocalStore) -> None:
        dump = put_dump(store, LINE, MAIN, [Branch("v1", digest("a"))])
        for key in all_keys(store):
            whole = store.get(key)
            store.put(key, whole[:-1])
            with pytest.raises(CorruptFile) as caught:
                live(dumping(dump), store)
            assert caught.value.file == key
            store.delete([key])
            with pytest.raises(CorruptFile) as caught:
                live(dumping(dump), store)
            assert (caught.value.file, caught.value.check) == (key, "existence")
            assert caught.value.detail == "the file is missing from the object store"
            store.put(key, whole)

    @pytest.mark.parametrize("table", ["commit", "branch", "tag"])
    def test_a_part_that_is_not_as_its_table_says_ends_the_run(self, store: LocalStore, table: Entity) -> None:
        dump = put_dump(store, LINE, MAIN, [Branch("v1", digest("a"))])
        fields = {
            "commit": "commits_meta_range_id",
            "branch": "branches_meta_range_id",
            "tag": "tags_meta_range_id",
        }
        key = METADATA + getattr(dump, fields[table])
        first, *others = ranges.read_metarange(store.get(key), key, entity=table)
        stated = put_metarange(store, [replace(first, count=first.count + 1), *others], entity=table.encode())
        with pytest.raises(CorruptFile, match="metarange") as caught:
            live(dumping(RefsDump(**{**asdict(dump), fields[table]: stated})), store)
        assert caught.value.file == METADATA + first.id

    def test_tables_that_were_exchanged_end_the_run(self, store: LocalStore) -> None:
        dump = put_dump(store, LINE, MAIN)
        exchanged = RefsDump(
            True, None, dump.branches_meta_range_id, dump.commits_meta_range_id, dump.tags_meta_range_id
        )
        with pytest.raises(CorruptFile, match="type"):
            live(dumping(exchanged), store)


class TestCommitsThatADumpLacks:
    def test_heads_are_fetched_with_their_ancestors_down_to_known_ones(self, store: LocalStore) -> None:
        new = [commit("c", "b"), commit("d", "c"), commit("e", "b", "d")]
        dump = put_dump(store, LINE, [branch("main", "e"), branch("x", "d")])
        api = dumping(dump, known=[*LINE, *new])
        found = live(api, store)
        assert tuple(sorted(found.metarange_ids)) == metaranges("a", "b", "c", "d", "e")
        assert (found.commits, found.fetched) == (6, 3)
        assert sorted(api.commits_asked) == sorted(each.id for each in new)
        assert found.heads == {"main": digest("metarange of e"), "x": digest("metarange of d")}

    def test_every_parent_of_a_merge_is_followed(self, store: LocalStore) -> None:
        merge, first, second = commit("merge", "first", "second"), commit("first", "b"), commit("second", "deep")
        api = dumping(
            put_dump(store, LINE, [branch("main", "merge")]), known=[merge, first, second, commit("deep", "a")]
        )
        assert tuple(sorted(live(api, store).metarange_ids)) == metaranges("a", "b", "merge", "first", "second", "deep")

    def test_one_that_is_met_again_does_not_end_the_search(self, store: LocalStore) -> None:
        """One tagged commit is the other's parent: the search meets it twice before the third tagged commit."""
        new = [commit("lone", "b"), commit("c", "b"), commit("d", "c"), commit("e", "d")]
        tags = [branch("v1", "lone"), branch("v2", "d"), branch("v3", "e")]
        api = dumping(put_dump(store, LINE, MAIN, tags), known=new)
        assert tuple(sorted(live(api, store).metarange_ids)) == metaranges("a", "b", "lone", "c", "d", "e")
        assert len(api.commits_asked) == 4

    def test_tags_and_parents_are_fetched_too(self, store: LocalStore) -> None:
        tagged, parent = commit("tagged", "parent"), commit("parent", "a")
        dump = put_dump(store, [ROOT, LINE[1], commit("b", "a", "lost")], MAIN, [Branch("v1", tagged.id)])
        api = dumping(dump, known=[tagged, parent, commit("lost", "a")])
        found = live(api, store)
        assert tuple(sorted(found.metarange_ids)) == metaranges("a", "b", "tagged", "parent", "lost")

    @pytest.mark.parametrize(("limit", "enough"), [(3, True), (2, False), (0, False)])
    def test_so_many_are_fetched_and_no_more(self, store: LocalStore, limit: int, enough: bool) -> None:
        new = [commit("c", "b"), commit("d", "c"), commit("e", "d")]
        api = dumping(put_dump(store, LINE, [branch("main", "e")]), known=new)
        settings = CollectionSettings(wait_before_dump_seconds=0, dump_fetch_limit=limit)
        if enough:
            assert live(api, store, settings=settings).fetched == 3
            return
        with pytest.raises(LakeFSError, match=f"3 refs dumps in a row .* lacks more than {limit} commits"):
            live(api, store, settings=settings)
        assert len(api.commits_asked) == 3 * limit
        assert api.dump_starts.calls == 3

    def test_none_is_fetched_from_a_complete_dump(self, store: LocalStore) -> None:
        settings = CollectionSettings(wait_before_dump_seconds=0, dump_fetch_limit=0)
        assert live(dumping(put_dump(store, LINE, MAIN)), store, settings=settings).commits == 3

    def test_one_that_the_server_does_not_know_makes_another_dump(self, store: LocalStore) -> None:
        broken = put_dump(store, LINE, [branch("main", "vanished")])
        api = dumping(broken, put_dump(store, LINE, MAIN))
        assert tuple(sorted(live(api, store).metarange_ids)) == metaranges("a", "b")
        assert api.dump_starts.calls == 2
        words = f"3 refs dumps in a row were incomplete, .* {digest('vanished')}, which the server does not know"
        with pytest.raises(LakeFSError, match=words):
            live(dumping(broken), store)

    def test_a_server_that_fails_meanwhile_ends_the_run(self, store: LocalStore) -> None:
        api = dumping(put_dump(store, LINE, [branch("main", "c")]))
        api.commits[digest("c")] = Script(ServerUnavailable("GET /commits: 503"))
        with pytest.raises(ServerUnavailable):
            live(api, store)


class TestIncompleteDumps:
    def test_are_repeated(self, store: LocalStore) -> None:
        whole = put_dump(store, LINE, MAIN)
        no_branch = put_dump(store, LINE, [])
        api = dumping(RefsDump(True, "it broke", "a", "b", "c"), no_branch, whole)
        assert live(api, store).commits == 3
        assert api.dump_starts.calls == 3

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda dump: RefsDump(True, "KV store: timeout", *ids(dump)), "KV store: timeout"),
            (lambda dump: RefsDump(True, None, "", *ids(dump)[1:]), "lacks one of its three tables"),
            (lambda dump: RefsDump(True, None, ids(dump)[0], "", ids(dump)[2]), "lacks one of its three tables"),
            (lambda dump: RefsDump(True, None, *ids(dump)[:2], ""), "lacks one of its three tables"),
            (lambda dump: NotFound("GET /dump: 404"), "its state was refused"),
            (lambda dump: AccessDenied("GET /dump: 403"), "its state was refused"),
        ],
    )
    def test_end_the_run_after_three(
        self, store: LocalStore, change: Callable[[RefsDump], RefsDump | Exception], message: str
    ) -> None:
        api = dumping(change(put_dump(store, LINE, MAIN)))
        with pytest.raises(LakeFSError, match=f"3 refs dumps in a row were incomplete, the last: .*{message}"):
            live(api, store)
        assert api.dump_starts.calls == 3

    def test_without_any_branch_end_the_run(self, store: LocalStore) -> None:
        with pytest.raises(LakeFSError, match="has no branch"):
            live(dumping(put_dump(store, LINE, [])), store)


def ids(dump: RefsDump) -> tuple[str, str, str]:
    return dump.commits_meta_range_id, dump.branches_meta_range_id, dump.tags_meta_range_id


class TestWaiting:
    def test_between_the_last_page_and_the_dump(self, store: LocalStore) -> None:
        clock = HandClock(NOW + timedelta(seconds=12))
        found = live(dumping(put_dump(store, LINE, MAIN)), store, clock, CollectionSettings())
        assert clock.slept == [18.0]
        assert found.started_at == NOW + timedelta(seconds=30)

    def test_is_over_when_the_time_has_passed(self, store: LocalStore) -> None:
        clock = HandClock(NOW + timedelta(seconds=30))
        found = live(dumping(put_dump(store, LINE, MAIN)), store, clock, CollectionSettings())
        assert clock.slept == []
        assert found.started_at == NOW + timedelta(seconds=30)

    def test_for_a_dump_takes_longer_and_longer_pauses(self, store: LocalStore) -> None:
        clock = HandClock()
        live(dumping(*[RefsDump(False)] * 9, put_dump(store, LINE, MAIN)), store, clock)
        assert clock.slept == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]

    def test_ends_when_the_time_is_over_to_the_moment(self, store: LocalStore) -> None:
        settings = CollectionSettings(wait_before_dump_seconds=0, dump_timeout_seconds=3)
        clock = HandClock()
        with pytest.raises(LakeFSError, match=r"not finished after 3 s.*collection\.dump_timeout_seconds"):
            live(dumping(*[RefsDump(False)] * 5, put_dump(store, LINE, MAIN)), store, clock, settings)
        assert clock.slept == [0.2, 0.4, 0.8, 1.6]
        clock = HandClock()
        live(dumping(*[RefsDump(False)] * 4, put_dump(store, LINE, MAIN)), store, clock, settings)
        assert clock.slept == [0.2, 0.4, 0.8, 1.6]

    def test_and_another_dump_are_reported(self, store: LocalStore) -> None:
        notes: list[str] = []
        api = dumping(put_dump(store, LINE, []), put_dump(store, LINE, MAIN))
        commits.live_commits(opened(api, store), NOW, notes.append)
        assert notes == [
            "waiting 30 s before reading commits",
            "the refs dump has no branch, but every repository has one; requesting another one",
        ]

    @staticmethod
    def live(api: ScriptedApi, store: ObjectStore, at_once: bool) -> tuple[LiveCommits, float]:
        """The live commits, and the seconds that the clock slept."""
        clock = HandClock()
        found = commits.live_commits(opened(api, store, clock=clock), NOW, at_once=at_once)
        return found, sum(clock.slept)

    def test_at_once_it_does_not(self, store: LocalStore) -> None:
        api = dumping(put_dump(store, LINE, MAIN))
        found, waited = self.live(api, store, at_once=True)
        assert (found.waited, waited, api.dump_starts.calls) == (0, 0, 1)

    @pytest.mark.parametrize("at_once", [True, False])
    def test_without_a_dump_it_waits_in_any_case(self, store: LocalStore, at_once: bool) -> None:
        api = ScriptedApi(dump_starts=Script(NotSupported("POST dump: 501")), branch_lists=Script(()))
        found, waited = self.live(api, store, at_once)
        assert (found.source, found.waited, waited) == (CommitSource.METADATA_FOLDER, 30, 30)


class TestTheMetadataFolder:
    @pytest.mark.parametrize(
        "refusal", [AccessDenied("POST /dump: 403"), NotFound("POST /dump: 404"), NotSupported("POST /dump: 501")]
    )
    def test_stands_in_where_dumping_is_refused(self, store: LocalStore, refusal: LakeFSError) -> None:
        metarange = put_commit_objects(store, {"p": Staged("data/x")})
        files = {key.removeprefix(METADATA) for key in all_keys(store)}
        for name in ("dummy", "a" * 63, "A" * 64, "g" * 64, f"{'a' * 64}.json", "retention/" + "a" * 64):
            store.put(METADATA + name, b"")
        clock = HandClock()

        def slow() -> Commit:
            clock.sleep(5)
            return commit("c", metarange=metarange)

        api = ScriptedApi(
            dump_starts=Script(refusal),
            branch_lists=Script((branch("main", "c"), branch("new", "root"))),
            commits={digest("c"): Script(slow), ROOT.id: Script(ROOT)},
        )
        notes: list[str] = []
        found = commits.live_commits(opened(api, store, settings=NO_WAIT, clock=clock), NOW, notes.append)
        assert (found.started_at, found.ended_at) == (NOW, NOW + timedelta(seconds=5))
        assert found.source is CommitSource.METADATA_FOLDER
        assert set(found.files) == files
        assert len(found.files) == 2
        assert (found.metarange_ids, found.heads) == ((), {"main": metarange})
        assert str(refusal) in notes[-1]

    def test_stands_in_where_single_commits_are_refused(self, store: LocalStore) -> None:
        metarange = put_commit_objects(store, {"p": Staged("data/x")})
        api = dumping(put_dump(store, LINE, [branch("main", "c")]))
        api.branch_lists = Script((branch("main", "d"),))
        api.commits = {
            digest("c"): Script(AccessDenied("GET /commits: 403")),
            digest("d"): Script(commit("d", metarange=metarange)),
        }
        assert live(api, store).source is CommitSource.METADATA_FOLDER

    @pytest.mark.parametrize(
        "failure",
        [
            ServerUnavailable("POST /dump: timeout"),
            LakeFSError("POST /dump: 400"),
            ReadOnlyRepository("POST /dump: 403 read-only"),
        ],
    )
    def test_never_stands_in_after_another_failure(self, store: LocalStore, failure: LakeFSError) -> None:
        put_commit_objects(store, {"p": Staged("data/x")})
        api = ScriptedApi(dump_starts=Script(failure))
        with pytest.raises(type(failure)):
            live(api, store)
        api = dumping(failure)
        with pytest.raises(type(failure)):
            live(api, store)

    def test_that_lacks_the_metarange_of_a_head_ends_the_run(self, store: LocalStore) -> None:
        api = ScriptedApi(
            dump_starts=Script(AccessDenied("POST /dump: 403")),
            branch_lists=Script((branch("main", "a"),)),
            commits={digest("a"): Script(commit("a"))},
        )
        with pytest.raises(
            CorruptFile, match=r"existence.*a branch head's metarange is not in the object store"
        ) as found:
            live(api, store)
        assert found.value.file == METADATA + digest("metarange of a")

    def test_is_listed_after_the_heads_were_read(self, store: LocalStore) -> None:
        written = []

        def committed_meanwhile() -> Commit:
            written.append(put_metarange(store, []))
            return commit("c", metarange=written[-1])

        api = ScriptedApi(
            dump_starts=Script(NotFound("POST /dump: 404")),
            branch_lists=Script((branch("main", "c"),)),
            commits={digest("c"): Script(committed_meanwhile)},
        )
        assert live(api, store).files == tuple(written)

    def test_of_branches_that_cannot_be_read_ends_the_run(self, store: LocalStore) -> None:
        api = ScriptedApi(
            dump_starts=Script(AccessDenied("POST /dump: 403")), branch_lists=Script((branch("main", "a"),))
        )
        with pytest.raises(NotFound):
            live(api, store)


def all_keys(store: ObjectStore) -> list[str]:
    return [key for batch in store.list("") for key in batch.column("key").to_pylist()]


@pytest.mark.parametrize("name", recorded_and_made("merge-dangling", "random-dag/14", "chain/4", "empty"))
class TestRecordedServers:
    def test_all_commits_of_a_dump(self, name: str) -> None:
        truth = json.loads((folder_of(name) / "truth.json").read_text())
        with ReplayServer(folder_of(name)) as server:
            found = self._live(server, refuse_dump=False)
        stated = {each["id"]: each["meta_range_id"] for each in truth["commits"]}
        assert found.source is CommitSource.REFS_DUMP
        assert found.commits == len(stated)
        assert set(found.metarange_ids) == {metarange for metarange in stated.values() if metarange}

    def test_the_folder_holds_all_that_a_dump_names(self, name: str) -> None:
        with ReplayServer(folder_of(name)) as server:
            dumped, folder = (self._live(server, refuse) for refuse in (False, True))
        assert folder.source is CommitSource.METADATA_FOLDER
        assert set(folder.files) >= set(dumped.metarange_ids)
        assert folder.heads == dumped.heads

    @staticmethod
    def _live(server: ReplayServer, refuse_dump: bool) -> LiveCommits:
        class Client(LakeFSClient):
            def start_refs_dump(self) -> str:
                if refuse_dump:
                    raise AccessDenied("POST /dump: 403")
                return super().start_refs_dump()

        settings = server.configuration()
        store = open_store(settings.store, Namespace.parse(server.storage_namespace))
        client = Client(settings.lakefs, server.repository, SystemClock())
        return commits.live_commits(opened(client, store, settings=NO_WAIT, clock=SystemClock()), server.recorded_at)


# The server's own list.


NAMESPACE = Namespace.parse("s3://bucket/repo")
FILE = "_lakefs/retention/gc/commits/run_id=r/commits.csv"
PREPARED = PreparedCommits("r", f"s3://bucket/repo/{FILE}")
DONE, RUNNING = PrepareCommitsTask(True, None, PREPARED), PrepareCommitsTask(False)
LIST = b"commit_id,expired,metarange_id\na,false,m\nb,true,n\nc,false,\n"


@pytest.fixture
def listed_store(tmp_path: Path) -> LocalStore:
    listed_store = LocalStore(tmp_path)
    listed_store.put(FILE, LIST)
    return listed_store


def ask_for_list(
    api: ScriptedApi,
    listed_store: LocalStore,
    clock: HandClock | None = None,
    settings: CollectionSettings | None = None,
) -> ServerCommits:
    return server_commits(opened(api, listed_store, NAMESPACE, settings, clock))


def said(found: ServerCommits) -> list[tuple[str, str]]:
    assert found.metarange_ids is not None
    return list(zip(found.ids.to_pylist(), found.metarange_ids.to_pylist(), strict=True))


class TestWaitingForTheList:
    def test_the_list_is_waited_for_in_growing_pauses(self, listed_store: LocalStore) -> None:
        clock = HandClock()
        api = ScriptedApi(prepare_commits_tasks=Script(*[RUNNING] * 8, DONE))
        found = ask_for_list(api, listed_store, clock)
        assert api.tasks_asked == ["task"] * 9
        assert said(found) == [("a", "m"), ("c", "")]
        assert found.file == FILE
        assert clock.slept == [0.5, 1, 2, 4, 8, 15, 15, 15]

    def test_no_longer_than_the_settings_say(self, listed_store: LocalStore) -> None:
        clock = HandClock()
        settings = CollectionSettings(prepare_commits_timeout_seconds=60)
        with pytest.raises(LakeFSError, match=r"not finished after 60 s.*collection\.prepare_commits_timeout_seconds"):
            ask_for_list(ScriptedApi(prepare_commits_tasks=Script(RUNNING)), listed_store, clock, settings)
        assert 60 <= sum(clock.slept) < 80

    def test_ends_when_the_time_is_over_to_the_moment(self, listed_store: LocalStore) -> None:
        settings = CollectionSettings(prepare_commits_timeout_seconds=3.5)
        for running, slept in ((3, [0.5, 1, 2]), (4, None)):
            clock = HandClock()
            api = ScriptedApi(prepare_commits_tasks=Script(*[RUNNING] * running, DONE))
            if slept is not None:
                assert said(ask_for_list(api, listed_store, clock, settings)) == [("a", "m"), ("c", "")]
                assert clock.slept == slept
                continue
            with pytest.raises(LakeFSError, match="not finished"):
                ask_for_list(api, listed_store, clock, settings)
            assert clock.slept == [0.5, 1, 2]

    @pytest.mark.parametrize("error", ["get gc rules: not found", "kv: timeout"])
    def test_an_error_is_never_an_empty_list(self, listed_store: LocalStore, error: str) -> None:
        with pytest.raises(LakeFSError, match=f"failed: {error}"):
            ask_for_list(ScriptedApi(prepare_commits_tasks=Script(PrepareCommitsTask(True, error))), listed_store)

    @pytest.mark.parametrize("unknown", [NotFound("POST /async: 404"), NotSupported("POST /async: 501")])
    def test_old_servers_are_asked_by_the_blocking_call(self, listed_store: LocalStore, unknown: LakeFSError) -> None:
        api = ScriptedApi(prepare_commits_starts=Script(unknown), blocking_prepares=Script(PREPARED))
        notes: list[str] = []
        found = server_commits(opened(api, listed_store, NAMESPACE), notes.append)
        assert said(found) == [("a", "m"), ("c", "")]
        assert str(unknown) in notes[0]

    @pytest.mark.parametrize("failure", [ServerUnavailable("timeout"), AccessDenied("403"), LakeFSError("400")])
    def test_other_failures_end_it(self, listed_store: LocalStore, failure: LakeFSError) -> None:
        for api in (
            ScriptedApi(prepare_commits_starts=Script(failure)),
            ScriptedApi(prepare_commits_tasks=Script(RUNNING, failure)),
            ScriptedApi(prepare_commits_starts=Script(NotFound("404")), blocking_prepares=Script(failure)),
        ):
            with pytest.raises(type(failure)):
                ask_for_list(api, listed_store)

    def test_a_task_that_the_server_forgot_is_no_old_server(self, listed_store: LocalStore) -> None:
        with pytest.raises(NotFound):
            ask_for_list(ScriptedApi(prepare_commits_tasks=Script(RUNNING, NotFound("GET /status: 404"))), listed_store)


class TestLists:
    def test_old_servers_state_no_metaranges(self) -> None:
        found = read_server_commits(b"commit_id,expired\na,false\nb,true\n", "f")
        assert (found.ids.to_pylist(), found.metarange_ids) == (["a"], None)

    def test_ids_are_text_whatever_they_look_like(self) -> None:
        data = b"commit_id,expired,metarange_id\n0012,false,null\n1e5,false,NaN\r\n"
        assert said(read_server_commits(data, "f")) == [("0012", "null"), ("1e5", "NaN")]

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"", "cannot be read as CSV"),
            (b"\xff\xfe", "cannot be read as CSV"),
            (b"commit_id,expired,metarange_id\n", "no active commit"),
            (b"commit_id,expired,metarange_id\na,true,m\n", "no active commit"),
            (b"commit_id,expired,metarange_id\na,false,m\nb,false", "cannot be read as CSV"),
            (b"commit_id,expired,metarange_id\na,perhaps,m\n", "neither true nor false"),
            (b"commit_id,expired,metarange_id\n,false,m\n", "commit_id is empty"),
            (b"commit,expired,metarange_id\na,false,m\n", "its columns are commit, expired, metarange_id"),
            (b"commit_id,metarange_id\na,m\n", "its columns are"),
            (b"a,false,m\n", "its columns are"),
            (b"commit_id,expired\xff,metarange_id\na,false,m\n", "cannot be read as CSV"),
            (b"commit_id,expired,expired\na,false,false\n", "appears twice"),
            (b"<html></html>", "cannot be read as CSV"),
        ],
    )
    def test_what_is_no_list_ends_the_run(self, data: bytes, words: str) -> None:
        with pytest.raises(CorruptFile, match="commits") as caught:
            read_server_commits(data, "f")
        assert words in str(caught.value) and (caught.value.file, caught.value.check) == ("f", "commits")

    def test_of_one_commit_is_read_and_of_none_is_refused(self) -> None:
        found = read_server_commits(b"commit_id,expired,metarange_id\na,true,m\nb,false,n\n", "f")
        assert (found.file, said(found)) == ("f", [("b", "n")])

    def test_that_are_missing_or_elsewhere_end_the_run(self, listed_store: LocalStore) -> None:
        listed_store.delete([FILE])
        with pytest.raises(CorruptFile, match="existence") as caught:
            ask_for_list(ScriptedApi(prepare_commits_tasks=Script(DONE)), listed_store)
        assert caught.value.file == FILE
        elsewhere = PreparedCommits("r", "s3://other/repo/commits.csv")
        with pytest.raises(LakeFSError, match=r"s3://other/repo/commits\.csv, which is outside"):
            ask_for_list(
                ScriptedApi(prepare_commits_tasks=Script(PrepareCommitsTask(True, None, elsewhere))), listed_store
            )
