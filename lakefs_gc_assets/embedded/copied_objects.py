"""Shallow copies, remembered for a while (rule set `seed`): a collector must not lose an object that is renamed.

A copy within a branch's staging area points to the same object. Between the deletion of the old path and the reading of
the new one a collector could see neither; so copies are written behind the uncommitted data, after all of it was read.
"""

from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.repositories import Repository


def remember(core: Core, repository: Repository, address: str) -> None:
    """Notes that this relative address was copied now."""
    forget_old(core)
    with core.database.transaction() as database:
        database.execute("INSERT INTO copies VALUES (?, ?, ?)", (repository.id, address, core.clock.seconds()))


def every(core: Core, repository: Repository) -> list[tuple[str, int]]:
    """Address and time (seconds since 1970 UTC) of each remembered copy."""
    forget_old(core)
    with core.database.transaction() as database:
        rows = database.execute(
            "SELECT address, copied_at FROM copies WHERE repository = ? ORDER BY copied_at, address", (repository.id,)
        ).fetchall()
    return [(address, copied_at) for address, copied_at in rows]


def forget_old(core: Core) -> None:
    """Forgets copies older than the setting."""
    with core.database.transaction() as database:
        database.execute("DELETE FROM copies WHERE copied_at < ?", (core.clock.seconds() - core.settings.copy_seconds,))
