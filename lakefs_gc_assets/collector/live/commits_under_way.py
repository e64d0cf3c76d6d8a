"""Commits under way: the server does not show them, so only time protects the objects that they are about to hold.

A commit seals the staged entries of its branch, runs hooks, writes ranges, and moves the head. Merges, reverts,
cherry-picks, imports and hard updates of branches do the same. If a sealed path is staged anew or removed meanwhile,
the server lists only the newer entry: no answer and no refs dump shows the sealed one until the commit ends. Before the
commit the entry was listed, and after it the entry is committed. So an object may be deleted only if two checks found
it unused, and if the second check's refs were dumped later than the first check's end plus the longest commit.

The longest commit is an allowance for the server's own work plus the limits of hooks. Hooks are defined in each
branch's own tree, and may be staged there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain

from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.api.models import ObjectStats
from lakefs_gc_assets.lakefs.formats.actions import ACTIONS_PREFIX, LARGEST_FILE, TRIES, HookLimit, read_hook_limit
from lakefs_gc_assets.settings import CollectionSettings

_CONCURRENT_QUESTIONS = 16


@dataclass(frozen=True, slots=True)
class SlowestHooks:
    """The action files that can hold commits longest.

    Attributes:
        seconds: maximum duration of all tries together; 0 without hooks.
        where: the file and branch with this limit; empty without hooks.
        without_limit: a file and branch whose hooks have no known limit, with the reason; empty if there is none.
    """

    seconds: float = 0.0
    where: str = ""
    without_limit: str = ""


def find_slowest_hooks(repository: OpenRepository) -> SlowestHooks:
    """Reads the action files of all branches of this repository and of the repositories in `also_live`.

    Staged files are read, too. It makes one call for each branch, and one request to the store for each distinct file.

    Raises LakeFSError if a branch cannot be listed. A file that cannot be read has no known limit.
    """
    found: list[tuple[HookLimit, str]] = []
    for each in (repository, *repository.others):
        name = "" if each is repository else f" of repository {each.facts.id}"
        limits: dict[str, HookLimit] = {}
        for branch, file in _list_action_files(each):
            if file.physical_address not in limits:
                limits[file.physical_address] = _read_file(each, file)
            found.append((limits[file.physical_address], f"{file.path} on branch {branch}{name}"))
    unknown = (f"{where}: {limit.why_unknown}" for limit, where in found if limit.why_unknown)
    slowest, where = max(found, key=lambda one: one[0].seconds, default=(HookLimit(), ""))
    return SlowestHooks(slowest.seconds * TRIES, where if slowest.seconds else "", next(unknown, ""))


def longest_commit(hooks_seconds: float, settings: CollectionSettings) -> timedelta:
    """Maximum duration of a commit, from its seal to the new head.

    Args:
        hooks_seconds: maximum duration of its hooks, all tries together.
    """
    by_hooks = settings.wait_before_recheck_seconds + hooks_seconds
    return timedelta(seconds=max(by_hooks, 60 * settings.longest_commit_minutes))


def _list_action_files(repository: OpenRepository) -> Iterator[tuple[str, ObjectStats]]:
    """The action files of all branches, each with its branch."""
    api = repository.api

    def list_files(branch: str) -> list[tuple[str, ObjectStats]]:
        files: list[tuple[str, ObjectStats]] = []
        after, more = "", True
        while more:
            page = api.list_objects(branch, after, ACTIONS_PREFIX)
            files += [(branch, each) for each in page.objects]
            after, more = (page.objects[-1].path if page.objects else after), page.more
        return files

    branches = (branch.id for branch in api.branches())
    return chain.from_iterable(work_ahead(list_files, branches, _CONCURRENT_QUESTIONS))


def _read_file(repository: OpenRepository, file: ObjectStats) -> HookLimit:
    keys = repository.namespace.live_keys(file.physical_address, AddressType.FULL)
    if not keys:
        return HookLimit(why_unknown="it is outside of the storage namespace")
    if file.size is None or file.size > LARGEST_FILE:
        return HookLimit(why_unknown=f"it is larger than {LARGEST_FILE:,} bytes")
    try:
        return read_hook_limit(repository.store.get(keys[0]))
    except StorageError as error:
        return HookLimit(why_unknown=f"it cannot be read: {error}")
