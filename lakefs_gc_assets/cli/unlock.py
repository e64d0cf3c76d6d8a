"""`lakefs-gc unlock`: releases the lock of a dead run."""

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    YES,
    Target,
    agrees,
    is_confirmed,
    is_on_terminal,
    on_repository,
    print_answer,
    show_progress,
)
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import HeldLock, Life
from lakefs_gc_assets.errors import LockHeld

_WHY_FREE = {
    Life.EXPIRED: "it has expired, and the next run would take it",
    Life.LAUNCH_ENDED: "Dagster recorded the end of its run",
    Life.GONE: "its process, of this machine, is gone",
    Life.UNKNOWN: "you say that its process ended",
}


@click.command()
@on_repository
@YES
@JSON
@click.argument("run_id", metavar="RUN")
def unlock(target: Target, as_json: bool, run_id: str) -> None:
    """Releases the repository's lock if RUN holds it and is dead.

    It releases the lock if that has expired or if its process, of this machine, is gone. It refuses if that process is
    alive. It cannot see processes of other machines: it says which one to look at, and asks whether that ended; --yes
    says that it did. If the process lives all the same, it deletes nothing more after its current batch.

    Exit status 0 if the lock is free, 5 if somebody may hold it.
    """
    opened = target.open(to_read=True)
    held = lock.inspect(opened)
    if held is not None:
        _require_dead(held, run_id)
        lock.release_inspected(opened, held)
    line = (
        f"released the lock of run {run_id}: {_WHY_FREE[held.life]}" if held else "the lock is free: nothing was done"
    )
    print_answer(as_json, lambda: {"run_id": run_id, "released": held is not None}, [line])


def _require_dead(held: HeldLock, run_id: str) -> None:
    """Raises LockHeld unless this run holds the lock and is dead, according to the system or to the user."""
    facts = (
        f"{held.holder} holds it for run {held.run_id} since {held.acquired_at:%F %T}Z and renewed it last at "
        f"{held.renewed_at:%F %T}Z"
    )
    if held.run_id != run_id:
        raise LockHeld(f"the lock is not that of run {run_id}: {facts}")
    if held.life is Life.ALIVE:
        raise LockHeld(f"the lock was not released: {facts}, and that process of this machine is alive; end it first")
    if held.life is not Life.UNKNOWN or is_confirmed():
        return
    wait = f"The next run takes it by itself from {held.expires_at:%F %T}Z on"
    if not is_on_terminal():
        raise LockHeld(
            f"the lock was not released: {facts}, and this machine cannot see whether that process lives. {wait}; if "
            "you know that the process ended, give --yes"
        )
    show_progress(f"{facts}. {wait}.")
    if not agrees("Did you see that this process ended?"):
        raise LockHeld("it was not confirmed: the lock was not released")
