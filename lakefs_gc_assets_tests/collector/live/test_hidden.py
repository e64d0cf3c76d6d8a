from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.live import hidden
from lakefs_gc_assets.collector.live.hidden import Answers, Question
from lakefs_gc_assets.errors import CorruptFile, ServerUnavailable
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import ObjectStats
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.collector.scripted import Script, ScriptedApi
from lakefs_gc_assets_tests.collector.written import METADATA, Staged, put_metarange, put_range

NAMESPACE = Namespace.parse("s3://bucket/repo")


def stats(path: str, address: str) -> Script[ObjectStats]:
    return Script(ObjectStats(path, address, 1))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


class TestBranchesByRange:
    def test_each_range_has_all_branches_whose_head_holds_it(self, store: LocalStore) -> None:
        a, b, c = (put_range(store, {name: Staged(f"data/{name}")}) for name in "abc")
        ab, bc = put_metarange(store, [a, b]), put_metarange(store, [b, c])
        found = hidden.branches_by_range(store, {"main": ab, "copy": ab, "x": bc, "empty": put_metarange(store, [])})
        assert {range_id: set(names) for range_id, names in found.items()} == {
            a.id: {"main", "copy"},
            b.id: {"main", "copy", "x"},
            c.id: {"x"},
        }
        assert all(len(names) == len(set(names)) for names in found.values())

    def test_no_heads(self, store: LocalStore) -> None:
        assert hidden.branches_by_range(store, {}) == {}

    def test_a_head_that_cannot_be_read_ends_the_run(self, store: LocalStore) -> None:
        whole = put_metarange(store, [put_range(store, {"a": Staged("data/a")})])
        heads = {"main": whole, "x": "a" * 64, **{f"b{number}": whole for number in range(20)}}
        with pytest.raises(CorruptFile, match="existence"):
            hidden.branches_by_range(store, heads)
        store.put(METADATA + "a" * 64, b"damaged")
        with pytest.raises(CorruptFile):
            hidden.branches_by_range(store, heads)


def ask(api: ScriptedApi, questions: list[Question], branches: dict[str, tuple[str, ...]], limit: int = 100) -> Answers:
    return hidden.ask(api, NAMESPACE, questions, branches, limit)


class TestAsking:
    def test_finds_what_is_staged_at_the_path(self) -> None:
        api = ScriptedApi(stats={("main", "p"): stats("p", NAMESPACE.uri + "data/staged")})
        answers = ask(api, [Question("r", b"p")], {"r": ("main",)})
        assert answers == Answers(frozenset({"data/staged"}), (), 1)

    def test_every_spelling_of_the_answer_is_live(self) -> None:
        api = ScriptedApi(stats={("main", "p"): stats("p", "s3a://bucket/repo/data//staged")})
        assert "data/staged" in ask(api, [Question("r", b"p")], {"r": ("main",)}).live

    def test_every_branch_of_the_range_is_asked(self) -> None:
        api = ScriptedApi(
            stats={
                ("a", "p"): stats("p", NAMESPACE.uri + "data/of-a"),
                ("b", "p"): stats("p", NAMESPACE.uri + "data/of-b"),
            }
        )
        answers = ask(api, [Question("r", b"p")], {"r": ("a", "b", "c")})
        assert (answers.live, answers.asked) == (frozenset({"data/of-a", "data/of-b"}), 3)

    def test_each_branch_and_path_is_asked_once(self) -> None:
        api = ScriptedApi()
        questions = [Question("r", b"p"), Question("s", b"p"), Question("r", b"q"), Question("r", b"p")]
        answers = ask(api, questions, {"r": ("a", "b"), "s": ("b", "c")})
        assert sorted(api.asked) == [("a", "p"), ("a", "q"), ("b", "p"), ("b", "q"), ("c", "p")]
        assert (answers.asked, answers.unasked) == (5, ())

    def test_an_object_elsewhere_or_none_is_not_live_here(self) -> None:
        api = ScriptedApi(stats={("main", "p"): stats("p", "s3://bucket/repo2/data/x")})
        assert ask(api, [Question("r", b"p"), Question("r", b"q")], {"r": ("main",)}).live == frozenset()

    def test_a_path_that_is_no_text_is_left_unasked_and_told(self) -> None:
        question = Question("r", b"\xff")
        answers = ask(ScriptedApi(), [question, Question("r", b"p")], {"r": ("main",)})
        assert (answers.unasked, answers.asked) == ((question,), 1)

    def test_an_answer_that_fails_ends_the_run(self) -> None:
        api = ScriptedApi(stats={("main", "p7"): Script(ServerUnavailable("GET stat: 503"))})
        questions = [Question("r", f"p{number}".encode()) for number in range(30)]
        with pytest.raises(ServerUnavailable):
            ask(api, questions, {"r": ("main",)})

    @pytest.mark.parametrize(("limit", "asked"), [(0, 0), (3, 2), (4, 4), (5, 4), (6, 6), (100, 6)])
    def test_so_many_are_asked_and_the_others_told(self, limit: int, asked: int) -> None:
        questions = [Question("r", f"p{number}".encode()) for number in range(3)]
        answers = ask(ScriptedApi(), questions, {"r": ("a", "b")}, limit)
        assert answers.asked == asked
        assert answers.unasked == tuple(questions[asked // 2 :])

    @given(
        st.lists(st.tuples(st.sampled_from("rst"), st.sampled_from(["p", "q", "\xff", "é"])), max_size=12),
        st.integers(0, 12),
    )
    def test_what_was_asked_was_asked_everywhere(self, pairs: list[tuple[str, str]], limit: int) -> None:
        branches = {"r": ("a",), "s": ("a", "b"), "t": ("c", "d", "e")}
        questions = [Question(range_id, path.encode("latin-1")) for range_id, path in pairs]
        api = ScriptedApi()
        answers = ask(api, questions, branches, limit)
        assert len(api.asked) == len(set(api.asked)) == answers.asked <= limit
        for question in questions:
            if question not in answers.unasked:
                for branch in branches[question.range_id]:
                    assert (branch, question.path.decode()) in api.asked
