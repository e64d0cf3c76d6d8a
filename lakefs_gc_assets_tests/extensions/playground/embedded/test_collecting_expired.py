"""Sweeps by retention rules, and references from another repository, on the embedded server through its API."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF
from lakefs_gc_assets.collector.live.current import Uncommitted, prepare_uncommitted
from lakefs_gc_assets.collector.records.outcomes import Why
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import recheck
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.collector.live.test_known_metaranges import metaranges_read
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.retained_repository import RetainedRepository

DAYS = timedelta(days=1)


def collected(server: EmbeddedServer, repository: str, flow: Flow, **changes: Any) -> Report:
    """The report of a sweeping run."""
    given = demo.configuration(server, repository)
    changes = {"sweep": True, "max_candidate_share": 1.0, **changes}
    collection = given.collection.model_copy(update=changes)
    found = ArrowRuns(Loaded(given.model_copy(update={"collection": collection}), {})).collect(flow)
    assert found.success
    return found


def reasons(server: EmbeddedServer, repository: str, run_id: str) -> set[str]:
    """Reasons why the candidates of a run are garbage, as recorded by the run."""
    opened = Collector.from_loaded(Loaded(demo.configuration(server, repository), {}), SystemClock()).open()
    frame = StoredFrame.from_run(opened.store, opened.opener, run_id, CANDIDATES_DF)
    return set(frame.table().column("why").to_pylist())


def status_of(server: EmbeddedServer, reference: str, path: str, repository: str = "repo") -> int:
    """The status of a read of an object."""
    return clients.call(server, "GET", f"/repositories/{repository}/refs/{reference}/objects", path=path)[0]


def test_what_only_expired_commits_had_is_gone_and_everything_else_answers(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, settings=ServerSettings(), routes=ROUTES) as server:
        now = datetime.now(UTC)
        with server.clock.at(now - 30 * DAYS):
            repository = clients.repository(server)
            for name in ("replaced", "removed", "tagged", "lasting"):
                clients.upload(server, name, name.encode())
            old = clients.commit(server, "old")["id"]
        with server.clock.at(now - 20 * DAYS):
            clients.upload(server, "replaced", b"anew")
            path = f"/repositories/{repository}/branches/main/objects"
            assert clients.call(server, "DELETE", path, path="removed")[0] == 204
            clients.upload(server, "between", b"between")
            between = clients.commit(server, "between")["id"]
        with server.clock.at(now - 10 * DAYS):
            assert clients.call(server, "DELETE", path, path="between")[0] == 204
            new = clients.commit(server, "new")["id"]
            clients.upload(server, "staged", b"staged")
        rules = {"default_retention_days": 12, "branches": []}
        assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204

        assert collected(server, repository, Flow.CLEAN).counts["deleted"] == 0
        found = collected(server, repository, Flow.COMMITTED)

        # `between` was replaced 10 days ago, within the 12 days; `old` 20 days ago.
        assert found.counts["deleted"] == found.counts["candidates"] == 2
        assert reasons(server, repository, found.run_id) == {Why.EXPIRED}
        expired = {"replaced": 410, "removed": 410}
        for name in ("replaced", "removed", "tagged", "lasting"):
            assert status_of(server, old, name) == expired.get(name, 200), name
        for reference, names in ((between, ("replaced", "between", "lasting")), (new, ("replaced", "tagged"))):
            assert [status_of(server, reference, name) for name in names] == [200] * len(names)
        assert status_of(server, "main", "staged") == 200
        listed = clients.call(server, "GET", f"/repositories/{repository}/refs/main/commits")[1]["results"]
        assert [old, between, new] == [each["id"] for each in listed if each["id"] in (old, between, new)][::-1]

        assert collected(server, repository, Flow.COMMITTED).counts["candidates"] == 0
        assert collected(server, repository, Flow.UNIFIED).counts["deleted"] == 0


@pytest.mark.parametrize(("flow", "commit_dates"), [(Flow.COMMITTED, "written"), (Flow.UNIFIED, "claimed")])
def test_what_a_backdated_commit_replaced_a_moment_ago_stays(tmp_path: Path, flow: Flow, commit_dates: str) -> None:
    """Three days ago A was committed under its true date, and right after it B and C under dates of years ago."""
    with EmbeddedServer(tmp_path, routes=ROUTES) as server:
        made, now = RetainedRepository(server, tmp_path), datetime.now(UTC)
        with server.clock.at(now - 3 * DAYS):
            clients.repository(server)
            for name, claimed_days in (("A", 3), ("B", 2000), ("C", 1700)):
                made.put(name)
                made.commit(name, 3, claimed_days=claimed_days)
        made.rules(21)
        found = collected(server, "repo", flow, commit_dates=commit_dates)
        read = [status_of(server, made.commits[name], "file") for name in "ABC"]
        # The initial commit of the repository holds nothing, and stays as well.
        alone = found.counts["commits_by_files_alone"]
        warned = any(" only because their files were written later" in warning for warning in found.warnings)
        if commit_dates == "written":
            assert (read, found.counts["deleted"], alone, warned) == ([200, 200, 200], 0, 2, True)
        else:
            assert (read, found.counts["deleted"], alone, warned) == ([410, 410, 200], 2, 0, False)
            return
        # The period since they were written is over.
        made.rules(2)
        again = collected(server, "repo", flow)
        assert [status_of(server, made.commits[name], "file") for name in "ABC"] == [410, 410, 200]
        assert (again.counts["deleted"], again.counts["commits_by_files_alone"]) == (2, 0)


def test_a_run_builds_on_the_one_before_whatever_becomes_of_the_rules(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, settings=ServerSettings(), routes=ROUTES) as server:
        now = datetime.now(UTC)
        with server.clock.at(now - 50 * DAYS):
            repository = clients.repository(server)
        commits = []
        for number in range(4):
            with server.clock.at(now - (40 - 10 * number) * DAYS):
                clients.upload(server, "replaced", b"%d" % number)
                clients.upload(server, f"lasting{number}", b"lasting")
                commits.append(clients.commit(server, f"commit {number}")["id"])

        def swept(days: int, full_listing_days: float = 7) -> Report:
            rules = {"default_retention_days": days, "branches": []}
            assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204
            return collected(server, repository, Flow.UNIFIED, full_listing_days=full_listing_days)

        def answers() -> list[int]:
            return [status_of(server, commit, "replaced") for commit in commits]

        # Commits were replaced 30, 20 and 10 days ago.
        full = swept(25)
        assert (full.base_run, full.why_clean, full.counts["deleted"]) == (None, "there is no earlier run", 1)
        assert answers() == [410, 200, 200, 200]
        shorter = swept(15)
        assert (shorter.base_run, shorter.counts["slices_listed"]) == (full.run_id, 0)
        assert (shorter.counts["expired_objects"] > 0, shorter.counts["deleted"]) == (True, 1)
        assert answers() == [410, 410, 200, 200]
        longer = swept(60)
        assert (longer.base_run, longer.counts["candidates"]) == (shorter.run_id, 0)
        clients.call(server, "POST", f"/repositories/{repository}/branches", {"name": "kept", "source": commits[2]})
        heads = swept(1)
        assert (heads.base_run, heads.counts["deleted"], answers()) == (longer.run_id, 0, [410, 410, 200, 200])
        clients.call(server, "DELETE", f"/repositories/{repository}/branches/kept")
        last = swept(1)
        assert (last.base_run, last.counts["deleted"], answers()) == (heads.run_id, 1, [410, 410, 410, 200])
        assert [status_of(server, "main", f"lasting{number}") for number in range(4)] == [200] * 4
        everything = swept(1, full_listing_days=0)
        assert (everything.base_run, everything.counts["slices_listed"] > 0) == (None, True)
        assert everything.counts["candidates"] == 0


def test_a_metarange_is_read_once_in_a_run_and_by_those_that_build_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = metaranges_read(monkeypatch)
    with EmbeddedServer(tmp_path, settings=ServerSettings(), routes=ROUTES) as server:
        now = datetime.now(UTC)
        with server.clock.at(now - 50 * DAYS):
            repository = clients.repository(server)
        rules = {"default_retention_days": 15, "branches": []}
        assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204
        made: list[str] = []

        def commit(days: int) -> None:
            with server.clock.at(now - days * DAYS):
                clients.upload(server, "replaced", str(days).encode())
                made.append(clients.commit(server, f"commit {days}")["meta_range_id"])

        def collect(flow: Flow, metaranges: list[str], deleted: int, heads: list[str] | None = None) -> Report:
            """A run that reads exactly these metaranges, once each, including its recheck.

            Args:
                heads: metaranges of a new head and of the base run's head, searched for lost objects of heads.
            """
            read.clear()
            found = collected(server, repository, flow)
            assert sorted(read) == sorted([*metaranges, *(heads or [])])
            assert found.counts["deleted"] == deleted
            return found

        # Commits were replaced 30 and 20 days ago, and then 5 and 4.
        for days in (40, 30, 20):
            commit(days)
        full = collect(Flow.UNIFIED, made, 2)
        commit(5)
        assert collect(Flow.UNIFIED, made[-1:], 0, made[-2:]).base_run == full.run_id
        rules["default_retention_days"] = 1
        assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204
        collect(Flow.UNIFIED, [], 1)
        commit(4)
        everything = collect(Flow.COMMITTED, made, 1)
        # Expired commits are read once, and live commits in each run.
        again = collect(Flow.COMMITTED, made[-1:], 0)
        assert (again.base_run, again.counts["listed"]) == (everything.run_id, 0)
        commit(3)
        last = collect(Flow.COMMITTED, made[-1:], 1, made[-2:])
        assert (last.base_run, last.counts["listed"]) == (again.run_id, 1)


def test_a_branch_made_on_an_expired_commit_after_the_mark_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Includes a branch that is gone when the recheck reads refs: its objects may be staged elsewhere."""
    with EmbeddedServer(tmp_path, settings=ServerSettings(), routes=ROUTES) as server:
        now = datetime.now(UTC)
        with server.clock.at(now - 30 * DAYS):
            repository = clients.repository(server)
            clients.upload(server, "replaced", b"old")
            old = clients.commit(server, "old")["id"]
        with server.clock.at(now - 25 * DAYS):
            clients.upload(server, "replaced", b"less old")
            less_old = clients.commit(server, "less old")["id"]
        with server.clock.at(now - 20 * DAYS):
            clients.upload(server, "replaced", b"anew")
            clients.commit(server, "new")
        rules = {"default_retention_days": 12, "branches": []}
        assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204
        given = demo.configuration(server, repository)
        collection = given.collection.model_copy(update={"sweep": True, "max_candidate_share": 1.0})
        loaded = Loaded(given.model_copy(update={"collection": collection}), {})

        def branching(step: str) -> None:
            if step == "candidates":
                for branch in ({"name": "rescued", "source": old}, {"name": "shown", "source": less_old}):
                    assert clients.call(server, "POST", f"/repositories/{repository}/branches", branch)[0] == 201

        def prepared(step: Step[ArrowRows], **named: Any) -> Uncommitted[ArrowRows]:
            found = prepare_uncommitted(step, **named)
            clients.call(server, "DELETE", f"/repositories/{repository}/branches/shown")
            return found

        monkeypatch.setattr(recheck, "prepare_uncommitted", prepared)
        found = ArrowRuns(loaded, between=branching).collect(Flow.COMMITTED)
        assert (found.counts["candidates"], found.counts["kept_live"], found.counts["deleted"]) == (2, 2, 0)
        assert status_of(server, "rescued", "replaced") == 200
        assert status_of(server, "shown", "replaced") == 404
        assert status_of(server, less_old, "replaced") == 200


def test_references_of_repositories_that_are_named_count(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, settings=ServerSettings(), routes=ROUTES) as server:
        with server.clock.at(datetime.now(UTC) - 30 * DAYS):
            repository = clients.repository(server)
            clients.upload(server, "lasting", b"lasting")
            clients.commit(server, "first")
            lent = clients.upload(server, "lent", b"lent")
            path = f"/repositories/{repository}/branches/main/objects"
            assert clients.call(server, "DELETE", path, path="lent")[0] == 204
            other = clients.repository(server, "other")
            physical = f"{server.core.blockstore.scheme}{repository}/{lent}"
            stage = {"physical_address": physical, "checksum": "0" * 32, "size_bytes": 4}
            staged = clients.call(server, "PUT", f"/repositories/{other}/branches/main/objects", stage, path="borrowed")
            assert staged[0] == 201, staged

        with_staged = collected(server, repository, Flow.CLEAN, also_live=["other"])
        assert with_staged.counts["candidates"] == 0
        clients.commit(server, "borrowed", name=other)
        with_other = collected(server, repository, Flow.CLEAN, also_live=["other"])
        assert (with_other.counts["candidates"], with_other.counts["deleted"]) == (0, 0)
        assert status_of(server, "main", "borrowed", other) == 200
        alone = collected(server, repository, Flow.CLEAN)
        assert alone.counts["deleted"] == 1
        assert reasons(server, repository, alone.run_id) == {Why.NO_COMMIT}
        assert status_of(server, "main", "borrowed", other) == 410


class ExpiryChain:
    """A repository whose commits are weeks old, and runs of the flow `committed` that build on each other.

    Before each sweep, a dry run that reads everything gives the expected mark.

    Attributes:
        commits: ids of all commits, in order of creation.
        staged: addresses of expired commits that a user has staged again.
    """

    def __init__(self, server: EmbeddedServer, seed: int) -> None:
        self.server, self.chance, self.now = server, random.Random(seed), datetime.now(UTC)
        self.days = 90.0
        self.commits: list[str] = []
        with server.clock.at(self.now - 100 * DAYS):
            clients.repository(server)
        self.write()

    def call(self, method: str, path: str, body: Any = None, /, **query: str) -> Any:
        """The server's answer; a refused call has no effect."""
        return clients.call(self.server, method, f"/repositories/repo{path}", body, **query)[1]

    def branches(self) -> list[str]:
        """The names of all branches, `main` first."""
        names = {each["id"] for each in self.call("GET", "/branches")["results"]}
        return ["main", *sorted(names - {"main"})]

    def write(self) -> None:
        """Adds a commit to a branch, some hours or days after the newest one."""
        self.days = max(2.0, self.days - self.chance.uniform(0.1, 4))
        branch = self.chance.choice(self.branches())
        with self.server.clock.at(self.now - self.days * DAYS):
            for number in range(self.chance.randint(1, 3)):
                content = b"%f %d" % (self.days, number)
                clients.upload(self.server, f"file{self.chance.randrange(6)}", content, branch=branch)
            self.call("DELETE", f"/branches/{branch}/objects", path=f"file{self.chance.randrange(6)}")
            self.commits.append(
                self.call("POST", f"/branches/{branch}/commits", {"message": "m", "allow_empty": True})["id"]
            )

    def set_rules(self) -> None:
        days = self.chance.choice((1, 3, 5, 10, 30))
        branches = [{"branch_id": "main", "retention_days": self.chance.choice((1, 5, 30))}]
        self.call("PUT", "/settings/gc_rules", {"default_retention_days": days, "branches": branches})

    def branch(self) -> None:
        name = f"branch{self.chance.randrange(4)}"
        self.call("POST", "/branches", {"name": name, "source": self.chance.choice(self.commits)})

    def unbranch(self) -> None:
        self.call("DELETE", f"/branches/branch{self.chance.randrange(4)}")

    def tag(self) -> None:
        self.call("POST", "/tags", {"id": f"v{self.chance.randrange(3)}", "ref": self.chance.choice(self.commits)})

    def untag(self) -> None:
        self.call("DELETE", f"/tags/v{self.chance.randrange(3)}")

    def stage(self) -> None:
        """A user stages an object of any commit again."""
        commit, path = self.chance.choice(self.commits), f"file{self.chance.randrange(6)}"
        entry = self.call("GET", f"/refs/{commit}/objects/stat", path=path)
        if "physical_address" in entry:
            body = {key: entry[key] for key in ("physical_address", "checksum", "size_bytes")}
            self.call("PUT", "/branches/main/objects", body, path="staged")

    def unstage(self) -> None:
        self.call("DELETE", "/branches/main/objects", path="staged")

    def change(self) -> None:
        """A user makes a random change."""
        writes, stages = (self.write,) * 4, (self.stage,) * 2
        actions = (*writes, self.branch, self.unbranch, self.tag, self.untag, *stages, self.unstage)
        self.chance.choice(actions)()
        if self.chance.random() < 0.3:
            self.set_rules()

    def run(self, **changes: Any) -> tuple[Report, list[dict[str, Any]]]:
        """The report of a run of the flow `committed`, and its candidates in order."""
        found = collected(self.server, "repo", Flow.COMMITTED, **changes)
        opened = Collector.from_loaded(Loaded(demo.configuration(self.server, "repo"), {}), SystemClock()).open()
        frame = StoredFrame.from_run(opened.store, opened.opener, found.run_id, CANDIDATES_DF)
        return found, sorted(frame.table().to_pylist(), key=lambda row: str(row["address"]))

    def sweep(self) -> Report:
        """A sweep that marks the same objects as one that reads everything."""
        full, everything = self.run(sweep=False, full_listing_days=0)
        assert full.base_run is None
        found, candidates = self.run()
        assert candidates == everything
        return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2])
def test_a_run_that_reads_what_expired_since_marks_what_one_does_that_reads_everything(
    tmp_path: Path, seed: int
) -> None:
    with EmbeddedServer(tmp_path, settings=ServerSettings(), routes=ROUTES) as server:
        chain = ExpiryChain(server, seed)
        chain.set_rules()
        reports = []
        for _ in range(6):
            for _ in range(chain.chance.randint(0, 8)):
                chain.change()
            reports.append(chain.sweep())
        assert [found.base_run for found in reports[1:]] == [found.run_id for found in reports[:-1]]
        assert sum(found.counts["deleted"] for found in reports[1:]) > 0
