"""How commands find their configuration, and how they report a wrong one."""

import re

import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE
from lakefs_gc_assets_tests.cli.invoked import SECRET, Invoke, assert_one_line, invoke, write

__all__ = ["invoke"]


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> None:
    """The session of the tests: a command that runs in this process would otherwise start its own."""


@pytest.mark.parametrize("command", ["", "run", "status"])
def test_each_command_says_what_it_does(invoke: Invoke, command: str) -> None:
    result = invoke(*command.split(), "--help")

    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    if command:
        assert "--config" in result.stdout
        assert "--repository" in result.stdout
    else:
        assert {"run", "status"} <= set(re.findall(r"^  (\w+) ", result.stdout, re.MULTILINE))


@pytest.mark.parametrize("command", ["run", "status"])
def test_without_a_configuration(invoke: Invoke, command: str) -> None:
    assert_one_line(
        invoke(command),
        "no configuration: give --config, set LAKEFS_GC_CONFIG",
        "`lakefs-gc init` writes one",
        status=Status.CONFIGURATION,
    )


@pytest.mark.parametrize("command", ["run", "status"])
@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("repository: [", ["x.yaml", "not YAML"]),
        ("lakefs: {}", ["no repository is configured", "x.yaml"]),
        ("repositry: a", ["x.yaml", "repositry"]),
        (f"{{repository: a, lakefs: {{secret_access_key: {SECRET}}}}}", ["lakefs.secret_access_key is a secret"]),
        ("{repository: a, lakefs: {secret_access_key: {env: NOT_SET_X}}}", ["lakefs.secret_access_key", "NOT_SET_X"]),
    ],
)
def test_a_configuration_that_is_wrong(invoke: Invoke, command: str, content: str, parts: list[str]) -> None:
    write(content, "x.yaml")

    assert_one_line(invoke(command, "--config", "x.yaml"), *parts, status=Status.CONFIGURATION)


def test_a_configuration_file_that_is_missing(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_one_line(
        invoke("run", "--config", "nowhere.yaml"), "nowhere.yaml", "No such file", status=Status.CONFIGURATION
    )

    monkeypatch.setenv(CONFIGURATION_VARIABLE, "elsewhere.yaml")
    assert_one_line(invoke("status"), "elsewhere.yaml", "No such file", status=Status.CONFIGURATION)


@pytest.mark.parametrize("arguments", [["purge", "--yes", ""], ["purge", "--yes", "--run-id", ""], ["restore", ""]])
def test_a_run_that_a_script_leaves_empty_does_not_stand_for_all(invoke: Invoke, arguments: list[str]) -> None:
    result = invoke(*arguments)

    assert result.exit_code == Status.USAGE
    assert "RUN is empty" in result.stderr
