"""Finds objects of this repository that other repositories have staged.

A server's uncommitted data leaves out what lies outside of the repository's own namespace, so staged references from
one repository into another one are found by asking each branch for its changes.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from lakefs_gc_assets.collector.live.live_files import live_table
from lakefs_gc_assets.errors import NotFound
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.models import LakeFSApi
from lakefs_gc_assets.lakefs.layout import WindowSize

_CONCURRENT_QUESTIONS = 8


def staged_elsewhere(others: Iterable[LakeFSApi], namespace: Namespace, window_size: WindowSize) -> pa.Table:
    """Addresses of this namespace (LIVE) that branches of other repositories have staged.

    It takes a request for each change of each branch.

    Raises LakeFSError.
    """
    with ThreadPoolExecutor(_CONCURRENT_QUESTIONS) as pool:
        found = {key for api in others for branch in api.branches() for key in _staged(api, branch.id, namespace, pool)}
    return live_table(pa.array(sorted(found), pa.string()), window_size)


def _staged(api: LakeFSApi, branch: str, namespace: Namespace, pool: ThreadPoolExecutor) -> Iterator[str]:
    try:
        paths = [change.path for change in api.changes(branch) if change.type != "removed"]
        for stats in pool.map(lambda path: api.stat(branch, path), paths):
            if stats is not None:
                yield from namespace.live_keys(stats.physical_address, AddressType.FULL)
    except NotFound:
        # A branch that is gone holds nothing any more; any other absence ends the run.
        if any(existing.id == branch for existing in api.branches()):
            raise
