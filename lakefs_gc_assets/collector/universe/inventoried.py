"""Runs that read an S3 Inventory in place of listing the store.

An inventory may lack objects that were written shortly before it was made, so it is trusted only for objects that are
clearly older. It therefore lowers the cutoff; everything else is as with a listing.
"""

from dataclasses import replace
from datetime import timedelta

from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.storage.s3.inventory import Inventory, open_inventory


def planned(repository: OpenRepository, plan: Plan) -> Plan:
    """The plan, with the newest inventory and its cutoff where the settings name one and the run lists every object.

    Raises ConfigurationError where the inventory is of another bucket, StorageError where there is none or it is
    damaged.
    """
    settings = repository.settings
    if not settings.inventory or plan.follows_expiry or plan.flow not in (Flow.CLEAN, Flow.UNIFIED):
        return plan
    found = open_inventory(repository.opener.settings, settings.inventory, repository.namespace)
    trusted = found.created_at - timedelta(hours=settings.inventory_margin_hours) - plan.skew
    return replace(plan, inventory=found.manifest, cutoff=min(plan.cutoff, trusted.replace(microsecond=0)))


def of(repository: OpenRepository, plan: Plan) -> Inventory | None:
    """The inventory that a plan names; None where it names none. Raises what `planned` raises."""
    if plan.inventory is None:
        return None
    return open_inventory(repository.opener.settings, plan.inventory, repository.namespace)
