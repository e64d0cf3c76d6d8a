"""Forecasts over recordings: each policy's forecast equals the mark of its dry run, for every set of rules."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets.collector.retention import rules
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.forecast import forecast
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.collector.retention.test_recorded_retention import TAGGED, Variant
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.moving_clock import MovingClock
from lakefs_gc_assets_tests.runs.recordings import folder_of, needs_recordings
from lakefs_gc_assets_tests.runs.replayed_runs import AGED

Sizes = dict[str, int]


def runs_of(server: ReplayServer, clock: MovingClock, policy: Path) -> ArrowRuns:
    content = server.configuration().model_dump()
    content["collection"] |= {"wait_before_dump_seconds": 0, "retention_policy": str(policy)}
    return ArrowRuns(Loaded(Configuration.model_validate(content), {}), clock)


def marked(runs: ArrowRuns) -> Sizes:
    """Objects that a dry run marks."""
    report = runs.collect(Flow.COMMITTED)
    repository = runs.open()
    rows = StoredFrame.from_run(repository.store, repository.opener, report.run_id, CANDIDATES_DF).table().to_pylist()
    return {row["address"]: row["size"] for row in rows}


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *TAGGED,
        # A real server dropped a commit in this recording that the definition keeps.
        pytest.param("random-dag/14", 3, marks=[needs_recordings, pytest.mark.slow]),
    ],
)
def test_each_column_is_what_a_run_marks(name: str, variant: Variant, tmp_path: Path) -> None:
    texts = {
        "in force": "keep_tags: true",
        "heads": "{default: 0d, replace: true, keep_tags: false}",
        "main": "{default: 1h, replace: true, branches: {main: 48h}}",
    }
    files = {named: tmp_path / f"{place}.yaml" for place, named in enumerate(texts)}
    for named, text in texts.items():
        files[named].write_text(text)
    policies = {named: rules.load_policy(file) for named, file in files.items()}
    clock = MovingClock(datetime.now(UTC))
    with ReplayServer(folder_of(name), variant=variant, now=clock.now, deletes="refuse") as server:
        clock.moment = server.recorded_at + AGED
        repository = runs_of(server, clock, files["in force"]).open()
        server.requests.clear()
        with forecast.ask(repository, LocalEngine(), print, (0, 1, None), policies) as asked:
            rows = LocalEngine().collect(asked.marked.candidates).to_pylist()
            said = {
                scenario.name: {
                    row["address"]: row["size"] for row in rows if not int.from_bytes(row["held"], "little") >> at & 1
                }
                for at, scenario in enumerate(asked.questions.scenarios)
                if scenario.kind in (ScenarioKind.IN_FORCE, ScenarioKind.POLICY)
            }
        read = Counter(request.path.rpartition("/_lakefs/")[2] for request in server.requests)
        # Metaranges of heads are read again for entries that the server does not list.
        heads = asked.questions.definition.live.heads.values()
        assert all(read[metarange] == 1 for metarange in asked.questions.metaranges if metarange not in heads)
        assert said.pop("rules in force") == said["in force"]
        assert said == {named: marked(runs_of(server, clock, file)) for named, file in files.items()}
    if name == "merge-dangling":
        assert said["heads"]
