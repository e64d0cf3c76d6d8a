from pathlib import Path

import pytest

from lakefs_gc_assets.collector.retention.commits import ServerCommits, read_server_commits, server_commits
from lakefs_gc_assets.errors import AccessDenied, CorruptFile, LakeFSError, NotFound, NotSupported, ServerUnavailable
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import PrepareCommitsTask, PreparedCommits
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.collector.scripted import HandClock, Script, ScriptedApi, opened

NAMESPACE = Namespace.parse("s3://bucket/repo")
FILE = "_lakefs/retention/gc/commits/run_id=r/commits.csv"
PREPARED = PreparedCommits("r", f"s3://bucket/repo/{FILE}")
DONE, RUNNING = PrepareCommitsTask(True, None, PREPARED), PrepareCommitsTask(False)
LIST = b"commit_id,expired,metarange_id\na,false,m\nb,true,n\nc,false,\n"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path)
    store.put(FILE, LIST)
    return store


def ask(
    api: ScriptedApi, store: LocalStore, clock: HandClock | None = None, settings: CollectionSettings | None = None
) -> ServerCommits:
    return server_commits(opened(api, store, NAMESPACE, settings, clock))


def said(found: ServerCommits) -> list[tuple[str, str]]:
    assert found.metarange_ids is not None
    return list(zip(found.ids.to_pylist(), found.metarange_ids.to_pylist(), strict=True))


class TestWaiting:
    def test_the_list_is_waited_for_in_growing_pauses(self, store: LocalStore) -> None:
        clock = HandClock()
        api = ScriptedApi(prepare_commits_tasks=Script(*[RUNNING] * 8, DONE))
        found = ask(api, store, clock)
        assert api.tasks_asked == ["task"] * 9
        assert said(found) == [("a", "m"), ("c", "")]
        assert found.file == FILE
        assert clock.slept == [0.5, 1, 2, 4, 8, 15, 15, 15]

    def test_no_longer_than_the_settings_say(self, store: LocalStore) -> None:
        clock = HandClock()
        settings = CollectionSettings(prepare_commits_timeout_seconds=60)
        with pytest.raises(LakeFSError, match=r"not finished after 60 s.*collection\.prepare_commits_timeout_seconds"):
            ask(ScriptedApi(prepare_commits_tasks=Script(RUNNING)), store, clock, settings)
        assert 60 <= sum(clock.slept) < 80

    def test_ends_when_the_time_is_over_to_the_moment(self, store: LocalStore) -> None:
        settings = CollectionSettings(prepare_commits_timeout_seconds=3.5)
        for running, slept in ((3, [0.5, 1, 2]), (4, None)):
            clock = HandClock()
            api = ScriptedApi(prepare_commits_tasks=Script(*[RUNNING] * running, DONE))
            if slept is not None:
                assert said(ask(api, store, clock, settings)) == [("a", "m"), ("c", "")]
                assert clock.slept == slept
                continue
            with pytest.raises(LakeFSError, match="not finished"):
                ask(api, store, clock, settings)
            assert clock.slept == [0.5, 1, 2]

    @pytest.mark.parametrize("error", ["get gc rules: not found", "kv: timeout"])
    def test_an_error_is_never_an_empty_list(self, store: LocalStore, error: str) -> None:
        with pytest.raises(LakeFSError, match=f"failed: {error}"):
            ask(ScriptedApi(prepare_commits_tasks=Script(PrepareCommitsTask(True, error))), store)

    @pytest.mark.parametrize("unknown", [NotFound("POST /async: 404"), NotSupported("POST /async: 501")])
    def test_old_servers_are_asked_by_the_blocking_call(self, store: LocalStore, unknown: LakeFSError) -> None:
        api = ScriptedApi(prepare_commits_starts=Script(unknown), blocking_prepares=Script(PREPARED))
        notes: list[str] = []
        found = server_commits(opened(api, store, NAMESPACE), notes.append)
        assert said(found) == [("a", "m"), ("c", "")]
        assert str(unknown) in notes[0]

    @pytest.mark.parametrize("failure", [ServerUnavailable("timeout"), AccessDenied("403"), LakeFSError("400")])
    def test_other_failures_end_it(self, store: LocalStore, failure: LakeFSError) -> None:
        for api in (
            ScriptedApi(prepare_commits_starts=Script(failure)),
            ScriptedApi(prepare_commits_tasks=Script(RUNNING, failure)),
            ScriptedApi(prepare_commits_starts=Script(NotFound("404")), blocking_prepares=Script(failure)),
        ):
            with pytest.raises(type(failure)):
                ask(api, store)

    def test_a_task_that_the_server_forgot_is_no_old_server(self, store: LocalStore) -> None:
        with pytest.raises(NotFound):
            ask(ScriptedApi(prepare_commits_tasks=Script(RUNNING, NotFound("GET /status: 404"))), store)


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

    def test_that_are_missing_or_elsewhere_end_the_run(self, store: LocalStore) -> None:
        store.delete([FILE])
        with pytest.raises(CorruptFile, match="existence") as caught:
            ask(ScriptedApi(prepare_commits_tasks=Script(DONE)), store)
        assert caught.value.file == FILE
        elsewhere = PreparedCommits("r", "s3://other/repo/commits.csv")
        with pytest.raises(LakeFSError, match=r"s3://other/repo/commits\.csv, which is outside"):
            ask(ScriptedApi(prepare_commits_tasks=Script(PrepareCommitsTask(True, None, elsewhere))), store)
