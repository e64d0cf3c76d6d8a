from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakefs_gc_assets.collector import report as reports
from lakefs_gc_assets.collector.incremental.base_checkpoint import open_base_checkpoint
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets_tests.collector.past_runs import DAY, began, ended, opened

__all__ = ["opened"]


def step_of(repository: OpenRepository, base_run: str | None, attempt: str | None) -> Step[Any]:
    """A step without an engine: whatever asks for it fails."""
    plan = SimpleNamespace(base_run=base_run, base_run_attempt=attempt)
    return cast(Step[Any], SimpleNamespace(repository=repository, plan=plan))


def test_a_run_that_was_made_again_is_not_built_on_half_way(opened: OpenRepository) -> None:
    before = began(opened, DAY)
    left = ended(opened, before).checkpoint
    step = step_of(opened, before.run_id, before.attempt)
    found = open_base_checkpoint(step)
    assert found is not None and found.checkpoint == left
    again = began(opened, DAY, run_id=before.run_id, attempt="another")
    ended(opened, again)
    assert reports.read(opened.store, before.run_id) is not None
    with pytest.raises(OrderViolation, match="was made again"):
        open_base_checkpoint(step)


def test_a_clean_run_builds_on_nothing(opened: OpenRepository) -> None:
    assert open_base_checkpoint(step_of(opened, None, None)) is None
