"""Which histories and faults the tests play: fresh ones in every run of the tests.

Their seeds begin at a number that is drawn when the tests start, printed at the top, and named with a failure.
`make test HISTORIES_SEED=N` plays those of an earlier run again.
"""

import os
import random

SEED_VARIABLE = "HISTORIES_SEED"
"""The environment variable that names the first seed, for all processes of a run of the tests."""


def draw_seed() -> int:
    """The first seed of this run of the tests: drawn where the environment names none, and put there for others."""
    return int(os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(10**6, 10**9))))


def fresh(first: int, beyond: int) -> range:
    """Seeds of this run of the tests, counted from its first one."""
    seed = draw_seed()
    return range(seed + first, seed + beyond)
