"""The demo's last lines and exit status; a faulty collector replaces the real one."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from rich.console import Console

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.extensions.playground import demo, demo_command
from lakefs_gc_assets.extensions.playground.demo import DemoResult
from lakefs_gc_assets.extensions.playground.embedded.core import RuleSet
from lakefs_gc_assets.extensions.playground.embedded.sample import Sample, make_sample_repository
from lakefs_gc_assets.spark import session as spark_session


def _collector(
    garbage: list[str],
    *,
    takes: str = "",
    leaves: int = 0,
    failed: int = 0,
    waits: bool = True,
    then: Flow = Flow.OPTIMIZED,
) -> Callable[..., DemoResult]:
    """Deletes garbage, with the given errors.

    Args:
        garbage: addresses, filled in when the sample is made.
        takes: kind of a live object that it wrongly deletes.
        leaves: number of garbage objects that it leaves.
        failed: number of deletions that it reports as failed.
        waits: True if it reports that it has read staged data, upon which users act.
        then: flow of its second sweep.
    """

    def demonstrate(
        loaded: Loaded,
        clock: object,
        console: Console,
        meanwhile: Callable[[str], None],
        **more: object,
    ) -> DemoResult:
        root = Path(loaded.configuration.store.local_root)
        if waits:
            meanwhile("uncommitted_df")
        for address in garbage[leaves:]:
            (root / "sample" / address).unlink()
        if takes:
            (root / takes).unlink()
        return DemoResult(frozenset(garbage), len(garbage) - leaves, failed, (Flow.CLEAN, then))

    return demonstrate


def _shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: RuleSet, **wrong: Any) -> tuple[bool, str]:
    garbage: list[str] = []

    def make(*arguments: Any, **more: Any) -> Sample:
        sample = make_sample_repository(*arguments, **more)
        garbage.extend(sorted(each.address for each in sample.garbage))
        return sample

    monkeypatch.setattr(demo, "make_sample_repository", make)
    monkeypatch.setattr(demo, "demonstrate", _collector(garbage, **wrong))
    reported = StringIO()
    return demo.show(tmp_path, rules, 60, Console(file=reported, width=200)), reported.getvalue()


def test_all_live_objects_answer_and_all_garbage_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    well, reported = _shown(tmp_path, monkeypatch, "seed")

    assert well, reported
    assert "rule set seed" in reported
    assert "no production server" in reported
    assert "users copied 2 objects, renamed 2 and linked 2 uploads" in reported
    verdict = next(line for line in reported.splitlines() if "live objects answered" in line).split()
    assert verdict[0] == verdict[2] and int(verdict[0]) > 25


def test_a_lost_object_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    well, reported = _shown(tmp_path, monkeypatch, "oss", takes="outside-sample/lake/1")

    assert not well
    assert "LOST: imported from outside, imported/1 of imports at local://outside-sample/lake/1" in reported
    verdict = next(line for line in reported.splitlines() if "live objects answered" in line).split()
    assert int(verdict[0]) == int(verdict[2]) - 1


def test_garbage_that_is_still_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    well, reported = _shown(tmp_path, monkeypatch, "oss", leaves=1)

    assert not well
    assert "still there: " in reported


@pytest.mark.parametrize("wrong", [{"failed": 1}, {"waits": False}, {"then": Flow.CLEAN}])
def test_a_demo_that_did_not_show_what_it_should_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    assert not _shown(tmp_path, monkeypatch, "oss", **wrong)[0]


@pytest.mark.parametrize(("well", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_is_the_verdict(monkeypatch: pytest.MonkeyPatch, well: bool, status: int) -> None:
    asked: list[tuple[Any, ...]] = []

    def show(folder: Path, *rest: Any) -> bool:
        asked.append(rest)
        return well

    monkeypatch.setattr(spark_session, "start", lambda settings: None)
    monkeypatch.setattr(demo_command, "show", show)
    options = ["--rules", "seed", "--objects", "70", "--store-url", "s3://bucket/prefix"]
    assert CliRunner().invoke(main, ["demo", *options]).exit_code == status
    ((rules, objects, _, url),) = asked
    assert (rules, objects, url) == ("seed", 70, "s3://bucket/prefix")


def test_a_run_that_fails_ends_the_demo_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def show(*arguments: Any) -> bool:
        raise CollectionError("the run failed")

    monkeypatch.setattr(spark_session, "start", lambda settings: None)
    monkeypatch.setattr(demo_command, "show", show)
    ended = CliRunner().invoke(main, ["demo"])
    assert (ended.exit_code, ended.stderr) == (1, "lakefs-gc: the run failed\n")


def test_a_page_is_of_a_forecast(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["demo", "--html", str(tmp_path / "page.html")])
    assert ended.exit_code == Status.USAGE
    assert "--forecast" in ended.stderr


@pytest.mark.slow
def test_a_forecast_of_a_year(tmp_path: Path, spark: SparkSession) -> None:
    file = tmp_path / "page.html"
    ended = CliRunner().invoke(main, ["demo", "--forecast", "--html", str(file)])
    assert ended.exit_code == Status.WELL, ended.output
    page = file.read_text()
    assert "polyline" in page and "experiment" in page and "sales/" in page
