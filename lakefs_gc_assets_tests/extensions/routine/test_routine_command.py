"""`lakefs-gc routine` on the embedded server: order, proposals, skipped and failed parts, the forecast and the page."""

import json
from collections.abc import Callable, Iterator

import pytest
import yaml
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, Limits
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.running import AskedRun
from lakefs_gc_assets.errors import GuardTripped, ServerUnavailable
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.lifecycle import acting
from lakefs_gc_assets.extensions.lifecycle.acts import LifecycleFate, LifecycleOutcome
from lakefs_gc_assets.extensions.routine import routine_command
from lakefs_gc_assets.extensions.routine.routine import PartOutcome, PartState, forecast
from lakefs_gc_assets_tests.collector.test_standing_approvals import granted
from lakefs_gc_assets_tests.extensions.branches.test_stale_branches import heads, opened, repository_with_branch, stage
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.retained_repository import RetainedRepository

PARTS = ["lifecycle", "stale_branches", "rules", "collection"]
Routine = Callable[..., Result]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RetainedRepository]:
    """A repository with a stale branch `old-1`, an entry `logs/old` on main that expires, and an object of garbage."""
    with repository_with_branch(tmp_path_factory.mktemp("made")) as made:
        stage(made, "main", "logs/old", days=100)
        for content in (b"never committed", b"committed"):
            stage(made, "main", "data", days=100, content=content)
        made.commit("logs", 100)
        made.rules(30)
        rules = [{"name": "logs", "branches": "main", "paths": "logs/", "older_than": "60d"}]
        policy = made.folder / "policy.yaml"
        policy.write_text(policy.read_text() + yaml.safe_dump({"lifecycle": rules}))
        yield made


@pytest.fixture
def routine(made: RetainedRepository, monkeypatch: pytest.MonkeyPatch) -> Routine:
    """Calls the command; its collection is a dry run without Spark."""

    def collect(loaded: Loaded, asked: AskedRun, *others: object) -> Report:
        assert asked.sweep is False
        return ArrowRuns(loaded).collect(asked.flow)

    monkeypatch.setattr(routine_command, "collect", collect)
    return lambda *arguments: CliRunner().invoke(
        main, ["routine", "--config", str(made.folder / "lakefs-gc.yaml"), *arguments]
    )


def test_every_part_proposes_in_order_and_nothing_is_deleted(made: RetainedRepository, routine: Routine) -> None:
    before = heads(made)
    result = routine("--json", "--html", str(made.folder / "page.html"))
    assert result.exit_code == Status.WELL, result.output
    answer = json.loads(result.stdout)
    assert [part["name"] for part in answer["parts"]] == PARTS
    lifecycle, branches, rules, collection = answer["parts"]
    assert (lifecycle["state"], lifecycle["result"]) == (PartState.WAITS, "1 entry of 1 branch, 1 B")
    assert lifecycle["next"].startswith("lakefs-gc lifecycle approve ")
    assert (branches["state"], branches["result"]) == (PartState.WAITS, "1 branch")
    assert branches["next"].startswith("lakefs-gc branches approve ")
    assert rules["state"] == PartState.DONE and any("old-1" in line for line in rules["lines"])
    assert all(part["reason"] for part in answer["parts"])
    assert collection["result"].startswith("dry run ")
    assert answer["forecast"] == [
        "collection frees now, once its candidates are approved: 1 object, 15 B",
        "collection frees later, if the other proposals are approved too: about 1 object, 1 B, and an unknown amount "
        "of 1 branch",
        f"  lifecycle: {lifecycle['freed_note']}",
        "  stale_branches: what stale branches free is unknown: run `lakefs-gc forecast`",
    ]
    assert heads(made) == before
    page = (made.folder / "page.html").read_bytes()
    assert opened(made).store.get(run_folder.ROUTINE_PAGE) == page
    assert b"2. stale_branches" in page and branches["next"].encode() in page


def test_skipped_parts_are_not_played(made: RetainedRepository, routine: Routine) -> None:
    result = routine("--quiet", *(word for part in ("rules", "collection") for word in ("--skip", part)))
    lines = result.stdout.splitlines()
    assert result.exit_code == Status.WELL
    assert [line for line in lines if line[0].isdigit()] == [
        "1. lifecycle: waits for a person: 1 entry of 1 branch, 1 B",
        "2. stale_branches: waits for a person: 1 branch",
        "3. rules: skipped",
        "4. collection: skipped",
    ]
    assert "other: no part of the routine" in routine("--skip", "other").stderr


def test_parts_behind_a_failed_one_go_on(
    made: RetainedRepository, routine: Routine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> object:
        raise ServerUnavailable("gone")

    monkeypatch.setattr(stale_branches, "list_branches", fail)
    result = routine("--json")
    assert result.exit_code == Status.INCOMPLETE
    _, failed, _, last = json.loads(result.stdout)["parts"]
    assert (failed["state"], failed["result"]) == (PartState.FAILED, "gone")
    assert last["result"].startswith("dry run ")


def test_a_part_without_an_approval_that_covers_its_list_waits(made: RetainedRepository, routine: Routine) -> None:
    repository, before = opened(made), heads(made)
    granted(repository, kind=ApprovedWork.BRANCHES, limits=Limits(branches=1, share=0.01))
    result = routine("--json", "--act", "--skip", "rules")
    assert result.exit_code == Status.REFUSED
    lifecycle, branches, _, collection = json.loads(result.stdout)["parts"]
    assert [each["state"] for each in (lifecycle, branches, collection)] == [PartState.WAITS] * 3
    assert "no standing approval for lifecycle covers this deletion: there is none" in lifecycle["result"]
    assert "50.00% would be deleted, more than the limit of 1.00%" in branches["result"]
    assert "no standing approval for collection covers run" in collection["result"]
    assert heads(made) == before


def test_a_part_that_ends_early_shows_what_it_has_deleted(
    made: RetainedRepository, routine: Routine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_early(*arguments: object) -> Iterator[LifecycleOutcome]:
        yield LifecycleOutcome("r", "main", "logs", LifecycleFate.DELETED, "1 entry")
        raise GuardTripped("standing approval", "it was withdrawn", "Approve the list")

    granted(opened(made), kind=ApprovedWork.LIFECYCLE, limits=Limits(objects=1))
    monkeypatch.setattr(acting, "approve", end_early)
    result = routine("--json", "--act", *(word for part in PARTS[1:] for word in ("--skip", part)))
    assert result.exit_code == Status.INCOMPLETE
    lifecycle = json.loads(result.stdout)["parts"][0]
    assert lifecycle["state"] == PartState.FAILED and "ended early: " in lifecycle["result"]
    assert lifecycle["lines"] == ["branch main, rule logs: deleted: 1 entry"]


def test_a_part_acts_within_its_standing_approval(made: RetainedRepository, routine: Routine) -> None:
    """The last test of the repository: it deletes what the others list."""
    repository = opened(made)
    granted(repository, kind=ApprovedWork.BRANCHES, limits=Limits(branches=1))
    granted(repository, kind=ApprovedWork.LIFECYCLE, limits=Limits(objects=1, share=0.5, paths=("logs/",)))
    result = routine("--json", "--act", "--skip", "rules", "--skip", "collection")
    assert result.exit_code == Status.WELL, result.output
    lifecycle, branches, *_ = json.loads(result.stdout)["parts"]
    assert (lifecycle["state"], branches["state"]) == (PartState.DONE, PartState.DONE)
    assert lifecycle["next"] == "" and "; standing approval a1 of " in branches["result"]
    assert {*heads(made)} == {"main"}
    assert "logs/old" not in {each.path for each in repository.api.list_objects("main", "").objects}
    assert json.loads(result.stdout)["forecast"] == []


def test_forecast_adds_no_object_twice_and_states_what_is_unknown() -> None:
    def lines(*freed: dict[str, Amount | None], candidates: Amount | None = None) -> list[str]:
        parts = [
            PartOutcome(f"part {number}", PartState.WAITS, freed=each, freed_note="n")
            for number, each in enumerate(freed)
        ]
        return [*forecast([*parts, PartOutcome("collection", PartState.WAITS, candidates=candidates)])]

    assert lines() == []
    assert lines(
        {"a": Amount(2, 2048), "b": Amount(1, 1024)}, {"a": Amount(3, 1024), "c": None}, candidates=Amount(1, 1)
    ) == [
        "collection frees now, once its candidates are approved: 1 object, 1 B",
        "collection frees later, if the other proposals are approved too: about 3 objects, 3.0 KiB, and an unknown "
        "amount of 1 branch",
        "  part 0: n",
        "  part 1: n",
    ]
    assert lines({"a": None})[0].endswith("too: an unknown amount")
