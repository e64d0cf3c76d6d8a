"""Seeds of the histories and faults that tests play: fresh ones in every test run.

They begin at a number that is drawn when the tests start, printed at the top, and named with a failure. `make test
HISTORIES_SEED=N` repeats those of an earlier run.
"""

import os
import random

SEED_VARIABLE = "HISTORIES_SEED"
"""The environment variable with the first seed, for all processes of a test run."""


def draw_seed() -> int:
    """The first seed of this test run: read from the environment, or drawn and put there for other processes."""
    return int(os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(10**6, 10**9))))


def fresh(first: int, beyond: int) -> range:
    """Seeds of this test run, counted from its first one."""
    seed = draw_seed()
    return range(seed + first, seed + beyond)
