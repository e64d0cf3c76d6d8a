"""Maximum duration of commits, from the `_lakefs_actions/` of branches here and in repositories of `also_live`.

Hooks have the limits of lakeFS 1.86.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.live.commits_under_way import (
    HookLimit,
    SlowestHooks,
    find_slowest_hooks,
    longest_commit,
    read_hook_limit,
)
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import AccessDenied
from lakefs_gc_assets.lakefs.api.models import Branch, ObjectStats
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.scripted import NAMESPACE, Script, ScriptedApi, opened

WEBHOOK = "name: a\non: {{pre-commit: }}\nhooks: [{{id: h, type: webhook, properties: {{url: x, timeout: {}}}}}]\n"
HEAD = "name: check\non:\n  pre-commit:\n    branches: [main]\n"
LUA = "name: b\non: {pre-merge: }\nhooks: [{id: script, type: lua}]\n"


class Actions:
    """A repository whose branches have action files."""

    def __init__(self, folder: Path, **branches: dict[str, str]) -> None:
        folder.mkdir()
        self.store = LocalStore(folder)
        self.api = ScriptedApi(branch_lists=Script(tuple(Branch(name, "c" * 64) for name in branches)))
        self.api.objects = {name: [self.put(*file) for file in files.items()] for name, files in branches.items()}
        self.repository = opened(self.api, self.store)

    def put(self, path: str, content: str) -> ObjectStats:
        """Puts a file; files of the same content are one object, as on branches at the same commit."""
        key = f"data/{abs(hash(content))}"
        self.store.put(key, content.encode())
        return ObjectStats(path, NAMESPACE.uri + key, len(content))


def found(folder: Path, **branches: dict[str, str]) -> SlowestHooks:
    return find_slowest_hooks(Actions(folder / "repo", **branches).repository)


def test_without_action_files_no_hook_holds_a_commit(tmp_path: Path) -> None:
    assert found(tmp_path, main={"other/a.yaml": LUA}, x={}) == SlowestHooks()


def test_the_slowest_action_of_any_branch_counts_for_all_tries(tmp_path: Path) -> None:
    slow = found(
        tmp_path,
        main={"_lakefs_actions/a.yaml": WEBHOOK.format("1m"), "_lakefs_actions/b.yaml": WEBHOOK.format("3m")},
        x={"_lakefs_actions/c.yaml": WEBHOOK.format("2m")},
    )
    assert slow == SlowestHooks(10 * 180, "_lakefs_actions/b.yaml on branch main")


def test_a_hook_without_a_limit_is_named_beside_the_slowest(tmp_path: Path) -> None:
    slow = found(tmp_path, main={"_lakefs_actions/a.yaml": WEBHOOK.format("1m"), "_lakefs_actions/b": LUA})
    assert (slow.seconds, slow.where) == (600, "_lakefs_actions/a.yaml on branch main")
    assert slow.without_limit == (
        "_lakefs_actions/b on branch main: hook script is of type lua, which has no time limit"
    )


def test_a_file_outside_of_the_namespace_and_a_missing_one_have_no_limit(tmp_path: Path) -> None:
    actions = Actions(tmp_path / "repo", main={"_lakefs_actions/a.yaml": WEBHOOK.format("1m")})
    (file,) = actions.api.objects["main"]
    for address, why in (
        ("s3://elsewhere/a", "outside of the storage namespace"),
        (NAMESPACE.uri + "data/no", "cannot"),
    ):
        actions.api.objects = {"main": [replace(file, physical_address=address)]}
        assert why in find_slowest_hooks(actions.repository).without_limit


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    actions = Actions(tmp_path / "repo", main={"_lakefs_actions/a.yaml": WEBHOOK.format("1m")})
    (file,) = actions.api.objects["main"]
    for size in (None, 10_000_000):
        actions.api.objects = {"main": [replace(file, size=size)]}
        assert "larger than 1,000,000 bytes" in find_slowest_hooks(actions.repository).without_limit


def test_many_files_are_listed_page_by_page_and_equal_ones_are_read_once(tmp_path: Path) -> None:
    files = {f"_lakefs_actions/{number}": WEBHOOK.format("1m") for number in range(7)}
    actions = Actions(tmp_path / "repo", main=files, x=files)
    actions.api.objects_on_page = 3
    reads = list[str]()

    class Counting(LocalStore):
        def get(self, key: str) -> bytes:
            reads.append(key)
            return super().get(key)

    assert find_slowest_hooks(replace(actions.repository, store=Counting(tmp_path / "repo"))).seconds == 600
    assert len(reads) == 1
    assert len(actions.api.listed) == 6


def test_repositories_of_also_live_count(tmp_path: Path) -> None:
    own = Actions(tmp_path / "own", main={})
    other = Actions(tmp_path / "other", main={"_lakefs_actions/a.yaml": WEBHOOK.format("4m")})
    facts = replace(other.repository.facts, id="importer")
    both: OpenRepository = replace(own.repository, others=(replace(other.repository, facts=facts),))
    assert find_slowest_hooks(both) == SlowestHooks(
        2400, "_lakefs_actions/a.yaml on branch main of repository importer"
    )


def test_branches_that_cannot_be_listed_end_the_run(tmp_path: Path) -> None:
    actions = Actions(tmp_path / "repo", main={})
    actions.api.branch_lists = Script(AccessDenied("GET /branches: 403"))
    with pytest.raises(AccessDenied):
        find_slowest_hooks(actions.repository)


@pytest.mark.parametrize(
    ("settings", "hooks_seconds", "minutes"),
    [
        ({}, 0, 10),
        ({}, 600, 20),
        ({"longest_commit_minutes": 15}, 0, 15),
        ({"longest_commit_minutes": 15}, 600, 20),
        ({"wait_before_recheck_seconds": 0}, 600, 10),
    ],
)
def test_the_longest_commit_by_settings_and_hooks(
    settings: dict[str, float], hooks_seconds: float, minutes: float
) -> None:
    found = longest_commit(hooks_seconds, CollectionSettings.model_validate(settings))
    assert found.total_seconds() == 60 * minutes


def limit_of(hooks: str, head: str = HEAD) -> HookLimit:
    return read_hook_limit(f"{head}hooks:\n{hooks}".encode())


def webhook(timeout: str = "") -> str:
    stated = f", timeout: {timeout}" if timeout else ""
    return f"  - {{id: one, type: webhook, properties: {{url: 'http://127.0.0.1'{stated}}}}}\n"


def airflow(properties: str) -> str:
    return f"  - {{id: dag, type: airflow, properties: {{url: x, dag_id: y{properties}}}}}\n"


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        ("", 60),
        ("90s", 90),
        ("'1h2m3.5s'", 3723.5),
        (".5m", 30),
        ("1500ms", 1.5),
        ("+2h", 7200),
        ("1µs", 1e-6),
        # For a value that is not text, the server uses the default.
        ("90", 60),
        ("''", 60),
        ("null", 60),
    ],
)
def test_a_webhook_lasts_until_its_timeout(timeout: str, seconds: float) -> None:
    found = limit_of(webhook(timeout))
    assert found.seconds == pytest.approx(seconds) and not found.why_unknown


@pytest.mark.parametrize("timeout", ["'90'", "soon", "-5s", "'1 m'", "1d"])
def test_a_timeout_that_is_no_duration_is_no_limit(timeout: str) -> None:
    assert limit_of(webhook(timeout)).why_unknown == "the timeout of hook one is no duration above 0, such as 90s"


@pytest.mark.parametrize("timeout", ["0s", "+0h0m", "'0'", ".4ns"])
def test_a_webhook_with_a_timeout_of_0_has_no_limit(timeout: str) -> None:
    """Go's HTTP client takes 0 for no timeout, and durations are whole nanoseconds."""
    assert limit_of(webhook(timeout)).why_unknown == "the timeout of hook one is no duration above 0, such as 90s"


def test_airflow_with_a_timeout_of_0_does_not_wait() -> None:
    assert limit_of(airflow(", wait_for_dag: true, timeout: 0s")) == HookLimit(10)


@pytest.mark.parametrize(
    ("properties", "seconds"),
    [("", 5), (", wait_for_dag: true", 70), (", wait_for_dag: true, timeout: 10m", 610), (", timeout: 10m", 5)],
)
def test_airflow_waits_for_a_dag_only_if_it_is_told_to(properties: str, seconds: float) -> None:
    assert limit_of(airflow(properties)) == HookLimit(seconds)


def test_hooks_of_an_action_run_one_after_the_other() -> None:
    assert limit_of(webhook("5m") + webhook() + airflow("")) == HookLimit(365)


@pytest.mark.parametrize("event", ["pre-commit", "pre-merge", "pre-revert", "pre-cherry-pick"])
@pytest.mark.parametrize("form", ["on: {{{}: }}\n", '"on":\n  {}:\n', "on:\n  post-commit:\n  {}: {{branches: [x]}}\n"])
def test_events_between_the_seal_and_the_new_head_hold_a_commit(event: str, form: str) -> None:
    assert limit_of(webhook(), form.format(event)) == HookLimit(60)


@pytest.mark.parametrize("event", ["prepare-commit", "post-commit", "pre-create-tag", "post-merge"])
def test_other_events_hold_none(event: str) -> None:
    assert limit_of("  - {id: a, type: lua}\n", f"on: {{{event}: }}\n") == HookLimit()


@pytest.mark.parametrize("kind", ["lua", "exec", "", "[]"])
def test_hooks_of_other_types_have_no_limit(kind: str) -> None:
    found = limit_of(webhook() + f"  - {{id: script, type: {kind or 'null'}}}\n")
    assert found.why_unknown.startswith("hook script is of type ") and found.seconds == 60


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"on: [pre-commit]",
        b"- a list",
        b"\xff\xfe",
        b"on: {pre-commit: }\nhooks: 7",
        b"on: {pre-commit: }\nhooks: [7]",
        b"on: {pre-commit: }\nhooks: [{id: a, type: webhook, properties: 7}]",
        b"a: {",
        b"[" * 5000,
        b"date: 2001-99-99\non: {pre-commit: }",
    ],
)
def test_a_file_that_cannot_be_read_has_no_limit(data: bytes) -> None:
    assert read_hook_limit(data).why_unknown


def test_an_action_without_hooks_holds_nothing() -> None:
    assert read_hook_limit(HEAD.encode()) == HookLimit()
