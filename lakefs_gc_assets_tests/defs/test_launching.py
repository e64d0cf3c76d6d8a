"""Settings that a launch may set: refusals, which name the place of each setting, and the list of allowed ones."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from lakefs_gc_assets.collector.records import plan, report, run_folder
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import loaded_from
from lakefs_gc_assets.definitions import EXTENSIONS
from lakefs_gc_assets.defs import jobs, launching, pages
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.partitions import RANGE_START_TAG, RunPartitions, key_of, newest_metadata, run_id_in
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import RELAXABLE, CollectionSettings, LaunchSettings
from lakefs_gc_assets_tests.defs.automated import failure_in, output_of, sensed
from lakefs_gc_assets_tests.runs.graph_runs import GraphRuns, Replaying, made, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes

__all__ = ["replaying"]

SETTINGS = CollectionSettings(sweep=True)
DEFAULT, ANY, NEVER = LaunchSettings(), LaunchSettings(sweep="any"), LaunchSettings(sweep="never")


class TestTheFile:
    def test_by_default_a_launch_deletes_what_it_approved_alone(self) -> None:
        assert (DEFAULT.sweep, DEFAULT.may_relax) == ("approved", [])

    def test_only_numbers_and_switches_can_be_left_to_a_launch(self) -> None:
        assert {"max_candidate_share", "min_age_hours", "wait_before_recheck_seconds", "keep_unnamed_ranges"} <= {
            *RELAXABLE
        }
        assert {"sweep", "sweep_mode", "inventory", "retention_policy", "also_live", "approve_run"}.isdisjoint(
            RELAXABLE
        )
        with pytest.raises(ConfigurationError, match=r"launch\.may_relax.*not a number or switch of `collection`"):
            loaded_from({"launch": {"may_relax": ["inventory"]}}, "lakefs-gc.yaml")


@pytest.mark.parametrize(
    ("config", "reported"),
    [
        ({"ops": {"approve_dry_run": {"config": {"run_id": {"env": "SECRET"}}}}}, "ops.approve_dry_run.config.run_id"),
        (
            {"ops": {"bring_back": {"config": {"addresses": ["a", {"env": "SECRET"}]}}}},
            "ops.bring_back.config.addresses.1",
        ),
        ({"loggers": {"console": {"config": {"name": {"env": "SECRET"}}}}}, "loggers.console.config.name"),
    ],
)
def test_what_a_launch_would_have_read_from_the_environment_is_refused(
    config: dict[str, object], reported: str
) -> None:
    """Dagster accepts `{env: NAME}` for any text, and the error about an invalid id would reveal a secret."""
    with pytest.raises(ConfigurationError, match="a launch cannot read the environment") as refused:
        launching.require_own_values(config)

    assert f"SECRET for {reported}: write the value itself" in str(refused.value)


class TestWhatARunMayDo:
    @pytest.mark.parametrize("policy", [DEFAULT, NEVER])
    @pytest.mark.parametrize("permit", [None, Permit("open_run"), Permit("open_run", sweep=False)])
    def test_a_launch_is_a_dry_run_whatever_the_file_says(self, policy: LaunchSettings, permit: Permit | None) -> None:
        settled, loosened = launching.settle(SETTINGS, policy, permit)

        assert (settled.sweep, loosened) == (False, {})
        assert settled == SETTINGS.model_copy(update={"sweep": False})

    @pytest.mark.parametrize("policy", [DEFAULT, NEVER])
    def test_a_launch_that_asks_for_deletions_is_refused(self, policy: LaunchSettings) -> None:
        with pytest.raises(ConfigurationError, match=r"may not delete at once: .*set launch\.sweep to any in"):
            launching.settle(SETTINGS, policy, Permit("open_run", sweep=True))

    @pytest.mark.parametrize("asked", [None, True, False])
    def test_where_the_file_allows_any_it_decides_where_the_launch_does_not(self, asked: bool | None) -> None:
        settled, loosened = launching.settle(SETTINGS, ANY, Permit("open_run", sweep=asked))

        assert settled.sweep is (asked is not False)
        assert loosened == ({"sweep": True} if asked else {})

    @pytest.mark.parametrize("policy", [DEFAULT, NEVER, ANY])
    def test_what_starts_by_itself_goes_by_the_file(self, policy: LaunchSettings) -> None:
        assert launching.settle(SETTINGS, policy, Permit("clean_runs", automatic=True)) == (SETTINGS, {})

    def test_only_what_the_file_lists_is_relaxed(self) -> None:
        permit = Permit("open_run", relaxed={"max_candidate_share": 1.0})
        allowed = LaunchSettings(may_relax=["max_candidate_share"])

        settled, loosened = launching.settle(SETTINGS, allowed, permit)

        assert (settled.max_candidate_share, loosened) == (1.0, {"max_candidate_share": 1.0})
        with pytest.raises(ConfigurationError, match=r"cannot set collection\.max_candidate_share"):
            launching.settle(SETTINGS, DEFAULT, permit)

    def test_a_value_that_makes_no_sense_is_refused(self) -> None:
        permit = Permit("open_run", relaxed={"max_candidate_share": 3.0})
        with pytest.raises(
            ConfigurationError, match=r"sets invalid values: collection\.max_candidate_share: input should be"
        ):
            launching.settle(SETTINGS, LaunchSettings(may_relax=["max_candidate_share"]), permit)


@pytest.mark.parametrize("flow", list(Flow))
def test_what_an_earlier_version_opened_by_itself_stays_what_it_opened(flow: Flow) -> None:
    launching.settle(SETTINGS, DEFAULT, None, flow)
    launching.settle(SETTINGS, DEFAULT, Permit("open_run"), flow)
    if flow.by_retention:
        with pytest.raises(ConfigurationError, match="of flow clean or optimized, and a launch cannot change it to"):
            launching.settle(SETTINGS, DEFAULT, Permit("clean_runs", automatic=True), flow)
    else:
        launching.settle(SETTINGS, DEFAULT, Permit("clean_runs", automatic=True), flow)


PERMIT = Permit("open_run", sweep=True, relaxed={"max_candidates": 5, "keep_unnamed_ranges": False})


def launch_with(instance: dg.DagsterInstance, tags: Mapping[str, str]) -> dg.DagsterRun:
    """A Dagster run with these tags."""
    return instance.add_run(dg.DagsterRun("collect", tags={**tags}, status=dg.DagsterRunStatus.STARTED))


def test_a_permit_is_a_tag_that_counts_for_its_run_alone() -> None:
    with dg.DagsterInstance.ephemeral() as instance, dg.DagsterInstance.ephemeral() as elsewhere:
        tags = launching.tags(instance, "images", "run", PERMIT)
        run = launch_with(instance, tags)

        assert launching.find(instance, "images", "run", run) == PERMIT
        assert launching.find(instance, "images", "other", run) is None
        assert launching.find(instance, "measurements", "run", run) is None
        assert launching.find(elsewhere, "images", "run", run) is None
        assert launching.find_ticket(instance, "images", {**tags, "lakefs/ticket": "run"}) is None
    assert PERMIT.tags == {"lakefs/loosened": "sweep=true, max_candidates=5, keep_unnamed_ranges=false"}
    assert PERMIT.tags.items() <= tags.items()


def test_cells_that_are_materialized_again_have_the_permit_of_their_run() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        launch_with(instance, {"lakefs/run_id": "run", **launching.tags(instance, "images", "run", Permit("open_run"))})
        launch_with(instance, {"lakefs/run_id": "run", **launching.tags(instance, "images", "run", PERMIT)})
        launch_with(instance, {"lakefs/run_id": "run", launching.PERMIT_TAG: "forged {}"})
        again = launch_with(instance, {})

        assert launching.find(instance, "images", "run", again) == PERMIT, "the newest valid one"


@pytest.mark.parametrize("forged", ["", " ", "{}", "0 {}", "ä {}", '{"opened_by": "open_run"}'])
def test_a_forged_permit_is_none(forged: str) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        signed = launching.tags(instance, "images", "run", Permit("open_run"))[launching.PERMIT_TAG]
        changed = signed.replace('"automatic": false', '"automatic": true')
        assert changed != signed
        for value in (forged, changed):
            run = launch_with(instance, {launching.PERMIT_TAG: value, "lakefs/run_id": "run"})
            assert launching.find(instance, "images", "run", run) is None


def test_a_ticket_counts_once_however_its_run_ends() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        tags = launching.issue_ticket(instance, "images", PERMIT)

        assert launching.find_ticket(instance, "images", tags) == PERMIT
        assert launching.find_ticket(instance, "measurements", tags) is None
        assert launching.find_ticket(instance, "images", {}) is None
        launching.use_ticket(instance, {})
        launching.use_ticket(instance, tags)
        assert launching.find_ticket(instance, "images", tags) is None


def test_a_run_that_an_earlier_version_opened_keeps_its_permit() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        key = launching.cursor_key("run", "images", "run")
        stored = {"opened_by": "clean_runs", "automatic": True, "sweep": None, "relaxed": {}}
        instance.daemon_cursor_storage.set_cursor_values({key: json.dumps(stored)})

        assert launching.find(instance, "images", "run") == Permit("clean_runs", automatic=True)


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    return replaying("chain/1", deletes="overlay", max_candidate_share=1)


def definitions(runs: GraphRuns) -> dg.Definitions:
    return build(runs.loaded, runs.clock, EXTENSIONS)


def launched(runs: GraphRuns, job: str, **config: Any) -> dg.ExecuteInProcessResult:
    """A job that a user launches with a configuration of its op."""
    (op,) = definitions(runs).resolve_job_def(job).nodes
    return (
        definitions(runs)
        .resolve_job_def(job)
        .execute_in_process(
            instance=runs.instance, run_config={"ops": {op.name: {"config": config}}}, raise_on_error=False
        )
    )


def followed(runs: GraphRuns, ended: dg.ExecuteInProcessResult) -> dg.ExecuteInProcessResult:
    """The finished run that the sensor launches after a job."""
    records = runs.instance.fetch_run_status_changes(dg.DagsterEventType.RUN_SUCCESS, limit=10).records
    (end,) = [record.storage_id for record in records if record.run_id == ended.run_id]
    (request,) = sensed(runs.instance, definitions(runs), str(end - 1)).run_requests or []
    return (
        definitions(runs)
        .resolve_job_def("collect")
        .execute_in_process(
            instance=runs.instance,
            tags=request.tags,
            run_config=request.run_config,
            asset_selection=list(request.asset_selection) if request.asset_selection else None,
            raise_on_error=False,
        )
    )


def run_id_of(result: dg.ExecuteInProcessResult) -> str:
    return run_id_in(result.dagster_run.tags[RANGE_START_TAG].partition("|")[0]) or ""


@pytest.mark.slow
def test_a_dry_run_that_was_seen_is_approved_and_its_undo_stays_on_the_overview_of_later_dry_runs(
    runs: GraphRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default workflow of users, even if the file lets automatic runs delete."""
    monkeypatch.setattr(pages, "location_of", lambda run: "here")
    # An ephemeral instance records no history.
    monkeypatch.setattr(dg.DagsterInstance, "is_ephemeral", False)

    def shown(asset: str) -> dict[str, object]:
        return newest_metadata(runs.instance, dg.AssetKey(asset))

    runs.settings["sweep"] = True
    run_id = run_id_of(followed(runs, launched(runs, "open_run")))
    assert runs.report(run_id).dry_run
    assert runs.server.deleted == set()
    garbage = set(runs.addresses(run_id, "candidates"))
    assert str(shown("candidates")["next"]).startswith("[Approve: ") and "undo" not in shown("deleted_report")

    # As the UI shows it among the partitions.
    approved = launched(runs, "approve", run_id=key_of(run_id), approved_by="Ada")

    found = output_of(approved)
    assert found["objects"] == len(garbage) > 0
    assert found["bytes"] == runs.report(run_id).object_bytes["candidates"] > 0
    swept = followed(runs, approved)
    assert swept.success
    assert made(swept) == ["deleted_report"]
    assert runs.server.deleted == garbage
    assert not runs.report(run_id).dry_run
    assert "was already approved" in failure_in(launched(runs, "approve", run_id=run_id))
    undo = str(shown("sweeps")["undo"])
    assert undo.startswith(f"[Show objects to restore of run {run_id}](/locations/here/jobs/restore/")
    assert shown("collection_history")["undo"] == undo

    runs.clock.sleep(1)
    assert followed(runs, launched(runs, "open_run")).success
    assert shown("deleted_report")["undo"] == undo
    assert shown("candidates")["next"] == shown("deleted_report")["next"]
    assert shown("candidates")["next"] == "Nothing to approve: the run found no garbage"


@pytest.mark.slow
def test_the_sweep_of_a_named_run_stands_under_its_name(runs: GraphRuns) -> None:
    partitions = RunPartitions(runs.server.repository)
    windows = partitions.add(runs.instance, "First try", runs.open().windows)
    dry = (
        definitions(runs)
        .resolve_job_def("collect")
        .execute_in_process(instance=runs.instance, tags=partitions.tags("First try", windows, "clean"))
    )
    found = runs.instance.get_run_by_id(dry.run_id)
    assert found is not None

    approved = launched(runs, "approve", run_id=found.tags["lakefs/run_id"], approved_by=" Ada\n Lovelace ")
    swept = followed(runs, approved)

    assert swept.success
    approver = "Ada Lovelace, as the launch says"
    for result in (approved, swept):
        run = runs.instance.get_run_by_id(result.run_id)
        assert run is not None
        assert (run.tags["lakefs/mode"], run.tags["lakefs/approved_by"]) == ("approved sweep", approver)
    assert runs.report(found.tags["lakefs/run_id"]).approved_by == approver
    assert swept.dagster_run.tags[RANGE_START_TAG] == f"First try|{windows[0]}"
    assert runs.server.deleted == truth_classes("chain/1")["unreferenced"]
    cells = runs.instance.get_materialized_partitions(dg.AssetKey("deleted_report"))
    assert cells == {f"First try|{window}" for window in windows}

    runs.instance.add_dynamic_partitions(partitions.windows.name or "", ["2031-01"])
    plan_of_both = replace(plan.read(runs.repository.store, found.tags["lakefs/run_id"]), windows=("legacy", "2031-01"))
    assert plan_of_both.run_id in partitions.add_again(runs.instance, plan_of_both)[RANGE_START_TAG]


@pytest.mark.slow
def test_where_two_must_approve_a_second_name_deletes(runs: GraphRuns) -> None:
    runs.launch["approvers"] = 2
    run_id = run_id_of(followed(runs, launched(runs, "open_run")))
    assert "enter your name in approved_by" in failure_in(launched(runs, "approve", run_id=run_id, approved_by=" "))
    first = launched(runs, "approve", run_id=run_id, approved_by="Ada")
    assert first.success
    assert plan.read_approval(runs.repository.store, run_id) is None
    for again in ("Ada", " ada "):
        refused = failure_in(launched(runs, "approve", run_id=run_id, approved_by=again))
        assert "Z by Ada, as the launch says, and needs a second approval under another name" in refused
    # A re-execution of the last step, which any user can launch, is still a dry run.
    stored = plan.read(runs.repository.store, run_id)
    tags = RunPartitions(runs.server.repository).tags(key_of(run_id), stored.windows, "clean")
    again_marked = (
        definitions(runs)
        .resolve_job_def("collect")
        .execute_in_process(
            instance=runs.instance,
            tags=tags,
            asset_selection=[dg.AssetKey("deleted_report")],
            raise_on_error=False,
        )
    )
    assert again_marked.success and runs.report(run_id).dry_run
    assert runs.server.deleted == set()

    second = followed(runs, launched(runs, "approve", run_id=run_id, approved_by="Bob"))

    assert second.success
    assert runs.server.deleted == truth_classes("chain/1")["unreferenced"]
    assert runs.report(run_id).approved_by == "Ada, as the launch says; Bob, as the launch says"


def test_two_approvers_make_no_sense_where_one_launch_may_delete_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"launch\.approvers.*2 contradicts launch\.sweep any"):
        loaded_from({"launch": {"sweep": "any", "approvers": 2}}, "lakefs-gc.yaml")


def test_where_no_launch_may_delete_none_may_approve(runs: GraphRuns) -> None:
    runs.launch["sweep"] = "never"
    run_id = runs.open().run_id

    refused = launched(runs, "approve", run_id=run_id)

    assert f"run `lakefs-gc approve {run_id}`, or set launch.sweep to approved" in failure_in(refused)


@pytest.mark.slow
def test_what_a_launch_relaxes_is_in_tags_plan_and_report(runs: GraphRuns) -> None:
    runs.settings["max_candidates"] = 3
    runs.launch |= {"sweep": "any", "may_relax": ["max_candidates", "max_candidate_share"]}

    swept = followed(runs, launched(runs, "open_run", sweep=True, relax={"max_candidates": 100}))

    assert swept.success
    expected = {"sweep": True, "max_candidates": 100}
    assert swept.dagster_run.tags["lakefs/loosened"] == "sweep=true, max_candidates=100"
    run_id = run_id_of(swept)
    assert plan.read(runs.repository.store, run_id).loosened == expected
    found = report.read(runs.repository.store, run_id)
    assert found is not None and found.loosened == expected
    assert runs.server.deleted == truth_classes("chain/1")["unreferenced"]


@pytest.mark.slow
def test_a_guard_is_relaxed_at_the_approval(runs: GraphRuns) -> None:
    runs.settings["max_candidates"] = 3
    dry = followed(runs, launched(runs, "open_run"))
    run_id = run_id_of(dry)
    stopped = followed(runs, launched(runs, "approve", run_id=run_id, approved_by="Ada"))
    assert "guard number of candidates" in failure_in(stopped)
    assert runs.server.deleted == set()

    runs.launch["may_relax"] = ["max_candidates"]
    swept = followed(runs, launched(runs, "approve", run_id=run_id, approved_by="Ada", relax={"max_candidates": 100}))

    assert swept.success
    assert runs.server.deleted == truth_classes("chain/1")["unreferenced"]
    assert (plan.read(runs.repository.store, run_id).loosened, runs.report(run_id).loosened) == (
        {},
        {"max_candidates": 100},
    )


@pytest.mark.parametrize(
    ("config", "reported"),
    [
        ({"sweep": True}, "a launch may not delete at once: launch a dry run and then the job approve with its id"),
        ({"relax": {"min_age_hours": 0}}, "a launch cannot set collection.min_age_hours: set it in the configuration"),
        ({"relax": {"min_age": 0}}, "a launch cannot set collection.min_age: "),
    ],
)
def test_a_launch_that_asks_for_more_opens_nothing(runs: GraphRuns, config: dict[str, Any], reported: str) -> None:
    refused = launched(runs, "open_run", **config)

    assert reported in failure_in(refused)
    assert runs.instance.get_dynamic_partitions(RunPartitions(runs.server.repository).run_ids.name or "") == []


@pytest.mark.slow
def test_tags_and_resources_of_a_launch_let_nothing_be_deleted(runs: GraphRuns) -> None:
    """A forged run with an id that was never opened, and with every tag of automated runs."""
    runs.settings["sweep"] = True
    opened = runs.open()
    forged = {"dagster/schedule_name": "clean_runs", "lakefs/ticket": "guess", "lakefs/loosened": "sweep=true"}
    job = definitions(runs).resolve_job_def("collect")

    ended = job.execute_in_process(instance=runs.instance, tags={**opened.tags, **forged}, raise_on_error=False)

    assert ended.success
    assert runs.report(opened.run_id).dry_run
    assert runs.server.deleted == set()
    with pytest.raises(dg.DagsterInvalidConfigError, match="unexpected config entry"):
        job.execute_in_process(
            instance=runs.instance,
            tags=runs.open().tags,
            run_config={"resources": {"collector": {"config": {"repository": "other"}}}},
        )


@pytest.mark.slow
def test_no_job_tells_what_the_environment_has(runs: GraphRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", "planted-secret")
    named = {"env": "PLANTED"}
    for job, op, config in (
        ("approve", "approve_dry_run", {"run_id": named}),
        ("restore", "bring_back", {"run_id": named}),
        ("restore", "bring_back", {"run_id": "of-no-run", "addresses": [named]}),
        ("purge", "empty_quarantine", {"run_id": named, "confirm": True}),
        ("forecast", "retention_forecast", {"policies": {"mine": named}}),
    ):
        ended = (
            definitions(runs)
            .resolve_job_def(job)
            .execute_in_process(
                instance=runs.instance, run_config={"ops": {op: {"config": config}}}, raise_on_error=False
            )
        )
        reported = "".join(map(str, runs.instance.all_logs(ended.run_id)))
        assert not ended.success
        assert "a launch cannot read the environment" in reported
        assert "planted-secret" not in reported


@pytest.mark.slow
def test_a_dry_run_whose_id_somebody_chose_is_not_approved_by_a_launch(runs: GraphRuns) -> None:
    """A page of another site sees no answers, but could add a partition, materialize it, and approve it by name."""
    chosen = layout.issue_run_id(runs.clock.now())
    partitions = RunPartitions(runs.server.repository)
    windows = partitions.add(runs.instance, chosen, runs.open().windows)
    job = definitions(runs).resolve_job_def("collect")
    dry = job.execute_in_process(
        instance=runs.instance, tags=partitions.tags(chosen, windows, "clean"), raise_on_error=False
    )
    assert dry.success

    refused = launched(runs, "approve", run_id=chosen)

    assert f"run {chosen} was not opened by the job open_run" in failure_in(refused)
    assert plan.read_approval(runs.repository.store, chosen) is None
    assert launching.find(runs.instance, runs.server.repository, chosen) is None


@pytest.mark.slow
def test_a_run_that_was_opened_automatically_keeps_its_flow(runs: GraphRuns) -> None:
    """A launch chooses its tags: a flow with retention rules would delete other objects than the schedule."""
    runs.settings["sweep"] = True
    collector = Collector.from_loaded(runs.loaded, runs.clock)
    opened = jobs.open_run(runs.instance, collector, permit=Permit("clean_runs", automatic=True, flow="clean"))
    job = definitions(runs).resolve_job_def("collect")

    ended = job.execute_in_process(
        instance=runs.instance, tags={**opened.tags, "lakefs/flow": "unified"}, raise_on_error=False
    )

    assert "clean_runs opened a run of flow clean, and a launch cannot change it to unified" in failure_in(ended)
    assert not run_folder.has_plan(runs.repository.store, opened.run_id)
