"""Stale branches: finds branches that a policy calls stale, deletes them after approval, and recreates them.

The server reports when commits were made, but not when branches were. So a branch is as old as its first own commit:
the oldest on its line of first parents that no line of a branch that stays has. Lines that only stale branches share
belong to all of them. If a head is on another branch's line, its date says nothing about this branch, and only earlier
runs do (`sightings`). Without them its age and last use are unknown, and the branch stays.

Commits that object lifecycle made on top of a line are no use of the branch, if their receipts are intact.

See `_why_protected` and `_why_in_use` for the other reasons to keep a branch. The server does not report reads, nor
imports, uploads and commits in progress, so these do not keep a branch.

A deletion removes exactly the branches that were shown. An approval names a digest of the branches, their commits and
their uncommitted changes. The deletion computes everything anew, and skips a branch unless it is still stale and
unchanged.

A record is stored before each deletion, so that the branch can be recreated. Its commits stay in the server's history.
From then on, retention treats them as dangling commits. Uncommitted changes become garbage at once.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

import numpy as np
import pyarrow as pa

from lakefs_gc_assets.collector import commits, guards
from lakefs_gc_assets.collector.incremental.deleted_data import DeletedData
from lakefs_gc_assets.collector.live.hidden import stats_at
from lakefs_gc_assets.collector.live.references import References, find_ranges
from lakefs_gc_assets.collector.records import records_json, stored_forecasts
from lakefs_gc_assets.collector.records.across_runs import (
    BRANCHES,
    BranchState,
    DeletedBranch,
    read_deleted_branches,
    write_deleted_branch,
)
from lakefs_gc_assets.collector.records.outcomes import Amount, BaseFate, one_by_one
from lakefs_gc_assets.collector.records.own_commits import list_own_commits, read_own_commits
from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets.collector.repository.lock import Lock, earliest_clock, locked
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import retention, rules
from lakefs_gc_assets.collector.retention.active_commits import Graph, date, dated_by_files
from lakefs_gc_assets.collector.retention.rules import StaleRule, in_units
from lakefs_gc_assets.collector.standing_approvals import (
    PlannedDeletion,
)
from lakefs_gc_assets.errors import (
    CollectionError,
    ConfigurationError,
    GuardTripped,
    LakeFSError,
    LogLine,
    OrderViolation,
    ServerUnavailable,
    counted,
)
from lakefs_gc_assets.extensions.branches.sightings import Sighting, find_sightings
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import OBJECTS_ON_PAGE, PullRequest
from lakefs_gc_assets.storage.interface import ObjectStore

FORMAT_VERSION = 1
_WORK = "stale_branches"
_SHOWN = f"{BRANCHES}shown.json"
_UNCOMMITTED = "uncommitted changes"


@dataclass(frozen=True, slots=True)
class Staged:
    """Uncommitted changes of a branch.

    Attributes:
        digest: digest of all changes; empty for none.
        last_write: time of the newest change; None if the server does not report it for every change: a deletion has
            none.
    """

    changes: int = 0
    digest: str = ""
    last_write: datetime | None = None


@dataclass(frozen=True, slots=True)
class BranchIdentity:
    """A branch as it was shown: any relevant change of the branch changes this value."""

    branch: str
    commit_id: str
    staged: str


@dataclass(frozen=True, slots=True)
class BranchStatus:
    """A branch and the decision about it. Times are in UTC.

    Attributes:
        rule: the matching rule, in words; empty for none.
        kept: reason the branch stays; empty for a stale branch.
        first_own_commit: None if it has no commit of its own.
        unchanged_since: the first run that saw it on this commit, if its head is on another branch's line.
        sharing: number of other stale branches that have its first own commit.
        undo: how long its commits certainly keep their objects after the deletion, in words.
        last_commit_at: when its newest commit was made that is not object lifecycle's.
        alone, freed: objects that only this branch holds, and objects that its deletion frees at once, by the newest
            forecast; None if no forecast saw this commit.
        is_unknown: True if it stays because the server failed at it.
    """

    identity: BranchIdentity
    rule: str
    kept: str
    head_made_at: datetime
    last_commit_at: datetime
    first_own_commit: datetime | None
    hidden: bool
    changes: int = 0
    undo: str = ""
    alone: Amount | None = None
    freed: Amount | None = None
    is_unknown: bool = False
    unchanged_since: datetime | None = None
    sharing: int = 0

    @property
    def last_use(self) -> str:
        """Its last use, in words."""
        if self.unchanged_since is not None:
            return f"unchanged since a run of {self.unchanged_since:%F}"
        without = ", without object lifecycle's" if self.last_commit_at != self.head_made_at else ""
        return f"last commit {self.last_commit_at:%F}{without}"


@dataclass(frozen=True, slots=True)
class BranchListing:
    """The decisions about all branches of a repository.

    Attributes:
        forecast_made_at: time of the forecast that supplies the branches' holdings, UTC; None without one.
        refused_by: the guard that would refuse the deletion, in words; empty for none.
        unfinished: approved deletions that got no answer, in words.
    """

    repository: str
    made_at: datetime
    standings: tuple[BranchStatus, ...]
    forecast_made_at: datetime | None = None
    refused_by: str = ""
    unfinished: tuple[str, ...] = ()

    @property
    def stale(self) -> tuple[BranchStatus, ...]:
        """The branches that would be deleted."""
        return tuple(each for each in self.standings if not each.kept)

    @property
    def unknown(self) -> int:
        """Number of branches that stay because the server failed at them."""
        return sum(each.is_unknown for each in self.standings)

    @property
    def digest(self) -> str:
        """Digest of the branches that would be deleted, in their present state; empty for none."""
        return _digest(each.identity for each in self.stale)


@dataclass(frozen=True, slots=True)
class _Shown:
    """A listing as it is stored.

    Attributes:
        branches: number of branches in all.
    """

    repository: str
    stale: tuple[BranchIdentity, ...]
    branches: int
    format_version: int = FORMAT_VERSION


class BranchFate(BaseFate):
    """Outcome for a branch."""

    DELETED = "deleted"
    GONE = "gone before"
    KEPT = "kept"
    FAILED = "failed"
    RESTORED = "made again"
    INCOMPLETE = "made again, data is gone"
    THERE = "there already"


@dataclass(frozen=True, slots=True)
class BranchOutcome:
    """Outcome for one branch, and its reason; `why` is empty if there is nothing to say."""

    branch: str
    commit_id: str
    fate: BranchFate
    why: str = ""


def _digest(identities: Iterable[BranchIdentity]) -> str:
    stated = sorted([each.branch, each.commit_id, each.staged] for each in identities)
    return hashlib.sha256(json.dumps(stated).encode()).hexdigest()[:16] if stated else ""


def list_branches(repository: OpenRepository, note: LogLine) -> BranchListing:
    """Decides about every branch, and stores the stale ones for an approval.

    Raises:
        ConfigurationError: the policy cannot be read, or has no rules for stale branches.
        CollectionError: the server or the store fails, or the server refuses a refs dump or its protection rules.
    """
    listing = _decide(repository, note)
    if listing.stale:
        identities = tuple(each.identity for each in listing.stale)
        shown = _Shown(listing.repository, identities, len(listing.standings))
        repository.store.put(_SHOWN, records_json.encode(shown))
        try:
            guards.require_few_stale(len(identities), shown.branches, repository.settings)
        except GuardTripped as guard:
            listing = replace(listing, refused_by=str(guard))
    return _with_holdings(repository.store, listing)


@dataclass(frozen=True)
class _Facts:
    """The input of the decision about a branch; see `_decide`.

    Attributes:
        graph: without the commits that object lifecycle made on top of lines.
        lifecycle: positions of these commits, by branch, newest first.
    """

    repository: OpenRepository
    dump: commits.Dump
    graph: Graph
    lifecycle: Mapping[str, list[int]]
    on_own_line: Set[str]
    now: datetime
    sightings: Mapping[str, Sighting]
    records: tuple[DeletedBranch, ...]
    effective: rules.EffectiveRules | None
    tags: Mapping[str, str]
    protection: tuple[str, ...]
    pull_requests: tuple[PullRequest, ...]
    visible: frozenset[str]


def _decide(repository: OpenRepository, note: LogLine) -> BranchListing:
    policy = retention.policy_of(repository.settings)
    if not policy.stale:
        raise ConfigurationError(
            "no rule defines stale branches: add rules under stale_branches in the file of collection.retention_policy"
        )
    now = earliest_clock(repository)
    dump = commits.complete_dump(repository.dumping_at_once(), now, note)
    for line in rules.fitting_nothing(policy, dump.branches, dump.tags):
        note(f"WARNING: {line}")
    graph = _with_lifecycle(repository, dump, note)
    lifecycle, graph = commits_on_top(graph), graph.without_lifecycle()
    facts = _Facts(
        repository,
        dump,
        dated_by_files(graph, retention.written_times(repository, dump.commits), now),
        lifecycle,
        first_own_commits(graph).keys(),
        now,
        {branch: Sighting() for branch in dump.branches},
        read_deleted_branches(repository.store, repository.facts.id, note),
        rules.effective(repository.api.retention_rules(), policy, dump.branches),
        {commit_id: tag for tag, commit_id in sorted(dump.tags.items(), reverse=True)},
        repository.branches_api.protection_patterns(),
        repository.branches_api.open_pull_requests(),
        repository.branches_api.visible_branches(),
    )
    standings = tuple(_stand_all(facts, policy.stale_rule_of, note))
    return BranchListing(repository.facts.id, now, standings, unfinished=(*_find_unfinished(facts.records, standings),))


def _find_unfinished(records: Iterable[DeletedBranch], standings: Iterable[BranchStatus]) -> Iterator[str]:
    """Yields approved deletions that got no answer: of branches that are gone, or stale on the same commit."""
    present = {each.identity.branch: each for each in standings}
    newest = {each.branch: each for each in records}
    for record in newest.values():
        standing = present.get(record.branch)
        is_same = standing is None or (not standing.kept and standing.identity.commit_id == record.commit_id)
        if record.state is BranchState.DELETING and is_same:
            again = f"`lakefs-gc branches approve {record.listing}` finishes it"
            yield f"the deletion of {record.branch} got no answer: {again}"


def _with_lifecycle(repository: OpenRepository, dump: commits.Dump, note: LogLine) -> Graph:
    """The graph with the commits that object lifecycle made on top of lines, by receipts that were read.

    To believe a damaged receipt could delete a branch in use. Other receipts are not read: their number has no limit.
    """
    store, repository_id = repository.store, repository.facts.id
    named = Graph.from_commits(dump.commits, dump.branches, list_own_commits(store, repository_id))
    on_top = sorted({at for positions in commits_on_top(named).values() for at in positions})
    commit_ids = dump.commits.ids.take(pa.array(on_top, pa.int64())).to_pylist()
    intact = read_own_commits(store, repository_id, note, commit_ids)
    by_lifecycle = np.zeros_like(named.by_lifecycle)
    by_lifecycle[dump.commits.positions(pa.array(intact, pa.string()))] = True
    return replace(named, by_lifecycle=by_lifecycle)


def commits_on_top(graph: Graph) -> dict[str, list[int]]:
    """The commits of object lifecycle at the head's end of each branch's line, newest first."""
    on_top = dict[str, list[int]]()
    for branch, head in graph.heads.items():
        on_top[branch] = []
        while head >= 0 and graph.by_lifecycle[head]:
            on_top[branch].append(head)
            head = int(graph.main_parents[head])
    return on_top


def _stand_all(facts: _Facts, rule_of: Callable[[str], StaleRule | None], note: LogLine) -> Iterator[BranchStatus]:
    """Decides about every branch, and yields them by name. Asks about each branch that nothing else keeps once."""
    limits = dict[str, StaleRule]()
    standings = dict[str, BranchStatus]()
    for branch in sorted(facts.dump.branches):
        rule = rule_of(branch)
        standing = _first_standing(facts, branch, rule)
        standings[branch] = replace(standing, kept=_why_protected(facts, standing.identity, rule))
        if rule is not None and not standings[branch].kept:
            limits[branch] = rule
    _look_at_runs(facts, limits, note)
    for branch, rule in limits.items():
        standings[branch] = _with_last_use(facts, standings[branch], rule)

    def ask(branch: str) -> BranchStatus:
        return _why_in_use(facts, standings[branch], limits[branch])

    def failed(branch: str, error: CollectionError) -> BranchStatus:
        return replace(standings[branch], kept=f"its use is unknown: {error}", is_unknown=True)

    stale, asked = {branch for branch in limits if not standings[branch].kept}, set[str]()
    while True:
        stale, first, young = without_young(facts.graph, stale, lambda name, own: _is_young(facts, limits, name, own))
        standings |= {branch: replace(standings[branch], kept=why) for branch, why in young.items()}
        unasked = sorted(stale - asked)
        standings |= zip(unasked, one_by_one(unasked, ask, failed), strict=True)
        asked.update(unasked)
        if not any(standings[branch].kept for branch in unasked):
            break
        # A branch that stays takes the commits that others share with it, which may make them too young.
        stale = {branch for branch in stale if not standings[branch].kept}
    owners = Counter(first[branch] for branch in stale if branch in first)
    for branch, standing in standings.items():
        own = first.get(branch)
        yield replace(
            standing,
            first_own_commit=None if own is None else date(facts.graph.commits, own),
            sharing=owners[own] - 1 if branch in stale and own is not None else 0,
        )


def _look_at_runs(facts: _Facts, limits: Mapping[str, StaleRule], note: LogLine) -> None:
    """Fills in what earlier runs saw of branches that have limits."""
    periods = [each for rule in limits.values() for each in (rule.max_age, rule.max_inactivity) if each is not None]
    if not periods:
        return
    oldest = facts.now - max(periods)
    watched = {branch: facts.sightings[branch] for branch in limits}
    for branch, sighting in watched.items():
        last = facts.graph.heads[branch]
        heads = facts.graph.commits.metarange_ids.take(pa.array([*facts.lifecycle[branch], last])).to_pylist()
        # A run that saw no such branch stored no metarange either.
        sighting.metarange_ids = tuple(filter(None, heads)) or ("",)
        sighting.made_at = date(facts.graph.commits, last)
    store, repository_id = facts.repository.store, facts.repository.facts.id
    find_sightings(store, repository_id, facts.dump.branches, watched, facts.records, oldest, note)


def without_young(
    graph: Graph, stale: Set[str], why_young: Callable[[str, int | None], str]
) -> tuple[set[str], dict[str, int], dict[str, str]]:
    """Leaves out branches that are too young, until none is left: each takes shared commits from the others.

    Args:
        stale: branches that only their age may keep.
        why_young: reason a branch with this first own commit stays; empty if it is old enough.
    Returns:
        The remaining branches, the first own commit of every branch by these, and the others with their reasons.
    """
    remaining, reasons = {*stale}, dict[str, str]()
    while True:
        first = first_own_commits(graph, remaining)
        young = {branch: why for branch in remaining if (why := why_young(branch, first.get(branch)))}
        if not young:
            return remaining, first, reasons
        reasons |= young
        remaining -= young.keys()


def first_own_commits(graph: Graph, stale: Set[str] = frozenset()) -> dict[str, int]:
    """The first own commit of each branch: the oldest on its line of first parents that no other line has.

    Lines of stale branches do not count: commits that only they share belong to all of them. Branches without an own
    commit are left out. Lines that meet are identical from there on.
    """
    parents: list[int] = graph.main_parents.tolist()
    owners: dict[int, str | None] = {}
    staying = {branch: head for branch, head in graph.heads.items() if branch not in stale}
    for branch, head in staying.items():
        at = head
        while at >= 0 and owners.get(at, branch) is not None:
            owners[at] = None if at in owners else branch
            at = parents[at]
    first = dict[str, int]()
    for branch, head in staying.items():
        at = head
        while at >= 0 and owners[at] == branch:
            first[branch] = at
            at = parents[at]
    # Lines of stale branches are followed once: the first commit is the same for each commit on the way.
    found = dict[int, int]()
    for branch in graph.heads.keys() - staying.keys():
        at, passed = graph.heads[branch], list[int]()
        while at >= 0 and at not in owners and at not in found:
            passed.append(at)
            at = parents[at]
        oldest = found.get(at, passed[-1] if passed else -1)
        found |= dict.fromkeys(passed, oldest)
        if oldest >= 0:
            first[branch] = oldest
    return first


def _first_standing(facts: _Facts, branch: str, rule: StaleRule | None) -> BranchStatus:
    """Facts about one branch from the refs dump, before the decision."""
    return BranchStatus(
        BranchIdentity(branch, facts.dump.branches[branch], ""),
        str(rule or ""),
        "",
        date(facts.graph.commits, next(iter(facts.lifecycle[branch]), facts.graph.heads[branch])),
        date(facts.graph.commits, facts.graph.heads[branch]),
        None,
        branch not in facts.visible,
    )


def _why_protected(facts: _Facts, identity: BranchIdentity, rule: StaleRule | None) -> str:
    """Reason a branch stays regardless of its age and use; empty if nothing keeps it."""
    branch = identity.branch
    if branch == facts.repository.facts.default_branch:
        return "it is the default branch"
    if pattern := protecting(branch, facts.protection):
        return f"the branch protection rule {pattern} matches it"
    if merge := describe_merge(branch, facts.pull_requests):
        return merge
    last_commit = facts.graph.commits.ids[facts.graph.heads[branch]].as_py()
    if tag := facts.tags.get(identity.commit_id) or facts.tags.get(last_commit):
        return f"the tag {tag} names its head"
    if rule is None:
        return "no rule matches it"
    if rule.max_age is None and rule.max_inactivity is None:
        return f"the {rule} has no limit"
    return ""


def _with_last_use(facts: _Facts, standing: BranchStatus, rule: StaleRule) -> BranchStatus:
    """The status of a branch, with the reason to keep it by the last use that commits and earlier runs show."""
    if rule.max_inactivity is None:
        return standing
    branch, made_at = standing.identity.branch, standing.last_commit_at
    sighting = facts.sightings[branch]
    if branch in facts.on_own_line and (sighting.off_head_at is None or sighting.off_head_at <= made_at):
        return replace(standing, kept=_is_younger(facts.now, made_at, rule.max_inactivity, "its last commit"))
    since = sighting.on_head_since
    if since is None:
        return replace(standing, kept=f"its last use is unknown: {_why_unseen(sighting)}")
    kept = _is_younger(facts.now, since, rule.max_inactivity, sighting.first_seen_by)
    return replace(standing, kept=kept, unchanged_since=since)


def _why_unseen(sighting: Sighting) -> str:
    if sighting.off_head_at is not None:
        return f"at {sighting.off_head_at:%F %T}Z it was on another commit or missing, and no run has seen it since"
    return "it has no commit of its own, and no run has seen it on this commit"


def _is_young(facts: _Facts, limits: Mapping[str, StaleRule], branch: str, own: int | None) -> str:
    """Reason a branch with this first own commit stays because of its age; empty if it is old enough."""
    rule, sighting = limits[branch], facts.sightings[branch]
    limit = rule.max_age
    if limit is None:
        return ""
    # A branch that was made today on another stale one has old commits too, unless runs have seen it unused.
    is_seen = branch in facts.on_own_line or rule.max_inactivity is not None
    made_at = None if own is None else date(facts.graph.commits, own)
    if is_seen and made_at is not None and (sighting.missing_at is None or sighting.missing_at <= made_at):
        return _is_younger(facts.now, made_at, limit, "its first commit")
    if sighting.there_since is None:
        missing = "" if sighting.missing_at is None else f" since it was missing at {sighting.missing_at:%F %T}Z"
        why = "it has no commit of its own" if own is None else "its commits may be older than it"
        return f"its age is unknown: {why}, and no run has seen it{missing}"
    return _is_younger(facts.now, sighting.there_since, limit, "the first run that saw it")


def _why_in_use(facts: _Facts, standing: BranchStatus, rule: StaleRule) -> BranchStatus:
    """Decides about a branch that only its hooks and uncommitted changes may keep. Asks the server."""
    repository, branch = facts.repository, standing.identity.branch
    limit = rule.max_inactivity or rule.max_age
    own = facts.dump.commits.ids.take(pa.array(facts.lifecycle[branch], pa.int64())).to_pylist()
    ran_at = repository.branches_api.last_action_run(branch, own)
    if ran_at is not None and (kept := _is_younger(facts.now, ran_at, limit, "the last run of its actions")):
        return replace(standing, kept=kept)
    staged = read_staged(repository, branch, rule.uncommitted)
    if staged is None:
        most = f"it has more than {repository.settings.staged_change_limit:,} uncommitted changes, the limit of "
        return replace(standing, kept=f"{most}collection.staged_change_limit" if rule.uncommitted else _UNCOMMITTED)
    if staged.changes:
        if staged.last_write is None:
            return replace(standing, kept="the server does not report the time of its last uncommitted change")
        if kept := _is_younger(facts.now, staged.last_write, limit, "its last staged write"):
            return replace(standing, kept=kept)
    identity = replace(standing.identity, staged=staged.digest)
    return replace(standing, identity=identity, changes=staged.changes, undo=_undo(facts, standing.head_made_at))


def _is_younger(now: datetime, moment: datetime, limit: timedelta | None, what: str) -> str:
    """Reason a branch stays because a moment lies within a limit; empty if it does not, or without a limit."""
    if limit is None or now - moment > limit:
        return ""
    return f"{what} at {moment:%F %T}Z is within {in_units(limit)}"


def protecting(branch: str, patterns: Collection[str]) -> str | None:
    """The first protection pattern that matches a branch, or whose syntax is unknown and so may match it."""
    return next((pattern for pattern in patterns if rules.may_fit(pattern, branch)), None)


def describe_merge(branch: str, pull_requests: Iterable[PullRequest]) -> str:
    """The first of these open pull requests that names the branch, in words; empty if none does."""
    for pull in pull_requests:
        if pull.source == branch:
            return f"the open pull request {pull.id} would merge it into {pull.destination}"
        if pull.destination == branch:
            return f"the open pull request {pull.id} would merge {pull.source} into it"
    return ""


def read_staged(repository: OpenRepository, branch: str, allowed: bool) -> Staged | None:
    """Reads the uncommitted changes of a branch; None if there are more than allowed, or more than the limit.

    Args:
        allowed: False if the branch must have no uncommitted changes.
    """
    api, limit = repository.api, repository.settings.staged_change_limit
    if not allowed:
        return None if api.first_change(branch) else Staged()
    changes = [*islice(api.changes(branch), limit + 1)]
    if len(changes) > limit:
        return None
    digest, newest, is_known = hashlib.sha256(), 0, bool(changes)
    for start in range(0, len(changes), OBJECTS_ON_PAGE):
        part = changes[start : start + OBJECTS_ON_PAGE]
        stats = stats_at(api, branch, [change.path for change in part if change.type != "removed"])
        for change in part:
            stat = stats.get(change.path)
            stated = [change.type, change.path, stat and [stat.physical_address, stat.size, stat.mtime]]
            digest.update(json.dumps(stated).encode() + b"\n")
            if stat is None or stat.mtime is None or change.type == "removed":
                is_known = False
            else:
                newest = max(newest, stat.mtime, _issued_at(repository, stat.physical_address))
    last_write = layout.as_datetime(newest) if is_known else None
    return Staged(len(changes), digest.hexdigest() if changes else "", last_write)


def _issued_at(repository: OpenRepository, address: str) -> int:
    """When the server issued an address, in seconds since 1970; 0 if unknown. Clients may claim an older write."""
    key = repository.namespace.relative(address)
    return (key is not None and layout.parse(key).issued_at) or 0


def _undo(facts: _Facts, made_at: datetime) -> str:
    """How long a dangling commit certainly keeps its objects: by the default rule, counted from its creation."""
    if facts.effective is None:
        return "as long as there are no retention rules"
    until = made_at + facts.effective.default.retention
    return f"until {until:%F %T}Z" if until > facts.now else "until the next run by retention rules"


def _with_holdings(store: ObjectStore, listing: BranchListing) -> BranchListing:
    """Adds the holdings of stale branches by the newest forecast, if that saw the same commit."""
    newest = stored_forecasts.read_newest(store) if listing.stale else None
    if newest is None:
        return listing
    forecast_id, table = newest
    rows = {row["name"]: row for row in table.to_pylist() if row["kind"] == ScenarioKind.BRANCH.value}

    def held(standing: BranchStatus) -> BranchStatus:
        row = rows.get(standing.identity.branch)
        if standing.kept or row is None or row["head_made_at"] != standing.head_made_at:
            return standing
        alone = Amount(row["alone_objects"], row["alone_bytes"])
        freed = None if row["freed_objects"] is None else Amount(row["freed_objects"], row["freed_bytes"])
        return replace(standing, alone=alone, freed=freed)

    made_at = layout.as_datetime(layout.created_at(forecast_id))
    return replace(listing, standings=tuple(map(held, listing.standings)), forecast_made_at=made_at)


def planned_deletion(listing: BranchListing) -> PlannedDeletion:
    """Figures of a listing for a standing approval."""
    return PlannedDeletion(branches=len(listing.stale), whole=len(listing.standings))


def delete(
    repository: OpenRepository,
    digest: str,
    owner: str,
    note: LogLine,
    warn: LogLine,
    approver: Callable[[], str] = str,
) -> Iterator[BranchOutcome]:
    """Deletes the branches of an approved listing, during iteration; yields the outcome of each.

    May be repeated: branches deleted before stay deleted, and the others are tried again.

    Args:
        digest: digest of the listing.
        owner: owner of the repository's lock.
        note, warn: receive log lines.
        approver: returns the approver, for records; called again right before each deletion. Raises GuardTripped if
            the approval no longer counts.
    Raises:
        OrderViolation: the digest is not that of the last listing.
        GuardTripped: too many branches would be deleted, or the approval no longer counts.
        ServerUnavailable: the server fails at two branches in a row. These may be deleted; later ones are untouched.
        CollectionError: see `list_branches`.
    """
    with locked(repository, _WORK, owner, warn) as lock:
        shown = _read_approved(repository, digest)
        guards.require_few_stale(len(shown.stale), shown.branches, repository.settings)
        repository.store.put(_approved_key(digest), records_json.encode(shown))
        records = read_deleted_branches(repository.store, shown.repository, warn)
        before = {each.branch: each for each in records if each.listing == digest}
        standings = {each.identity.branch: each for each in _decide(repository, note).standings}

        def act(identity: BranchIdentity) -> BranchOutcome:
            standing, record = standings.get(identity.branch), before.get(identity.branch)
            return _delete_one(repository, lock, identity, standing, record, digest, approver)

        yield from one_by_one(shown.stale, act, _failed)


def _failed(branch: BranchIdentity | DeletedBranch, error: CollectionError) -> BranchOutcome:
    return BranchOutcome(branch.branch, branch.commit_id, BranchFate.FAILED, str(error))


def _delete_one(
    repository: OpenRepository,
    lock: Lock,
    identity: BranchIdentity,
    standing: BranchStatus | None,
    record: DeletedBranch | None,
    digest: str,
    approver: Callable[[], str],
) -> BranchOutcome:
    branch, commit_id = identity.branch, identity.commit_id
    if record is not None and record.state in (BranchState.DELETED, BranchState.RESTORED):
        fate, why = BranchFate.GONE, f"{record.state} at {record.at:%F %T}Z"
        if standing is not None:
            fate, why = BranchFate.KEPT, f"{why}; it exists, and this approval no longer counts for it"
        return BranchOutcome(branch, commit_id, fate, why)
    if standing is None:
        if record is None or record.state is BranchState.KEPT:
            return BranchOutcome(branch, commit_id, BranchFate.GONE, "another client deleted it")
        _put(repository, record, BranchState.DELETED)
        return BranchOutcome(branch, commit_id, BranchFate.DELETED, "by an earlier attempt, which got no answer")
    if standing.kept:
        return BranchOutcome(branch, commit_id, BranchFate.KEPT, standing.kept)
    if standing.identity != identity:
        return BranchOutcome(branch, commit_id, BranchFate.KEPT, "it was changed or recreated after it was listed")
    record = DeletedBranch(
        repository.facts.id,
        branch,
        commit_id,
        standing.hidden,
        digest,
        BranchState.DELETING,
        repository.clock.now(),
        approver(),
    )
    write_deleted_branch(repository.store, record)
    try:
        outcome = BranchOutcome(branch, commit_id, BranchFate.DELETED)
        if why := _changed(repository, identity):
            outcome = BranchOutcome(branch, commit_id, BranchFate.KEPT, why)
        else:
            approver()
            lock.check()
            repository.branches_api.delete_branch(branch)
    except GuardTripped:
        _put(repository, record, BranchState.KEPT)
        raise
    except ServerUnavailable as error:
        # The record keeps its state, so that the next attempt can tell whether the branch is deleted.
        raise ServerUnavailable(f"{error}; the branch may be deleted: approve again to find out") from error
    except LakeFSError as refusal:
        outcome = BranchOutcome(branch, commit_id, BranchFate.FAILED, str(refusal))
    _put(repository, record, BranchState.DELETED if outcome.fate is BranchFate.DELETED else BranchState.KEPT)
    return outcome


def _changed(repository: OpenRepository, identity: BranchIdentity) -> str:
    """Reason to keep a branch that was stale a moment ago; empty if it is unchanged.

    The server has no conditional deletion: a write between these reads and the deletion goes unnoticed.
    """
    api, branch = repository.branches_api, identity.branch
    if repository.api.repository().default_branch == branch:
        return "it is the default branch now"
    if pattern := protecting(branch, api.protection_patterns()):
        return f"the branch protection rule {pattern} matches it now"
    if merge := describe_merge(branch, api.open_pull_requests()):
        return f"{merge} now"
    if tag := next((each.id for each in repository.api.tags() if each.commit_id == identity.commit_id), ""):
        return f"the tag {tag} names its head now"
    staged = read_staged(repository, branch, bool(identity.staged))
    # Last, since most writes change the branch's head.
    current = api.branch(branch)
    if current is None or current.commit_id != identity.commit_id:
        return "its head has changed"
    if staged is None or staged.digest != identity.staged:
        return "its uncommitted changes have changed"
    return ""


def _put(repository: OpenRepository, record: DeletedBranch, state: BranchState) -> None:
    write_deleted_branch(repository.store, replace(record, state=state, at=repository.clock.now()))


def _read_approved(repository: OpenRepository, digest: str) -> _Shown:
    """The listing with this digest. Raises OrderViolation."""
    if digest.isalnum():
        for key in (_approved_key(digest), _SHOWN):
            shown = records_json.read(repository.store, _Shown, key)
            if shown is not None and _digest(shown.stale) == digest and shown.repository == repository.facts.id:
                return shown
    raise OrderViolation(f"{digest!r} is not the digest of the newest list: list stale branches and approve again")


def _approved_key(digest: str) -> str:
    return f"{BRANCHES}approved/{digest}.json"


def list_deleted(repository: OpenRepository, branches: Collection[str], warn: LogLine) -> tuple[DeletedBranch, ...]:
    """The newest record of each branch that can be recreated.

    Args:
        branches: requested names; empty for all.
    Raises:
        ConfigurationError: a requested branch has no such record.
    """
    records = {each.branch: each for each in read_deleted_branches(repository.store, repository.facts.id, warn)}
    deleted = {name: each for name, each in sorted(records.items()) if each.state is not BranchState.KEPT}
    if unknown := sorted({*branches} - deleted.keys()):
        raise ConfigurationError(f"no record of deleted branches contains {', '.join(unknown)}")
    if branches:
        return tuple(each for name, each in deleted.items() if name in branches)
    return tuple(each for each in deleted.values() if each.state is not BranchState.RESTORED)


def restore(
    repository: OpenRepository, branches: Collection[str], owner: str, warn: LogLine
) -> Iterator[BranchOutcome]:
    """Recreates deleted branches on their commits, during iteration; yields the outcome of each. May be repeated.

    Args:
        branches: as for `list_deleted`.
        owner, warn: as for `delete`.
    Raises:
        ServerUnavailable: the server fails at two branches in a row.
        CollectionError: see `list_deleted`.
    """
    with locked(repository, _WORK, owner, warn) as lock:
        data = DeletedData(repository, lock, _WORK, warn)

        def act(record: DeletedBranch) -> BranchOutcome:
            lock.check()
            outcome = _restore_one(repository, record)
            gone = _describe_gone(data, record.commit_id) if outcome.fate.is_well else ""
            return replace(outcome, fate=BranchFate.INCOMPLETE, why=gone) if gone else outcome

        yield from one_by_one(list_deleted(repository, branches, warn), act, _failed)


def _describe_gone(data: DeletedData, commit_id: str) -> str:
    """Number of the commit's objects that earlier runs deleted, or why it is unknown, in words; empty for none."""
    try:
        if not data.addresses.num_rows:
            return ""
        step = data.step
        metarange_id = data.repository.api.commit(commit_id).metarange_id
        records = find_ranges(step, data.repository, [metarange_id] if metarange_id else [])
        deleted = step.engine.table(data.addresses)
        held = step.engine.among_exactly(deleted, References.from_step(step).committed(records))
        count = data.count_gone(held)
    except ServerUnavailable:
        raise
    except CollectionError as error:
        return f"whether its data still exists is unknown: {error}"
    if not count:
        return ""
    return (
        f"{counted(count, 'objects')} of its {counted(records.entries, 'entries')} {'is' if count == 1 else 'are'} "
        "gone: earlier runs deleted them. `lakefs-gc fsck` names each, and whether it can be restored"
    )


def _restore_one(repository: OpenRepository, record: DeletedBranch) -> BranchOutcome:
    api, branch, commit_id = repository.branches_api, record.branch, record.commit_id
    current = api.branch(branch)
    if current is not None and current.commit_id != commit_id:
        why = (
            f"a branch of this name exists at commit {current.commit_id}; "
            f"use `lakectl branch create` to create one with another name at commit {commit_id}"
        )
        return BranchOutcome(branch, commit_id, BranchFate.KEPT, why)
    if current is None:
        api.create_branch(branch, commit_id, record.hidden)
    if record.state is not BranchState.RESTORED or current is None:
        _put(repository, record, BranchState.RESTORED)
    return BranchOutcome(branch, commit_id, BranchFate.RESTORED if current is None else BranchFate.THERE)
