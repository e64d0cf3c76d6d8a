"""Data for garbage collection: retention rules, the commits that they keep, refs dumps, and uncommitted data.

A refs dump stores commits, branches and tags as three tables. It is not a snapshot: they are read one after the other.
Uncommitted data are parquet files with address and time of every staged entry, page by page.
"""

import base64
import csv
import io
import itertools
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.extensions.playground.embedded import branches, commits, formats, repositories
from lakefs_gc_assets.extensions.playground.embedded.commits import ServedCommit
from lakefs_gc_assets.extensions.playground.embedded.core import ApiFailure, Core, bad_request, not_found
from lakefs_gc_assets.extensions.playground.embedded.formats import Entry, decode_entry, retention_rules
from lakefs_gc_assets.extensions.playground.embedded.http import checked_object
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository, store_of
from lakefs_gc_assets.lakefs.addresses import AddressType

RULES_KEY = "_lakefs/retention/gc/rules/config.json"
"""A protobuf file in spite of its name; empty if there are no rules."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Days of retention, by default and by branch."""

    default_days: int
    branches: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """The form that the API returns: `branches` is null if there are none."""
        branches = [{"branch_id": branch, "retention_days": days} for branch, days in self.branches.items()]
        return {"default_retention_days": self.default_days, "branches": branches or None}


def get_rules(core: Core, repository: ServedRepository) -> Rules:
    """The rules of a repository. Raises ApiFailure 404 if it has none."""
    with core.database.transaction() as database:
        row = database.execute(
            "SELECT default_days, branches FROM retention_rules WHERE repository = ?", (repository.id,)
        ).fetchone()
    if row is None:
        raise not_found()
    return Rules(row[0], json.loads(row[1]))


def put_rules(core: Core, repository: ServedRepository, body: Any) -> None:
    """Stores the rules, also as a file; all zero removes them. Raises ApiFailure 400 for invalid rules."""
    for name in ("default_retention_days", "branches"):
        if not isinstance(body, dict) or name not in body:
            raise bad_request(
                "request body has an error: doesn't match schema #/components/schemas/GarbageCollectionRules: "
                f'Error at "/{name}": property "{name}" is missing'
            )
    checked_object(body, "default_retention_days")
    branches = body["branches"]
    if branches is None:
        raise bad_request('request body has an error: Error at "/branches": Value is not nullable')
    if not isinstance(branches, list):
        raise bad_request('request body has an error: Error at "/branches": value must be an array')
    checked = [checked_object(rule, "branch_id", "retention_days") for rule in branches]
    rules = Rules(body["default_retention_days"], {rule["branch_id"]: rule["retention_days"] for rule in checked})
    content = retention_rules(rules.default_days, rules.branches)
    with core.database.transaction() as database:
        store_of(core, repository).put(RULES_KEY, content)
        database.execute("DELETE FROM retention_rules WHERE repository = ?", (repository.id,))
        if content:
            database.execute(
                "INSERT INTO retention_rules VALUES (?, ?, ?)",
                (repository.id, rules.default_days, json.dumps(rules.branches)),
            )


_RETENTION_FOLDER = "_lakefs/retention/gc"
COMMITS_HEADER = ("commit_id", "expired", "metarange_id")


def starting_points(heads: Mapping[str, str], all_commits: Iterable[ServedCommit]) -> list[tuple[str, str | None]]:
    """Commit and branch of each head, and commit and None of each other leaf; sorted by commit, then branch."""
    commits = list(all_commits)
    parents = {commit.main_parent for commit in commits}
    leaves = {commit.id for commit in commits} - parents - set(heads.values())
    points: list[tuple[str, str | None]] = [(commit_id, branch) for branch, commit_id in heads.items()]
    points += [(leaf, None) for leaf in leaves]
    return sorted(points, key=lambda point: (point[0], point[1] or ""))


def active_commits(
    heads: Mapping[str, str], all_commits: Iterable[ServedCommit], rules: Rules, now: datetime
) -> set[str]:
    """Ids of the commits that the reference server keeps, including its known defect.

    The walk from a starting point stops at a commit that another walk passed with the same or a longer retention. It
    stops before it asks whether this walk would keep that commit. So the server can lose a commit that was head of a
    young branch. A collector must not rely on this list alone; without the defect, this server could not test that.

    Args:
        heads: commit by branch, hidden branches included.
    """
    commits = {commit.id: commit for commit in all_commits}
    active: set[str] = set()
    passed: dict[str, datetime] = {}
    for commit_id, branch in starting_points(heads, commits.values()):
        days = rules.default_days if branch is None else rules.branches.get(branch, rules.default_days)
        threshold = now - timedelta(days=days)
        date = commits[commit_id].creation_date
        following: str | None = commit_id
        if branch is not None:
            active.add(commit_id)
            following = commits[commit_id].main_parent
        while following is not None and following in commits:
            if following in passed and passed[following] <= threshold:
                break
            if date > threshold.timestamp():
                active.add(following)
            passed[following] = threshold
            date, following = commits[following].creation_date, commits[following].main_parent
    return active


def prepare_commits(core: Core, repository: ServedRepository) -> dict[str, Any]:
    """Writes the list of retained commits; returns its location. Raises ApiFailure 404 if there are no rules."""
    try:
        rules = get_rules(core, repository)
    except ApiFailure as failure:
        raise ApiFailure(failure.status, f"get gc rules: {failure.message}") from None
    with core.database.transaction():
        heads = {branch.id: branch.commit_id for branch in branches.every(core, repository, hidden=True)}
        all_commits = commits.every(core, repository)
    active = active_commits(heads, all_commits, rules, core.clock.now())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COMMITS_HEADER)
    writer.writerows((commit.id, "false", commit.metarange_id) for commit in all_commits if commit.id in active)
    run_id = core.writer.new_run_id()
    key = f"{_RETENTION_FOLDER}/commits/run_id={run_id}/commits.csv"
    store_of(core, repository).put(key, text.getvalue().encode())
    return {
        "run_id": run_id,
        "gc_commits_location": repository.namespace + key,
        "gc_addresses_location": f"{repository.namespace}{_RETENTION_FOLDER}/addresses/",
        "gc_commits_presigned_url": repositories.presigned_url(core, repository, key, "GET"),
    }


_DUMPED_SCHEMAS = {"commit": "CommitData", "branch": "BranchData", "tag": "TagData"}


def dump_refs(core: Core, repository: ServedRepository) -> dict[str, Any]:
    """Writes the three tables; returns the ids of their metaranges."""
    dumped_commits = ((commit.id, commit.id, commit.encode()) for commit in commits.every(core, repository))
    commits_id = _write_dump(core, repository, "commit", dumped_commits)
    time.sleep(core.settings.dump_pause_seconds)
    dumped_branches = (
        (branch.id, branch.commit_id, formats.branch_data(branch.id, branch.commit_id))
        for branch in branches.every(core, repository, hidden=True)
    )
    branches_id = _write_dump(core, repository, "branch", dumped_branches)
    time.sleep(core.settings.dump_pause_seconds)
    dumped_tags = (
        (tag["id"], tag["commit_id"], formats.tag_data(tag["id"], tag["commit_id"]))
        for tag in branches.every_tag(core, repository)
    )
    return {
        "commits_meta_range_id": commits_id,
        "branches_meta_range_id": branches_id,
        "tags_meta_range_id": _write_dump(core, repository, "tag", dumped_tags),
    }


def _write_dump(core: Core, repository: ServedRepository, entity: str, rows: Iterable[tuple[str, str, bytes]]) -> str:
    records = sorted((key.encode("utf-8", "surrogateescape"), identity.encode(), data) for key, identity, data in rows)
    properties = {"entity": entity, "schema_name": f"io.treeverse.lakefs.graveler.{_DUMPED_SCHEMAS[entity]}"}
    if entity == "branch":
        properties["schema_definition"] = formats.branch_schema()
    return commits.write_metarange(core, repository, records, more_properties=properties)


UNCOMMITTED_SCHEMA = pa.schema(
    [
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("creation_date", pa.int64(), nullable=False),
    ]
)
"""Address relative to the storage namespace, and last modification in seconds since 1970 UTC."""

_ROWS_READ_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class _Token:
    """Start of the next page; its encoded `key` is always empty."""

    branch: str
    path: str
    run_id: str

    def encode(self) -> str:
        text = json.dumps(
            {"branch": self.branch, "path": self.path, "run_id": self.run_id, "key": ""},
            separators=(",", ":"),
            ensure_ascii=False,
        )
        # As Go does it with bytes that are not UTF-8: the next page skips entries.
        return base64.b64encode(re.sub("[\ud800-\udfff]", r"\\ufffd", text).encode()).decode()


def _decode_token(token: str) -> _Token:
    try:
        content = json.loads(base64.b64decode(token, validate=True))
        return _Token(str(content["branch"]), str(content["path"]), str(content["run_id"]))
    except (ValueError, KeyError, TypeError):
        raise bad_request("invalid continuation token") from None


@dataclass(slots=True)
class _Page:
    """The file being written, with a row group for every `check_rows` rows."""

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
                UNCOMMITTED_SCHEMA,
                compression="gzip",
                compression_level=1,  # the usual level takes as long as all else that a page does
                use_dictionary=["physical_address"],
                version="1.0",
            )
        return self._writer

    def add(self, address: str, date: int) -> bool:
        """Adds a row; returns True if it completed a row group, so that the size should be checked."""
        self._addresses.append(address)
        self._dates.append(date)
        self.rows += 1
        if len(self._addresses) < self.check_rows:
            return False
        self._flush()
        return True

    def _flush(self) -> None:
        if self._addresses:
            self._open().write_table(pa.table([self._addresses, self._dates], schema=UNCOMMITTED_SCHEMA))
            self._addresses, self._dates = [], []

    @property
    def written_bytes(self) -> int:
        return self._sink.tell()

    def finish(self) -> bytes:
        self._flush()
        self._open().close()
        return self._sink.getvalue()


def prepare_uncommitted(core: Core, repository: ServedRepository, continuation_token: str | None) -> dict[str, Any]:
    """Writes the next page; returns run id, location and, except for the last page, a continuation token.

    The location is empty if no file was written. Raises ApiFailure 400 for an invalid token.
    """
    start = _decode_token(continuation_token) if continuation_token else None
    run_id = start.run_id if start else core.writer.new_run_id()
    page = _Page(core.settings.page_check_rows)
    following = _fill(core, repository, page, start, run_id)
    if following is None and core.settings.rules == "seed":
        for address, copied_at in repositories.remembered_copies(core, repository):
            page.add(address, copied_at)
    folder = f"_lakefs/retention/gc/uncommitted/{run_id}/uncommitted"
    location = ""
    if page.rows or following is not None:
        store_of(core, repository).put(f"{folder}/{core.writer.new_file_id()}", page.finish())
        location = repository.namespace + folder + ("/" if core.blockstore.type == "s3" else "")
    answer: dict[str, Any] = {"run_id": run_id, "gc_uncommitted_location": location}
    if following is not None:
        answer["continuation_token"] = following.encode()
    return answer


def _fill(core: Core, repository: ServedRepository, page: _Page, start: _Token | None, run_id: str) -> _Token | None:
    """Adds rows until the page is full; returns the start of the next page, or None after the last row."""
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


def _rows(core: Core, repository: ServedRepository, branch_id: str, start: str) -> Iterator[tuple[str, str, int]]:
    """Path, relative address and time of a branch's staged entries, from this path on."""
    position = branches.encode_path(start)
    while True:
        with core.database.transaction() as database:
            branch = branches.find(core, repository, branch_id)
            if branch is None:
                return
            part = list(
                itertools.islice(
                    branches.staged_changes(core, database, repository, branch, position), _ROWS_READ_AT_ONCE
                )
            )
        for change in part:
            if change.record is None:
                continue
            entry = decode_entry(change.record[2])
            address = _relative(repository, entry)
            if address is not None:
                yield branches.decode_path(change.path), address, entry.last_modified
        if len(part) < _ROWS_READ_AT_ONCE:
            return
        position = part[-1].path + b"\0"


def _relative(repository: ServedRepository, entry: Entry) -> str | None:
    if entry.address_type == AddressType.RELATIVE:
        return entry.address
    if entry.address.startswith(repository.namespace):
        return entry.address[len(repository.namespace) :]
    return None
