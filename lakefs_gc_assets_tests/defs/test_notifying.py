"""The sensors that tell of runs: real events of an instance, and a receiver on this machine."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakefs_gc_assets.collector.repository import SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import notifying
from lakefs_gc_assets.defs.history import ENDING_TAG, FREED_TAG, HISTORY, MODE_TAG
from lakefs_gc_assets.defs.partitions import FLOW_TAG, RANGE_START_TAG, Names
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import CollectionError, ConfigurationError
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.webhook import Receiver, receiving

VARIABLES = {
    ("notifications", "failure_webhook"): "TEST_FAILED_URL",
    ("notifications", "ended_webhook"): "TEST_ENDED_URL",
}
NAMES = Names("sample")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as receiver:
        for variable in VARIABLES.values():
            monkeypatch.setenv(variable, receiver.url)
        yield receiver


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield instance


def configured(**variables: str) -> Loaded:
    """The configuration of a repository, with the variables of some webhooks."""
    return Loaded(
        Configuration(repository="sample"),
        {("notifications", name): variable for name, variable in variables.items()},
    )


BOTH = Loaded(Configuration(repository="sample"), VARIABLES)


def sensor_of(loaded: Loaded, name: str) -> dg.RunStatusSensorDefinition:
    found = build(loaded, SystemClock()).resolve_sensor_def(name)
    assert isinstance(found, dg.RunStatusSensorDefinition)
    return found


def made(instance: dg.DagsterInstance, job: str, fails: bool, **tags: str) -> tuple[dg.DagsterRun, dg.DagsterEvent]:
    """A Dagster run of this job that came to its end, and its last event."""

    @dg.op
    def working() -> None:
        if fails:
            raise dg.Failure(description="LockHeld: somebody collects this repository")

    @dg.job(name=job)
    def work() -> None:
        working()

    names = {"flow": FLOW_TAG, "mode": MODE_TAG, "ending": ENDING_TAG, "freed": FREED_TAG, "cell": RANGE_START_TAG}
    given = {names[name]: value for name, value in tags.items()}
    result = work.execute_in_process(instance=instance, raise_on_error=False, tags=given)
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    return run, result.get_run_failure_event() if fails else result.get_run_success_event()


def tick(loaded: Loaded, name: str, instance: dg.DagsterInstance, run: dg.DagsterRun, event: dg.DagsterEvent) -> None:
    """What the daemon does when the run has ended."""
    sensor = sensor_of(loaded, name)
    context = dg.build_run_status_sensor_context(name, event, instance, run)
    answered = sensor(context.for_run_failure() if name == "note_failures" else context)
    assert isinstance(answered, Iterator)
    list(answered)


def history(instance: dg.DagsterInstance) -> list[dict[str, object]]:
    records = instance.fetch_materializations(dg.AssetKey(HISTORY), limit=10).records
    events = [record.asset_materialization for record in records]
    return [{name: value.value for name, value in event.metadata.items()} for event in events if event]


def test_without_a_webhook_nobody_is_told_and_failures_are_noted_all_the_same(instance: dg.DagsterInstance) -> None:
    loaded = configured()
    assert [sensor.name for sensor in notifying.define(NAMES, loaded, SystemClock(), {"collect"})] == ["note_failures"]
    run, event = made(instance, "collect", fails=True, flow="clean", cell="run|2026-11")

    tick(loaded, "note_failures", instance, run, event)

    (noted,) = history(instance)
    assert (noted["run_id"], noted["ending"], noted["dagster_run"]) == ("run", "failed", run.run_id)


def test_a_failure_that_the_run_itself_noted_is_noted_once(instance: dg.DagsterInstance) -> None:
    run, event = made(instance, "collect", fails=True, ending="failed")

    tick(configured(), "note_failures", instance, run, event)

    assert history(instance) == []


def test_failures_of_runs_and_jobs_are_posted(instance: dg.DagsterInstance, receiver: Receiver) -> None:
    tick(BOTH, "note_failures", instance, *made(instance, "collect", True, mode="sweep", cell="abc|2026-11"))
    tick(BOTH, "note_failures", instance, *made(instance, "purge", True))
    tick(BOTH, "note_failures", instance, *made(instance, "of_somebody_else", True))

    start, why = "lakeFS garbage collection, sample", "failed: LockHeld: somebody collects this repository"
    assert receiver.posted == [
        {"text": f"{start}: sweep of run abc {why}"},
        {"text": f"{start}: purge {why}"},
    ]


def test_what_a_run_did_is_posted(instance: dg.DagsterInstance, receiver: Receiver) -> None:
    run, event = made(
        instance, "collect", False, mode="sweep", flow="clean", ending="deleted", freed="3.0 MiB", cell="abc|2026-11"
    )
    shown: dict[str, dg.MetadataValue[Any] | int] = {
        "dagster_run": dg.MetadataValue.dagster_run(run.run_id),
        "found_objects": 1200,
        "deleted_objects": 1100,
    }
    instance.report_runless_asset_event(dg.AssetMaterialization(HISTORY, metadata=shown))

    tick(BOTH, "tell_of_runs", instance, run, event)
    tick(BOTH, "tell_of_runs", instance, *made(instance, "purge", False))

    assert receiver.posted == [
        {
            "text": "lakeFS garbage collection, sample: sweep of run abc (clean): deleted, 3.0 MiB freed "
            "(1,200 objects of garbage found, 1,100 deleted)"
        }
    ]


def test_a_webhook_that_refuses_fails_the_tick_and_its_url_is_not_told(
    instance: dg.DagsterInstance, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, event = made(instance, "purge", True)
    receiver.status = 500
    with pytest.raises(CollectionError, match="answered 500"):
        notifying.post(receiver.url, "text")
    with pytest.raises(CollectionError) as raised:
        notifying.post("http://127.0.0.1:9/secret", "text")
    assert "secret" not in str(raised.value)
    monkeypatch.delenv("TEST_FAILED_URL")
    with pytest.raises(Exception) as missing:
        tick(BOTH, "note_failures", instance, run, event)
    assert isinstance(missing.value, ConfigurationError) or isinstance(missing.value.__cause__, ConfigurationError)


def test_runs_of_another_repository_are_not_told(instance: dg.DagsterInstance) -> None:
    run, _ = made(instance, "collect", True)
    other = replace(NAMES, repository="other", apart=True)

    assert notifying.is_about(NAMES, run, {"collect"})
    assert not notifying.is_about(other, run, {"collect_other"})
