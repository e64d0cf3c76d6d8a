"""The state of the simulated lakeFS repository: commits, branches with their staging, tags, remembered copies."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from lakefs_gc_assets.lakefs.api.models import Commit, RepositoryFacts, RetentionRules
from lakefs_gc_assets_tests.simulation import lakefs_files
from lakefs_gc_assets_tests.simulation.bucket import Bucket
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry

DEFAULT_BRANCH = "main"

Staging = dict[str, Entry | None]
"""Staged entries by path; None for a deleted path."""


class Token(Staging):
    """A staging token with the entries staged under it."""

    def __init__(self, name: str) -> None:
        self.name = name


class Refused(Exception):
    """lakeFS refuses the operation."""


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit with its entries.

    Attributes:
        made_at: true time, seconds.
        visible_at: true time from which a scan of all commits finds it.
    """

    facts: Commit
    entries: Mapping[str, Entry]
    made_at: float
    visible_at: float


@dataclass
class Branch:
    """A branch; `tokens` are its staging token and the sealed ones, newest first.

    Attributes:
        compacted: entries of its compacted base, if staging was compacted since its commit.
        base_id: metarange of the compacted base; empty for none.
    """

    name: str
    commit_id: str
    tokens: list[Token]
    hidden: bool = False
    compacted: Mapping[str, Entry] | None = None
    base_id: str = ""

    def staged(self) -> Staging:
        """Staged entries by path; newer tokens win."""
        if len(self.tokens) == 1:
            return self.tokens[0]
        merged: Staging = {}
        for token in reversed(self.tokens):
            merged.update(token)
        return merged

    def sealed_tokens(self) -> tuple[str, ...]:
        return tuple(token.name for token in self.tokens[1:])

    def sealed(self) -> Staging:
        """The staged entries that a commit in progress would include."""
        merged: Staging = {}
        for token in reversed(self.tokens[1:]):
            merged.update(token)
        return merged


@dataclass
class Repository:
    """One repository; every method is one transaction.

    Attributes:
        by_lifecycle: ids of commits that object lifecycle made and recorded.
        ever_compacted: addresses of all entries that a compaction wrote, as they are stored: its files stay forever.
    """

    uri: str
    bucket: Bucket
    commits: dict[str, CommitRecord] = field(default_factory=dict)
    branches: dict[str, Branch] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[str, float]] = field(default_factory=list)
    tokens_made: int = 0
    ever_compacted: set[str] = field(default_factory=set)
    rules: RetentionRules | None = None
    by_lifecycle: set[str] = field(default_factory=set)

    @property
    def compacted_keys(self) -> set[str]:
        """Keys of the objects whose entries a compaction ever wrote."""
        return {address.removeprefix(self.uri) for address in self.ever_compacted}

    def facts(self, id_: str) -> RepositoryFacts:
        """What a server says of it; it was made with its first commit."""
        first = next(iter(self.commits.values()))
        return RepositoryFacts(id_, self.uri.removesuffix("/"), DEFAULT_BRANCH, False, first.facts.creation_date)

    def set_rules(self, rules: RetentionRules) -> None:
        """Sets the rules of retention; to a server a default of zero without rules of branches is none at all."""
        self.rules = rules if rules.default_days or rules.branches else None

    def branch(self, name: str) -> Branch:
        """Returns a branch. Raises Refused if it does not exist."""
        if name not in self.branches:
            raise Refused(f"no branch {name}")
        return self.branches[name]

    def head(self, branch: Branch) -> Mapping[str, Entry]:
        return self.commits[branch.commit_id].entries

    def rests_on(self, branch: Branch) -> Mapping[str, Entry]:
        """The entries below the branch's tokens: its commit's, or its compacted base's."""
        return self.head(branch) if branch.compacted is None else branch.compacted

    def staged(self, branch: Branch) -> Staging:
        """Staged entries by path, in tokens or compacted."""
        return self._staged_over(branch, branch.compacted)

    def _staged_over(self, branch: Branch, compacted: Mapping[str, Entry] | None) -> Staging:
        if compacted is None:
            return branch.staged()
        head = self.head(branch)
        staged = {path: compacted.get(path) for path in head.keys() | compacted.keys()}
        return {path: entry for path, entry in staged.items() if entry is not head.get(path)} | branch.staged()

    def find(self, reference: str, path: str) -> Entry | None:
        """The entry of a path in a commit, or on a branch with its staged changes."""
        branch = self.branches.get(reference)
        if branch is None:
            record = self.commits.get(self.tags.get(reference, reference))
            return None if record is None else record.entries.get(path)
        staged = branch.staged()
        return staged[path] if path in staged else self.rests_on(branch).get(path)

    def shown(self, reference: str) -> Mapping[str, Entry] | None:
        """Every path of a branch, staged changes included, or of a commit; None if there is neither."""
        branch = self.branches.get(reference)
        if branch is not None:
            return self.visible(branch)
        record = self.commits.get(self.tags.get(reference, reference))
        return None if record is None else record.entries

    def visible(self, branch: Branch) -> dict[str, Entry]:
        """All entries of a branch by path."""
        entries: dict[str, Entry | None] = {**self.rests_on(branch), **branch.staged()}
        return {path: entry for path, entry in entries.items() if entry is not None}

    def changes(self, branch: Branch) -> Iterator[tuple[str, Entry | None]]:
        """Changes of staging from the head, sorted by path. An entry with the identity of the head's is no change."""
        return self.changes_over(branch, branch.compacted)

    def changes_over(self, branch: Branch, compacted: Mapping[str, Entry] | None) -> Iterator[tuple[str, Entry | None]]:
        """As `changes`, for a server that read the branch with this compacted base and reads its tokens now."""
        head, staged = self.head(branch), self._staged_over(branch, compacted)
        for path in sorted(staged):
            entry = staged[path]
            if entry is None:
                if path in head:
                    yield path, None
            elif not equals_committed(head, path, entry):
                yield path, entry

    def stage(self, branch: Branch, path: str, entry: Entry) -> None:
        branch.tokens[0][path] = replace(entry, mtime=int(self.bucket.clock.time.now))

    def remove(self, branch: Branch, path: str) -> None:
        """Deletes a path, with a tombstone only if an older entry must be hidden."""
        if path in self.rests_on(branch) or any(path in token for token in branch.tokens[1:]):
            branch.tokens[0][path] = None
        else:
            branch.tokens[0].pop(path, None)

    def new_token(self) -> Token:
        """Makes a new staging token."""
        self.tokens_made += 1
        return Token(f"token-{self.tokens_made}")

    def new_branch(self, name: str, commit_id: str, *, hidden: bool = False) -> Branch:
        """Makes a branch, replacing any of this name."""
        self.branches[name] = made = Branch(name, commit_id, [self.new_token()], hidden)
        return made

    def compact(self, branch: Branch, entries: Mapping[str, Entry], base_id: str) -> None:
        """Puts a branch on a compacted base, which contains the sealed entries."""
        branch.compacted, branch.base_id = entries, base_id
        branch.tokens = branch.tokens[:1]

    def seal(self, branch: Branch) -> tuple[str, ...]:
        """Gives the branch a new staging token; returns the sealed ones."""
        branch.tokens.insert(0, self.new_token())
        return branch.sealed_tokens()

    def add_commit(
        self,
        entries: Mapping[str, Entry],
        parents: tuple[str, ...],
        date: float,
        now: float,
        lag: float,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> str:
        """Adds a commit, on no branch yet; returns its id.

        If it holds the same entries as its last parent, such as a merge into an unchanged branch, it reuses that
        metarange.
        """
        id_ = hashlib.sha256(repr((len(self.commits), parents, now)).encode()).hexdigest()
        taken_over = len(parents) > 1 and entries == self.commits[parents[-1]].entries
        metarange_id = ""
        if entries or parents:
            metarange_id = lakefs_files.put_commit_objects(self.bucket, entries, anew=not taken_over)
        generation = 1 + max((self.commits[parent].facts.generation for parent in parents), default=0)
        facts = Commit(id_, metarange_id, parents, int(date), 1, generation, metadata=metadata)
        self.commits[id_] = CommitRecord(facts, dict(entries), now, now + lag)
        return id_


def applied(base: Mapping[str, Entry], changes: Staging) -> dict[str, Entry]:
    """The entries of a commit of these changes; an entry of the same identity stays the base's."""
    entries = dict(base)
    for path, entry in changes.items():
        if entry is None:
            entries.pop(path, None)
        elif not equals_committed(base, path, entry):
            entries[path] = entry
    return entries


def equals_committed(base: Mapping[str, Entry], path: str, entry: Entry) -> bool:
    """True if an entry has the identity of the one at its path: servers do not list it, and commits ignore it."""
    return path in base and base[path].identity == entry.identity


def merged(base: Mapping[str, Entry], theirs: Mapping[str, Entry], ours: Mapping[str, Entry]) -> dict[str, Entry]:
    """Our entries with their changes since the base; on conflicts theirs win."""
    entries = dict(ours)
    for path in sorted(base.keys() | theirs.keys()):
        before, after = base.get(path), theirs.get(path)
        if (before and before.identity) == (after and after.identity):
            continue
        if after is None:
            entries.pop(path, None)
        else:
            entries[path] = after
    return entries
