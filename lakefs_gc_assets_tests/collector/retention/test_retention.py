"""The live definition: a combination of dump, rules, policy and the server's list."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.commits import CommitSource
from lakefs_gc_assets.collector.frame.frames import ReasonsToStay
from lakefs_gc_assets.collector.records import own_commits, tables
from lakefs_gc_assets.collector.records.own_commits import OwnCommit, record_own_commit
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.retention import rules as retention_rules
from lakefs_gc_assets.collector.retention.active_commits import EXPIRED_BEFORE, EXPIRED_BEFORE_KEY
from lakefs_gc_assets.collector.retention.retention import LiveDefinition, Retention
from lakefs_gc_assets.collector.retention.rules import Policy
from lakefs_gc_assets.errors import (
    AccessDenied,
    ConfigurationError,
    CorruptFile,
    LakeFSError,
    NotFound,
    NotSupported,
    ServerUnavailable,
)
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import (
    Branch,
    Commit,
    PrepareCommitsTask,
    PreparedCommits,
    RefsDump,
    RetentionRules,
)
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.scripted import NOW, Script, ScriptedApi, opened
from lakefs_gc_assets_tests.collector.written import put_commit_objects, put_dump

NAMESPACE = Namespace.parse("s3://bucket/repo")
LIST = "_lakefs/retention/gc/commits/run_id=r/commits.csv"
LISTED = PreparedCommits("r", f"s3://bucket/repo/{LIST}")
PREPARED = PrepareCommitsTask(True, None, LISTED)
RULES = RetentionRules(21, {"main": 7})


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def metarange(name: str) -> str:
    return digest(f"metarange of {name}")


def commit(name: str, days: float, *parents: str, held: str | None = None) -> Commit:
    made = int((NOW - timedelta(days=days)).timestamp())
    return Commit(digest(name), metarange(name) if held is None else held, tuple(map(digest, parents)), made)


HISTORY = [
    commit("first", 40, held=""),
    commit("a", 38, "first"),
    commit("b", 20, "a"),
    commit("c", 5, "b"),
    commit("d", 1, "c"),
    commit("old", 35, "a"),
    commit("older", 36, "a"),
]
FIRST_OF_DUMP = commit("new", 50)
"""Its id sorts first."""
HEADS = [Branch("main", digest("d")), Branch("stale", digest("old"))]
"""By RULES, main keeps d, c and b; `older` dangles and is expired; a was never head within a window."""


class Server:
    """A repository of files, and its server's answers."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.folder = folder
        self.tags = [Branch("v1", digest("older"))]
        self.listed: list[tuple[str, str | None]] = [("d", None), ("c", None), ("b", None), ("old", None)]
        self.api = ScriptedApi(rules=Script(RULES), prepare_commits_tasks=Script(PREPARED))
        self.written = False

    def policy(self, text: str) -> dict[str, Any]:
        file = self.folder / "policy.yaml"
        file.write_text(text)
        return {"retention_policy": str(file)}

    def dump(self, commits: Sequence[Commit], heads: Sequence[Branch], tags: Sequence[Branch] = ()) -> RefsDump:
        """A dump of commits; each metarange is written at the creation date of its earliest commit."""
        for each in sorted(commits, key=lambda each: each.creation_date, reverse=True):
            if each.metarange_id:
                self.put_metarange(each.metarange_id, each.creation_date)
        return put_dump(self.store, commits, heads, tags)

    def put_metarange(self, metarange_id: str, at: float) -> None:
        """Writes a metarange file with a modification time in seconds since 1970; tests never read its content."""
        self.store.put(f"_lakefs/{metarange_id}", b"")
        os.utime(self.folder / "_lakefs" / metarange_id, (at, at))

    def write(self) -> None:
        self.api.dumps = Script(self.dump(HISTORY, HEADS, self.tags))
        rows = [f"{digest(name)},false,{metarange(name) if held is None else held}" for name, held in self.listed]
        self.store.put(LIST, "\n".join(["commit_id,expired,metarange_id", *rows, ""]).encode())

    def define(
        self,
        now: datetime = NOW,
        notes: list[str] | None = None,
        before: ReasonsToStay | None = None,
        **settings: Any,
    ) -> LiveDefinition:
        if not self.written:
            self.write()
        return retention.live_definition(
            opened(self.api, self.store, NAMESPACE, CollectionSettings(wait_before_dump_seconds=0, **settings)),
            now,
            NOW,
            (lambda message: None) if notes is None else notes.append,
            before,
        )


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def metaranges(*names: str) -> tuple[str, ...]:
    return tuple(sorted(map(metarange, names)))


class TestLive:
    def test_active_commits_tags_and_the_rest(self, server: Server) -> None:
        notes: list[str] = []
        found = server.define(notes=notes)
        assert tuple(sorted(found.live.metarange_ids)) == metaranges("d", "c", "b", "old", "older")
        assert tuple(sorted(found.expired_metaranges)) == metaranges("a")
        assert found.live.source is CommitSource.REFS_DUMP
        assert found.live.heads == {"main": metarange("d"), "stale": metarange("old")}
        assert (found.live.commits, found.warnings, found.guards, found.differences) == (5, (), (), ())
        assert found.counts == {
            "commits_known": 7,
            "commits_active": 4,
            "commits_tagged": 1,
            "commits_pinned": 0,
            "commits_expired": 2,
            "commits_by_files_alone": 0,
            "commits_by_doubt_alone": 0,
            "commits_by_definition_alone": 0,
            "commits_by_server_alone": 0,
        }
        assert notes == ["retention: of 7 commits 5 stay, 2 are expired"]

    def test_tags_may_be_left_out(self, server: Server) -> None:
        found = server.define(**server.policy("keep_tags: false"))
        assert tuple(sorted(found.live.metarange_ids)) == metaranges("d", "c", "b", "old")
        assert tuple(sorted(found.expired_metaranges)) == metaranges("a", "older")

    def test_what_expired_names_the_newest_commit_that_had_it_and_the_longest_rule(self, server: Server) -> None:
        found = server.define(**server.policy("keep_tags: false"))
        # `a` is on the branches main and stale; the rule of main is the shorter one. `older` dangles.
        default = "21d by the server's default"
        assert found.last_holders.to_pylist() == [
            {"metarange_id": metarange("older"), "commit_id": digest("older"), "branch": None, "rule": default},
            {"metarange_id": metarange("a"), "commit_id": digest("a"), "branch": "stale", "rule": default},
        ]

    def test_pinned_commits_stay(self, server: Server) -> None:
        found = server.define(**server.policy(f"pinned: [{digest('a')}, {digest('first')}]\nkeep_tags: false"))
        assert tuple(sorted(found.live.metarange_ids)) == metaranges("d", "c", "b", "old", "a")
        assert found.counts["commits_pinned"] == 2

    @pytest.mark.parametrize(
        "each", [*HISTORY, FIRST_OF_DUMP], ids=["first", "a", "b", "c", "d", "old", "older", "first of the dump"]
    )
    def test_a_commit_stays_if_it_is_pinned_or_was_a_head_before_wherever_the_dump_has_it(
        self, server: Server, each: Commit
    ) -> None:
        server.listed = [("d", None)]
        server.write()
        server.written = True
        server.api.dumps = Script(server.dump([*HISTORY, FIRST_OF_DUMP], HEADS))
        rules = "default: 1h\nreplace: true"
        plain = server.define(**server.policy(rules))
        pinned = server.define(**server.policy(f"{rules}\npinned: [{each.id}]"))
        before = ReasonsToStay({"gone": each.id}, policy=rules)
        shown = server.define(before=before, **server.policy(rules))
        expired = each.id not in {digest("d"), digest("old")}
        assert FIRST_OF_DUMP.id < min(commit.id for commit in HISTORY)
        assert plain.counts["commits_expired"] == 6
        for found in (pinned, shown):
            assert found.counts["commits_expired"] == 6 - expired
            assert {each.metarange_id} - {""} <= {*found.live.metarange_ids}
        assert (pinned.counts["commits_pinned"], pinned.guards) == (1, ())

    def test_a_pin_of_no_commit_stops_a_sweep(self, server: Server) -> None:
        found = server.define(**server.policy(f"pinned: [{'e' * 64}]"))
        assert [guard.guard for guard in found.guards] == ["pinned commits"]
        assert "e" * 64 in str(found.guards[0])
        assert found.guards[0].lifted_by == "Correct the ids in the policy, or remove them"

    def test_metaranges_that_an_active_commit_shares_are_not_expired(self, server: Server) -> None:
        shared = [*HISTORY, commit("revert", 0.5, "d", held=metarange("a"))]
        server.api.dumps = Script(server.dump(shared, [Branch("main", digest("revert")), HEADS[1]]))
        server.written = True
        server.store.put(LIST, f"commit_id,expired,metarange_id\n{digest('d')},false,{metarange('d')}\n".encode())
        found = server.define()
        assert metarange("a") in found.live.metarange_ids
        assert tuple(sorted(found.expired_metaranges)) == metaranges("older")

    def test_the_policy_keeps_more(self, server: Server) -> None:
        assert metarange("a") in server.define(**server.policy("branches: {m*: 21d}")).live.metarange_ids
        assert metarange("a") in server.define(**server.policy("default: 21d")).live.metarange_ids
        assert metarange("a") not in server.define(**server.policy("default: 20d")).live.metarange_ids
        assert metarange("b") in server.define(**server.policy("default: 1h\nbranches: {main: 1h}")).live.metarange_ids

    def test_where_nothing_that_stays_holds_an_object_all_others_are_expired(self, server: Server) -> None:
        server.write()
        server.written = True
        emptied = commit("emptied", 9, "b", held="")
        server.api.dumps = Script(server.dump([*HISTORY, emptied], [Branch("main", emptied.id)]))
        found = server.define(**server.policy("default: 1h\nreplace: true"))
        assert (found.live.metarange_ids, found.live.heads) == ((), {})
        assert tuple(sorted(found.expired_metaranges)) == metaranges("a", "b", "c", "d", "old", "older")

    def test_stale_branches_are_only_reported(self, server: Server) -> None:
        notes: list[str] = []
        plain = server.define()
        found = server.define(notes=notes, **server.policy("stale_after: 30d"))
        assert [(each.branch, each.head_made_at) for each in found.stale] == [("stale", NOW - timedelta(days=35))]
        assert any(note.startswith("branch stale is stale: its last commit was made at 2026-10-17") for note in notes)
        assert (found.live.metarange_ids, found.rules_digest) == (plain.live.metarange_ids, plain.rules_digest)


class TestTheServersList:
    def test_what_it_lacks_stays_and_is_named(self, server: Server) -> None:
        server.listed = [("d", None), ("old", None)]
        notes: list[str] = []
        found = server.define(notes=notes)
        assert tuple(sorted(found.live.metarange_ids)) == metaranges("d", "c", "b", "old", "older")
        assert {each.commit_id for each in found.differences} == {digest("b"), digest("c")}
        assert {each.kept_by for each in found.differences} == {"definition"}
        why = f"was replaced on branch main by {digest('c')}, made 5.0 days ago: 7d by the server's rule of main"
        assert f"commit {digest('b')} is kept only by the definition: {why}" in notes
        assert found.counts["commits_by_definition_alone"] == 2

    def test_what_it_has_alone_stays_and_is_named(self, server: Server) -> None:
        server.listed.append(("a", None))
        found = server.define()
        assert metarange("a") in found.live.metarange_ids
        assert found.expired_metaranges == ()
        (difference,) = found.differences
        assert (difference.commit_id, difference.kept_by) == (digest("a"), "server")
        assert difference.why == "expired by the definition and this run's clock"
        assert (found.live.commits, found.counts["commits_by_server_alone"]) == (6, 1)

    def test_tags_pins_and_policies_are_no_difference(self, server: Server) -> None:
        found = server.define(**server.policy(f"default: 60d\npinned: [{digest('first')}]"))
        assert found.expired_metaranges == ()
        assert found.differences == ()

    def test_commits_that_the_dump_lacks_stay(self, server: Server) -> None:
        server.listed += [("new", None), ("empty", "")]
        found = server.define()
        assert metarange("new") in found.live.metarange_ids
        assert "" not in found.live.metarange_ids
        newer = "it is newer than the refs dump"
        assert {(each.commit_id, each.kept_by, each.why) for each in found.differences} == {
            (digest("new"), "server", newer),
            (digest("empty"), "server", newer),
        }
        assert (found.live.commits, found.counts["commits_known"]) == (7, 9)

    def test_their_metaranges_are_asked_for_where_the_list_has_none(self, server: Server) -> None:
        server.write()
        server.written = True
        ids = [digest(name) for name in ("d", "c", "b", "old", "new")]
        server.store.put(LIST, "\n".join(["commit_id,expired", *(f"{id_},false" for id_ in ids), ""]).encode())
        server.api.commits = {digest("new"): Script(commit("new", 0, "d"))}
        assert metarange("new") in server.define().live.metarange_ids
        with pytest.raises(LakeFSError, match=r"1 commit that the refs dump lacks.*collection\.dump_fetch_limit"):
            server.define(dump_fetch_limit=0)

    def test_a_contradiction_ends_the_run(self, server: Server) -> None:
        server.listed[0] = ("d", metarange("c"))
        with pytest.raises(CorruptFile, match="a different metarange here than in the refs dump") as caught:
            server.define()
        assert (caught.value.file, caught.value.check) == (LIST, "metarange")

    def test_under_a_policy_that_replaces_only_what_the_dump_lacks_stays(self, server: Server) -> None:
        server.listed += [("a", None), ("new", None)]
        found = server.define(**server.policy("default: 2d\nreplace: true\nkeep_tags: false"))
        assert tuple(sorted(found.live.metarange_ids)) == metaranges("d", "c", "old", "new")
        assert tuple(sorted(found.expired_metaranges)) == metaranges("a", "b", "older")
        assert [each.commit_id for each in found.differences] == [digest("new")]


class TestNoRules:
    @pytest.mark.parametrize("text", ["", "default: 1d", "branches: {main: 1h}\nkeep_tags: false"])
    def test_everything_stays_whatever_the_policy(self, server: Server, text: str) -> None:
        server.api.rules = Script(None)
        server.api.prepare_commits_starts = Script(AssertionError("there are no rules to prepare by"))
        found = server.define(**server.policy(text))
        assert tuple(sorted(found.live.metarange_ids)) == metaranges("a", "b", "c", "d", "old", "older")
        assert (found.expired_metaranges, found.live.commits) == ((), 7)
        assert "every commit stays" in found.warnings[0]
        assert ("replace: true" in found.warnings[0]) == bool(text)

    def test_a_policy_that_replaces_counts_alone(self, server: Server) -> None:
        server.api.rules = Script(None)
        server.api.prepare_commits_starts = Script(AssertionError("there are no rules to prepare by"))
        found = server.define(**server.policy("default: 7d\nreplace: true"))
        assert tuple(sorted(found.expired_metaranges)) == metaranges("a")

    @pytest.mark.parametrize(
        "failure", [NotFound("GET rules: 404"), AccessDenied("403"), ServerUnavailable("502"), LakeFSError("no JSON")]
    )
    def test_an_error_is_not_no_rules(self, server: Server, failure: LakeFSError) -> None:
        server.api.rules = Script(failure)
        with pytest.raises(LakeFSError, match=str(failure)):
            server.define()
        server.api.dump_starts = Script(AccessDenied("POST dump: 403"))
        with pytest.raises(type(failure)):
            server.define()


class TestRefusedDumps:
    @pytest.mark.parametrize("refusal", [AccessDenied("dump: 403"), NotFound("dump: 404"), NotSupported("dump: 501")])
    def test_retention_does_without_nothing(self, server: Server, refusal: LakeFSError) -> None:
        server.api.dump_starts = Script(refusal)
        with pytest.raises(LakeFSError, match=f"needs the graph of all commits.*{refusal}"):
            server.define()
        server.api.rules = Script(None)
        with pytest.raises(LakeFSError, match="needs the graph of all commits"):
            server.define(**server.policy("default: 7d\nreplace: true"))

    def test_without_rules_every_range_file_is_live(self, server: Server) -> None:
        held = put_commit_objects(server.store, {})
        server.api.dump_starts, server.api.rules = Script(AccessDenied("dump: 403")), Script(None)
        server.api.branch_lists = Script((Branch("main", digest("x")),))
        server.api.commits = {digest("x"): Script(commit("x", 1, held=held))}
        server.written = True
        found = server.define()
        assert (found.live.source, found.live.files) == (CommitSource.METADATA_FOLDER, (held,))
        assert found.expired_metaranges == ()

    def test_a_refused_list_is_not_a_refused_dump(self, server: Server) -> None:
        server.api.prepare_commits_starts = Script(AccessDenied("prepare_commits: 403"))
        with pytest.raises(LakeFSError, match="rules cannot be applied: prepare_commits: 403"):
            server.define()


class TestBadRules:
    @pytest.mark.parametrize("rules", [RetentionRules(-1, {}), RetentionRules(7, {"main": 2**31 - 1})])
    def test_end_the_run(self, server: Server, rules: RetentionRules) -> None:
        server.api.rules = Script(rules)
        server.api.prepare_commits_starts = Script(AssertionError("the server was made to go by them"))
        with pytest.raises(ConfigurationError, match="retention rules"):
            server.define()

    def test_of_unknown_branches_stop_a_sweep(self, server: Server) -> None:
        server.api.rules = Script(RetentionRules(21, {"mian": 365}))
        notes: list[str] = []
        text = "branches: {dve: 3d, 'x-*': 3d}\nkeep_tags: [v1, v2, w*]\nstale_branches: [branches: z]"
        found = server.define(notes=notes, **server.policy(text))
        assert [guard.guard for guard in found.guards] == ["rules of unknown branches"]
        assert found.warnings == (
            "the server's rule of mian: there is no such branch",
            "the policy's rule of dve, line 1: there is no such branch",
            "v2 in the policy's keep_tags, line 2: there is no such tag",
            "the policy's rule of x-*, line 1, matches no branch",
            "w* in the policy's keep_tags, line 2, matches no tag",
            "z in the policy's stale_branches, rule of line 3, matches no branch",
        )
        assert "; ".join(found.warnings[:3]) in str(found.guards[0])
        assert "collection.allow_rules_of_unknown_branches" in found.guards[0].lifted_by
        assert notes[0] == "WARNING: the server's rule of mian: there is no such branch"
        allowed = server.define(allow_rules_of_unknown_branches=True)
        assert (allowed.guards, len(allowed.warnings)) == ((), 1)

    def test_patterns_that_fit_nothing_are_named_and_stop_no_sweep(self, server: Server) -> None:
        names = ", ".join(f"'x{number:02}*': 3d" for number in range(23))
        found = server.define(**server.policy(f"branches: {{{names}}}"))
        assert found.guards == ()
        assert len(found.warnings) == 21
        assert found.warnings[-1] == "3 more names and patterns of the policy match nothing"

    def test_commits_that_had_expired_at_earlier_sweeps_are_counted(self, server: Server) -> None:
        ids = pa.table([pa.array(metaranges("a", "b", "c"))], schema=EXPIRED_BEFORE)
        tables.put(server.store, EXPIRED_BEFORE_KEY, ids)
        (line,) = server.define().warnings
        assert line.startswith("2 of the 5 commits that stay had expired when earlier sweeps deleted objects: objects")
        tables.put(server.store, EXPIRED_BEFORE_KEY, ids.slice(0, 1))
        assert server.define().warnings == ()

    def test_damaged_list_of_earlier_sweeps_is_said_and_ends_no_run(self, server: Server) -> None:
        server.store.put(EXPIRED_BEFORE_KEY, b"damaged")
        notes: list[str] = []
        assert server.define(notes=notes).live.commits == 5
        assert any("commits whose objects earlier sweeps deleted cannot be counted" in line for line in notes)

    def test_of_zero_days_are_said_aloud_first(self, server: Server) -> None:
        server.api.rules = Script(RetentionRules(0, {}))
        server.listed, server.tags = [("d", None), ("old", None)], []
        notes: list[str] = []
        found = server.define(notes=notes)
        assert tuple(sorted(found.live.metarange_ids)) == metaranges("d", "old")
        assert notes[0].startswith("WARNING: RETENTION OF ZERO: 2 of 2 branches keep only their head")

    def test_policies_end_the_run_before_anything_is_asked(self, server: Server) -> None:
        server.api.dump_starts = Script(AssertionError("a dump was asked for"))
        with pytest.raises(ConfigurationError, match=r"policy\.yaml, line 1: 3 has no unit"):
            server.define(**server.policy("default: 3"))
        with pytest.raises(ConfigurationError, match="cannot read policy file"):
            server.define(retention_policy="nowhere.yaml")


def test_heads_that_were_there_before_stay(server: Server) -> None:
    """A branch on an expired commit may be reset while uncommitted data is prepared."""
    server.api.commits = {digest("new"): Script(commit("new", 0, "d"))}
    heads = {"x": digest("a"), "main": digest("d"), "y": digest("new")}
    found = server.define(before=ReasonsToStay(heads, rules=RULES))
    assert tuple(sorted(found.live.metarange_ids)) == metaranges("d", "c", "b", "old", "older", "a", "new")
    assert found.expired_metaranges == ()
    assert found.counts["commits_expired"] == 1


class TestCommitsThatLieAboutTheirDates:
    """Rule of main: 7 days. Line: d, made a day ago, replaced c; c, made 5 days ago, replaced b; b replaced a."""

    @staticmethod
    def written_days_ago(server: Server, **days: float) -> None:
        """Sets the ages in days of metarange files, by commit."""
        server.listed = [("d", None)]
        server.write()
        server.written = True
        for name, ago in days.items():
            server.put_metarange(metarange(name), (NOW - timedelta(days=ago)).timestamp())

    def test_a_backdated_commit_does_not_let_go_what_it_replaced_a_moment_ago(self, server: Server) -> None:
        self.written_days_ago(server, b=2)
        found = server.define()
        assert metarange("a") in found.live.metarange_ids
        assert (found.counts["commits_by_files_alone"], found.counts["commits_expired"]) == (1, 1)
        assert found.warnings[0].startswith("1 commit stays only because their files were written later than the dates")

    def test_a_commit_is_as_young_as_its_parents_are_proved_to_be(self, server: Server) -> None:
        """The file of a was written yesterday, so every child of a was made after that."""
        self.written_days_ago(server, a=1)
        found = server.define()
        # a replaced `first`, b replaced a, and `older` dangles but is tagged.
        assert found.counts["commits_active"] == 7
        assert found.counts["commits_by_files_alone"] == 2

    def test_a_date_to_come_counts_for_its_commit_alone(self, server: Server) -> None:
        server.listed = [("d", None)]
        ahead = [each if each.id != digest("a") else commit("a", -300, "first") for each in HISTORY]
        server.api.dumps = Script(server.dump(ahead, HEADS, server.tags))
        server.store.put(LIST, f"commit_id,expired,metarange_id\n{digest('d')},false,{metarange('d')}\n".encode())
        server.put_metarange(metarange("a"), (NOW - timedelta(days=30)).timestamp())
        server.written = True
        found = server.define()
        assert tuple(sorted(found.expired_metaranges)) == metaranges("a")
        assert (found.counts["commits_by_files_alone"], found.counts["commits_expired"]) == (0, 1)

    def test_an_unlisted_file_may_have_been_written_just_now(self, server: Server) -> None:
        self.written_days_ago(server)
        (server.folder / "_lakefs" / metarange("b")).unlink()
        assert metarange("a") in server.define().live.metarange_ids

    def test_claimed_dates_are_believed_where_somebody_asks_for_it(self, server: Server) -> None:
        self.written_days_ago(server, a=2, b=2)
        found, careful = server.define(commit_dates="claimed"), server.define()
        assert tuple(sorted(found.expired_metaranges)) == metaranges("a")
        assert (found.counts["commits_by_files_alone"], found.warnings) == (0, ())
        assert found.rules_digest != careful.rules_digest

    def test_files_that_are_as_old_as_claimed_change_nothing(self, server: Server) -> None:
        found, believing = server.define(), server.define(commit_dates="claimed")
        assert (found.live.metarange_ids, found.expired_metaranges) == (
            believing.live.metarange_ids,
            believing.expired_metaranges,
        )

    def test_what_the_servers_list_lacks_is_compared_by_claimed_dates(self, server: Server) -> None:
        """The server trusts them, so its list lacks nothing."""
        self.written_days_ago(server, a=1, b=1)
        server.store.put(
            LIST,
            "\n".join(
                [
                    "commit_id,expired,metarange_id",
                    *(f"{digest(n)},false,{metarange(n)}" for n in ("d", "c", "b", "old")),
                ]
            ).encode(),
        )
        assert server.define().differences == ()

    def test_why_says_that_it_is_by_a_file(self, server: Server) -> None:
        self.written_days_ago(server, b=2)
        found = TestWhyCommitsStay.computed(server, prepare=False)
        reason = TestWhyCommitsStay.why(found)["a"]
        assert reason == (
            f"was replaced on branch main by {digest('b')}, made 2.0 days ago: 7d by the server's rule of main, "
            "by the time of its files; the commit claims an older date",
        )

    def test_rules_that_count_come_on_top_of_the_servers(self, server: Server) -> None:
        """By the server's rules, main keeps d, c and b; each commit was made on a different day."""
        text = "branches: {{main: {{retention: 0d, {}}}}}\nkeep_tags: ['w*']"
        found = server.define(**server.policy(text.format("keep_last: 4")))
        assert tuple(sorted(found.expired_metaranges)) == metaranges("older")
        assert (found.counts["commits_tagged"], found.counts["commits_by_doubt_alone"]) == (0, 0)
        found = server.define(**server.policy(text.format("keep: {daily: 3}")))
        assert tuple(sorted(found.expired_metaranges)) == metaranges("a", "older")

    def test_commits_with_a_receipt_of_object_lifecycle_are_not_counted(self, server: Server) -> None:
        """The receipt of b is another repository's; that of c is damaged, and keeping more is safe."""
        policy = server.policy("default: 0d\nreplace: true\nbranches: {main: {retention: 0d, keep_last: 2}}")
        assert tuple(sorted(server.define(**policy).expired_metaranges)) == metaranges("a", "b")
        own = OwnCommit("repo", digest("c"), "main", "run", NOW)
        for each in (own, replace(own, repository="repo-2", commit_id=digest("b"))):
            record_own_commit(server.store, each)
        server.store.put(f"{own_commits._folder('repo')}{digest('c')}.json", b"{}")
        assert tuple(sorted(server.define(**policy).expired_metaranges)) == metaranges("a")

    def test_branch_is_reported_stale_by_its_last_commit_of_a_user(self, server: Server) -> None:
        assert server.define(**server.policy("stale_after: 4d")).stale[1:] == ()
        record_own_commit(server.store, OwnCommit("repo", digest("d"), "main", "run", NOW))
        found = server.define(**server.policy("stale_after: 4d")).stale
        assert [(each.branch, each.head_made_at) for each in found[1:]] == [("main", NOW - timedelta(days=5))]

    def test_commits_that_stay_because_their_dates_are_in_doubt_are_counted(self, server: Server) -> None:
        self.written_days_ago(server, a=70)
        found = server.define(**server.policy("branches: {main: {retention: 0d, keep: {monthly: 4}}}"))
        assert tuple(sorted(found.expired_metaranges)) == ()
        assert (found.counts["commits_by_doubt_alone"], found.counts["commits_by_files_alone"]) == (1, 0)
        assert found.warnings[0].startswith("1 commit stays only because their day, week, month or year is in doubt")


class TestWhyCommitsStay:
    """Each reason to keep each commit, in words."""

    @staticmethod
    def computed(server: Server, *, prepare: bool = True, **settings: Any) -> Retention:
        if prepare:
            server.write()
        chosen = CollectionSettings(wait_before_dump_seconds=0, **settings)
        repository = opened(server.api, server.store, NAMESPACE, chosen)
        readings = retention.read(repository, NOW, lambda message: None)
        return retention.retention(repository, readings, NOW)

    @staticmethod
    def why(found: Retention) -> dict[str, tuple[str, ...]]:
        ids = found.graph.commits.ids.to_pylist()
        return {name: found.why(ids.index(digest(name))) for name in ("d", "b", "a", "older", "first")}

    def test_by_rules_tags_pins_and_the_servers_list(self, server: Server) -> None:
        server.tags = [Branch("v1", digest("older")), Branch("v2", digest("older")), Branch("v3", digest("b"))]
        server.listed.append(("a", None))
        found = self.computed(server, **server.policy(f"pinned: [{digest('older')}, {'e' * 64}]"))
        by_rule = f"was replaced on branch main by {digest('c')}, made 5.0 days ago: 7d by the server's rule of main"
        assert self.why(found) == {
            "d": ("head of main",),
            "b": (by_rule, "tag v3"),
            "a": ("in the server's own list, by its clock and its rules at that time",),
            "older": ("tag v1", "tag v2", "pinned by the policy"),
            "first": (),
        }
        assert len(found.pins) == 1

    def test_without_rules_there_is_one_reason_for_all(self, server: Server) -> None:
        server.api.rules = Script(None)
        found = self.computed(server)
        assert set(self.why(found).values()) == {("the repository has no retention rules, so every commit stays",)}
        assert (found.active, found.tags, found.pins, found.late) == (None, {}, frozenset(), {})
        assert found.listed.tolist() == [] and found.listed.dtype == np.int64 and found.flags.all()

    def test_a_commit_that_stays_without_a_reason_raises_and_is_not_taken_for_one_of_the_servers_list(
        self, server: Server
    ) -> None:
        found = self.computed(server)
        with pytest.raises(ValueError, match=f"commit {digest('a')} stays without a known reason"):
            self.why(replace(found, flags=np.ones_like(found.flags)))

    def test_what_the_server_lists_counts_for_nothing_under_a_policy_that_replaces(self, server: Server) -> None:
        server.listed.append(("a", None))
        found = self.computed(server, **server.policy("default: 7d\nreplace: true"))
        assert self.why(found)["a"] == () and found.listed.tolist() == []


class TestStaleBranches:
    def test_the_oldest_come_first_and_one_of_exactly_that_age_is_not_stale(self, server: Server) -> None:
        heads = [*HEADS, Branch("z", digest("older")), Branch("a", digest("older")), Branch("b", digest("b"))]
        server.write()
        server.written = True
        server.api.dumps = Script(server.dump(HISTORY, heads, server.tags))
        found = server.define(**server.policy("stale_after: 20d"))
        assert [each.branch for each in found.stale] == ["a", "z", "stale"]
        assert [each.branch for each in server.define(**server.policy("stale_after: 36d")).stale] == []
        assert server.define().stale == ()


class TestWhatTheLogIsTold:
    @staticmethod
    def defined(server: Server, count: int, notes: list[str]) -> LiveDefinition:
        """Defines with `count` stale branches; the server's list lacks their heads and two of main's last week."""
        lines = [commit(f"line {number:02}", 30, "first") for number in range(count)]
        heads = [HEADS[0], *(Branch(f"b{number:02}", each.id) for number, each in enumerate(lines))]
        server.listed = [("d", None)]
        server.write()
        server.written = True
        server.api.dumps = Script(server.dump([*HISTORY, *lines], heads, server.tags))
        return server.define(notes=notes, **server.policy("stale_after: 29d"))

    def test_what_was_waited_for_and_what_old_servers_cannot_do(self, server: Server) -> None:
        server.write()
        server.api.prepare_commits_starts = Script(NotFound("POST /async: 404"))
        server.api.blocking_prepares = Script(LISTED)
        notes: list[str] = []
        settings = CollectionSettings(wait_before_dump_seconds=30)
        retention.live_definition(opened(server.api, server.store, NAMESPACE, settings), NOW, NOW, note=notes.append)
        assert notes == [
            "waiting 30 s before reading commits",
            "prepare_commits cannot be started in the background (POST /async: 404): using the blocking call",
            "retention: of 7 commits 5 stay, 2 are expired",
        ]

    @pytest.mark.parametrize(
        ("count", "more"),
        [
            (18, []),
            (19, ["… and 1 more commits that only one of them keeps"]),
            (20, ["… and 2 more commits that only one of them keeps"]),
            (21, ["… and 3 more commits that only one of them keeps", "… and 1 more stale branches"]),
        ],
    )
    def test_twenty_of_a_kind_and_how_many_more(self, server: Server, count: int, more: list[str]) -> None:
        notes: list[str] = []
        found = self.defined(server, count, notes)
        assert (len(found.differences), len(found.stale)) == (count + 2, count)
        assert sum("is kept only by the definition" in note for note in notes) == min(count + 2, 20)
        assert sum("is stale" in note for note in notes) == min(count, 20)
        assert [note for note in notes if note.startswith("…")] == more


def test_as_many_commits_are_asked_for_as_the_limit_says(server: Server) -> None:
    server.write()
    server.written = True
    ids = [digest(name) for name in ("d", "c", "b", "old", "new", "newer")]
    server.store.put(LIST, "\n".join(["commit_id,expired", *(f"{id_},false" for id_ in ids), ""]).encode())
    server.api.commits = {digest(name): Script(commit(name, 0, "d")) for name in ("new", "newer")}
    assert server.define(dump_fetch_limit=2).live.commits == 7
    with pytest.raises(LakeFSError, match="2 commits that the refs dump lacks, more than 1"):
        server.define(dump_fetch_limit=1)


@pytest.mark.parametrize("at_once", [True, False])
def test_without_rules_a_refused_dump_is_reported_with_its_reason_and_waits(server: Server, at_once: bool) -> None:
    held = put_commit_objects(server.store, {})
    server.api.dump_starts, server.api.rules = Script(AccessDenied("dump: 403")), Script(None)
    server.api.branch_lists = Script((Branch("main", digest("x")),))
    server.api.commits = {digest("x"): Script(commit("x", 1, held=held))}
    server.written = True
    notes: list[str] = []
    repository = opened(server.api, server.store, NAMESPACE, CollectionSettings(wait_before_dump_seconds=30))
    found = retention.live_definition(repository, NOW, NOW, notes.append, at_once=at_once)
    waiting = "waiting 30 s before reading commits"
    refused = "no refs dump (dump: 403): reading every range file of the repository instead"
    assert notes == ([refused, waiting] if at_once else [waiting, refused])
    assert found.live.waited == 30
    assert (found.warnings, found.counts) == (("the repository has no retention rules, so every commit stays",), {})
    assert found.rules_digest == retention_rules.digest(None, Policy(), "written")
