from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from urllib.parse import parse_qs, urlsplit

import dagster as dg
import pytest
import yaml

from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.defs import jobs, launching, pages
from lakefs_gc_assets.defs.jobs import ApprovableGarbage
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.maintenance import restore_address
from lakefs_gc_assets.defs.partitions import (
    RANGE_END_TAG,
    RANGE_START_TAG,
    Names,
    RunPartitions,
    key_of,
    run_id_in,
)
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import AccessDenied, ConfigurationError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import Configuration, FlowName
from lakefs_gc_assets.spark import work_names
from lakefs_gc_assets_tests.collector.past_runs import HOUR, began, ended
from lakefs_gc_assets_tests.defs.automated import Automated, automated, output_of, sensed, server
from lakefs_gc_assets_tests.runs.graph_runs import GraphRuns, Replaying, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import refused, truth_classes

__all__ = ["automated", "replaying", "server"]


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    return replaying("chain/1")


def old_slice(runs: GraphRuns, days: int) -> str:
    """A slice opened `days` days ago, with one object."""
    then = runs.clock.now() - timedelta(days=days)
    generator = layout.XidGenerator()
    name = generator.descending(then)
    runs.server.place(f"data/{name}/{generator.ascending(then)}", written_at=then)
    return name


def test_opening_a_run_adds_its_partitions(runs: GraphRuns) -> None:
    old_slice(runs, days=40)

    opened = runs.open()

    assert opened.windows == ("legacy", "2026-10", "2026-11")
    assert layout.as_datetime(layout.created_at(opened.run_id)) == runs.clock.now().replace(microsecond=0)
    partitions = RunPartitions(runs.server.repository)
    assert runs.instance.get_dynamic_partitions(partitions.windows.name or "") == list(opened.windows)
    assert runs.instance.get_dynamic_partitions(partitions.run_ids.name or "") == [key_of(opened.run_id)]
    assert opened.tags == {
        RANGE_START_TAG: f"{key_of(opened.run_id)}|legacy",
        RANGE_END_TAG: f"{key_of(opened.run_id)}|2026-11",
        "lakefs/repository": runs.server.repository,
        "lakefs/flow": "clean",
    }


def test_a_window_that_turns_up_later_is_covered_too(runs: GraphRuns) -> None:
    assert runs.open().windows == ("legacy", "2026-11")
    old_slice(runs, days=40)

    opened = runs.open()

    assert opened.windows == ("legacy", "2026-11", "2026-10")
    assert opened.tags[RANGE_END_TAG] == f"{key_of(opened.run_id)}|2026-10"


def test_run_ids_of_one_moment_differ(runs: GraphRuns) -> None:
    assert runs.open().run_id != runs.open().run_id


def test_a_repository_that_cannot_be_looked_at_opens_nothing(runs: GraphRuns) -> None:
    runs.server.fault = lambda method, target: refused(401, "error authenticating request")

    with pytest.raises(AccessDenied):
        runs.open()

    runs.server.fault = lambda method, target: None
    assert runs.instance.get_dynamic_partitions(RunPartitions(runs.server.repository).run_ids.name or "") == []


def requested(runs: GraphRuns, definitions: dg.Definitions) -> dg.RunRequest:
    """The only run that the sensor requests."""
    (request,) = sensed(runs.instance, definitions).run_requests or []
    return request


def test_a_cursor_beyond_every_event_is_left(automated: Automated) -> None:
    """Any user of the UI can set it: otherwise no opened run would be launched again."""
    instance, definitions = automated.instance, automated.definitions
    first = sensed(instance, definitions, str(2**40))
    assert first.cursor is not None and (first.run_requests or []) == []
    definitions.resolve_job_def("open_run").execute_in_process(instance=instance)

    found = sensed(instance, definitions, first.cursor)

    (request,), (run_id,) = found.run_requests or [], automated.run_ids
    assert request.tags[RANGE_START_TAG].startswith(f"{key_of(run_id)}|")
    assert (sensed(instance, definitions, found.cursor or "").run_requests or []) == [], "it launches each once"


@pytest.mark.parametrize("sweep", [False, True])
def test_what_the_job_opens_the_sensor_launches(runs: GraphRuns, sweep: bool) -> None:
    runs.launch["sweep"] = "any"
    definitions = build(runs.loaded, runs.clock)
    job = definitions.resolve_job_def("open_run")
    config = {"ops": {"open_new_run": {"config": {"sweep": sweep}}}}
    job.execute_in_process(instance=runs.instance, run_config=config)
    request = requested(runs, definitions)
    (key,) = runs.instance.get_dynamic_partitions(RunPartitions(runs.server.repository).run_ids.name or "")
    assert request.run_key == f"{key}|legacy"
    assert request.run_config == {}
    permit = launching.find(runs.instance, runs.server.repository, run_id_in(key) or "")
    assert permit == Permit("open_run", sweep=sweep)
    assert {name: value for name, value in request.tags.items() if name.startswith(("lakefs/", "dagster/asset"))} == {
        RANGE_START_TAG: f"{key}|legacy",
        RANGE_END_TAG: f"{key}|2026-11",
        "lakefs/repository": runs.server.repository,
        "lakefs/flow": "clean",
        "lakefs/run_id": run_id_in(key),
        **({"lakefs/loosened": "sweep=true"} if sweep else {}),
    }


def test_a_run_that_opened_nothing_launches_nothing(runs: GraphRuns) -> None:
    @dg.job
    def open_run() -> None:
        pass

    open_run.execute_in_process(instance=runs.instance)

    found = sensed(runs.instance, build(runs.loaded, runs.clock))

    assert (found.run_requests or [], found.skip_message) == ([], "nothing was opened")


def test_every_flow_can_be_asked_for_and_is_explained(runs: GraphRuns) -> None:
    field = jobs.OpenRunConfig.model_fields["flow"]

    assert set(get_args(FlowName)) == set(Flow)
    assert all(f"{flow}: " in (field.description or "") for flow in Flow)


def test_the_page_of_the_job_says_what_was_opened_and_why_it_is_a_clean_run(runs: GraphRuns) -> None:
    job = build(runs.loaded, runs.clock).resolve_job_def("open_run")
    config = {"ops": {"open_new_run": {"config": {"flow": "optimized"}}}}

    ended = job.execute_in_process(instance=runs.instance, run_config=config)

    (key,) = runs.instance.get_dynamic_partitions(RunPartitions(runs.server.repository).run_ids.name or "")
    assert output_of(ended) == {
        "run_id": run_id_in(key),
        "flow": "clean",
        "why_clean": "there is no earlier run",
        "sweep": False,
        "windows": "the windows legacy, 2026-11",
    }
    request = requested(runs, build(runs.loaded, runs.clock))
    assert request.tags["lakefs/flow"] == "optimized"
    assert request.tags["lakefs/why_clean"] == "there is no earlier run"


def test_spark_shows_the_job_and_the_repository_of_an_ops_work() -> None:
    shown: list[work_names.Work] = []

    @jobs.one_op_job(Names("images"), "fsck", "repository_check", dg.Config, "Checks.")
    def job(context: dg.OpExecutionContext, collector: Collector, config: dg.Config) -> None:
        """Checks."""
        shown.append(work_names._current.get())

    collector = Collector(Configuration(repository="images"), SystemClock())
    assert job.execute_in_process(resources={"collector": collector}).success
    assert shown == [work_names.Work("images", "fsck")]


def test_windows_can_be_chosen(runs: GraphRuns) -> None:
    definitions = build(runs.loaded, runs.clock)
    config = {"ops": {"open_new_run": {"config": {"windows": "2026-11"}}}}
    definitions.resolve_job_def("open_run").execute_in_process(instance=runs.instance, run_config=config)
    request = requested(runs, definitions)
    key = (request.run_key or "").split("|")[0]
    assert [request.tags[tag] for tag in (RANGE_START_TAG, RANGE_END_TAG)] == [f"{key}|2026-11"] * 2
    # The other windows can be chosen as well, in order.
    name = RunPartitions(runs.server.repository).windows.name or ""
    assert [*runs.instance.get_dynamic_partitions(name)] == ["legacy", "2026-11"]

    assert definitions.resolve_job_def("collect").execute_in_process(instance=runs.instance, tags=request.tags).success

    run_id = run_id_in(key) or ""
    report = runs.report(run_id)
    assert (report.windows, report.limited_to) == (("2026-11",), "the window 2026-11")
    assert set(runs.addresses(run_id, "candidates")) <= truth_classes("chain/1")["unreferenced"]
    assert all(address.startswith("data/") for address in runs.addresses(run_id, "store_df"))


@pytest.mark.parametrize(
    ("flow", "windows", "why"),
    [
        ("optimized", "2026-11", "a run of the flow optimized cannot be limited to the windows 2026-11"),
        ("committed", "2026-11", "a run of the flow committed cannot be limited"),
        ("clean", "2020-11", "2020-11 has no slice"),
    ],
)
def test_a_choice_of_windows_that_is_refused(runs: GraphRuns, flow: Flow, windows: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        jobs.open_run(runs.instance, Collector.from_loaded(runs.loaded, runs.clock), Flow(flow), windows=windows)
    assert not runs.instance.get_dynamic_partitions(RunPartitions(runs.server.repository).run_ids.name or "")


def test_windows_between_which_others_lie_in_the_ui(runs: GraphRuns) -> None:
    partitions = RunPartitions(runs.server.repository)
    runs.instance.add_dynamic_partitions(partitions.windows.name or "", ["2026-11", "legacy", "2026-08"])
    moment = datetime(2026, 8, 1, tzinfo=UTC)
    generator = layout.XidGenerator()
    runs.server.place(f"data/{generator.descending(moment)}/{generator.ascending(moment)}", written_at=moment)
    with pytest.raises(ConfigurationError, match=r"other windows lie between those of 2026-08..2026-11.*: legacy"):
        jobs.open_run(runs.instance, Collector.from_loaded(runs.loaded, runs.clock), windows="2026-08..2026-11")
    assert not runs.instance.get_dynamic_partitions(partitions.run_ids.name or "")


def filled(address: str | None, definitions: dg.Definitions) -> tuple[str, str, dict[str, Any], dict[str, str]]:
    """Path, comment, op configuration and tags of a link to a launchpad that can be launched unchanged."""
    parts = urlsplit(address or "")
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    config = yaml.safe_load(query["config"])
    job = parts.path.partition("/jobs/")[2].partition("/")[0]
    dg.validate_run_config(definitions.resolve_job_def(job), config)
    (op,) = config["ops"].values()
    lines = [line for line in query["config"].splitlines() if line.startswith("# ")]
    assert max(map(len, lines)) <= 76, "a longer line is cut in a window of 1,440 pixels"
    comment = " ".join(line.removeprefix("# ") for line in lines)
    tags = {query["tags[0][key]"]: query["tags[0][value]"]} if "tags[0][key]" in query else {}
    return parts.path, comment, op["config"], tags


def test_links_to_launchpads_that_approve_and_undo(automated: Automated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "location_of", lambda _: "my location")
    automated.changes["notifications"] = {"ui_url": "https://ui.example/dagster/"}
    run, definitions = dg.DagsterRun("collect"), automated.definitions
    dry, found = began(automated.repository, HOUR, sweep=False), ApprovableGarbage(1200, 3 * 2**30, 24000)

    def address(plan: Plan = dry, found: ApprovableGarbage = found, asks_name: bool = False) -> str | None:
        return jobs.approval_address(automated.collector, run, plan, found, asks_name=asks_name)

    path, comment, config, tags = filled(address(), definitions)
    assert path == "/dagster/locations/my%20location/jobs/approve/playground/setup"
    assert comment == (
        f"Deletes the candidates of dry run {dry.run_id} of sample, except any that are live by now: "
        "1,200 objects, 3.0 GiB, 5.0% of the objects that the run knows."
    )
    assert (config, tags) == ({"run_id": dry.run_id, "approved_by": ""}, {"lakefs/run_id": dry.run_id})
    assert filled(address(asks_name=True), definitions)[1] == f"{comment} Enter your name in approved_by."
    assert address(replace(dry, sweep=True)) is address(replace(dry, opened=False)) is None
    assert address(found=ApprovableGarbage(0, 0, 24000)) is None
    automated.changes |= {"launch": {"approvers": 2}, "collection": {"sweep_mode": "quarantine"}}
    _, comment, _, _ = filled(address(), definitions)
    assert comment.startswith(f"Moves to quarantine the candidates of dry run {dry.run_id} of sample, ")
    assert comment.endswith(" of the objects that the run knows. Two people must approve it, under different names.")

    swept = began(automated.repository, HOUR)
    report = ended(automated.repository, swept, counts={"deleted": 7})
    undo = restore_address(automated.collector, run, report)
    path, comment, config, tags = filled(undo, definitions)
    assert path.endswith("/jobs/restore/playground/setup") and "7 deleted" in comment
    assert (config, tags) == ({"run_id": swept.run_id, "confirm": False}, {"lakefs/run_id": swept.run_id})
    assert restore_address(automated.collector, run, replace(report, counts={})) is None
    automated.changes["launch"] = {"sweep": "never"}
    assert address() is None
