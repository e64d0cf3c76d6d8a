"""The metadata of every object counts the references to it; removing the last one deletes the object.

Counting is reading, adding and writing, which is safe only if a write after another write can be refused. Azure and
Google can compare the metadata's version. S3 cannot: an ETag does not change with the metadata.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from lakefs_gc_assets_tests.rejected_designs.explorer import Actor, Case, Scenario, Steps, step
from lakefs_gc_assets_tests.rejected_designs.lake import Entry, Lake, missing

TITLE = "A reference counter in object metadata"


class Metadata(NamedTuple):
    """Metadata of an object; every write makes another version."""

    counter: int
    version: int


@dataclass
class Counting(Lake):
    """A lake with object metadata."""

    metadata: dict[str, Metadata] = field(default_factory=dict)

    def read_counter(self, address: str) -> Metadata | None:
        """The metadata; None if there is no such object."""
        return self.metadata.get(address)

    def set_counter(self, address: str, counter: int, if_version: int | None) -> bool:
        """Writes the counter, only at `if_version` if given; returns True on success."""
        found = self.metadata.get(address)
        if found is None or if_version not in (None, found.version):
            return False
        self.metadata[address] = Metadata(counter, found.version + 1)
        return True

    def hard_delete(self, address: str) -> None:
        """Deletes an object and its metadata."""
        super().hard_delete(address)
        self.metadata.pop(address, None)


def stage(conditional: bool, branch: str, path: str, address: str) -> Steps:
    """Adds an entry for an address that exists."""
    while True:
        found = yield step(f"reads the counter of {address}", Counting.read_counter, address)
        if found is None or found.counter == 0:
            return
        version = found.version if conditional else None
        label = f"writes the counter {found.counter + 1}"
        if (yield step(label, Counting.set_counter, address, found.counter + 1, version)):
            break
    token = yield step(f"reads the token of {branch}", Counting.token, branch)
    yield step(f"stages {path}", Counting.stage, token, path, address)


def delete(conditional: bool, branch: str, path: str) -> Steps:
    """Removes an entry, and the object with the last one."""
    found = yield step(f"reads the entry of {path}", Counting.entry, branch, path)
    address = found.entry.address
    yield step(f"removes the entry of {path}", Counting.unstage, found.token, path)
    while True:
        metadata = yield step(f"reads the counter of {address}", Counting.read_counter, address)
        version = metadata.version if conditional else None
        left = metadata.counter - 1
        if (yield step(f"writes the counter {left}", Counting.set_counter, address, left, version)):
            break
    if left == 0:
        yield step(f"deletes {address}", Counting.hard_delete, address)


def _scenario(conditional: bool) -> Scenario[Counting]:
    return Scenario(
        Counting(
            objects={"p1": frozenset()},
            tokens={"main": "main.1"},
            staged={("main.1", "x"): Entry("p1")},
            metadata={"p1": Metadata(1, 1)},
        ),
        (
            Actor("stage", partial(stage, conditional, "main", "y", "p1")),
            Actor("delete", partial(delete, conditional, "main", "x")),
        ),
        missing,
    )


CASES = (
    Case(
        "a store that cannot update metadata conditionally",
        "The blocker that the document names: one of two updates is lost.",
        _scenario(conditional=False),
    ),
    Case(
        "the same on a store that can",
        "As the document says about Azure and Google: the second writer is refused, and reads again.",
        _scenario(conditional=True),
        holds=True,
    ),
)
