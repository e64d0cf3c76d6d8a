"""Every call that the collector makes to a server, through its own port, and the files that these calls lead to, in a
form that can be compared between two servers.
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import pyarrow.parquet as pq

from lakefs_gc_assets.errors import LakeFSError
from lakefs_gc_assets.lakefs.api.models import Commit, DiffEntry, LakeFSApi, ObjectStats
from lakefs_gc_assets.lakefs.formats.ranges import read_metarange
from lakefs_gc_assets.lakefs.formats.records import DATA_END, DATA_START
from lakefs_gc_assets.lakefs.formats.sstables import fields, read_layout, read_table
from lakefs_gc_assets_tests.real.calls import Server

_PROPERTIES = ("count", "entity", "max_key", "min_key", "schema_name", "type", "rocksdb.compression")
"""Properties that the collector reads, or could read."""
_TIME_FIELDS = {"commit": 4, "": 2}
"""The Timestamp field by kind of record; a record without an entity is an object's."""


def tables(server: Server, namespace: str, metarange_id: str) -> dict[str, Any]:
    """A metarange and its ranges: properties, and the fields of records in order of their content.

    Ids of commits are in no common order, and paths are split into ranges by other hashes, so ranges are joined.
    """
    folder = server.folder() / namespace / "_lakefs"
    metarange = (folder / metarange_id).read_bytes()
    properties = _properties(server, metarange)
    entity = properties.get("entity")
    records = read_metarange(metarange, metarange_id, entity=entity)
    ranges = [(folder / each.id).read_bytes() for each in records]
    if "min_key" in properties:
        is_first = bool(records) and properties["min_key"] == records[0].max_key.decode("utf-8", "backslashreplace")
        properties["min_key"] = f"is the last key of the first range: {is_first}"
    kinds = {str({**_properties(server, each), "count": "", "min_key": "", "max_key": ""}) for each in ranges}
    return {
        "metarange": {**properties, "count": "", "max_key": ""},
        "kinds of ranges": sorted(kinds),
        "records": sorted(
            (_record(server, entity or "", value) for each in ranges for value in _values(each)), key=str
        ),
    }


def _properties(server: Server, data: bytes) -> dict[str, str]:
    known = {name.decode(): value for name, value in read_layout(data, "a table").properties.items()}
    return {
        name: server.comparable(known[name].decode("utf-8", "backslashreplace"), call="files")
        for name in _PROPERTIES
        if name in known and not ("key" in name and "entity" in known)
    }


def _values(data: bytes) -> list[bytes]:
    table = read_table(data, "a table")
    return [bytes(table.buffer[row[DATA_START] : row[DATA_END]]) for row in table.values]


def _record(server: Server, entity: str, message: bytes) -> list[Any]:
    """Number and value by present field; a time is only reported as present."""
    shown: list[Any] = []
    for tag, _, value in fields(message):
        if tag == _TIME_FIELDS.get(entity):
            shown.append([tag, "time"])
        elif isinstance(value, bytes):
            shown.append([tag, server.comparable(value.decode("utf-8", "backslashreplace"), call="files")])
        else:
            shown.append([tag, value])
    return sorted(shown, key=lambda field: (field[0], str(field[1])))


def uncommitted(server: Server, location: str) -> dict[str, Any]:
    """The files of a prepare_uncommited call: their schema, and all rows in order."""
    folder = server.folder() / location.removeprefix("s3://")
    files = [pq.ParquetFile(path) for path in sorted(folder.iterdir())]
    columns = [
        (chunk.path_in_schema, chunk.physical_type, chunk.compression, column.max_definition_level)
        for file in files
        for number in range(file.metadata.num_columns)
        for chunk, column in [(file.metadata.row_group(0).column(number), file.metadata.schema.column(number))]
    ]
    rows = [row for file in files for row in file.read().to_pylist()]
    return {
        "columns": columns,
        "dates are numbers": {type(row["creation_date"]).__name__ for row in rows},
        "addresses": sorted(server.comparable(row["physical_address"], call="files") for row in rows),
    }


def prepared_commits(server: Server, location: str) -> dict[str, Any]:
    """The list of commits that one call wrote, without its order."""
    text = (server.folder() / location.removeprefix("s3://")).read_text()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    return {"header": rows[0], "rows": sorted(server.comparable(row, call="files") for row in rows[1:])}


_NAMESPACE = "lake/repo"
_MISSING = "0" * 64
_PREFIX = "a/"
_MOST_QUESTIONS = 10_000


def look(server: Server, when: str) -> None:
    """Makes every call; comparable answers are in `server.collector.answers`, by moment and call."""
    _Look(server.collector, when).ask_all()


class _Look:
    def __init__(self, server: Server, when: str) -> None:
        self._server, self._when = server, when
        self._api: LakeFSApi = server.api

    def ask_all(self) -> None:
        api = self._api
        self._ask("repository", api.repository)
        self._ask("repositories", api.repositories)
        self._ask("grace period", lambda: api.grace_period().total_seconds())
        self._ask("rules", api.retention_rules)
        branches, tags = self._ask("branches", api.branches), self._ask("tags", api.tags)
        for name in (*(branch.id for branch in branches), "none"):
            self._ask(f"first change of {name}", api.first_change, name)
            self._ask(f"changes of {name}", self._changes, name)
            objects = self._ask_objects(name, name)
            self._ask_stats(name, name, objects)
        heads = {branch.id: branch.commit_id for branch in branches} | {f"tag {tag.id}": tag.commit_id for tag in tags}
        commits = {commit.id: commit for commit in self._commits(heads)}
        for number, (id_, commit) in enumerate(commits.items()):
            objects = self._ask_objects(f"commit {number}", id_)
            self._ask_stats(f"commit {number}", id_, objects[:1])
            if commit.metarange_id:
                self._keep(f"entries of commit {number}", tables(self._server, _NAMESPACE, commit.metarange_id))
        self._ask("missing commit", api.commit, _MISSING)
        self._ask_objects("missing commit", _MISSING)
        self._ask_stats("missing commit", _MISSING, ())
        self._uncommitted()
        self._dump()
        self._prepared_commits()

    def _commits(self, heads: dict[str, str]) -> Iterator[Commit]:
        """Every commit that is reached, in an order that does not depend on ids."""
        found: dict[str, str] = {}
        for name, id_ in heads.items():
            found.setdefault(id_, f"commit of {name}")
        for id_, name in (open_ := list(found.items())):
            commit = self._ask(name, self._api.commit, id_)
            yield commit
            for number, parent in enumerate(commit.parents, 1):
                if parent not in found:
                    found[parent] = f"parent {number} of {name}"
                    open_.append((parent, found[parent]))

    def _ask_objects(self, name: str, reference: str) -> Sequence[ObjectStats]:
        self._ask(f"objects of {name} below {_PREFIX}", self._listed, reference, _PREFIX)
        listed: Sequence[ObjectStats] = self._ask(f"objects of {name}", self._listed, reference, "")
        return listed

    def _ask_stats(self, name: str, reference: str, objects: Sequence[ObjectStats]) -> None:
        for path in (*(stats.path for stats in objects), "none"):
            self._ask(f"stat {path} of {name}", self._api.stat, reference, path)

    def _changes(self, branch: str) -> list[DiffEntry]:
        return list(self._api.changes(branch))

    def _listed(self, reference: str, prefix: str) -> list[ObjectStats]:
        listed: list[ObjectStats] = []
        more = True
        while more:
            page = self._api.list_objects(reference, listed[-1].path if listed else "", prefix)
            listed += page.objects
            more = page.more
        return listed

    def _uncommitted(self) -> None:
        page = self._ask("uncommitted", self._api.prepare_uncommitted, None)
        assert page.continuation_token is None, "the scene has one page"
        if page.location:
            self._keep("uncommitted file", uncommitted(self._server, page.location))

    def _dump(self) -> None:
        task = self._api.start_refs_dump()
        dump = self._until(lambda: self._api.refs_dump(task), "done")
        # Equal tables may have other ids on a real server: it writes metadata of commits in no order.
        self._keep("refs dump", [dump.done, dump.error])
        for name in ("commits_meta_range_id", "branches_meta_range_id", "tags_meta_range_id"):
            self._keep(f"dumped {name}", tables(self._server, _NAMESPACE, getattr(dump, name)))

    def _prepared_commits(self) -> None:
        task = self._api.start_prepare_commits()
        state = self._until(lambda: self._api.prepare_commits_task(task), "completed")
        self._keep("commits that stay, made in the background", state)
        made = self._ask("commits that stay", self._api.prepare_commits)
        for result in (state.result, made):
            if result:
                name = "list of commits that stay" + (" in the background" if result is state.result else "")
                self._keep(name, prepared_commits(self._server, result.location))

    @staticmethod
    def _until(question: Callable[[], Any], done: str) -> Any:
        for _ in range(_MOST_QUESTIONS):
            if getattr(answer := question(), done):
                return answer
        raise AssertionError(f"a task does not end: {answer}")

    def _ask(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Keeps the answer, or the kind of refusal; returns the answer, or nothing."""
        try:
            answer = call(*arguments)
        except LakeFSError as refusal:
            self._keep(name, f"raises {type(refusal).__name__}")
            return ()
        self._keep(name, answer)
        return answer

    def _keep(self, name: str, answer: Any) -> None:
        name = f"{self._when}: {name}"
        assert name not in self._server.answers, f"two answers are named {name!r}"
        self._server.answers[name] = self._server.comparable(_plain(answer), call=name)


def _plain(value: Any) -> Any:
    """A value of the port as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(part) for name, part in asdict(value).items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    return sorted(value) if isinstance(value, set) else value
