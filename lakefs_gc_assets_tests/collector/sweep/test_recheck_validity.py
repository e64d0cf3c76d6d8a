import pickle
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.collector.sweep import recheck
from lakefs_gc_assets.collector.sweep.recheck import Validity
from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, ObjectFacts, ObjectStore
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.collector.scripted import NOW
from lakefs_gc_assets_tests.servers.stores import bucket, local_store, s3_server, s3_store, store

__all__ = ["bucket", "local_store", "s3_server", "s3_store", "store"]

RUN = "g4uk6erfnfus73rbnqg0"
MINUTE = timedelta(minutes=1)
SPAN = 15 * MINUTE


class TimedStore(LocalStore):
    """Writes at its own time."""

    moment: datetime = NOW

    def head(self, key: str) -> ObjectFacts:
        return replace(super().head(key), last_modified=self.moment)


@dataclass
class Executor:
    """Clocks of a separate machine: its wall time, and its counted seconds."""

    moment: datetime = NOW
    seconds: float = 0.0
    asked: list[str] = field(default_factory=list)

    def now(self) -> datetime:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.passes(timedelta(seconds=seconds))

    def monotonic(self) -> float:
        return self.seconds

    def passes(self, time: timedelta) -> None:
        self.moment += time
        self.seconds += time.total_seconds()


@pytest.fixture
def timed(tmp_path: Path) -> TimedStore:
    return TimedStore(tmp_path)


@pytest.mark.parametrize("skew", [-60 * MINUTE, timedelta(), 60 * MINUTE])
def test_it_lasts_a_span_whatever_the_executor_takes_for_the_time(timed: TimedStore, skew: timedelta) -> None:
    valid = Validity.begin(timed, RUN, SPAN)
    clock = Executor(NOW + skew)
    countdown = valid.countdown(timed, RUN, clock)
    assert not countdown.is_over()
    clock.passes(SPAN - 2 * timedelta(seconds=1))
    assert not countdown.is_over()
    clock.passes(timedelta(seconds=1))
    assert countdown.is_over()


@given(late=st.integers(0, 1800), works=st.integers(0, 1800), skew=st.integers(-7200, 7200))
def test_a_task_that_begins_late_has_what_is_left(
    tmp_path_factory: pytest.TempPathFactory, late: int, works: int, skew: int
) -> None:
    timed = TimedStore(tmp_path_factory.mktemp("store"))
    valid = Validity.begin(timed, RUN, SPAN)
    timed.moment = NOW + timedelta(seconds=late)
    clock = Executor(timed.moment + timedelta(seconds=skew))
    countdown = valid.countdown(timed, RUN, clock)
    clock.passes(timedelta(seconds=works))
    # Stores have times in whole seconds: the last second is not used.
    assert countdown.is_over() == (late + works >= SPAN.total_seconds() - 1)


def test_a_clock_that_is_set_back_does_not_stretch_it(timed: TimedStore) -> None:
    clock = Executor()
    countdown = Validity.begin(timed, RUN, SPAN).countdown(timed, RUN, clock)
    clock.moment -= 60 * MINUTE
    clock.seconds += SPAN.total_seconds()
    assert countdown.is_over()


def test_a_machine_that_stood_still_finds_it_over(timed: TimedStore) -> None:
    clock = Executor()
    countdown = Validity.begin(timed, RUN, SPAN).countdown(timed, RUN, clock)
    clock.moment += SPAN
    assert clock.seconds == 0
    assert countdown.is_over()


def test_seconds_are_counted_from_when_it_began(timed: TimedStore) -> None:
    clock = Executor(seconds=2 * SPAN.total_seconds())
    countdown = Validity.begin(timed, RUN, SPAN).countdown(timed, RUN, clock)
    assert not countdown.is_over()
    clock.seconds += SPAN.total_seconds()
    assert countdown.is_over()


def test_the_store_is_asked_in_the_folder_of_the_run(timed: TimedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    written, put = list[str](), timed.put

    def noted(key: str, data: bytes) -> str | None:
        written.append(key)
        return put(key, data)

    monkeypatch.setattr(timed, "put", noted)
    Validity.begin(timed, RUN, SPAN).countdown(timed, RUN, Executor())
    assert [key.rpartition("/")[0] for key in written] == [f"{run_folder.folder(RUN)}clock"] * 2


def test_it_is_over_for_good(timed: TimedStore) -> None:
    clock = Executor()
    countdown = Validity.begin(timed, RUN, SPAN).countdown(timed, RUN, clock)
    clock.moment += SPAN
    assert countdown.is_over()
    clock.moment -= SPAN
    assert countdown.is_over()


def test_the_time_that_it_takes_to_ask_the_store_counts(timed: TimedStore) -> None:
    clock = Executor()

    class Slow(TimedStore):
        def head(self, key: str) -> ObjectFacts:
            found = super().head(key)
            clock.passes(SPAN)
            return found

    valid = Validity.begin(timed, RUN, SPAN)
    slow = Slow(Path(str(timed._root, "utf-8")))
    assert valid.countdown(slow, RUN, clock).is_over()


def test_it_can_be_handed_to_another_process() -> None:
    valid = Validity(NOW, SPAN)
    assert pickle.loads(pickle.dumps(valid)) == valid


def test_asking_a_store_for_the_time_leaves_nothing_behind(store: ObjectStore) -> None:
    before = recheck.store_time(store, RUN)
    after = recheck.store_time(store, RUN)
    assert before <= after
    assert [key for batch in store.list(layout.RUNS_PREFIX) for key in batch["key"].to_pylist()] == []


def test_what_could_not_be_removed_is_left(tmp_path: Path) -> None:
    class Keeping(TimedStore):
        def delete(self, keys: object) -> list[DeleteOutcome]:
            return [DeleteOutcome("key", DeleteResult.FAILED, "AccessDenied")]

    assert recheck.store_time(Keeping(tmp_path), RUN) == NOW

    class Failing(TimedStore):
        def delete(self, keys: object) -> list[DeleteOutcome]:
            raise StorageError("503")

    assert recheck.store_time(Failing(tmp_path), RUN) == NOW


def test_seconds_of_this_machine_never_go_back() -> None:
    clock = SystemClock()
    moments = [clock.monotonic() for _ in range(100)]
    assert moments == sorted(moments)
