"""The sensors that report runs: real events of an instance, and a receiver on this machine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.standing_approvals import NOT_COVERED
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import pages
from lakefs_gc_assets.defs.history import ENDING_TAG, FREED_TAG, HISTORY, MODE_TAG, Historian
from lakefs_gc_assets.defs.partitions import FLOW_TAG, RANGE_START_TAG, RUN_TAG, Names
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, LakeFSError
from lakefs_gc_assets.extensions.notifications import definitions as notifications
from lakefs_gc_assets.extensions.notifications.definitions import MessageNotSent
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.collector.past_runs import HOUR, began, empty_repository, ended
from lakefs_gc_assets_tests.collector.scripted import HandClock
from lakefs_gc_assets_tests.defs.automated import new_instance
from lakefs_gc_assets_tests.servers import private_authority
from lakefs_gc_assets_tests.servers.webhook import Receiver, receiving

VARIABLES = {
    ("notifications", "failure_webhook"): "TEST_FAILED_URL",
    ("notifications", "ended_webhook"): "TEST_ENDED_URL",
}
NAMES = Names("sample")
BOTH = Loaded(Configuration(repository="sample"), VARIABLES)
START = "lakeFS garbage collection, sample:"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as receiver:
        for variable in VARIABLES.values():
            monkeypatch.setenv(variable, receiver.url)
        yield receiver


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with new_instance(tmp_path_factory) as instance:
        yield instance


@pytest.fixture
def clock() -> HandClock:
    return HandClock(datetime.now(UTC))


@dataclass
class StoreAlone:
    """Stands in for the collector of a sensor, which only reads reports."""

    repository: OpenRepository
    fails: bool = False
    configuration: Configuration = field(default_factory=Configuration)
    names: Names = NAMES

    def open(self, *, to_read: bool = False) -> OpenRepository:
        if self.fails:
            raise LakeFSError("the server is down")
        return self.repository


@pytest.fixture
def collector(tmp_path: Path) -> StoreAlone:
    folder = tmp_path / "store"
    folder.mkdir()
    return StoreAlone(empty_repository(folder))


def made(instance: dg.DagsterInstance, job: str, fails: bool, **tags: str) -> dg.DagsterRun:
    """A Dagster run of this job that has ended."""

    @dg.op
    def working() -> None:
        if fails:
            raise dg.Failure(description="somebody collects this repository")

    @dg.job(name=job)
    def work() -> None:
        working()

    names = {"flow": FLOW_TAG, "mode": MODE_TAG, "ending": ENDING_TAG, "freed": FREED_TAG, "cell": RANGE_START_TAG}
    names |= {"run": RUN_TAG}
    given = {names[name]: value for name, value in tags.items()}
    result = work.execute_in_process(instance=instance, raise_on_error=False, tags=given)
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    return run


@pytest.fixture
def tick(instance: dg.DagsterInstance, clock: HandClock, collector: StoreAlone) -> Callable[..., str]:
    """Ticks of the sensors, each from a given cursor; returns the next cursor."""
    repository = build(BOTH, clock, [notifications.define]).get_repository_def()

    def tick(name: str, cursor: str | None) -> str:
        given = {"collector": collector}
        with dg.build_sensor_context(instance, cursor, repository_def=repository, resources=given) as context:
            found = repository.get_sensor_def(name).evaluate_tick(context)
        assert found.cursor
        return found.cursor

    return tick


def history(instance: dg.DagsterInstance) -> list[dict[str, object]]:
    records = instance.fetch_materializations(dg.AssetKey(HISTORY), limit=10).records
    events = [record.asset_materialization for record in records]
    return [{name: value.value for name, value in event.metadata.items()} for event in events if event]


def test_without_a_webhook_failures_are_noted_all_the_same(clock: HandClock) -> None:
    def names(variables: dict[tuple[str, str], str]) -> list[str]:
        loaded = Loaded(Configuration(repository="sample"), variables)
        sensors = build(loaded, clock, [notifications.define]).get_repository_def().sensor_defs
        return sorted(sensor.name for sensor in sensors if sensor.name.startswith(("note", "tell")))

    assert names({}) == ["note_failures"]
    assert names(VARIABLES) == ["note_failures", "tell_of_failures", "tell_of_runs"]


def test_a_failure_is_noted_whatever_tags_its_launch_had(
    instance: dg.DagsterInstance, tick: Callable[..., str]
) -> None:
    cursor = tick("note_failures", None)
    run = made(instance, "collect", fails=True, flow="clean", cell="run|2026-11", ending="deleted", freed="999 TB")
    forged = dg.AssetMaterialization(HISTORY, metadata={"dagster_run": run.run_id})
    instance.report_runless_asset_event(forged)

    tick("note_failures", cursor)
    tick("note_failures", cursor)

    noted, _ = history(instance)
    assert (noted["run_id"], noted["ending"], noted["dagster_run"]) == ("run", "failed", run.run_id)
    tagged = instance.get_run_by_id(run.run_id)
    assert tagged is not None
    assert (tagged.tags[ENDING_TAG], tagged.tags[FREED_TAG]) == ("failed", "0 B")


def test_a_run_replaces_tags_about_its_end_that_its_launch_had(
    instance: dg.DagsterInstance, collector: StoreAlone
) -> None:
    run = made(instance, "collect", fails=False, ending="deleted", freed="999 TB", mode="sweep")
    plan = began(collector.repository, HOUR, sweep=False)

    historian = Historian(instance, NAMES, run, pytest.fail)
    historian.begins(collector.repository.store, plan, collector.repository.settings)

    tagged = instance.get_run_by_id(run.run_id)
    assert tagged is not None
    assert [tagged.tags[tag] for tag in (MODE_TAG, ENDING_TAG, FREED_TAG)] == ["dry run", "under way", "under way"]


def test_failures_of_runs_and_jobs_are_posted(
    instance: dg.DagsterInstance, receiver: Receiver, tick: Callable[..., str]
) -> None:
    cursor = tick("tell_of_failures", None)
    made(instance, "collect", True, mode="<!channel>", flow="<!here>", cell="<!everyone>|2026-11")
    made(instance, "purge", True)
    made(instance, "of_somebody_else", True)

    for _ in range(3):
        cursor = tick("tell_of_failures", cursor)

    why = "failed: somebody collects this repository"
    assert receiver.posted == [{"text": f"{START} collect {why}"}, {"text": f"{START} purge {why}"}]


def test_what_a_run_did_is_posted_by_its_report_and_not_by_its_tags(
    instance: dg.DagsterInstance, receiver: Receiver, tick: Callable[..., str], collector: StoreAlone
) -> None:
    cursor = tick("tell_of_runs", None)
    plan = began(collector.repository, HOUR, sweep=False)
    lies = {"mode": "sweep", "ending": "deleted", "freed": "999 TB"}
    run = made(instance, "collect", False, cell=f"{plan.run_id}|2026-11", **lies)
    record = instance.get_run_record_by_id(run.run_id)
    assert record is not None and record.end_time is not None
    counts = {"candidates": 1200, "deleted": 0}
    end = datetime.fromtimestamp(record.end_time, UTC)
    marked = {"ending": Ending.MARKED, "dry_run": True, "counts": counts, "ended_at": end}
    ended(collector.repository, plan, **marked)
    made(instance, "collect", False, cell=f"{plan.run_id}|2026-11", **lies)  # a second one, which makes nothing
    made(instance, "collect", False, cell="<!channel>|2026-11", **lies)
    made(instance, "purge", False)

    for _ in range(4):
        cursor = tick("tell_of_runs", cursor)

    assert receiver.posted == [
        {
            "text": f"{START} dry run of run {plan.run_id} (clean): marked, nothing deleted "
            "(1,200 objects of garbage found, 0 deleted)"
        }
    ]


def test_the_message_about_a_dry_run_links_to_its_approval_where_the_ui_is_known(
    instance: dg.DagsterInstance,
    receiver: Receiver,
    tick: Callable[..., str],
    collector: StoreAlone,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "location_of", lambda _: "here")
    cursor = tick("tell_of_runs", None)
    plan = began(collector.repository, HOUR, sweep=False)
    counts = {"candidates": 1200, "deleted": 0}
    marked = {"ending": Ending.MARKED, "dry_run": True, "counts": counts, "ended_at": datetime.now(UTC) + HOUR}
    ended(collector.repository, plan, **marked)
    for ui_url in ("", "https://ui.example"):
        collector.configuration = Configuration.model_validate({"notifications": {"ui_url": ui_url}})
        made(instance, "collect", False, cell=f"{plan.run_id}|2026-11")
        cursor = tick("tell_of_runs", cursor)

    without, with_link = (message["text"] for message in receiver.posted)
    assert "approve" not in without
    said, address = with_link.split(". To approve it: ")
    assert said == without
    assert address.startswith("https://ui.example/locations/here/jobs/approve/playground/setup?config=%23%20Deletes")
    assert plan.run_id in address


def test_the_message_about_a_dry_run_has_the_limit_of_the_standing_approval_that_it_exceeds(
    instance: dg.DagsterInstance, receiver: Receiver, tick: Callable[..., str], collector: StoreAlone
) -> None:
    cursor = tick("tell_of_runs", None)
    plan = began(collector.repository, HOUR, sweep=False)
    warnings = ("another warning", f"{NOT_COVERED}9 objects would be deleted, more than the limit of 8 objects")
    counts, later = {"candidates": 9, "deleted": 0}, datetime.now(UTC) + HOUR
    marked = {"ending": Ending.MARKED, "dry_run": True, "counts": counts, "ended_at": later, "warnings": warnings}
    ended(collector.repository, plan, **marked)
    made(instance, "collect", False, cell=f"{plan.run_id}|2026-11")
    tick("tell_of_runs", cursor)

    (message,) = (message["text"] for message in receiver.posted)
    assert message.endswith(f"0 deleted). It {warnings[1]}") and "another" not in message


def test_bytes_that_a_sweep_freed_are_posted_and_a_damaged_report_is_named(
    instance: dg.DagsterInstance, receiver: Receiver, tick: Callable[..., str], collector: StoreAlone
) -> None:
    cursor = tick("tell_of_runs", None)
    later = datetime.now(UTC) + HOUR
    plan, damaged = began(collector.repository, HOUR), began(collector.repository, HOUR)
    counts, sizes = {"candidates": 1200, "deleted": 1100}, {"deleted": 3 * 2**20}
    ended(collector.repository, plan, counts=counts, object_bytes=sizes, ended_at=later)
    collector.repository.store.put(run_folder.report(damaged.run_id), b"<report>")
    for run_id in (plan.run_id, damaged.run_id):
        made(instance, "collect", False, cell=f"{run_id}|2026-11")
        cursor = tick("tell_of_runs", cursor)

    first, second = (message["text"] for message in receiver.posted)
    assert first == (
        f"{START} sweep of run {plan.run_id} (clean): deleted, 3.0 MiB freed "
        "(1,200 objects of garbage found, 1,100 deleted)"
    )
    assert second.startswith(f"{START} run {damaged.run_id} ended, but its report cannot be read: ")

    for tag in ("a name", plan.run_id):
        made(instance, "collect_on_emr_serverless", False, run=tag)
    tick("tell_of_runs", cursor)
    assert [message["text"] for message in receiver.posted] == [first, second, first]


def test_no_message_is_lost_to_a_webhook_or_server_that_fails(
    instance: dg.DagsterInstance,
    receiver: Receiver,
    tick: Callable[..., str],
    clock: HandClock,
    collector: StoreAlone,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cursor, of_ends = tick("tell_of_failures", None), tick("tell_of_runs", None)
    made(instance, "purge", True)
    receiver.status = 503
    with pytest.raises(MessageNotSent, match="answered 503") as raised:
        tick("tell_of_failures", cursor)
    assert receiver.url not in str(raised.value)
    assert (len(receiver.posted), clock.slept) == (3, [1, 2])
    with monkeypatch.context() as patched, pytest.raises(MessageNotSent, match="TEST_FAILED_URL, which is not set"):
        patched.delenv("TEST_FAILED_URL")
        tick("tell_of_failures", cursor)
    receiver.status, receiver.first = 200, [429]
    receiver.posted.clear()

    following = tick("tell_of_failures", cursor)

    assert len(receiver.posted) == 2, "refused once, then accepted"
    plan = began(collector.repository, HOUR)
    ended(collector.repository, plan, ended_at=datetime.now(UTC) + HOUR)
    made(instance, "collect", False, cell=f"{plan.run_id}|2026-11")
    collector.fails = True
    with pytest.raises(MessageNotSent, match="the server is down"):
        tick("tell_of_runs", of_ends)
    made(instance, "purge", True)
    clock.moment += timedelta(days=7, minutes=1)
    tick("tell_of_failures", following)
    assert len(receiver.posted) == 2, "nobody is told of what ended a week ago"


def test_the_second_of_three_messages_that_is_refused_keeps_no_other(
    instance: dg.DagsterInstance, receiver: Receiver, tick: Callable[..., str]
) -> None:
    cursor = tick("tell_of_failures", None)
    runs = [made(instance, "purge", True) for _ in range(3)]
    receiver.first = [200, 413]
    for _ in runs:
        cursor = tick("tell_of_failures", cursor)
    first, refused, instead, third = (message["text"] for message in receiver.posted)
    assert first == refused == third
    assert instead == (
        f"{START} Dagster run {runs[1].run_id} ended, but no message about it could be posted: the webhook answered 413"
    )


def test_the_second_of_three_messages_that_cannot_be_made_keeps_no_other(
    instance: dg.DagsterInstance, receiver: Receiver, tick: Callable[..., str], collector: StoreAlone
) -> None:
    cursor = tick("tell_of_runs", None)
    later = datetime.now(UTC) + HOUR
    plans = [began(collector.repository, hours * HOUR) for hours in (1, 2, 3)]
    for plan in plans:
        ended(collector.repository, plan, ended_at=later)
    collector.repository.store.put(run_folder.plan(plans[1].run_id), b"<plan>")
    for plan in plans:
        made(instance, "collect", False, cell=f"{plan.run_id}|2026-11")
        cursor = tick("tell_of_runs", cursor)
    texts = [message["text"] for message in receiver.posted]
    assert ["no message about it could be posted: " in text for text in texts] == [False, True, False]


def test_a_webhook_that_refuses_everything_is_tried_again(
    instance: dg.DagsterInstance, receiver: Receiver, tick: Callable[..., str]
) -> None:
    cursor = tick("tell_of_failures", None)
    made(instance, "purge", True)
    receiver.status = 404
    with pytest.raises(MessageNotSent, match="answered 404"):
        tick("tell_of_failures", cursor)
    receiver.status = 200
    receiver.posted.clear()
    tick("tell_of_failures", cursor)
    assert "purge failed: " in receiver.posted[0]["text"]


def test_a_message_is_text_and_a_url_is_not_reported(receiver: Receiver, clock: HandClock) -> None:
    notifications.post(receiver.url, "<!channel> & <https://evil|more>", clock.sleep)
    notifications.post(receiver.url, "x" * 100_000, clock.sleep)

    first, second = (message["text"] for message in receiver.posted)
    assert first == "&lt;!channel&gt; &amp; &lt;https://evil|more&gt;"
    assert len(second) < 4000
    receiver.status = 404
    with pytest.raises(CollectionError, match="answered 404"):
        notifications.post(receiver.url, "text", clock.sleep)
    assert clock.slept == [], "a webhook that refuses is not asked again"
    with pytest.raises(CollectionError) as raised:
        notifications.post("http://127.0.0.1:9/secret", "text", clock.sleep)
    assert "secret" not in str(raised.value)


def test_messages_go_through_the_proxy_unless_no_proxy_excepts_the_host(
    receiver: Receiver, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", receiver.url.removesuffix("/hook"))
    notifications.post("http://hooks.chat.invalid/services/x", "through", clock.sleep)
    assert receiver.posted == [{"text": "through"}]

    monkeypatch.setenv("no_proxy", "chat.invalid")
    with pytest.raises(CollectionError, match="cannot be reached"):
        notifications.post("http://hooks.chat.invalid/services/x", "around", clock.sleep)
    assert len(receiver.posted) == 1

    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(CollectionError, match="through the proxy: check HTTP_PROXY or HTTPS_PROXY"):
        notifications.post("https://hooks.elsewhere.invalid/services/x", "text", clock.sleep)


@pytest.mark.parametrize("named_by", ["setting", "environment"])
def test_messages_trust_a_private_authority(
    receiver: Receiver, clock: HandClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named_by: str
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    bundle, context = private_authority.make(tmp_path)
    receiver.encrypt(context)
    with pytest.raises(CollectionError, match=r"certificate is not trusted: set notifications\.ca_bundle"):
        notifications.post(receiver.url, "text", clock.sleep)
    if named_by == "environment":
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    notifications.post(receiver.url, "trusted", clock.sleep, str(bundle) if named_by == "setting" else "")
    assert receiver.posted == [{"text": "trusted"}]
    with pytest.raises(ConfigurationError, match=r"notifications\.ca_bundle .*, which is no file"):
        notifications.post(receiver.url, "text", clock.sleep, str(tmp_path / "gone.pem"))


def test_a_url_is_read_without_the_line_break_at_its_end(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_FAILED_URL", f"{receiver.url}\r\n")
    assert notifications._url(BOTH, "failure_webhook") == receiver.url


def test_runs_of_another_repository_are_not_reported(instance: dg.DagsterInstance) -> None:
    run = made(instance, "collect", True)
    other = replace(NAMES, repository="other", apart=True)

    assert notifications.is_about(NAMES, run, {"collect"})
    assert not notifications.is_about(other, run, {"collect_other"})
