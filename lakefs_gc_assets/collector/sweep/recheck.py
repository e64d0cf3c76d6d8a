"""The recheck: finds what became live since the mark, by the whole live definition, right before deletions."""

from collections.abc import Mapping
from dataclasses import replace

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame import manifest
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, UNCOMMITTED_DF, CommittedFigures
from lakefs_gc_assets.collector.incremental import ranges_read
from lakefs_gc_assets.collector.live import other_repositories
from lakefs_gc_assets.collector.live.current import (
    Committed,
    Uncommitted,
    ask_committed,
    heads_shown,
    prepare_uncommitted,
)
from lakefs_gc_assets.collector.retention import commits
from lakefs_gc_assets.collector.retention.commits import CommitSource
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import AccessDenied, NotFound, NotSupported


def find_live_again(step: Step[R]) -> R:
    """Finds the addresses (LIVE) that may have become live since the mark.

    These are all uncommitted addresses, prepared anew, and the addresses of live ranges that the mark did not read.

    Raises:
        GuardTripped: another repository shares the storage namespace by now, or may; or the figures differ from those
            of the mark in a way that looks like a mistake.
        OrderViolation: the commits come from another source than at the mark.
        LakeFSError, CorruptFile: the answers are not complete.
    """
    marked, repository = step.stored(COMMITTED_DF).figures, step.repository
    require_own_namespace(step)
    sealed = sealed_now(step, marked)
    shown = heads_shown(step)
    prepared = prepare_uncommitted(step)
    known = ranges_read.read(repository.store, step.plan.run_id, step.plan.attempt, marked.read_sha256)
    current = ask_committed(_without(step, marked.retention_differences), prepared.ended_at, known, shown)
    step.waited += current.waited
    manifest.require_same_source(
        CommitSource.METADATA_FOLDER if sealed is None else current.source, marked.commit_source
    )
    require_retention_holds(current)
    guards.require_commits_ended({**marked.sealed, **(sealed or {})}, current.own.sealed)
    guards.require_branches(len(current.own.heads), len(marked.heads), repository.settings)
    live = step.engine.union(*prepared.addresses, *current.addresses(step), *current.provisional_addresses(step))
    require_uncommitted_kept(step, live, prepared, current)
    step.log(f"recheck: {prepared.files} files of uncommitted data, {current.own.commits:,} commits")
    return live


def sealed_now(step: Step[R], marked: CommittedFigures) -> Mapping[str, str] | None:
    """The branch of each staging token that is sealed before the recheck, where the mark may not have seen all of its.

    The mark of a dry run that dumped refs at once may lack a token that was sealed right before. Such a token that is
    still sealed is among these. A token of a younger commit is too, and is sealed no more when the recheck dumps refs.
    None where the server refuses to dump by now.
    """
    if not marked.dump_at_once:
        return {}
    settings = step.repository.settings.model_copy(update={"wait_before_dump_seconds": 0})
    repository = replace(step.repository, settings=settings)
    try:
        return commits.complete_dump(repository, repository.clock.now(), step.log).sealed
    except (AccessDenied, NotFound, NotSupported) as refusal:
        step.log(f"refs dump not available ({refusal})")
        return None


def require_own_namespace(step: Step[R]) -> None:
    """Raises GuardTripped where another repository lies in, around or on the storage namespace, or may."""
    repository = step.repository
    around = other_repositories.find(repository)
    guards.require_own_namespace(around.nested, around.refusal, repository.settings)


def _without(step: Step[R], logged: str) -> Step[R]:
    """The step with a log that leaves out lines which a text has already."""
    lines, log = frozenset(logged.splitlines()), step.log

    def note(line: str) -> None:
        if line not in lines:
            log(line)

    return replace(step, log=note)


def require_retention_holds(current: Committed) -> None:
    """Raises GuardTripped where the retention rules, read anew, trip a guard of theirs."""
    for guard in current.definition.guards if current.definition else ():
        raise guard


def require_uncommitted_kept(step: Step[R], live: R, prepared: Uncommitted[R], current: Committed) -> None:
    """Raises GuardTripped where too much of what was uncommitted at the mark is neither uncommitted nor committed."""
    engine, marked, committed = step.engine, step.stored(UNCOMMITTED_DF), step.stored(COMMITTED_DF)
    if not marked.count:
        return
    count = marked.count + prepared.count + current.count
    no_longer_live = engine.without(marked.rows(engine, "address"), live, count=count)
    with engine.cached(no_longer_live, at_most=marked.count) as left:
        lost = engine.count(left)
        # Mostly all is uncommitted still, and what the mark knew to be committed need not be read.
        if lost:
            lost = engine.count(engine.without(left, committed.rows(engine, "address"), count=lost + committed.count))
    guards.require_uncommitted_kept(lost, marked.count, step.repository.settings)
