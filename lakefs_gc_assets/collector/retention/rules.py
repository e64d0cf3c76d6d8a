"""The branches' retention rules: the server's rules, and a policy of our own on top.

Without rules on the server everything is kept, even with a policy, unless the policy replaces the server's rules.
A policy can only keep more than the server's rules, unless it says `replace: true`. A policy is a YAML file. Each error
in the file is reported with its line:

default: 21d            # branches that match no rule below, and dangling commits
branches:
  main: 8w
  user-*: 36h           # an exact name wins over patterns, then the longest pattern; equally long ones all apply
  "{dev,test}-[0-9]": 5d
  "release-*":
    retention: 30d
    keep_last: 5        # these stay at any age: the newest commits,
    keep: {daily: 7, weekly: 4, monthly: 12, yearly: 3}  # and the newest one of each of the last days, weeks, …
    follow: all-parents # first-parents by default: merged commits stay for 30d, too
pinned:                 # these commits stay
  - 5f5d7ef81b54ea39c0628742c3572eaa93194b363fce135ff345dc5281e91168
keep_tags: true         # tagged commits stay, the default. false: none, ["v*"]: commits of some tags
stale_after: 90d        # reports branches whose head is older
stale_branches:         # `lakefs-gc branches` shows and deletes these; the first matching rule applies
  - branches: ["user-*", "{dev,test}-*"]
    max_inactivity: 30d # since the last commit; without a limit the branches stay
    max_age: 180d       # since the first commit of its own; with both, both must be over
    uncommitted: true   # also branches with uncommitted changes; the last write counts for max_inactivity
lifecycle:              # `lakefs-gc lifecycle` shows and deletes these objects on branches
  - {name: raw, branches: main, paths: raw/, older_than: 90d}
replace: false          # true: the server's rules are ignored

`load_server_rules` reads rules for the server from a JSON file in the format of `lakectl gc set-config`:

{"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 28}]}
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import translate
from functools import lru_cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.lakefs.formats.refs import Integers
from lakefs_gc_assets.settings import CommitDates

LONGEST_RETENTION = timedelta(days=36_500)
"""A hundred years; a longer retention is rejected as a mistake."""


# A launch may bring policies, so their cost is bounded: each rule is matched against each branch, and YAML nests by
# recursion. Compiling a pattern takes about 9 µs and 30 bytes per character.
_LONGEST_FILE, _LONGEST_PATTERN, _MOST_ALTERNATIVES = 1_000_000, 1_000, 1_000
_MOST_RULES, _MOST_CHARACTERS = 10_000, 500_000


LAST = "keep_last"
PERIODS: Mapping[str, Callable[[Integers], Integers]] = {
    "daily": lambda seconds: seconds // 86_400,
    "weekly": lambda seconds: (seconds // 86_400 + 3) // 7,  # 1970 began on a Thursday.
    "monthly": lambda seconds: seconds.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64),
    "yearly": lambda seconds: seconds.astype("datetime64[s]").astype("datetime64[Y]").astype(np.int64),
}
"""Functions from seconds since 1970 (UTC) to numbers of days, ISO weeks, months or years. A policy and the reasons
to stay name periods by these words."""
COUNTS = (LAST, *PERIODS)


def count_number(name: str) -> int:
    """Position of a count in COUNTS.

    Raises ValueError for any other name: skipping it or confusing it with another would keep fewer commits.
    """
    if name not in COUNTS:
        raise ValueError(f"{name!r} is not one of {', '.join(PERIODS)} and {LAST}")
    return COUNTS.index(name)


Keeps = tuple[tuple[str, int], ...]
"""Number of newest commits that stay (LAST), and number of PERIODS whose newest commit stays."""


Value = TypeVar("Value")
_HOURS_BY_UNIT = {"h": 1, "d": 24, "w": 7 * 24}
_DURATION = re.compile(r"(\d{1,9})([hdw])", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?", re.ASCII)
_NEGATIVE = re.compile(r"-\d+[hdw]?", re.ASCII)
_CLASS = re.compile(r"\[!?-?(?:[\w./](?:-[\w./])?)+-?\]", re.ASCII)
_RANGE = re.compile(r"([\w./])-([\w./])", re.ASCII)
_PATTERN = re.compile(rf"(?:[\w./*?-]|{_CLASS.pattern})+", re.ASCII)
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_PLAIN_NAME = re.compile(r"\w[\w./*?-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{64}")
_MOST_KEPT = 100_000
_COUNT = re.compile(r"[1-9]\d{0,5}", re.ASCII)
_SERVER_FIELDS = frozenset({"default_retention_days", "retention_days", "branch_id"})
_KEYS = ("default", "branches", "pinned", "keep_tags", "stale_after", "stale_branches", "lifecycle", "replace")
_MOST_FAULTS = 10
"""Maximum errors per file in a message."""


def parse_duration(text: str) -> timedelta:
    """The duration that a text states. Raises ConfigurationError, which names the error."""
    if _NEGATIVE.fullmatch(text):
        raise ConfigurationError(f"{text} is negative")
    if _NUMBER.fullmatch(text):
        raise ConfigurationError(f"{text} has no unit: write {text}d for days, {text}h for hours or {text}w for weeks")
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{text!r} is not a duration such as 36h, 21d or 6w")
    hours = int(match[1]) * _HOURS_BY_UNIT[match[2]]
    if hours > LONGEST_RETENTION // timedelta(hours=1):
        raise ConfigurationError(f"{text} is longer than the maximum of {LONGEST_RETENTION.days:,} days")
    return timedelta(hours=hours)


# The model below reads nodes only as its fields need them, never a whole document: aliases can nest without end.
def fault_at(node: yaml.Node, problem: str) -> PydanticCustomError:
    """An error in a policy, with its line."""
    return PydanticCustomError("policy", "line {line}: {problem}", {"line": line_of(node), "problem": problem})


def line_of(node: yaml.Node) -> int:
    """The first line of a node."""
    return int(node.start_mark.line) + 1


def text_of(node: yaml.Node, kind: str) -> str:
    """The text of a word. Raises PydanticCustomError for a list or mapping; `kind` is the expected value."""
    if not isinstance(node, yaml.ScalarNode):
        raise fault_at(node, f"expected {kind}")
    return str(node.value)


def _items(node: yaml.Node, what: str) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        raise fault_at(node, f"{what} must be written as `key: value`")
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise fault_at(key, "a key must be a plain word; write a pattern in quotes")
        if key.value in seen:
            raise fault_at(key, f"{key.value} appears twice")
        seen.add(key.value)
        yield key, value


def values_of(node: yaml.Node, what: str, keys: Collection[str]) -> dict[str, yaml.Node]:
    """Values by key. Other keys are rejected, and so is a key without a value: it may be meant as a limit."""
    values: dict[str, yaml.Node] = {}
    for key, value in _items(node, what):
        if key.value in _SERVER_FIELDS:
            advice = "write `default: 21d`, `branches: {main: 28d}` in a policy"
            raise fault_at(key, f"{key.value} belongs to the server's rules; {advice}")
        if key.value not in keys:
            raise fault_at(key, f"{key.value!r} is not one of {', '.join(keys)}")
        if isinstance(value, yaml.ScalarNode) and value.tag == "tag:yaml.org,2002:null":
            raise fault_at(key, f"{key.value} has no value: write one, or remove the key")
        values[key.value] = value
    return values


def read_word(kind: str, read: Callable[[str], Value]) -> Callable[[yaml.Node], Value]:
    """A reader of one word; `read` raises ConfigurationError for an unknown one."""

    def validate(node: yaml.Node) -> Value:
        text = text_of(node, kind)
        try:
            return read(text)
        except ConfigurationError as fault:
            raise fault_at(node, str(fault)) from None

    return validate


def _choice(values: Mapping[str, bool], text: str) -> bool:
    if text not in values:
        raise ConfigurationError(f"{text!r} is neither {' nor '.join(values)}")
    return values[text]


def _parse_count(text: str) -> int:
    if not _COUNT.fullmatch(text) or int(text) > _MOST_KEPT:
        raise ConfigurationError(f"{text!r} is not a whole number from 1 to {_MOST_KEPT:,}")
    return int(text)


def _parse_commit(text: str) -> str:
    if not _COMMIT.fullmatch(text):
        raise ConfigurationError("write a pinned commit with all 64 digits of its id")
    return text


_read_flag = read_word("true or false", partial(_choice, {"true": True, "false": False}))
_PARENTS = {"first-parents": False, "all-parents": True}
_Duration = Annotated[timedelta, PlainValidator(read_word("a duration such as 36h, 21d or 6w", parse_duration))]
_Flag = Annotated[bool, PlainValidator(_read_flag)]
_AllParents = Annotated[bool, PlainValidator(read_word("first-parents or all-parents", partial(_choice, _PARENTS)))]
Count = Annotated[int, PlainValidator(read_word("a number", _parse_count))]
_Commit = Annotated[str, PlainValidator(read_word("the id of a commit with all 64 digits", _parse_commit))]


@dataclass(frozen=True, slots=True)
class BranchRule:
    """The retention of branches that match a pattern.

    Attributes:
        keeps: commits of the branch that also stay, at any age.
        all_parents: True if the retention also counts for commits that merges brought in.

    In a pattern `*` matches anything, `?` one character, `[a-c]` one of these and `[!a-c]` any other one. Braces are
    expanded before: each alternative has its own rule.
    """

    pattern: str
    retention: _Duration
    line: int
    keeps: tuple[tuple[str, Count], ...] = ()
    all_parents: Annotated[_AllParents, Field(validation_alias="follow")] = False

    @property
    def merged(self) -> timedelta | None:
        """Retention of commits that merges brought in; None if only other rules apply to them."""
        return self.retention if self.all_parents else None


@dataclass(frozen=True, slots=True)
class StaleRule:
    """Limits after which matching branches are stale: all of a rule's limits. Without limits, no branch is stale.

    Attributes:
        patterns: without braces.
        max_age: since the first commit of the branch's own.
        max_inactivity: since its last commit or staged write.
        uncommitted: True if branches with uncommitted changes can be stale, too.
    """

    patterns: tuple[str, ...]
    max_age: _Duration | None = None
    max_inactivity: _Duration | None = None
    uncommitted: _Flag = False
    line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"rule of line {self.line}"


@dataclass(slots=True)
class _Spent:
    """Number of names and patterns in all policies so far, with expanded alternatives, and their characters."""

    names: int = 0
    characters: int = 0


def pattern_text(node: yaml.Node, what: str) -> str:
    """The text of a name or pattern. Raises PydanticCustomError if it is no word, or too long."""
    text = text_of(node, f"a name or pattern of {what}")
    if len(text) > _LONGEST_PATTERN:
        raise fault_at(node, f"a name or pattern of {what} may have at most {_LONGEST_PATTERN:,} characters")
    return text


def count_pattern(node: yaml.Node, info: ValidationInfo, pattern: str) -> None:
    """Counts a name or pattern of a policy. Raises PydanticCustomError beyond the bounds."""
    spent = info.context
    assert isinstance(spent, _Spent)
    spent.names += 1
    spent.characters += len(pattern)
    if spent.names > _MOST_RULES or spent.characters > _MOST_CHARACTERS:
        bounds = f"{_MOST_RULES:,} names and patterns with {_MOST_CHARACTERS:,} characters"
        policies = f"a policy, or all policies of a launch together, may have at most {bounds}"
        raise fault_at(node, f"{policies}, counting each alternative in braces")


def _expand(node: yaml.Node, info: ValidationInfo, what: str) -> Iterator[tuple[str, int]]:
    """Yields the alternatives of a name or pattern, without braces, with its line.

    Raises PydanticCustomError for invalid names or patterns, and beyond the bounds.
    """
    text = pattern_text(node, what)
    for number, pattern in enumerate(expand_braces(text), 1):
        if number > _MOST_ALTERNATIVES:
            raise fault_at(node, f"a pattern of {what} may have at most {_MOST_ALTERNATIVES:,} alternatives")
        count_pattern(node, info, pattern)
        if not _is_pattern(pattern):
            characters = "letters, digits, - _ . / and, for patterns, * ? [abc] [a-z] [!abc] {a,b}"
            raise fault_at(node, f"{text!r} is not a name or pattern of {what}: use {characters}")
        yield pattern, line_of(node)


def list_of(what: str, items: str) -> Callable[[yaml.Node], list[yaml.Node]]:
    """A reader of a list's items."""

    def read(node: yaml.Node) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            raise fault_at(node, f"{what} must be a list of {items}")
        return list(node.value)

    return read


def names_of(node: yaml.Node, info: ValidationInfo, what: str) -> list[tuple[str, int]]:
    """Names and patterns of a list, or a single one, without braces, with their lines."""
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    return [name for item in items for name in _expand(item, info, what)]


def _read_rules(node: yaml.Node, info: ValidationInfo) -> list[tuple[str, int, yaml.Node]]:
    """Patterns with their lines and rules."""
    rules: dict[str, tuple[str, int, yaml.Node]] = {}
    for key, value in _items(node, "branches"):
        for pattern, line in _expand(key, info, "branches"):
            if pattern in rules:
                raise fault_at(key, f"{pattern} appears twice")
            rules[pattern] = pattern, line, value
    return [*rules.values()]


def _read_rule(written: tuple[str, int, yaml.Node]) -> dict[str, object]:
    pattern, line, node = written
    parts = {"retention": node}
    if isinstance(node, yaml.MappingNode):
        parts = values_of(node, "a rule", ("retention", LAST, "keep", "follow"))
        if "retention" not in parts:
            raise fault_at(
                node, "a rule that keeps commits by number also needs a `retention`; 0d keeps nothing by age"
            )
    counts = values_of(parts.pop("keep"), "keep", PERIODS) if "keep" in parts else {}
    counts |= {LAST: parts.pop(LAST)} if LAST in parts else {}
    keeps = sorted(counts.items(), key=lambda each: count_number(each[0]))
    return {"pattern": pattern, "line": line, "keeps": keeps, **parts}


def _read_stale_rule(node: yaml.Node, info: ValidationInfo) -> dict[str, object]:
    parts = values_of(node, "a rule of stale branches", ("branches", "max_age", "max_inactivity", "uncommitted"))
    if "branches" not in parts:
        raise fault_at(node, "a rule of stale branches needs `branches`: names and patterns")
    patterns = [pattern for pattern, _ in names_of(parts.pop("branches"), info, "branches")]
    return {"patterns": patterns, "line": line_of(node), **parts}


def _read_policy(node: yaml.Node, info: ValidationInfo) -> dict[str, object]:
    values = values_of(node, "a policy", _KEYS)
    replaces = values.get("replace")
    if replaces and replaces.value == "true" and "default" not in values:
        raise fault_at(replaces, "a policy that replaces the server's rules needs a `default`")
    tags: dict[str, object] = {}
    if isinstance(values.get("keep_tags"), yaml.SequenceNode):
        names = names_of(values["keep_tags"], info, "tags")
        tags = {"keep_tags": tuple(tag for tag, _ in names), "tag_lines": [line for _, line in names]}
    return {**values, **tags}


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy; the default one only keeps tags. Pydantic reads the YAML nodes of a file by this model.

    Attributes:
        default: retention of branches without a matching rule, and of dangling commits; None for the server's alone.
        pinned: ids of commits that stay at any age.
        keep_tags: True if tagged commits stay; or names and patterns of the tags whose commits stay.
        tag_lines: their lines in the file.
        stale_after: branches with an older head are reported, and nothing else.
        stale: rules of branches to delete, in order; they have no effect on the objects that a run keeps.
        lifecycle: rules of objects on branches, which the extension of that name reads; no effect on runs, either.
        replace: True if the server's rules are ignored.
    """

    default: _Duration | None = None
    rules: Annotated[
        tuple[Annotated[BranchRule, BeforeValidator(_read_rule)], ...],
        BeforeValidator(_read_rules),
        Field(validation_alias="branches"),
    ] = ()
    pinned: Annotated[tuple[_Commit, ...], BeforeValidator(list_of("pinned", "commit ids"))] = ()
    # Names are a tuple already: `_read_policy` expands and counts them, for the tags and for their lines.
    keep_tags: Annotated[
        bool | tuple[str, ...], PlainValidator(lambda tags: tags if isinstance(tags, tuple) else _read_flag(tags))
    ] = True
    stale_after: _Duration | None = None
    replace: _Flag = False
    stale: Annotated[
        tuple[Annotated[StaleRule, BeforeValidator(_read_stale_rule)], ...],
        BeforeValidator(list_of("stale_branches", "rules")),
        Field(validation_alias="stale_branches"),
    ] = ()
    tag_lines: tuple[int, ...] = field(default=(), compare=False)
    lifecycle: Annotated[yaml.Node | None, PlainValidator(lambda node: node)] = field(default=None, compare=False)

    def rules_of(self, branch: str) -> tuple[BranchRule, ...]:
        """The rules of a branch, by line: an exact name wins over patterns, then the longest pattern.

        Equally long patterns all apply together, so that a commit stays if one rule keeps it.
        """
        fitting = [rule for rule in self.rules if fits(rule.pattern, branch)]
        best = max((_precedence(rule.pattern) for rule in fitting), default=None)
        winning = [rule for rule in fitting if _precedence(rule.pattern) == best]
        return tuple(sorted(winning, key=lambda rule: rule.line))

    def keeps_tag(self, tag: str) -> bool:
        """True if the commit of a tag stays."""
        if isinstance(self.keep_tags, bool):
            return self.keep_tags
        return any(fits(pattern, tag) for pattern in self.keep_tags)

    def stale_rule_of(self, branch: str) -> StaleRule | None:
        """The first rule of stale branches that matches."""
        return next((rule for rule in self.stale if any(fits(pattern, branch) for pattern in rule.patterns)), None)

    def tag_names(self) -> Iterator[tuple[str, int]]:
        """Names and patterns of the tags whose commits stay, with their lines."""
        return iter(()) if isinstance(self.keep_tags, bool) else zip(self.keep_tags, self.tag_lines, strict=True)

    def stated(self) -> list[object]:
        """Everything that affects which commits stay, as JSON values."""
        return [
            None if self.default is None else self.default.total_seconds(),
            sorted((rule.pattern, rule.retention.total_seconds(), *_counted(rule)) for rule in self.rules),
            sorted(self.pinned),
            self.keep_tags,
            self.replace,
        ]


def _counted(rule: BranchRule) -> Iterator[object]:
    """Parts of a rule beside its duration. Empty if there are none, so that digests of such rules never changed."""
    if rule.keeps or rule.all_parents:
        yield rule.keeps, rule.all_parents


_POLICY = TypeAdapter(Annotated[Policy, BeforeValidator(_read_policy)])


@lru_cache(maxsize=2 * _MOST_RULES)
def _precedence(pattern: str) -> tuple[bool, int]:
    """True for a name, and the length, where `[abc]` counts as the one character that it matches."""
    return _is_exact(pattern), len(_CLASS.sub("?", pattern))


def _is_exact(pattern: str) -> bool:
    return not {"*", "?", "["}.intersection(pattern)


def fits(pattern: str, name: str) -> bool:
    """True if a name or pattern without braces matches a name."""
    return pattern == name if _is_exact(pattern) else _expression(pattern).fullmatch(name) is not None


# Bounded, since one process may read many policies; large enough for a policy's patterns.
@lru_cache(maxsize=2 * _MOST_RULES)
def _expression(pattern: str) -> re.Pattern[str]:
    # `translate` never backtracks over a matched star; with plain `.*`, a pattern of many stars would take forever.
    return re.compile(translate(pattern))


def may_fit(pattern: str, name: str) -> bool:
    """True if a pattern of the server matches a name, or if its syntax is unknown."""
    patterns = [*islice(expand_braces(pattern), _MOST_ALTERNATIVES + 1)]
    too_many = len(pattern) > _LONGEST_PATTERN or len(patterns) > _MOST_ALTERNATIVES
    if too_many or not all(map(_is_pattern, patterns)):
        return True
    return any(fits(each, name) for each in patterns)


def expand_braces(pattern: str) -> Iterator[str]:
    """Yields the patterns that `{a,b}` in a pattern stands for; their number may be unbounded."""
    parts = _BRACES.split(pattern)
    alternatives = [part.split(",") if number % 2 else [part] for number, part in enumerate(parts)]
    return map("".join, product(*alternatives))


def _is_pattern(text: str) -> bool:
    """True for a name, or a pattern without braces, whose ranges such as `a-c` ascend."""
    ranges = (each for group in _CLASS.findall(text) for each in _RANGE.findall(group))
    return _PATTERN.fullmatch(text) is not None and all(first <= last for first, last in ranges)


def in_units(duration: timedelta) -> str:
    """A duration as a policy file writes it."""
    hours = int(duration / timedelta(hours=1))
    if hours % 24:
        return f"{hours}h"
    return f"{hours // 24}d"


def load_policy(file: Path) -> Policy:
    """Reads a policy. Raises ConfigurationError, which names file, line and error."""
    return parse_policy(read_policy(file), str(file))


def read_policy(file: Path) -> str:
    """The text of a policy file. Raises ConfigurationError."""
    return _read_text(file, f"policy file {file}")


def _read_text(file: Path, name: str) -> str:
    """The text of a file. Raises ConfigurationError, which names the file by `name`."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{name} is not in UTF-8") from None


def parse_policies(texts: Mapping[str, str]) -> dict[str, Policy]:
    """The policies of some texts, by name; a policy's bounds hold for all together.

    Raises ConfigurationError.
    """
    if (characters := sum(map(len, texts.values()))) > _LONGEST_FILE:
        raise ConfigurationError(
            f"the policies of a launch may have at most {_LONGEST_FILE:,} characters; these have {characters:,}"
        )
    spent = _Spent()
    return {name: parse_policy(text, name, spent) for name, text in texts.items()}


def parse_policy(text: str, file: str, spent: _Spent | None = None) -> Policy:
    """The policy of a text; `file` is its name, for messages. Raises ConfigurationError."""
    if len(text) > _LONGEST_FILE:
        raise ConfigurationError(f"{file}: a policy may have {_LONGEST_FILE:,} characters, not {len(text):,}")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise ConfigurationError(f"{file}: lists and mappings are nested too deeply for a policy") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "the file is not YAML"
        raise ConfigurationError(f"{file}{line}: {problem}") from None
    return Policy() if root is None else validate(_POLICY, root, file, spent)


def validate(kind: TypeAdapter[Value], node: yaml.Node, file: str, spent: _Spent | None = None) -> Value:
    """A node of a policy as this kind. Raises ConfigurationError, which names file and lines."""
    try:
        return kind.validate_python(node, context=spent or _Spent())
    except ValidationError as invalid:
        faults = sorted(invalid.errors(include_url=False, include_input=False), key=lambda fault: fault["ctx"]["line"])
        shown = list(dict.fromkeys(fault["msg"] for fault in faults))[:_MOST_FAULTS]
        raise ConfigurationError(f"{file}, {'; '.join(shown)}") from None


def edit_policy(text: str, file: str, branch: str | None, retention: str | None) -> str:
    """The text of a policy with one rule changed; everything else stays unchanged, including comments.

    Args:
        file: its name, for messages.
        branch: a name or pattern; None for the default.
        retention: such as 21d; None removes the rule of the branch.
    Raises:
        ConfigurationError: the text before or after the change is not a policy, there is no rule to remove, or this
            function cannot edit the text's layout.
    """
    duration = None if retention is None else parse_duration(retention)
    before = parse_policy(text, file)
    after = parse_policy(edited := _edited(text, file, branch, retention), file)
    # In any layout of the text, the policy may differ only in this rule.
    expected = _rules(before)
    for name in [None] if branch is None else {*expand_braces(branch)}:
        rule = expected.pop(name, BranchRule(name or "", timedelta(), 0))
        if duration is not None:
            expected[name] = replace(rule, retention=duration)
    others = replace(before, default=after.default, rules=after.rules)
    if _rules(after) != expected or after != others or _written(after.lifecycle) != _written(before.lifecycle):
        raise ConfigurationError(f"{file}: this rule cannot be changed in this file's layout. Edit the file")
    return edited


def _written(node: yaml.Node | None) -> str:
    return "" if node is None else yaml.serialize(node, Dumper=yaml.SafeDumper)


def _rules(policy: Policy) -> dict[str | None, BranchRule]:
    """The rules by name and pattern, on any line; the default under None, if there is one."""
    rules: dict[str | None, BranchRule] = {rule.pattern: replace(rule, line=0) for rule in policy.rules}
    return rules if policy.default is None else {**rules, None: BranchRule("", policy.default, 0)}


def _edited(text: str, file: str, branch: str | None, retention: str | None) -> str:
    """Sets the value if there is one, adds the rule below the others, or removes it; see `edit_policy`."""
    text = text if text.endswith("\n") or not text else f"{text}\n"
    top = _entries(yaml.compose(text, Loader=yaml.SafeLoader))
    name = "default" if branch is None else branch
    branches = None if branch is None else top.get("branches", (None, None))[1]
    rules = top if branch is None else _entries(branches)
    entry = f"{name if _PLAIN_NAME.fullmatch(name) else json.dumps(name)}: {retention}"

    def replaced(node: yaml.Node, by: str) -> str:
        start, end = node.start_mark.index, node.end_mark.index
        return text[:start] + by + text[end:]

    if name in rules and retention is not None:
        node = rules[name][1]
        return replaced(_entries(node).get("retention", (None, node))[1], retention)
    if name not in rules and retention is None:
        raise ConfigurationError(f"{file}: there is no rule for {name}")
    if branches is None:
        return f"{text}{entry}\n" if branch is None else f"{text}branches:\n  {entry}\n"
    if not rules or text[branches.start_mark.index] == "{":
        kept = [text[key.start_mark.index : value.end_mark.index] for at, (key, value) in rules.items() if at != name]
        return replaced(branches, "{" + ", ".join(kept if retention is None else [*kept, entry]) + "}")
    lines = text.splitlines(keepends=True)
    if retention is None:
        first, end = rules[name][0].start_mark.line, _last_line(rules[name][1]) + 1
        del lines[first:end]
        # The value of an alias stands above its key: then nothing was removed.
        if len(rules) == 1 and end > first:
            at = top["branches"][0].end_mark
            lines[at.line] = lines[at.line][: at.column] + lines[at.line][at.column :].replace(":", ": {}", 1)
    else:
        key, value = [*rules.values()][-1]
        lines.insert(_last_line(value) + 1, " " * key.start_mark.column + entry + "\n")
    return "".join(lines)


def _last_line(node: yaml.Node) -> int:
    """The last line of a value. For a block mapping, YAML reports the line where the next key begins."""
    while isinstance(node, yaml.MappingNode) and not node.flow_style:
        node = node.value[-1][1]
    return int(node.end_mark.line)


def _entries(node: yaml.Node | None) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Keys of a mapping with their nodes; empty for other nodes."""
    return {key.value: (key, value) for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


_DAY = timedelta(days=1)
_CORRECT = "Correct the rules (`lakefs-gc policy set`, or `lakectl gc set-config`)"


@dataclass(frozen=True, slots=True)
class Rule:
    """The time for which a replaced head stays; `source` names the rule's origin.

    Attributes:
        keeps: counts of first parents that also stay, at any age.
        merged: retention of commits that merges brought in; None if only other rules apply to them.
    """

    retention: timedelta
    source: str
    keeps: Keeps = ()
    merged: timedelta | None = None

    def __str__(self) -> str:
        return f"{in_units(self.retention)} by {self.source}{self.more}"

    @property
    def more(self) -> str:
        """Parts of the rule beside its duration; empty if there are none."""
        counts = "".join(f", {name} {count}" for name, count in self.keeps)
        return counts if self.merged is None else f"{counts}, all parents {in_units(self.merged)}"


@dataclass(frozen=True, slots=True)
class EffectiveRules:
    """The rules of existing branches, and the rule of dangling commits."""

    default: Rule
    branches: dict[str, Rule]

    def of(self, branch: str | None) -> Rule:
        """The rule of a branch; of dangling commits for None."""
        return self.default if branch is None else self.branches[branch]


def require_sane(server: RetentionRules) -> None:
    """Raises ConfigurationError if a number of days is out of range."""
    longest = LONGEST_RETENTION.days
    of_branches = ((f"the rule of branch {branch}", days) for branch, days in server.branches.items())
    for what, days in (("default_retention_days", server.default_days), *of_branches):
        if not 0 <= days <= longest:
            wrong = f"negative ({days} days)" if days < 0 else f"{days} days, more than the maximum of {longest:,}"
            raise ConfigurationError(f"the repository's retention rules: {what} is {wrong}. {_CORRECT}")


def effective(server: RetentionRules | None, policy: Policy, branches: Iterable[str]) -> EffectiveRules | None:
    """The rules that apply; None if everything is kept.

    Args:
        server: None if the repository has no rules.
        branches: all existing branches.
    Raises:
        ConfigurationError: a rule of the server is out of range.
    """
    if server is not None:
        require_sane(server)
    default = None if policy.default is None else Rule(policy.default, "the policy's default")
    if policy.replace:
        if default is None:
            raise ConfigurationError("a policy that replaces the server's rules needs a default")
        return EffectiveRules(default, {branch: _of_policy(policy, branch) or default for branch in branches})
    if server is None:
        return None
    base = Rule(server.default_days * _DAY, "the server's default")
    own = {branch: Rule(days * _DAY, f"the server's rule of {branch}") for branch, days in server.branches.items()}
    of_branches = {branch: (own.get(branch, base), _of_policy(policy, branch) or default) for branch in branches}
    return EffectiveRules(_longer(base, default), {branch: _longer(*both) for branch, both in of_branches.items()})


def unknown_names(
    server: RetentionRules | None, policy: Policy, branches: Iterable[str], tags: Iterable[str]
) -> tuple[str, ...]:
    """Names of missing branches and tags in rules that keep something: they may be deleted or misspelt."""
    known = {"branch": set(branches), "tag": set(tags)}
    stated = [(f"the server's rule of {branch}", "branch", branch) for branch in (server.branches if server else ())]
    stated += [each for each in _stated_names(policy) if _is_exact(each[2])]
    return tuple(f"{source}: there is no such {kind}" for source, kind, name in stated if name not in known[kind])


def fitting_nothing(policy: Policy, branches: Collection[str], tags: Collection[str]) -> Iterator[str]:
    """Patterns that match no branch or tag, and names of stale branches that do not exist, with their lines.

    They may be for future branches, or misspelt. `unknown_names` has all other names.
    """
    stated = [each for each in _stated_names(policy) if not _is_exact(each[2])]
    for stale in policy.stale:
        stated += [(f"{name} in the policy's stale_branches, {stale}", "branch", name) for name in stale.patterns]
    for source, kind, pattern in stated:
        if not any(fits(pattern, name) for name in (branches if kind == "branch" else tags)):
            yield f"{source}, matches no {kind}"


def _stated_names(policy: Policy) -> Iterator[tuple[str, str, str]]:
    """Where each rule that keeps something is stated, whether it is for a branch or a tag, and its name or pattern."""
    for rule in policy.rules:
        yield f"the policy's rule of {rule.pattern}, line {rule.line}", "branch", rule.pattern
    for name, line in policy.tag_names():
        yield f"{name} in the policy's keep_tags, line {line}", "tag", name


def headless(rules: EffectiveRules) -> Iterator[str]:
    """Warnings about rules of zero days, which keep only branch heads."""
    branches = [branch for branch, rule in rules.branches.items() if not (rule.retention or rule.keeps or rule.merged)]
    if branches:
        named = ", ".join(sorted(branches)[:10]) + (" …" if len(branches) > 10 else "")
        yield (
            f"RETENTION OF ZERO: {len(branches)} of {len(rules.branches)} branches keep only their head, not the "
            f"commits before it ({named})"
        )
    if not rules.default.retention:
        yield f"RETENTION OF ZERO: no dangling commit is kept ({rules.default.source})"


def digest(server: RetentionRules | None, policy: Policy, commit_dates: CommitDates) -> str:
    """Digest of the rules: two runs with the same digest applied the same rules to dates of the same kind."""
    stated = None if server is None else [server.default_days, sorted(server.branches.items())]
    return hashlib.sha256(json.dumps([stated, policy.stated(), commit_dates]).encode()).hexdigest()


def _of_policy(policy: Policy, branch: str) -> Rule | None:
    """The rule that a policy has for a branch, besides its default."""
    rules = policy.rules_of(branch)
    if not rules:
        return None
    named = " and ".join(f"{rule.pattern}, line {rule.line}" for rule in rules)
    limits = sorted((count_number(name), limit, name) for rule in rules for name, limit in rule.keeps)
    return Rule(
        retention=max(rule.retention for rule in rules),
        source=f"the policy's rule {named}" if len(rules) == 1 else f"the policy's rules {named}",
        keeps=tuple({name: limit for _, limit, name in limits}.items()),  # The highest limit comes last.
        merged=max((rule.merged for rule in rules if rule.merged is not None), default=None),
    )


def _longer(first: Rule, second: Rule | None) -> Rule:
    """The longer rule of the server's and the policy's, with the commits that the policy also keeps."""
    if second is None or second.retention > first.retention:
        return second or first
    return replace(first, keeps=second.keeps, merged=second.merged)


class _ServerRule(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    branch_id: Annotated[str, Field(min_length=1)]
    retention_days: int


class _ServerRules(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    default_retention_days: int
    branches: list[_ServerRule] | None = None


def load_server_rules(file: Path) -> RetentionRules:
    """Reads rules. Raises ConfigurationError if they are not such JSON, or out of range."""
    try:
        stated = _ServerRules.model_validate_json(_read_text(file, str(file)))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigurationError(
            f"{file}: {problems.removeprefix(': ')}. The server's rules are JSON as for `lakectl gc set-config`: an "
            "object with default_retention_days and branches, a list of objects with branch_id and retention_days. For "
            "a policy in YAML, use the setting collection.retention_policy"
        ) from None
    branches: dict[str, int] = {}
    for rule in stated.branches or ():
        if rule.branch_id in branches:
            raise ConfigurationError(f"{file}: there are two rules for branch {rule.branch_id}")
        branches[rule.branch_id] = rule.retention_days
    rules = RetentionRules(stated.default_retention_days, branches)
    require_settable(rules, str(file))
    return rules


def require_settable(server: RetentionRules, source: str) -> None:
    """Raises ConfigurationError, which names `source`, for rules out of range, or that lakeFS treats as no rules."""
    require_sane(server)
    if not server.default_days and not server.branches:
        raise ConfigurationError(
            f"{source}: lakeFS treats zero days for everything as no rules, so everything would stay. "
            "Name at least one branch"
        )


def edit_server_rules(server: RetentionRules | None, branch: str | None, retention: str | None) -> RetentionRules:
    """The server's rules with one rule changed, as in `edit_policy`. Raises ConfigurationError."""
    source = "the server's rules"
    duration = timedelta() if retention is None else parse_duration(retention)
    if duration % _DAY:
        raise ConfigurationError(f"{source} count whole days, not {retention}: use a policy file for hours")
    if branch and retention and not (_is_pattern(branch) and _is_exact(branch)):
        raise ConfigurationError(f"{source} name branches, not patterns such as {branch}: use a policy file")
    branches = dict(server.branches) if server else {}
    if branch is None:
        edited = RetentionRules(duration // _DAY, branches)
    elif server is None:
        raise ConfigurationError("the server has no rules: set a default first (`lakefs-gc policy set-default 30d`)")
    else:
        if retention is not None:
            branches[branch] = duration // _DAY
        elif branches.pop(branch, None) is None:
            raise ConfigurationError(f"{source}: there is no rule for {branch}")
        edited = RetentionRules(server.default_days, branches)
    require_settable(edited, source)
    return edited
