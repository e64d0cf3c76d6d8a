"""The folder in which Dagster's runs are kept, as `lakefs-gc ui` prepares it."""

from pathlib import Path

import yaml

from lakefs_gc_assets.embedded.ui import prepare_home
from lakefs_gc_assets_tests.dagster_dev import PROJECT


def test_a_new_folder_has_the_settings_of_the_projects_own(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / "a" / "home")

    written = yaml.safe_load((home / "dagster.yaml").read_text())
    own = yaml.safe_load((PROJECT / "dagster.yaml").read_text())
    assert home.is_absolute()
    assert written["telemetry"] == {"enabled": False}
    for section, values in written.items():
        assert {name: own[section][name] for name in values} == values, section


def test_settings_that_are_there_stay(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: true}\n")

    assert prepare_home(tmp_path) == tmp_path.resolve()
    assert (tmp_path / "dagster.yaml").read_text() == "telemetry: {enabled: true}\n"
