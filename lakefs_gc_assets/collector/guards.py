"""Guards: checks for figures that look like a mistake rather than like garbage. All guards are raised here.

A guard of amount stops the sweep and leaves the mark: a dry run succeeds and shows it as a warning. A guard on the live
set stops the run.

A share says little about a small number: deleting two of five branches may be ordinary. So a guard on a share lets a
few objects or branches pass at any share. A share set to 0 has no such floor and allows none. The guard on gaps in the
listing has no floor either: no ordinary work removes an object that a branch holds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NoReturn

from lakefs_gc_assets.collector.records.figures import Statistics, required
from lakefs_gc_assets.collector.records.outcomes import share
from lakefs_gc_assets.collector.repository.repository import Clocks
from lakefs_gc_assets.errors import GuardTripped, counted
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import CollectionSettings

_FEW_CANDIDATES = 10
"""Maximum objects that may go at any share: in a repository of twenty, one rewritten table is half."""
_FEW_UNCOMMITTED = 10
"""Maximum uncommitted addresses that may go between mark and recheck at any share: a user cleaned up."""
_FEW_ENTRIES = 10
"""Maximum entries of a branch that may expire at any share."""
_FEW_BRANCHES = 5
"""Maximum branches that may go at any share, if one remains: they were merged. The number is lower than those for
objects, since each branch may stand for many staged objects."""
_ADDRESS_FORM = "address form"
_MARKED_ONLY = "This repository can be marked, not swept: its staged objects cannot be distinguished from garbage"


@dataclass(frozen=True, kw_only=True)
class Mark(Statistics):
    """Figures of a mark, and facts that guards check beside them.

    Attributes:
        known: distinct objects that the run knows; the share of candidates refers to them. These are the listed objects
            and those in sealed slices that an optimized run does not list. For the flow `committed`, see `count_known`.
        missing_examples: some of the missing addresses.
        retention: guards that the retention rules trip.
        nested: repositories whose namespace lies inside this one, or around it.
        repositories_unknown: the server's answer if it does not list repositories; None if it does.
        limited_to: the only windows listed, in words; empty if all were. `known` then counts only objects in these
            windows.
    """

    known: int
    missing_examples: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    repositories_unknown: str | None = None
    retention: tuple[GuardTripped, ...] = ()
    limited_to: str = ""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A figure and the limit of its guard.

    Attributes:
        setting: setting of `collection` with the limit.
        is_share: True if figure and limit are shares, from 0 to 1; otherwise they are counts.
        floor: count up to which the share is ignored; None if there is no floor.
        count: the figure itself, or the part from which the share is computed.
    """

    guard: str
    setting: str
    figure: float
    limit: float
    is_share: bool = False
    floor: int | None = None
    count: int = 0

    @classmethod
    def of_share(
        cls, guard: str, setting: str, count: int, whole: int, settings: CollectionSettings, floor: int | None = None
    ) -> "Gauge":
        """The gauge of a part of a whole."""
        return cls(guard, setting, share(count, whole), getattr(settings, setting), True, floor, count)

    @classmethod
    def of_count(cls, guard: str, setting: str, count: int, settings: CollectionSettings) -> "Gauge":
        """The gauge of a number."""
        return cls(guard, setting, count, getattr(settings, setting), count=count)

    @property
    def is_exceeded(self) -> bool:
        """True if the figure exceeds the limit, and the count exceeds the floor.

        A limit of 0 ignores the floor.
        """
        return self.figure > self.limit and (self.floor is None or self.count > self.floor or not self.limit)

    @property
    def used(self) -> float:
        """The figure as a share of the limit."""
        if not self.limit:
            return 2.0 if self.figure else 0.0
        return self.figure / self.limit


def measure(mark: Mark, settings: CollectionSettings) -> tuple[Gauge, ...]:
    """The gauges of the guards of amount.

    There are four: candidates and the gap in the listing, each by share and by number. A fifth is that of branches, if
    an earlier run counted them.
    """
    gap = "gap in the listing"
    missing, before = required(mark.missing), mark.branches_before
    return (
        *_measure_candidates(required(mark.candidates), mark.known, settings),
        Gauge.of_share(gap, "max_missing_share", missing, required(mark.expected), settings),
        Gauge.of_count(gap, "max_missing", missing, settings),
        *([] if before is None else [_branch_loss(required(mark.branches), before, settings)]),
    )


def _measure_candidates(candidates: int, known: int, settings: CollectionSettings) -> tuple[Gauge, Gauge]:
    # More candidates than objects is a contradiction, however few they are.
    few = _FEW_CANDIDATES if candidates <= known else 0
    return (
        Gauge.of_share("share of candidates", "max_candidate_share", candidates, known, settings, floor=few),
        Gauge.of_count("number of candidates", "max_candidates", candidates, settings),
    )


def _branch_loss(now: int, before: int, settings: CollectionSettings) -> Gauge:
    # A server that lost its branches reports none: no floor lets that pass.
    few = _FEW_BRANCHES if now else 0
    lost = max(before - now, 0)
    return Gauge.of_share("number of branches", "max_branch_loss_share", lost, before, settings, floor=few)


def require_live_set(mark: Mark) -> None:
    """Raises GuardTripped if commits promise entries, there are candidates, and no committed address was found."""
    any_committed = bool(mark.committed or mark.addresses_from_facts)
    require_committed(any_committed, mark.entries_promised, required(mark.candidates))


def require_committed(any_committed: bool, promised: int | None, going: int) -> None:
    """Raises GuardTripped if objects are to be deleted, commits promise entries, and no committed address was found.

    Args:
        any_committed: True if any committed address was found.
        promised: entries of live commits, by the counts in metaranges; None if no metarange was read.
        going: number of objects to be deleted.
    """
    if going and promised and not any_committed:
        raise GuardTripped(
            "empty live set",
            f"no committed address was found, but live commits have {counted(promised, 'entries')}; "
            f"{counted(going, 'objects')} would be deleted",
            "No setting lifts this guard: check that lakeFS server and object store belong together",
        )


def tripped(mark: Mark, settings: CollectionSettings) -> tuple[GuardTripped, ...]:
    """The guards of amount that the figures trip: a sweep refuses, a dry run warns."""
    return tuple(_tripped(mark, settings))


def _tripped(mark: Mark, settings: CollectionSettings) -> Iterable[GuardTripped]:
    _, _, missing_share, missing, *branches = measure(mark, settings)
    yield from too_many_candidates(required(mark.candidates), mark.known, settings, mark.limited_to)
    if missing_share.is_exceeded or missing.is_exceeded:
        yield GuardTripped(
            "gap in the listing",
            f"the listing lacks {missing.count:,} of {counted(required(mark.expected), 'addresses')} that branch heads "
            f"or staging reference in the listed slices, {missing_share.figure:.1%}, such as "
            f"{', '.join(mark.missing_examples)}",
            "Check that server and object store belong together. If the objects are lost, raise "
            "collection.max_missing_share and collection.max_missing",
        )
    for loss in branches:
        if loss.is_exceeded:
            yield _lost_branches(required(mark.branches), mark.branches_before or 0)
    yield from mark.retention
    yield from _shared_namespace(mark.nested, mark.repositories_unknown, settings)


def too_many_candidates(
    candidates: int, known: int, settings: CollectionSettings, limited_to: str = ""
) -> Iterable[GuardTripped]:
    """The guards that this number of candidates trips.

    Args:
        known, limited_to: see Mark.
    """
    of_known, number = _measure_candidates(candidates, known, settings)
    if of_known.is_exceeded:
        scope = f", in {limited_to} alone" if limited_to else ""
        yield GuardTripped(
            "share of candidates",
            f"{candidates:,} of {counted(known, 'known objects')} would be deleted, {of_known.figure:.1%}, more than "
            f"{of_known.limit:.1%}{scope}",
            "Review the candidates; if they are right, raise collection.max_candidate_share",
        )
    if number.is_exceeded:
        yield _too_many(number)


def _too_many(number: Gauge) -> GuardTripped:
    return GuardTripped(
        "number of candidates",
        f"{counted(number.count, 'objects')} would be deleted, more than {number.limit:,}",
        "Review the candidates; if they are right, raise collection.max_candidates",
    )


def require_few_orphaned(objects: int, settings: CollectionSettings) -> None:
    """Raises GuardTripped if the place of a deleted repository has too many objects to delete."""
    number = Gauge.of_count("number of candidates", "max_candidates", objects, settings)
    if number.is_exceeded:
        raise _too_many(number)


def refuse_orphan(place: str, why: str) -> NoReturn:
    """Raises GuardTripped for a place that is not, or no longer, certainly the data of a deleted repository."""
    raise GuardTripped(
        "deleted repository",
        f"{place}: {why}",
        "No setting lifts this guard: nothing more is deleted there",
    )


def refuse_standing(kind: str, name: str, why: str) -> NoReturn:
    """Raises GuardTripped for a deletion that no standing approval covers.

    Args:
        kind: kind of work, such as `collection`.
        name: name of the deletion.
    """
    raise GuardTripped(
        "standing approval",
        f"no standing approval for {kind} covers {name}: {why}",
        "It waits for a person: review it and approve it, or grant other limits by `lakefs-gc approvals grant`",
    )


def _shared_namespace(
    nested: Sequence[str], repositories_unknown: str | None, settings: CollectionSettings
) -> Iterable[GuardTripped]:
    if nested:
        yield GuardTripped(
            "namespaces",
            f"the storage namespace lies inside another repository's, or around it: {', '.join(nested)}",
            "No setting lifts this guard: such repositories can be marked, not swept",
        )
    if repositories_unknown is not None and not settings.allow_unknown_repositories:
        yield GuardTripped(
            "other repositories",
            "the server does not report which repositories it has, so another one may be on this storage namespace: "
            f"{repositories_unknown}",
            "Grant fs:ListRepositories on *, or set collection.allow_unknown_repositories if you know that there "
            "is none",
        )


def _lost_branches(now: int, before: int) -> GuardTripped:
    return GuardTripped(
        "number of branches",
        f"{counted(now, 'branches are')} left of the {before:,} that existed before",
        "If they were deleted on purpose, raise collection.max_branch_loss_share for one run",
    )


def require_limited_commits(hooks_without_limit: str, settings: CollectionSettings) -> None:
    """Raises GuardTripped if a commit that began before the mark may last for an unknown time.

    Args:
        hooks_without_limit: see UncommittedFigures.
    """
    if hooks_without_limit and not settings.longest_commit_minutes:
        raise GuardTripped(
            "commits under way",
            f"hooks can delay a commit for an unknown time, and the collector cannot see the commit's objects: "
            f"{hooks_without_limit}",
            "Set collection.longest_commit_minutes to the maximum duration of a commit in this repository",
        )


def require_branches(now: int, marked: int, settings: CollectionSettings) -> None:
    """Raises GuardTripped if a recheck counts too few branches, compared with the mark.

    Args:
        now, marked: branches whose head holds an object, at the recheck and at the mark.
    """
    if _branch_loss(now, marked, settings).is_exceeded:
        raise _lost_branches(now, marked)


def require_few_stale(going: int, branches: int, settings: CollectionSettings) -> None:
    """Raises GuardTripped if too many branches are to be deleted as stale.

    Args:
        branches: number of all branches when the stale ones were chosen.
    """
    loss = Gauge.of_share("stale branches", "max_branch_loss_share", going, branches, settings, floor=_FEW_BRANCHES)
    if loss.is_exceeded:
        raise GuardTripped(
            "stale branches",
            f"{going:,} of {branches:,} branches would be deleted, {loss.figure:.1%}, more than {loss.limit:.1%}",
            "Review them; if they are right, raise collection.max_branch_loss_share, or match fewer in the policy",
        )


def require_few_expired(going: int, entries: int, branch: str, settings: CollectionSettings) -> None:
    """Raises GuardTripped if object lifecycle would delete too large a share of the entries of a branch."""
    loss = Gauge.of_share("expired entries", "max_candidate_share", going, entries, settings, floor=_FEW_ENTRIES)
    if loss.is_exceeded:
        raise GuardTripped(
            "expired entries",
            f"{going:,} of {entries:,} entries of branch {branch} would be deleted, {loss.figure:.1%}, more than "
            f"{loss.limit:.1%}",
            "Review them; if they are right, raise collection.max_candidate_share, or match fewer",
        )


def require_own_namespace(
    nested: Sequence[str], repositories_unknown: str | None, settings: CollectionSettings
) -> None:
    """Raises GuardTripped if a recheck finds that another repository shares, or may share, the storage namespace.

    Args:
        nested, repositories_unknown: see Mark.
    """
    for guard in _shared_namespace(nested, repositories_unknown, settings):
        raise guard


def require_sole_writer(settings: CollectionSettings) -> None:
    """Raises GuardTripped if, by the settings, another server may have written ranges into the storage namespace.

    Such ranges look unneeded here. By those settings their objects count as live. Without the ranges, the objects would
    no longer be found.
    """
    if settings.counts_old_unnamed_ranges:
        raise GuardTripped(
            "other servers",
            "by the settings, objects of unneeded ranges count as live, since another server may have committed them",
            "If no other server uses the storage namespace, set collection.keep_old_unnamed_ranges to false",
        )


def require_uncommitted_kept(lost: int, marked: int, settings: CollectionSettings) -> None:
    """Raises GuardTripped if a recheck lacks too many of the addresses that were uncommitted at the mark.

    Args:
        lost: addresses that were uncommitted at the mark, and are neither uncommitted nor committed at the recheck.
        marked: uncommitted addresses of the mark.
    """
    loss = Gauge.of_share(
        "loss of uncommitted data", "max_uncommitted_loss_share", lost, marked, settings, floor=_FEW_UNCOMMITTED
    )
    if loss.is_exceeded:
        raise GuardTripped(
            "loss of uncommitted data",
            f"{lost:,} of {counted(marked, 'uncommitted addresses are')} gone since the mark without having been "
            "committed",
            "If they were reset or deleted on purpose, open a new run, or raise collection.max_uncommitted_loss_share",
        )


def require_fresh_mark(listed_at: datetime, latest_now: datetime, settings: CollectionSettings) -> None:
    """Raises GuardTripped if the listing of a mark is too old to delete by.

    Args:
        listed_at: start of the listing, UTC.
        latest_now: the present by the latest clock, UTC: a listing that is too old by any clock is too old.
    """
    age = latest_now - listed_at
    if age > timedelta(hours=settings.max_mark_age_hours):
        raise GuardTripped(
            "age of the mark",
            f"the store was listed at {listed_at:%F %T}Z, {age.total_seconds() / 3600:,.0f} hours ago",
            "Open a new run, or raise collection.max_mark_age_hours",
        )


def require_clocks_agree(clocks: Clocks, skew: timedelta) -> None:
    """Raises GuardTripped if clocks differ by more than half of the skew that the cutoff allows."""
    apart = clocks.latest - clocks.earliest
    if apart > skew / 2:
        raise GuardTripped(
            "clocks",
            f"our clock says {clocks.own:%F %T}Z, the lakeFS server {clocks.server_earliest:%F %T}Z to "
            f"{clocks.server_latest:%F %T}Z, the object store {clocks.store:%F %T}Z: {apart} apart, "
            f"more than half of the allowed skew of {skew}",
            "Set the clocks right, or raise collection.clock_skew_minutes",
        )


def refuse_escaped_namespace(namespace: Namespace) -> NoReturn:
    """Raises GuardTripped for a namespace with escapes (`%20`), which the server decodes in addresses."""
    raise GuardTripped(
        _ADDRESS_FORM,
        f"the server decodes the namespace {namespace.uri}, and spells addresses otherwise",
        _MARKED_ONLY,
    )


def refuse_foreign_address(physical_address: str, namespace: Namespace) -> NoReturn:
    """Raises GuardTripped for an address that does not begin with the namespace of its object."""
    raise GuardTripped(
        _ADDRESS_FORM,
        f"the server gives {physical_address} for an object of the namespace {namespace.uri}",
        _MARKED_ONLY,
    )


def refuse_unseen_spelling(namespace: Namespace) -> NoReturn:
    """Raises GuardTripped if no branch has an object to compare its address with."""
    raise GuardTripped(
        _ADDRESS_FORM,
        f"no branch of {namespace.uri} has an object by which to see how the server spells addresses",
        "Commit one object, or collect later",
    )


def refuse_staged_spelling(address: str, staged_as: str, namespace: Namespace) -> NoReturn:
    """Raises GuardTripped for a staged object that uncommitted data cannot include, so that retention could delete it.

    Args:
        staged_as: path and branch, in words.
    """
    raise GuardTripped(
        _ADDRESS_FORM,
        f"{address}, staged as {staged_as}, is spelled differently from {namespace.uri}: lakeFS omits it from "
        "uncommitted data, so a run by retention could delete it",
        "Commit or reset it, and start the collection again",
    )


def refuse_access_point(address: str, staged_as: str, key: str, namespace: Namespace) -> NoReturn:
    """Raises GuardTripped for an object that was staged through an access point, and that uncommitted data lacks.

    Args:
        staged_as: path and branch, in words.
        key: key of this namespace's object that it may be.
    """
    raise GuardTripped(
        _ADDRESS_FORM,
        f"{address}, staged as {staged_as}, may be {key} of {namespace.uri}, and the server's uncommitted data lacks "
        "it",
        "Commit or reset it if it was imported by an access point. Otherwise the server spells all addresses in a way "
        "that does not distinguish staged objects from garbage",
    )


def list_rule_guards(
    unknown_names: Sequence[str], lost_pins: Sequence[str], settings: CollectionSettings
) -> Iterable[GuardTripped]:
    """The guards that retention rules trip.

    Args:
        unknown_names: names of branches and tags in rules that the repository lacks, in words.
        lost_pins: pinned commits that the repository lacks.
    """
    if unknown_names and not settings.allow_rules_of_unknown_branches:
        yield GuardTripped(
            "rules of unknown branches",
            f"{'; '.join(unknown_names)}. If a name is misspelt, data of the intended one is kept for too short a time",
            "Correct the rules, or set collection.allow_rules_of_unknown_branches if the branch or tag was deleted or "
            "does not exist yet",
        )
    if lost_pins:
        yield GuardTripped(
            "pinned commits",
            f"the policy pins commits that the repository does not have: {', '.join(lost_pins)}",
            "Correct the ids in the policy, or remove them",
        )


def to_stored(guard: GuardTripped) -> tuple[str, str, str]:
    """A guard in the form of frames' figures: name, figures, and the setting that lifts it."""
    return guard.guard, guard.figures, guard.lifted_by


def from_stored(stored: Iterable[tuple[str, str, str]]) -> tuple[GuardTripped, ...]:
    """The guards stored by `to_stored`."""
    return tuple(GuardTripped(*fields) for fields in stored)
