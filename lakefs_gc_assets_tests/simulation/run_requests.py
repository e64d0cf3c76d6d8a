"""Requests for runs: their flow and settings."""

from dataclasses import dataclass
from functools import cache

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.settings import CollectionSettings, SweepMode
from lakefs_gc_assets_tests.simulation.clocks import HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.other_repository import ALONE, Around
from lakefs_gc_assets_tests.simulation.retention_oracle import policy_file

LOCK_EXPIRY = 1 * HOUR
MARK_VALID = 30 * HOUR
"""A mark older than this is not swept."""


@cache
def settings(
    sweep: bool,
    min_age_hours: float,
    slice_window: str,
    approved: str = "",
    sweep_mode: SweepMode = "delete",
    around: Around = ALONE,
    full_listing_days: float = 0,
) -> CollectionSettings:
    """Settings of a run, perhaps one that deletes by an earlier mark.

    The share of candidates is not limited: a small world is often mostly garbage.
    """
    return CollectionSettings.model_validate(
        {
            "sweep": sweep,
            "min_age_hours": min_age_hours,
            "full_listing_days": full_listing_days,
            "slice_window": slice_window,
            "approve_run": approved,
            "sweep_mode": sweep_mode,
            "max_candidate_share": 1.0,
            "max_branch_loss_share": 0.0 if around.branches_stay else 1.0,
            "max_uncommitted_loss_share": 0.0 if around.uncommitted_stays else 1.0,
            "max_missing_share": 1.0 if around.gaps_allowed else 0.01,
            "max_mark_age_hours": MARK_VALID / HOUR,
            "lock_expiry_minutes": LOCK_EXPIRY / MINUTE,
            "allow_rules_of_unknown_branches": not around.branches_known,
            "also_live": [*around.also_live],
            "allow_unknown_repositories": around.unknown_allowed,
            "keep_old_unnamed_ranges": not around.only_young_count,
            "retention_policy": policy_file(around.policy),
            # A collector that stands still for days must not time out.
            "prepare_timeout_seconds": 1e9,
            "prepare_commits_timeout_seconds": 1e9,
            "dump_timeout_seconds": 1e9,
        }
    )


@dataclass(frozen=True)
class Asked:
    """A request for a run.

    Attributes:
        only_windows: number of newest needed windows to collect, if limited; 0 for all. A negative number drops as many
            of the oldest windows, beginning with `legacy`.
    """

    flow: Flow = Flow.CLEAN
    only_windows: int = 0


ASKED = Asked()
