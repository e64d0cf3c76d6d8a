"""What a run is asked to do: its flow, and the settings that it has."""

from dataclasses import dataclass
from functools import cache

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.settings import CollectionSettings, SweepMode
from lakefs_gc_assets_tests.simulation.clocks import HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.retention_by_count import policy_file
from lakefs_gc_assets_tests.simulation.setup_options import ALONE, Around

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
    """Settings of a run, perhaps to delete by a mark that was made before.

    The share of candidates is no matter: a small world is often mostly garbage.
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
            # A collector that stands still for days goes on all the same.
            "prepare_timeout_seconds": 1e9,
            "prepare_commits_timeout_seconds": 1e9,
            "dump_timeout_seconds": 1e9,
        }
    )


@dataclass(frozen=True)
class Asked:
    """What a run is opened for.

    Attributes:
        only_windows: so many of the newest windows that it needs, where somebody chooses; 0 for all, and a negative
            number for all but so many, `legacy` and the oldest.
    """

    flow: Flow = Flow.CLEAN
    only_windows: int = 0


ASKED = Asked()
