"""`lakefs-gc approvals` on an embedded server: lines, questions and exit statuses."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, Limits, read
from lakefs_gc_assets_tests.defs.automated import Automated, automated, server

__all__ = ["automated", "server"]

DAY = f"{datetime.now(UTC) + timedelta(days=30):%F}"
GRANT = ("grant", "collection", "--objects", "500", "--until", DAY, "--by", "Ada")
Call = Callable[..., Result]


@pytest.fixture
def file(automated: Automated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_APPROVALS_SECRET", automated.server.secret_access_key)
    return automated.write_configuration(tmp_path, "TEST_APPROVALS_SECRET")


@pytest.fixture
def call(file: Path) -> Call:
    return lambda *words, command="approvals", **more: CliRunner().invoke(
        main, [command, "--config", str(file), *words], **more
    )


def test_an_approval_is_granted_listed_and_withdrawn(automated: Automated, call: Call) -> None:
    assert call().stdout == "there are no standing approvals\n"
    result = call(*GRANT, "--bytes", "1.5TB", "--share", "0.05", "--yes")
    assert result.exit_code == Status.WELL, result.stderr
    approval = read(automated.repository, ApprovedWork.COLLECTION)
    assert approval is not None
    assert approval.limits == Limits(objects=500, bytes=1_500_000_000_000, share=0.05)
    assert f"{approval.until:%F %T}" == f"{DAY} 00:00:00"
    limits = f"{approval}: at most 500 objects, 1.4 TiB, 5.00%"
    assert result.stdout == f"collection: {limits}, until {DAY} 00:00:00Z\n"
    assert call("list").stdout == result.stdout
    assert json.loads(call("list", "--json").stdout) == {"collection": f"{limits}, until {DAY} 00:00:00Z"}
    assert f"standing approval for collection: {limits}" in call(command="status").stdout
    again = call(*GRANT, "--yes")
    assert again.stderr == f"replaces: {limits}, until {DAY} 00:00:00Z\n"

    assert call("withdraw", "collection").stdout.startswith("collection: withdrawn: standing approval")
    assert "approves nothing: it was withdrawn at" in call().stdout
    assert call("withdraw", "branches").stdout == "branches: there was no standing approval\n"
    assert json.loads(call("withdraw", "lifecycle", "--json").stdout) == {"lifecycle": "there was no standing approval"}


def test_nothing_is_granted_without_consent(automated: Automated, call: Call) -> None:
    asked = call(*GRANT, input="n\n")
    assert asked.exit_code == Status.FAILED
    question = f"Allow deletions for collection without asking: at most 500 objects, until {DAY} 00:00:00Z?"
    assert question in asked.stderr and "not confirmed: nothing was granted" in asked.stderr
    assert read(automated.repository, ApprovedWork.COLLECTION) is None
    refused = call("grant", "collection", "--bytes", "1GiB", "--until", DAY, "--by", "Ada", "--yes")
    assert refused.exit_code == Status.CONFIGURATION and "give --objects" in refused.stderr
    assert call(*GRANT, "--bytes", "many").exit_code == Status.USAGE
    assert call("grant", "collection", "--objects", "5", "--by", "Ada").exit_code == Status.USAGE


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("7B", 7), ("2 KiB", 2048), ("0.5mb", 500_000), ("1PiB", 2**50)])
def test_sizes(automated: Automated, call: Call, text: str, size: int) -> None:
    assert call(*GRANT, "--bytes", text, "--yes").exit_code == Status.WELL
    approval = read(automated.repository, ApprovedWork.COLLECTION)
    assert approval is not None and approval.limits.bytes == size


def test_two_people_have_to_grant_it_if_two_must_approve(call: Call, file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(content | {"launch": {"approvers": 2}}))
    assert "a second person has to grant the same limits (launch.approvers)" in call(*GRANT, "--yes").stdout
    assert "approves nothing: a second person" in call(command="status").stdout
    assert "by Ada, as the command line says; Bob, as" in call(*GRANT[:-1], "Bob", "--yes").stdout
    assert "approves nothing" not in call().stdout
