"""Live commits under retention: the active commits by our own definition, tags, pins, and the server's list.

Retention needs the complete commit graph, which only a refs dump gives. If the server refuses to dump, only a
repository without rules can be collected. A commit stays if our definition or the server's list keeps it. That list can
lack commits that must stay, and it can have commits that were made after the dump.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits as live_commits
from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.commits import Dump, LiveCommits, ServerCommits, server_commits, times_written
from lakefs_gc_assets.collector.frame.frames import ReasonsToStay
from lakefs_gc_assets.collector.records.own_commits import list_own_commits
from lakefs_gc_assets.collector.records.report import WOULD_BE_REFUSED
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import rules as retention_rules
from lakefs_gc_assets.collector.retention.active_commits import (
    LAST_HOLDERS,
    Active,
    Flags,
    Graph,
    active_commits,
    date,
    dated_by_files,
    last_holders,
    names_by_position,
    positions_by_name,
    read_expired_before,
)
from lakefs_gc_assets.collector.retention.rules import Policy
from lakefs_gc_assets.errors import (
    AccessDenied,
    CorruptFile,
    GuardTripped,
    LakeFSError,
    LogLine,
    NotFound,
    NotSupported,
    counted,
)
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns, Integers
from lakefs_gc_assets.settings import CollectionSettings

_LINES = 20
NO_RULES = "the repository has no retention rules, so every commit stays"


@dataclass(frozen=True, slots=True)
class Readings:
    """Inputs of retention.

    Attributes:
        dump: commits with their claimed dates.
        rules: the server's rules; None if it has none.
        listed: the server's own list; None if it has no rules for one.
        written: write times of the commits' metarange files, as `dated_by_files` needs it; None if claimed dates are
            trusted.
        expired_before: metaranges that only expired commits had when earlier sweeps deleted objects.
        lifecycle: ids of commits that object lifecycle made, by its receipts.
    """

    dump: Dump
    rules: RetentionRules | None
    policy: Policy
    listed: ServerCommits | None
    written: Integers | None
    expired_before: pa.ChunkedArray
    lifecycle: frozenset[str]


@dataclass(frozen=True, slots=True)
class Retention:
    """Commits that stay, and the reasons; commits are positions in the dump.

    Attributes:
        readings: its inputs.
        graph: the graph with the dates that count.
        active: commits that the definition keeps; None if every commit stays.
        tags, pins: commits that also stay because of tags and pins.
        listed: commits that stay because the server's list has them.
        late: commits of the server's list that the dump lacks, each with its metarange, empty for a commit without
            objects.
        flags: True for each commit of the dump that stays.
        by_files: True for each commit of the dump that stays only because the date of a file or a parent is later than
            a claimed one.
        in_doubt: True for each commit of the dump that stays only because a rule counts and its date is in doubt.
        before: retention by the branches, tags, rules and policy before uncommitted data was prepared; None if they
            were the same. `flags` includes both.
    """

    readings: Readings
    graph: Graph
    active: Active | None
    tags: dict[int, tuple[str, ...]]
    pins: frozenset[int]
    listed: Integers
    late: dict[str, str]
    flags: Flags
    by_files: Flags
    in_doubt: Flags
    before: "Retention | None" = None

    def why(self, at: int) -> tuple[str, ...]:
        """Every reason for a commit to stay; none if it is expired. Raises ValueError if it stays without a reason."""
        if self.active is None:
            return (NO_RULES,)
        reasons = [self.active.why(at)] if self.active.flags[at] else []
        if self.by_files[at]:
            reasons = [f"{reason}, by the time of its files; the commit claims an older date" for reason in reasons]
        reasons += [f"tag {tag}" for tag in self.tags.get(at, ())]
        if at in self.pins:
            reasons.append("pinned by the policy")
        if not reasons and self.before is not None:
            reasons = [f"{reason}, as of the time before uncommitted data was read" for reason in self.before.why(at)]
        if not reasons and at in self.listed:
            reasons.append("in the server's own list, by its clock and its rules at that time")
        if self.flags[at] and not reasons:
            raise ValueError(f"commit {self.graph.commits.ids[at]} stays without a known reason")
        return tuple(reasons)


@dataclass(frozen=True, slots=True)
class Difference:
    """A commit that only the definition or only the server's list keeps, by the server's rules."""

    commit_id: str
    kept_by: Literal["definition", "server"]
    why: str

    def __str__(self) -> str:
        return f"commit {self.commit_id} is kept only by the {self.kept_by}: {self.why}"


@dataclass(frozen=True, slots=True)
class StaleBranch:
    """A branch that users left alone for longer than the policy's `stale_after`. It keeps all objects of its head.

    Attributes:
        head_made_at: when its newest commit was made that object lifecycle did not make, UTC.
    """

    branch: str
    head_made_at: datetime

    def __str__(self) -> str:
        return f"branch {self.branch} is stale: its last commit was made at {self.head_made_at:%F %T}Z"


@dataclass(frozen=True, slots=True)
class LiveDefinition:
    """Commits that a run by retention rules keeps, and commits whose objects it may delete.

    Attributes:
        live: the commits that stay, in the same form as all commits in flows without retention.
        expired_metaranges: metaranges that only expired commits have.
        rules_digest: digest of the rules, including the policy; another digest means another live definition.
        counts: number of commits by reason.
        differences: differences between the definition and the server's list.
        warnings: lines to show before anything else.
        guards: guards that the rules trip, so that no sweep may rely on them; a dry run shows them as warnings.
        stale: branches whose heads are older than the policy's `stale_after`.
        last_holders: last commits of expired metaranges, and the rules that let them expire (LAST_HOLDERS).
    """

    live: LiveCommits
    expired_metaranges: tuple[str, ...]
    rules_digest: str
    counts: dict[str, int]
    differences: tuple[Difference, ...] = ()
    warnings: tuple[str, ...] = ()
    guards: tuple[GuardTripped, ...] = ()
    stale: tuple[StaleBranch, ...] = ()
    last_holders: pa.Table = field(default_factory=LAST_HOLDERS.empty_table, repr=False)

    @property
    def summary(self) -> str:
        """How many commits stay and how many are expired."""
        known, expired = self.counts["commits_known"], self.counts["commits_expired"]
        return f"of {counted(known, 'commits')} {self.live.commits:,} stay, {expired:,} are expired"

    def refusals(self) -> Iterator[str]:
        """Warnings about the guards that a sweep by these rules would trip."""
        return (f"{WOULD_BE_REFUSED}{guard}" for guard in self.guards)


def live_definition(
    repository: OpenRepository,
    now: datetime,
    prepared_until: datetime,
    note: LogLine = lambda message: None,
    before: ReasonsToStay | None = None,
    *,
    at_once: bool = False,
) -> LiveDefinition:
    """Reads refs, rules, policy and the server's list again, and computes the commits that stay.

    Args:
        now: the moment from which ages count back, UTC; of several clocks the earliest, which keeps most.
        prepared_until: end of the last preparation of uncommitted data, UTC; the dump starts a set time later.
        note: writes a line to the log: warnings first, then differences.
        before: branches, tags, rules and policy before uncommitted data was prepared. They count as well: if only a
            head, tag or rule of that moment keeps an object, a client may stage it again after the preparation, before
            that reason goes. Then neither uncommitted data nor a commit that stays has the object.
        at_once: as for `commits.complete_dump`.
    Raises:
        ConfigurationError: the policy file or a rule of the server is out of range or invalid.
        LakeFSError: there are rules and no refs dump, or the server fails.
        CorruptFile: a file cannot be read.
    """
    settings, began = repository.settings, repository.clock.now()
    try:
        readings = read(repository, prepared_until, note, before, at_once=at_once)
    except (AccessDenied, NotFound, NotSupported) as refusal:
        rules, policy = repository.api.retention_rules(), policy_of(settings)
        if rules is not None or policy.replace:
            raise LakeFSError(
                f"retention needs the graph of all commits, which only a refs dump has: {refusal}"
            ) from refusal
        live = live_commits.without_dump(repository, prepared_until, began, refusal, note)
        digest = retention_rules.digest(None, policy, settings.commit_dates)
        return LiveDefinition(live, (), digest, {}, warnings=(NO_RULES,))
    retained = retention(repository, readings, now)
    if before is not None:
        retained = _keep_earlier(repository, retained, before, now)
    definition = define(retained, settings, now)
    for line in _noted(definition):
        note(line)
    return definition


def policy_of(settings: CollectionSettings) -> Policy:
    """The policy in the settings, or the default one. Raises ConfigurationError."""
    return retention_rules.load_policy(Path(settings.retention_policy)) if settings.retention_policy else Policy()


def read_reasons(repository: OpenRepository) -> ReasonsToStay:
    """The present branches, tags, rules and policy.

    Raises:
        ConfigurationError: the policy file cannot be read.
        LakeFSError: the server refuses or fails.
    """
    file, api = repository.settings.retention_policy, repository.api
    policy, rules = retention_rules.read_policy(Path(file)) if file else "", api.retention_rules()
    if rules is None and not retention_rules.parse_policy(policy, file).replace:
        return ReasonsToStay(policy=policy)
    # Between two requests a client may replace a tag by a branch, or a branch by a tag, so tags are read before and
    # after.
    tags_before, branches, tags = (
        {ref.id: ref.commit_id for ref in ask()} for ask in (api.tags, api.branches, api.tags)
    )
    # A tag that moved in between counts as a branch, under a name that no branch can have.
    moved = {f"tag {tag}": id_ for tag, id_ in tags_before.items() if tags.get(tag, id_) != id_}
    return ReasonsToStay(branches | moved, tags_before | tags, rules, policy)


def read(
    repository: OpenRepository,
    prepared_until: datetime,
    note: LogLine,
    before: ReasonsToStay | None = None,
    *,
    at_once: bool = False,
) -> Readings:
    """Reads the inputs of retention. Rules and the server's list are read after the dump, so that they are newer.

    Args:
        prepared_until, at_once: as for `commits.complete_dump`.
        before: its commits must be among those of the dump.
    Raises:
        AccessDenied, NotFound, NotSupported: the server refuses to dump.
        ConfigurationError: the policy file or a rule of the server is out of range or invalid.
        LakeFSError: the server refuses its rules or its list, or fails.
        CorruptFile: a file cannot be read.
    """
    policy = policy_of(repository.settings)
    named = before.commit_ids if before else ()
    dump = live_commits.complete_dump(repository, prepared_until, note, named, at_once=at_once)
    try:
        rules = repository.api.retention_rules()
        if rules is not None:
            retention_rules.require_sane(rules)
        listed = None if rules is None else server_commits(repository, note)
    except (AccessDenied, NotFound, NotSupported) as refusal:
        raise LakeFSError(f"the retention rules cannot be applied: {refusal}") from refusal
    written = written_times(repository, dump.commits)
    # Receipts are read after the dump: each commit of the dump that has one by then is known.
    lifecycle = list_own_commits(repository.store, repository.facts.id)
    return Readings(dump, rules, policy, listed, written, read_expired_before(repository.store, note), lifecycle)


def written_times(repository: OpenRepository, commits: CommitColumns) -> Integers | None:
    """Write times of the commits' metarange files; None if claimed dates are trusted.

    Call it after reading the commits: all files exist by then. Raises StorageError.
    """
    if repository.settings.commit_dates == "claimed":
        return None
    ids = pc.unique(commits.metarange_ids)
    times: Integers = times_written(repository.store, ids)[pc.index_in(commits.metarange_ids, value_set=ids).to_numpy()]
    return times


def retention(repository: OpenRepository, readings: Readings, now: datetime) -> Retention:
    """Computes the commits that stay.

    Raises:
        ConfigurationError: a rule of the server is out of range.
        LakeFSError: the graph is incomplete.
        CorruptFile: the server's list contradicts the dump.
    """
    dump, policy = readings.dump, readings.policy
    claimed = Graph.from_commits(dump.commits, dump.branches, readings.lifecycle)
    graph = dated_by_files(claimed, readings.written, now)
    rules = retention_rules.effective(readings.rules, policy, dump.branches)
    if rules is None:
        every = np.ones(len(graph.commits), np.bool_)
        return Retention(readings, graph, None, {}, frozenset(), np.empty(0, np.int64), {}, every, ~every, ~every)
    active = active_commits(graph, rules, now)
    kept_tags = {tag: commit_id for tag, commit_id in dump.tags.items() if policy.keeps_tag(tag)}
    tags = names_by_position(positions_by_name(dump.commits, kept_tags))
    pins = dump.commits.positions(pa.array(policy.pinned, pa.string()))
    pinned = frozenset(pins[pins >= 0].tolist())
    listed, late = _listed(repository, dump.commits, readings.listed)
    if policy.replace:
        listed = listed[:0]
    others = np.zeros(len(graph.commits), np.bool_)
    others[[*tags, *pinned]] = True
    others[listed] = True
    by_files = active.flags & (active.counted["walk"] < 0) & ~others
    by_files &= False if graph is claimed else ~active_commits(claimed, rules, now).flags
    in_doubt = active.in_doubt & ~others
    return Retention(readings, graph, active, tags, pinned, listed, late, active.flags | others, by_files, in_doubt)


def _keep_earlier(repository: OpenRepository, retained: Retention, before: ReasonsToStay, now: datetime) -> Retention:
    """Retention that also keeps the commits kept by the reasons of an earlier moment."""
    readings = retained.readings
    policy = retention_rules.parse_policy(before.policy, repository.settings.retention_policy)
    dump = replace(readings.dump, branches=dict(before.branches), tags=dict(before.tags))
    earlier_readings = replace(readings, dump=dump, rules=before.rules, policy=policy, listed=None)
    same_refs = (dump.branches, dump.tags) == (readings.dump.branches, readings.dump.tags)
    if retained.active is None or (same_refs and (before.rules, policy) == (readings.rules, readings.policy)):
        return retained
    earlier = retention(repository, earlier_readings, now)
    certain = (retained.flags & ~retained.by_files) | (earlier.flags & ~earlier.by_files)
    beyond_doubt = (retained.flags & ~retained.in_doubt) | (earlier.flags & ~earlier.in_doubt)
    flags = retained.flags | earlier.flags
    return replace(retained, flags=flags, by_files=flags & ~certain, in_doubt=flags & ~beyond_doubt, before=earlier)


def _listed(
    repository: OpenRepository, columns: CommitColumns, listed: ServerCommits | None
) -> tuple[Integers, dict[str, str]]:
    """Positions of the server's commits, and metaranges of commits that the dump lacks."""
    if listed is None:
        return np.empty(0, np.int64), {}
    at = columns.positions(listed.ids)
    known = at >= 0
    if listed.metarange_ids is not None:
        own = columns.metarange_ids.take(pa.array(at[known]))
        stated = listed.metarange_ids.filter(pa.array(known))
        if pc.any(pc.not_equal(own, stated)).as_py():
            raise CorruptFile(listed.file, "metarange", "a commit has a different metarange here than in the refs dump")
    unknown = np.flatnonzero(~known)
    ids = listed.ids.take(pa.array(unknown)).to_pylist()
    if listed.metarange_ids is not None:
        return at[known], dict(zip(ids, listed.metarange_ids.take(pa.array(unknown)).to_pylist(), strict=True))
    limit = repository.settings.dump_fetch_limit
    if len(ids) > limit:
        raise LakeFSError(
            f"the server keeps {counted(len(ids), 'commits')} that the refs dump lacks, more than {limit}. "
            "Collect again, or raise collection.dump_fetch_limit"
        )
    return at[known], {commit_id: repository.api.commit(commit_id).metarange_id for commit_id in ids}


def define(retained: Retention, settings: CollectionSettings, now: datetime) -> LiveDefinition:
    """Combines the live and the expired commits with their counts, warnings and guards."""
    readings, dump, policy = retained.readings, retained.readings.dump, retained.readings.policy
    unknown = retention_rules.unknown_names(readings.rules, policy, dump.branches, dump.tags)
    pins = dump.commits.positions(pa.array(policy.pinned, pa.string()))
    lost = [commit_id for commit_id, at in zip(policy.pinned, pins.tolist(), strict=True) if at < 0]
    live = dump.live(retained.flags)
    if retained.late:
        late = sorted({*retained.late.values()}.difference(live.metarange_ids, [""]))
        live = replace(live, metarange_ids=(*live.metarange_ids, *late), commits=live.commits + len(retained.late))
    expired = live_commits.distinct_metaranges(dump.commits, ~retained.flags)
    kept_too = pc.is_in(expired, value_set=pa.array(live.metarange_ids, pa.string()))
    expired = expired.filter(pc.invert(kept_too))
    differences, holders = _differences(retained, now), LAST_HOLDERS.empty_table()
    if retained.active is not None:
        holders = last_holders(retained.active, retained.flags, expired)
    return LiveDefinition(
        live=live,
        expired_metaranges=tuple(expired.to_pylist()),
        rules_digest=retention_rules.digest(readings.rules, policy, settings.commit_dates),
        counts={
            "commits_known": len(dump.commits) + len(retained.late),
            "commits_active": int(retained.flags.sum() if retained.active is None else retained.active.flags.sum()),
            "commits_tagged": len(retained.tags),
            "commits_pinned": len(retained.pins),
            "commits_expired": int((~retained.flags).sum()),
            "commits_by_files_alone": int(retained.by_files.sum()),
            "commits_by_doubt_alone": int(retained.in_doubt.sum()),
            "commits_by_definition_alone": sum(each.kept_by == "definition" for each in differences),
            "commits_by_server_alone": sum(each.kept_by == "server" for each in differences),
        },
        differences=differences,
        warnings=tuple(_warnings(retained, unknown)),
        guards=tuple(guards.list_rule_guards(unknown, lost, settings)),
        stale=stale_branches(retained.graph, policy.stale_after, now),
        last_holders=holders,
    )


def _differences(retained: Retention, now: datetime) -> tuple[Difference, ...]:
    """Differences between the server's list and the definition by the server's rules, without policy and tags.

    It uses the dates that commits claim, which the server believes. Commits that stay because of later dates are
    counted separately. If a policy replaces those rules, only commits that the dump lacks matter.
    """
    readings = retained.readings
    late = [Difference(commit_id, "server", "it is newer than the refs dump") for commit_id in retained.late]
    if readings.listed is None or readings.rules is None or readings.policy.replace:
        return tuple(late)
    graph = retained.graph
    rules = retention_rules.effective(readings.rules, Policy(), readings.dump.branches)
    assert rules is not None
    ours = active_commits(graph.dated(readings.dump.commits, readings.dump.commits.seconds), rules, now)
    listed = np.zeros(len(graph.commits), np.bool_)
    listed[retained.listed] = True
    ids = graph.commits.ids
    alone = [
        Difference(ids[at].as_py(), "definition", ours.why(at)) for at in np.flatnonzero(ours.flags & ~listed).tolist()
    ]
    alone += [
        Difference(ids[at].as_py(), "server", "expired by the definition and this run's clock")
        for at in np.flatnonzero(listed & ~ours.flags).tolist()
    ]
    return tuple(alone + late)


def _warnings(retained: Retention, unknown_names: Sequence[str]) -> list[str]:
    readings, policy, dump = retained.readings, retained.readings.policy, retained.readings.dump
    if retained.active is None:
        named = policy.rules or policy.default is not None
        advice = "; the policy can only keep more. With `replace: true` the policy alone decides" if named else ""
        lines = [NO_RULES + advice]
    else:
        lines = [*retention_rules.headless(retained.active.rules)]
    if count := int(retained.by_files.sum()):
        lines.append(
            f"{counted(count, 'commits stay')} only because their files were written later than the dates that the "
            "commits claim: commits were backdated, or the storage namespace was copied or restored. They stay for one "
            "retention period after their files were written; collection.commit_dates: claimed trusts their dates"
        )
    if count := int(retained.in_doubt.sum()):
        lines.append(
            f"{counted(count, 'commits stay')} only because their day, week, month or year is in doubt: the dates that "
            "they claim and the times when their files were written disagree. They stay until newer commits fill as "
            "many periods as their rule counts"
        )
    expired = pc.is_in(dump.commits.metarange_ids, value_set=readings.expired_before)
    if count := int((retained.flags & expired.to_numpy(zero_copy_only=False)).sum()):
        lines.append(
            f"{count:,} of the {counted(int(retained.flags.sum()), 'commits')} that stay had expired when earlier "
            "sweeps deleted objects: objects that only expired commits referenced then are gone, and reading them "
            "answers 410. `lakefs-gc restore` restores those in quarantine or with a version"
        )
    idle = [*retention_rules.fitting_nothing(policy, dump.branches, dump.tags)]
    return [*lines, *unknown_names, *_first(idle, "{} more names and patterns of the policy match nothing")]


def stale_branches(graph: Graph, stale_after: timedelta | None, now: datetime) -> tuple[StaleBranch, ...]:
    """Branches whose head, without commits of object lifecycle, is older than an age; the oldest first.

    None without an age.
    """
    if stale_after is None:
        return ()
    heads = graph.without_lifecycle().heads
    branches = [StaleBranch(branch, date(graph.commits, head)) for branch, head in heads.items()]
    stale = [each for each in branches if each.head_made_at < now - stale_after]
    return tuple(sorted(stale, key=lambda each: (each.head_made_at, each.branch)))


def _noted(definition: LiveDefinition) -> list[str]:
    lines = [f"WARNING: {warning}" for warning in definition.warnings]
    lines += _first(definition.differences, "… and {} more commits that only one of them keeps")
    lines += _first(definition.stale, "… and {} more stale branches")
    return [*lines, f"retention: {definition.summary}"] if definition.counts else lines


def _first(lines: Sequence[object], more: str) -> list[str]:
    """The first lines, and `more` with the number of the others, if any."""
    others = len(lines) - _LINES
    return [*map(str, lines[:_LINES]), *([more.format(others)] if others > 0 else [])]
