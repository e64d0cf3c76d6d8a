"""The playground: a server with a sample, and the environment that points the collector to it."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from lakefs_gc_assets import running
from lakefs_gc_assets.cli import main
from lakefs_gc_assets.collection.clock import SystemClock
from lakefs_gc_assets.configuration import CONFIGURATION_VARIABLE, load
from lakefs_gc_assets.playground import REPOSITORY, playground


def test_the_environment_leads_to_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with playground(tmp_path, rules="oss", objects=60, port=0) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        loaded = load(Path(environment[CONFIGURATION_VARIABLE]))
        repository = running.opened(loaded, SystemClock()).open()
        assert repository.facts.id == REPOSITORY
        assert repository.store.list_level("data/").prefixes
        before = set(repository.store.list_level("data/").prefixes)
    with playground(tmp_path, rules="oss", objects=60, port=0) as environment:
        loaded = load(Path(environment[CONFIGURATION_VARIABLE]))
        repository = running.opened(loaded, SystemClock()).open()
        assert set(repository.store.list_level("data/").prefixes) == before


def test_what_stands_in_the_way_is_said_in_one_line(tmp_path: Path) -> None:
    with playground(tmp_path / "first", rules="oss", objects=60, port=0) as environment:
        taken = str(urlsplit(load(Path(environment[CONFIGURATION_VARIABLE])).configuration.lakefs.endpoint).port)
        answer = CliRunner().invoke(main, ["embedded", "--folder", str(tmp_path / "second"), "--port", taken])
    assert (answer.exit_code, answer.stderr.count("\n")) == (1, 1)
    assert f"cannot listen on 127.0.0.1:{taken}" in answer.stderr
    for file in (tmp_path / "first" / "lakefs").glob("metadata.sqlite*"):
        file.unlink()
    answer = CliRunner().invoke(main, ["embedded", "--folder", str(tmp_path / "first"), "--port", "0"])
    assert (answer.exit_code, answer.stderr.count("\n")) == (1, 1)
    assert "found lakeFS objects in the storage namespace" in answer.stderr


def test_the_file_holds_no_secret(tmp_path: Path) -> None:
    with playground(tmp_path, rules="oss", objects=60, port=0) as environment:
        text = Path(environment[CONFIGURATION_VARIABLE]).read_text(encoding="utf-8")
    secrets = [value for name, value in environment.items() if name != CONFIGURATION_VARIABLE]
    assert secrets and not any(secret in text for secret in secrets)
