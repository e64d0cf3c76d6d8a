"""`lakefs-gc restore` on an embedded server whose objects are in a bucket that keeps versions."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.incremental.planning import NoBaseRun, find_base_run
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.sweep.sweeping import Sweep
from lakefs_gc_assets.configuration_file import load
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.playground.embedded.stores import RemoteBlockstore
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.past_runs import DAY, NOW, began, ended
from lakefs_gc_assets_tests.collector.scripted import HandClock
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.servers.s3_server import SECRET_KEY, S3Server
from lakefs_gc_assets_tests.servers.stores import s3_server

__all__ = ["s3_server"]

PATHS = ("a", "bb")


class Deleted:
    """Two uncommitted objects of a repository, deleted by a run."""

    def __init__(self, server: EmbeddedServer, repository: OpenRepository, addresses: tuple[str, ...]) -> None:
        self.server, self.repository, self.addresses = server, repository, addresses
        run = began(repository, DAY)
        self.run_id = run.run_id
        held = Lock.acquire(repository.store, run_id=run.run_id, owner="run", now=NOW, expiry=timedelta(hours=1))
        rows = candidates(*addresses).drop_columns(["size"])
        rows = rows.append_column("size", [[len(path) for path in PATHS]])
        for _ in Sweep(repository.store, run.run_id, held.token, HandClock(), attempt=run.attempt).delete(rows):
            pass
        held.release()
        ended(repository, run)

    def statuses(self) -> list[int]:
        """Statuses that lakeFS returns for the objects."""
        path = "/repositories/repo/refs/main/objects"
        return [clients.call(self.server, "GET", path, path=each)[0] for each in PATHS]


@pytest.fixture
def deleted(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deleted]:
    bucket = s3_server.new_versioned_bucket()
    store = RemoteBlockstore("s3", lambda uri: open_store(s3_server.settings(), Namespace.parse(uri)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAKEFS_GC_CONFIG", raising=False)
    monkeypatch.setenv("TEST_STORE_SECRET", SECRET_KEY)
    with EmbeddedServer(tmp_path / "server", blockstore=store) as server:
        monkeypatch.setenv("TEST_LAKEFS_SECRET", server.secret_access_key)
        body = {"name": "repo", "storage_namespace": f"s3://{bucket}/repo"}
        assert clients.call(server, "POST", "/repositories", body)[0] == 201
        addresses = tuple(clients.upload(server, path, path.encode()) for path in PATHS)
        content = {
            "repository": "repo",
            "lakefs": {
                "endpoint": server.url,
                "access_key_id": server.access_key_id,
                "secret_access_key": {"env": "TEST_LAKEFS_SECRET"},
            },
            "store": {
                **s3_server.settings().model_dump(include={"endpoint_url", "region", "path_style", "access_key_id"}),
                "secret_access_key": {"env": "TEST_STORE_SECRET"},
            },
        }
        file = tmp_path / "lakefs-gc.yaml"
        file.write_text(yaml.safe_dump(content))
        yield Deleted(server, Collector.from_loaded(load(file), HandClock(NOW)).open(), addresses)


def restore(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["restore", *arguments])


def test_what_a_run_deleted_is_there_again_and_the_next_run_is_clean(deleted: Deleted) -> None:
    assert deleted.statuses() == [410, 410]
    assert find_base_run(deleted.repository).run_id == deleted.run_id
    full = f"{deleted.repository.namespace.uri}{deleted.addresses[1]}"

    one = restore("--run-id", deleted.run_id, "--address", full, "--yes")

    assert (one.exit_code, one.stdout.splitlines()) == (0, ["1 restored"])
    assert deleted.statuses() == [410, 200]

    both = restore(deleted.run_id, "--yes")

    assert both.exit_code == 0
    assert both.stdout.splitlines() == [f"{deleted.addresses[1]}: there already", "1 restored, 1 there already"]
    assert deleted.statuses() == [200, 200]
    assert lock.holder(deleted.repository.store) is None
    with pytest.raises(NoBaseRun, match=f"objects that run {deleted.run_id} had deleted were restored"):
        find_base_run(deleted.repository)


def test_a_dry_run_shows_what_would_come_back(deleted: Deleted) -> None:
    shown = restore("--run-id", deleted.run_id, "--dry-run")

    assert shown.exit_code == 0
    sizes = sorted(f"{address}: {len(path)} B" for address, path in zip(deleted.addresses, PATHS, strict=True))
    assert shown.stdout.splitlines() == [*sizes, "2 objects, 3 B, would be restored"]
    assert deleted.statuses() == [410, 410]
    assert find_base_run(deleted.repository).run_id == deleted.run_id


def test_nothing_comes_back_unless_reported(deleted: Deleted, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = restore(deleted.run_id)
    monkeypatch.setattr(sys.modules["lakefs_gc_assets.cli.common"], "is_on_terminal", lambda: True)
    shown = restore(deleted.run_id)

    assert refused.exit_code == Status.FAILED
    assert refused.stderr == "lakefs-gc: nothing was restored: there is no terminal to ask on, so give --yes\n"
    assert (shown.exit_code, shown.stdout) == (Status.FAILED, "")
    *listed, _, not_confirmed = shown.stderr.splitlines()
    assert listed == restore(deleted.run_id, "--dry-run").stdout.splitlines()
    assert "not confirmed: nothing was restored" in not_confirmed
    assert deleted.statuses() == [410, 410]


def test_a_run_is_named_once(deleted: Deleted) -> None:
    for arguments in ((), (deleted.run_id, "--run-id", "c" * 20)):
        result = restore(*arguments, "--yes")
        assert result.exit_code == Status.USAGE and "RUN" in result.stderr
    assert deleted.statuses() == [410, 410]


def test_what_does_not_come_back_is_reported_by_the_exit_status(deleted: Deleted) -> None:
    deleted.repository.store.delete([deleted.addresses[0]])

    result = restore(deleted.run_id, "--yes")

    assert result.exit_code == Status.INCOMPLETE
    lines = result.stdout.splitlines()
    assert f"{deleted.addresses[0]}: still gone: the run's delete marker is not the newest version" in lines
    assert lines[-1] == "1 restored, 1 still gone"
    assert deleted.statuses() == [410, 200]


@pytest.mark.parametrize(
    ("arguments", "said", "status"),
    [
        (("--run-id", "c" * 20), "this repository has no run", Status.FAILED),
        (("--run-id", "{run}", "--address", "s3://elsewhere/data/x/y"), "is outside of", Status.CONFIGURATION),
    ],
)
def test_what_cannot_be_meant_changes_nothing(
    deleted: Deleted, arguments: tuple[str, ...], said: str, status: Status
) -> None:
    result = restore(*(argument.replace("{run}", deleted.run_id) for argument in arguments), "--yes")

    assert result.exit_code == status
    assert said in result.stderr and result.stderr.count("\n") == 1
    assert deleted.statuses() == [410, 410]
    assert lock.holder(deleted.repository.store) is None
    assert find_base_run(deleted.repository).run_id == deleted.run_id
