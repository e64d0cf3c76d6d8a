import time
from http.client import IncompleteRead

import pytest

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients, faults

_REPOSITORY = "/repositories/repo"


def test_throttled_and_failing_answers_come_as_often_as_asked(server: EmbeddedServer) -> None:
    faults.switch_on(server, faults.Fault("throttled", "/repositories/repo$", times=2))
    faults.switch_on(server, faults.Fault("failing", "/branches", method="GET", status=503, times=1, after=1))
    assert [clients.call(server, "GET", _REPOSITORY)[0] for _ in range(3)] == [429, 429, 200]
    assert [clients.call(server, "GET", _REPOSITORY + "/branches")[0] for _ in range(3)] == [200, 503, 200]


def test_a_failing_call_may_have_been_carried_out(server: EmbeddedServer) -> None:
    faults.switch_on(server, faults.Fault("failing", "/branches", method="POST", acts=True))
    body = {"name": "side", "source": "main"}
    assert clients.call(server, "POST", _REPOSITORY + "/branches", body)[0] == 500
    assert clients.call(server, "GET", _REPOSITORY + "/branches/side")[0] == 200


def test_a_slow_answer_takes_its_time(server: EmbeddedServer) -> None:
    faults.switch_on(server, faults.Fault("slow", "/repo$", seconds=0.3))
    start = time.monotonic()
    assert clients.call(server, "GET", _REPOSITORY)[0] == 200
    assert time.monotonic() - start >= 0.3


def test_a_truncated_answer_ends_halfway(server: EmbeddedServer) -> None:
    faults.switch_on(server, faults.Fault("truncated", "/repo$"))
    with pytest.raises(IncompleteRead):
        clients.call(server, "GET", _REPOSITORY)
    assert clients.call(server, "GET", _REPOSITORY)[0] == 200


def test_faults_are_switched_on_and_off_over_http(server: EmbeddedServer) -> None:
    fault = {"kind": "failing", "path": "/repo$", "times": None, "status": 502}
    assert clients.call(server, "POST", "/_embedded/faults", fault)[0] == 204
    assert [clients.call(server, "GET", _REPOSITORY)[0] for _ in range(3)] == [502] * 3
    assert clients.call(server, "DELETE", "/_embedded/faults")[0] == 204
    assert clients.call(server, "GET", _REPOSITORY)[0] == 200
    assert clients.call(server, "POST", "/_embedded/faults", {"kind": "strange"})[0] == 400
    assert clients.call(server, "POST", "/_embedded/faults", fault, authorization="Basic bm86bm8=")[0] == 401


def test_answers_carry_the_date_of_the_clock(server: EmbeddedServer) -> None:
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime
    from urllib.request import urlopen

    moment = datetime(2026, 1, 2, tzinfo=UTC)
    server.clock.set(moment)
    with urlopen(f"{server.url}/_health") as answer:
        assert abs((parsedate_to_datetime(answer.headers["Date"]) - moment).total_seconds()) < 5
