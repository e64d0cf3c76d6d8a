"""Fuzzes every target with the same cases each time.

`make test` runs 100 cases for each target, `make test-slow` 1,000, each in two processes; `make fuzz` runs more.
"""

import random
import subprocess
import sys

import pytest

from lakefs_gc_assets.errors import CollectionError, LakeFSError
from lakefs_gc_assets_tests.fuzzing import targets
from lakefs_gc_assets_tests.fuzzing.fuzzer import Case, Failure, Target, outcome, run
from lakefs_gc_assets_tests.fuzzing.targets import TARGETS


def fuzz(cases: int, *names: str) -> None:
    arguments = [sys.executable, "-m", targets.__name__, str(cases), "1", *names]
    finished = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert [line.partition(":")[0] for line in finished.stdout.splitlines()] == [*names]


@pytest.mark.parametrize("part", range(2))
def test_hostile_input_is_an_error_or_read_right(part: int) -> None:
    fuzz(100, *[*TARGETS][part::2])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(2))
def test_so_is_much_more_of_it(part: int) -> None:
    fuzz(1000, *[*TARGETS][part::2])


def _target(read: object, size: int = 10, **bounds: int) -> Target:
    def make(rng: random.Random) -> Case:
        number = rng.randrange(100)
        return Case(size, lambda: outcome(lambda: read(number), lambda found: None))  # type: ignore[operator]

    return Target("target", make, **bounds)  # type: ignore[arg-type]


def test_cases_are_counted_by_what_came_out() -> None:
    def read(number: int) -> int:
        if number < 50:
            raise LakeFSError("no")
        return number

    figures = run(_target(read), 300, 1)
    assert figures.cases == sum(figures.outcomes.values()) == 300
    assert set(figures.outcomes) == {"error", "read"}
    assert figures.outcomes == run(_target(read), 300, 1).outcomes != run(_target(read), 300, 2).outcomes


def test_an_error_that_is_not_ours_fails_and_says_which_case() -> None:
    def read(number: int) -> int:
        return 1 // (number % 10)

    with pytest.raises(Failure, match=r"ZeroDivisionError.* 1 7 target:\d+"):
        run(_target(read), 300, 7)


@pytest.mark.parametrize("odd", [lambda: CollectionError(""), lambda: LakeFSError()])
def test_an_error_without_words_fails(odd: object) -> None:
    def read(number: int) -> int:
        raise odd()  # type: ignore[operator]

    with pytest.raises(Failure, match="a message of 0 characters"):
        run(_target(read), 1, 1)


def test_memory_and_steps_are_bounded() -> None:
    with pytest.raises(Failure, match="bytes of memory"):
        run(_target(lambda number: bytes(1 << 20), base_bytes=1 << 19), 1, 1)
    with pytest.raises(Failure, match="lines of code"):
        run(_target(lambda number: _loop(3000), base_lines=2000), 1, 1)
    assert run(_target(lambda number: bytes(1 << 20), base_bytes=1 << 21), 1, 1).most_bytes > 1 << 20


def _loop(times: int) -> int:
    total = 0
    for each in range(times):
        total += each
    return total
