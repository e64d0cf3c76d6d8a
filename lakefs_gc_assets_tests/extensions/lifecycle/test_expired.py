"""Expired objects of an embedded server, by the rules of a policy."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakefs_gc_assets_tests.extensions.lifecycle.aged_repository import AgedRepository, aged_repository


@pytest.fixture
def made(tmp_path: Path) -> Iterator[AgedRepository]:
    with aged_repository(tmp_path) as repository:
        yield repository


def test_objects_older_than_a_period_expire(made: AgedRepository) -> None:
    made.add(100, "raw/old", "raw/keep/old", "other/old")
    made.add(10, "raw/new")
    made.policy({"paths": "raw/", "except": "raw/keep/", "older_than": "90d"})
    assert made.expired() == {("main", "rule-1"): ["raw/old"]}
    print(made.listed())
