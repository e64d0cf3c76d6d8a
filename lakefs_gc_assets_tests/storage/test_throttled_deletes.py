"""Tasks that delete at the same time on a store that throttles, without knowing each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

import pytest

from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets.storage.cloud import RequestThrottled, Throttle, retry_throttled
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult
from lakefs_gc_assets_tests.servers.emulators import LimitedRate
from lakefs_gc_assets_tests.storage.virtual_time import VirtualTime

_BATCH = 1000
Counts = Literal["keys", "requests", "each key"]


@dataclass
class Service:
    """A service with a limit, in virtual time.

    Attributes:
        counts: what the limit counts. Above it, the service refuses single keys for `each key`, else whole requests.
        accepted: accepted keys so far.
        requests: requests so far that deleted keys, and that deleted none.
    """

    clock: VirtualTime
    limit: LimitedRate
    counts: Counts = "keys"
    accepted: int = 0
    requests: tuple[int, int] = (0, 0)

    def delete(self, keys: Sequence[str]) -> dict[str, DeleteOutcome]:
        self.clock.sleep(0.2)
        self.limit.pass_time(self.clock.now - self.limit.now)
        if self.counts == "each key":
            taken = self.limit.take(len(keys))
        else:
            taken = len(keys) if self.limit.take_all(1 if self.counts == "requests" else len(keys)) else 0
        self.accepted += taken
        useful, refused = self.requests
        self.requests = (useful + 1, refused) if taken else (useful, refused + 1)
        if not taken and self.counts != "each key":
            raise RequestThrottled("SlowDown")
        return {
            key: DeleteOutcome(
                key, *((DeleteResult.ACCEPTED, None) if place < taken else (DeleteResult.FAILED, "busy"))
            )
            for place, key in enumerate(keys)
        }

    def task(self, batches: int) -> Callable[[], int]:
        """A task that deletes batches; returns the number of keys that it gives up."""
        throttle = Throttle(lambda: self.clock.now, self.clock.sleep)

        def delete_all() -> int:
            failed = 0
            for batch in range(batches):
                names = [f"{batch}/{number}" for number in range(_BATCH)]
                outcomes = retry_throttled(self.delete, names, lambda outcome: outcome.error == "busy", throttle)
                assert outcomes.keys() == set(names)
                failed += sum(outcome.result is not DeleteResult.ACCEPTED for outcome in outcomes.values())
            return failed

        return delete_all


@pytest.fixture(params=[1, 2])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    monkeypatch.setattr(cloud, "uniform", Random(request.param).uniform)
    return VirtualTime()


@pytest.mark.parametrize(
    ("limit", "counts", "tasks", "batches", "storm"),
    [
        ((2000, 2000), "keys", 16, 4, 1.5),
        ((2000, 500), "keys", 16, 4, 1.5),
        ((300, 300), "keys", 32, 1, 2.5),
        ((5, 5), "requests", 32, 4, 1.5),
        ((3500, 3500), "each key", 32, 4, 0.1),
        ((100, 100), "each key", 32, 1, 0.5),
    ],
    ids=["keys", "fewer keys than a batch", "few keys", "requests", "each key", "few, each key"],
)
def test_all_is_deleted_without_a_storm(
    clock: VirtualTime, limit: tuple[int, int], counts: Counts, tasks: int, batches: int, storm: float
) -> None:
    service = Service(clock, LimitedRate(*limit), counts)
    failed = clock.run([service.task(batches) for _ in range(tasks)])
    assert sum(failed) == 0
    assert service.accepted == tasks * batches * _BATCH
    useful, refused = service.requests
    assert refused <= storm * useful
    needed = tasks * batches * (1 if service.counts == "requests" else _BATCH) / limit[0]
    assert clock.now <= 3 * needed + 30


def test_a_store_that_refuses_every_request_is_given_up_after_minutes(clock: VirtualTime) -> None:
    service = Service(clock, LimitedRate(0, 0))

    def delete() -> None:
        with pytest.raises(RequestThrottled):
            service.task(1)()

    clock.run([delete])
    assert cloud.RETRY_FOR.total_seconds() <= clock.now <= 240
    assert cloud.ATTEMPTS <= service.requests[1] <= 20


def test_keys_that_are_gone_before_the_store_refuses_every_request_are_reported(clock: VirtualTime) -> None:
    service = Service(clock, LimitedRate(0, 300))
    assert clock.run([service.task(1)]) == [_BATCH - service.accepted]
    assert 250 <= service.accepted <= 300
