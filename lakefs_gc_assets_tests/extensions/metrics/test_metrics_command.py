"""`lakefs-gc metrics` on an embedded server with reports in its store."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.common import format_samples
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records import report, run_folder
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.extensions.metrics.metrics_command import HELP
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, NOW, began, ended
from lakefs_gc_assets_tests.defs.automated import Automated, automated, server

__all__ = ["automated", "server"]

_LINE = re.compile(r'lakefs_gc_([a-z_]+)\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\} ([0-9.e+-]+)')


TOOK = {"worked_seconds": {"committed_df": 4.0}, "waited_seconds": {"committed_df": 30.0}}


def printed(automated: Automated, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, float]]:
    """Values by metric and labels."""
    file = automated.write_configuration(folder, "TEST_METRICS_SECRET")
    monkeypatch.setenv("TEST_METRICS_SECRET", automated.server.secret_access_key)
    answer = CliRunner().invoke(main, ["metrics", "--config", str(file)], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    found: dict[str, dict[str, float]] = {}
    for line in answer.stdout.splitlines():
        if not line.startswith("#"):
            match = _LINE.fullmatch(line)
            assert match is not None, line
            found.setdefault(match[1], {})[match[2]] = float(match[3])
    assert found.keys() <= HELP.keys()
    return found


def test_the_newest_figures_are_printed(automated: Automated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(automated, tmp_path, monkeypatch).keys() == {"quarantine_objects", "quarantine_bytes"}
    swept = ended(automated.repository, began(automated.repository, DAY))
    dry = ended(
        automated.repository,
        began(automated.repository, HOUR, sweep=False),
        dry_run=True,
        checkpoint=None,
        storage_classes={"listed": {"GLACIER": {"objects": 2, "bytes": 30}}},
        **TOOK,
    )

    found = printed(automated, tmp_path, monkeypatch)

    label = 'repository="sample"'
    assert found["last_run_timestamp_seconds"][label] == dry.ended_at.timestamp()
    assert found["last_sweep_timestamp_seconds"][label] == swept.ended_at.timestamp()
    assert found["last_run_success"] == {label: 1}
    assert found["quarantine_objects"] == {label: 0}
    assert found["last_run_duration_seconds"] == {label: 34}, "no time between steps"
    assert found["last_run_step_wait_seconds"] == {f'{label},step="committed_df"': 30}
    assert "stored_objects" not in found
    of_class = f'{label},kind="listed",class="GLACIER"'
    assert found["last_run_class_objects"] == {of_class: 2}
    assert found["last_run_class_bytes"] == {of_class: 30}

    store = automated.repository.store
    broken_off = replace(dry, success=False, ended_well=None, ending=Ending.FAILED, error="interrupted")
    for failed, success in ((broken_off, 1), (replace(broken_off, error="no"), 0)):
        report.write(store, failed)
        found = printed(automated, tmp_path, monkeypatch)
        assert found["last_run_success"] == {label: success}, "who interrupts a dry run pages nobody"

    store.put(run_folder.report(dry.run_id), b"damaged")
    found = printed(automated, tmp_path, monkeypatch)
    assert found["last_run_timestamp_seconds"][label] == swept.ended_at.timestamp()


def test_a_repository_that_fails_leaves_the_others_their_figures(
    automated: Automated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = automated.write_configuration(tmp_path, "TEST_METRICS_SECRET")
    content = yaml.safe_load(file.read_text())
    monkeypatch.setenv("TEST_METRICS_SECRET", automated.server.secret_access_key)
    shared = {name: content[name] for name in ("lakefs", "store")}
    without_secret = {**content["lakefs"], "secret_access_key": {"env": "TEST_METRICS_UNSET"}}
    entries = [{"repository": "gone"}, {"repository": "closed", "lakefs": without_secret}]
    entries.append({"repository": content["repository"]})
    file.write_text(yaml.safe_dump({**shared, "repositories": entries}))
    answer = CliRunner().invoke(main, ["metrics", "--config", str(file)])
    assert answer.exit_code == Status.INCOMPLETE
    gone, closed = answer.stderr.splitlines()
    assert gone.startswith("no figures of gone: ") and closed.startswith("no figures of closed: ")
    assert "TEST_METRICS_UNSET" in closed
    measured = [line for line in answer.stdout.splitlines() if not line.startswith("#")]
    assert measured and all(f'repository="{content["repository"]}"' in line for line in measured)


def test_copies_of_a_run_that_cannot_be_judged_are_named(
    automated: Automated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed(automated, tmp_path, monkeypatch)
    store = automated.repository.store
    plans = [began(automated.repository, hours * HOUR) for hours in (1, 2, 3)]
    copies = [sweeping.key(plan.run_id, "data/some/object") for plan in plans]
    for copy in copies:
        store.put(copy, b"copy")
    store.put(run_folder.plan(plans[1].run_id), b"damaged")
    try:
        answer = CliRunner().invoke(main, ["metrics", "--config", str(tmp_path / "lakefs-gc.yaml")])
    finally:
        store.delete(copies)
    assert answer.exit_code == Status.INCOMPLETE
    (line,) = answer.stderr.splitlines()
    assert line.startswith(f"figures of sample are incomplete: quarantine: objects of run {plans[1].run_id} stay")
    assert "lakefs_gc_quarantine_objects{" in answer.stdout


def test_runs_limited_to_addresses_or_windows_are_no_newest_run_and_no_sweep(
    automated: Automated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = ended(
        automated.repository, began(automated.repository, DAY), counts={"candidates": 7}, success=False, ended_well=True
    )
    before = printed(automated, tmp_path, monkeypatch)
    assert before["last_run_success"] == {'repository="sample"': 0}
    ended(automated.repository, began(automated.repository, HOUR, only_addresses=("data/a",)), ended_at=NOW + DAY)
    ended(automated.repository, began(automated.repository, HOUR / 2), limited_to="window legacy", ended_at=NOW + DAY)
    assert printed(automated, tmp_path, monkeypatch) == before
    assert before["last_sweep_timestamp_seconds"]['repository="sample"'] == swept.ended_at.timestamp()


def test_names_are_escaped_and_stand_together() -> None:
    lines = list(
        format_samples(
            [
                ("last_run_kept_objects", {"reason": 'a "b" \\ c\nd'}, 3),
                ("stored_objects", {"repository": "x"}, 2**40 + 1),
                ("last_run_kept_objects", {"reason": "e"}, 0.5),
            ],
            HELP,
        )
    )

    assert lines == [
        f"# HELP lakefs_gc_last_run_kept_objects {HELP['last_run_kept_objects']}",
        "# TYPE lakefs_gc_last_run_kept_objects gauge",
        'lakefs_gc_last_run_kept_objects{reason="a \\"b\\" \\\\ c\\nd"} 3',
        'lakefs_gc_last_run_kept_objects{reason="e"} 0.5',
        f"# HELP lakefs_gc_stored_objects {HELP['stored_objects']}",
        "# TYPE lakefs_gc_stored_objects gauge",
        'lakefs_gc_stored_objects{repository="x"} 1099511627777',
    ]


def test_configuration_that_lists_no_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gc.yaml").write_text("discover: {}")
    answer = CliRunner().invoke(main, ["metrics", "--config", str(tmp_path / "gc.yaml")])
    assert answer.exit_code == Status.CONFIGURATION and "lists no repository" in answer.stderr
