import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.retention import rules as retention_rules
from lakefs_gc_assets.collector.retention.rules import BranchRule, Policy, StaleRule, edit_policy, in_units
from lakefs_gc_assets.errors import ConfigurationError

DAY = timedelta(days=1)
COMMIT = "5f5d7ef81b54ea39c0628742c3572eaa93194b363fce135ff345dc5281e91168"
WHOLE = f"""\
# what we promised
default: 21d
branches:
  main: 8w
  user-*: 36h
  "*": 5d
pinned:
  - {COMMIT}
  - 0000000000000000000000000000000000000000000000000000000000000000
keep_tags: false
stale_after: 90d
replace: true
"""


MANY = "branches:\n" + "".join(f"  b{number}: 3d\n" for number in range(101))
"""One rule more than `few_names` allows a policy."""


@pytest.fixture
def few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows a policy 100 names and patterns: reading 10,000 takes seconds."""
    assert retention_rules._MOST_RULES == 10_000
    monkeypatch.setattr(retention_rules, "_MOST_RULES", 100)


def read(text: str) -> Policy:
    return retention_rules.parse_policy(text, "policy.yaml")


class TestFiles:
    def test_everything_that_a_policy_can_say(self) -> None:
        assert read(WHOLE) == Policy(
            default=21 * DAY,
            rules=(
                BranchRule("main", 56 * DAY, 4),
                BranchRule("user-*", timedelta(hours=36), 5),
                BranchRule("*", 5 * DAY, 6),
            ),
            pinned=(COMMIT, "0" * 64),
            keep_tags=False,
            stale_after=90 * DAY,
            replace=True,
        )

    @pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "branches: {}\npinned: []\n", "replace: false"])
    def test_nothing_said_keeps_tags_and_replaces_nothing(self, text: str) -> None:
        assert read(text) == Policy()
        assert Policy().keep_tags
        assert not Policy().replace

    def test_the_example_in_its_own_words(self) -> None:
        example = retention_rules.__doc__ or ""
        found = read(example.partition("line:\n")[2].partition("`load_server_rules`")[0])
        assert found.rules_of("user-x") == (BranchRule("user-*", timedelta(hours=36), 5),)
        assert (len(found.pinned), found.keep_tags, found.replace) == (1, True, False)

    def test_stale_branches(self) -> None:
        policy = read(
            "stale_branches:\n- branches: 'a-{x,y}'\n- {branches: ['a-*', b], max_age: 3d, uncommitted: true}"
        )
        first, second = policy.stale
        assert first == StaleRule(("a-x", "a-y"), None, None, False, 2)
        assert second == StaleRule(("a-*", "b"), 3 * DAY, None, True, 3)
        fits = {name: policy.stale_rule_of(name) for name in ("a-x", "a-z", "b", "c")}
        assert fits == {"a-x": first, "a-z": second, "b": second, "c": None}
        assert policy.stated() == Policy().stated(), "they decide nothing that a run keeps"

    def test_the_rule_of_a_branch_is_set_above_stale_branches(self) -> None:
        text = "branches:\n  main: 3d\nstale_branches:\n- {branches: a, max_age: 3d}\n"
        assert edit_policy(text, "policy.yaml", "dev", "4d") == text.replace("3d\nst", "3d\n  dev: 4d\nst")

    def test_rules_that_count(self) -> None:
        text = "branches:\n  main: {retention: 8w, keep: {monthly: 12, daily: 7}, follow: all-parents, keep_last: 5}\n"
        counting = BranchRule("main", 56 * DAY, 2, (("keep_last", 5), ("daily", 7), ("monthly", 12)), True)
        assert read(text) == Policy(rules=(counting,))
        nothing = "branches:\n  main: {retention: 8w, keep: {}, follow: first-parents}\n"
        assert read(nothing) == Policy(rules=(BranchRule("main", 56 * DAY, 2),))
        others = read("branches: {'{a,b*}': {retention: 0d, keep: {weekly: 4, yearly: 100000}}}").rules
        assert [(rule.pattern, rule.keeps) for rule in others] == [
            (name, (("weekly", 4), ("yearly", 100_000))) for name in ("a", "b*")
        ]

    @pytest.mark.parametrize(
        ("keep_tags", "kept"),
        [("true", "v1 v2 x/y"), ("false", ""), ("[]", ""), ("['v*']", "v1 v2"), ("['{v2,x}', '*/y']", "v2 x/y")],
    )
    def test_tags_by_pattern(self, keep_tags: str, kept: str) -> None:
        policy = read(f"keep_tags: {keep_tags}")
        assert [tag for tag in ("v1", "v2", "x/y") if policy.keeps_tag(tag)] == kept.split()

    @pytest.mark.parametrize(
        ("text", "line", "words"),
        [
            (
                "branches:\n  main: {keep_last: 3}",
                2,
                "a rule that keeps commits by number also needs a `retention`",
            ),
            ("branches:\n  main: {retention: ~}", 2, "retention has no value: write one, or remove the key"),
            ("branches:\n  main: {retention: 3}", 2, "3 has no unit"),
            (
                "branches:\n  main: {retention: 3d, daily: 3}",
                2,
                "'daily' is not one of retention, keep_last, keep, follow",
            ),
            (
                "branches:\n  main: {retention: 3d, keep: {hourly: 3}}",
                2,
                "is not one of daily, weekly, monthly, yearly",
            ),
            ("branches:\n  main: {retention: 3d, keep: 3}", 2, "keep must be written as `key: value`"),
            ("branches:\n  main: {retention: 3d, keep_last: 0}", 2, "'0' is not a whole number from 1 to 100,000"),
            ("branches:\n  main: {retention: 3d, keep_last: 1.5}", 2, "'1.5' is not a whole number"),
            ("branches:\n  main: {retention: 3d, keep_last: [3]}", 2, "expected a number"),
            ("branches:\n  main:\n    retention: 3d\n    keep: {daily: 100001}", 4, "from 1 to 100,000"),
            (
                "branches:\n  main: {retention: 3d, follow: parents}",
                2,
                "'parents' is neither first-parents nor all-par",
            ),
            ("branches:\n  main: {retention: 3d, retention: 4d}", 2, "retention appears twice"),
            ("keep_tags: [[v1]]", 1, "expected a name or pattern of tags"),
            ("keep_tags:\n- 'a b'", 2, "'a b' is not a name or pattern of tags"),
            ("keep_tags:\n- v1: 3d", 2, "expected a name or pattern of tags"),
            ("default:\nbranches: {main: 3d}", 1, "default has no value"),
            ("branches:\n  main:\n    retention: 0d\n    keep: {daily: }\n", 4, "daily has no value"),
            ("branches:\n  main: {retention: 0d, follow: null}", 2, "follow has no value"),
            ("default: 3d\npinned:\n# none", 2, "pinned has no value"),
            ("stale_branches:\n- branches: a\n  max_age: 1d\n  max_inactivity:\n", 4, "max_inactivity has no value"),
            ("default: 3", 1, "3 has no unit: write 3d for days, 3h for hours or 3w for weeks"),
            ("branches:\n  main: 21d\n  dev: 7\n", 3, "7 has no unit"),
            ("stale_after: -3d", 1, "-3d is negative"),
            ("default: 3 days", 1, "'3 days' is not a duration such as 36h, 21d or 6w"),
            ("default: 3m", 1, "'3m' is not a duration"),
            ("default: 36501d", 1, "36501d is longer than the maximum of 36,500 days"),
            ("default: 9999999999d", 1, "is not a duration"),
            ("default: [3d]", 1, "expected a duration"),
            ("default: ٣d", 1, "is not a duration"),
            ("defualt: 3d", 1, "'defualt' is not one of default, branches"),
            ("keep_tags: true\nbranches: 3d", 2, "branches must be written as `key: value`"),
            ("branches:\n- main", 2, "branches must be written as `key: value`"),
            ("branches:\n  main: 3d\n  main: 4d", 3, "main appears twice"),
            ("default: 3d\ndefault: 4d", 2, "default appears twice"),
            ("branches:\n  'a b': 3d", 2, "'a b' is not a name or pattern of branches"),
            ("branches:\n  'user-[a-z': 3d", 2, "'user-[a-z' is not a name or pattern of branches"),
            ("branches:\n  'a]': 3d", 2, "is not a name or pattern of branches"),
            ("branches:\n  '[]': 3d", 2, "is not a name or pattern of branches"),
            ("branches:\n  '[!]': 3d", 2, "is not a name or pattern of branches"),
            ("branches:\n  '[z-a]': 3d", 2, "is not a name or pattern of branches"),
            ("branches:\n  '[^a]': 3d", 2, "is not a name or pattern of branches"),
            ("branches:\n  '{a}': 3d", 2, "is not a name or pattern of branches"),
            ("branches:\n  '{a,b': 3d", 2, "is not a name or pattern of branches"),
            ("branches:\n  '{a,{b,c}}': 3d", 2, "is not a name or pattern of branches"),
            ("branches:\n  '{a,}': 3d", 2, "is not a name or pattern of branches"),
            ("branches:\n  '{a,b[}': 3d", 2, "is not a name or pattern of branches"),
            ("branches:\n  '{main,dev}': 3d\n  main: 4d", 3, "main appears twice"),
            ("branches:\n  'x{a,b}{a,a}': 3d", 2, "xaa appears twice"),
            ("branches:\n  [a]: 3d", 2, "a key must be a plain word; write a pattern in quotes"),
            ("branches:\n  {a,b}: 3d", 2, "a key must be a plain word; write a pattern in quotes"),
            ("pinned: 3", 1, "pinned must be a list of commit ids"),
            ("pinned:\n- 5f5d7ef8", 2, "with all 64 digits"),
            ("pinned:\n- [a]", 2, "with all 64 digits"),
            (f"pinned:\n- {COMMIT.upper()}", 2, "with all 64 digits"),
            ("keep_tags: maybe", 1, "'maybe' is neither true nor false"),
            ("replace: true", 1, "needs a `default`"),
            ("branches: {main: 3d}\nreplace: true", 2, "needs a `default`"),
            ("- default: 3d", 1, "a policy must be written as `key: value`"),
            ("just words", 1, "a policy must be written as `key: value`"),
            ("default_retention_days: 3", 1, "belongs to the server's rules"),
            ("default: 3d\nbranches: [", 2, ""),
            ("default: 3d\n\tbranches: x", 2, ""),
            ("a: &x 1\nb: *y", 2, "undefined alias"),
            ("stale_branches: {a: 3d}", 1, "stale_branches must be a list of rules"),
            ("stale_branches:\n- a", 2, "a rule of stale branches must be written as `key: value`"),
            ("stale_branches:\n- max_age: 3d", 2, "needs `branches`"),
            ("stale_branches:\n- {branches: a, max_age: 3}", 2, "3 has no unit"),
            ("stale_branches:\n- {branches: a, age: 3d}", 2, "'age' is not one of branches, max_age, max_inactivity"),
            ("stale_branches:\n- {branches: a, uncommitted: no}", 2, "'no' is neither true nor false"),
            ("stale_branches:\n- branches: [[a]]", 2, "expected a name or pattern of branches"),
            ("stale_branches:\n- branches: '[z-a]'", 2, "'[z-a]' is not a name or pattern of branches"),
        ],
    )
    def test_faults_are_named_by_their_line(self, text: str, line: int, words: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            read(text)
        assert str(caught.value).startswith(f"policy.yaml, line {line}: ")
        assert words in str(caught.value)

    def test_all_faults_are_named_in_order_of_their_lines(self) -> None:
        with pytest.raises(ConfigurationError) as caught:
            read("stale_after: 3\nbranches:\n  '{a,b}': {keep_last: 0, retention: 3}\ndefault: -3d\n")
        no_unit = "3 has no unit: write 3d for days, 3h for hours or 3w for weeks"
        assert str(caught.value) == (
            f"policy.yaml, line 1: {no_unit}; line 3: {no_unit}; line 3: '0' is not a whole number from 1 to 100,000; "
            "line 4: -3d is negative"
        )

    def test_of_many_faults_the_first_ten_are_named(self) -> None:
        with pytest.raises(ConfigurationError) as caught:
            read("branches:\n" + "".join(f"  b{number}: {number}\n" for number in range(50)))
        assert str(caught.value).count("has no unit") == 10

    @pytest.mark.parametrize(
        "text",
        [
            "default: &x [*x]",
            "branches: &x {main: *x}",
            "branches: &x {main: {retention: *x}}",
            "stale_branches: &x [*x]",
            "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9) if n else 'x'}]\n" for n in range(30)),
            "".join(f"l{n}: &l{n} {{{', '.join(f'{k}: *l{n - 1}' for k in 'abc') if n else ''}}}\n" for n in range(60))
            + "branches: *l59",
        ],
    )
    def test_aliases_that_nest_without_end_are_refused_at_once(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match=r"^policy\.yaml, line "):
            read(text)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("# " + "x" * 1_000_000, "may have 1,000,000 characters, not 1,000,0"),
            ("default: " + "[" * 5_000, "nested too deeply"),
            ("branches:\n  " + "a" * 1_001 + ": 3d", "at most 1,000 characters"),
            (
                "branches:\n  '" + "{a,b}" * 199 + "': 3d",
                "line 2: a pattern of branches may have at most 1,000 alternatives",
            ),
            ("branches:\n  '" + "{a,b}" * 10 + "': 3d", "line 2: a pattern of branches may have at most 1,000"),
            ("keep_tags: ['" + "{a,b}" * 199 + "']", "a pattern of tags may have at most 1,000 alternatives"),
            ("stale_branches: [branches: '" + "{a,b}" * 199 + "']", "a pattern of branches may have at most 1,000 alt"),
            (
                "keep_tags:\n" + ("- '{a,b}" + "*c" * 400 + "'\n") * 313,
                "line 314: .* with 500,000 characters, counting each alternative in braces",
            ),
            ("keep_tags: [" + "a" * 1_001 + "]", "of tags may have at most 1,000 characters"),
        ],
    )
    def test_a_policy_that_would_cost_without_bound_is_refused(self, text: str, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            read(text)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (MANY, "line 102: a policy, or all policies of a launch together, may have at most 100 names"),
            (MANY.replace("b100: 3d", "'{a,b}': 3d"), "line 102: .* at most 100 names"),
            ("keep_tags:\n" + "".join(f"- '{{a,b}}{n}*'\n" for n in range(51)), "line 52: .* at most 100 names"),
            (MANY.replace("  b100: 3d", "keep_tags: [v1, v2]"), "line 100: .* at most 100 names"),
            (MANY.replace("  b100: 3d", "stale_branches: [branches: a]"), "line 102: .* at most 100 names"),
        ],
    )
    @pytest.mark.usefixtures("few_names")
    def test_a_policy_of_too_many_names_is_refused(self, text: str, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            read(text)

    @pytest.mark.usefixtures("few_names")
    def test_policies_up_to_the_bounds_are_read(self) -> None:
        assert len(read(MANY.rpartition("  b")[0]).rules) == 100

    def test_a_pattern_up_to_its_bound_is_read(self) -> None:
        assert len(read("branches: {'" + "{a,b,c,d,e,f,g,h,i,j}" * 3 + "': 3d}").rules) == 1_000

    @pytest.mark.usefixtures("few_names")
    def test_policies_of_a_launch_are_bounded_together(self) -> None:
        half = MANY.rpartition("  b51")[0]
        assert retention_rules.parse_policies({"a": half, "b": "default: 3d"}) == {
            "a": read(half),
            "b": Policy(default=3 * DAY),
        }
        with pytest.raises(ConfigurationError, match=r"b, line 51: .* all policies of a launch together, may have"):
            retention_rules.parse_policies({"a": half, "b": half})
        with pytest.raises(ConfigurationError, match="at most 1,000,000 characters; these have 1,000,002"):
            retention_rules.parse_policies({"a": "#" * 500_001, "b": "#" * 500_001})

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"cannot read policy file .*nowhere\.yaml: No such file"):
            retention_rules.load_policy(tmp_path / "nowhere.yaml")
        (tmp_path / "latin.yaml").write_bytes(b"default: 3d # \xfc")
        with pytest.raises(ConfigurationError, match="not in UTF-8"):
            retention_rules.load_policy(tmp_path / "latin.yaml")
        (tmp_path / "good.yaml").write_text(WHOLE)
        assert retention_rules.load_policy(tmp_path / "good.yaml") == read(WHOLE)

    @given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
    def test_whatever_is_written_is_read_or_refused(self, text: str) -> None:
        try:
            read(text)
        except ConfigurationError as refusal:
            assert "policy.yaml" in str(refusal)


EDITED = f"""\
# promised
default: 21d  # by contract
branches:
  # customers
  main: 8w  # two months
  'v*': 3d
  # nobody
pinned: [{COMMIT}]
"""


COUNTING = "  a:\n    keep: {daily: 3}\n    retention: 30d  # promised\n    keep_last: 3\n"


class TestEdits:
    @pytest.mark.parametrize(
        ("branch", "retention", "before", "after"),
        [
            ("main", "20d", "main: 8w  # two", "main: 20d  # two"),
            (None, "4d", "default: 21d  #", "default: 4d  #"),
            ("dev", "36h", "'v*': 3d\n", "'v*': 3d\n  dev: 36h\n"),
            ("{a,b}-[0-9]", "1w", "'v*': 3d\n", "'v*': 3d\n  \"{a,b}-[0-9]\": 1w\n"),
            ("main", None, "  main: 8w  # two months\n", ""),
            ("v*", None, "  'v*': 3d\n", ""),
        ],
    )
    def test_one_rule_changes_and_nothing_else(
        self, branch: str | None, retention: str | None, before: str, after: str
    ) -> None:
        assert EDITED.count(before) == 1
        assert edit_policy(EDITED, "policy.yaml", branch, retention) == EDITED.replace(before, after)

    @pytest.mark.parametrize(
        ("text", "branch", "retention", "edited"),
        [
            ("", None, "4d", "default: 4d\n"),
            ("# none\n", "main", "4d", "# none\nbranches:\n  main: 4d\n"),
            ("keep_tags: true", None, "4d", "keep_tags: true\ndefault: 4d\n"),
            ("branches: {}\n", "main", "4d", "branches: {main: 4d}\n"),
            ("branches: {a: 1d, 'b': 2d} # x\n", "main", "4d", "branches: {a: 1d, 'b': 2d, main: 4d} # x\n"),
            ("branches: {a: 1d, 'b': 2d} # x\n", "a", None, "branches: {'b': 2d} # x\n"),
            ("branches: {a: 1d, 'b': 2d} # x\n", "b", "3d", "branches: {a: 1d, 3d} # x\n".replace("3d", "'b': 3d")),
            ("branches:\n  main: 4d", "main", None, "branches: {}\n"),
            ("'branches' : # x\n  main: 4d\n  # y\n", "main", None, "'branches' : {} # x\n  # y\n"),
            (f"branches:\n{COUNTING}", "a", None, "branches: {}\n"),
            (
                "branches: {a: {retention: 1d, keep_last: 3}}",
                "a",
                "4d",
                "branches: {a: {retention: 4d, keep_last: 3}}\n",
            ),
            (f"branches:\n{COUNTING}  b: 1d\n", "a", None, "branches:\n  b: 1d\n"),
            (f"branches:\n{COUNTING}pinned: []\n", "b", "4d", f"branches:\n{COUNTING}  b: 4d\npinned: []\n"),
            (f"branches:\n{COUNTING}", "a", "4d", f"branches:\n{COUNTING}".replace("30d", "4d")),
            ("branches:\n  '{a,b}': 4d\n", "{a,b}", "5d", "branches:\n  '{a,b}': 5d\n"),
        ],
    )
    def test_however_a_policy_is_written(
        self, text: str, branch: str | None, retention: str | None, edited: str
    ) -> None:
        assert edit_policy(text, "policy.yaml", branch, retention) == edited

    @pytest.mark.parametrize(
        ("text", "branch", "retention", "words"),
        [
            (EDITED, "dev", None, "policy.yaml: there is no rule for dev"),
            ("", "dev", None, "there is no rule for dev"),
            (EDITED, "dev", "4", "4 has no unit: write 4d for days"),
            (EDITED, "dev", "4d\nreplace: true", "is not a duration"),
            (EDITED, "a b", "4d", "'a b' is not a name or pattern of branches"),
            (EDITED, "", "4d", "is not a name or pattern of branches"),
            (EDITED, "{a,a}", "4d", "a appears twice"),
            (EDITED, "{main,dev}", "4d", "main appears twice"),
            ("default: x", "main", "4d", "policy.yaml, line 1: 'x' is not a duration"),
            ("{default: 3d}", "main", "4d", "line 2"),
            ("default: &x 3d\nbranches: {main: *x}", None, "4d", "undefined alias"),
            ("default: &x 3d\nbranches: {main: *x}", "main", "4d", "undefined alias"),
            ("stale_after: &x 3d\nbranches:\n  main: *x\n", "main", None, "this rule cannot be changed"),
            ("default: 3d\n...\n", "main", "4d", "line 3: expected"),
        ],
    )
    def test_what_cannot_be_changed(self, text: str, branch: str | None, retention: str | None, words: str) -> None:
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            edit_policy(text, "policy.yaml", branch, retention)

    @given(
        st.lists(
            st.sampled_from(
                ["default:", "branches:", " ", "\n", "  a: 3d", "{a: 3d", ", 'b*': 4d}", "# x", "&x", "*x", "  b*: "]
            )
            | st.sampled_from(["  b*:\n    retention: 3d\n", "    keep_last: 3\n", "{retention: 3d, keep_last: 3}"])
        ).map("".join),
        st.sampled_from([None, "a", "b*", "{a,c}"]),
        st.sampled_from([None, "5d"]),
    )
    def test_whatever_is_written_only_the_rule_changes(
        self, text: str, branch: str | None, retention: str | None
    ) -> None:
        try:
            before, after = read(text), read(edit_policy(text, "policy.yaml", branch, retention))
        except ConfigurationError:
            return
        changed = {"a": ["a"], "b*": ["b*"], "{a,c}": ["a", "c"]}[branch] if branch else []
        for name in ("a", "b*", "c"):
            of_name = [rule.retention for rule in after.rules if rule.pattern == name]
            kept = [rule.retention for rule in before.rules if rule.pattern == name]
            assert of_name == (([] if retention is None else [5 * DAY]) if name in changed else kept)
            counts = [rule.keeps for rule in before.rules if rule.pattern == name]
            assert not of_name or not counts or counts == [rule.keeps for rule in after.rules if rule.pattern == name]
        assert after.default == (before.default if branch else 5 * DAY)


def matches(pattern: str, name: str) -> bool:
    """True if a pattern matches, by brute force."""
    if not pattern:
        return not name
    head, rest = pattern[0], pattern[1:]
    if head == "{":
        alternatives, _, rest = rest.partition("}")
        return any(matches(each + rest, name) for each in alternatives.split(","))
    if head == "*":
        return any(matches(rest, name[start:]) for start in range(len(name) + 1))
    if head == "[" and name:
        members, _, rest = rest.partition("]")
        negated, members = members[0] == "!", members.removeprefix("!")
        fits = False
        while members:
            last = members[2] if len(members) > 2 and members[1] == "-" else members[0]
            fits |= members[0] <= name[0] <= last
            members = members[3:] if len(members) > 2 and members[1] == "-" else members[1:]
        return fits != negated and matches(rest, name[1:])
    return bool(name) and head in ("?", name[0]) and matches(rest, name[1:])


class TestRulesOfBranches:
    RULES = ("user-*", "user-a*", "user-anna", "*-anna", "us?r-anna2", "release/*")

    @pytest.mark.parametrize(
        ("branch", "pattern"),
        [
            ("user-anna", "user-anna"),
            ("user-arthur", "user-a*"),
            ("user-bob", "user-*"),
            ("test-anna", "*-anna"),
            ("user-anna2", "us?r-anna2"),
            ("user-", "user-*"),
            ("release/1.0/x", "release/*"),
            ("my-user-x", None),
            ("userx", None),
            ("", None),
        ],
    )
    def test_an_exact_name_wins_then_the_longest_pattern(self, branch: str, pattern: str | None) -> None:
        rules = tuple(BranchRule(name, number * DAY, number) for number, name in enumerate(self.RULES))
        found = Policy(rules=rules).rules_of(branch)
        assert [rule.pattern for rule in found] == ([pattern] if pattern else [])
        assert Policy(rules=rules[::-1]).rules_of(branch) == found

    def test_equally_long_patterns_apply_together(self) -> None:
        rules = (BranchRule("a*", 3 * DAY, 1), BranchRule("*b", 5 * DAY, 2), BranchRule("*", 9 * DAY, 3))
        for order in (rules, rules[::-1]):
            assert Policy(rules=order).rules_of("ab") == rules[:2]
            assert Policy(rules=order).rules_of("b") == (rules[1],)

    def test_braces_are_a_rule_for_each_alternative(self) -> None:
        policy = read("branches: {'{main,v[0-9]*}-x': 3d, 'v?*-x': 2d, 'v1*-x': 1d}")
        assert [rule.pattern for rule in policy.rules] == ["main-x", "v[0-9]*-x", "v?*-x", "v1*-x"]
        assert policy.rules_of("main-x") == (BranchRule("main-x", 3 * DAY, 1),)
        # A character class stands for one character, so it is as long as the other patterns.
        assert [rule.pattern for rule in policy.rules_of("v1-x")] == ["v[0-9]*-x", "v?*-x", "v1*-x"]

    @given(
        st.lists(
            st.sampled_from(
                ["a", "b", "-", "*", "?", "[ab]", "[!a]", "[a-c]", "[!b-c-]", "[-a]", "{a,b}", "{x,[ab]*}"]
            ),
            min_size=1,
            max_size=6,
        ).map("".join)
        | st.text("ab-[]{},!*?", min_size=1, max_size=8),
        st.text("abcx-", max_size=6),
    )
    def test_patterns_mean_what_a_naive_matcher_says(self, pattern: str, branch: str) -> None:
        try:
            policy = read(f"branches: {{'{pattern}': 3d}}")
        except ConfigurationError:
            return
        assert (policy.rules_of(branch) != ()) == matches(pattern, branch)

    @pytest.mark.parametrize(
        "pattern", ["*" * 600 + "x", "a*" * 400 + "x", "?*" * 400 + "x", "[ab]*" * 190 + "x", "[!b]" * 240 + "*x"]
    )
    def test_a_pattern_of_many_stars_ends(self, pattern: str) -> None:
        branch = "a" * 1_000
        policy = Policy(rules=(BranchRule(pattern, DAY, 1),))
        assert not policy.rules_of(branch)
        assert policy.rules_of(branch + "x")

    @given(st.text("ab*?", max_size=8).filter(lambda pattern: {"*", "?"} & set(pattern)), st.text("ab", max_size=8))
    def test_patterns_mean_what_their_stars_say(self, pattern: str, branch: str) -> None:
        reached = {0}
        for character in pattern:
            if character == "*":
                reached = set(range(min(reached, default=len(branch) + 1), len(branch) + 1))
            else:
                reached = {place + 1 for place in reached if place < len(branch) and character in ("?", branch[place])}
        assert bool(Policy(rules=(BranchRule(pattern, DAY, 1),)).rules_of(branch)) == (len(branch) in reached)

    def test_dots_are_dots(self) -> None:
        rule = Policy(rules=(BranchRule("v1.*", DAY, 1),))
        assert rule.rules_of("v1.2")
        assert not rule.rules_of("v142")


@pytest.mark.parametrize(
    ("duration", "text"),
    [(timedelta(hours=36), "36h"), (21 * DAY, "21d"), (timedelta(), "0d"), (timedelta(hours=1), "1h")],
)
def test_durations_are_shown_as_they_are_written(duration: timedelta, text: str) -> None:
    assert in_units(duration) == text
    assert read(f"default: {text}").default == duration
