"""The server's own list of the commits that retention keeps: started, waited for and read.

The list is a CSV file with the columns commit_id, expired and, since v0.101, metarange_id. Old servers also list
expired commits. It is not trusted alone (`active_commits` is the definition): it can lack commits that must stay.
"""

from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from lakefs_gc_assets.collector.repository import Clock, OpenRepository
from lakefs_gc_assets.errors import CorruptFile, LakeFSError, LogLine, NotFound, NotSupported
from lakefs_gc_assets.lakefs.api.models import LakeFSApi, PreparedCommits
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import fetch

_FIRST_POLL_SECONDS = 0.5
_LONGEST_POLL_SECONDS = 15.0
_ID, _EXPIRED, _METARANGE = "commit_id", "expired", "metarange_id"
_FLAGS = ("true", "false")


@dataclass(frozen=True, slots=True)
class ServerCommits:
    """The commits that the server keeps.

    Attributes:
        file: key of the list, relative to the storage namespace.
        ids: string.
        metarange_ids: string, empty for a commit without objects; None where the server does not state them.
    """

    file: str
    ids: pa.StringArray
    metarange_ids: pa.StringArray | None


def server_commits(repository: OpenRepository, note: LogLine = lambda message: None) -> ServerCommits:
    """Makes the server list its commits, and reads the list.

    Raises:
        LakeFSError: the server refuses, fails, takes too long, or has no rules by now.
        CorruptFile: the list is missing or unreadable.
    """
    namespace = repository.namespace
    prepared = prepare(repository.api, repository.settings, repository.clock, note)
    file = namespace.relative(prepared.location)
    if file is None:
        raise LakeFSError(
            f"prepare_commits wrote to {prepared.location}, which is outside of the repository's {namespace.uri}: "
            "check that repository and object store belong together"
        )
    return read(fetch(repository.store, file), file)


def prepare(
    api: LakeFSApi,
    settings: CollectionSettings,
    clock: Clock,
    note: LogLine = lambda message: None,
) -> PreparedCommits:
    """Makes the server list its commits, in the background where it can. Raises LakeFSError."""
    try:
        task = api.start_prepare_commits()
    except (NotFound, NotSupported) as unknown:
        note(f"prepare_commits cannot be started in the background ({unknown}): making the blocking call")
        return api.prepare_commits()
    deadline = clock.now() + timedelta(seconds=settings.prepare_commits_timeout_seconds)
    pause = _FIRST_POLL_SECONDS
    while not (state := api.prepare_commits_task(task)).completed:
        if clock.now() >= deadline:
            raise LakeFSError(
                f"prepare_commits {task} was not completed after {settings.prepare_commits_timeout_seconds:.0f} s. See "
                "the server's log, or raise collection.prepare_commits_timeout_seconds"
            )
        clock.sleep(pause)
        pause = min(pause * 2, _LONGEST_POLL_SECONDS)
    if state.result is None:
        raise LakeFSError(f"prepare_commits {task} failed: {state.error}. See the server's log")
    return state.result


def read(data: bytes, file: str) -> ServerCommits:
    """Reads a list. Raises CorruptFile."""
    try:
        data.decode()
        table = csv.read_csv(
            pa.BufferReader(data),
            # Threads that outlive a failed read can crash the process.
            read_options=csv.ReadOptions(use_threads=False),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys((_ID, _EXPIRED, _METARANGE), pa.string()), strings_can_be_null=False
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise CorruptFile(file, "commits", f"cannot be read as CSV: {error}") from None
    if len(set(table.column_names)) != table.num_columns:
        raise CorruptFile(file, "commits", f"its columns are {', '.join(table.column_names)}: one is there twice")
    if not {_ID, _EXPIRED} <= set(table.column_names):
        raise CorruptFile(file, "commits", f"its columns are {', '.join(table.column_names)}")
    if pc.any(pc.invert(pc.is_in(table[_EXPIRED], value_set=pa.array(_FLAGS)))).as_py():
        raise CorruptFile(file, "commits", f"{_EXPIRED} is something else than true or false")
    if pc.any(pc.equal(table[_ID], "")).as_py():
        raise CorruptFile(file, "commits", f"a {_ID} is empty")
    kept = table.filter(pc.equal(table[_EXPIRED], "false"))
    if not kept.num_rows:
        raise CorruptFile(file, "commits", "it lists no commit that stays, and the head of every branch does")

    def column(name: str) -> pa.StringArray:
        return pa.concat_arrays(kept[name].chunks)

    return ServerCommits(file, column(_ID), column(_METARANGE) if _METARANGE in table.column_names else None)
