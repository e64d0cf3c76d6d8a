"""Multipart uploads, of the gateway and of presigned links: parts wait in the database until they are put together."""

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.entries import Entry
from lakefs_gc_assets.embedded.failures import ApiFailure
from lakefs_gc_assets.embedded.repositories import Repository
from lakefs_gc_assets.lakefs.addresses import AddressType

MOST_PARTS = 10_000
"""Of one upload, as on S3; they are numbered from 1."""


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


def begin(
    core: Core,
    repository: Repository,
    branch_id: str,
    path: str,
    address: str,
    content_type: str,
    metadata: Mapping[str, str],
) -> Upload:
    """Starts an upload to an address."""
    upload = Upload(str(uuid.uuid4()), repository.id, branch_id, path, address, content_type, metadata)
    with core.database.transaction() as database:
        database.execute(
            "INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?, ?)",
            (upload.id, repository.id, branch_id, path, address, content_type, json.dumps(dict(metadata))),
        )
    return upload


def get(core: Core, repository: Repository, upload_id: str) -> Upload:
    """The upload of this id. Raises ApiFailure 404."""
    with core.database.transaction() as database:
        row = database.execute(
            "SELECT * FROM uploads WHERE id = ? AND repository = ?", (upload_id, repository.id)
        ).fetchone()
    if row is None:
        raise ApiFailure(404, "NoSuchUpload")
    return Upload(row[0], row[1], row[2], row[3], row[4], row[5], json.loads(row[6]))


def put_part(core: Core, repository: Repository, upload_id: str, number: int, content: bytes) -> str:
    """Keeps one part; returns its ETag."""
    etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
    with core.database.transaction() as database:
        get(core, repository, upload_id)
        database.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)", (upload_id, number, etag, content))
    return etag


def complete(core: Core, repository: Repository, upload_id: str, wanted: Sequence[tuple[int, str]]) -> Entry:
    """Puts the parts (number, ETag) together under the upload's address. Raises ApiFailure 400 for an unknown part."""
    upload = get(core, repository, upload_id)
    digests, content = b"", bytearray()
    with core.database.transaction() as database:
        for number, etag in wanted:
            row = database.execute(
                "SELECT etag, content FROM parts WHERE upload_id = ? AND number = ?", (upload_id, number)
            ).fetchone()
            if row is None or row[0] != etag.strip('"'):
                raise ApiFailure(400, "InvalidPart")
            digests += bytes.fromhex(row[0])
            content += row[1]
    core.blockstore.put(repository.storage_namespace, upload.address, bytes(content))
    abort(core, repository, upload_id)
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


def abort(core: Core, repository: Repository, upload_id: str) -> None:
    """Forgets an upload and its parts. Raises ApiFailure 404."""
    with core.database.transaction() as database:
        get(core, repository, upload_id)
        database.execute("DELETE FROM parts WHERE upload_id = ?", (upload_id,))
        database.execute("DELETE FROM uploads WHERE id = ?", (upload_id,))
