from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.frame.schemas import LIVE
from lakefs_gc_assets.collector.live import cross_repository, uncommitted
from lakefs_gc_assets.collector.live.current import prepare_uncommitted
from lakefs_gc_assets.collector.live.uncommitted import Prepared
from lakefs_gc_assets.collector.plan import Flow
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets_tests.collector.past_runs import NOW, opened

__all__ = ["opened"]


def test_commits_are_read_after_the_last_question_about_staged_objects(
    opened: OpenRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other repositories are asked for what they have staged of this one's, which may take long."""
    monkeypatch.setattr(uncommitted, "prepare_checked", lambda *given, **_: Prepared(NOW, NOW, ("run",), (), 1))

    def asked(*given: object) -> pa.Table:
        opened.clock.sleep(600)
        return LIVE.empty_table()

    monkeypatch.setattr(cross_repository, "staged_elsewhere", asked)
    step = SimpleNamespace(
        repository=replace(opened, others=(opened,)),
        plan=SimpleNamespace(run_id="run", flow=Flow.CLEAN, cutoff=NOW, slice_window="month"),
        references=lambda repository: SimpleNamespace(uncommitted=lambda files: LIVE.empty_table()),
        engine=SimpleNamespace(table=lambda table: table),
    )

    found = prepare_uncommitted(cast(Step[Any], step))

    assert (found.started_at, found.ended_at) == (NOW, NOW + timedelta(minutes=10))
    assert len(found.addresses) == 3
