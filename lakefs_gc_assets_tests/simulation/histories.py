"""Histories at random: the same seed gives the same setup and steps.

Most steps are drawn one by one; some come as short episodes, sequences that are known to be delicate, with other steps in
between. Times are chosen so that much happens near the moment when an object becomes old enough.
"""

import random
from collections.abc import Callable, Sequence

from lakefs_gc_assets_tests.simulation.clocks import HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.playing import History, Step
from lakefs_gc_assets_tests.simulation.world import START, Setup

STEPS = (60, 110)
_WRITERS = ("w0", "w1", "w2", "w3")
_NUMBERS = 6
_WEIGHTS = {
    "upload": 5,
    "upload_now": 9,
    "misdated_upload": 1,
    "gateway_multipart": 3,
    "link": 5,
    "delete": 4,
    "reset_branch": 1,
    "reset_path": 2,
    "commit": 3,
    "commit_now": 4,
    "merge": 2,
    "revert": 1,
    "cherry_pick": 1,
    "hard_reset": 2,
    "create_branch": 3,
    "delete_branch": 2,
    "create_tag": 1,
    "delete_tag": 1,
    "copy": 3,
    "move": 3,
    "set_metadata": 3,
    "upload_again": 3,
    "import_objects": 1,
    "stage_object": 1,
    "drop_foreign": 1,
    "go_on": 18,
    "crash": 1,
}
_ARGUMENTS = {
    "upload": 4,
    "upload_now": 4,
    "misdated_upload": 4,
    "gateway_multipart": 4,
    "link": 5,
    "delete": 2,
    "reset_branch": 1,
    "reset_path": 2,
    "commit": 3,
    "commit_now": 3,
    "merge": 3,
    "revert": 3,
    "cherry_pick": 3,
    "hard_reset": 3,
    "create_branch": 2,
    "delete_branch": 1,
    "create_tag": 2,
    "delete_tag": 1,
    "copy": 4,
    "move": 4,
    "set_metadata": 3,
    "upload_again": 3,
    "import_objects": 3,
    "stage_object": 3,
    "drop_foreign": 1,
    "go_on": 1,
    "crash": 1,
}
_WRITES = tuple(_WEIGHTS)
_WRITE_WEIGHTS = tuple(_WEIGHTS.values())
_PASSING = (1, 10, 40, 5 * MINUTE, 11 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 9 * HOUR, 24 * HOUR, 26 * HOUR, 30 * HOUR)


def generate(seed: int) -> History:
    """The history of a seed."""
    chance = random.Random(seed)
    setup = _setup(seed, chance)
    length = chance.randint(*STEPS)
    steps: list[Step] = [_write(chance) for _ in range(chance.randint(4, 14))]
    while len(steps) < length:
        kind = chance.random()
        if kind < 0.5:
            steps.append(_write(chance))
        elif kind < 0.62:
            steps.append(_time(chance))
        elif kind < 0.64:
            steps.append(_servers(chance))
        else:
            steps += _collection(chance)
    return History(setup, tuple(steps))


def _setup(seed: int, chance: random.Random) -> Setup:
    skews = tuple(chance.choice((0.0, 0.0, -14 * MINUTE, 14 * MINUTE, 60.0)) for _ in range(chance.randint(1, 3)))
    return Setup(
        seed=seed,
        start=START + chance.randrange(0, int(30 * 24 * HOUR)),
        rules=chance.choice(("oss", "seed")),
        etags=chance.choices(("md5", "foreign", "none"), (8, 1, 1))[0],
        layout=chance.choices(("slice", "sharded"), (6, 1))[0],
        uri=chance.choice(("s3://bucket/repo/", "s3://bucket/repo", "s3://bucket/deep/er/repo")).rstrip("/") + "/",
        server_skews=skews,
        seen_servers=chance.randint(1, len(skews)),
        store_skew=chance.choice((0.0, 0.0, -14 * MINUTE, 14 * MINUTE)),
        collector_skew=chance.choice((0.0, 0.0, -14 * MINUTE, 14 * MINUTE)),
        listing_page=chance.choice((2, 1000)),
        delete_limit=chance.choice((1, 3, 1000)),
        page_rows=chance.choice((1, 3, 1000)),
        old_objects=chance.choice((0, 0, 3, 6)),
    )


def _write(chance: random.Random) -> Step:
    what = chance.choices(_WRITES, _WRITE_WEIGHTS)[0]
    return Step(chance.choice(_WRITERS), what, _numbers(chance, _ARGUMENTS[what]))


def _numbers(chance: random.Random, count: int) -> tuple[int, ...]:
    return tuple(chance.randrange(60) for _ in range(count))


def _time(chance: random.Random) -> Step:
    if chance.random() < 0.25:
        return Step("time", "near", (chance.randrange(20), chance.randrange(-int(HOUR), int(2 * HOUR))))
    return Step("time", "seconds", (int(chance.choice(_PASSING) * chance.uniform(0.7, 1.2)),))


def _servers(chance: random.Random) -> Step:
    what = chance.choices(
        ("page_rows", "stuck_pages", "lost_branches", "failed_dumps", "missing_commits", "refuse_dumps"),
        (3, 1, 1, 1, 3, 1),
    )[0]
    return Step("servers", what, (chance.randint(1, 3) if what != "refuse_dumps" else chance.randint(0, 1),))


def _collection(chance: random.Random) -> list[Step]:
    """A part of a collection: a start, or some more calls, with writes in between."""
    name = "c0" if chance.random() < 0.85 else "c1"
    what = chance.choices(
        ("start", "go_on", "finish", "kill", "freeze", "resume", "fail", "deletes"), (30, 40, 10, 3, 2, 6, 2, 3)
    )[0]
    budget = chance.choice((1, 3, 8, 15, 30, 60))
    match what:
        case "start":
            sweep = int(chance.random() < 0.8)
            return [Step(name, "start", (sweep, chance.randrange(6), chance.randrange(3), budget))]
        case "go_on":
            return [Step(name, "go_on", (budget,))]
        case "resume":
            return [Step(name, "resume", (int(chance.random() < 0.3), budget))]
        case "fail":
            return [Step(name, "fail", (chance.randrange(40), chance.randrange(2)))]
        case "deletes":
            fault = chance.choice(("refuse_deletes", "break_delete", "pretend_delete"))
            return [Step(name, fault, (chance.randint(1, 3),))]
    return [Step(name, what)]
