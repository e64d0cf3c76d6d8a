from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.repository import Clocks, require_writable
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import GuardTripped, OrderViolation, ReadOnlyRepository
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository, unreadable
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import RepositoryFacts, ServerClocks
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.collector.scripted import NOW
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

FACTS = RepositoryFacts("repo", "s3://bucket/repo", "main", read_only=False)


def test_a_read_only_repository_is_not_collected() -> None:
    require_writable(FACTS)
    with pytest.raises(ReadOnlyRepository, match="repo is read-only"):
        require_writable(replace(FACTS, read_only=True))


# Clocks.


HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2090, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))
SHORT = st.timedeltas(timedelta(), timedelta(minutes=30))
LONG = st.timedeltas(timedelta(), timedelta(days=400))


def agreeing(own: datetime = NOW) -> Clocks:
    return Clocks(own, own, own, own)


class TestTheCutoff:
    def test_is_a_day_and_an_hour_ago(self) -> None:
        assert agreeing().cutoff(DAY, DAY, HOUR) == NOW - DAY - HOUR

    @pytest.mark.parametrize("field", ["own", "server_earliest", "store"])
    def test_counts_from_the_earliest_clock(self, field: str) -> None:
        late = {name: NOW + timedelta(minutes=20) for name in ("own", "server_earliest", "server_latest", "store")}
        assert Clocks(**{**late, field: NOW}).cutoff(DAY, DAY, HOUR) == NOW - DAY - HOUR

    def test_is_no_later_than_the_servers_grace_period_allows(self) -> None:
        assert agreeing().cutoff(timedelta(), DAY, HOUR) == NOW - DAY - HOUR
        assert agreeing().cutoff(3 * DAY, DAY, HOUR) == NOW - 3 * DAY - HOUR
        assert agreeing().cutoff(timedelta(), timedelta(), timedelta()) == NOW

    @given(MOMENTS, SHORT, SHORT, SHORT, LONG, LONG, LONG)
    def test_leaves_the_whole_age_by_every_clock(
        self,
        own: datetime,
        server: timedelta,
        latest: timedelta,
        store: timedelta,
        min_age: timedelta,
        grace: timedelta,
        skew: timedelta,
    ) -> None:
        clocks = Clocks(own, own - server, own + latest, own + store - timedelta(minutes=15))
        found = clocks.cutoff(min_age, grace, skew)
        for clock in (clocks.own, clocks.server_earliest, clocks.server_latest, clocks.store):
            assert found <= clock - min_age - skew
            assert found <= clock - grace - skew
        exact = min(clocks.own, clocks.server_earliest, clocks.store) - max(min_age, grace) - skew
        assert exact - found < timedelta(seconds=1)

    @given(MOMENTS, st.timedeltas(timedelta(seconds=-2), timedelta(seconds=2)))
    def test_names_and_times_of_whole_seconds_are_not_older_than_they_are(self, own: datetime, more: timedelta) -> None:
        # A name and many stores keep whole seconds: a moment truncated to seconds must not fall below the cutoff.
        found = agreeing(own).cutoff(DAY, DAY, HOUR)
        moment = own - DAY - HOUR + more
        issued = layout.as_datetime(layout.issued_at(layout.XidGenerator().ascending(moment)))
        for shown in (issued, moment.replace(microsecond=0), moment):
            assert shown >= found or moment < own - DAY - HOUR

    def test_an_hour_is_an_hour_when_clocks_are_changed(self) -> None:
        local = timezone(timedelta(hours=2))
        assert agreeing(NOW.astimezone(local)).cutoff(DAY, DAY, HOUR) == NOW - DAY - HOUR


class TestClocks:
    def test_are_read_as_differences(self) -> None:
        server = ServerClocks()
        server.saw(NOW - timedelta(seconds=3), NOW)
        server.saw(NOW + timedelta(seconds=2), NOW)
        later = NOW + HOUR
        clocks = Clocks.read(later, server, later + timedelta(seconds=1))
        assert clocks.server_earliest == later - timedelta(seconds=3)
        assert clocks.server_latest == later + timedelta(seconds=2)
        assert (clocks.earliest, clocks.latest) == (clocks.server_earliest, clocks.server_latest)

    def test_of_a_server_that_reported_no_time(self) -> None:
        assert Clocks.read(NOW, ServerClocks(), NOW) == agreeing()

    @given(st.lists(st.timedeltas(-HOUR, HOUR), min_size=1, max_size=6))
    def test_every_date_seen_counts(self, differences: list[timedelta]) -> None:
        server = ServerClocks()
        for number, difference in enumerate(differences):
            own = NOW + number * HOUR
            server.saw(own + difference, own)
        clocks = Clocks.read(NOW, server, NOW)
        assert (clocks.server_earliest, clocks.server_latest) == (NOW + min(differences), NOW + max(differences))

    def test_without_zones_are_no_clocks(self) -> None:
        with pytest.raises(TypeError):
            Clocks(NOW, NOW, NOW, NOW.replace(tzinfo=None)).cutoff(DAY, DAY, HOUR)


class TestClocksApart:
    @pytest.mark.parametrize(
        ("field", "sign"),
        [("own", -1), ("own", 1), ("store", -1), ("store", 1), ("server_earliest", -1), ("server_latest", 1)],
    )
    def test_stop_the_run(self, field: str, sign: int) -> None:
        together = dict.fromkeys(("own", "server_earliest", "server_latest", "store"), NOW)
        apart = timedelta(minutes=30, microseconds=1)
        with pytest.raises(GuardTripped, match=r"guard clocks: .*apart.*collection\.clock_skew_minutes"):
            guards.require_clocks_agree(Clocks(**{**together, field: NOW + sign * apart}), HOUR)

    def test_by_half_the_skew_are_allowed(self) -> None:
        half = timedelta(minutes=30)
        guards.require_clocks_agree(Clocks(NOW, NOW, NOW, NOW + half), HOUR)
        guards.require_clocks_agree(Clocks(NOW, NOW - half / 2, NOW + half / 2, NOW), HOUR)

    def test_on_both_sides_of_ours_add_up(self) -> None:
        with pytest.raises(GuardTripped):
            guards.require_clocks_agree(
                Clocks(NOW, NOW - timedelta(minutes=20), NOW, NOW + timedelta(minutes=20)), HOUR
            )


@dataclass
class SetClock:
    """A machine's clock that a test sets."""

    ahead: timedelta = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def sleep(self, seconds: float) -> None:
        """Waits take no time."""

    def monotonic(self) -> float:
        return self.now().timestamp()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "ahead", "refused"),
    [
        ("store_df", DAY, ""),
        ("candidates", DAY, ""),
        ("store_df", -DAY, "uncommitted_df began at"),
        ("uncommitted_df", -HOUR, "committed_df began at"),
        ("candidates", -DAY, ""),
    ],
)
def test_a_clock_that_is_set_between_two_steps(after: str, ahead: timedelta, refused: str, tmp_path: Path) -> None:
    """If the clock is set ahead, the cutoff stays; if it is set back, a step would seem to begin before its inputs."""
    with EmbeddedServer(tmp_path) as server:
        sample = make_sample_repository(server, objects=60)
        content = demo.configuration(server, sample.repository).model_dump()
        content["collection"] |= {"sweep": True, "max_candidate_share": 1}
        clock = SetClock()

        def set_clock(step: str) -> None:
            if step == after:
                clock.ahead = ahead

        runs = ArrowRuns(Loaded(Configuration.model_validate(content), {}), clock=clock, between=set_clock)
        if refused:
            with pytest.raises(OrderViolation, match=refused):
                runs.collect()
        else:
            runs.collect()
        assert unreadable(server, sample) == []
        assert bool(demo.still_stored(server, sample)) is bool(refused)
        assert lock.holder(runs.open().store) is None
