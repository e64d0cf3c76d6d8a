"""The playground: a server with a sample, and the environment that points the collector to it."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, load
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.forecast import forecast
from lakefs_gc_assets.extensions.playground.demo import REPOSITORY, playground
from lakefs_gc_assets.extensions.playground.embedded.sample import STALE_BRANCH
from lakefs_gc_assets_tests.servers.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server

__all__ = ["bucket", "s3_server"]


def test_the_environment_leads_to_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with playground(tmp_path, rules="oss", objects=60, port=0) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        file = Path(environment[CONFIGURATION_VARIABLE])
        secrets = [value for name, value in environment.items() if name != CONFIGURATION_VARIABLE]
        assert secrets and not any(secret in file.read_text(encoding="utf-8") for secret in secrets)
        loaded = load(file)
        repository = Collector.from_loaded(loaded, SystemClock()).open()
        assert repository.facts.id == REPOSITORY
        assert repository.settings.quarantines, "a sweep can be undone"
        assert repository.store.list_level("data/").prefixes
        before = set(repository.store.list_level("data/").prefixes)
        freed = forecast.make(repository, LocalEngine(), print).in_force.amount
        assert freed.objects > 50, "a forecast shows something"
        stale = stale_branches.list_branches(repository, print).stale
        assert [standing.identity.branch for standing in stale] == [STALE_BRANCH]
    with playground(tmp_path, rules="oss", objects=60, port=0) as environment:
        loaded = load(Path(environment[CONFIGURATION_VARIABLE]))
        repository = Collector.from_loaded(loaded, SystemClock()).open()
        assert set(repository.store.list_level("data/").prefixes) == before


def test_objects_may_lie_in_a_bucket(
    s3_server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    found = []
    for _ in range(2):
        url = f"s3://{bucket}/play"
        with playground(tmp_path, rules="seed", objects=60, port=0, store_url=url) as environment:
            file = Path(environment[CONFIGURATION_VARIABLE])
            assert SECRET_KEY not in file.read_text(encoding="utf-8")
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            repository = Collector.from_loaded(load(file), SystemClock()).open()
            assert repository.facts.storage_namespace == f"{url}/{REPOSITORY}"
            found.append(set(repository.store.list_level("data/").prefixes))
    assert found[0] == found[1] != set()


def test_what_stands_in_the_way_is_said_in_one_line(tmp_path: Path) -> None:
    with playground(tmp_path / "first", rules="oss", objects=60, port=0) as environment:
        taken = str(urlsplit(load(Path(environment[CONFIGURATION_VARIABLE])).configuration.lakefs.endpoint).port)
        answer = CliRunner().invoke(main, ["embedded", "--folder", str(tmp_path / "second"), "--port", taken])
    assert (answer.exit_code, answer.stderr.count("\n")) == (Status.CONFIGURATION, 1)
    assert f"cannot listen on 127.0.0.1:{taken}" in answer.stderr
    for file in (tmp_path / "first" / "lakefs").glob("metadata.sqlite*"):
        file.unlink()
    answer = CliRunner().invoke(main, ["embedded", "--folder", str(tmp_path / "first"), "--port", "0"])
    assert (answer.exit_code, answer.stderr.count("\n")) == (1, 1)
    assert "found lakeFS objects in the storage" in answer.stderr
