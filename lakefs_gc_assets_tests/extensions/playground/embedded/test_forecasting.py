"""Forecasts on the embedded server equal the marks of runs with those rules, also for deleted branches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import md5
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.records import run_folder, stored_forecasts, tables
from lakefs_gc_assets.collector.records.outcomes import Amount, Kept
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets.collector.retention import rules as retention_rules
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import AccessDenied, ConfigurationError, LakeFSError
from lakefs_gc_assets.extensions.forecast import forecast
from lakefs_gc_assets.extensions.forecast.forecast import Forecast, Portion, portions
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets_tests.collector.written import Staged, put_metarange, put_range
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

DAYS = timedelta(days=1)
Names = set[str]


@dataclass
class History:
    """A repository on a server; `names` has the version at each address."""

    server: EmbeddedServer
    folder: Path
    names: dict[str, str]
    tagged: str = ""
    also_live: tuple[str, ...] = ()
    max_candidate_share: float = 0.5

    def put(self, version: str, path: str, branch: str = "main", content: str = "") -> None:
        self.names[clients.upload(self.server, path, (content or version).encode(), branch=branch)] = version

    def commit(self, branch: str = "main") -> str:
        return str(clients.commit(self.server, "commit", branch=branch)["id"])

    def call(self, method: str, place: str, body: object = None, /, **query: str) -> None:
        status, answer = clients.call(self.server, method, f"/repositories/repo{place}", body, **query)
        assert status < 300, answer

    def runs(self, policy: str = "") -> ArrowRuns:
        """Runs with a policy; the default policy if none is given."""
        given = demo.configuration(self.server, "repo")
        changes: dict[str, object] = {"wait_before_dump_seconds": 0.0, "also_live": [*self.also_live]}
        changes["max_candidate_share"] = self.max_candidate_share
        if policy:
            file = self.folder / "policy.yaml"
            file.write_text(policy)
            changes["retention_policy"] = str(file)
        collection = given.collection.model_copy(update=changes)
        return ArrowRuns(Loaded(given.model_copy(update={"collection": collection}), {}))

    def marked(self, policy: str = "") -> tuple[Names, Report]:
        """Objects that a dry run by retention rules marks."""
        runs = self.runs(policy)
        report = runs.collect(Flow.COMMITTED)
        repository = runs.open()
        rows = StoredFrame.from_run(repository.store, repository.opener, report.run_id, CANDIDATES_DF).table()
        return {self.names[address] for address in rows.column("address").to_pylist()}, report

    def said(self, policies: dict[str, str] | None = None) -> dict[tuple[ScenarioKind, str], Names]:
        """Objects in a forecast, by scenario."""
        parsed = {name: retention_rules.parse_policy(text, name) for name, text in (policies or {}).items()}
        with forecast.ask(self.runs().open(), LocalEngine(), print, policies=parsed) as asked:
            rows = LocalEngine().collect(asked.marked.candidates).to_pylist()
            return {
                (scenario.kind, scenario.name): {
                    self.names[row["address"]]
                    for row in rows
                    if not int.from_bytes(row["held"], "little") >> number & 1
                }
                for number, scenario in enumerate(asked.questions.scenarios)
            }

    def made(self, depth: int = 0) -> Forecast:
        return forecast.make(self.runs().open(), LocalEngine(), print, depth=depth)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """A history that tests only read."""
    with _history(tmp_path_factory.mktemp("history")) as made:
        yield made


@pytest.fixture
def changed(tmp_path: Path) -> Iterator[History]:
    """A history that a test changes."""
    with _history(tmp_path) as made:
        yield made


@contextmanager
def _history(folder: Path) -> Iterator[History]:
    """`path` was replaced 40, 20 and 9 days ago; `dev` has its own objects, and an old tag holds the first commit."""
    with EmbeddedServer(folder / "server", settings=ServerSettings(), routes=ROUTES) as server:
        # A minute ago: no commit has exactly the age of a rule, or the second from which a run counts ages.
        made, now = History(server, folder, {}), datetime.now(UTC) - timedelta(minutes=1)
        with server.clock.at(now - 60 * DAYS):
            clients.repository(server)
            for path in ("path", "hidden", "lasting"):
                made.put(f"{path} 1", path)
            made.commit()
        with server.clock.at(now - 50 * DAYS):
            made.put("tagged", "tagged")
            made.tagged = made.commit()
            made.call("POST", "/tags", {"id": "v1", "ref": made.tagged})
        with server.clock.at(now - 40 * DAYS):
            made.put("path 2", "path")
            made.put("hidden 2", "hidden")
            made.call("DELETE", "/branches/main/objects", path="tagged")
            made.commit()
            made.call("POST", "/branches", {"name": "dev", "source": "main"})
        with server.clock.at(now - 20 * DAYS):
            made.put("path 3", "path")
            made.put("hidden 3", "hidden", content="hidden 1")
            made.commit()
            made.put("of dev 1", "of dev", "dev")
            made.commit("dev")
        with server.clock.at(now - 15 * DAYS):
            made.put("of dev 2", "of dev", "dev")
            made.commit("dev")
        with server.clock.at(now - 9 * DAYS):
            made.put("path 4", "path")
            made.commit()
        with server.clock.at(now):
            made.put("young", "path")
            made.commit()
            made.put("younger", "path")
            made.commit()
        made.put("staged", "staged")
        # The first version of `hidden` is staged, with the content of its third one: nothing lists it.
        (first,) = (address for address, version in made.names.items() if version == "hidden 1")
        physical = f"{server.core.blockstore.scheme}repo/{first}"
        body = {"physical_address": physical, "checksum": md5(b"hidden 1").hexdigest(), "size_bytes": 8}
        made.call("PUT", "/branches/main/objects", body, path="hidden")
        rules = {"default_retention_days": 10, "branches": [{"branch_id": "main", "retention_days": 14}]}
        made.call("PUT", "/settings/gc_rules", rules)
        yield made


def test_every_column_is_what_a_run_with_that_policy_marks(history: History) -> None:
    policies = {
        "one": "{default: 10d, replace: true, branches: {dev: 0d}}",
        "two": "{default: 0d, replace: true, keep_tags: false}",
    }
    said = history.said(policies)
    for name, policy in policies.items():
        assert said[ScenarioKind.POLICY, name] == history.marked(policy)[0], name
    for days in (0, 14):
        assert said[ScenarioKind.AGE, f"{days} days"] == history.marked(f"{{default: {days}d, replace: true}}")[0], days
    assert said[ScenarioKind.IN_FORCE, "rules in force"] == history.marked()[0] == {"of dev 1"}
    assert said[ScenarioKind.AGE, "unlimited"] == set()
    marked, report = history.marked(policies["two"])
    # `dev` has the second versions of main's files, and the first version of `hidden` is staged without being listed.
    assert marked == {"path 1", "path 3", "path 4", "tagged", "of dev 1"}
    assert report.kept == {Kept.YOUNG.value: 1, Kept.HIDDEN_STAGED.value: 1}


def test_share_of_candidates_is_that_of_the_run_by_these_rules(history: History) -> None:
    policies = {
        "": "",
        "dev": "{default: 10d, replace: true, branches: {dev: 0d}}",
        "heads": "{default: 0d, replace: true, keep_tags: false}",
    }
    strict = replace(history, max_candidate_share=0)
    parsed = {name: retention_rules.parse_policy(text, name) for name, text in policies.items()}
    found = forecast.make(strict.runs().open(), LocalEngine(), print, ages=[3], policies=parsed)
    in_force, of_age, *by_policy = found.rules
    assert in_force.scenario.notes == by_policy[0].scenario.notes
    assert of_age.scenario.notes == ()
    for (name, policy), freed in zip(policies.items(), by_policy, strict=True):
        marked, report = strict.marked(policy)
        refusals = tuple(line for line in report.warnings if "share of candidates" in line)
        assert tuple(line for line in freed.scenario.notes if "share of candidates" in line) == refusals, name
        (refusal,) = refusals
        assert f"{len(marked)} of {report.known} known objects would be deleted, " in refusal
        assert report.known <= found.stored.objects


def test_without_a_branch_or_a_tag(changed: History) -> None:
    """Objects that only the deletion of a branch makes garbage are not requested; none is staged here."""
    said = changed.said()
    assert {kind for kind, _ in said} == set(ScenarioKind) - {ScenarioKind.POLICY}
    assert (ScenarioKind.BRANCH, "main") not in said
    assert said[ScenarioKind.TAG, "v1"] == {"of dev 1", "path 1", "tagged"}
    assert said[ScenarioKind.BRANCH, "dev"] == {"of dev 1", "of dev 2", "path 2", "hidden 2"}

    found = changed.made()
    holdings = {holding.holder.name: holding for holding in found.holdings}
    dev, tag = holdings["dev"], holdings["v1"]
    assert (dev.in_all.objects, dev.alone.objects, dev.shared.objects) == (4, 3, 1)
    assert found.more_if_deleted(dev) == Amount(3, sum(map(len, ("of dev 2", "path 2", "hidden 2"))))
    assert (tag.in_all, tag.alone) == (Amount(4, 6 + 8 + 9 + 6), Amount(3, 6 + 8 + 6))
    assert holdings["main"].if_deleted is None and found.more_if_deleted(holdings["main"]) is None
    assert found.in_force.amount == Amount(1, 8) and not found.undecided
    store = changed.runs().open().store
    rows = tables.decode(
        stored_forecasts.FORECAST, store.get(stored_forecasts.forecast_key(found.forecast_id)), "forecast", "forecast"
    )
    assert rows.equals(forecast.table(found))
    assert found.forecast_id not in set(run_folder.newest_runs(store))

    changed.call("DELETE", "/tags/v1")
    assert changed.marked()[0] == said[ScenarioKind.TAG, "v1"]
    changed.call("POST", "/tags", {"id": "v1", "ref": changed.tagged})
    changed.call("DELETE", "/branches/dev")
    assert changed.marked()[0] == said[ScenarioKind.BRANCH, "dev"]


def test_what_a_range_has_that_no_commit_names_stays(changed: History) -> None:
    expiring, everything = (ScenarioKind.AGE, "0 days"), {"of dev 1", "path 3", "path 4"}
    assert changed.said()[expiring] == everything
    (address,) = (address for address, version in changed.names.items() if version == "path 3")
    put_range(changed.runs().open().store, {"elsewhere": Staged(address)})
    policy = "{default: 0d, replace: true}"
    assert changed.said()[expiring] == changed.marked(policy)[0] == everything - {"path 3"}


def test_a_range_of_an_expired_commit_stays_where_a_metarange_that_no_commit_has_names_it(changed: History) -> None:
    repository = changed.runs().open()
    (head,) = (branch.commit_id for branch in repository.api.branches() if branch.id == "dev")
    (expired,) = repository.api.commit(head).parents
    files = LiveFiles(repository.store, repository.namespace, "month")
    named = [RangeRecord(**row) for row in files.metarange(repository.api.commit(expired).metarange_id).to_pylist()]
    more = put_range(repository.store, {"~": Staged("data/elsewhere/else")})
    put_metarange(repository.store, [*named, more])
    said = changed.said()[ScenarioKind.AGE, "0 days"]
    assert "of dev 1" not in said and said == changed.marked("{default: 0d, replace: true}")[0]


def test_what_a_run_deleted_is_not_freed_again(changed: History) -> None:
    runs = changed.runs("{default: 0d, replace: true}")
    collection = runs.loaded.configuration.collection.model_copy(update={"sweep": True, "max_candidate_share": 1.0})
    sweeping = replace(
        runs.loaded, configuration=runs.loaded.configuration.model_copy(update={"collection": collection})
    )
    assert ArrowRuns(sweeping).collect(Flow.COMMITTED).counts["deleted"] == 3
    assert changed.said()[ScenarioKind.AGE, "0 days"] == set()


def _lend(history: History) -> None:
    """Another repository has one version of `path` in a commit before its head, and another one staged."""
    clients.repository(history.server, "other")
    objects = "/repositories/other/branches/main/objects"
    for version, path in (("path 3", "committed"), ("path 4", "staged")):
        (address,) = (address for address, named in history.names.items() if named == version)
        body = {
            "physical_address": f"{history.server.core.blockstore.scheme}repo/{address}",
            "checksum": md5(version.encode()).hexdigest(),
            "size_bytes": len(version),
        }
        status, answer = clients.call(history.server, "PUT", objects, body, path=path)
        assert status == 201, answer
        if path == "committed":
            clients.commit(history.server, "borrowed", name="other")
            # For an object of a branch's head, the run also asks whether it is staged there.
            assert clients.call(history.server, "DELETE", objects, path=path)[0] == 204
            clients.commit(history.server, "given back", name="other")


def test_what_another_repository_references_stays(changed: History) -> None:
    """If `also_live` names the repository, objects of its commits and its staged objects stay."""
    policy, expiring = "{default: 0d, replace: true}", (ScenarioKind.AGE, "0 days")
    _lend(changed)
    assert changed.said()[expiring] == {"of dev 1", "path 3", "path 4"}
    changed.also_live = ("other",)
    assert changed.said()[expiring] == changed.marked(policy)[0] == {"of dev 1"}
    found = changed.made()
    (all_gone,) = (each for each in found.rules if each.scenario.days == 0)
    assert all_gone.amount == Amount(1, len("of dev 1"))


def _fill_folders(history: History) -> None:
    """Two versions of `a/b/one`, the newer one in `c/` as well, and an object in a folder of `dev`."""
    with history.server.clock.at(datetime.now(UTC) - 8 * DAYS):
        history.put("old one", "a/b/one")
        history.put("two", "a/two")
        history.commit()
        history.put("one", "a/b/one")
        (address,) = (address for address, version in history.names.items() if version == "one")
        physical = f"{history.server.core.blockstore.scheme}repo/{address}"
        body = {"physical_address": physical, "checksum": md5(b"one").hexdigest(), "size_bytes": len("one")}
        history.call("PUT", "/branches/main/objects", body, path="c/one")
        history.commit()
        history.put("in a folder", "d/in a folder", "dev")
        history.commit("dev")


def _by_folder(found: Forecast) -> dict[str | None, tuple[Amount, dict[str, Portion]]]:
    """The stored amount of each folder, and its holders."""
    assert found.by_folder is not None and found.by_folder.others is None
    return {
        each.folder: (each.stored, {holding.holder.name: portion for holding, portion in portions(found, each)})
        for each in found.by_folder.largest
    }


def test_what_folders_hold(changed: History) -> None:
    _fill_folders(changed)
    without = changed.made()
    found = changed.made(depth=1)
    reported = _by_folder(found)
    three, one, of_dev = Amount(3, len("old one" + "two" + "one")), Amount(1, len("one")), Amount(1, len("in a folder"))
    top = reported.pop("")
    assert reported == {
        "a/": (three, {"main": Portion(three, three)}),
        "c/": (one, {"main": Portion(one, one)}),
        "d/": (of_dev, {"dev": Portion(of_dev, of_dev)}),
    }
    in_folders = Amount(4, three.bytes + of_dev.bytes)
    assert top[0] == found.stored - in_folders
    held = {holding.holder.name: holding for holding in found.holdings}
    assert top[1]["main"].in_all == held["main"].in_all - three
    assert top[1]["main"].alone == held["main"].alone - three
    assert top[1]["dev"].in_all == held["dev"].in_all - of_dev
    assert top[1]["v1"].in_all == held["v1"].in_all
    assert without.by_folder is None
    assert (without.stored, without.rules, without.holdings) == (found.stored, found.rules, found.holdings)
    store = changed.runs().open().store
    rows = tables.decode(
        forecast.FOLDERS, store.get(stored_forecasts.folders_key(found.forecast_id)), "folders", "folders"
    )
    assert rows.equals(forecast.folders_table(found)) and rows.num_rows == 4 + 3 + 3
    assert _by_folder(changed.made(depth=2)).keys() == {"", "a/", "a/b/", "c/", "d/"}


@pytest.mark.slow
def test_forecast_on_spark_is_the_same(changed: History, spark: SparkSession) -> None:
    _fill_folders(changed)
    _lend(changed)
    changed.also_live = ("other",)
    local = changed.made(depth=1)
    distributed = forecast.make(changed.runs().open(), SparkEngine(spark, 2), print, depth=1)
    assert (distributed.stored, distributed.rules, distributed.holdings) == (local.stored, local.rules, local.holdings)
    assert distributed.by_folder == local.by_folder


def test_without_a_refs_dump_nothing_is_said(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(client: LakeFSClient) -> str:
        raise AccessDenied("403 not allowed")

    monkeypatch.setattr(LakeFSClient, "start_refs_dump", refuse)
    with pytest.raises(LakeFSError, match=r"needs the graph of all commits.*403 not allowed"):
        history.made()


@pytest.mark.parametrize("days", [-1, 36_501])
def test_ages_that_cannot_be_meant(history: History, days: int) -> None:
    with pytest.raises(ConfigurationError, match=f"a retention of {days} days"):
        forecast.make(history.runs().open(), LocalEngine(), print, ages=(days,))
