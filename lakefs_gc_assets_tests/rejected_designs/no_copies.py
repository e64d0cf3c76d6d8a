"""No two entries ever share an object, so removing an entry deletes its object at once.

A move copies and deletes an entry, with a lock on it that prevents the object's deletion in between. A lock in one
token's entry ignores commits, which swap the token; and a lock whose holder died is never released.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from lakefs_gc_assets_tests.rejected_designs.explorer import Actor, Case, Scenario, Steps, step
from lakefs_gc_assets_tests.rejected_designs.lake import Entry, Lake, missing

TITLE = "No copies, with locks"


@dataclass
class Locking(Lake):
    """A lake whose staged entries can be locked."""

    def lock(self, token: str, path: str, seen: Entry) -> bool:
        """Locks an entry that has not changed since it was read (`SetIf`); returns True on success."""
        if self.staged.get((token, path)) != seen:
            return False
        self.staged[token, path] = Entry(seen.address, locked=True)
        return True

    def unlock(self, token: str, path: str) -> None:
        """Releases a lock."""
        if found := self.staged.get((token, path)):
            self.staged[token, path] = Entry(found.address)

    def copy_locked(self, branch: str, path: str, address: str) -> str:
        """Adds a locked entry under the current token; returns the token."""
        token = self.token(branch)
        self.staged[token, path] = Entry(address, locked=True)
        return token

    def override(self, branch: str, path: str, address: str) -> str:
        """Sets an unlocked entry under the current token; returns the token."""
        token = self.token(branch)
        self.staged[token, path] = Entry(address)
        return token

    def expire(self) -> None:
        """Unlocks all entries."""
        for (token, path), entry in list(self.staged.items()):
            self.staged[token, path] = Entry(entry.address)


def move(branch: str, source: str, target: str, respects_locks: bool = True) -> Steps:
    """Copies an entry and deletes the old one, under a lock."""
    found = yield step(f"reads the entry of {source}", Locking.entry, branch, source)
    if found is None or (found.entry.locked and respects_locks):
        return
    token, entry = found
    if not (yield step(f"locks {source}", Locking.lock, token, source, entry)):
        return
    new = yield step(f"copies the entry to {target}, locked", Locking.copy_locked, branch, target, entry.address)
    yield step(f"removes the entry of {source}", Locking.unstage, token, source)
    yield step(f"unlocks {target}", Locking.unlock, new, target)


Care = Literal["looks", "locks"]


def delete(branch: str, path: str, care: Care = "locks") -> Steps:
    """Removes an entry and its object, after checking the lock or under its own lock."""
    found = yield step(f"reads the entry of {path}", Locking.entry, branch, path)
    if found is None or found.entry.locked:
        return
    token, entry = found
    if care == "locks" and not (yield step(f"locks {path}", Locking.lock, token, path, entry)):
        return
    yield step(f"removes the entry of {path}", Locking.unstage, token, path)
    yield step(f"deletes {entry.address}", Locking.hard_delete, entry.address)


def upload(branch: str, path: str, address: str) -> Steps:
    """Overrides an entry under a lock; its old object is deleted unless the staging token changed."""
    found = yield step(f"reads the entry of {path}", Locking.entry, branch, path)
    if found is not None:
        locked = not found.entry.locked and (yield step(f"locks {path}", Locking.lock, found.token, path, found.entry))
        if not locked:
            return
    yield step(f"writes {address}", Locking.write, address)
    token = yield step(f"sets the entry of {path} to {address}", Locking.override, branch, path, address)
    if found is not None and token == found.token:
        yield step(f"deletes {found.entry.address}", Locking.hard_delete, found.entry.address)


def commit(branch: str) -> Steps:
    """Swaps the token, then writes the commit."""
    token = yield step(f"swaps the token of {branch}", Locking.seal, branch)
    yield step(f"writes the entries of {token} to a commit", Locking.commit, token)


def reset(branch: str, care: Care = "locks") -> Steps:
    """Drops a token, and the objects of its unlocked entries."""
    token = yield step(f"drops the token of {branch}", Locking.drop, branch)
    for path, entry in (yield step(f"reads the entries of {token}", Locking.entries, token)):
        if entry.locked or (care == "locks" and not (yield step(f"locks {path}", Locking.lock, token, path, entry))):
            continue
        yield step(f"deletes {entry.address}", Locking.hard_delete, entry.address)


def stale_lock(lake: Locking) -> str | None:
    """A lock without a holder: uploads, moves and deletes of this path will be refused forever."""
    for (_, path), entry in sorted(lake.staged.items()):
        if entry.locked:
            return f"{path} is locked and nobody holds the lock: it can never be overridden, moved or deleted"
    return None


def committed_gone(lake: Locking) -> str | None:
    """A committed entry whose object is missing."""
    gone = sorted((path, address) for path, address in lake.committed if address not in lake.objects)
    return f"{gone[0][0]}, committed as {gone[0][1]}, which is gone" if gone else None


def _scenario(*actors: Actor) -> Scenario[Locking]:
    world = Locking(objects={"p1": frozenset()}, tokens={"main": "main.1"}, staged={("main.1", "x"): Entry("p1")})
    return Scenario(world, actors, missing)


def expiry() -> Steps:
    """Locks that time out."""
    yield step("locks expire", Locking.expire)


_MOVE = Actor("move", partial(move, "main", "x", "y"))
_UPLOAD = Actor("upload", partial(upload, "main", "x", "p2"))
_MOVES = tuple(
    Actor(f"move to {target}", partial(move, "main", "x", target, respects_locks=False)) for target in ("y", "z")
)
_LOCKED_MOVES = tuple(Actor(f"move to {target}", partial(move, "main", "x", target)) for target in ("y", "z"))
_DELETES = tuple(Actor(f"delete {path}", partial(delete, "main", path)) for path in ("x", "y"))

CASES = (
    Case(
        "commit and move",
        "The first race of the document: a commit writes the old path, the move goes on under the new token, and a "
        "reset deletes committed data.",
        Scenario(
            _scenario().world,
            (_MOVE, Actor("commit", partial(commit, "main")), Actor("reset", partial(reset, "main"))),
            committed_gone,
        ),
    ),
    Case(
        "reset and move",
        "The document does not name this one: a reset that only checks for a lock.",
        _scenario(_MOVE, Actor("reset", partial(reset, "main", "looks"))),
    ),
    Case(
        "delete and move",
        "The second one: a delete that only checks for a lock.",
        _scenario(_MOVE, Actor("delete", partial(delete, "main", "x", "looks"))),
    ),
    Case(
        "delete and move, both with locks",
        "The document's repair: a delete takes the lock as well.",
        _scenario(_MOVE, Actor("delete", partial(delete, "main", "x"))),
        holds=True,
    ),
    Case(
        "concurrent moves",
        "The third: if a move ignores a lock, one object gets two entries, and deleting one entry deletes the other's "
        "object.",
        _scenario(*_MOVES, _DELETES[1]),
    ),
    Case(
        "concurrent moves that respect locks",
        "Only one moves; deletes of the old and of the new path do no harm either.",
        _scenario(*_LOCKED_MOVES, *_DELETES),
        holds=True,
    ),
    Case(
        "an override, a move and a commit, all with locks",
        "An override deletes the object that was there unless the staging token changed, as the document says.",
        _scenario(_UPLOAD, _MOVE, Actor("commit", partial(commit, "main"))),
        holds=True,
    ),
    Case(
        "a stale lock",
        "The fourth: the price of respecting locks.",
        Scenario(
            _scenario().world,
            (Actor("move", partial(move, "main", "x", "y"), mortal=True), _DELETES[0]),
            missing,
            stale_lock,
        ),
    ),
    Case(
        "locks that expire",
        "The document's way out, with challenges as it expects: a slow move is not a dead one.",
        _scenario(_MOVE, _DELETES[0], Actor("time", expiry)),
    ),
)
