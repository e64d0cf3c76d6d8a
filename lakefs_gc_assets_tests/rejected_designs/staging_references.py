"""The staging manager notes a state (staged, deleted, committed) for each pair of physical address and staging token.

A background job deletes an object when all its notes say deleted for longer than any operation takes, and forgets the
notes of an address as soon as one note says committed. The note is neither the entry nor the commit: it is written
before or after them, one note stands for all entries of a token, and once forgotten it protects nothing.

The model grants all the document's assumptions about time: a note is old only when every operation that was under way
when it was written has ended.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from lakefs_gc_assets_tests.rejected_designs.explorer import Actor, Case, Scenario, Steps, step
from lakefs_gc_assets_tests.rejected_designs.lake import Entry, Lake, missing

TITLE = "References tracked in the staging manager"

STAGED, DELETED, COMMITTED = "staged", "deleted", "committed"
_JOB = "job"
_KEYS_GO = (DELETED, STAGED, COMMITTED)


class Note(NamedTuple):
    """A reference's state, and the operations in progress when it was written: its `last_modified`."""

    state: str
    meanwhile: frozenset[str] = frozenset()


@dataclass
class Tracking(Lake):
    """A lake whose staging manager keeps notes by address and token."""

    notes: dict[tuple[str, str], Note] = field(default_factory=dict)

    def mark(self, address: str, token: str, state: str) -> bool:
        """Sets a note; committed is never overwritten (`SetIf`). Returns True if it was set."""
        before = self.notes.get((address, token))
        if state != COMMITTED and before is not None and before.state == COMMITTED:
            return False
        self.notes[address, token] = Note(state, frozenset(self.under_way - {_JOB}))
        return True

    def note(self, address: str, token: str) -> str | None:
        """The state of a reference."""
        found = self.notes.get((address, token))
        return found.state if found else None

    def mark_all_committed(self, branch: str) -> None:
        """Marks the staged entries of a branch."""
        token = self.tokens[branch]
        for _, entry in self.entries(token):
            self.mark(entry.address, token, COMMITTED)

    def addresses(self) -> tuple[str, ...]:
        """All addresses with notes."""
        return tuple(sorted({address for address, _ in self.notes}))

    def notes_of(self, address: str) -> tuple[tuple[str, str, bool], ...]:
        """Token, state, and True if old, for each note of an address."""
        found = [(token, note) for (about, token), note in self.notes.items() if about == address]
        return tuple(sorted((token, note.state, self.old(note.meanwhile)) for token, note in found))

    def forget(self, address: str, token: str) -> None:
        """Deletes a note."""
        self.notes.pop((address, token), None)


def upload(branch: str, path: str, address: str) -> Steps:
    """Writes an object and stages it; marks the entry's previous address deleted."""
    yield step(f"writes {address}", Tracking.write, address)
    token = yield step(f"reads the token of {branch}", Tracking.token, branch)
    yield step(f"notes {address} on {token} as staged", Tracking.mark, address, token, STAGED)
    before = yield step(f"sets the entry of {path} to {address}", Tracking.stage, token, path, address)
    if before is not None:
        yield step(f"notes {before} on {token} as deleted", Tracking.mark, before, token, DELETED)


def copy(source: str, path: str, branch: str, target: str) -> Steps:
    """Stages an entry's address under another path."""
    found = yield step(f"reads the entry of {path}", Tracking.entry, source, path)
    if found is not None:
        yield from stage(branch, target, found.entry.address)


def stage(branch: str, path: str, address: str) -> Steps:
    """Stages an address inside the repository."""
    token = yield step(f"reads the token of {branch}", Tracking.token, branch)
    yield step(f"notes {address} on {token} as staged", Tracking.mark, address, token, STAGED)
    yield step(f"sets the entry of {path} to {address}", Tracking.stage, token, path, address)


def delete(branch: str, path: str) -> Steps:
    """Removes a staged entry, and marks its reference."""
    found = yield step(f"reads the entry of {path}", Tracking.entry, branch, path)
    if found is None:
        return
    address, token = found.entry.address, found.token
    yield step(f"removes the entry of {path}", Tracking.unstage, token, path)
    if (yield step(f"reads the note of {address} on {token}", Tracking.note, address, token)) != COMMITTED:
        yield step(f"notes {address} on {token} as deleted", Tracking.mark, address, token, DELETED)


def commit(branch: str) -> Steps:
    """Marks first, then swaps the token and writes the commit."""
    yield step(f"notes staged entries of {branch} as committed", Tracking.mark_all_committed, branch)
    token = yield step(f"swaps the token of {branch}", Tracking.seal, branch)
    yield step(f"writes the entries of {token} to a commit", Tracking.commit, token)


def job(passes: int, old_enough: Callable[[Iterable[bool]], bool]) -> Steps:
    """The background job; `old_enough` decides from the ages of all notes of an address."""
    for _ in range(passes):
        for address in (yield step("scans the notes", Tracking.addresses)):
            notes = yield step(f"reads the notes of {address}", Tracking.notes_of, address)
            states = {state for _, state, _ in notes}
            if states == {DELETED} and old_enough(old for _, _, old in notes):
                yield step(f"deletes {address}", Tracking.hard_delete, address)
            elif COMMITTED not in states:
                continue
            for token, _, _ in sorted(notes, key=lambda each: _KEYS_GO.index(each[1])):
                yield step(f"forgets the note of {address} on {token}", Tracking.forget, address, token)


def _lake(staged: dict[tuple[str, str], Entry], notes: dict[tuple[str, str], Note]) -> Tracking:
    addresses = {entry.address for entry in staged.values()}
    tokens = {"dev": "dev.1", "main": "main.1"}
    return Tracking(objects={address: frozenset() for address in addresses}, tokens=tokens, staged=staged, notes=notes)


def _delete_and_copy(old_enough: Callable[[Iterable[bool]], bool]) -> Scenario[Tracking]:
    return Scenario(
        _lake(
            {("main.1", "x"): Entry("p1")},
            {("p1", "main.1"): Note(STAGED), ("p1", "dev.0"): Note(DELETED)},
        ),
        (
            Actor("copy", partial(copy, "main", "x", "dev", "y")),
            Actor("delete", partial(delete, "main", "x")),
            Actor(_JOB, partial(job, 1, old_enough)),
        ),
        missing,
    )


CASES = (
    Case(
        "an override",
        "The document leaves overrides open. One note stands for two entries of one token: overriding one "
        "marks the other one's object as well.",
        Scenario(
            _lake(
                {("main.1", "x"): Entry("p1"), ("main.1", "y"): Entry("p1")},
                {("p1", "main.1"): Note(STAGED)},
            ),
            (Actor("upload", partial(upload, "main", "x", "p2")), Actor(_JOB, partial(job, 1, all))),
            missing,
        ),
    ),
    Case(
        "a commit",
        "Once the job has forgotten the notes of a committed address, the next one to stage and delete it is the only "
        "one that it knows of.",
        Scenario(
            _lake({("main.1", "x"): Entry("p1")}, {("p1", "main.1"): Note(STAGED)}),
            (
                Actor("commit", partial(commit, "main")),
                Actor("stage", partial(stage, "dev", "y", "p1")),
                Actor("delete", partial(delete, "dev", "y")),
                Actor(_JOB, partial(job, 2, all)),
            ),
            missing,
        ),
    ),
    Case(
        "a delete",
        "By the document's words, min(last_modified) decides. So a note of long ago takes the protection from a copy "
        "that is under way (p1 was once staged on dev, and deleted).",
        _delete_and_copy(any),
    ),
    Case(
        "the same when all notes must be old",
        "With the newest note deciding instead of the oldest, the job waits for the copy.",
        _delete_and_copy(all),
        holds=True,
    ),
)
