"""The lock on Google Cloud Storage and Azure, with the same tests as on every other store."""

import pytest

from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.collector.repository.test_lock import (
    test_a_lock_not_renewed_expires,
    test_a_lock_taken_meanwhile_is_not_released,
    test_a_lock_taken_meanwhile_is_not_taken_over,
    test_a_lock_that_was_deleted_is_lost,
    test_a_renewed_lock_does_not_expire,
    test_lost_answers_lose_no_lock,
    test_of_many_runs_one_gets_the_lock,
    test_the_lock_keeps_others_out_until_it_is_released,
    test_the_lock_of_an_owner_that_ended_is_released_and_no_other,
    test_the_nonce_is_read_back,
    test_the_store_tells_its_time,
)

__all__ = [
    "test_a_lock_not_renewed_expires",
    "test_a_lock_taken_meanwhile_is_not_released",
    "test_a_lock_taken_meanwhile_is_not_taken_over",
    "test_a_lock_that_was_deleted_is_lost",
    "test_a_renewed_lock_does_not_expire",
    "test_lost_answers_lose_no_lock",
    "test_of_many_runs_one_gets_the_lock",
    "test_the_lock_keeps_others_out_until_it_is_released",
    "test_the_lock_of_an_owner_that_ended_is_released_and_no_other",
    "test_the_nonce_is_read_back",
    "test_the_store_tells_its_time",
]


@pytest.fixture(params=["gcs", "azure"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    opened: ObjectStore = request.getfixturevalue(f"{request.param}_store")
    return opened
