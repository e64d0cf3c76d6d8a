"""Multipart uploads to an embedded server, which only tests make, by links of the API.

Parts wait in the server's database until they are put together. The links are stated, but not served.
"""

import hashlib
import json
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lakefs_gc_assets.extensions.playground.embedded import branches, objects, repositories
from lakefs_gc_assets.extensions.playground.embedded.core import ApiFailure, Core, bad_request
from lakefs_gc_assets.extensions.playground.embedded.formats import Entry
from lakefs_gc_assets.extensions.playground.embedded.http import (
    NO_CONTENT,
    Request,
    Response,
    Route,
    checked_object,
    json_response,
)
from lakefs_gc_assets.extensions.playground.embedded.objects import ObjectPlace
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository
from lakefs_gc_assets.lakefs.addresses import AddressType

_TABLES = (
    "CREATE TABLE IF NOT EXISTS uploads (id TEXT PRIMARY KEY, repository TEXT NOT NULL, branch TEXT NOT NULL, "
    "path TEXT NOT NULL, address TEXT NOT NULL, content_type TEXT NOT NULL, metadata TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS parts "
    "(upload_id TEXT, number INTEGER, etag TEXT NOT NULL, content BLOB NOT NULL, PRIMARY KEY (upload_id, number))",
)


@contextmanager
def _transaction(core: Core) -> Iterator[sqlite3.Connection]:
    """A transaction of the server's database, with the tables of uploads."""
    with core.database.transaction() as database:
        for table in _TABLES:
            database.execute(table)
        yield database


MOST_PARTS = 10_000
"""Parts of one upload, as on S3; they are numbered from 1."""


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that is neither completed nor aborted."""

    id: str
    repository: str
    branch: str
    path: str
    address: str
    content_type: str
    metadata: Mapping[str, str]


def begin_upload(
    core: Core, place: ObjectPlace, address: str, content_type: str, metadata: Mapping[str, str]
) -> Upload:
    """Starts an upload to an address, to be staged at a place."""
    name, repository_id = str(uuid.uuid4()), place.repository.id
    upload = Upload(name, repository_id, place.reference, place.path, address, content_type, metadata)
    with _transaction(core) as database:
        database.execute(
            "INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?, ?)",
            (name, repository_id, place.reference, place.path, address, content_type, json.dumps(dict(metadata))),
        )
    return upload


def get_upload(core: Core, repository: ServedRepository, upload_id: str) -> Upload:
    """The upload of this id. Raises ApiFailure 404."""
    with _transaction(core) as database:
        row = database.execute(
            "SELECT * FROM uploads WHERE id = ? AND repository = ?", (upload_id, repository.id)
        ).fetchone()
    if row is None:
        raise ApiFailure(404, "NoSuchUpload")
    return Upload(row[0], row[1], row[2], row[3], row[4], row[5], json.loads(row[6]))


def put_part(core: Core, repository: ServedRepository, upload_id: str, number: int, content: bytes) -> str:
    """Stores one part; returns its ETag."""
    etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
    with _transaction(core) as database:
        get_upload(core, repository, upload_id)
        database.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)", (upload_id, number, etag, content))
    return etag


def complete_upload(
    core: Core, repository: ServedRepository, upload_id: str, wanted: Sequence[tuple[int, str]]
) -> Entry:
    """Assembles the parts (number, ETag) at the upload's address. Raises ApiFailure 400 for an unknown part."""
    upload = get_upload(core, repository, upload_id)
    digests, content = b"", bytearray()
    with _transaction(core) as database:
        for number, etag in wanted:
            row = database.execute(
                "SELECT etag, content FROM parts WHERE upload_id = ? AND number = ?", (upload_id, number)
            ).fetchone()
            if row is None or row[0] != etag.strip('"'):
                raise ApiFailure(400, "InvalidPart")
            digests += bytes.fromhex(row[0])
            content += row[1]
    core.blockstore.put(repository.storage_namespace, upload.address, bytes(content))
    abort_upload(core, repository, upload_id)
    etag = f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(wanted)}"
    return Entry(
        upload.address,
        AddressType.RELATIVE,
        len(content),
        etag,
        core.clock.seconds(),
        upload.content_type,
        upload.metadata,
    )


def abort_upload(core: Core, repository: ServedRepository, upload_id: str) -> None:
    """Forgets an upload and its parts. Raises ApiFailure 404."""
    with _transaction(core) as database:
        get_upload(core, repository, upload_id)
        database.execute("DELETE FROM parts WHERE upload_id = ?", (upload_id,))
        database.execute("DELETE FROM uploads WHERE id = ?", (upload_id,))


def _begin_multipart(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    path = request.required("path")
    count = request.number("parts", 0)
    if not 0 <= count <= MOST_PARTS:
        raise bad_request(f"parts can be at most {MOST_PARTS}")
    branches.get(core, repository, branch)
    address = repositories.issue_address(core, repository, branch, path)
    upload = begin_upload(core, ObjectPlace(repository, branch, path), address, objects.DEFAULT_CONTENT_TYPE, {})
    urls = [f"{core.public_url}/_parts/{upload.id}/{number + 1}" for number in range(count)]
    return json_response(
        201, {"upload_id": upload.id, "physical_address": repository.namespace + address, "presigned_urls": urls}
    )


def _complete_multipart(
    core: Core, request: Request, repository: ServedRepository, branch: str, upload: str
) -> Response:
    path = request.required("path")
    body = request.json_object("physical_address", "parts")
    address = str(body["physical_address"]).removeprefix(repository.namespace)
    numbered = [checked_object(part, "part_number", "etag") for part in body["parts"]]
    parts = [(part["part_number"], part["etag"]) for part in numbered]
    # In one transaction: if a part is missing, the address can still be used.
    with core.database.transaction():
        repositories.redeem_address(core, repository, branch, path, address)
        if get_upload(core, repository, upload).address != address:
            raise bad_request("physical address is not that of the upload")
        entry = complete_upload(core, repository, upload, parts)
        objects.stage(core, repository, branch, path, entry)
    # Real servers answer this one call with the relative address.
    return json_response(200, objects.stats(repository, path, entry) | {"physical_address": address})


def _abort_multipart(core: Core, request: Request, repository: ServedRepository, branch: str, upload: str) -> Response:
    abort_upload(core, repository, upload)
    return NO_CONTENT


_UPLOADS = "/repositories/{repository}/branches/{branch}/staging/pmpu"

ROUTES = (
    Route("POST", _UPLOADS, "fs:WriteObject", _begin_multipart),
    Route("PUT", _UPLOADS + "/{upload}", "fs:WriteObject", _complete_multipart),
    Route("DELETE", _UPLOADS + "/{upload}", "fs:WriteObject", _abort_multipart),
)
