"""Rules of lifecycle in policy files, their path patterns, and values of partitions."""

import json
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.retention import rules as retention_rules
from lakefs_gc_assets.collector.retention.rules import edit_policy
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.extensions.lifecycle import rules
from lakefs_gc_assets.extensions.lifecycle.entries import PartitionValue
from lakefs_gc_assets.extensions.lifecycle.rules import LifecycleRule, PathPattern, Unit, read_rules
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.extensions.lifecycle.plain_branches import fits

FIT = "name: a, branches: main, paths: x/"


def read(folder: Path, text: str) -> tuple[LifecycleRule, ...]:
    file = folder / "policy.yaml"
    file.write_text(text)
    return read_rules(CollectionSettings(retention_policy=str(file)))


def test_the_example_in_its_own_words(tmp_path: Path) -> None:
    example = (rules.__doc__ or "").partition("\n\n")[2].partition("\nThe first rule")[0]
    raw, staging, daily = read(tmp_path, example)
    assert (raw.older_than, raw.exceptions) == (timedelta(90), (PathPattern(b"raw/reference/", is_folder=True),))
    assert (staging.branches, staging.unchanged_for) == (("main", "dev-*"), timedelta(30))
    assert (daily.keep_newest, daily.of, daily.partition) == (30, Unit.PARTITIONS, "dt")
    assert [*map(str, (raw, staging, daily))] == [
        "raw: older than 90d",
        "staging: unchanged for 30d",
        "daily: all but the newest 30 partitions by dt",
    ]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (f"{{{FIT}}}", "needs one of older_than, unchanged_for, keep_newest, and has 0"),
        (f"{{{FIT}, older_than: 3d, unchanged_for: 3d}}", "and has 2"),
        (f"{{{FIT}, older_than: }}", "older_than has no value"),
        (f"{{{FIT}, older_than: 3d, except: }}", "except has no value"),
        (f"{{{FIT}, older_than: 3d, except: []}}", "except must have 1 to 100 paths"),
        (f"{{{FIT}, older_than: 3d, except: ['']}}", "'' is no path"),
        (f"{{{FIT}, older_than: 3}}", "3 has no unit"),
        (f"{{{FIT}, older_than: 0d}}", "0d lets everything expire at once"),
        (f"{{{FIT}, older_then: 3d}}", "'older_then' is not one of"),
        (f"{{{FIT}, keep_newest: 3}}", "`keep_newest` needs `of`"),
        (f"{{{FIT}, keep_newest: 0, of: objects}}", "'0' is not a whole number"),
        (f"{{{FIT}, keep_newest: 3, of: rows}}", "'rows' is neither partitions nor objects"),
        (f"{{{FIT}, keep_newest: 3, of: partitions}}", "needs `partition`"),
        (f"{{{FIT}, keep_newest: 3, of: objects, partition: dt}}", "needs `partition`, such as dt; other rules"),
        (f"{{{FIT}, keep_newest: 3, of: partitions, partition: a/b}}", "'a/b' is no key of partitions"),
        (f"{{{FIT}, older_than: 3d, of: objects}}", "other rules have none"),
        ("{branches: main, paths: x/, older_than: 3d}", "needs `name`"),
        ("{name: A, branches: main, paths: x/, older_than: 3d}", "'A' is no name of a rule"),
        ("{name: a, branches: [], paths: x/, older_than: 3d}", "needs `branches`"),
        ("{name: a, branches: 'x y', paths: x/, older_than: 3d}", "is not a name or pattern of branches"),
        ("{name: a, branches: main, paths: [], older_than: 3d}", "paths must have 1 to 100 paths"),
        ("{name: a, branches: main, paths: [[x]], older_than: 3d}", "expected a name or pattern of paths"),
        (f"{{name: a, branches: main, paths: {'x' * 1001}, older_than: 3d}}", "at most 1,000 characters"),
        (f"{{{FIT}, older_than: 3d}}\n- {{{FIT}, older_than: 3d}}", "the name a appears twice"),
        ("x", "must be written as `key: value`"),
    ],
)
def test_a_rule_that_is_wrong_or_blank_is_refused_with_its_line(tmp_path: Path, rule: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, f"default: 3d\nlifecycle:\n- {rule}")
    line = 4 if "twice" in words else 3
    assert words in str(refused.value) and f"policy.yaml, line {line}: " in str(refused.value)


@pytest.mark.parametrize("text", ["", "lifecycle: []", "default: 3d"])
def test_a_policy_without_rules_lets_nothing_expire(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="no rule lets objects expire"):
        read(tmp_path, text)


def test_the_number_of_rules_and_patterns_is_bounded(tmp_path: Path) -> None:
    many = "\n".join(f"- {{name: a{number}, branches: main, paths: x, older_than: 1d}}" for number in range(101))
    with pytest.raises(ConfigurationError, match="at most 100 rules"):
        read(tmp_path, f"lifecycle:\n{many}")
    paths = ", ".join(["y" * 990] * 60)
    many = "\n".join(f"- {{name: a{number}, branches: main, paths: [{paths}], older_than: 1d}}" for number in range(9))
    with pytest.raises(ConfigurationError, match="500,000 characters"):
        read(tmp_path, f"lifecycle:\n{many}")


def test_editing_a_rule_of_retention_leaves_lifecycle_alone() -> None:
    text = f"branches:\n  main: 3d\nlifecycle:\n- {{{FIT}, older_than: 3d}}\n"
    assert edit_policy(text, "policy.yaml", "dev", "4d") == text.replace("3d\nli", "3d\n  dev: 4d\nli")
    edited = text.replace("older_than: 3d", "older_than: 1d").replace("main: 3d", "main: 4d")
    with (
        mock.patch.object(retention_rules, "_edited", lambda *arguments: edited),
        pytest.raises(ConfigurationError, match="cannot be changed in this file's layout"),
    ):
        edit_policy(text, "policy.yaml", "main", "4d")


PARTS = st.sampled_from(["a", "é", "/", "*", "**", "b=", "\\*", "\\\\", "[", ".", "\n"])


@given(st.lists(PARTS, min_size=1, max_size=7).map("".join), st.text("aé/b=*\\[.\n", max_size=8))
def test_a_pattern_matches_as_a_plain_implementation_does(pattern: str, path: str) -> None:
    marked = pattern.replace("\\\\", "\ue000").replace("\\*", "\ue001")
    plain = path.replace("\\", "\ue000")
    expected = fits(marked, plain.replace("*", "\ue001"))
    parsed = PathPattern.parse(pattern)
    assert parsed.matches(pa.array([path.encode()], pa.binary())).tolist() == [expected]
    assert not expected or parsed.may_match(path.encode(), path.encode())


def test_a_path_that_is_no_text_matches_by_its_bytes() -> None:
    assert PathPattern.parse("a/*.b").matches(pa.array([b"a/\xff\x00.b", b"a/\xff/.b"], pa.binary())).tolist() == [
        True,
        False,
    ]


def test_a_hostile_pattern_takes_linear_time() -> None:
    paths = pa.array([b"a" * 900 + b"/"] * 200, pa.binary())
    assert not PathPattern.parse("*a" * 450 + "b").matches(paths).any()


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("7", 0),
        ("20261129", 0),
        ("2026-11", 1),
        ("2026-11-29", 2),
        ("2026-11-29T10", 2),
        ("2026-11-29%2010%3A30%3A00", 2),
        ("2026-11-29-10", 2),
    ],
)
def test_values_of_partitions_have_an_order(text: str, form: int) -> None:
    value = PartitionValue.parse(text.encode())
    assert value is not None and value.form == form


@pytest.mark.parametrize(
    "text", ["", "x", "2026-02-30", "2026-13", "-7", "7.5", "__HIVE_DEFAULT_PARTITION__", "%ff", "٣"]
)
def test_other_values_have_none(text: str) -> None:
    assert PartitionValue.parse(text.encode()) is None


def test_a_check_of_the_policy_reads_the_rules_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAKEFS_GC_CONFIG", raising=False)
    file = tmp_path / "new.yaml"
    rule = "name: raw, branches: main, paths: raw/"
    file.write_text(f"default: 2w\nlifecycle: [{{{rule}, older_than: 90d}}]\n")
    result = CliRunner().invoke(main, ["policy", "check", "new.yaml"])
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (Status.WELL, "lifecycle: raw: older than 90d")
    answer = json.loads(CliRunner().invoke(main, ["policy", "check", "--json", "new.yaml"]).stdout)
    assert answer["lifecycle"] == ["raw: older than 90d"]
    file.write_text(f"default: 2w\nlifecycle: [{{{rule}}}]\n")
    result = CliRunner().invoke(main, ["policy", "check", "new.yaml"])
    assert result.exit_code == Status.CONFIGURATION and "new.yaml, line 2: a rule of lifecycle needs" in result.stderr
