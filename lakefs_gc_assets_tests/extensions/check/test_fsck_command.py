"""`lakefs-gc fsck`: lines, JSON and exit statuses; its findings are tested with the check."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.common import Target
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.survey import Finding, FindingKind, Place
from lakefs_gc_assets.errors import LakeFSError
from lakefs_gc_assets.extensions.check import fsck_command as command
from lakefs_gc_assets.extensions.check.fsck import EVERYTHING, Checkup

NOW = datetime(2026, 11, 26, tzinfo=UTC)
WHOLE = Checkup("repo", "local://repo/", NOW, NOW, 3, 4, 5, 0, (), ())
MISSING = Finding(
    FindingKind.MISSING,
    "data/a",
    "it is not in the object store",
    "Put it back",
    (Place("repo", "branch main", "c0ffee", "some/path"), Place("repo", "staged on branch dev", path="other")),
)
Fsck = Callable[..., Result]


@pytest.fixture
def fsck() -> Fsck:
    """Calls the command with a scripted answer of the check; the answer's `asked` has its arguments."""

    def call(checkup: Checkup | Exception, *arguments: str) -> Result:
        with (
            mock.patch.object(Target, "collector"),
            mock.patch("lakefs_gc_assets.cli.common.start_as_configured"),
            mock.patch.object(command, "check_now", side_effect=[checkup]) as check_now,
        ):
            result = CliRunner().invoke(main, ["fsck", *arguments])
        result.asked = check_now.call_args and check_now.call_args.args[2:]  # type: ignore[attr-defined]
        return result

    return call


def test_a_whole_repository(fsck: Fsck) -> None:
    answer = fsck(WHOLE)
    assert answer.stdout.splitlines() == ["checked 3 commits, 4 ranges with 5 entries", "repo: whole"]
    assert answer.exit_code == Status.WELL and answer.asked == (False, 0)  # type: ignore[attr-defined]


def test_damage(fsck: Fsck) -> None:
    answer = fsck(replace(WHOLE, findings=(MISSING,), contents_read=2), "--deep", "2")
    assert answer.stdout.splitlines() == [
        "missing           data/a: it is not in the object store",
        "    needed by repo, branch main, commit c0ffee, path some/path",
        "    needed by repo, staged on branch dev, path other",
        "    Put it back",
        "checked 3 commits, 4 ranges with 5 entries, the content of 2 objects",
        "repo: damaged: 1 missing",
    ]
    assert answer.exit_code == Status.DAMAGED and answer.asked == (False, 2)  # type: ignore[attr-defined]


def test_much_damage_is_cut(fsck: Fsck) -> None:
    findings = tuple(replace(MISSING, address=f"data/{number}") for number in range(60))
    assert "10 more are shown with --json" in fsck(replace(WHOLE, findings=findings)).stdout


def test_what_expired_before_is_no_damage(fsck: Fsck) -> None:
    answer = fsck(
        replace(WHOLE, findings=(replace(MISSING, kind=FindingKind.EXPIRED),)), "--every-commit", "--deep", "all"
    )
    assert answer.stdout.splitlines()[-1] == "repo: whole; 1 expired before"
    assert answer.exit_code == Status.WELL and answer.asked == (True, EVERYTHING)  # type: ignore[attr-defined]


def test_what_could_not_be_checked(fsck: Fsck) -> None:
    answer = fsck(replace(WHOLE, unchecked=("refs",)))
    assert answer.stdout.splitlines()[0] == "not checked: refs"
    assert answer.stdout.splitlines()[-1] == "repo: whole, but not everything could be checked"
    assert answer.exit_code == Status.INCOMPLETE
    assert fsck(LakeFSError("down")).exit_code == Status.FAILED


def test_in_json(fsck: Fsck) -> None:
    answer = json.loads(fsck(replace(WHOLE, findings=(MISSING,)), "--json").stdout)
    assert answer["is_damaged"] and answer["verdict"] == "damaged: 1 missing"
    assert answer["findings"][0]["kind"] == "missing"
    assert answer["findings"][0]["places"][0]["path"] == "some/path"


def test_as_a_page(fsck: Fsck) -> None:
    place = Place("repo", "branch main", "c0ffee", "<b>\n")
    checkup = replace(WHOLE, findings=(replace(MISSING, places=(place,)),), unchecked=("refs",))
    page = fsck(checkup, "--html", "-")
    assert page.exit_code == Status.DAMAGED
    assert "repo: damaged: 1 missing" in page.stdout and "not checked: refs" in page.stdout
    assert "path &lt;b&gt;\\n" in page.stdout
    assert "path <b>\\n" in fsck(checkup).stdout, "no path of somebody else breaks a line"
    assert "<table" not in fsck(WHOLE, "--html", "-").stdout
    assert fsck(WHOLE, "--html", "-", "--json").exit_code == Status.USAGE


@pytest.mark.parametrize("value", ["0", "-1", "some", "99999999999999999999"])
def test_numbers_of_objects_that_cannot_be_meant(fsck: Fsck, value: str) -> None:
    answer = fsck(WHOLE, "--deep", value)
    assert answer.exit_code == Status.USAGE and "neither a number of objects nor `all`" in answer.stderr
