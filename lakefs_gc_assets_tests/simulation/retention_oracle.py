"""The requirement of retention rules itself, kept by the world's own log of heads.

An object in commits stays as long as some head within its branch's window had it, or a tagged commit has it. The
world's own time decides when a commit was made, never the commit's claim. Runs may keep more: they use the latest of
the dates given by commits, their files and their parents (`effective_dates`), and garbage may stay that long. Staged
objects, remembered copies, arriving and young objects stay in any case.

Expired data can come back: a user makes a branch on an old commit, sets one back, reverts, picks, tags, imports, or
makes rules longer. Such an object is *revived*. A sweep must know of it if this happened before its last recheck began,
or longer ago than a recheck is valid. Objects revived later may be lost, and each is counted. Data that never expired
is never lost.

Ages are as exact as the clocks: the last quarter of an hour of a window is not promised. `run_oracles` checks
that a mark counts to the second from the earliest clock that it knows.

Commits that policies keep by number are derived from the world's log of lines and from calendars, without a graph or
code of the product: `kept_by_true_times` is the requirement, `kept_as_told` a run's knowledge, with doubtful commits.
"""

import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lakefs_gc_assets.lakefs.api.models import Commit, RetentionRules
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.oracle import Oracle, Recheck, Violation, Watched
from lakefs_gc_assets_tests.simulation.servers import effective_dates

POLICIES = {
    "": "",
    "last": "branches: {'*': {retention: 0d, keep_last: 2}}\nkeep_tags: ['v[2]']",
    "days": "branches: {'*': {retention: 0d, keep: {daily: 3, monthly: 2}}}",
    "weeks": "branches: {'[ma]*': {retention: 0d, keep: {weekly: 2}}, '[doz]*': {retention: 0d, keep: {daily: 2}}}",
    "merges": "branches: {'*': {retention: 60h, keep_last: 1, follow: all-parents}}\nkeep_tags: ['v[13]']",
}
"""Policies by name. None names a branch or tag in full, which need not exist."""
Span = tuple[float, float]
"""The earliest and the latest moment at which a commit may have been made, seconds since 1970."""
_PERIODS: dict[str, Callable[[datetime], tuple[int, ...]]] = {
    "daily": lambda made: (made.year, made.month, made.day),
    "weekly": lambda made: made.isocalendar()[:2],
    "monthly": lambda made: (made.year, made.month),
}


@cache
def policy_file(name: str) -> str:
    """Path of a policy's file, for settings; empty for no policy."""
    if not name:
        return ""
    file = Path(tempfile.mkdtemp(prefix="policies-")) / f"{name}.yaml"
    file.write_text(POLICIES[name])
    return str(file)


@cache
def _period(kind: str, day: int) -> tuple[int, ...]:
    return _PERIODS[kind](datetime.fromtimestamp(max(day, 0) * 86_400, UTC))


def period(kind: str, moment: float) -> tuple[int, ...]:
    """The day, week or month of a moment."""
    return _period(kind, int(max(moment, 0.0) // 86_400))


@cache
def _content(policy: str) -> Mapping[str, Any]:
    return yaml.safe_load(POLICIES[policy]) or {}


def rule_of(policy: str, branch: str) -> Mapping[str, Any]:
    """A policy's rule for a branch, by the first letter of its name."""
    rules = _content(policy).get("branches", {})
    return next((rule for pattern, rule in rules.items() if pattern == "*" or branch[0] in pattern), {})


def keeps_tag(policy: str, tag: str) -> bool:
    """True if a policy keeps the commit of a tag."""
    return policy not in ("last", "merges") or (tag == "v2") == (policy == "last")


def followed(policy: str, branch: str) -> float | None:
    """Seconds for which a policy keeps merged commits; None if it does not follow merges."""
    return 60 * HOUR if rule_of(policy, branch).get("follow") else None


def _counts(policy: str, branch: str) -> Iterator[tuple[str, int]]:
    yield from rule_of(policy, branch).get("keep", {}).items()


def _last(policy: str, branch: str, line: Sequence[str], lifecycle: Collection[str]) -> set[str]:
    """The newest commits of a line that `keep_last` counts, and commits of object lifecycle before the last one."""
    kept, left = set(), rule_of(policy, branch).get("keep_last", 0)
    for commit in line:
        if left:
            kept.add(commit)
            left -= commit not in lifecycle
    return kept


def kept_by_true_times(
    policy: str,
    branch: str,
    line: Sequence[str],
    lifecycle: Collection[str],
    made: Callable[[str], float],
    reported: Callable[[str], Span],
) -> set[str]:
    """Commits of a line that a policy keeps; the line begins with its newest commit.

    A commit of object lifecycle fills no period, and stays while older commits are still counted. If a commit's claim
    and file (`reported`) agree on a wrong period, nothing is promised from that commit on.
    """
    kept = _last(policy, branch, line, lifecycle)
    for kind, count in _counts(policy, branch):
        newest: dict[tuple[int, ...], str] = {}
        for commit in line:
            if commit in lifecycle:
                kept.update([commit] if len(newest) < count else [])
                continue
            made_in, said = period(kind, made(commit)), {period(kind, moment) for moment in reported(commit)}
            if (len(newest) == count and made_in not in newest) or (len(said) == 1 and made_in not in said):
                break
            newest.setdefault(made_in, commit)
        kept.update(newest.values())
    return kept


def kept_as_told(
    policy: str, branch: str, line: Sequence[str], lifecycle: Collection[str], span: Callable[[str], Span]
) -> set[str]:
    """Commits of a line that a run keeps, knowing no more of dates than their spans; the line begins with its newest
    commit."""
    kept = _last(policy, branch, line, lifecycle)
    for kind, count in _counts(policy, branch):
        filled: set[tuple[int, ...]] = set()
        said: list[tuple[int, ...]] = []
        for commit in line:
            if len(filled) == count:
                break
            first, last = (period(kind, moment) for moment in span(commit))
            if commit in lifecycle or first != last or any(later < last for later in said):
                kept.add(commit)
            elif last not in filled:
                filled.add(last)
                kept.add(commit)
            said.append(last)
    return kept


Window = Callable[[str | None], float]
"""Seconds that a replaced head of a branch stays. None stands for a line that no branch continues."""


@dataclass(frozen=True, slots=True)
class Head:
    """A commit that was a head until another one replaced it; None for the last of a line."""

    commit: str
    replaced_by: str | None = None


@dataclass
class HeadsLog:
    """The line of work that led to each commit, ending with the commit itself.

    Attributes:
        shown: the head that each branch shows.
    """

    lines: dict[str, tuple[Head, ...]] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)

    def look(self, heads: Mapping[str, str]) -> None:
        """Records the heads that branches show now. Two changes of one branch between two looks count as one."""
        for branch, commit in heads.items():
            if commit not in self.lines:
                before = self.shown.get(branch)
                replaced = () if before is None else (*self.lines[before][:-1], Head(before, commit))
                self.lines[commit] = (*replaced, Head(commit))
        self.shown = dict(heads)

    def stays_until(
        self, heads: Mapping[str, str], commits: Collection[str], window: Window, date: Callable[[str], float]
    ) -> dict[str, float]:
        """Until when each commit stays, if nothing changes; seconds since 1970.

        Args:
            heads: the branches that count.
            commits: the known commits; a line that goes on in an unknown commit counts as not continued.
            date: returns when a commit was made.
        """
        until = dict.fromkeys(heads.values(), math.inf)

        def replaced(commit: str, moment: float) -> None:
            until[commit] = max(until.get(commit, -math.inf), moment)

        continued = {head.commit for commit in commits for head in self.lines[commit][:-1]}
        walks: list[tuple[str | None, str]] = list(heads.items())
        walks += [(None, commit) for commit in commits if commit not in continued and commit not in heads.values()]
        for branch, last in walks:
            seconds = window(branch)
            for head in self.lines[last]:
                if head.replaced_by is not None:
                    replaced(head.commit, date(head.replaced_by) + seconds)
                elif branch is None:
                    replaced(last, date(last) + seconds)
        return until


CLOCKS_APART = 15 * MINUTE
YOUNG = 24 * HOUR
"""No run deletes objects named later than this long ago: the servers' grace period."""
_SETTLED = 2 * HOUR
"""A run that has just ended must have known all commits that expired longer ago than this."""
_NEVER = -math.inf


Counted = Callable[[str, Sequence[str]], Collection[str]]
"""Commits that a policy keeps by number, given a branch and its line, which begins with the newest commit."""


def window_of(rules: RetentionRules | None, policy: str = "") -> Window:
    """Returns the windows of rules for the log, with ages of a policy; without rules everything stays."""

    def window(branch: str | None) -> float:
        if rules is None:
            return math.inf
        days = rules.default_days if branch is None else rules.branches.get(branch, rules.default_days)
        return max(days * DAY, (followed(policy, branch) or 0) if branch else 0)

    return window


@dataclass
class RetentionOracle(Oracle):
    """The account for runs by retention rules; for all others every commit counts, as in `Oracle`.

    Attributes:
        policy: the name of the policy that counts besides the rules.
        by_retention: ids of the runs that apply rules.
        firm_until: until when objects are referenced, if nothing changes.
        again: objects that lakeFS does not promise, with since when and until when they are referenced.
        revived: since when objects are referenced again, for those unreferenced in between.
        restaged: when an object that a commit held was staged as well.
        expired: number of deleted objects that commits had held.
        too_late: deleted objects that were revived after the last recheck.
        head_until: until when each commit was seen to be the head of a branch.
        beyond: bytes by which commits overstate sizes; runs that list nothing report these sizes.
    """

    log: HeadsLog = field(default_factory=HeadsLog)
    policy: str = ""
    by_retention: set[str] = field(default_factory=set)
    firm_until: dict[str, float] = field(default_factory=dict)
    again: dict[str, tuple[float, float]] = field(default_factory=dict)
    revived: dict[str, float] = field(default_factory=dict)
    restaged: dict[str, float] = field(default_factory=dict)
    expired: int = 0
    too_late: list[str] = field(default_factory=list)
    head_until: dict[str, float] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)
    _may_stay: dict[str, float] | None = None
    _held: dict[str, tuple[tuple[str, Entry], ...]] = field(default_factory=dict)
    _staged: frozenset[str] = frozenset()

    def look(self) -> None:
        heads = {name: branch.commit_id for name, branch in self.repository.branches.items()}
        self.head_until.update(dict.fromkeys([*self.log.shown.values(), *heads.values()], self.time.now))
        self.log.look(heads)
        super().look()
        now, self._may_stay = self.time.now, None
        staged, soft, _ = self.staged()
        firm = dict.fromkeys(staged, math.inf)
        again = {key: (since, math.inf) for key, since in soft.items()}
        commits, said = self.repository.commits, self._said()
        made = {id_: record.made_at for id_, record in commits.items()}

        def firmly(branch: str, line: Sequence[str]) -> set[str]:
            lifecycle = self.repository.by_lifecycle
            return kept_by_true_times(self.policy, branch, line, lifecycle, made.__getitem__, said.__getitem__)

        for commit_id, until in self._stays_until(made.__getitem__, firmly).items():
            if until + _SETTLED <= now:
                continue
            for key, entry in self._held_by(commit_id):
                since = self.seen_since(key, entry)
                if since is None:
                    firm[key] = max(until, firm.get(key, until))
                else:
                    earlier, later = again.get(key, (since, until))
                    again[key] = min(earlier, since), max(later, until)
        before = {key for key in (*self.firm_until, *self.again) if self._referenced(key)}
        self.restaged.update(dict.fromkeys((staged - self._staged) & self.firm_until.keys(), now))
        self.firm_until, self.again, self._staged = firm, again, frozenset(staged)
        there = {key for key in (*firm, *again) if self._referenced(key)}
        self.revived = {key: at for key, at in self.revived.items() if key in there and key in before}
        self.revived.update(dict.fromkeys((there - before) & self.in_commits.keys(), now))

    def _stays_until(self, date: Callable[[str], float], counted: Counted) -> dict[str, float]:
        commits = {id_: record.facts for id_, record in self.repository.commits.items()}
        until = self.stays_until(self.repository.rules, self.log.shown, commits, date, counted)
        tags = self.repository.tags.items()
        until.update({commit: math.inf for tag, commit in tags if keeps_tag(self.policy, tag)})
        return until

    def stays_until(
        self,
        rules: RetentionRules | None,
        heads: Mapping[str, str],
        commits: Mapping[str, Commit],
        date: Callable[[str], float],
        counted: Counted,
    ) -> dict[str, float]:
        """Until when each commit stays by rules and policy, if nothing changes; without tags."""
        until = self.log.stays_until(heads, commits.keys(), window_of(rules, self.policy), date)
        for branch, head in heads.items():
            line = [each.commit for each in reversed(self.log.lines[head])]
            until.update(dict.fromkeys(counted(branch, line), math.inf))
            seconds, reached = followed(self.policy, branch), [head]
            for commit in reached if seconds is not None else ():
                parents = commits[commit].parents
                reached += [parent for parent in parents if parent not in reached]
                until.update({each: max(until.get(each, _NEVER), date(commit) + (seconds or 0)) for each in parents})
        return until

    def _said(self) -> dict[str, Span]:
        """The dates that each commit and its file claim."""
        if not self.policy:
            return {}
        files, commits = self.bucket.objects, self.repository.commits
        return {
            id_: (
                float(record.facts.creation_date),
                files[METADATA_PREFIX + record.facts.metarange_id].last_modified if record.facts.metarange_id else 0.0,
            )
            for id_, record in commits.items()
        }

    def _held_by(self, commit_id: str) -> tuple[tuple[str, Entry], ...]:
        if commit_id not in self._held:
            entries = self.repository.commits[commit_id].entries.values()
            held = ((self.key_of(entry), entry) for entry in entries)
            self._held[commit_id] = tuple((key, entry) for key, entry in held if key is not None)
            named = {key: entry.size - self.bucket.sizes.get(key, entry.size) for key, entry in self._held[commit_id]}
            self.beyond |= {key: beyond for key, beyond in named.items() if beyond}
        return self._held[commit_id]

    def _referenced(self, key: str, margin: float = CLOCKS_APART) -> bool:
        """True if an object is referenced, by the state at the last look."""
        until = max(self.firm_until.get(key, _NEVER), self.again.get(key, (0.0, _NEVER))[1])
        return until - margin > self.time.now

    def _firm(self, key: str) -> bool:
        return self.firm_until.get(key, _NEVER) - CLOCKS_APART > self.time.now

    def _soft_since(self, key: str) -> float | None:
        since, until = self.again.get(key, (0.0, _NEVER))
        return since if until - CLOCKS_APART > self.time.now else None

    def is_promised(self, key: str) -> bool:
        return super().is_promised(key) and self._firm(key)

    def _stays_anyhow(self, key: str) -> str | None:
        if self.strange(key):
            return "it is no object of lakeFS"
        if self.issued.get(key, _NEVER) > self.time.now - YOUNG:
            return f"its name is {(self.time.now - self.issued[key]) / HOUR:.1f} hours old"
        return self.arriving(key)

    def reachable(self, key: str) -> bool:
        if self._stays_anyhow(key) is not None or self.being_committed(key) or self._referenced(key, -_SETTLED):
            return True
        if self._may_stay is None:
            self._may_stay = {}
            for commit_id, until in self._may_stay_until().items():
                for held, _ in self._held_by(commit_id):
                    self._may_stay[held] = max(until, self._may_stay.get(held, _NEVER))
        return self._may_stay.get(key, _NEVER) + _SETTLED > self.time.now

    def _may_stay_until(self) -> dict[str, float]:
        """Until when a run may keep each commit, by the latest date that it may know."""
        commits, files = self.repository.commits, self.bucket.objects
        said = {id_: float(record.facts.creation_date) for id_, record in commits.items()}
        written = {
            record.facts.metarange_id: files[METADATA_PREFIX + record.facts.metarange_id].last_modified
            for record in commits.values()
            if record.facts.metarange_id
        }
        facts = {id_: record.facts for id_, record in commits.items()}
        dates = effective_dates(facts, said, written, self.time.now)
        reported = self._said()

        def counted(branch: str, line: Sequence[str]) -> set[str]:
            lifecycle = self.repository.by_lifecycle
            return kept_as_told(self.policy, branch, line, lifecycle, lambda id_: (min(reported[id_]), dates[id_]))

        return self._stays_until(dates.__getitem__, counted)

    def most_bytes(self, watched: Watched) -> int:
        named = watched.accepted if watched.run_id in self.by_retention else ()
        return super().most_bytes(watched) + sum(self.beyond.get(key, 0) for key in named)

    @property
    def commits_hold_nothing(self) -> bool:
        now = self.time.now
        return not any(self._held_by(id_) for id_, until in self._may_stay_until().items() if until > now)

    def marked(self, run_id: str, candidates: Iterable[str]) -> None:
        if run_id not in self.by_retention:
            super().marked(run_id, candidates)
            return
        self.look()
        began = self.runs[run_id].listing_began
        if self.misled_since(began):
            return
        for key in candidates:
            problem = self._stays_anyhow(key)
            since = self.revived.get(key, _NEVER)
            unseen = max(self.moved_hidden.get(key, _NEVER), self.restaged.get(key, _NEVER))
            soft_since = self._soft_since(key)
            # An object held only by a commit in progress cannot be seen: no sweep goes on while one lasts.
            if self._firm(key) and since < began and unseen < began:
                problem = "it was referenced all the time"
            elif soft_since is not None and max(soft_since, since) < began:
                problem = "it was staged again before the listing"
            if problem:
                raise Violation(f"run {run_id} marks {key}: {problem}")

    def deletion(self, run_id: str, key: str, recheck: Recheck) -> None:
        self.look()
        self.expired += key in self.in_commits
        if run_id not in self.by_retention:
            super().deletion(run_id, key, recheck)
            return
        self.deleted += 1
        problem = self._stays_anyhow(key)
        since, soft_since = self.revived.get(key, _NEVER), self._soft_since(key)
        if self._firm(key) or self.being_committed(key):
            if since < recheck.limit:
                problem = f"it is referenced{'' if since == _NEVER else f' since {self.time.now - since:.0f} s'}"
            self.too_late.append(key)
        elif soft_since is not None:
            if max(since, soft_since) < recheck.limit:
                problem = f"it was staged again {self.time.now - soft_since:.0f} s ago, before the recheck"
            self.losses.append(key)
        if problem:
            raise Violation(f"run {run_id} deletes {key}: {problem}")
        self.accepted(run_id, key)
