import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.retention.rules import (
    BranchRule,
    EffectiveRules,
    Policy,
    Rule,
    digest,
    edit_server_rules,
    effective,
    fitting_nothing,
    headless,
    parse_policy,
    require_sane,
    unknown_names,
)
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.api.models import RetentionRules

DAY = timedelta(days=1)
SERVER = RetentionRules(21, {"main": 28, "dev": 7, "gone": 3})
BRANCHES = ("main", "dev", "user-x")


def retentions(rules: EffectiveRules | None) -> dict[str, int]:
    assert rules is not None
    return {branch: rule.retention // DAY for branch, rule in [*rules.branches.items(), ("", rules.default)]}


def test_the_servers_rules_alone() -> None:
    rules = effective(SERVER, Policy(), BRANCHES)
    assert retentions(rules) == {"main": 28, "dev": 7, "user-x": 21, "": 21}
    assert rules is not None
    assert str(rules.branches["main"]) == "28d by the server's rule of main"
    assert str(rules.branches["user-x"]) == str(rules.default) == "21d by the server's default"


def test_a_policy_can_only_keep_more() -> None:
    policy = Policy(default=10 * DAY, rules=(BranchRule("main", 2 * DAY, 3), BranchRule("user-*", 40 * DAY, 4)))
    rules = effective(SERVER, policy, BRANCHES)
    assert retentions(rules) == {"main": 28, "dev": 10, "user-x": 40, "": 21}
    assert rules is not None
    assert rules.branches["user-x"].source == "the policy's rule user-*, line 4"
    assert rules.branches["dev"].source == "the policy's default"
    longer = effective(SERVER, Policy(default=30 * DAY), BRANCHES)
    assert longer is not None
    assert str(longer.default) == "30d by the policy's default"
    equal = effective(SERVER, Policy(default=21 * DAY), BRANCHES)
    assert equal is not None
    assert str(equal.default) == "21d by the server's default"


def test_a_policy_that_replaces() -> None:
    policy = Policy(default=10 * DAY, rules=(BranchRule("main", 2 * DAY, 3),), replace=True)
    for server in (SERVER, None):
        found = effective(server, policy, BRANCHES)
        assert found is not None
        assert found.default.source == found.branches["dev"].source == "the policy's default"
        assert retentions(effective(server, policy, BRANCHES)) == {"main": 2, "dev": 10, "user-x": 10, "": 10}
    with pytest.raises(ConfigurationError, match="needs a default"):
        effective(SERVER, Policy(replace=True), BRANCHES)


def test_without_rules_everything_is_kept_whatever_the_policy() -> None:
    for policy in (Policy(), Policy(default=DAY), Policy(rules=(BranchRule("*", DAY, 1),), keep_tags=False)):
        assert effective(None, policy, BRANCHES) is None


DAYS = st.integers(0, 60)
POLICIES = st.builds(
    Policy,
    default=st.none() | DAYS.map(lambda days: days * DAY),
    rules=st.lists(
        st.builds(
            BranchRule, st.sampled_from(["main", "dev", "*", "user-*", "m*"]), DAYS.map(lambda d: d * DAY), st.just(1)
        ),
        max_size=4,
        unique_by=lambda rule: rule.pattern,
    ).map(tuple),
)


@given(DAYS, st.dictionaries(st.sampled_from([*BRANCHES, "gone"]), DAYS), POLICIES)
def test_no_policy_shortens_a_rule(default: int, branches: dict[str, int], policy: Policy) -> None:
    server = RetentionRules(default, branches)
    alone, together = effective(server, Policy(), BRANCHES), effective(server, policy, BRANCHES)
    assert alone is not None and together is not None
    assert together.default.retention == max(alone.default.retention, policy.default or timedelta())
    for branch in BRANCHES:
        asked = [rule.retention for rule in policy.rules_of(branch)]
        least = max(asked, default=policy.default or timedelta())
        assert together.branches[branch].retention == max(alone.branches[branch].retention, least)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (RetentionRules(-1, {}), "default_retention_days is negative (-1 days)"),
        (RetentionRules(5, {"main": -7}), "the rule of branch main is negative (-7 days)"),
        (RetentionRules(36_501, {}), "default_retention_days is 36501 days, more than the maximum of 36,500"),
        (RetentionRules(5, {"gone": 2**31 - 1}), "the rule of branch gone is 2147483647 days"),
    ],
)
def test_numbers_that_cannot_be_meant(rules: RetentionRules, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        require_sane(rules)
    assert words in str(caught.value)
    assert "lakefs-gc policy set" in str(caught.value)
    with pytest.raises(ConfigurationError):
        effective(rules, Policy(), BRANCHES)
    require_sane(RetentionRules(0, {"main": 36_500}))


def test_names_of_branches_and_tags_that_do_not_exist() -> None:
    rules = (BranchRule("mian", DAY, 7), BranchRule("nobody-*", DAY, 8), BranchRule("dev", DAY, 9))
    policy = Policy(rules=rules, keep_tags=("v1", "v2", "w*"), tag_lines=(11, 12, 12))
    assert unknown_names(SERVER, policy, BRANCHES, ["v1"]) == (
        "the server's rule of gone: there is no such branch",
        "the policy's rule of mian, line 7: there is no such branch",
        "v2 in the policy's keep_tags, line 12: there is no such tag",
    )
    for keep_tags in (True, False):
        assert unknown_names(None, Policy(keep_tags=keep_tags), BRANCHES, []) == ()


def test_patterns_that_fit_nothing() -> None:
    policy = parse_policy(
        """\
branches: {'nobody-*': 1d, 'user-?': 1d, mian: 1d, 'd[a-e]v': 1d}
keep_tags:
- 'v*'
- '{w,x}*'
- v9
stale_branches:
- {branches: ['user-*', importnat], max_age: 3d}
- branches: '{dev,m*,z*}'
""",
        "policy.yaml",
    )
    assert [*fitting_nothing(policy, BRANCHES, ["v1", "x1"])] == [
        "the policy's rule of nobody-*, line 1, matches no branch",
        "w* in the policy's keep_tags, line 4, matches no tag",
        "importnat in the policy's stale_branches, rule of line 7, matches no branch",
        "z* in the policy's stale_branches, rule of line 8, matches no branch",
    ]
    assert [*fitting_nothing(Policy(), (), ())] == []


def test_rules_that_keep_heads_only_are_said_aloud() -> None:
    zero, day = Rule(timedelta(), "the server's default"), Rule(DAY, "x")
    assert list(headless(EffectiveRules(day, {"main": day}))) == []
    some = list(headless(EffectiveRules(zero, {"main": day, "b": zero, "a": zero})))
    assert some == [
        "RETENTION OF ZERO: 2 of 3 branches keep only their head, not the commits before it (a, b)",
        "RETENTION OF ZERO: no dangling commit is kept (the server's default)",
    ]
    many = list(headless(EffectiveRules(day, {f"b{number:02d}": zero for number in range(11)})))
    assert many[0].endswith("b09 …)")
    ten = list(headless(EffectiveRules(day, {f"b{number:02d}": zero for number in range(10)})))
    assert ten[0].endswith("b08, b09)")


def test_what_a_policy_counts_comes_on_top_of_the_longer_rule() -> None:
    keeps = (("keep_last", 5), ("daily", 7))
    policy = Policy(rules=(BranchRule("main", 2 * DAY, 3, keeps, True),))
    found = effective(SERVER, policy, BRANCHES)
    assert found is not None
    server = RetentionRules(21, {"main": 1})
    longer = effective(server, policy, BRANCHES)
    assert longer is not None
    assert longer.branches["main"] == Rule(2 * DAY, "the policy's rule main, line 3", keeps, 2 * DAY)
    assert str(longer.branches["main"]) == (
        "2d by the policy's rule main, line 3, keep_last 5, daily 7, all parents 2d"
    )
    assert found.branches["main"] == Rule(28 * DAY, "the server's rule of main", keeps, 2 * DAY)
    assert found.branches["dev"].more == ""
    zero = BranchRule("main", timedelta(), 1, keeps)
    alone = effective(None, Policy(default=DAY, rules=(zero,), replace=True), ["main"])
    assert alone is not None
    assert list(headless(alone)) == []


@pytest.mark.parametrize("names", [("user-*", "*-prod"), ("*-prod", "user-*")])
def test_equally_long_patterns_keep_what_each_of_them_keeps(names: tuple[str, str]) -> None:
    rules = (
        BranchRule(names[0], 9 * DAY, 3, (("keep_last", 1), ("daily", 9), ("monthly", 1))),
        BranchRule(names[1], 2 * DAY, 4, (("daily", 30), ("weekly", 52)), True),
    )
    found = effective(None, Policy(default=DAY, rules=rules, replace=True), ["user-prod", "user-x"])
    assert found is not None
    assert found.branches["user-prod"] == Rule(
        9 * DAY,
        f"the policy's rules {names[0]}, line 3 and {names[1]}, line 4",
        (("keep_last", 1), ("daily", 30), ("weekly", 52), ("monthly", 1)),
        2 * DAY,
    )
    (own,) = (rule for rule in rules if rule.pattern == "user-*")
    assert found.branches["user-x"].keeps == own.keeps


def test_unknown_count_raises_and_is_not_left_out() -> None:
    policy = Policy(default=DAY, rules=(BranchRule("main", DAY, 1, (("daily", 2), ("hourly", 9))),), replace=True)
    with pytest.raises(ValueError, match="'hourly' is not one of daily, weekly, monthly, yearly"):
        effective(None, policy, ["main"])


def test_a_digest_names_what_is_kept() -> None:
    policy = Policy(default=DAY, rules=(BranchRule("a", DAY, 1), BranchRule("b", DAY, 2)), pinned=("x", "y"))
    same = Policy(default=DAY, rules=(BranchRule("b", DAY, 5), BranchRule("a", DAY, 6)), pinned=("y", "x"))
    assert digest(SERVER, policy, "written") == digest(
        RetentionRules(21, dict(sorted(SERVER.branches.items()))), same, "written"
    )
    others = [
        (None, policy),
        (RetentionRules(22, SERVER.branches), policy),
        (RetentionRules(21, {**SERVER.branches, "x": 1}), policy),
        (SERVER, Policy(default=DAY)),
        (SERVER, Policy()),
        (SERVER, Policy(keep_tags=False)),
        (SERVER, Policy(default=DAY, replace=True)),
        (SERVER, Policy(stale_after=DAY, pinned=("x",))),
        (SERVER, Policy(keep_tags=("v*",))),
        (SERVER, Policy(rules=(BranchRule("a", DAY, 1),))),
        (SERVER, Policy(rules=(BranchRule("a", DAY, 1, (("keep_last", 3),)),))),
        (SERVER, Policy(rules=(BranchRule("a", DAY, 1, (("keep_last", 4),)),))),
        (SERVER, Policy(rules=(BranchRule("a", DAY, 1, (("daily", 3),)),))),
        (SERVER, Policy(rules=(BranchRule("a", DAY, 1, (("daily", 3),), True),))),
        (SERVER, Policy(rules=(BranchRule("a", DAY, 1, (), True),))),
    ]
    digests = {digest(server, each, "written") for server, each in [(SERVER, policy), *others]}
    assert len(digests | {digest(SERVER, policy, "claimed")}) == len(others) + 2
    assert digest(SERVER, Policy(stale_after=DAY), "written") == digest(SERVER, Policy(), "written")


@pytest.mark.parametrize(
    ("branch", "retention", "edited"),
    [
        (None, "2w", RetentionRules(14, {"main": 28})),
        (None, "48h", RetentionRules(2, {"main": 28})),
        (None, "0d", RetentionRules(0, {"main": 28})),
        ("main", "20d", RetentionRules(21, {"main": 20})),
        ("dev", "20d", RetentionRules(21, {"main": 28, "dev": 20})),
        ("main", None, RetentionRules(21, {})),
    ],
)
def test_one_rule_of_the_server(branch: str | None, retention: str | None, edited: RetentionRules) -> None:
    assert edit_server_rules(RetentionRules(21, {"main": 28}), branch, retention) == edited


def test_rules_of_the_server_begin_with_a_default() -> None:
    assert edit_server_rules(None, None, "4d") == RetentionRules(4, {})
    with pytest.raises(ConfigurationError, match="the server has no rules: set a default first"):
        edit_server_rules(None, "main", "4d")


@pytest.mark.parametrize(
    ("server", "branch", "retention", "words"),
    [
        (SERVER, "main", "20", "20 has no unit"),
        (SERVER, "main", "36h", "the server's rules count whole days, not 36h"),
        (SERVER, "user-*", "20d", "the server's rules name branches, not patterns such as user-*"),
        (SERVER, "{a,b}", "20d", "name branches, not patterns"),
        (SERVER, "nobody", None, "the server's rules: there is no rule for nobody"),
        (RetentionRules(-1, {}), "main", "3d", "default_retention_days is negative"),
        (RetentionRules(3, {}), None, "0d", "lakeFS treats zero days for everything as no rules"),
        (RetentionRules(0, {"main": 3}), "main", None, "lakeFS treats zero days for everything as no rules"),
    ],
)
def test_rules_that_the_server_does_not_get(
    server: RetentionRules, branch: str | None, retention: str | None, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        edit_server_rules(server, branch, retention)
