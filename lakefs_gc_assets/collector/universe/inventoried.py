"""Runs that read an S3 Inventory in place of listing the store.

What such a report says is only trusted of objects that were clearly there when it was made: it may lack what was
written shortly before. So it lowers the cutoff, and everything else stays as it is with a listing.
"""

from dataclasses import replace
from datetime import timedelta

from lakefs_gc_assets.collector.plan import Flow, Plan
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.storage.s3.inventory import Inventory, open_inventory


def planned(repository: OpenRepository, plan: Plan) -> Plan:
    """The plan, with the newest report where the settings name an inventory and the run looks at every object.

    Raises ConfigurationError where the inventory is of another bucket, StorageError where there is none or it is
    damaged.
    """
    settings = repository.settings
    if not settings.inventory or plan.flow not in (Flow.CLEAN, Flow.UNIFIED):
        return plan
    found = open_inventory(repository.opener.settings, settings.inventory, repository.namespace)
    trusted = found.created_at - timedelta(hours=settings.inventory_margin_hours) - plan.skew
    return replace(plan, inventory=found.manifest, cutoff=min(plan.cutoff, trusted.replace(microsecond=0)))


def of(repository: OpenRepository, plan: Plan) -> Inventory | None:
    """The report that a plan names. Raises what `planned` raises."""
    if plan.inventory is None:
        return None
    return open_inventory(repository.opener.settings, plan.inventory, repository.namespace)
