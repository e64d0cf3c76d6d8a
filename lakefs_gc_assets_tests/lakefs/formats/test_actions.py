"""Limits of hooks in action files, as lakeFS 1.86 reads them."""

import pytest

from lakefs_gc_assets.lakefs.formats.actions import HookLimit, read_hook_limit

HEAD = "name: check\non:\n  pre-commit:\n    branches: [main]\n"


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
    assert limit_of(webhook(timeout)).why_unknown == "the timeout of hook one is no duration such as 90s"


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
