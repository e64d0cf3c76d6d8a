"""For each physical address a list of the staging tokens that hold it; states belong to tokens, not to objects.

When a token is committed or dropped, a background job goes through its entries, takes the token off each one's list and
deletes the object with the last one. The job never finds an object that a token no longer holds because it was
overridden. Taking the token off the list at once does not help: the list does not count the token's entries.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from lakefs_gc_assets_tests.rejected_designs.explorer import Actor, Case, Scenario, Steps, alone, step
from lakefs_gc_assets_tests.rejected_designs.lake import Entry, Lake, missing

TITLE = "Staging token states"

Tokens = frozenset[str]


@dataclass
class Listed(Lake):
    """A lake with lists of tokens.

    Attributes:
        lists: tokens by physical address.
        ended: tokens that were committed or dropped, for the job.
    """

    lists: dict[str, Tokens] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def tokens_of(self, address: str) -> Tokens | None:
        """The list; None if there is no such key."""
        return self.lists.get(address)

    def set_tokens(self, address: str, tokens: Tokens, predicate: Tokens | None) -> bool:
        """Sets a list if it has not changed since it was read (`set if`); returns True on success."""
        if self.lists.get(address) != predicate:
            return False
        self.lists[address] = tokens
        return True

    def remove_list(self, address: str) -> None:
        """Deletes the key."""
        self.lists.pop(address, None)

    def end(self, token: str) -> None:
        """Hands a token to the job."""
        self.ended.add(token)

    def ended_tokens(self) -> tuple[str, ...]:
        """Tokens for the job."""
        return tuple(sorted(self.ended))

    def addresses_on(self, token: str) -> tuple[tuple[str, bool], ...]:
        """Addresses in a token's entries, each with True if it is committed."""
        committed = {address for _, address in self.committed}
        return tuple(sorted({(entry.address, entry.address in committed) for _, entry in self.entries(token)}))

    def delete_area(self, token: str) -> None:
        """Deletes a token and its entries."""
        self.ended.discard(token)
        for path, _ in self.entries(token):
            self.unstage(token, path)


def upload(branch: str, path: str, address: str, repaired: bool) -> Steps:
    """Writes an object, lists it, stages it; with `repaired` it also drops the overridden object's reference."""
    yield step(f"writes {address}", Listed.write, address)
    token = yield step(f"reads the token of {branch}", Listed.token, branch)
    yield from _add(address, token)
    before = yield step(f"sets the entry of {path} to {address}", Listed.stage, token, path, address)
    if repaired and before is not None:
        yield from _remove(before, token)


def _add(address: str, token: str) -> Steps:
    while True:
        tokens = yield step(f"reads the list of {address}", Listed.tokens_of, address)
        more = (tokens or frozenset()) | {token}
        if (yield step(f"puts {token} on the list of {address}", Listed.set_tokens, address, more, tokens)):
            return


def _remove(address: str, token: str) -> Steps:
    """Takes a token off a list, and deletes the object with the last one."""
    while True:
        tokens = yield step(f"reads the list of {address}", Listed.tokens_of, address)
        if tokens is None:
            return
        fewer = tokens - {token}
        if (yield step(f"takes {token} off the list of {address}", Listed.set_tokens, address, fewer, tokens)):
            break
    if not fewer:
        yield step(f"deletes {address}", Listed.hard_delete, address)
        yield step(f"removes the list of {address}", Listed.remove_list, address)


def copy(source: str, path: str, branch: str, target: str) -> Steps:
    """Adds a reference if there is any; an address without a list is taken for committed."""
    found = yield step(f"reads the entry of {path}", Listed.entry, source, path)
    if found is None:
        return
    address = found.entry.address
    token = yield step(f"reads the token of {branch}", Listed.token, branch)
    while True:
        tokens = yield step(f"reads the list of {address}", Listed.tokens_of, address)
        if tokens is None:
            break
        if not tokens:
            return
        label = f"puts {token} on the list of {address}"
        if (yield step(label, Listed.set_tokens, address, tokens | {token}, tokens)):
            break
    yield step(f"sets the entry of {target} to {address}", Listed.stage, token, target, address)


def commit(branch: str) -> Steps:
    """Commits as today, then notifies the job."""
    token = yield step(f"swaps the token of {branch}", Listed.seal, branch)
    yield step(f"writes the entries of {token} to a commit", Listed.commit, token)
    yield step(f"enters {token} as committed", Listed.end, token)


def reset(branch: str) -> Steps:
    """Resets as today, then notifies the job."""
    token = yield step(f"drops the token of {branch}", Listed.drop, branch)
    yield step(f"enters {token} as deleted", Listed.end, token)


def job() -> Steps:
    """One pass of the background job."""
    for token in (yield step("scans ended tokens", Listed.ended_tokens)):
        for address, committed in (yield step(f"reads the entries of {token}", Listed.addresses_on, token)):
            if committed:
                yield step(f"removes the list of {address}", Listed.remove_list, address)
            else:
                yield from _remove(address, token)
        yield step(f"deletes {token}", Listed.delete_area, token)


def never_found(lake: Listed) -> str | None:
    """An unreferenced object that the job does not find either, however often it runs."""
    after = alone(lake, job)
    for address in sorted(after.objects.keys() - after.references().keys()):
        return f"nothing refers to {address}, and the job never finds it"
    return None


def _scenario(*paths: str, actors: tuple[Actor, ...], left: Callable[[Listed], str | None]) -> Scenario[Listed]:
    world = Listed(
        objects={"p1": frozenset()},
        tokens={"dev": "dev.1", "main": "main.1"},
        staged={("main.1", path): Entry("p1") for path in paths},
        lists={"p1": frozenset({"main.1"})},
    )
    return Scenario(world, actors, missing, left)


CASES = (
    Case(
        "an override on one token",
        "The document leaves it to be done. Nothing is lost, but the design misses its purpose: garbage stays forever.",
        _scenario(
            "x",
            actors=(
                Actor("upload", partial(upload, "main", "x", "p2", repaired=False)),
                Actor("commit", partial(commit, "main")),
            ),
            left=never_found,
        ),
    ),
    Case(
        "the obvious repair",
        "An upload takes the overridden object's reference away at once, and another entry of the same token loses its "
        "object.",
        _scenario(
            "x",
            "y",
            actors=(Actor("upload", partial(upload, "main", "x", "p2", repaired=True)),),
            left=lambda lake: None,
        ),
    ),
    Case(
        "a copy and a reset",
        "The document does not name this one. A missing list is taken for a sign of a commit, but the job leaves "
        "one behind as well.",
        _scenario(
            "x",
            actors=(
                Actor("copy", partial(copy, "main", "x", "dev", "y")),
                Actor("reset", partial(reset, "main")),
                Actor("job", job),
            ),
            left=lambda lake: None,
        ),
    ),
)
