"""Sample repositories, made through the API by a small client.

One repository is aged: it has garbage and live objects of every kind, and lists of both. The server's clock is moved
back while it is made, so that objects in a local folder look old. A remote store keeps its own times.

The other repository has a year of commits, to show the effect of retention periods. It has tables replaced daily,
weekly and monthly, partitions that are only added, an abandoned branch, a tagged release, and retention rules.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer


class UnexpectedAnswer(CollectionError):
    """A call returned an unexpected answer."""


class Session:
    """Calls about one repository, over one connection."""

    def __init__(self, server: EmbeddedServer, repository: str) -> None:
        self._connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        self._headers = {"Authorization": server.basic_authorization}
        self._repository = repository
        self._base = f"/repositories/{quote(repository)}"
        self.namespace = f"{server.core.blockstore.scheme}{repository}/"

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def call(self, method: str, path: str, body: Any = None, /, **query: str) -> tuple[int, Any]:
        """Status and answer of a call; `path` is relative to the repository."""
        return self._send(method, self._base + quote(path), body, query)

    def expect(self, status: int, method: str, path: str, body: Any = None, /, **query: str) -> Any:
        """The answer of a call. Raises UnexpectedAnswer for another status."""
        actual, answer = self.call(method, path, body, **query)
        if actual != status:
            raise UnexpectedAnswer(f"{method} {path} {query}: {actual} instead of {status}: {answer!r}")
        return answer

    def _send(self, method: str, target: str, body: Any, query: Mapping[str, str]) -> tuple[int, Any]:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        encoded = f"?{urlencode(query)}" if query else ""
        self._connection.request(method, f"/api/v1{target}{encoded}", content, self._headers)
        response = self._connection.getresponse()
        received = response.read()
        is_json = response.getheader("Content-Type") == "application/json"
        return response.status, json.loads(received) if is_json else received

    def create(self) -> None:
        """Creates the repository, in a storage namespace of the same name."""
        body = {"name": self._repository, "storage_namespace": self.namespace.rstrip("/")}
        status, answer = self._send("POST", "/repositories", body, {})
        if status != 201:
            raise UnexpectedAnswer(
                f"repository {self._repository} was not made in {self.namespace}: {status}: {answer!r}"
            )

    def relative(self, physical_address: str) -> str:
        """An address without the storage namespace."""
        return physical_address.removeprefix(self.namespace)

    def branch(self, name: str, source: str) -> None:
        """Creates a branch."""
        self.expect(201, "POST", "/branches", {"name": name, "source": source})

    def upload(self, branch: str, path: str, content: bytes) -> str:
        """Uploads an object; returns its address."""
        answer = self.expect(201, "POST", f"/branches/{branch}/objects", content, path=path)
        return self.relative(answer["physical_address"])

    def commit(self, branch: str, message: str) -> str:
        """Commits; returns the commit's id."""
        return str(self.expect(201, "POST", f"/branches/{branch}/commits", {"message": message})["id"])

    def delete(self, branch: str, path: str) -> None:
        """Deletes a path."""
        self.expect(204, "DELETE", f"/branches/{branch}/objects", path=path)

    def address(self, reference: str, path: str) -> str:
        """Address of the object at a path."""
        return self.relative(self.expect(200, "GET", f"/refs/{reference}/objects/stat", path=path)["physical_address"])

    def upload_to_issued_address(self, branch: str, path: str, content: bytes) -> str:
        """Requests an address and uploads to it; returns the physical address."""
        issued = self.expect(200, "GET", f"/branches/{branch}/staging/backing", path=path, presign="true")
        link = urlsplit(issued["presigned_url"])
        self._connection.request("PUT", f"{link.path}?{link.query}", content)
        response = self._connection.getresponse()
        response.read()
        if response.status != 200:
            raise UnexpectedAnswer(f"upload to a presigned link: {response.status}")
        return str(issued["physical_address"])

    def link(self, branch: str, path: str, physical_address: str, size: int) -> None:
        """Links an issued address."""
        body = {"staging": {"physical_address": physical_address}, "checksum": f"linked-{path}", "size_bytes": size}
        self.expect(200, "PUT", f"/branches/{branch}/staging/backing", body, path=path)


_FEWEST = 2
"""Minimum objects of each kind."""

_SHARES = {
    "committed": 0.45,
    "staged": 0.10,
    "overwritten": 0.15,
    "deleted": 0.12,
    "reset": 0.06,
    "deleted branch": 0.12,
}
"""How objects above the minimum are divided among kinds."""


@dataclass(frozen=True, slots=True)
class LiveObject:
    """An object that must be readable after every collection.

    Attributes:
        kind: the reason it is live, such as `only in a tag's commit`.
        reference: branch or commit id to read it from.
        address: relative to the storage namespace; a full address if it lies outside.
    """

    kind: str
    reference: str
    path: str
    address: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class GarbageObject:
    """An unreferenced object that is old enough to collect; `address` is relative to the storage namespace."""

    kind: str
    address: str


@dataclass(frozen=True, slots=True)
class PendingLink:
    """A young object uploaded to an issued address that may still be linked."""

    branch: str
    path: str
    physical_address: str
    content: bytes = field(repr=False)


@dataclass(slots=True)
class Sample:
    """Objects of the repository: live objects, garbage, and objects to be renamed or linked later.

    Attributes:
        to_rename: staged objects of `main`, for `rename`. Each is live at the old path before and at the new one after.
        pending: uploads for `link_pending`, before or after a collection.
    """

    repository: str
    live: list[LiveObject] = field(default_factory=list)
    garbage: list[GarbageObject] = field(default_factory=list)
    to_rename: list[LiveObject] = field(default_factory=list)
    pending: list[PendingLink] = field(default_factory=list)


def make_sample_repository(
    server: EmbeddedServer, *, objects: int = 500, repository: str = "sample", with_months: bool = False
) -> Sample:
    """Creates a repository of about this many objects, up to 40 days old. The youngest objects are made now.

    Args:
        with_months: also add the commits and rules of the repository with a year of commits. The result leaves them
            out.
    Raises:
        UnexpectedAnswer: the server does not answer as expected.
    """
    counts = {kind: _FEWEST + int(max(objects - 60, 0) * share) for kind, share in _SHARES.items()}
    sample = Sample(repository)
    now = server.clock.now()
    with closing(Session(server, repository)) as api:
        next_day = _DAYS

        @contextmanager
        def at(ago: int) -> Iterator[None]:
            """Sets the clock this many days back; with months, first makes the commits up to that day."""
            nonlocal next_day
            while with_months and next_day >= ago:
                with server.clock.at(now - timedelta(days=next_day)):
                    _day(api, next_day)
                next_day -= 1
            with server.clock.at(now - timedelta(days=ago)):
                yield

        with at(40):
            if with_months:
                api.expect(204, "PUT", "/settings/gc_rules", MONTHS_RULES)
            else:
                api.create()
            _first_commits(api, sample, counts["committed"] // 2)
        with at(20):
            _later_commits(api, sample, counts["committed"] - counts["committed"] // 2)
            _imported(server, api, sample)
        with at(10):
            _staged_and_dropped(api, sample, counts)
        with at(8):
            _interrupted(server, api, sample)
        with at(3):
            _staged(api, sample, counts["staged"])
        _young(api, sample)
    return sample


def _content(kind: str, number: int) -> bytes:
    return f"{kind} {number}\n".encode()


def _upload(api: Session, sample: Sample, kind: str, path: str, content: bytes) -> LiveObject:
    """Uploads a live object to `main`, and adds it to the sample."""
    live = LiveObject(kind, "main", path, api.upload("main", path, content), content)
    sample.live.append(live)
    return live


def _link(api: Session, sample: Sample, path: str, content: bytes) -> None:
    """Uploads a live object to an issued address, links it on `main`, and adds it to the sample."""
    physical_address = api.upload_to_issued_address("main", path, content)
    api.link("main", path, physical_address, len(content))
    sample.live.append(LiveObject("linked", "main", path, api.relative(physical_address), content))


def _first_commits(api: Session, sample: Sample, committed: int) -> None:
    replaced = [(f"replaced/{number}", _content("old version", number)) for number in range(_FEWEST)]
    old = [(path, api.upload("main", path, content), content) for path, content in replaced]
    restored = api.upload("main", "restored", b"restored\n")
    for number in range(committed):
        _upload(api, sample, "committed", f"committed/first-{number:06d}", _content("committed first", number))
    first = api.commit("main", "first objects")
    sample.live += [
        LiveObject("only in an old commit", first, path, address, content) for path, address, content in old
    ]
    api.branch("preview", "main")
    tagged = [
        (f"tagged/{number}", api.upload("preview", f"tagged/{number}", _content("tagged", number)))
        for number in range(_FEWEST)
    ]
    released = api.commit("preview", "a preview")
    api.expect(201, "POST", "/tags", {"id": "v0.9", "ref": "preview"})
    api.expect(204, "DELETE", "/branches/preview")
    for number, (path, address) in enumerate(tagged):
        sample.live.append(LiveObject("only in a tag's commit", released, path, address, _content("tagged", number)))
    api.branch("restore", first)
    metadata = {"set": {"restored": "yes"}}
    api.expect(204, "PUT", "/branches/restore/objects/stat/user_metadata", metadata, path="restored")
    sample.live.append(LiveObject("staged again from a commit", "restore", "restored", restored, b"restored\n"))


def _later_commits(api: Session, sample: Sample, committed: int) -> None:
    for number in range(_FEWEST):
        _upload(api, sample, "committed", f"replaced/{number}", _content("new version", number))
    api.delete("main", "restored")
    for number in range(committed):
        _upload(api, sample, "committed", f"committed/second-{number:06d}", _content("committed second", number))
    for number in range(_FEWEST):
        _link(api, sample, f"linked/committed-{number}", _content("linked and committed", number))
    api.commit("main", "more objects")


def _imported(server: EmbeddedServer, api: Session, sample: Sample) -> None:
    outside = f"{server.core.blockstore.scheme}outside-{sample.repository}"
    server.core.blockstore.create(outside)
    for number in range(_FEWEST):
        server.core.blockstore.put(outside, f"lake/{number}", _content("imported", number))
    body = {
        "paths": [{"type": "common_prefix", "path": f"{outside}/lake/", "destination": "imported/"}],
        "commit": {"message": "import"},
    }
    api.branch("imports", "main")
    task = api.expect(202, "POST", "/branches/imports/import", body)["id"]
    server.core.tasks.wait_for_all(30)
    if not api.expect(200, "GET", "/branches/imports/import", id=task)["completed"]:
        raise UnexpectedAnswer("the import was not completed")
    for number in range(_FEWEST):
        path = f"imported/{number}"
        address = api.address("imports", path)
        sample.live.append(LiveObject("imported from outside", "imports", path, address, _content("imported", number)))


def _staged_and_dropped(api: Session, sample: Sample, counts: dict[str, int]) -> None:
    for number in range(counts["overwritten"]):
        path = f"overwritten/{number:06d}"
        sample.garbage.append(GarbageObject("overwritten", api.upload("main", path, _content("overwritten", number))))
        _upload(api, sample, "committed", path, _content("overwrites", number))
    for number in range(counts["deleted"]):
        path = f"deleted/{number:06d}"
        sample.garbage.append(GarbageObject("deleted", api.upload("main", path, _content("deleted", number))))
        api.delete("main", path)
    api.commit("main", "after some overwriting")
    for kind, branch in (("reset", "scratch"), ("deleted branch", "short-lived")):
        api.branch(branch, "main")
        for number in range(counts[kind]):
            address = api.upload(branch, f"{branch}/{number:06d}", _content(kind, number))
            sample.garbage.append(GarbageObject(kind, address))
    api.expect(204, "PUT", "/branches/scratch", {"type": "reset"})
    api.expect(204, "DELETE", "/branches/short-lived")
    for number in range(_FEWEST):
        physical_address = api.upload_to_issued_address("main", f"never/{number}", _content("never linked", number))
        sample.garbage.append(GarbageObject("expired link", api.relative(physical_address)))


def _interrupted(server: EmbeddedServer, api: Session, sample: Sample) -> None:
    """Makes uploads and copies that fail after writing their object; the error message names the object."""
    for kind in ("aborted upload", "failed copy"):
        server.core.interrupted_writes = _FEWEST
        for number in range(_FEWEST):
            if kind == "aborted upload":
                path = f"aborted/{number}"
                answer = api.expect(500, "POST", "/branches/main/objects", _content(kind, number), path=path)
            else:
                body = {"src_path": "replaced/0", "src_ref": "main"}
                path = f"failed/{number}"
                answer = api.expect(500, "POST", "/branches/main/objects/copy", body, dest_path=path)
            sample.garbage.append(GarbageObject(kind, answer["message"].rpartition(": ")[2]))


def _staged(api: Session, sample: Sample, staged: int) -> None:
    for number in range(staged):
        _upload(api, sample, "staged", f"staged/{number:06d}", _content("staged", number))
    for number in range(_FEWEST):
        sample.to_rename.append(_upload(api, sample, "staged", f"renamed/old-{number}", _content("renamed", number)))
    for number in range(_FEWEST):
        content = _content("copied", number)
        source = api.upload("main", f"copied/source-{number}", content)
        body = {"src_path": f"copied/source-{number}"}
        api.expect(201, "POST", "/branches/main/objects/copy", body, dest_path=f"copied/{number}")
        api.delete("main", f"copied/source-{number}")
        address = api.address("main", f"copied/{number}")
        sample.live.append(LiveObject("copied", "main", f"copied/{number}", address, content))
        if address != source:
            sample.garbage.append(GarbageObject("deleted", source))
    for number in range(_FEWEST):
        _link(api, sample, f"linked/staged-{number}", _content("linked and staged", number))
    # It equals the committed object at the same path, so the server's uncommitted data omit it.
    _upload(api, sample, "uploaded again with equal content", "replaced/0", _content("new version", 0))


def _young(api: Session, sample: Sample) -> None:
    for number in range(_FEWEST):
        _upload(api, sample, "just uploaded", f"young/{number}", _content("just uploaded", number))
        path, content = f"young/linked-later-{number}", _content("linked later", number)
        physical_address = api.upload_to_issued_address("main", path, content)
        sample.pending.append(PendingLink("main", path, physical_address, content))


def copy(server: EmbeddedServer, sample: Sample, live: LiveObject, new_path: str) -> LiveObject:
    """Copies an object on its branch, adds the copy to the sample as live, and returns it."""
    with closing(Session(server, sample.repository)) as api:
        body = {"src_path": live.path}
        api.expect(201, "POST", f"/branches/{live.reference}/objects/copy", body, dest_path=new_path)
        address = api.address(live.reference, new_path)
    copied = LiveObject("copied", live.reference, new_path, address, live.content)
    sample.live.append(copied)
    return copied


def rename(server: EmbeddedServer, sample: Sample, live: LiveObject) -> LiveObject:
    """Renames a staged object as users do, by copy and delete. Returns the live copy, and updates the sample."""
    copied = copy(server, sample, live, live.path.replace("old", "new"))
    with closing(Session(server, sample.repository)) as api:
        api.delete(live.reference, live.path)
    renamed = replace(copied, kind="renamed")
    sample.live.remove(copied)
    sample.live[sample.live.index(live)] = renamed
    sample.to_rename.remove(live)
    return renamed


def link_pending(server: EmbeddedServer, sample: Sample) -> None:
    """Links the pending uploads, whose addresses are still valid. Their objects become live."""
    with closing(Session(server, sample.repository)) as api:
        for pending in sample.pending:
            api.link(pending.branch, pending.path, pending.physical_address, len(pending.content))
            address = api.relative(pending.physical_address)
            sample.live.append(LiveObject("linked", pending.branch, pending.path, address, pending.content))
    sample.pending.clear()


def unreadable(server: EmbeddedServer, sample: Sample) -> list[LiveObject]:
    """Live objects that the API does not return byte for byte; none after a correct collection."""
    lost = []
    with closing(Session(server, sample.repository)) as api:
        for live in sample.live:
            status, content = api.call("GET", f"/refs/{live.reference}/objects", path=live.path)
            if status != 200 or content != live.content:
                lost.append(live)
    return lost


STALE_BRANCH = "experiment"
"""The branch without commits for months."""
MONTHS_RULES = {"default_retention_days": 60, "branches": [{"branch_id": "main", "retention_days": 120}]}

_KIB = 1024
_DAYS = 364
_NEWEST = 2
"""Age in days of the newest commits: younger ones would stay under any rules."""


def make_repository_of_months(server: EmbeddedServer) -> None:
    """Creates a repository whose first commit is a year old and whose newest is two days old.

    Raises UnexpectedAnswer if the server does not answer as expected.
    """
    now = server.clock.now()
    with closing(Session(server, "months")) as api:
        for ago in range(_DAYS, _NEWEST - 1, -1):
            with server.clock.at(now - timedelta(days=ago)):
                _day(api, ago)
        api.expect(204, "PUT", "/settings/gc_rules", MONTHS_RULES)


def _day(api: Session, ago: int) -> None:
    """Makes the changes of one day; `ago` is its age in days."""
    if ago == _DAYS:
        api.create()
        _put(api, "main", "reference/countries", "first", 400)
    monthly, weekly, daily = ago % 28 == 0, ago % 7 == 0, ago <= 30
    if monthly:
        _put(api, "main", "models/recommender.bin", str(ago), 512)
        for part in range(3):
            _put(api, "main", f"events/month={(_DAYS - ago) // 28:02}/part-{part}.parquet", str(ago), 64)
    if weekly:
        for part in range(6):
            _put(api, "main", f"sales/part-{part}.parquet", str(ago), 24)
    if daily:
        _put(api, "main", "prices/today.parquet", str(ago), 32)
    if monthly or weekly or daily:
        api.commit("main", f"{ago} days ago")
    if ago == 196:
        api.branch("release", "main")
        _put(api, "release", "models/recommender.bin", "release", 512)
        api.commit("release", "released")
        api.expect(201, "POST", "/tags", {"id": "v1.0", "ref": "release"})
    if ago == 150:
        api.branch(STALE_BRANCH, "main")
    if ago in (150, 140, 130):
        for part in range(4):
            _put(api, STALE_BRANCH, f"features/part-{part}.parquet", str(ago), 256)
        api.commit(STALE_BRANCH, "another try")
    if ago == 20:
        api.branch("next", "main")
    if ago in (20, 15, 10, 5):
        _put(api, "next", "models/recommender.bin", f"next {ago}", 512)
        api.commit("next", "a better model")


def _put(api: Session, branch: str, path: str, version: str, kib: int) -> None:
    api.upload(branch, path, f"{branch} {path} {version}\n".encode().ljust(kib * _KIB, b"."))
