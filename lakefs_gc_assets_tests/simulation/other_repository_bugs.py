"""Seeded bugs that need surroundings of a repository: other repositories, or a quarantine."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lakefs_gc_assets.collector.frame.frames import LIVE
from lakefs_gc_assets.collector.live import current, other_repositories
from lakefs_gc_assets.collector.live.current import Unread, ask_committed, find_unread, prepare_uncommitted
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck, PurgeVerdict
from lakefs_gc_assets.collector.records import across_runs
from lakefs_gc_assets.collector.repository.repository import Moment
from lakefs_gc_assets.collector.sweep import recheck
from lakefs_gc_assets_tests.runs.made_ranges import range_records
from lakefs_gc_assets_tests.simulation.bug import ArrowStep, Bug, ignored, replaced


def _own_commits_alone(step: ArrowStep, repository: Any, live: Any, known: frozenset[str]) -> Unread:
    """Skips the commits of other repositories."""
    if repository is step.repository:
        return find_unread(step, repository, live, known)
    return Unread(repository, live.source, (), range_records([]), ())


def _alone(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Requests data of this repository alone."""

    def asked(step: ArrowStep, *more: Any, **named: Any) -> Any:
        samples = {name: given[:1] for name, given in named.items()}
        return ask(replace(step, repository=replace(step.repository, others=())), *more, **samples)

    return asked


def _nothing_is_live(self: LiveCheck[Any], moved: object) -> PurgeVerdict:
    """Takes everything that has been in quarantine long enough for garbage."""
    return PurgeVerdict(frozenset(), frozenset(), Moment.now(self._step.repository.clock))


def _nothing_staged(*arguments: object) -> Any:
    return LIVE.empty_table()


AROUND_BUGS: dict[str, Bug] = {
    "other repositories: staged references not asked for": replaced(
        (other_repositories, "staged_elsewhere", _nothing_staged)
    ),
    "other repositories: commits not asked for": replaced((current, "find_unread", _own_commits_alone)),
    "recheck: other repositories not asked again": replaced(
        (recheck, "prepare_uncommitted", _alone(prepare_uncommitted)),
        (recheck, "ask_committed", _alone(ask_committed)),
    ),
    "purge: nothing looked for": replaced((LiveCheck, "__call__", _nothing_is_live)),
    "restoration not written down": replaced((across_runs, "write_restoration", ignored)),
}
"""Seeded bugs by name, found by histories of clean runs."""
