"""The parts of the routine, in order: object lifecycle, stale branches, rules, collection.

Each part removes references that the next ones would count. A part that waits for a person does not delay the next
parts. Every part reads the repository's current state, so collection finds objects that are garbage without the
deletions that wait. A later routine finds the rest.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from lakefs_gc_assets.cli.policy import rules_in_force
from lakefs_gc_assets.collector.page import markup
from lakefs_gc_assets.collector.records import run_folder, stored_forecasts
from lakefs_gc_assets.collector.records.outcomes import Amount, Tally, describe_result
from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.standing_approvals import standing_approver
from lakefs_gc_assets.defs.listings import ListedDeletion, ListingShown
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, GuardTripped, LogLine, counted
from lakefs_gc_assets.lakefs import layout

RULES, COLLECTION = "rules", "collection"
_RULES_REASON = "older commits still hold deleted objects until they expire by these rules; nothing is changed here"
_COLLECTION_REASON = (
    "it deletes objects that nothing references any more, so it comes after everything that dereferences"
)
_LINES_SHOWN = 200


class PartState(StrEnum):
    """State of a part after the routine."""

    SKIPPED = "skipped"
    NOT_SET_UP = "not set up"
    NOTHING = "nothing to do"
    WAITS = "waits for a person"
    DONE = "done"
    INCOMPLETE = "incomplete"
    LOST = "found lost objects"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """Outcome of one part.

    Attributes:
        reason: why the part comes at this place.
        result: what it found or did, in a line.
        next: the command that a person gives next; empty for none.
        freed: by branch, objects that collection frees later; None if unknown. See `ListingShown.freed`.
        freed_note: what these figures mean.
        candidates: objects that the collection found to be garbage now; None without a collection.
    """

    name: str
    state: PartState
    reason: str = ""
    result: str = ""
    next: str = ""
    lines: tuple[str, ...] = ()
    freed: Mapping[str, Amount | None] = field(default_factory=dict)
    freed_note: str = ""
    candidates: Amount | None = None


@dataclass(frozen=True, slots=True)
class RoutineResult:
    """Outcomes of all parts, in order. `ended_at`: UTC."""

    repository: str
    ended_at: datetime
    parts: tuple[PartOutcome, ...]

    def has(self, *states: PartState) -> bool:
        """True if a part ended in one of these states."""
        return any(part.state in states for part in self.parts)

    @property
    def forecast(self) -> tuple[str, ...]:
        """What collection frees now, and what it frees later if every proposal is approved."""
        return (*forecast(self.parts),)

    def lines(self) -> Iterator[str]:
        """The routine as lines."""
        for number, part in enumerate(self.parts, 1):
            yield f"{number}. {part.name}: {part.state}{f': {part.result}' if part.result else ''}"
            yield from (f"     {line}" for line in part.lines)
            if part.next:
                yield f"   next: `{part.next}`"
        yield from self.forecast

    def store_page(self, repository: OpenRepository) -> bytes:
        """Makes the page and stores it in place of the one before. Raises StorageError."""
        template = Path(__file__).with_name("routine.html")
        page = markup.render(template, f"{self.ended_at:%FT%TZ}", routine=self, most=_LINES_SHOWN)
        repository.store.put(run_folder.ROUTINE_PAGE, page)
        return page


@dataclass(frozen=True, slots=True)
class Host:
    """The process of a routine.

    Attributes:
        deletions: the parts that list and delete, in order.
        owner: owner of the repository's lock while a part deletes.
        approvers: number of people who must grant a standing approval; None if no part may act.
        collect: makes or opens the collection, and returns its outcome.
        report: records a list.
        fail: records the reason that a list could not be made.
    """

    repository: OpenRepository
    deletions: tuple[ListedDeletion, ...]
    owner: str
    approvers: int | None
    note: LogLine
    warn: LogLine
    collect: Callable[[], PartOutcome]
    report: Callable[[ListedDeletion, ListingShown], None] = lambda deletion, shown: None
    fail: Callable[[ListedDeletion, str], None] = lambda deletion, why: None


def play(host: Host, skipped: Collection[str]) -> RoutineResult:
    """Plays all parts but the skipped ones. An error in one part is its outcome, and the others go on.

    Raises ConfigurationError for an unknown part.
    """
    parts: Sequence[tuple[str, str, Callable[[], PartOutcome]]] = [
        *((each.job, each.reason, lambda each=each: _play_listed(host, each)) for each in host.deletions),
        (RULES, _RULES_REASON, lambda: _show_rules(host)),
        (COLLECTION, _COLLECTION_REASON, host.collect),
    ]
    if unknown := {*skipped} - {name for name, _, _ in parts}:
        raise ConfigurationError(f"{', '.join(sorted(unknown))}: no part of the routine")
    outcomes = []
    for name, reason, act in parts:
        host.note(f"{name}: {'skipped' if name in skipped else reason}")
        try:
            outcome = PartOutcome(name, PartState.SKIPPED) if name in skipped else act()
        except CollectionError as error:
            host.warn(f"{name}: {error}")
            outcome = PartOutcome(name, PartState.FAILED, result=str(error))
        outcomes.append(replace(outcome, reason=reason))
    return RoutineResult(host.repository.facts.id, host.repository.clock.now(), tuple(outcomes))


def _play_listed(host: Host, deletion: ListedDeletion) -> PartOutcome:
    repository, name = host.repository, deletion.job
    if not deletion.is_set_up(repository.settings):
        return PartOutcome(name, PartState.NOT_SET_UP, result="the policy has no rules for it")
    try:
        shown = deletion.show(repository, host.note)
    except CollectionError as error:
        host.fail(deletion, str(error))
        raise
    outcome = PartOutcome(name, PartState.NOTHING, lines=shown.lines, freed=shown.freed, freed_note=shown.freed_note)
    if shown.digest:
        approve = f"{deletion.command} {shown.digest}"
        outcome = replace(outcome, state=PartState.WAITS, result=shown.planned, next=approve)
    if shown.refused_by:
        outcome = replace(outcome, result=f"{shown.planned}; {shown.refused_by}", next="")
    elif shown.digest and host.approvers is not None:
        outcome, shown = _delete(host, host.approvers, deletion, shown, outcome)
    host.report(deletion, shown)
    if not shown.verdict.passed:
        return replace(
            outcome, state=PartState.INCOMPLETE, result=f"{outcome.result}; {shown.verdict.why}".lstrip("; ")
        )
    return outcome


def _delete(
    host: Host, approvers: int, deletion: ListedDeletion, shown: ListingShown, waiting: PartOutcome
) -> tuple[PartOutcome, ListingShown]:
    """Deletes what a list has if a standing approval covers it; otherwise it keeps waiting, with the exceeded limit."""
    repository, tally = host.repository, Tally(deletion.usual)
    try:
        approver = standing_approver(repository, deletion.work, shown.figures, approvers)
        by = approver()
    except GuardTripped as guard:
        return replace(waiting, result=f"{shown.planned}; {guard}"), shown
    host.note(f"{deletion.job}: {by} covers {shown.planned}")
    deleting = deletion.delete(repository, shown.digest, host.owner, host.note, host.warn, approver)
    lines, state, why = list[str](), PartState.DONE, by
    try:
        for outcome in tally.counted(deleting):
            lines.append(describe_result(deletion.name(outcome), outcome))
        state = PartState.INCOMPLETE if tally.failed else PartState.DONE
    except CollectionError as error:
        # The outcomes before it are shown.
        host.warn(f"{deletion.job}: {error}")
        state, why = PartState.FAILED, f"{by}; ended early: {error}"
    after = deletion.show(repository, host.note)
    # What was deleted may be among the candidates already.
    done = replace(waiting, state=state, result=f"{tally.describe(frees=False)}; {why}", next="", lines=(*lines,))
    return replace(done, freed=after.freed), after


def _show_rules(host: Host) -> PartOutcome:
    """The rules in force, what they keep, and what they free by the newest forecast. Changes nothing."""
    repository = host.repository.dumping_at_once()
    rules = rules_in_force(repository, host.note)
    newest = stored_forecasts.read_newest(repository.store)
    rows = [] if newest is None else newest[1].to_pylist()
    freed = next((row for row in rows if row["kind"] == ScenarioKind.IN_FORCE.value), None)
    lines = tuple(rules.lines)
    if newest is not None and freed is not None and freed["freed_objects"] is not None:
        made_at = layout.as_datetime(layout.created_at(newest[0]))
        objects = Amount(freed["freed_objects"], freed["freed_bytes"]).shown
        lines += (f"by the forecast of {made_at:%F %T}Z, these rules free {objects}",)
    refused = "a guard would refuse a sweep by these rules" if rules.refused else ""
    return PartOutcome(RULES, PartState.WAITS if refused else PartState.DONE, result=refused, lines=lines)


def forecast(parts: Iterable[PartOutcome]) -> Iterator[str]:
    """The forecast of all parts together.

    The first sum is exact: candidates of this collection, which nothing references. The second sum is about objects
    that something still references, so no object counts in both. It is an estimate: see the note of each list. A branch
    in two lists counts with the larger figure, since both may contain the same objects.
    """
    by_branch, unknown, notes = dict[str, Amount](), set[str](), list[str]()
    for part in parts:
        if part.candidates is not None:
            yield f"collection frees now, once its candidates are approved: {part.candidates.shown}"
        if part.freed:
            notes.append(f"  {part.name}: {part.freed_note}")
        for branch, amount in part.freed.items():
            if amount is None:
                unknown.add(branch)
            else:
                by_branch[branch] = max(amount, by_branch.get(branch, Amount()), key=lambda each: each.bytes)
    if notes:
        known = f"about {Amount.total(by_branch.values()).shown}" if by_branch else "an unknown amount"
        more = f", and an unknown amount of {counted(len(unknown), 'branches')}" if unknown and by_branch else ""
        yield f"collection frees later, if the other proposals are approved too: {known}{more}"
        yield from notes
