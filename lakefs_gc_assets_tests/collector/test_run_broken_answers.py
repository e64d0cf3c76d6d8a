"""Runs whose answers, of lakeFS or of the store, come slowly, break off or are lost, in each step."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from typing import Literal

import pytest
from tenacity import wait_none

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.frame.receipts import GONE
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.lakefs.api import transport
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns, Made, Opened
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns
from lakefs_gc_assets_tests.runs.replayed_runs import served
from lakefs_gc_assets_tests.servers.emulators import Proxy, Response
from lakefs_gc_assets_tests.servers.s3_server import Request
from lakefs_gc_assets_tests.storage.test_cloud_faults import cut, hang_up

Side = Literal["lakefs", "store"]
Fault = Callable[[Request, Response], Response]


def trickle(request: Request, response: Response) -> Response:
    """The body comes in small parts."""
    return replace(response, pause=0.005)


FAULTS: dict[str, Fault] = {"cut off": cut, "connection reset": hang_up, "slow": trickle}


@dataclass
class ProxiedRuns(PlainRuns):
    """Runs that reach lakeFS and the store through proxies.

    Attributes:
        proxies: the proxies by side, whose faults begin and end with a step.
    """

    proxies: dict[Side, Proxy] = field(default_factory=dict)

    @property
    def loaded(self) -> Loaded:
        content = super().loaded.configuration.model_dump()
        content["lakefs"] |= {"endpoint": self.proxies["lakefs"].url, "retries": 3}
        content["store"] |= {"endpoint_url": self.proxies["store"].url}
        return Loaded(Configuration.model_validate(content), {})

    def make_with_fault(self, opened: Opened, step: str, side: Side, change: Fault) -> Made:
        """Makes all steps; answers of one side are changed during one step."""

        def begin(done: str | None) -> None:
            following = STEPS[0] if done is None else (*STEPS[STEPS.index(done) + 1 :], None)[0]
            self.proxies[side].change = change if following == step else lambda request, response: response

        begin(None)
        runs = ArrowRuns(self.loaded, self.clock, self.lines, between=begin)
        made = runs.make(opened, STEPS, "owner")
        self.proxies[side].change = lambda request, response: response
        return made


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProxiedRuns]:
    monkeypatch.setattr(cloud, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(cloud, "ATTEMPTS", 4)
    for name in ("init_backoff", "max_backoff"):
        monkeypatch.setitem(cloud._OBSTORE_BACKOFF, name, timedelta(milliseconds=1))
    monkeypatch.setattr(transport, "_BACKOFF", wait_none())
    with ExitStack() as stack:
        server, clock = served("chain/1", "overlay", None)
        stack.enter_context(server)
        proxies: dict[Side, Proxy] = {"lakefs": Proxy(server.url), "store": Proxy(server.s3_url)}
        for proxy in proxies.values():
            stack.callback(proxy.stop)
        yield ProxiedRuns(server, clock, {"sweep": True, "max_candidate_share": 1}, proxies=proxies)


def recorded_as_deleted(runs: ProxiedRuns, run_id: str) -> set[str]:
    """Addresses that the receipts of a run name as deleted."""
    rows = receipts.read(runs.repository.store, run_id, lambda damage: None)
    return {row["address"] for row in rows.to_pylist() if row["outcome"] in GONE}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("side", ["lakefs", "store"])
@pytest.mark.parametrize("step", STEPS)
def test_run_with_some_broken_answers_deletes_exactly_the_garbage(
    runs: ProxiedRuns, step: str, side: Side, fault: str
) -> None:
    number = count()

    def third(request: Request, response: Response) -> Response:
        return FAULTS[fault](request, response) if next(number) % 3 == 0 else response

    opened = runs.open(Flow.CLEAN)
    made = runs.make_with_fault(opened, step, side, third)
    assert made.success, made.failures
    assert next(number) > 0
    assert runs.server.deleted == set(runs.addresses(opened.run_id, "candidates")) != set()
    assert recorded_as_deleted(runs, opened.run_id) == runs.server.deleted
    assert runs.lock_holder() is None


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut off", "connection reset"])
@pytest.mark.parametrize("side", ["lakefs", "store"])
@pytest.mark.parametrize("step", STEPS)
def test_run_with_broken_answers_alone_fails_and_its_resumption_deletes_exactly_the_garbage(
    runs: ProxiedRuns, step: str, side: Side, fault: str
) -> None:
    opened = runs.open(Flow.CLEAN)
    made = runs.make_with_fault(opened, step, side, FAULTS[fault])
    assert list(made.failures) == [step]
    assert "broke" in made.failures[step], made.failures
    assert runs.server.deleted == set()
    resumed = ArrowRuns(runs.loaded, runs.clock, runs.lines).make(opened, STEPS[len(made.done) :], made.owner)
    assert resumed.success, resumed.failures
    assert runs.server.deleted == set(runs.addresses(opened.run_id, "candidates")) != set()
    assert recorded_as_deleted(runs, opened.run_id) == runs.server.deleted
