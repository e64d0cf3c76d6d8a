"""The lock on Google Cloud Storage and Azure, with tests of its rules that depend on the store."""

import pytest

from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.collector.repository.test_lock import (
    test_a_lock_taken_meanwhile_is_not_taken_over,
    test_lost_answers_lose_no_lock,
    test_of_many_runs_one_gets_the_lock,
    test_the_lock_keeps_others_out_until_it_is_released,
    test_the_store_tells_its_time,
)

__all__ = [
    "test_a_lock_taken_meanwhile_is_not_taken_over",
    "test_lost_answers_lose_no_lock",
    "test_of_many_runs_one_gets_the_lock",
    "test_the_lock_keeps_others_out_until_it_is_released",
    "test_the_store_tells_its_time",
]


@pytest.fixture(params=["gcs", "azure"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    opened: ObjectStore = request.getfixturevalue(f"{request.param}_store")
    return opened
