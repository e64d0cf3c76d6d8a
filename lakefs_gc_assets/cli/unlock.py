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
    Life.GONE: "its process on this machine is gone",
    Life.UNKNOWN: "you confirmed that its process has ended",
}


@click.command()
@on_repository
@YES
@JSON
@click.argument("run_id", metavar="RUN")
def unlock(target: Target, as_json: bool, run_id: str) -> None:
    """Releases the repository's lock if RUN holds it and is dead.

    It releases the lock if it has expired, or if the process that holds it ran on this machine and is gone. It refuses
    if that process is alive. For a process on another machine, the command says which process to check, and asks if
    it has ended; --yes answers yes. Even if that process still lives, it deletes nothing more after its current batch.

    Exit status 0 if the lock is free, 5 if it may be held.
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
        f"{held.holder} has held it for run {held.run_id} since {held.acquired_at:%F %T}Z and last renewed it at "
        f"{held.renewed_at:%F %T}Z"
    )
    if held.run_id != run_id:
        raise LockHeld(f"run {run_id} does not hold the lock: {facts}")
    if held.life is Life.ALIVE:
        raise LockHeld(f"the lock was not released: {facts}, and that process is alive on this machine; end it first")
    if held.life is not Life.UNKNOWN or is_confirmed():
        return
    wait = f"The next run can take it from {held.expires_at:%F %T}Z on"
    if not is_on_terminal():
        raise LockHeld(
            f"the lock was not released: {facts}, and this machine cannot see whether that process is alive. {wait}; "
            "if you know that the process has ended, give --yes"
        )
    show_progress(f"{facts}. {wait}.")
    if not agrees("Have you verified that this process has ended?"):
        raise LockHeld("not confirmed: the lock was not released")
