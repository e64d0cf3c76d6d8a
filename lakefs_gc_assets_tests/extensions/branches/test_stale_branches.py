"""Stale branches of an embedded server, with the real SDK: deleting exactly the listed ones, and restoring them."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import yaml

from lakefs_gc_assets.cli.common import loaded_configuration, open_repository
from lakefs_gc_assets.collector import commits, expiring
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, COMMITTED_DF
from lakefs_gc_assets.collector.incremental.earlier_runs import EarlierRuns
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.across_runs import (
    BranchState,
    DeletedBranch,
    branches_we_deleted,
    read_deleted_branches,
    write_deleted_branch,
)
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.own_commits import OwnCommit, record_own_commit
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.lock import KEY as LOCK_KEY
from lakefs_gc_assets.collector.repository.lock import earliest_clock, locked
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention.active_commits import Graph
from lakefs_gc_assets.errors import (
    AccessDenied,
    ConfigurationError,
    GuardTripped,
    LockHeld,
    LockLost,
    OrderViolation,
    ServerUnavailable,
    StorageError,
)
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.branches.sightings import SeenHeads, Sighting
from lakefs_gc_assets.extensions.branches.stale_branches import BranchFate, BranchListing, BranchOutcome, BranchStatus
from lakefs_gc_assets.extensions.forecast import forecast
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.api.models import Commit, LakeFSApi, ObjectsPage, ObjectStats
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX, RUNS_PREFIX
from lakefs_gc_assets.storage.interface import ObjectStore, keys_below
from lakefs_gc_assets_tests.extensions.check.test_fsck import Asked
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE, RetainedRepository

RULES: list[dict[str, Any]] = [
    {"branches": "kept-*"},
    {"branches": "wild-*", "max_inactivity": "30d", "uncommitted": True},
    {"branches": ["old-*", "{dev,test}-[0-9]"], "max_age": "60d", "max_inactivity": "30d"},
]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[RetainedRepository]:
    with repository_with_branch(tmp_path) as made:
        yield made


@contextmanager
def repository_with_branch(tmp_path: Path) -> Iterator[RetainedRepository]:
    """Only `old-1` is stale by RULES: its commits are 90 and 40 days old."""
    with EmbeddedServer(tmp_path / "server", routes=ROUTES) as server:
        repository = RetainedRepository(server, tmp_path)
        with server.clock.at(datetime.now(UTC) - timedelta(days=200)):
            clients.repository(server)
        repository.put("v1")
        repository.commit("first", 150)
        branch(repository, "old-1", 90, 40)
        with (
            mock.patch.dict(os.environ, {SECRET_VARIABLE: server.secret_access_key}),
            mock.patch.object(commits, "_FIRST_POLL_SECONDS", 0.01),
        ):
            policy(repository, RULES)
            yield repository


def branch(made: RetainedRepository, name: str, *days: float, source: str = "main") -> None:
    """A branch with its own commits, one for each number of days ago."""
    made.call("POST", "/branches", {"name": name, "source": source})
    for number, ago in enumerate(days):
        made.put(f"{name} {number}", f"{name}/{number}", name)
        made.commit(f"{name} {number}", ago, name)


def stage(made: RetainedRepository, name: str, path: str = "staged", days: float = 0, content: bytes = b"s") -> None:
    with made.server.clock.at(datetime.now(UTC) - timedelta(days=days)):
        clients.upload(made.server, path, content, branch=name)


def pull(made: RetainedRepository, source: str, destination: str) -> str:
    body = {"title": "t", "source_branch": source, "destination_branch": destination}
    return str(made.call("POST", "/pulls", body)["id"])


def policy(made: RetainedRepository, rules: list[dict[str, Any]], **collection: Any) -> None:
    file = made.folder / "policy.yaml"
    file.write_text(yaml.safe_dump({"stale_branches": rules}))
    made.configuration(retention_policy=str(file), **collection)


def opened(made: RetainedRepository, **answers: Callable[..., Any]) -> OpenRepository:
    """The repository; some calls to the server get other answers."""
    repository = open_repository(loaded_configuration(made.folder / "lakefs-gc.yaml", None))
    return replace(repository, api=cast("LakeFSApi", Asked(repository.api, **answers))) if answers else repository


def listed(made: RetainedRepository, **answers: Callable[..., Any]) -> BranchListing:
    return stale_branches.list_branches(opened(made, **answers), lambda line: None)


def stale(made: RetainedRepository) -> list[str]:
    return [each.identity.branch for each in listed(made).stale]


def standing(made: RetainedRepository, name: str) -> BranchStatus:
    return next(each for each in listed(made).standings if each.identity.branch == name)


def deleted(made: RetainedRepository, digest: str, **answers: Callable[..., Any]) -> dict[str, BranchOutcome]:
    outcomes = stale_branches.delete(opened(made, **answers), digest, "test", lambda line: None, pytest.fail)
    return {outcome.branch: outcome for outcome in outcomes}


def fates(made: RetainedRepository, digest: str, **answers: Callable[..., Any]) -> dict[str, BranchFate]:
    return {name: outcome.fate for name, outcome in deleted(made, digest, **answers).items()}


def restored(made: RetainedRepository, *names: str, **answers: Callable[..., Any]) -> dict[str, BranchOutcome]:
    outcomes = stale_branches.restore(opened(made, **answers), names, "test", pytest.fail)
    return {outcome.branch: outcome for outcome in outcomes}


def heads(made: RetainedRepository) -> dict[str, str]:
    return {each.id: each.commit_id for each in opened(made).api.branches()}


class TestWhichAreStale:
    def test_both_limits_must_be_over(self, made: RetainedRepository) -> None:
        branch(made, "old-2", 50, 40)
        branch(made, "old-3", 90, 20)
        branch(made, "other", 90)
        assert stale(made) == ["old-1"]
        kept = standing(made, "old-2").kept
        assert kept.startswith("its first commit at ") and kept.endswith(" is within 60d")
        assert standing(made, "old-3").kept.startswith("its last commit at ")
        assert standing(made, "other").kept == "no rule matches it"

    def test_the_first_rule_that_fits_counts_and_one_without_limits_keeps(self, made: RetainedRepository) -> None:
        branch(made, "dev-1", 90)
        assert stale(made) == ["dev-1", "old-1"]
        policy(made, [{"branches": ["old-*"]}, *RULES])
        assert stale(made) == ["dev-1"]
        assert standing(made, "old-1").kept == "the rule of line 2 has no limit"

    def test_never_the_default_branch(self, made: RetainedRepository) -> None:
        policy(made, [{"branches": "*", "max_inactivity": "1d"}])
        made.commit("replaced", 100)
        assert stale(made) == ["old-1"]
        assert standing(made, "main").kept == "it is the default branch"

    def test_never_a_protected_one(self, made: RetainedRepository) -> None:
        for pattern in ("old-1", "*-?", "old-[0-9]", "{x,old}-1", "unclosed[", "a\\*"):
            made.call("PUT", "/settings/branch_protection", [{"pattern": "main"}, {"pattern": pattern}])
            assert stale(made) == []
            assert standing(made, "old-1").kept == f"the branch protection rule {pattern} matches it"

    @pytest.mark.parametrize("call", ["protection_patterns", "open_pull_requests"])
    def test_facts_of_all_branches_that_cannot_be_read_end_it(self, made: RetainedRepository, call: str) -> None:
        def refuse() -> Any:
            raise AccessDenied("no")

        with pytest.raises(AccessDenied):
            listed(made, **{call: refuse})

    def test_never_one_whose_head_has_a_tag(self, made: RetainedRepository) -> None:
        made.call("POST", "/tags", {"id": "v1", "ref": "old-1"})
        assert standing(made, "old-1").kept == "the tag v1 names its head"
        made.call("DELETE", "/tags/v1")
        digest = listed(made).digest
        decide = stale_branches._decide

        def tag_then(repository: OpenRepository, note: Callable[[str], None]) -> BranchListing:
            listing = decide(repository, note)
            made.call("POST", "/tags", {"id": "v1", "ref": "old-1"})
            return listing

        with mock.patch.object(stale_branches, "_decide", tag_then):
            outcome = deleted(made, digest)["old-1"]
        assert (outcome.fate, outcome.why) == (BranchFate.KEPT, "the tag v1 names its head now")

    def test_never_one_whose_hooks_ran_lately(self, made: RetainedRepository) -> None:
        def ran(days: float) -> Callable[[str, object], datetime]:
            return lambda name, ignored: datetime.now(UTC) - timedelta(days=days)

        assert [each.identity.branch for each in listed(made, last_action_run=ran(31)).stale] == ["old-1"]
        listing = listed(made, last_action_run=ran(3))
        (kept,) = [each.kept for each in listing.standings if each.identity.branch == "old-1"]
        assert not listing.stale and kept.startswith("the last run of its actions at ")

    def test_one_whose_hooks_cannot_be_read_stays(self, made: RetainedRepository) -> None:
        def refuse(name: str, ignored: Collection[str]) -> Any:
            raise AccessDenied("no")

        listing = listed(made, last_action_run=refuse)
        assert (listing.stale, listing.unknown) == ((), 1)

    def test_never_one_that_an_open_pull_request_names(self, made: RetainedRepository) -> None:
        branch(made, "old-2", 90)
        pull_id = pull(made, "old-1", "old-2")
        assert stale(made) == []
        assert standing(made, "old-1").kept == f"the open pull request {pull_id} would merge it into old-2"
        assert standing(made, "old-2").kept == f"the open pull request {pull_id} would merge old-1 into it"
        made.call("PATCH", f"/pulls/{pull_id}", {"status": "closed"})
        assert stale(made) == ["old-1", "old-2"]

    def test_none_with_uncommitted_changes_unless_the_policy_says_so(self, made: RetainedRepository) -> None:
        branch(made, "wild-1", 90)
        for name in ("old-1", "wild-1"):
            stage(made, name, days=35)
        assert stale(made) == ["wild-1"]
        assert standing(made, "old-1").kept == "uncommitted changes"
        assert standing(made, "wild-1").changes == 1

    def test_a_staged_write_is_no_older_than_its_address(self, made: RetainedRepository) -> None:
        """A client may claim any time for the write when it links an address."""
        branch(made, "wild-1", 90)
        stage(made, "wild-1", days=3)
        real = opened(made).api

        def claim(reference: str, after: str, prefix: str = "") -> ObjectsPage:
            page = real.list_objects(reference, after, prefix)
            return replace(page, objects=tuple(replace(each, mtime=1) for each in page.objects))

        def claim_one(reference: str, path: str) -> ObjectStats | None:
            stats = real.stat(reference, path)
            return stats and replace(stats, mtime=1)

        listing = listed(made, list_objects=claim, stat=claim_one)
        (kept,) = [each.kept for each in listing.standings if each.identity.branch == "wild-1"]
        assert kept.startswith("its last staged write at ")

    def test_of_a_staged_deletion_nobody_can_tell_the_time(self, made: RetainedRepository) -> None:
        branch(made, "wild-1", 90)
        stage(made, "wild-1", "a", 35)
        clients.call(made.server, "DELETE", "/repositories/repo/branches/wild-1/objects", path="wild-1/0")
        kept = standing(made, "wild-1").kept
        assert kept == "the server does not report the time of its last uncommitted change"

    def test_too_many_changes_to_look_at(self, made: RetainedRepository) -> None:
        branch(made, "wild-1", 90)
        for path in "abc":
            stage(made, "wild-1", path, 35)
        policy(made, RULES, staged_change_limit=2)
        kept = standing(made, "wild-1").kept
        assert kept == "it has more than 2 uncommitted changes, the limit of collection.staged_change_limit"

    def test_changes_on_several_pages_are_read(self, made: RetainedRepository) -> None:
        branch(made, "wild-1", 90)
        for path in "abc":
            stage(made, "wild-1", path, 35)
        whole = standing(made, "wild-1")
        with mock.patch.object(stale_branches, "OBJECTS_ON_PAGE", 2):
            paged = standing(made, "wild-1")
            assert {*fates(made, listed(made).digest).values()} == {BranchFate.DELETED}
        assert paged == whole and (paged.kept, paged.changes) == ("", 3)

    def test_a_branch_without_a_commit_of_its_own_may_be_new(self, made: RetainedRepository) -> None:
        made.commit("newer", 100)
        branch(made, "old-2", source="main")
        branch(made, "old-3", source="old-1")
        assert stale(made) == []
        for name in ("old-1", "old-2", "old-3"):
            assert "no commit of its own" in standing(made, name).kept

    def test_a_merged_branch_has_its_commits(self, made: RetainedRepository) -> None:
        made.call("POST", "/refs/old-1/merge/main", {})
        assert stale(made) == ["old-1"]

    def test_a_date_that_a_commit_claims_does_not_make_it_older(self, made: RetainedRepository) -> None:
        made.call("POST", "/branches", {"name": "old-2", "source": "main"})
        made.put("backfill", "backfill", "old-2")
        made.commit("backfill", 3, "old-2", claimed_days=100)
        assert standing(made, "old-2").kept.startswith("its last commit at ")
        policy(made, RULES, commit_dates="claimed")
        assert stale(made) == ["old-1", "old-2"]

    def test_without_rules_it_says_so(self, made: RetainedRepository) -> None:
        made.configuration()
        with pytest.raises(ConfigurationError, match="no rule defines stale branches"):
            listed(made)


def test_an_unknown_last_use_is_not_old() -> None:
    """Two branches on one old commit, and no run yet: one of them may be new, and nobody can tell which."""
    with TemporaryDirectory() as folder, repository_with_branch(Path(folder)) as made:
        branch(made, "wild-1", 90)
        branch(made, "wild-2", source="wild-1")
        for name in ("wild-1", "wild-2"):
            assert standing(made, name).kept.startswith("its last use is unknown: ")


def test_an_unknown_age_is_not_old() -> None:
    with TemporaryDirectory() as folder, repository_with_branch(Path(folder)) as made:
        policy(made, [{"branches": "old-*", "max_age": "60d"}])
        made.commit("newer", 1)
        branch(made, "old-2", source=made.commits["first"])
        branch(made, "old-3", source="old-1")
        for name in ("old-1", "old-2", "old-3"):
            assert standing(made, name).kept.startswith("its age is unknown: ")


def test_a_recent_staged_write_keeps_its_branch() -> None:
    with TemporaryDirectory() as folder, repository_with_branch(Path(folder)) as made:
        branch(made, "wild-1", 90)
        stage(made, "wild-1", "older", days=35)
        stage(made, "wild-1", days=3)
        assert standing(made, "wild-1").kept.startswith("its last staged write at ")
        policy(made, [{"branches": "wild-*", "max_age": "60d", "uncommitted": True}])
        assert standing(made, "wild-1").kept.startswith("its last staged write at "), "without max_inactivity too"


def test_a_branch_that_the_server_fails_at_stays_and_the_others_are_decided(made: RetainedRepository) -> None:
    for number in (2, 3):
        branch(made, f"old-{number}", 90)
    real = opened(made).api

    def fail(name: str) -> object:
        if name == "old-2":
            raise ServerUnavailable("500")
        return real.first_change(name)

    listing = listed(made, first_change=fail)
    assert [each.identity.branch for each in listing.stale] == ["old-1", "old-3"]
    (kept,) = [each for each in listing.standings if each.is_unknown]
    assert (kept.identity.branch, kept.kept) == ("old-2", "its use is unknown: 500")
    assert listing.unknown == 1


class TestWhatEarlierRunsSaw:
    """All branches are seen by a run; then time goes on, without another run."""

    @pytest.fixture
    def seen(self, made: RetainedRepository) -> RetainedRepository:
        made.commit("newer", 100)
        branch(made, "wild-1", source="main")
        branch(made, "old-2", source="old-1")
        branch(made, "dev-1", source="main")
        policy(made, RULES)
        made.commit("newest", 1)
        assert stale(made) == [], "nobody can tell the age of branches without a commit of their own"
        collecting(made, sweep=False)
        return made

    def test_a_branch_without_a_commit_of_its_own_is_unused_since_the_first_run_that_saw_it(
        self, seen: RetainedRepository
    ) -> None:
        with later(20):
            assert standing(seen, "wild-1").kept.startswith("the first run that saw it on this commit at ")
        with later(40):
            shown = standing(seen, "wild-1")
            assert (shown.kept, shown.first_own_commit) == ("", None)
            assert shown.last_use.startswith("unchanged since a run of ")
            assert standing(seen, "dev-1").kept.startswith("the first run that saw it at "), "60d for its age"
            assert {*fates(seen, listed(seen).digest).values()} == {BranchFate.DELETED}
        with later(70):
            assert standing(seen, "dev-1").kept == ""

    def test_commits_that_only_stale_branches_share_belong_to_each(self, seen: RetainedRepository) -> None:
        with later(40):
            one, other = standing(seen, "old-1"), standing(seen, "old-2")
            assert one.kept == other.kept == "", "their commits are older than 60 days"
            assert one.first_own_commit == other.first_own_commit is not None
            assert (one.sharing, other.sharing) == (1, 1)
            stage(seen, "old-2")
            assert standing(seen, "old-2").kept == "uncommitted changes"
            assert standing(seen, "old-1").kept.startswith("the first run that saw it at "), "its age is unknown"

    def test_a_branch_made_after_a_run_on_an_old_commit_is_not_old(self, seen: RetainedRepository) -> None:
        """The commit was on a branch that is deleted: by its date alone the branch would be stale."""
        branch(seen, "tmp", 150)
        head = heads(seen)["tmp"]
        seen.call("DELETE", "/branches/tmp")
        branch(seen, "old-3", source=head)
        branch(seen, "wild-2", source=head)
        for name in ("old-3", "wild-2"):
            assert standing(seen, name).kept.startswith("its last use is unknown: at 2")
        collecting(seen, sweep=False)
        assert standing(seen, "old-3").kept.startswith("the first run that saw it on this commit at ")
        policy(seen, [{"branches": "old-*", "max_age": "60d"}])
        seen.call("DELETE", "/branches/wild-2")
        assert standing(seen, "old-3").kept.startswith("the first run that saw it at ")

    def test_a_run_whose_files_are_damaged_is_no_sighting_and_ends_the_row(self, seen: RetainedRepository) -> None:
        store = opened(seen).store
        (run_id,) = run_folder.newest_runs(store)
        store.put(run_folder.manifest(run_id, COMMITTED_DF.name), b"damaged")
        warnings = list[str]()
        with later(40):
            listing = stale_branches.list_branches(opened(seen), warnings.append)
        assert not listing.stale and any("do not count as sightings" in line for line in warnings)

    def test_expired_run_ends_the_row_of_sightings(self, seen: RetainedRepository) -> None:
        head = heads(seen)["wild-1"]
        seen.call("DELETE", "/branches/wild-1")
        collecting(seen, sweep=False)
        branch(seen, "wild-1", source=head)
        with later(40):
            assert standing(seen, "wild-1").kept.startswith("its last use is unknown: at 2")
        store = opened(seen).store
        expired = next(expiring.past_runs(expiring.folders(store)))
        expiring.remove_frames(store, expired)
        with later(40):
            assert standing(seen, "wild-1").kept.startswith("its last use is unknown: ")
            assert standing(seen, "dev-1").kept.startswith("its last use is unknown: ")

    def test_a_run_whose_plan_has_expired_is_no_sighting(self, seen: RetainedRepository) -> None:
        store = opened(seen).store
        (run_id,) = run_folder.newest_runs(store)
        store.delete([run_folder.plan(run_id)])
        with later(40), mock.patch.object(EarlierRuns, "newest_first", lambda runs: iter([run_id])):
            assert standing(seen, "wild-1").kept == "", "the index of runs names its repository"
            with mock.patch.object(EarlierRuns, "settled", lambda runs, name: None):
                assert standing(seen, "wild-1").kept.startswith("its last use is unknown: ")

    def test_one_that_a_client_made_again_after_our_deletion_is_not_old(self, seen: RetainedRepository) -> None:
        head = heads(seen)["wild-1"]
        with later(40):
            deleted(seen, listed(seen).digest)
            branch(seen, "wild-1", source=head)
            assert standing(seen, "wild-1").kept.startswith("its last use is unknown: at 2")


@contextmanager
def later(days: float) -> Iterator[None]:
    """Time goes on for the decision about branches; nothing else happens, and nothing waits."""
    dump = commits.complete_dump

    def dump_now(repository: OpenRepository, prepared_until: datetime, *more: Any) -> commits.Dump:
        return dump(repository, prepared_until - timedelta(days), *more)

    with (
        mock.patch.object(
            stale_branches, "earliest_clock", lambda repository: earliest_clock(repository) + timedelta(days)
        ),
        mock.patch.object(commits, "complete_dump", dump_now),
    ):
        yield


def random_graph(random: np.random.Generator, monotone: bool = False) -> tuple[Graph, dict[str, list[int]], list[int]]:
    """A graph of up to eleven commits with four branches, their lines of first parents, and the commits' dates."""
    count = int(random.integers(1, 12))
    parents = [int(random.integers(-1, at)) if at else -1 for at in range(count)]
    dates = [at if monotone else int(random.integers(0, count)) for at in range(count)]
    made = [
        Commit(f"{at:064x}", "", () if parent < 0 else (f"{parent:064x}",), dates[at])
        for at, parent in enumerate(parents)
    ]
    branches = {f"b{number}": f"{int(random.integers(0, count)):064x}" for number in range(4)}
    graph = Graph.from_commits(CommitColumns.from_commits(made), branches)

    def line(at: int) -> list[int]:
        return [] if at < 0 else [at, *line(parents[at])]

    return graph, {name: line(int(commit_id, 16)) for name, commit_id in branches.items()}, dates


def own_commits(lines: dict[str, list[int]], stale: Set[str]) -> dict[str, int]:
    """The plain definition: the line of first parents, without commits of any other line, except stale ones."""
    first = dict[str, int]()
    for name, own in lines.items():
        others = {at for other, each in lines.items() if other != name and other not in stale for at in each}
        if name not in stale:
            others -= {at for each in stale for at in lines[each]} - others
        if left := [at for at in own if at not in others]:
            first[name] = left[-1]
    return first


def subsets(names: Iterable[str]) -> list[set[str]]:
    every = sorted(names)
    return [{*chosen} for size in range(len(every) + 1) for chosen in combinations(every, size)]


def test_own_commits_of_random_graphs() -> None:
    random = np.random.default_rng(5)
    for _ in range(100):
        graph, lines, _ = random_graph(random)
        for stale in subsets(lines):
            assert stale_branches.first_own_commits(graph, stale) == own_commits(lines, stale)


def test_of_branches_that_share_commits_the_most_are_stale_that_can_be_stale_together() -> None:
    """Compared with every set of branches: the result is the union of all sets whose members are old enough."""
    random = np.random.default_rng(6)
    for number in range(200):
        graph, lines, dates = random_graph(random, monotone=bool(number % 2))
        oldest, given = (
            int(random.integers(0, len(dates) + 1)),
            {*random.choice(sorted(lines), 3, replace=False).tolist()},
        )

        def why(branch: str, own: int | None, dates: list[int] = dates, oldest: int = oldest) -> str:
            return "young" if own is None or dates[own] > oldest else ""

        def consistent(stale: Set[str], lines: dict[str, list[int]] = lines, why: Any = why) -> bool:
            first = own_commits(lines, stale)
            return not any(why(branch, first.get(branch)) for branch in stale)

        remaining, first, reasons = stale_branches.without_young(graph, given, why)
        assert consistent(remaining) and first == own_commits(lines, remaining)
        assert reasons.keys() == given - remaining
        if number % 2:
            assert remaining == set().union(*filter(consistent, subsets(given)))


def test_sightings_of_random_histories() -> None:
    """Compared with the plain definition: the newest runs in a row that saw the head, or any head.

    Object lifecycle made `b` on top of `a`: runs that saw `a` before all runs that saw `b` continue the row.
    """
    random, now = np.random.default_rng(7), datetime(2026, 1, 1, tzinfo=UTC)
    for _ in range(1000):
        lifecycle = bool(random.integers(0, 2))
        history = ["-", "a", "b", "c"]
        seen = "".join(history[int(each)] for each in random.integers(0, 4, int(random.integers(0, 6))))
        sighting = Sighting(("b", "a") if lifecycle else ("b",))
        for days, metarange_id in enumerate(seen):
            at = now - timedelta(days=days)
            sighting.look("x", SeenHeads(at, at, {} if metarange_id == "-" else {"x": metarange_id}))
        on = len(re.match("b*a*" if lifecycle else "b*", seen)[0])  # type: ignore[index]
        there = len(re.match("[abc]*", seen)[0])  # type: ignore[index]

        def oldest(row: int) -> datetime | None:
            return now - timedelta(days=row - 1) if row else None

        def broken(row: int, seen: str = seen) -> datetime | None:
            return now - timedelta(days=row) if row < len(seen) else None

        assert (sighting.on_head_since, sighting.off_head_at) == (oldest(on), broken(on))
        assert (sighting.there_since, sighting.missing_at) == (oldest(there), broken(there))


def expire(made: RetainedRepository, name: str, path: str, days: float, *, record: bool = True) -> str:
    """A commit as object lifecycle makes it: it removes a path of a branch. `record`: with a receipt."""
    clients.call(made.server, "DELETE", f"/repositories/repo/branches/{name}/objects", path=path)
    made.commit(f"lifecycle {name} {path}", days, name)
    commit_id = made.commits[f"lifecycle {name} {path}"]
    if record:
        record_own_commit(opened(made).store, OwnCommit("repo", commit_id, name, "run", datetime.now(UTC)))
    return commit_id


def test_a_commit_of_object_lifecycle_is_no_use_if_its_receipt_is_intact() -> None:
    with TemporaryDirectory() as folder, repository_with_branch(Path(folder)) as made:
        commit_id = expire(made, "old-1", "old-1/0", 4, record=False)
        assert standing(made, "old-1").kept.startswith("its last commit at ")
        store, own = opened(made).store, OwnCommit("repo", commit_id, "old-1", "run", datetime.now(UTC))
        record_own_commit(store, replace(own, repository="other"))
        assert stale(made) == []
        record_own_commit(store, own)
        expire(made, "old-1", "file", 3)
        last = f"last commit {datetime.now(UTC) - timedelta(days=40):%F}, without object lifecycle's"
        assert (standing(made, "old-1").kept, standing(made, "old-1").last_use) == ("", last)
        (key,) = [key for key in keys_below(store, RUNS_PREFIX) if commit_id in key and "/repo/" in key]
        store.put(key, b"damaged")
        warnings = list[str]()
        assert not stale_branches.list_branches(opened(made), warnings.append).stale
        assert any("receipt" in line and commit_id in line for line in warnings)


class TestCommitsOfObjectLifecycle:
    def test_branch_that_has_no_other_commit_of_its_own_has_none(self, made: RetainedRepository) -> None:
        made.commit("newer", 100)
        branch(made, "old-2")
        expire(made, "old-2", "file", 3)
        assert "no commit of its own" in standing(made, "old-2").kept
        assert standing(made, "old-2").first_own_commit is None

    def test_branch_made_on_one_is_as_old_as_its_first_commit_of_a_user(self, made: RetainedRepository) -> None:
        expire(made, "old-1", "old-1/0", 39)
        branch(made, "old-2", 35, source="old-1")
        assert stale(made) == []
        assert standing(made, "old-2").kept.startswith("its first commit at ")
        assert "no commit of its own" in standing(made, "old-1").kept

    def test_tag_on_the_last_commit_of_a_user_keeps_the_branch(self, made: RetainedRepository) -> None:
        made.call("POST", "/tags", {"id": "v1", "ref": "old-1"})
        expire(made, "old-1", "old-1/0", 3)
        assert standing(made, "old-1").kept == "the tag v1 names its head"

    def test_runs_that_saw_the_commit_below_count(self, made: RetainedRepository) -> None:
        made.commit("newer", 100)
        branch(made, "wild-1")
        collecting(made, sweep=False)
        expire(made, "wild-1", "file", 0)
        collecting(made, sweep=False)
        assert standing(made, "wild-1").kept.startswith("the first run that saw it on this commit at ")
        with later(40):
            assert standing(made, "wild-1").last_use.startswith("unchanged since a run of ")
            assert standing(made, "wild-1").kept == ""
        stage(made, "wild-1")
        made.commit("used", 0, "wild-1")
        assert standing(made, "wild-1").kept.startswith("its last commit at ")

    def test_hooks_that_ran_on_one_are_no_use(self, made: RetainedRepository) -> None:
        asked = list[tuple[str, list[str]]]()
        commit_id = expire(made, "old-1", "old-1/0", 3)

        def ran(name: str, ignored: list[str]) -> None:
            asked.append((name, ignored))

        assert [each.identity.branch for each in listed(made, last_action_run=ran).stale] == ["old-1"]
        assert asked == [("old-1", [commit_id])]

    def test_branch_goes_and_comes_back_with_it(self, made: RetainedRepository) -> None:
        expire(made, "old-1", "old-1/0", 3)
        before = heads(made)
        assert fates(made, listed(made).digest) == {"old-1": BranchFate.DELETED}
        assert restored(made)["old-1"].fate is BranchFate.RESTORED
        assert heads(made) == before


class TestDeleting:
    def test_what_was_shown_goes_and_comes_back(self, made: RetainedRepository) -> None:
        before, listing = heads(made), listed(made)
        assert fates(made, listing.digest) == {"old-1": BranchFate.DELETED}
        assert heads(made) == {"main": before["main"]}
        (record,) = read_deleted_branches(opened(made).store, "repo", pytest.fail)
        assert (record.branch, record.commit_id, record.state) == ("old-1", before["old-1"], BranchState.DELETED)

        assert fates(made, listing.digest) == {"old-1": BranchFate.GONE}, "approved twice"
        assert {name: outcome.fate for name, outcome in restored(made).items()} == {"old-1": BranchFate.RESTORED}
        assert heads(made) == before
        assert restored(made) == {}, "nothing is left to do"
        assert restored(made, "old-1")["old-1"].fate is BranchFate.THERE
        outcome = deleted(made, listing.digest)["old-1"]
        assert outcome.fate is BranchFate.KEPT, "an approval does not undo the restoration"
        assert re.fullmatch(r"restored at .*Z; it exists, and this approval no longer counts for it", outcome.why)
        assert standing(made, "old-1").kept.startswith("making it again at ")

    def test_repeated_approval_reports_recreated_branch_as_kept_until_it_is_deleted(
        self, made: RetainedRepository
    ) -> None:
        head, digest = heads(made)["old-1"], listed(made).digest
        assert fates(made, digest) == {"old-1": BranchFate.DELETED}
        branch(made, "old-1", source=head)
        assert fates(made, digest) == {"old-1": BranchFate.KEPT} and heads(made)["old-1"] == head
        made.call("DELETE", "/branches/old-1")
        assert fates(made, digest) == {"old-1": BranchFate.GONE}

    def test_a_hidden_branch_is_hidden_again(self, made: RetainedRepository) -> None:
        made.call("POST", "/branches", {"name": "old-2", "source": "main", "hidden": True})
        made.put("hidden", "hidden", "old-2")
        made.commit("hidden", 90, "old-2")
        assert [each.hidden for each in listed(made).stale] == [False, True]
        deleted(made, listed(made).digest)
        restored(made)
        assert [each["id"] for each in made.call("GET", "/branches")["results"]] == ["main", "old-1"]
        assert {*heads(made)} == {"main", "old-1", "old-2"}

    def test_another_digest_or_that_of_an_older_listing_is_refused(self, made: RetainedRepository) -> None:
        older = listed(made).digest
        branch(made, "old-2", 90)
        listed(made)
        for digest in ("", "0" * 16, "../shown", "é", older):
            with pytest.raises(OrderViolation, match="is not the digest of the newest list"):
                deleted(made, digest)

    def test_one_that_became_stale_since_stays(self, made: RetainedRepository) -> None:
        digest = listed(made).digest
        branch(made, "old-2", 90)
        assert fates(made, digest) == {"old-1": BranchFate.DELETED}
        assert "old-2" in heads(made)

    def test_what_changed_since_it_was_shown_stays(self, made: RetainedRepository) -> None:
        for number in range(2, 6):
            branch(made, f"old-{number}", 90)
        branch(made, "wild-1", 90)
        branch(made, "wild-2", 90)
        stage(made, "wild-1", days=40)
        policy(made, RULES, max_branch_loss_share=1)
        digest = listed(made).digest
        made.put("advanced", "advanced", "old-1")
        made.commit("advanced", 35, "old-1")
        stage(made, "old-2", days=40)
        made.call("DELETE", "/branches/old-3")
        branch(made, "old-3", source=made.commits["old-3 0"])
        made.call("PUT", "/settings/branch_protection", [{"pattern": "old-4"}])
        stage(made, "wild-1", days=40, content=b"other")
        made.call("DELETE", "/branches/wild-2")
        outcomes = deleted(made, digest)
        changed = "it was changed or recreated after it was listed"
        assert {name: (outcome.fate, outcome.why) for name, outcome in outcomes.items()} == {
            "old-1": (BranchFate.KEPT, changed),
            "old-2": (BranchFate.KEPT, "uncommitted changes"),
            # Recreated on the same commit, it is unchanged since the listing.
            "old-3": (BranchFate.DELETED, ""),
            "old-4": (BranchFate.KEPT, "the branch protection rule old-4 matches it"),
            "old-5": (BranchFate.DELETED, ""),
            "wild-1": (BranchFate.KEPT, changed),
            "wild-2": (BranchFate.GONE, "another client deleted it"),
        }
        assert {*heads(made)} == {"main", "old-1", "old-2", "old-4", "wild-1"}

    def test_a_rule_that_was_taken_back_keeps_what_was_shown(self, made: RetainedRepository) -> None:
        digest = listed(made).digest
        policy(made, RULES[:2])
        assert fates(made, digest) == {"old-1": BranchFate.KEPT}

    @pytest.mark.parametrize(
        ("meanwhile", "why"),
        [
            (lambda made: made.commit("late", 0, "old-1"), "its head has changed"),
            (lambda made: stage(made, "old-1"), "its uncommitted changes have changed"),
            (
                lambda made: made.call("PUT", "/settings/branch_protection", [{"pattern": "old*"}]),
                "the branch protection rule old* matches it now",
            ),
            (lambda made: pull(made, "old-1", "main"), "the open pull request {id} would merge it into main now"),
            (lambda made: made.call("DELETE", "/branches/old-1"), ""),
        ],
        ids=["commit", "staged write", "protected", "pull request", "deleted"],
    )
    def test_what_happens_right_before_a_deletion_is_noticed(
        self, made: RetainedRepository, meanwhile: Callable[[RetainedRepository], object], why: str
    ) -> None:
        digest, read_staged = listed(made).digest, stale_branches.read_staged
        count, pull_id = 0, ""

        def read(*arguments: Any) -> Any:
            """The first answer decides; right after it, a user changes the branch."""
            nonlocal count, pull_id
            count += 1
            answer = read_staged(*arguments) if count == 1 or not why else None
            if count == 1:
                pull_id = str(meanwhile(made))
            return answer or read_staged(*arguments)

        with mock.patch.object(stale_branches, "read_staged", read):
            (outcome,) = deleted(made, digest).values()
        assert outcome.fate is (BranchFate.KEPT if why else BranchFate.FAILED)
        assert outcome.why == why.format(id=pull_id) or "branch not found" in outcome.why
        assert ("old-1" in heads(made)) is bool(why)
        (record,) = read_deleted_branches(opened(made).store, "repo", pytest.fail)
        assert record.state is BranchState.KEPT and restored(made) == {}

    def test_a_lock_that_was_lost_meanwhile_keeps_the_branch(self, made: RetainedRepository) -> None:
        digest, changed = listed(made).digest, stale_branches._changed

        def lose(repository: OpenRepository, identity: stale_branches.BranchIdentity) -> str:
            """The last check takes so long that another process takes the lock."""
            why = changed(repository, identity)
            repository.store.delete([LOCK_KEY])
            return why

        with mock.patch.object(stale_branches, "_changed", lose), pytest.raises(LockLost):
            deleted(made, digest)
        assert "old-1" in heads(made)

    def test_the_default_branch_by_now(self, made: RetainedRepository) -> None:
        digest, facts = listed(made).digest, opened(made).facts
        changed = replace(facts, default_branch="old-1")
        outcomes = deleted(made, digest, repository=lambda: changed)
        assert outcomes["old-1"].why == "it is the default branch now" and "old-1" in heads(made)

    def test_the_server_fails_at_the_second_of_three_and_the_others_go(self, made: RetainedRepository) -> None:
        for number in (2, 3):
            branch(made, f"old-{number}", 90)
        digest, real = listed(made).digest, opened(made).api

        def fail(name: str) -> None:
            """The second deletion succeeds, but its answer is lost."""
            cast("Any", real).delete_branch(name)
            if name == "old-2":
                raise ServerUnavailable("gone")

        outcomes = deleted(made, digest, delete_branch=fail)
        assert [each.fate for each in outcomes.values()] == [BranchFate.DELETED, BranchFate.FAILED, BranchFate.DELETED]
        assert outcomes["old-2"].why == "gone; the branch may be deleted: approve again to find out"
        states = {each.branch: each.state for each in read_deleted_branches(opened(made).store, "repo", pytest.fail)}
        assert states == {
            "old-1": BranchState.DELETED,
            "old-2": BranchState.DELETING,
            "old-3": BranchState.DELETED,
        }
        again = listed(made)
        assert again.unfinished == (
            f"the deletion of old-2 got no answer: `lakefs-gc branches approve {digest}` finishes it",
        )
        assert fates(made, digest) == {"old-1": BranchFate.GONE, "old-2": BranchFate.DELETED, "old-3": BranchFate.GONE}
        assert listed(made).unfinished == ()
        assert [outcome.fate for outcome in restored(made).values()] == [BranchFate.RESTORED] * 3

    def test_a_server_that_fails_twice_in_a_row_ends_it(self, made: RetainedRepository) -> None:
        for number in (2, 3, 4):
            branch(made, f"old-{number}", 90)
        digest, calls = listed(made).digest, list[str]()

        def fail(name: str) -> None:
            calls.append(name)
            raise ServerUnavailable("gone")

        with pytest.raises(ServerUnavailable):
            deleted(made, digest, delete_branch=fail)
        assert calls == ["old-1", "old-2"]
        assert set(fates(made, digest).values()) == {BranchFate.DELETED}

    def test_a_record_that_cannot_be_written_keeps_its_branch_alone(self, made: RetainedRepository) -> None:
        for number in (2, 3):
            branch(made, f"old-{number}", 90)
        digest = listed(made).digest

        def write(store: ObjectStore, record: DeletedBranch) -> None:
            if record.branch == "old-2":
                raise StorageError("refused")
            write_deleted_branch(store, record)

        with mock.patch.object(stale_branches, "write_deleted_branch", write):
            outcomes = deleted(made, digest)
        assert [each.fate for each in outcomes.values()] == [BranchFate.DELETED, BranchFate.FAILED, BranchFate.DELETED]
        assert {*heads(made)} == {"main", "old-2"} and outcomes["old-2"].why == "refused"

    def test_one_refusal_does_not_keep_the_others(self, made: RetainedRepository) -> None:
        branch(made, "old-2", 90)
        digest, real = listed(made).digest, opened(made).api

        def refuse(name: str) -> None:
            if name == "old-1":
                raise AccessDenied("a hook refused")
            cast("Any", real).delete_branch(name)

        assert fates(made, digest, delete_branch=refuse) == {"old-1": BranchFate.FAILED, "old-2": BranchFate.DELETED}
        assert fates(made, digest) == {"old-1": BranchFate.DELETED, "old-2": BranchFate.GONE}

    def test_the_record_is_there_before_the_branch_goes(self, made: RetainedRepository) -> None:
        digest, seen = listed(made).digest, list[BranchState]()

        def look(name: str) -> None:
            seen.extend(each.state for each in read_deleted_branches(opened(made).store, "repo", pytest.fail))

        deleted(made, digest, delete_branch=look)
        assert seen == [BranchState.DELETING]

    def test_too_many_at_once(self, made: RetainedRepository) -> None:
        for number in range(2, 8):
            branch(made, f"old-{number}", 90)
        digest, refused_by = listed(made).digest, listed(made).refused_by
        with pytest.raises(GuardTripped, match=r"stale branches: 7 of 8 branches would be deleted, 87\.5%"):
            deleted(made, digest)
        assert len(heads(made)) == 8 and refused_by.startswith("guard stale branches: 7 of 8")
        policy(made, RULES, max_branch_loss_share=0.9)
        assert not listed(made).refused_by
        assert len(deleted(made, digest)) == 7

    def test_one_at_a_time(self, made: RetainedRepository) -> None:
        digest = listed(made).digest
        with locked(opened(made), "other", "somebody", pytest.fail), pytest.raises(LockHeld):
            deleted(made, digest)

    def test_another_repository_on_the_same_place_is_not_meant(self, made: RetainedRepository) -> None:
        digest, facts = listed(made).digest, opened(made).facts
        other = replace(opened(made), facts=replace(facts, id="other"))
        with pytest.raises(OrderViolation):
            [*stale_branches.delete(other, digest, "test", pytest.fail, pytest.fail)]


class TestRestoring:
    def test_a_branch_of_that_name_is_there_again(self, made: RetainedRepository) -> None:
        before = heads(made)
        deleted(made, listed(made).digest)
        branch(made, "old-1", 1)
        again = heads(made)["old-1"]
        outcome = restored(made)["old-1"]
        assert outcome.fate is BranchFate.KEPT and again in outcome.why and before["old-1"] in outcome.why
        assert heads(made)["old-1"] == again

    def test_one_that_is_there_again_on_its_commit(self, made: RetainedRepository) -> None:
        before = heads(made)
        deleted(made, listed(made).digest)
        branch(made, "old-1", source=before["old-1"])
        assert restored(made)["old-1"].fate is BranchFate.THERE

    def test_one_that_nobody_deleted(self, made: RetainedRepository) -> None:
        with pytest.raises(ConfigurationError, match="no record of deleted branches contains main, other"):
            restored(made, "other", "main")

    def test_the_server_fails_at_the_second_of_three(self, made: RetainedRepository) -> None:
        for number in (2, 3):
            branch(made, f"old-{number}", 90)
        deleted(made, listed(made).digest)
        real = opened(made).api

        def fail(name: str, *arguments: Any) -> None:
            if name == "old-2":
                raise ServerUnavailable("gone")
            cast("Any", real).create_branch(name, *arguments)

        fates = [outcome.fate for outcome in restored(made, create_branch=fail).values()]
        assert fates == [BranchFate.RESTORED, BranchFate.FAILED, BranchFate.RESTORED]
        assert restored(made)["old-2"].fate is BranchFate.RESTORED

    def test_a_head_whose_data_a_run_by_rules_deleted(self, made: RetainedRepository) -> None:
        commit_id = retire_and_sweep(made)
        outcomes = restored(made)
        assert outcomes["old-1"].fate is BranchFate.RESTORED, "its objects are young"
        outcome = outcomes["old-2"]
        assert outcome.fate is BranchFate.INCOMPLETE and not outcome.fate.is_well
        assert outcome.why.startswith("2 objects of its 3 entries are gone: earlier runs deleted them")
        assert restored(made, "old-2")["old-2"].fate is BranchFate.INCOMPLETE
        repository = opened(made)
        repository.store.put(METADATA_PREFIX + repository.api.commit(commit_id).metarange_id, b"damaged")
        outcome = restored(made, "old-2")["old-2"]
        assert outcome.fate is BranchFate.INCOMPLETE
        assert outcome.why.startswith("whether its data still exists is unknown: ")

    def test_a_damaged_record_keeps_no_other_from_coming_back(self, made: RetainedRepository) -> None:
        branch(made, "old-2", 90)
        deleted(made, listed(made).digest)
        repository, warnings = opened(made), list[str]()
        first, _ = read_deleted_branches(repository.store, "repo", pytest.fail)
        repository.store.put(first.key, b"{}")
        outcomes = [*stale_branches.restore(repository, (), "test", warnings.append)]
        assert [outcome.fate for outcome in outcomes] == [BranchFate.RESTORED] and len(warnings) == 1


class TestUndo:
    def test_how_long_the_commits_keep_their_objects(self, made: RetainedRepository) -> None:
        assert standing(made, "old-1").undo == "as long as there are no retention rules"
        made.rules(60)
        assert standing(made, "old-1").undo.startswith("until 2")
        made.rules(30)
        assert standing(made, "old-1").undo == "until the next run by retention rules"


def test_what_a_branch_holds_alone_is_reported_by_the_newest_forecast(made: RetainedRepository) -> None:
    assert listed(made).forecast_made_at is None
    made.rules(7)
    repository = opened(made).dumping_at_once()
    forecast.make(repository, LocalEngine(), lambda line: None, (), {})
    (shown,) = listed(made).stale
    assert shown.alone == Amount(2, len(b"old-1 0" + b"old-1 1"))
    assert shown.freed == Amount(), "they are too young to go at once"
    made.put("newer", "newer", "old-1")
    made.commit("newer", 35, "old-1")
    assert listed(made).stale[0].alone is None, "the forecast saw another commit"


def test_the_guard_on_branches_knows_those_that_we_deleted(made: RetainedRepository) -> None:
    branch(made, "old-2", 90)
    repository = opened(made)
    began = repository.clock.now() - timedelta(seconds=1)

    def left_out(since: datetime) -> set[str]:
        return {*branches_we_deleted(repository.store, "repo", since, pytest.fail)}

    assert left_out(began) == set()
    deleted(made, listed(made).digest)
    assert left_out(began) == {"old-1", "old-2"}
    assert left_out(repository.clock.now() + timedelta(seconds=1)) == set(), "counted after the deletion"
    first, _ = read_deleted_branches(repository.store, "repo", pytest.fail)
    write_deleted_branch(repository.store, replace(first, state=BranchState.DELETING))
    assert left_out(began) == {"old-2"}, "this deletion is not certain"


def collecting(
    made: RetainedRepository,
    between: Callable[[str], None] = lambda name: None,
    flow: Flow = Flow.CLEAN,
    sweep: bool = True,
) -> Report:
    """A run by the configuration; `between` gets the name of each finished step."""
    policy(made, RULES, sweep=sweep, max_branch_loss_share=1, wait_before_dump_seconds=0, wait_before_recheck_seconds=0)
    loaded = loaded_configuration(made.folder / "lakefs-gc.yaml", None)
    settings = loaded.configuration.collection.model_copy(
        update={"max_branch_loss_share": 0.5, "max_candidate_share": 1}
    )
    configuration = loaded.configuration.model_copy(update={"collection": settings})
    return ArrowRuns(replace(loaded, configuration=configuration), between=between).collect(flow)


def retire_and_sweep(made: RetainedRepository) -> str:
    """Deletes two stale branches, and the data of one branch by the rules; returns its head."""
    made.call("POST", "/branches", {"name": "old-2", "source": "main"})
    for number, days in enumerate((90, 40)):
        with made.server.clock.at(datetime.now(UTC) - timedelta(days=days, hours=1)):
            made.put(f"old-2 {number}", f"old-2/{number}", "old-2")
        made.commit(f"old-2 {number}", days, "old-2")
    head = heads(made)["old-2"]
    assert {*fates(made, listed(made).digest).values()} == {BranchFate.DELETED}
    made.rules(7)
    assert collecting(made, flow=Flow.UNIFIED).statistics.deleted == 2
    return head


def retire_all(made: RetainedRepository, recorded: bool) -> None:
    """Deletes the stale branches: as approved, or by other means."""
    if recorded:
        assert {*fates(made, listed(made).digest).values()} == {BranchFate.DELETED}
    else:
        for name in stale(made):
            made.call("DELETE", f"/branches/{name}")


@pytest.mark.parametrize("recorded", [True, False])
def test_the_next_run_knows_the_branches_that_we_deleted(made: RetainedRepository, recorded: bool) -> None:
    for number in range(2, 8):
        branch(made, f"old-{number}", 90)
    assert collecting(made).success
    retire_all(made, recorded)
    if recorded:
        assert collecting(made).success
    else:
        with pytest.raises(GuardTripped, match="1 branch is left of the 8 that existed before"):
            collecting(made)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_recheck_knows_them_too(made: RetainedRepository, recorded: bool) -> None:
    for number in range(2, 8):
        branch(made, f"old-{number}", 90)
    with made.server.clock.at(datetime.now(UTC) - timedelta(days=100)):
        clients.upload(made.server, "garbage", b"garbage", branch="main")
    clients.call(made.server, "DELETE", "/repositories/repo/branches/main/objects", path="garbage")

    def between(name: str) -> None:
        if name == CANDIDATES_DF.name:
            # The run's lock blocks an approval; this simulates a deletion between a mark and its approval.
            with mock.patch.object(stale_branches, "locked", lambda *arguments: nullcontext(mock.Mock())):
                retire_all(made, recorded)

    policy(made, RULES, max_branch_loss_share=1, min_age_hours=0)
    if recorded:
        assert collecting(made, between).success
    else:
        with pytest.raises(GuardTripped, match="1 branch is left of the 8"):
            collecting(made, between)
