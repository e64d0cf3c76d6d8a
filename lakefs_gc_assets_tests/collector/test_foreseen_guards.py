"""A dry run warns of each guard that its sweep would trip, wherever the guard is raised."""

import ast
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import lakefs_gc_assets
from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.live import other_repositories
from lakefs_gc_assets.errors import AccessDenied
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import RepositoryFacts
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.collector.test_run_guards import (
    STRICT,
    UNIFIED,
    UNKNOWN,
    allowing,
    approved,
    dry,
    foreign_addresses,
    lose_branch,
    refused,
    world_of,
)
from lakefs_gc_assets_tests.simulation.failing_calls import Faults
from lakefs_gc_assets_tests.simulation.fault_kinds import DRY
from lakefs_gc_assets_tests.simulation.run_requests import ASKED, Asked
from lakefs_gc_assets_tests.simulation.scenes import Scene
from lakefs_gc_assets_tests.simulation.servers import ACTION_KEY, CollectorsApi

WARNED, ENDS_IT, TIME_ALONE, NO_RUN = (
    "a dry run warns",
    "it ends a dry run as well",
    "only what happens after the mark trips it",
    "it guards no run",
)
GUARDS = {
    ("too_many_candidates", "share of candidates"): WARNED,
    ("_too_many", "number of candidates"): WARNED,
    ("_tripped", "gap in the listing"): WARNED,
    ("_shared_namespace", "namespaces"): WARNED,
    ("_shared_namespace", "other repositories"): WARNED,
    ("_lost_branches", "number of branches"): WARNED,
    ("require_limited_commits", "commits under way"): WARNED,
    ("require_fresh_mark", "age of the mark"): WARNED,
    ("require_committed", "empty live set"): ENDS_IT,
    ("require_uncommitted_kept", "loss of uncommitted data"): TIME_ALONE,
    ("refuse_escaped_namespace", "address form"): WARNED,
    ("refuse_foreign_address", "address form"): WARNED,
    ("refuse_unseen_spelling", "address form"): WARNED,
    # Staged objects are sampled when uncommitted data is read, by both mark and recheck.
    ("refuse_staged_spelling", "address form"): ENDS_IT,
    ("refuse_access_point", "address form"): ENDS_IT,
    ("list_rule_guards", "rules of unknown branches"): WARNED,
    ("list_rule_guards", "pinned commits"): WARNED,
    ("require_clocks_agree", "clocks"): ENDS_IT,
    # The list of stale branches reports it before any approval.
    ("require_few_stale", "stale branches"): NO_RUN,
    # An approval is refused before anything is deleted.
    ("require_few_expired", "expired entries"): NO_RUN,
    # Objects to be moved are listed before a user confirms, and this is checked before that list.
    ("require_sole_writer", "other servers"): NO_RUN,
    # The report of a dry run names the limit that it exceeds.
    ("refuse_standing", "standing approval"): NO_RUN,
    # The look at a place reports it before any approval.
    ("refuse_orphan", "deleted repository"): NO_RUN,
}
"""Every guard by the function that makes it."""


def raised() -> Iterator[tuple[str, str]]:
    """Function and name of every guard in the package: only `guards` makes any."""
    root = Path(lakefs_gc_assets.__file__).parent
    for file in sorted(root.rglob("*.py")):
        functions = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))
        for outer in functions:
            for node in ast.walk(outer):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "GuardTripped":
                    assert file == Path(guards.__file__), f"{file}:{node.lineno}: guards are made in guards.py"
                    (name, *_) = node.args
                    if isinstance(name, ast.Name):
                        yield outer.name, str(getattr(guards, name.id))
                    elif outer.name != "from_stored":
                        yield outer.name, str(ast.literal_eval(name))


def test_every_guard_is_known() -> None:
    assert {*raised()} == GUARDS.keys()


@dataclass(frozen=True)
class Situation:
    """Circumstances in which a sweep trips a guard.

    Attributes:
        before: changes the world before the dry run.
        around: applies at the dry run and at the sweep.
        options: settings of both.
    """

    guard: str
    options: CollectionSettings = DRY
    before: Callable[[Scene], object] = lambda scene: None
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    asked: Asked = ASKED
    kind: str = "clean"


def listing(*repositories: RepositoryFacts) -> AbstractContextManager[object]:
    return mock.patch.object(CollectorsApi, "repositories", lambda api: repositories)


def lose_object(scene: Scene) -> None:
    repository, bucket = scene.world.repository, scene.world.bucket
    held = {entry.address for entry in repository.head(repository.branches["main"]).values()}
    bucket.remove(min(key for key in held & bucket.objects.keys() if layout.is_xid(key[5:25])))


def misspell_rule(scene: Scene) -> None:
    scene.world.repository.rules = UNKNOWN


@contextmanager
def foreign_addresses_of_commits() -> Iterator[None]:
    """The server spells addresses in another way, except in answers about possibly staged objects."""
    ask = other_repositories.require_own_addresses

    def asked(*arguments: Any) -> None:
        with foreign_addresses():
            ask(*arguments)

    with mock.patch.object(other_repositories, "require_own_addresses", asked):
        yield


@contextmanager
def no_list() -> Iterator[None]:
    refusal = mock.Mock(side_effect=AccessDenied("GET /repositories: 403"))
    with mock.patch.object(CollectorsApi, "repositories", refusal):
        yield


def hold_commits_for_ever(scene: Scene) -> None:
    """Gives every branch a Lua hook, which has no time limit."""
    scene.world.servers.hook_minutes = 1
    scene.world.bucket.put(ACTION_KEY, b"on: {pre-commit: }\nhooks: [{id: check, type: lua}]\n")


SITUATIONS = (
    Situation("share of candidates", allowing(DRY, max_candidate_share=0)),
    Situation("number of candidates", allowing(DRY, max_candidates=0)),
    Situation("gap in the listing", allowing(DRY, max_missing_share=0, max_missing=0), lose_object),
    Situation("namespaces", around=lambda: listing(RepositoryFacts("inner", "s3://bucket/repo/inner/", "main", False))),
    Situation("other repositories", allowing(DRY, allow_unknown_repositories=False), around=no_list),
    Situation("number of branches", allowing(DRY, max_branch_loss_share=0), lose_branch),
    Situation("commits under way", before=hold_commits_for_ever),
    Situation("age of the mark", allowing(DRY, max_mark_age_hours=1e-6)),
    Situation("address form", around=foreign_addresses_of_commits),
    Situation("rules of unknown branches", STRICT, misspell_rule, asked=UNIFIED, kind="unified"),
    Situation("pinned commits", before=lambda scene: None, asked=UNIFIED, kind="unified"),
)


def test_every_guard_that_is_warned_of_has_a_situation() -> None:
    assert {each.guard for each in SITUATIONS} == {name for (_, name), how in GUARDS.items() if how is WARNED}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.guard)
def test_a_dry_run_warns_of_what_refuses_its_sweep(situation: Situation, tmp_path: Path) -> None:
    options = situation.options
    if situation.guard == "pinned commits":
        policy = tmp_path / "policy.yaml"
        policy.write_text(f"pinned: [{'0' * 64}]\n")
        options = options.model_copy(update={"retention_policy": str(policy)})
    with world_of(situation.kind) as scene:
        situation.before(scene)
        with situation.around():
            dry(scene, options, situation.asked)
            warnings = scene.reported.warnings
            said = f"a sweep would be refused: guard {situation.guard}: "
            assert [line for line in warnings if line.startswith(said)], warnings
            reported = Faults()
            refused(scene, approved(scene, options, reported, situation.asked), f"guard {situation.guard}: ", reported)


def test_a_dry_run_that_nothing_would_refuse_warns_of_nothing() -> None:
    with world_of("clean") as scene:
        dry(scene)
        assert not [line for line in scene.reported.warnings if "refused" in line]


def test_where_the_spelling_of_addresses_cannot_be_seen_a_dry_run_says_so() -> None:
    refusal = mock.Mock(side_effect=AccessDenied("GET /objects/stat: 403"))
    with (
        world_of("clean") as scene,
        mock.patch("lakefs_gc_assets.collector.live.other_repositories._own_entries", refusal),
    ):
        dry(scene)
        (line,) = [line for line in scene.reported.warnings if "address form" in line]
        assert "is unknown: GET /objects/stat: 403" in line
