"""A recorded repository in a folder: the server's answers, and its objects at the end, below a scratch layer.

A folder (or a `.tar.gz` with such a folder inside) holds `api.jsonl`, and the namespace as files in `namespace/` or
`namespace.tar.gz`. It also holds `listing.json`, plain or gzipped, with size, time and ETag of every object. It is only
read: writes and deletions of a replay go to the scratch layer. Its keys are relative to the storage namespace, times
UTC, sizes bytes.

Commits of a recording have dates over weeks, but were made within minutes. The recorded answers go by these dates.
Metaranges are therefore served with the earliest date of a commit that names them.
"""

import gzip
import hashlib
import io
import json
import tarfile
from base64 import b64decode
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from typing import Any, Literal, Protocol

_UNSAID = ("gc: errors", "gc before rules are set", "gc: read-only repository", "pass 1")
"""Prefixes of the notes of answers that are never replayed."""
_API = "/api/v1"


class Files(Protocol):
    """Files by their path relative to one folder."""

    def names(self) -> Iterator[str]: ...

    def read(self, name: str) -> bytes: ...


class FolderFiles:
    """Files of a folder on disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> Iterator[str]:
        return (path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file())

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()


class ArchiveFiles:
    """Files of a gzipped tar with a single folder inside, held in memory."""

    def __init__(self, archive: bytes) -> None:
        self._content = gzip.decompress(archive)
        with tarfile.open(fileobj=io.BytesIO(self._content)) as tar:
            self._places = {
                member.name.removeprefix("./").partition("/")[2]: (member.offset_data, member.size)
                for member in tar
                if member.isfile()
            }

    def names(self) -> Iterator[str]:
        return iter(self._places)

    def read(self, name: str) -> bytes:
        start, size = self._places[name]
        return self._content[start : start + size]


class FilesBelow:
    """The files below one folder of other files."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._prefix = folder + "/"

    def names(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._files.names() if name.startswith(self._prefix))

    def read(self, name: str) -> bytes:
        return self._files.read(self._prefix + name)


@dataclass(frozen=True, slots=True)
class RecordedObject:
    """Size in bytes, time of the last modification in UTC, and ETag of an object."""

    size: int
    last_modified: datetime
    etag: str


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded request with its 2xx answer; `content` is the answer's JSON, or None."""

    note: str
    method: str
    path: str
    query: dict[str, str]
    request: Any
    status: int
    content_type: str
    body: bytes
    content: Any


class Recording:
    """One recorded repository.

    Args:
        folder: the folder, or its archive.
        now: time of the objects if the folder has no listing.
    """

    def __init__(self, folder: Path, now: datetime) -> None:
        self._read_answers(folder)
        archived = "namespace.tar.gz" in self._names
        if not archived and not any(name.startswith("namespace/") for name in self._names):
            raise ValueError(f"{folder} has neither namespace/ nor namespace.tar.gz: there are no objects to serve")
        self._namespace: Files = (
            ArchiveFiles(self._files.read("namespace.tar.gz")) if archived else FilesBelow(self._files, "namespace")
        )
        self.objects = dict(self._listed(now))
        for key, date in self._dates_of_metaranges().items():
            if key in self.objects and self.objects[key].last_modified > date:
                self.objects[key] = replace(self.objects[key], last_modified=date)

    def _read_answers(self, folder: Path) -> None:
        """Reads everything but the objects."""
        self.folder = folder
        self._files: Files = ArchiveFiles(folder.read_bytes()) if folder.is_file() else FolderFiles(folder)
        self._names = set(self._files.names())
        if "api.jsonl" not in self._names:
            raise ValueError(f"{folder} has no api.jsonl: there is nothing to replay")
        raw = [json.loads(line) for line in self._files.read("api.jsonl").splitlines()]
        self.recorded_at = datetime.fromtimestamp(max(row["at"] for row in raw), UTC)
        self.rows = [_row(row) for row in raw if _is_replayed(row)]
        self.repository, self.storage_namespace = _identity(self.rows)
        self.relocate(_served_as(self.storage_namespace))

    def relocate(self, storage_namespace: str) -> None:
        """Replaces the storage namespace in every answer."""
        if storage_namespace != self.storage_namespace:
            self.rows = [_relocated(row, self.storage_namespace, storage_namespace) for row in self.rows]
            self.storage_namespace = storage_namespace

    def read(self, key: str) -> bytes:
        """The content of an object, by its key relative to the storage namespace."""
        return self._namespace.read(key)

    def rule_variant(self, number: int) -> tuple[dict[str, Any], str]:
        """Rules that were tried besides the last ones, and the run id of the commits prepared for them.

        Raises:
            ValueError: there is no variant of this number.
        """
        variants = self._json("truth.json").get("rule_variants") or [] if self._has("truth.json") else []
        if not 0 <= number < len(variants):
            raise ValueError(f"{self.folder} has {len(variants)} rule variants, counted from 0: there is no {number}")
        return variants[number]["rules"], variants[number]["run_id"]

    def _dates_of_metaranges(self) -> dict[str, datetime]:
        """The earliest date of a commit that names each metarange, by the metarange's key."""
        dates: dict[str, datetime] = {}
        truth = self._json("truth.json") if self._has("truth.json") else {}
        for commit in commits_in([row.content for row in self.rows] + [truth.get("commits")]):
            key, date = f"_lakefs/{commit['meta_range_id']}", datetime.fromtimestamp(commit["creation_date"], UTC)
            dates[key] = min(date, dates.get(key, date))
        return dates

    def _has(self, name: str) -> bool:
        return not self._names.isdisjoint({name, name + ".gz"})

    def _json(self, name: str) -> Any:
        if name in self._names:
            return json.loads(self._files.read(name))
        return json.loads(gzip.decompress(self._files.read(name + ".gz")))

    def _listed(self, now: datetime) -> Iterator[tuple[str, RecordedObject]]:
        if not self._has("listing.json"):
            for key in self._namespace.names():
                content = self.read(key)
                yield key, RecordedObject(len(content), now, hashlib.md5(content).hexdigest())
            return
        for row in self._json("listing.json"):
            # The last recorded objects have no ETag, but stores give one to every object.
            etag = row.get("etag") or hashlib.md5(self.read(row["key"])).hexdigest()
            yield row["key"], RecordedObject(row["size"], datetime.fromtimestamp(row["mtime"], UTC), etag)


def commits_in(content: Any) -> Iterator[dict[str, Any]]:
    """Every commit at any depth of an answer."""
    if isinstance(content, dict):
        if {"meta_range_id", "creation_date"} <= content.keys():
            yield content
        content = list(content.values())
    if isinstance(content, list):
        for each in content:
            yield from commits_in(each)


def _is_replayed(row: dict[str, Any]) -> bool:
    return 200 <= row["status"] < 300 and not (row.get("note") or "").startswith(_UNSAID)


def _row(row: dict[str, Any]) -> Row:
    content = row.get("response_json")
    if "response_json" in row:
        body = json.dumps(content).encode()
    elif "response_b64" in row:
        body = b64decode(row["response_b64"])
    else:
        body = (row.get("response_text") or "").encode()
    return Row(
        note=row.get("note") or "",
        method=row["method"],
        path=row["path"],
        query={name: _as_text(value) for name, value in row["query"].items()},
        request=row["request_body"],
        status=row["status"],
        content_type=row["response_headers"].get("Content-Type", "application/json"),
        body=body,
        content=content,
    )


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _identity(rows: list[Row]) -> tuple[str, str]:
    """Name and storage namespace of the recorded repository."""
    for row in reversed(rows):
        if row.method == "GET" and row.path.startswith(f"{_API}/repositories/") and row.path.count("/") == 4:
            return row.content["id"], row.content["storage_namespace"]
    for row in rows:
        if row.path.endswith("/gc/prepare_uncommited") and row.content["gc_uncommitted_location"]:
            location = row.content["gc_uncommitted_location"]
            return row.path.split("/")[4], location.partition("/_lakefs/")[0]
    raise ValueError("the recording names no repository")


def _served_as(namespace: str) -> str:
    """The served address of a namespace: files of a local blockstore, too, are reached through S3."""
    scheme, _, rest = namespace.partition("://")
    return namespace if scheme == "s3" else "s3://" + rest.lstrip("/")


def _relocated(row: Row, old: str, new: str) -> Row:
    body = row.body.replace(old.encode(), new.encode())
    content = json.loads(body) if row.content is not None else None
    return Row(row.note, row.method, row.path, row.query, row.request, row.status, row.content_type, body, content)


Deletes = Literal["refuse", "overlay"]
_RUNS = "_lakefs/retention/gc/uncommitted/"


class PreconditionFailed(Exception):
    """A conditional write found another object, or one although none was expected."""


class NoSuchKey(Exception):
    """There is no object at this key."""


class DeleteRefused(Exception):
    """This key may not be deleted in this replay."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of a listing: objects, common prefixes, and the start of the next page; None for the last."""

    objects: list[tuple[str, RecordedObject]]
    prefixes: list[str]
    next_start: str | None


class Overlay:
    """Objects of a replay. Safe to use from several threads.

    Args:
        deletes: `refuse` every delete, or do it in the `overlay`. Files of runs that the replay itself wrote can always
            be deleted: locks are among them.
        continues: an overlay whose writes and deletions this one begins with.

    Attributes:
        deleted: recorded keys that this replay deleted.
        refused: keys whose deletion was refused.
    """

    def __init__(
        self, recording: Recording, now: Callable[[], datetime], deletes: Deletes, continues: "Overlay | None" = None
    ) -> None:
        self._recording = recording
        self._now = now
        self._deletes = deletes
        self._written: dict[str, bytes] = dict(continues._written) if continues else {}
        self._gone: set[str] = set(continues._gone) if continues else set()
        self._objects = {key: facts for key, facts in recording.objects.items() if key not in self._gone}
        if continues:
            self._objects |= {key: continues._objects[key] for key in self._written}
        self._keys = sorted(self._objects)
        self.deleted: set[str] = set()
        self.refused: set[str] = set()
        self._lock = RLock()

    def head(self, key: str) -> RecordedObject:
        """Facts of an object. Raises NoSuchKey."""
        with self._lock:
            try:
                return self._objects[key]
            except KeyError:
                raise NoSuchKey(key) from None

    def read(self, key: str) -> tuple[RecordedObject, bytes]:
        """Facts and content of an object. Raises NoSuchKey."""
        with self._lock:
            facts = self.head(key)
            if key in self._written:
                return facts, self._written[key]
        return facts, self._recording.read(key)

    def put(self, key: str, content: bytes, if_absent: bool = False, if_match: str | None = None) -> RecordedObject:
        """Writes an object. Raises PreconditionFailed, or NoSuchKey if there is no object to match."""
        facts = RecordedObject(len(content), self._now(), hashlib.md5(content).hexdigest())
        with self._lock:
            if if_absent and key in self._objects:
                raise PreconditionFailed(key)
            if if_match is not None and self.head(key).etag != if_match:
                raise PreconditionFailed(key)
            if key not in self._objects:
                insort(self._keys, key)
            self._objects[key] = facts
            self._written[key] = content
        return facts

    def delete(self, key: str, if_match: str | None = None) -> None:
        """Deletes an object, if it exists. Raises DeleteRefused or PreconditionFailed."""
        with self._lock:
            own = key in self._written and key not in self._recording.objects and key.startswith(_RUNS)
            if self._deletes == "refuse" and not own:
                self.refused.add(key)
                raise DeleteRefused(key)
            if key not in self._objects:
                return
            if if_match is not None and self._objects[key].etag != if_match:
                raise PreconditionFailed(key)
            del self._objects[key]
            del self._keys[bisect_left(self._keys, key)]
            self._written.pop(key, None)
            if key in self._recording.objects:
                self._gone.add(key)
                self.deleted.add(key)

    def page(self, prefix: str, delimiter: str, start: str, limit: int) -> Listed:
        """At most `limit` keys and common prefixes, from `start` on."""
        objects: list[tuple[str, RecordedObject]] = []
        prefixes: list[str] = []
        with self._lock:
            index = bisect_left(self._keys, max(prefix, start))
            while index < len(self._keys) and self._keys[index].startswith(prefix):
                key = self._keys[index]
                if len(objects) + len(prefixes) == limit:
                    return Listed(objects, prefixes, key)
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                if cut < 0:
                    objects.append((key, self._objects[key]))
                    index += 1
                else:
                    common = key[: cut + len(delimiter)]
                    prefixes.append(common)
                    index = bisect_right(self._keys, common + "\U0010ffff", index)
        return Listed(objects, prefixes, None)
