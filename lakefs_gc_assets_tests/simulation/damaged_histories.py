"""Histories in which files of runs are damaged now and then.

They have their own seeds, so that a history without damage plays as before.
"""

import random
import re

from lakefs_gc_assets_tests.simulation.damaged_files import ROOT, Damage, damaged
from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.final_runs import Quiet
from lakefs_gc_assets_tests.simulation.playing import History, Player, deterministic, uncollected

_DAMAGES = (Damage.OTHER_BYTES, Damage.CUT, Damage.GONE)
_TIMES = 3
"""Number of files damaged in a history."""
_READ_BY_OTHERS = re.compile(
    r"/(plan|report|approval|runs|undeletable)\.json$|/(sealed|read|tracked)-"
    "|/(receipts|deleted_report|pending|checkpoint_committed|facts)/"
)
"""Files that a run reads of other runs. Sightings are excluded: without them objects stay longer than a history
expects."""


def play_damaged(history: History) -> list[str]:
    """Plays a history with some damage in its later two thirds, and the quiet runs that end it.

    Returns:
        Descriptions of the damage.

    Raises:
        Violation: the collector broke a rule.
    """
    chance = random.Random(history.setup.seed)
    steps = history.steps
    times = {chance.randrange(len(steps) // 3, len(steps)) for _ in range(_TIMES)}
    found: list[str] = []
    with uncollected(), deterministic(history.setup.seed), remembering():
        player = Player(history.setup)
        try:
            for number, step in enumerate(steps):
                if number in times:
                    found += _damage_one(player, chance)
                player.do(step)
            Quiet(player.world, player.collectors, player.figures).end(history.kind)
        finally:
            player.stop()
    return found


def _damage_one(player: Player, chance: random.Random) -> list[str]:
    """Damages a file of a run that is not in progress; returns its description, or nothing if there is no such file."""
    bucket = player.world.bucket
    under_way = [each.run.run_id for each in player.collectors.values() if each.run is not None and each.active]
    keys = [
        key
        for key in bucket.keys_below(ROOT)
        if _READ_BY_OTHERS.search(key) and not any(f"/{run_id}/" in key for run_id in under_way)
    ]
    if not keys:
        return []
    key, damage = chance.choice(keys), chance.choice(_DAMAGES)
    data = damaged(key, bucket.objects[key].data, damage)
    if data is None:
        bucket.remove(key)
    else:
        bucket.put(key, data)
    return [f"{key} {damage}"]
