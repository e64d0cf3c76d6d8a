"""A small lakeFS: objects, staging areas, commits, and the steps that writers of every design share.

A branch has one staging token. A commit seals it, gives the branch a new one, and writes the sealed entries into the
commit. Every object that a commit or a staging area of a branch refers to must exist; `missing` checks only this.
Entries of dropped tokens stay until they are cleaned up, but refer to nothing any more.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from lakefs_gc_assets_tests.rejected_designs.explorer import World


class Entry(NamedTuple):
    """A staged entry."""

    address: str
    locked: bool = False


class Staged(NamedTuple):
    """A staged entry and the token under which it was found."""

    token: str
    entry: Entry


@dataclass
class Lake(World):
    """One repository and its object store.

    Attributes:
        objects: by address, the operations in progress when the object was written. They serve as its time: an object
            is older than any operation once they have all ended.
        tokens: staging token by branch.
        sealed: tokens whose entries a commit is about to write.
        staged: entries by token and path.
        committed: path and address of every committed entry.
    """

    objects: dict[str, frozenset[str]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    sealed: set[str] = field(default_factory=set)
    staged: dict[tuple[str, str], Entry] = field(default_factory=dict)
    committed: set[tuple[str, str]] = field(default_factory=set)

    def token(self, branch: str) -> str:
        """The branch's staging token."""
        return self.tokens[branch]

    def entry(self, branch: str, path: str) -> Staged | None:
        """The staged entry of a path: under the current token, else under one that is being committed."""
        for token in (self.tokens[branch], *sorted(each for each in self.sealed if _branch(each) == branch)):
            if (token, path) in self.staged:
                return Staged(token, self.staged[token, path])
        return None

    def write(self, address: str) -> None:
        """Puts an object."""
        self.objects[address] = frozenset(self.under_way)

    def old(self, meanwhile: frozenset[str]) -> bool:
        """True if all operations that were in progress at some moment have ended."""
        return self.under_way.isdisjoint(meanwhile)

    def hard_delete(self, address: str) -> None:
        """Deletes an object from the store."""
        self.objects.pop(address, None)

    def stage(self, token: str, path: str, address: str) -> str | None:
        """Sets an entry; returns its previous address."""
        before = self.staged.get((token, path))
        self.staged[token, path] = Entry(address)
        return before.address if before else None

    def unstage(self, token: str, path: str) -> None:
        """Deletes an entry."""
        self.staged.pop((token, path), None)

    def seal(self, branch: str) -> str:
        """Gives the branch a new token; returns the old one, whose entries are to be committed."""
        self.sealed.add(self.tokens[branch])
        return self.drop(branch)

    def drop(self, branch: str) -> str:
        """Gives the branch a new token; returns the old one, whose entries are dropped unless it is sealed."""
        old = self.tokens[branch]
        self.tokens[branch] = f"{branch}.{int(old.rpartition('.')[2]) + 1}"
        return old

    def commit(self, token: str) -> None:
        """Writes the entries of a sealed token into a commit, the branch's new head."""
        self.committed |= {(path, entry.address) for path, entry in self.entries(token)}
        self.sealed.discard(token)

    def entries(self, token: str) -> tuple[tuple[str, Entry], ...]:
        """Path and entry of everything under a token."""
        return tuple(sorted((path, entry) for (under, path), entry in self.staged.items() if under == token))

    def references(self) -> dict[str, str]:
        """Every referenced address, and its referrer."""
        live = {*self.tokens.values(), *self.sealed}
        staged = {entry.address: f"{path}, staged" for (token, path), entry in self.staged.items() if token in live}
        return staged | {address: f"{path}, committed" for path, address in self.committed}


def missing(lake: Lake) -> str | None:
    """A live reference to a missing object."""
    for address, referrer in sorted(lake.references().items()):
        if address not in lake.objects:
            return f"{referrer} as {address}, which is gone"
    return None


def _branch(token: str) -> str:
    return token.rpartition(".")[0]
