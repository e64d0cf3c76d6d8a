"""Oracle: a run by retention rules keeps exactly the right commits by its information, and examines all that may go.

The commits that stay follow from the world's log of heads, at the very second from which the run counts ages. They
belong to the branches and commits in the dump that the run got, with tagged ones and the server's own list. Their dates
are the latest that the run knows from commits, from the files of their metaranges and from their parents. A run that
requested uncommitted data also keeps the commits that stayed right before, by the same measure.

A run that lists nothing must have all objects held only by other commits in its universe, except those that a run
deleted. A run with a base run may leave out objects that it cannot identify (`_held_by_other_names`).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lakefs_gc_assets.collector.commits import CommitSource
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.retention.retention import LiveDefinition
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.retention_oracle import RetentionOracle, Span, keeps_tag, kept_as_told, window_of
from lakefs_gc_assets_tests.simulation.server_answers import ServerAnswers


@dataclass
class RetentionExactness:
    """Compares runs with the log of heads.

    Attributes:
        compared: number of live definitions of marks.
    """

    oracle: RetentionOracle
    compared: int = 0

    def defined(self, plan: Plan, reported: ServerAnswers, found: LiveDefinition, *, universe: bool) -> None:
        """A run defines the commits that stay.

        Args:
            universe: True if it has not requested uncommitted data yet.
        """
        if found.live.source is not CommitSource.REFS_DUMP:
            return
        defined, stays = self._defined(plan, reported), self._stays(plan, reported)
        before = None if universe else reported.as_before()
        if before is not None:
            stays |= self._stays(plan, before)
        kept, let_go = frozenset(found.live.metarange_ids), frozenset(found.expired_metaranges)
        live = self._metaranges(stays)
        expired = self._metaranges(reported.commits.keys() - stays) - live
        claimed = self._defined(plan, reported, claimed=True)
        listed = reported.listed if reported.rules is not None and reported.listed is not None else claimed
        alone = {
            kept_by: frozenset(each.commit_id for each in found.differences if each.kept_by == kept_by)
            for kept_by in ("definition", "server")
        }
        if before is None and not universe:
            # Another process of the run knew the earlier state: more may stay.
            kept, expired = kept & live, expired & let_go
        self.compared += 1
        for what, ours, theirs in (
            ("keep by the definition alone", frozenset(claimed - listed), alone["definition"]),
            ("keep by the server's list alone", frozenset(listed - claimed), alone["server"]),
            ("keep", live, kept),
            ("let go", expired, let_go),
        ):
            if ours != theirs:
                lacks, more = len(ours - theirs), len(theirs - ours)
                raise Violation(
                    f"run {plan.run_id} does not {what} the right commits: it lacks {lacks}, and has {more} more"
                )
        if len(defined) != found.counts["commits_active"]:
            raise Violation(f"run {plan.run_id} keeps {found.counts['commits_active']} commits, and not {len(defined)}")

    def universe(self, plan: Plan, reported: ServerAnswers, addresses: Collection[str]) -> None:
        """A run that lists nothing defines the objects that may go."""
        stays = self._stays(plan, reported)
        kept, expired = self._own_objects(stays), self._own_objects(reported.commits.keys() - stays)
        there = self.oracle.bucket.objects.keys()
        gone = {key for watched in self.oracle.runs.values() for key in watched.accepted.keys() - watched.restored}
        if plan.base_run is not None:
            kept = kept | self._held_by_other_names(stays, reported)
        if missed := (expired - kept - gone) & there - set(addresses):
            raise Violation(f"run {plan.run_id} does not look at {min(missed)}, which only expired commits hold")

    def _held_by_other_names(self, stays: Collection[str], reported: ServerAnswers) -> set[str]:
        """Objects that a run with a base run may leave out, besides those that stay under their own name.

        It does not examine objects again that stay under another name. Objects that any commit names by an address that
        may mean several keys wait for a run that reads everything.
        """
        known, uri = self.oracle.repository.commits, self.oracle.repository.uri
        held = set[str]()
        for commit_id in reported.commits:
            for entry in known[commit_id].entries.values():
                key = self.oracle.key_of(entry)
                if key is not None and (commit_id in stays or entry.address not in (key, uri + key)):
                    held.add(key)
        return held

    def _stays(self, plan: Plan, reported: ServerAnswers) -> set[str]:
        """The commits that stay."""
        tagged = {commit for tag, commit in reported.tags.items() if keeps_tag(self.oracle.policy, tag)}
        return self._defined(plan, reported) | tagged | (reported.listed or frozenset())

    def _defined(self, plan: Plan, reported: ServerAnswers, *, claimed: bool = False) -> set[str]:
        """The commits that were heads within the windows.

        Args:
            claimed: True to use the dates that commits claim, as servers do.
        """
        oracle = self.oracle
        if not reported.asked_rules:
            raise Violation(f"run {plan.run_id} goes on without having been told the rules")
        now = plan.earliest_clock.timestamp()
        if now > min(plan.started_at.timestamp(), oracle.time.now + oracle.bucket.clock.skew) + 1:
            raise Violation(f"run {plan.run_id} counts ages from a moment that is to come by some clock")
        if reported.rules is None:
            return set(reported.commits)
        claims, dates = reported.claims(), reported.dates(now)
        if claimed:
            heads, commits = reported.branches, reported.commits.keys()
            until = oracle.log.stays_until(heads, commits, window_of(reported.rules), claims.__getitem__)
        else:

            def counted(branch: str, line: Sequence[str]) -> set[str]:
                return kept_as_told(oracle.policy, branch, line, span)

            def span(commit: str) -> Span:
                written = reported.written.get(reported.commits[commit].metarange_id, -math.inf)
                return min(claims[commit], written), dates[commit]

            until = oracle.stays_until(reported.rules, reported.branches, reported.commits, dates.__getitem__, counted)
        return {commit_id for commit_id, moment in until.items() if moment > now}

    def _metaranges(self, commits: Collection[str]) -> frozenset[str]:
        known = self.oracle.repository.commits
        return frozenset(known[commit_id].facts.metarange_id for commit_id in commits) - {""}

    def _own_objects(self, commits: Collection[str]) -> set[str]:
        """Objects of commits under a name that can mean nothing else."""
        known = self.oracle.repository.commits
        entries = (entry for commit_id in commits for entry in known[commit_id].entries.values())
        return {entry.address for entry in entries if entry.address_type == 1}
