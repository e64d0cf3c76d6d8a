"""Rules of object lifecycle, the list `lifecycle` in a policy file:

lifecycle:
  - name: raw
    branches: main               # names and patterns, as in stale_branches
    paths: raw/                  # everything below a folder; or a whole path; `*` is any text without a slash, `**` any
    older_than: 90d              # by the time of the object
    except: raw/reference/       # these stay
  - name: staging
    branches: [main, "dev-*"]
    paths: ["**/staging/**", "tmp/*.csv"]
    unchanged_for: 30d           # since the path got its object, by the commits of the branch
  - name: daily
    branches: main
    paths: tables/
    keep_newest: 30
    of: partitions               # or `objects`: the newest of each folder by their time
    partition: dt                # folders such as dt=2026-11-29

The first rule of a branch whose `paths` match an object decides, also about an object that its `except` matches: it
stays. Path patterns run on RE2, whose time is linear in the length of a path.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter, ValidationInfo

from lakefs_gc_assets.collector.retention.retention import policy_of
from lakefs_gc_assets.collector.retention.rules import (
    Count,
    Policy,
    count_pattern,
    fault_at,
    fits,
    in_units,
    line_of,
    list_of,
    names_of,
    parse_duration,
    pattern_text,
    read_word,
    validate,
    values_of,
)
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.addresses import parse_wildcards
from lakefs_gc_assets.settings import CollectionSettings

_MOST_RULES = 100
_MOST_PATHS = 100
"""Maximum paths of a rule. Each is matched against each entry, and a launch may bring policies."""
_NAME = re.compile(r"[a-z0-9-]{1,60}", re.ASCII)
_PARTITION = re.compile(r"[\w.-]{1,100}", re.ASCII)
_KINDS = ("older_than", "unchanged_for", "keep_newest")
_KEYS = ("name", "branches", "paths", "except", *_KINDS, "of", "partition")
Flags = npt.NDArray[np.bool_]
_OF_LAKEFS = b"_lakefs"
"""Begin of paths that configure lakeFS, such as its actions. Only a rule that names them deletes them."""
NO_RULE, EXCEPTED = -1, -2
"""Numbers in place of a rule's: no rule matches the path, or the first rule that does excepts it."""


class Unit(StrEnum):
    """The things that `keep_newest` counts."""

    PARTITIONS = "partitions"
    OBJECTS = "objects"


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A path, a folder or a pattern of a rule.

    Attributes:
        prefix: the text before the first wildcard.
        expression: regular expression of RE2 for whole paths; empty if the prefix is the whole path.
        is_folder: True if everything with the prefix matches.
    """

    prefix: bytes
    expression: str = ""
    is_folder: bool = False

    @classmethod
    def parse(cls, text: str) -> "PathPattern":
        """Parses a pattern, see `parse_wildcards`."""
        prefix, expression = parse_wildcards(text)
        is_below = text.endswith("/")
        if not expression:
            return cls(prefix.encode(), is_folder=is_below)
        return cls(prefix.encode(), rf"(?s)\A{expression}{'.*' if is_below else ''}\z")

    def may_match(self, first: bytes, last: bytes) -> bool:
        """True if it may match a path between two, both included."""
        if not self.is_folder and not self.expression:
            return first <= self.prefix <= last
        return self.prefix <= last and first[: len(self.prefix)] <= self.prefix

    def matches(self, paths: pa.BinaryArray) -> Flags:
        """True for each path that it matches."""
        if not self.is_folder and not self.expression:
            return as_flags(pc.equal(paths, self.prefix))
        begins = as_flags(pc.starts_with(paths, self.prefix))
        if self.expression and begins.any():
            # On binary data, Arrow's RE2 matches bytes, so paths need not be UTF-8.
            begins[begins] = as_flags(pc.match_substring_regex(paths.filter(pa.array(begins)), self.expression))
        return begins


def as_flags(column: pa.BooleanArray) -> Flags:
    """A column without nulls as flags, which may be changed."""
    flags: Flags = column.to_numpy(zero_copy_only=False).copy()
    return flags


def _parse_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ConfigurationError(f"{text!r} is no name of a rule: use up to 60 of a-z, 0-9 and -")
    return text


def _parse_partition(text: str) -> str:
    if not _PARTITION.fullmatch(text):
        raise ConfigurationError(f"{text!r} is no key of partitions: write dt for folders such as dt=2026-11-29")
    return text


def _parse_unit(text: str) -> Unit:
    if text not in (*Unit,):
        raise ConfigurationError(f"{text!r} is neither partitions nor objects")
    return Unit(text)


def _parse_period(text: str) -> timedelta:
    if not (period := parse_duration(text)):
        raise ConfigurationError(f"{text} lets everything expire at once")
    return period


def _read_paths(node: yaml.Node, info: ValidationInfo, key: str) -> tuple[PathPattern, ...]:
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not 0 < len(items) <= _MOST_PATHS:
        raise fault_at(node, f"{key} must have 1 to {_MOST_PATHS} paths")
    patterns = []
    for item in items:
        text = pattern_text(item, "paths")
        if not text or text == "/" or text.endswith("\\"):
            raise fault_at(item, f"{text!r} is no path: write ** for everything, and \\\\ for a backslash")
        count_pattern(item, info, text)
        patterns.append(PathPattern.parse(text))
    return tuple(patterns)


def _read_rule(node: yaml.Node, info: ValidationInfo) -> dict[str, object]:
    parts = values_of(node, "a rule of lifecycle", _KEYS)
    for key in ("name", "branches", "paths"):
        if key not in parts:
            raise fault_at(node, f"a rule of lifecycle needs `{key}`")
    if len(kinds := [key for key in _KINDS if key in parts]) != 1:
        raise fault_at(node, f"a rule of lifecycle needs one of {', '.join(_KINDS)}, and has {len(kinds)}")
    if (kinds == ["keep_newest"]) != ("of" in parts):
        raise fault_at(node, "`keep_newest` needs `of`: partitions or objects; other rules have none")
    if ("of" in parts and parts["of"].value == Unit.PARTITIONS) != ("partition" in parts):
        raise fault_at(node, "`of: partitions` needs `partition`, such as dt; other rules have none")
    branches = [pattern for pattern, _ in names_of(parts.pop("branches"), info, "branches")]
    if not branches:
        raise fault_at(node, "a rule of lifecycle needs `branches`: names and patterns")
    paths: dict[str, object] = {
        key: _read_paths(parts.pop(key), info, key) for key in ("paths", "except") if key in parts
    }
    return {"branches": branches, "line": line_of(node), **parts, **paths}


def _read_rules(node: yaml.Node) -> list[yaml.Node]:
    items = list_of("lifecycle", "rules")(node)
    if len(items) > _MOST_RULES:
        raise fault_at(node, f"lifecycle may have at most {_MOST_RULES} rules")
    names = set[str]()
    for item in items:
        for key, value in item.value if isinstance(item, yaml.MappingNode) else ():
            if key.value == "name" and isinstance(value, yaml.ScalarNode):
                if value.value in names:
                    raise fault_at(value, f"the name {value.value} appears twice")
                names.add(value.value)
    return items


_Period = Annotated[timedelta, PlainValidator(read_word("a duration such as 36h, 21d or 6w", _parse_period))]
_Paths = Annotated[tuple[PathPattern, ...], PlainValidator(lambda value: value)]


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    """A rule: the entries at some paths of some branches that expire.

    Attributes:
        branches: names and patterns, without braces.
        paths: an entry fits the rule if one of them matches.
        exceptions: entries that fit the rule and stay.
        older_than: the time of the object must lie longer ago.
        unchanged_for: the path must have had its object for longer.
        keep_newest: number of the newest partitions or objects of each folder that stay.
        partition: key of partitions; empty for objects.
        line: line in the policy file.
    """

    name: Annotated[str, PlainValidator(read_word("a name", _parse_name))]
    branches: tuple[str, ...]
    paths: _Paths
    exceptions: Annotated[_Paths, Field(validation_alias="except")] = ()
    older_than: _Period | None = None
    unchanged_for: _Period | None = None
    keep_newest: Count | None = None
    of: Annotated[Unit, PlainValidator(read_word("partitions or objects", _parse_unit))] = Unit.OBJECTS
    partition: Annotated[str, PlainValidator(read_word("a key of partitions", _parse_partition))] = ""
    line: int = 0

    @property
    def period(self) -> timedelta | None:
        """The period of the rule; None if it counts."""
        return self.older_than or self.unchanged_for

    def __str__(self) -> str:
        if self.keep_newest is not None:
            of_what = f"partitions by {self.partition}" if self.partition else "objects of each folder"
            return f"{self.name}: all but the newest {self.keep_newest:,} {of_what}"
        kind = "older than" if self.older_than else "unchanged for"
        return f"{self.name}: {kind} {in_units(self.period or timedelta())}"


_RULES = TypeAdapter(
    Annotated[
        tuple[Annotated[LifecycleRule, BeforeValidator(_read_rule)], ...],
        BeforeValidator(_read_rules),
    ]
)


Rules = tuple[LifecycleRule, ...]
"""Rules in order."""


def parse_rules(policy: Policy, file: str) -> Rules:
    """The rules of a policy. Raises ConfigurationError, which names the file and lines."""
    return () if policy.lifecycle is None else validate(_RULES, policy.lifecycle, file)


def read_rules(settings: CollectionSettings) -> Rules:
    """The rules in the policy file of the settings.

    Raises ConfigurationError if there are none, or for an error in the file, which it names with its line.
    """
    if not (rules := parse_rules(policy_of(settings), settings.retention_policy)):
        raise ConfigurationError(
            "no rule lets objects expire: add rules under lifecycle in the file of collection.retention_policy"
        )
    return rules


def rules_of(rules: Rules, branch: str) -> Rules:
    """The rules that a branch fits."""
    return tuple(rule for rule in rules if any(fits(pattern, branch) for pattern in rule.branches))


def may_match(rules: Rules, first: bytes, last: bytes) -> bool:
    """True if a rule may match a path between two, both included."""
    return any(pattern.may_match(first, last) for rule in rules for pattern in rule.paths)


def assign(rules: Rules, paths: pa.BinaryArray) -> npt.NDArray[np.int16]:
    """The number of the rule that decides about each path; NO_RULE or EXCEPTED for a path that stays."""
    chosen = np.full(len(paths), NO_RULE, np.int16)
    is_of_lakefs = as_flags(pc.starts_with(paths, _OF_LAKEFS))
    for number, rule in enumerate(rules):
        fitting = _match_any(rule.paths, paths, is_of_lakefs) & (chosen == NO_RULE)
        if fitting.any():
            chosen[fitting] = number
            chosen[fitting & _match_any(rule.exceptions, paths, np.False_)] = EXCEPTED
    return chosen


def _match_any(patterns: Sequence[PathPattern], paths: pa.BinaryArray, is_reserved: Flags | np.bool_) -> Flags:
    """True for each path that a pattern matches, and that is not reserved or that the pattern begins to spell out."""
    matching = np.zeros(len(paths), np.bool_)
    for pattern in patterns:
        matching |= pattern.matches(paths) & (pattern.prefix.startswith(_OF_LAKEFS) | ~is_reserved)
    return matching
