"""The parquet files of prepare_uncommited: address and time of every staged entry, page by page."""

import base64
import io
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.embedded import branches, commits, copied_objects, staging
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.entries import Entry, decode_entry
from lakefs_gc_assets.embedded.failures import bad_request
from lakefs_gc_assets.embedded.repositories import Repository, store_of
from lakefs_gc_assets.lakefs.addresses import AddressType

SCHEMA = pa.schema(
    [
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("creation_date", pa.int64(), nullable=False),
    ]
)
"""Address relative to the storage namespace; last modification in seconds since 1970 UTC."""

_ROWS_READ_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class _Token:
    """Where the next page begins; `key` is always empty."""

    branch: str
    path: str
    run_id: str

    def encode(self) -> str:
        text = json.dumps(
            {"branch": self.branch, "path": self.path, "run_id": self.run_id, "key": ""},
            separators=(",", ":"),
            ensure_ascii=False,
        )
        return base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()


def _decode_token(token: str) -> _Token:
    try:
        content = json.loads(base64.b64decode(token, validate=True).decode("utf-8", "surrogateescape"))
        return _Token(str(content["branch"]), str(content["path"]), str(content["run_id"]))
    except (ValueError, KeyError, TypeError):
        raise bad_request("invalid continuation token") from None


@dataclass(slots=True)
class _Page:
    """The file being written: a row group for each `check_rows` rows."""

    check_rows: int
    rows: int = 0
    _addresses: list[str] = field(default_factory=list)
    _dates: list[int] = field(default_factory=list)
    _sink: io.BytesIO = field(default_factory=io.BytesIO)
    _writer: pq.ParquetWriter | None = None

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._sink,
                SCHEMA,
                compression="gzip",
                compression_level=1,  # the usual level takes as long as all else that a page does
                use_dictionary=["physical_address"],
                version="1.0",
            )
        return self._writer

    def add(self, address: str, date: int) -> bool:
        """Adds a row; tells whether a row group was written, that is, whether to look at the size."""
        self._addresses.append(address)
        self._dates.append(date)
        self.rows += 1
        if len(self._addresses) < self.check_rows:
            return False
        self._flush()
        return True

    def _flush(self) -> None:
        if self._addresses:
            self._open().write_table(pa.table([self._addresses, self._dates], schema=SCHEMA))
            self._addresses, self._dates = [], []

    @property
    def written_bytes(self) -> int:
        return self._sink.tell()

    def finish(self) -> bytes:
        self._flush()
        self._open().close()
        return self._sink.getvalue()


def prepare(core: Core, repository: Repository, continuation_token: str | None) -> dict[str, Any]:
    """Writes the next page; returns run id, location and, unless it was the last one, a continuation token.

    The location is empty where no file was written. Raises ApiFailure 400 for a token that is not ours.
    """
    start = _decode_token(continuation_token) if continuation_token else None
    run_id = start.run_id if start else core.writer.new_run_id()
    page = _Page(core.settings.page_check_rows)
    following = _fill(core, repository, page, start, run_id)
    if following is None and core.settings.rules == "seed":
        for address, copied_at in copied_objects.every(core, repository):
            page.add(address, copied_at)
    folder = f"_lakefs/retention/gc/uncommitted/{run_id}/uncommitted"
    location = ""
    if page.rows or following is not None:
        if core.lost_pages:
            core.lost_pages -= 1
        else:
            store_of(core, repository).put(f"{folder}/{core.writer.new_file_id()}", page.finish())
            location = repository.namespace + folder + ("/" if core.blockstore.type == "s3" else "")
    answer: dict[str, Any] = {"run_id": run_id, "gc_uncommitted_location": location}
    if following is not None:
        answer["continuation_token"] = following.encode()
    return answer


def _fill(core: Core, repository: Repository, page: _Page, start: _Token | None, run_id: str) -> _Token | None:
    """Adds rows until the page is full; returns where the next one begins, None after the last row."""
    ends_at = time.monotonic() + core.settings.page_seconds
    full = False
    for branch in branches.every(core, repository, hidden=True):
        if start is not None and branch.id < start.branch:
            continue
        after = start.path if start is not None and branch.id == start.branch else ""
        for path, address, date in _rows(core, repository, branch.id, after):
            if full or time.monotonic() >= ends_at:
                return _Token(branch.id, path, run_id)
            full = page.add(address, date) and page.written_bytes > core.settings.page_bytes
    return None


def _rows(core: Core, repository: Repository, branch_id: str, start: str) -> Iterator[tuple[str, str, int]]:
    """Path, relative address and time of the staged entries of a branch from this path on."""
    position = staging.encode_path(start)
    while True:
        with core.database.transaction() as database:
            branch = branches.find(core, repository, branch_id)
            if branch is None:
                return
            metarange_id = commits.get(core, repository, branch.commit_id).metarange_id
            part: list[staging.Change] = []
            token, base = branch.staging_token, branch.compacted_base
            for change in staging.changes(core, database, token, metarange_id, base, position):
                if len(part) == _ROWS_READ_AT_ONCE:
                    break
                part.append(change)
        for change in part:
            if change.data is None:
                continue
            entry = decode_entry(change.data)
            address = _relative(repository, entry)
            if address is not None:
                yield staging.decode_path(change.path), address, entry.last_modified
        if len(part) < _ROWS_READ_AT_ONCE:
            return
        position = part[-1].path + b"\0"


def _relative(repository: Repository, entry: Entry) -> str | None:
    if entry.address_type == AddressType.RELATIVE:
        return entry.address
    if entry.address.startswith(repository.namespace):
        return entry.address[len(repository.namespace) :]
    return None
