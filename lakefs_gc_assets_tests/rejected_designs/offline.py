"""Writers delete no objects. A collector does, from outside, in an order that leaves no gap.

It lists the store, then reads staged entries, then committed ones. It deletes objects that it saw only in the list and
that are older than any operation lasts. An entry moves from staging to a commit and never back, so the collector sees
it at least once; a copy is a new object, and new objects are too young. While a commit is under way, newer entries of a
path can hide the entries that it will write, and nothing shows that commit. So the collector waits for longer than a
commit lasts, and then looks a second time, right before it deletes.

The designs above supply the writers, without their deletions, and the collector meets all their histories. When all
have ended, one more run leaves no garbage. The last cases change one step of the order.
"""

from dataclasses import dataclass, field
from functools import partial

from lakefs_gc_assets_tests.rejected_designs.explorer import Actor, Case, Scenario, Steps, alone, step
from lakefs_gc_assets_tests.rejected_designs.lake import Entry, Lake, missing

TITLE = "Collection offline"

LIST, LIST_YOUNG, STAGED, COPIED, WAIT, COMMITTED = "list", "list young", "staged", "copied", "wait", "committed"
LOOK = (STAGED, WAIT, COMMITTED)
ONE_LOOK = (LIST, *LOOK)
TWO_LOOKS = (LIST, STAGED, COMMITTED, WAIT, STAGED, COMMITTED)
TRACKED = (LIST, STAGED, COPIED, WAIT, COMMITTED)
"""Phases of a collection in order; subtraction and deletion follow."""

Place = tuple[str, str]
"""A branch and a path."""


@dataclass
class Tracked(Lake):
    """A lake that records shallow copies; none occur if copies are full."""

    tracked: set[str] = field(default_factory=set)

    def listed(self, young_too: bool) -> frozenset[str]:
        """Objects older than the cutoff: all operations in progress when they were written have ended."""
        return frozenset(address for address, meanwhile in self.objects.items() if young_too or self.old(meanwhile))

    def committed_addresses(self) -> frozenset[str]:
        """Addresses that commits hold."""
        return frozenset(address for _, address in self.committed)

    def look_at(self, branch: str, path: str) -> tuple[str | None, frozenset[str]]:
        """The address staged at a path, and the tokens of commits in progress, which no client can see."""
        found = self.entry(branch, path)
        return (found.entry.address if found else None), frozenset(self.sealed)

    def committing(self) -> frozenset[str]:
        """Tokens of commits in progress."""
        return frozenset(self.sealed)

    def copied_addresses(self) -> frozenset[str]:
        """Addresses of shallow copies."""
        return frozenset(self.tracked)

    def track(self, address: str) -> None:
        """Records a shallow copy."""
        self.tracked.add(address)

    def copy_object(self, source: str, target: str) -> bool:
        """Copies an object; returns True if it exists."""
        if source not in self.objects:
            return False
        self.write(target)
        return True


def collect(phases: tuple[str, ...], places: tuple[Place, ...]) -> Steps:
    """One collection; reads staging place by place, as a server pages through it.

    The wait is longer than any commit lasts. A history in which an earlier commit is still in progress after the wait
    is impossible, and nothing is deleted in it.
    """
    listed: frozenset[str] = frozenset()
    live: frozenset[str] = frozenset()
    before: frozenset[str] | None = None
    for phase in phases:
        if phase in (LIST, LIST_YOUNG):
            listed = yield step("lists the store", Tracked.listed, phase == LIST_YOUNG)
        elif phase == STAGED:
            under_way: frozenset[str] = frozenset()
            for branch, path in places:
                address, under_way = yield step(
                    f"reads the entry staged on {branch} as {path}", Tracked.look_at, branch, path
                )
                live |= {address} if address else frozenset()
            before = under_way if before is None else before
        elif phase == COPIED:
            live |= yield step("reads copied addresses", Tracked.copied_addresses)
        elif phase == WAIT:
            now = yield step("waits for longer than a commit lasts", Tracked.committing)
            if before is not None and now & before:
                return
        else:
            live |= yield step("reads committed addresses", Tracked.committed_addresses)
    for address in sorted(listed - live):
        yield step(f"deletes {address}", Tracked.hard_delete, address)


def upload(branch: str, path: str, address: str) -> Steps:
    """Writes an object to a new address and stages it, again if the token changed meanwhile."""
    yield step(f"writes {address}", Tracked.write, address)
    yield from stage(branch, path, address)


def stage(branch: str, path: str, address: str) -> Steps:
    """Sets an entry, again if the token changed meanwhile."""
    token = yield step(f"reads the token of {branch}", Tracked.token, branch)
    while True:
        yield step(f"sets the entry of {path} to {address}", Tracked.stage, token, path, address)
        now = yield step(f"reads the token of {branch}", Tracked.token, branch)
        if now == token:
            return
        token = now


def copy(source: Place, target: Place, address: str, moves: bool = False) -> Steps:
    """Copies an entry in full, its object to a new address; a move then deletes the old entry.

    Fails if the object was deleted meanwhile.
    """
    found = yield step(f"reads the entry of {source[1]}", Tracked.entry, *source)
    if found is None:
        return
    original = found.entry.address
    if not (yield step(f"copies {original} to {address}", Tracked.copy_object, original, address)):
        return
    yield from stage(*target, address)
    if moves:
        yield from delete(*source)


def rename(source: Place, target: Place) -> Steps:
    """Records the address as copied, stages it a second time, and deletes the old entry."""
    found = yield step(f"reads the entry of {source[1]}", Tracked.entry, *source)
    if found is None:
        return
    yield step(f"notes {found.entry.address} as copied", Tracked.track, found.entry.address)
    yield from stage(*target, found.entry.address)
    yield from delete(*source)


def delete(branch: str, path: str) -> Steps:
    """Removes an entry only."""
    found = yield step(f"reads the entry of {path}", Tracked.entry, branch, path)
    if found is not None:
        yield step(f"removes the entry of {path}", Tracked.unstage, found.token, path)


def commit(branch: str) -> Steps:
    """Swaps the token, then writes the commit."""
    token = yield step(f"swaps the token of {branch}", Tracked.seal, branch)
    yield step(f"writes the entries of {token} to a commit", Tracked.commit, token)


def reset(branch: str) -> Steps:
    """Drops a token, and its entries with it."""
    yield step(f"drops the token of {branch}", Tracked.drop, branch)


X, Y, Z, DEV = ("main", "x"), ("main", "y"), ("main", "z"), ("dev", "y")


def scenario(
    phases: tuple[str, ...], *actors: Actor, places: tuple[Place, ...] = (Y, X), staged: str = "x"
) -> Scenario[Tracked]:
    """Entries of `staged` share p1, as earlier versions left them; p0 is garbage from the beginning."""
    world = Tracked(
        objects={"p0": frozenset(), "p1": frozenset()},
        tokens={"dev": "dev.1", "main": "main.1"},
        staged={("main.1", path): Entry("p1") for path in staged},
    )

    def garbage(lake: Tracked) -> str | None:
        after = alone(lake, partial(collect, ONE_LOOK, places))
        unreferenced = sorted(after.objects.keys() - after.references().keys())
        return missing(after) or (f"{unreferenced[0]} is never collected" if unreferenced else None)

    return Scenario(world, (Actor("collector", partial(collect, phases, places)), *actors), missing, garbage)


def _move(target: Place, address: str, mortal: bool = False) -> Actor:
    return Actor(f"move to {target[1]}", partial(copy, X, target, address, moves=True), mortal)


UPLOAD = Actor("upload", partial(upload, *X, "p2"))
_LINK = Actor("link", partial(upload, *Y, "p2"), mortal=True)
COMMIT = Actor("commit", partial(commit, "main"))
_RESET = Actor("reset", partial(reset, "main"))
_DELETE = Actor("delete", partial(delete, *X))
_COPY = Actor("copy", partial(copy, X, DEV, "p3"))
_RENAME = Actor("rename", partial(rename, X, Y))
_STAGE = Actor("stage", partial(stage, *Y, "p0"))


def _holds(title: str, says: str, scenario: Scenario[Tracked]) -> Case:
    return Case(title, says, scenario, holds=True)


CASES = (
    _holds(
        "a write that ends after a commit",
        "As in the first design, but written to an address of its own.",
        scenario(TWO_LOOKS, UPLOAD, COMMIT, places=(X,)),
    ),
    _holds(
        "a link and a delete",
        "As in the second design; the client that uploads and links may die on its way.",
        scenario(TWO_LOOKS, _LINK, _DELETE),
    ),
    _holds(
        "an override of one of two entries that share an object",
        "As in the third and the fourth design.",
        scenario(TWO_LOOKS, UPLOAD, staged="xy"),
    ),
    _holds(
        "a commit, a copy to another branch and a delete",
        "As in the third design.",
        scenario(ONE_LOOK, COMMIT, _COPY, _DELETE, places=(DEV, X)),
    ),
    _holds("a copy and a reset", "As in the fourth design.", scenario(TWO_LOOKS, _COPY, _RESET, places=(DEV, X))),
    _holds(
        "a move, a commit and a reset", "As in the fifth design.", scenario(ONE_LOOK, _move(Y, "p2"), COMMIT, _RESET)
    ),
    _holds(
        "a move that may die, and a delete",
        "As in the fifth design.",
        scenario(TWO_LOOKS, _move(Y, "p2", mortal=True), _DELETE),
    ),
    _holds(
        "two moves of one entry",
        "As in the fifth design: each gets an object of its own.",
        scenario(ONE_LOOK, _move(Y, "p2"), _move(Z, "p3"), places=(Z, Y, X)),
    ),
    _holds(
        "a rename that copies no data, but is noted",
        "As early servers did it: copies are noted, and read after all that is staged.",
        scenario(TRACKED, _RENAME),
    ),
    Case(
        "copies read before staged entries",
        "The rename above, in another order.",
        scenario((LIST, COPIED, STAGED, WAIT, COMMITTED), _RENAME),
    ),
    Case(
        "a rename that copies no data, and a delete",
        "Even in the right order: the copy's source goes before the copy is noted. So copies must be full, as they are "
        "now.",
        scenario(TRACKED, _RENAME, _DELETE),
    ),
    Case(
        "commits read before staged entries",
        "An entry that is committed in between is in neither.",
        scenario((LIST, COMMITTED, STAGED), COMMIT),
    ),
    Case(
        "the store listed last",
        "An object written and staged after staging was read is only in the list.",
        scenario((*LOOK, LIST), UPLOAD),
    ),
    Case(
        "no cutoff",
        "An object is there before its entry, and no second look helps.",
        scenario((LIST_YOUNG, *TWO_LOOKS[1:]), UPLOAD),
    ),
    Case(
        "no wait",
        "A commit that lasts longer than the whole collection, and an override under the branch's new token: the "
        "commit's entry is no longer listed as staged, and not yet committed. A server runs pre-commit hooks at just "
        "this point, for as long as they take, and no answer shows it.",
        scenario((LIST, STAGED, COMMITTED, STAGED, COMMITTED), UPLOAD, COMMIT, places=(X,)),
    ),
    Case(
        "garbage staged by its address",
        "The remaining loss: a client stages the address of an unreferenced object (the deprecated StageObject) "
        "between the second look and the deletion. lakeFS does not promise to protect it either.",
        scenario(TWO_LOOKS, _STAGE),
    ),
)
