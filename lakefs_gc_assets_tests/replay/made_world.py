"""Operations on a repository of an embedded server, with independent books of live and unreferenced objects.

The books follow from the requests, not from the server's answers: they hold if the server works as it should. A folder
is the bucket of the server: its recordings look as on S3, including times.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from lakefs_gc_assets.errors import ObjectNotFound
from lakefs_gc_assets.extensions.playground.embedded.sample import Session, UnexpectedAnswer
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.playground.embedded.stores import StoreClock
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded import routes


class BucketFolder:
    """A blockstore of type `s3`: the object `s3://bucket/key` is the file `bucket/key` of a folder.

    Objects get their LastModified from the server's clock.
    """

    type = "s3"
    scheme = "s3://lakefs/"

    def __init__(self, folder: Path, clock: StoreClock) -> None:
        self._folder = folder
        self._clock = clock
        self._stores: dict[str, ObjectStore] = {}

    def folder_of(self, location: str) -> Path:
        """Folder of the objects below a full address."""
        return self._folder / location.removeprefix("s3://")

    def files(self, location: str) -> Iterator[tuple[str, Path]]:
        """Keys and files of the objects below a full address."""
        root = self.folder_of(location)
        for path in sorted(root.rglob("*")):
            if path.is_file():
                yield path.relative_to(root).as_posix(), path

    def open(self, location: str) -> ObjectStore:
        """See Blockstore.open."""
        if location not in self._stores:
            if not self.folder_of(location).is_dir():
                raise ObjectNotFound(f"there is no folder for {location}")
            self._stores[location] = _TimedStore(self.folder_of(location), self._clock)
        return self._stores[location]

    def create(self, location: str) -> ObjectStore:
        """See Blockstore.create."""
        self.folder_of(location).mkdir(parents=True, exist_ok=True)
        return self.open(location)

    def put(self, location: str, key: str, content: bytes) -> str:
        """See Blockstore.put."""
        self.create(location).put(key, content)
        return _md5(content)


class _TimedStore(LocalStore):
    def __init__(self, root: Path, clock: StoreClock) -> None:
        super().__init__(root)
        self._files = root
        self._clock = clock

    def put(self, key: str, data: bytes) -> str:
        """Writes an object dated by the server's clock; returns its MD5. It does not wait for the disk."""
        file = self._files / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        moment = self._clock.now().timestamp()
        os.utime(file, (moment, moment))
        return _md5(data)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


_AGE = timedelta(days=61)
"""Age of a repository whose objects are all written today."""
Entries = dict[str, str]
"""Addresses by path: relative to the storage namespace, or in full for objects outside."""


@dataclass
class Branch:
    """A branch's head and staged entries; None for a removed path."""

    head: str
    hidden: bool = False
    staged: dict[str, str | None] = field(default_factory=dict)
    merged: str = ""
    """The commit that it has in common with the branch that it was made from."""


@dataclass
class Books:
    """Books of all requests.

    Attributes:
        commits: entries by commit, including commits that no branch reaches.
        parents: first parent by commit.
        written: reason for which each object was written, by its address.
    """

    commits: dict[str, Entries] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    branches: dict[str, Branch] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)

    def holders(self, address: str) -> tuple[list[str], list[str], list[str]]:
        """Commits that hold an address, branches on which it is staged, and its paths."""
        commits = [id_ for id_, entries in self.commits.items() if address in entries.values()]
        staged = [name for name, branch in self.branches.items() if address in branch.staged.values()]
        pairs = [pair for entries in self.commits.values() for pair in entries.items()]
        pairs += [(path, at) for branch in self.branches.values() for path, at in branch.staged.items() if at]
        return commits, staged, sorted({path for path, held in pairs if held == address})

    def addresses(self) -> set[str]:
        """Every address that was ever written or referenced."""
        committed = {address for entries in self.commits.values() for address in entries.values()}
        staged = {address for branch in self.branches.values() for address in branch.staged.values() if address}
        return {*self.written, *committed, *staged}


class World:
    """One repository and the operations on it.

    Args:
        bucket: the server's blockstore.
    """

    def __init__(self, server: EmbeddedServer, bucket: BucketFolder, repository: str) -> None:
        self.server = server
        self.bucket = bucket
        self.repository = repository
        self.session = Session(server, repository)
        self.namespace = self.session.namespace.rstrip("/")
        self.books = Books()
        self._contents = 0
        # Create the repository before all backdated commits: no commit is older than its repository's first one.
        with server.clock.at(server.clock.now() - _AGE):
            self.session.create()
        first = self._head("main")
        self.books.commits[first] = {}
        self.books.branches["main"] = Branch(first)
        self._begin_slice()

    def restart(self) -> None:
        """Starts another process of the server, ten minutes later, which writes its own slice."""
        self.server.clock.advance(timedelta(minutes=10))
        routes.switch_writer(self.server)
        self._begin_slice()

    def _begin_slice(self) -> None:
        """Opens a slice, as a server does at its start, a while before the first object."""
        self.server.core.writer.new_address()
        self.server.clock.advance(timedelta(minutes=1))

    def _head(self, branch: str) -> str:
        return str(self.session.expect(200, "GET", f"/branches/{branch}")["commit_id"])

    def _content(self) -> bytes:
        self._contents += 1
        return f"object {self._contents} of {self.repository}\n".encode() * (1 + self._contents % 7)

    def upload(self, branch: str, *paths: str) -> list[str]:
        """Uploads a new object to each path; returns their addresses."""
        found = []
        for path in paths:
            found.append(self.session.upload(branch, path, self._content()))
            self._stage(branch, path, found[-1], "upload")
        return found

    def _stage(self, branch: str, path: str, address: str, why: str) -> None:
        self.books.branches[branch].staged[path] = address
        self.books.written.setdefault(address, why)

    def interrupted_upload(self, branch: str, path: str) -> None:
        """Makes an upload that ends between the writing of the object and its staging."""
        self.server.core.interrupted_writes = 1
        answer = self.session.expect(500, "POST", f"/branches/{branch}/objects", self._content(), path=path)
        self.books.written[answer["message"].rpartition(": ")[2]] = "interrupted upload"

    def upload_to_link(self, branch: str, path: str, *, linked: bool = True) -> None:
        """Uploads to an issued address, and links it unless `linked` is False."""
        content = self._content()
        physical_address = self.session.upload_to_issued_address(branch, path, content)
        address = self.session.relative(physical_address)
        self.books.written[address] = "issued address"
        if linked:
            self.session.link(branch, path, physical_address, len(content))
            self._stage(branch, path, address, "issued address")

    def copy(self, branch: str, source: str, path: str) -> None:
        """Copies an object to another path of its branch."""
        body = {"src_path": source}
        answer = self.session.expect(201, "POST", f"/branches/{branch}/objects/copy", body, dest_path=path)
        self._stage(branch, path, self.session.relative(answer["physical_address"]), "copy")

    def describe(self, branch: str, path: str) -> None:
        """Sets metadata of a committed object, which stages the same address as well."""
        target = f"/branches/{branch}/objects/stat/user_metadata"
        self.session.expect(204, "PUT", target, {"set": {"described": "yes"}}, path=path)
        found = self.books.branches[branch]
        found.staged[path] = self.books.commits[found.head][path]

    def delete(self, branch: str, *paths: str) -> None:
        """Removes paths."""
        for path in paths:
            self.session.delete(branch, path)
            self.books.branches[branch].staged[path] = None

    def commit(self, branch: str, *, days_ago: float = 0) -> str:
        """Commits staged entries, dated some days ago."""
        date = int((self.server.clock.now() - timedelta(days=days_ago)).timestamp())
        body = {"message": f"of {branch}", "date": date}
        id_ = str(self.session.expect(201, "POST", f"/branches/{branch}/commits", body)["id"])
        found = self.books.branches[branch]
        laid_over = {**self.books.commits[found.head], **found.staged}
        entries = {path: address for path, address in laid_over.items() if address is not None}
        return self._moved(branch, id_, entries)

    def _moved(self, branch: str, commit: str, entries: Entries) -> str:
        found = self.books.branches[branch]
        self.books.commits[commit] = entries
        self.books.parents[commit] = found.head
        found.head, found.staged = commit, {}
        return commit

    def branch(self, name: str, source: str = "main", *, hidden: bool = False) -> None:
        """Makes a branch from another one's head, or from a commit."""
        body = {"name": name, "source": source, "hidden": hidden}
        self.session.expect(201, "POST", "/branches", body)
        head = self.books.branches[source].head if source in self.books.branches else source
        self.books.branches[name] = Branch(head, hidden, merged=head)

    def drop_branch(self, name: str) -> None:
        """Deletes a branch with its staged entries; its commits stay."""
        self.session.expect(204, "DELETE", f"/branches/{name}")
        del self.books.branches[name]

    def reset(self, branch: str) -> None:
        """Drops staged entries."""
        self.session.expect(204, "PUT", f"/branches/{branch}", {"type": "reset"})
        self.books.branches[branch].staged = {}

    def hard_reset(self, branch: str, commit: str) -> None:
        """Drops staged entries, and points a branch to another commit."""
        self.reset(branch)
        self.session.expect(204, "PUT", f"/branches/{branch}/hard_reset", ref=commit)
        self.books.branches[branch].head = commit

    def merge(self, source: str, destination: str, *, days_ago: float = 0, squash: bool = False) -> str:
        """Merges a branch into its parent branch or a branch made from it; neither has staged entries."""
        with self.server.clock.at(self.server.clock.now() - timedelta(days=days_ago)):
            answer = self.session.expect(200, "POST", f"/refs/{source}/merge/{destination}", {"squash_merge": squash})
        theirs, ours = self.books.branches[source], self.books.branches[destination]
        entries = self._with_changes(ours.head, theirs.merged, theirs.head)
        theirs.merged = theirs.head
        return self._moved(destination, str(answer["reference"]), entries)

    def revert(self, branch: str, commit: str) -> str:
        """Reverts the changes of a commit."""
        body = {"ref": commit, "parent_number": 1}
        self.session.expect(204, "POST", f"/branches/{branch}/revert", body)
        entries = self._with_changes(self.books.branches[branch].head, commit, self.books.parents[commit])
        return self._moved(branch, self._head(branch), entries)

    def _with_changes(self, head: str, before: str, after: str) -> Entries:
        """Entries of a head with the changes between two commits; no path changed on both sides."""
        was, is_ = self.books.commits[before], self.books.commits[after]
        entries = dict(self.books.commits[head])
        for path in was.keys() | is_.keys():
            if was.get(path) == is_.get(path):
                continue
            if path in is_:
                entries[path] = is_[path]
            else:
                entries.pop(path, None)
        return entries

    def tag(self, name: str, commit: str) -> None:
        """Tags a commit."""
        self.session.expect(201, "POST", "/tags", {"id": name, "ref": commit})
        self.books.tags[name] = commit

    def import_from_outside(self, branch: str, *names: str) -> None:
        """Imports objects of another bucket, in a commit."""
        outside = f"s3://external/{self.repository}"
        for name in names:
            self.bucket.put(outside, name, self._content())
        source = {"type": "common_prefix", "path": f"{outside}/", "destination": "imported/"}
        body = {"paths": [source], "commit": {"message": "import"}}
        task = self.session.expect(202, "POST", f"/branches/{branch}/import", body)["id"]
        self.server.core.tasks.wait_for_all(30)
        answer = self.session.expect(200, "GET", f"/branches/{branch}/import", id=task)
        if not answer["completed"]:
            raise UnexpectedAnswer(f"the import ended with {answer}")
        entries = self.books.commits[self.books.branches[branch].head]
        imported = {f"imported/{name}": f"{outside}/{name}" for name in names}
        self._moved(branch, str(answer["commit"]["id"]), {**entries, **imported})

    def put_by_hand(self, key: str) -> None:
        """Puts an object into the storage namespace as another program."""
        self.bucket.put(self.namespace, key, self._content())
        self.books.written[key] = "another program"

    def set_rules(self, default: int, **branches: int) -> None:
        """Sets the days for which commits are kept."""
        rules = [{"branch_id": name, "retention_days": days} for name, days in branches.items()]
        body = {"default_retention_days": default, "branches": rules}
        self.session.expect(204, "PUT", "/settings/gc_rules", body)

    def staged_places(self) -> Iterator[tuple[str, str]]:
        """Branch and path of every staged entry."""
        for name, branch in self.books.branches.items():
            yield from ((name, path) for path, address in branch.staged.items() if address is not None)
