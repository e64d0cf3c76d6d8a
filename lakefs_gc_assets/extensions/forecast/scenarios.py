"""Scenarios: commits that stay under other rules, or without a branch or tag, and the holders of commits.

All answers use one reading of refs, rules and the server's own list, and the functions of a run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.commits import distinct_metaranges
from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.retention import rules as retention_rules
from lakefs_gc_assets.collector.retention.active_commits import Flags, active_commits, date, kept_alone
from lakefs_gc_assets.collector.retention.retention import LiveDefinition, Readings, Retention
from lakefs_gc_assets.collector.retention.rules import LONGEST_RETENTION, EffectiveRules, Policy
from lakefs_gc_assets.errors import ConfigurationError, counted
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns

AGES: tuple[int | None, ...] = (0, 1, 3, 7, 14, 30, 60, 90, 180, 365, None)
"""Default retention periods in days; None for unlimited."""

WORD = 8
"""Bytes of a word."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Retention rules, or the deletion of a branch or tag under the rules in force.

    Attributes:
        name: name of the policy, branch or tag, or a number of days.
        days: retention of a scenario by age; None for unlimited.
        commits_expired: number of commits that would be expired.
        notes: warnings for users, such as why a sweep would be refused.
    """

    kind: ScenarioKind
    name: str
    commits_expired: int
    days: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ByteHolder:
    """A branch or tag under the rules in force, or everything else that keeps commits.

    Attributes:
        kind: None for everything else: dangling commits, pins, the server's own list and, without rules, merged commits
            on no main ancestry.
        commits: number of commits it keeps.
        head_made_at: creation time of the commit it points to, UTC; None for everything else.
        stale: True if the policy calls the branch stale.
    """

    kind: ScenarioKind | None
    name: str
    commits: int
    head_made_at: datetime | None = None
    stale: bool = False


@dataclass(frozen=True)
class Questions:
    """All questions of a forecast, and for each metarange the scenarios that keep it and its holders.

    Attributes:
        scenarios: scenario k is bit k. Scenarios by rules come first, starting with the rules in force.
        holders: their bits follow the scenarios' bits, in order.
        metaranges: bits by metarange, for the repository's commits.
        width: bytes of a set of bits.
        definition: the live commits and ranges under the rules in force.
    """

    scenarios: tuple[Scenario, ...]
    holders: tuple[ByteHolder, ...]
    metaranges: Mapping[str, int]
    width: int
    definition: LiveDefinition

    @property
    def by_rules(self) -> int:
        """The bits of scenarios by rules."""
        return (1 << sum(scenario.kind.by_rules for scenario in self.scenarios)) - 1

    @property
    def with_all_heads(self) -> int:
        """The bits of scenarios in which every branch head stays."""
        return sum(1 << at for at, scenario in enumerate(self.scenarios) if scenario.kind is not ScenarioKind.BRANCH)

    @property
    def every_scenario(self) -> int:
        """The bits of all scenarios."""
        return (1 << len(self.scenarios)) - 1


def ask(
    repository: OpenRepository,
    readings: Readings,
    now: datetime,
    ages: Sequence[int | None] = AGES,
    policies: Mapping[str, Policy] | None = None,
) -> Questions:
    """Computes the commits that stay in each scenario, and the commits of each holder under the rules in force.

    Args:
        readings: read under the rules in force.
        now: the moment from which ages count back; the earliest of several clocks.
        ages: retention in days for every branch and dangling commits, replacing all rules; tags and pins stay as they
            are. None is unlimited.
        policies: other policies by name, each replacing the policy in force.
    Raises:
        ConfigurationError: rules or ages are invalid.
        LakeFSError: the graph of commits is incomplete.
    """
    asked = _Asked(repository, readings, now)
    scenarios, holders = [], []
    bits = _Bits(len(readings.dump.commits))
    for scenario, stays in (
        *asked.in_force(),
        *asked.by_age(ages),
        *asked.by_policy(policies or {}),
        *asked.deletions(),
    ):
        scenarios.append(scenario)
        bits.add(stays)
    for holder, has in asked.holders():
        holders.append(holder)
        bits.add(has)
    metaranges = bits.of_metaranges(readings.dump.commits)
    # The server listed these commits after the dump was made: they stay under any rules.
    late = (1 << len(scenarios)) - 1 | 1 << bits.count - 1
    for metarange_id in {*asked.retained.late.values()} - {""}:
        metaranges[metarange_id] = metaranges.get(metarange_id, 0) | late
    return Questions(tuple(scenarios), tuple(holders), metaranges, bits.width, asked.definition)


class _Bits:
    """Bits of each commit, eight flags to a byte in the order they are added."""

    def __init__(self, commits: int) -> None:
        self.count = 0
        self._commits = commits
        self._bytes: list[npt.NDArray[np.uint8]] = []

    @property
    def width(self) -> int:
        """Bytes of a set, rounded up to whole words."""
        return -(-self.count // (8 * WORD)) * WORD

    def add(self, flags: Flags) -> None:
        """Adds one bit."""
        if self.count % 8 == 0:
            self._bytes.append(np.zeros(self._commits, np.uint8))
        self._bytes[-1] |= flags.astype(np.uint8) << self.count % 8
        self.count += 1

    def of_metaranges(self, commits: CommitColumns) -> dict[str, int]:
        """The bits of each metarange, united over its commits, in the order of `distinct_metaranges`."""
        ids = distinct_metaranges(commits)
        places = pc.index_in(commits.metarange_ids, value_set=ids)
        has_one, at = places.is_valid().to_numpy(zero_copy_only=False), places.drop_null().to_numpy()
        bits = np.zeros((len(ids), len(self._bytes)), np.uint8)
        for number, each in enumerate(self._bytes):
            np.bitwise_or.at(bits[:, number], at, each[has_one])
        return {
            metarange_id: int.from_bytes(bits[number].tobytes(), "little")
            for number, metarange_id in enumerate(ids.to_pylist())
        }


class _Asked:
    """Computes each scenario from one reading."""

    def __init__(self, repository: OpenRepository, readings: Readings, now: datetime) -> None:
        self.repository, self.readings, self.now = repository, readings, now
        self.retained = self._retained(readings)
        self.definition = retention.define(self.retained, repository.settings, now)

    def _retained(self, readings: Readings) -> Retention:
        return retention.retention(self.repository, readings, self.now)

    def in_force(self) -> Iterator[tuple[Scenario, Flags]]:
        """The rules in force."""
        yield (
            self._scenario(ScenarioKind.IN_FORCE, "rules in force", self.retained, _notes(self.definition)),
            self.retained.flags,
        )

    def by_age(self, ages: Sequence[int | None]) -> Iterator[tuple[Scenario, Flags]]:
        """One retention period for everything, replacing all rules."""
        for days in ages:
            if days is None:
                stays = np.ones(len(self.readings.dump.commits), np.bool_)
                yield Scenario(ScenarioKind.AGE, "unlimited", 0), stays
                continue
            if not 0 <= days <= LONGEST_RETENTION.days:
                raise ConfigurationError(f"a retention of {days} days: give 0 to {LONGEST_RETENTION.days:,} days")
            retained = self._retained(replace(self.readings, policy=of_age(self.readings.policy, days)))
            yield self._scenario(ScenarioKind.AGE, counted(days, "days"), retained, (), days), retained.flags

    def by_policy(self, policies: Mapping[str, Policy]) -> Iterator[tuple[Scenario, Flags]]:
        """Other policies."""
        for name, policy in policies.items():
            retained = self._retained(replace(self.readings, policy=policy))
            definition = retention.define(retained, self.repository.settings, self.now)
            yield self._scenario(ScenarioKind.POLICY, name, retained, _notes(definition)), retained.flags

    def _scenario(
        self, kind: ScenarioKind, name: str, retained: Retention, notes: tuple[str, ...], days: int | None = None
    ) -> Scenario:
        return Scenario(kind, name, int((~retained.flags).sum()), days, notes)

    def deletions(self) -> Iterator[tuple[Scenario, Flags]]:
        """Deletion of each tag, and of each branch except the default branch, under the rules in force.

        The head of a deleted branch becomes a dangling commit. The server's own list depends on branches, too: commits
        that it lists beyond the definition are assumed to stay listed after the deletion.
        """
        graph, active = self.retained.graph, self.retained.active
        listed_alone = self._listed_alone()
        for branch in sorted(graph.heads):
            if branch == self.repository.facts.default_branch:
                continue
            flags = self.retained.flags
            if active is not None:
                rules = EffectiveRules(
                    active.rules.default,
                    {name: rule for name, rule in active.rules.branches.items() if name != branch},
                )
                flags = active_commits(graph.without(branch), rules, self.now).flags | listed_alone
                flags[[*self.retained.tags, *self.retained.pins]] = True
            yield Scenario(ScenarioKind.BRANCH, branch, int((~flags).sum())), flags
        for at, tags in self.retained.tags.items():
            kept_all_the_same = (
                active is None or active.flags[at] or at in self.retained.pins or at in self.retained.listed
            )
            for tag in tags:
                flags = self.retained.flags.copy()
                flags[at] = bool(kept_all_the_same) or len(tags) > 1
                yield Scenario(ScenarioKind.TAG, tag, int((~flags).sum())), flags

    def _listed_alone(self) -> Flags:
        """The commits in the server's list that the definition by the server's rules does not include."""
        alone = np.zeros(len(self.retained.graph.commits), np.bool_)
        alone[self.retained.listed] = True
        rules = retention_rules.effective(self.readings.rules, Policy(), self.readings.dump.branches)
        if alone.any() and rules is not None:
            alone &= ~active_commits(self.retained.graph, rules, self.now).flags
        return alone

    def holders(self) -> Iterator[tuple[ByteHolder, Flags]]:
        """Each branch with the commits its walk keeps, each tag with its commit, and everything else that stays."""
        graph, active = self.retained.graph, self.retained.active
        stale = {each.branch for each in self.definition.stale}
        rest = self.retained.flags.copy()
        for branch, head in sorted(graph.heads.items()):
            flags = kept_alone(graph, branch, None if active is None else active.rules.branches[branch], self.now)
            rest &= ~flags
            made_at = date(graph.commits, head)
            yield ByteHolder(ScenarioKind.BRANCH, branch, int(flags.sum()), made_at, branch in stale), flags
        for tag, commit_id in sorted(self.readings.dump.tags.items()):
            flags = np.zeros(len(graph.commits), np.bool_)
            at = int(graph.commits.positions(pa.array([commit_id], pa.string()))[0])
            flags[at] = self.readings.policy.keeps_tag(tag) or active is None
            rest &= ~flags
            yield ByteHolder(ScenarioKind.TAG, tag, int(flags.sum()), date(graph.commits, at)), flags
        yield ByteHolder(None, "dangling commits, pins and others", int(rest.sum())), rest


def of_age(policy: Policy, days: int) -> Policy:
    """A policy with one retention period for everything, and with the tags and pins of the given policy."""
    return replace(policy, default=timedelta(days=days), rules=(), stale=(), stale_after=None, replace=True)


def _notes(definition: LiveDefinition) -> tuple[str, ...]:
    return (*definition.warnings, *definition.refusals())
