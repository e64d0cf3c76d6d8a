"""In simulated histories, a check finds exactly the objects that are missing; an intact repository has no findings."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.survey import FindingKind
from lakefs_gc_assets.extensions.check.fsck import EVERYTHING, check
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX
from lakefs_gc_assets_tests.extensions.explain.test_explain import never_delete, only_note
from lakefs_gc_assets_tests.simulation.bucket import BucketView
from lakefs_gc_assets_tests.simulation.bugs import KINDS
from lakefs_gc_assets_tests.simulation.clocks import CollectorClock, MachineClock
from lakefs_gc_assets_tests.simulation.collecting import open_repository
from lakefs_gc_assets_tests.simulation.playing import Kind as HistoryKind
from lakefs_gc_assets_tests.simulation.playing import played
from lakefs_gc_assets_tests.simulation.repository import equals_committed
from lakefs_gc_assets_tests.simulation.run_requests import settings
from lakefs_gc_assets_tests.simulation.seeds import SEED_VARIABLE, draw_seed, fresh
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi
from lakefs_gc_assets_tests.simulation.world import World

QUICK = 1
Watch = Callable[[str, Any], None]
GONE = (FindingKind.MISSING, FindingKind.QUARANTINED, FindingKind.EXPIRED)


def opened(
    world: World,
    deletes: Watch = never_delete,
    writes: Watch = only_note,
    point: Callable[[str], bool] = lambda call: False,
    **changes: object,
) -> OpenRepository:
    """The world's repository for read-only use.

    Args:
        deletes, writes: called for each deletion and each write; they raise if it must not happen.
        point: called with each call, before it is made.
        changes: of settings.
    """
    machine = MachineClock(world.time, 0.0)
    api = CollectorsApi(world.servers, point, lambda: None, machine, 1)
    store = BucketView(world.bucket, point, deletes, writes, page=1_000, delete_limit=3)
    options = settings(False, 24.0, "month", around=world.setup.around.lenient).model_copy(update=changes)
    return open_repository(api, world.bucket.opened(store), options, CollectorClock(machine, world.pass_time))


def _needed(world: World, *, of_all_commits: bool) -> Iterator[tuple[str, int]]:
    """Keys and stated sizes of entries of all commits, or of branch heads, and of listed staged entries.

    The server does not list a staged entry whose content equals the committed one at its path (equals_committed).
    Entries of heads whose address is not spelled like its key are left out: it can mean several objects, and is not
    compared.
    """
    repository = world.repository
    for branch in repository.branches.values():
        head = repository.head(branch)
        staged = [(path, entry) for path, entry in repository.changes(branch) if entry]
        listed = [entry for path, entry in staged if of_all_commits or not equals_committed(head, path, entry)]
        entries = [*head.values(), *listed]
        for entry in entries:
            key = world.oracle.key_of(entry)
            if key and (of_all_commits or entry.address.endswith(key)):
                yield key, entry.size
    for record in repository.commits.values() if of_all_commits else ():
        yield from ((key, entry.size) for entry in record.entries.values() if (key := world.oracle.key_of(entry)))


def _check(kind: HistoryKind, seed: int) -> Counter[str]:
    """Plays a history, checks the repository, and compares the findings with the world."""
    history = KINDS[kind].generate(seed)
    with played(history) as world:
        checkup = check(opened(world), LocalEngine(), lambda line: None, deep=EVERYTHING)
    stored = {key: len(each.data) for key, each in world.bucket.objects.items()}
    sizes = set(_needed(world, of_all_commits=True))
    gone = {finding.address for finding in checkup.findings if finding.kind in GONE}
    wrong = {finding.address for finding in checkup.findings if finding.kind is FindingKind.SIZE}
    why = f"{kind} history {seed}; play it again with {SEED_VARIABLE}={draw_seed()}"
    # A copy that lakeFS tracks is needed without an entry, too.
    needed = {key for key, _ in sizes}.union(address for address, _ in world.repository.copies)
    assert gone <= needed - stored.keys(), why
    assert wrong <= {key for key, size in sizes if stored.get(key, size) != size}, why
    of_heads = {(key, size) for key, size in _needed(world, of_all_commits=False) if key.startswith(DATA_PREFIX)}
    assert gone >= {key for key, _ in of_heads if key not in stored}, why
    assert wrong >= {key for key, size in of_heads if stored.get(key, size) != size}, why
    return Counter(finding.kind.value for finding in checkup.findings) + Counter(entries=checkup.entries)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_found_is_what_is_wrong(kind: HistoryKind) -> None:
    for seed in fresh(0, QUICK):
        _check(kind, seed)


@pytest.mark.slow
def test_these_histories_hold_something_and_are_mostly_whole() -> None:
    found = sum((_check("clean", seed) for seed in range(4)), Counter[str]())
    assert found["entries"] > 20 and sum(found.values()) - found["entries"] < 3
