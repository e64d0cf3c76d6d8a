"""Staged data lies on a path made of branch and staging token, and the object store is the staging area.

Listing staged data lists the path; dropping a branch deletes below it. But an object can be written again
under the same address, and a write takes time: it may begin while its token is the current one and end after the
commit. No check at its beginning helps, and the store offers none at its end.
"""

from dataclasses import dataclass, field
from functools import partial

from lakefs_gc_assets_tests.rejected_designs.explorer import Actor, Case, Scenario, Steps, World, step

TITLE = "Staged data on a defined path"


@dataclass
class Paths(World):
    """The staging token of the one branch, objects by address, and committed data.

    Attributes:
        tokens: all tokens that the branch has had; the last one is current.
        objects: content by address.
        committed: address and content as of the commit.
    """

    tokens: set[int] = field(default_factory=set)
    objects: dict[str, str] = field(default_factory=dict)
    committed: set[tuple[str, str]] = field(default_factory=set)

    def token(self) -> int:
        """The current token."""
        return max(self.tokens)

    def swap(self) -> int:
        """Gives the branch another token; returns the old one."""
        old = self.token()
        self.tokens.add(old + 1)
        return old

    def write(self, address: str, content: str) -> None:
        """Makes an object visible: a store shows it whole, when its upload ends."""
        self.objects[address] = content

    def commit(self, token: int) -> None:
        """Writes the objects on the token's path into committed tables."""
        self.committed |= {item for item in self.objects.items() if item[0].startswith(f"main/{token}/")}


def upload(path: str, content: str) -> Steps:
    """A client writes an object straight to its path."""
    token = yield step("asks for the token and begins to write", Paths.token)
    yield step(f"the write to main/{token}/{path} ends", Paths.write, f"main/{token}/{path}", content)


def commit() -> Steps:
    """A commit of the branch."""
    token = yield step("begins, with a new token for the branch", Paths.swap)
    yield step(f"writes objects below main/{token}/ to committed tables", Paths.commit, token)


def changed(world: Paths) -> str | None:
    """Committed data that has changed since its commit."""
    for address, content in sorted(world.committed):
        if (now := world.objects.get(address)) != content:
            return f"{address} was committed with the content {content!r} and now has {now!r}"
    return None


CASES = (
    Case(
        "a write that ends after the commit",
        "The blocker that the document names.",
        Scenario(
            Paths(tokens={1}, objects={"main/1/x": "first"}),
            (Actor("upload", partial(upload, "x", "second")), Actor("commit", commit)),
            changed,
        ),
    ),
)
