"""How long it takes to learn what retention keeps in a repository of a million commits.

Usage: python -m benchmarks.retention [--commits N]. Writes a refs dump of that many commits (a main line with merges,
branches, dangling lines), an empty file for each metarange, as old as its commit, and the list that a server would
prepare, in a temporary folder; then reads rules, dump, list and times of files, and computes the live definition, as
each run does. The time for writing is told apart.
"""

import argparse
import hashlib
import os
import random
import resource
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.retention.active_commits import Graph, active_commits, dated_by_files
from lakefs_gc_assets.collector.retention.rules import Policy, effective
from lakefs_gc_assets.extensions.playground.embedded import formats
from lakefs_gc_assets.extensions.playground.embedded.commits import ServedCommit, record_value
from lakefs_gc_assets.extensions.playground.embedded.formats import table
from lakefs_gc_assets.lakefs.api.models import PrepareCommitsTask, PreparedCommits, RefsDump, RetentionRules
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.scripted import NOW, Script, ScriptedApi, opened

_PER_FILE = 50_000
_BRANCHES = 200
_DAYS = 1000
_SETTINGS = CollectionSettings(wait_before_dump_seconds=0)
_LIST = "_lakefs/retention/gc/commits/run_id=benchmark/commits.csv"
_RULES = RetentionRules(21, {"main": 28, "branch-7": 7})


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _metarange(commit: str) -> str:
    return _digest("metarange of " + commit)


def _history(count: int) -> Iterator[tuple[str, int, tuple[str, ...], str]]:
    """Id, date, parents and branch by commit; each branch is a line, and every tenth commit of main is a merge."""
    chance = random.Random(7)
    heads: dict[str, str] = {}
    first = int((NOW - timedelta(days=_DAYS)).timestamp())
    for number in range(count):
        branch = "main" if chance.random() < 0.6 else f"branch-{chance.randrange(_BRANCHES)}"
        commit = _digest(f"commit {number}")
        parents = tuple(filter(None, [heads.get(branch) or heads.get("main")]))
        if branch == "main" and number % 10 == 0 and heads:
            parents += (heads[chance.choice(list(heads))],)
        yield commit, first + number * _DAYS * 86_400 // count, parents, branch
        if chance.random() < 0.999 or branch == "main":
            heads[branch] = commit
        else:
            heads.pop(branch, None)


def _put_table(store: LocalStore, entity: str, records: Sequence[tuple[bytes, bytes]]) -> str:
    parts = [records[at : at + _PER_FILE] for at in range(0, len(records), _PER_FILE)]
    named = []
    for part in parts:
        name = _put(store, "ranges", entity, part)
        data = formats.range_data(part[0][0], part[-1][0], 0, len(part))
        named.append((part[-1][0], record_value(name.encode(), data)))
    return _put(store, "metaranges", entity, named)


def _put(store: LocalStore, kind: str, entity: str, records: Sequence[tuple[bytes, bytes]]) -> str:
    bounds = {"min_key": records[0][0].decode(), "max_key": records[-1][0].decode()} if records else {}
    properties = {"type": kind, "entity": entity, "count": str(len(records)), "min_key": "", "max_key": "", **bounds}
    data = table(records, properties)
    name = hashlib.sha256(data).hexdigest()
    store.put(f"_lakefs/{name}", data)
    return name


def _make_metaranges(folder: Path, dates: Iterable[tuple[str, int]]) -> None:
    """Makes empty files with these names and modification times, in seconds since 1970."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        for name, moment in dates:
            os.mknod(name, dir_fd=opened)
            os.utime(name, (moment, moment), dir_fd=opened)
    finally:
        os.close(opened)


def _written(folder: Path, count: int) -> ScriptedApi:
    """A server whose dump, list and metaranges are in a folder."""
    store = LocalStore(folder)
    heads, records, lines = {}, [], ["commit_id,expired,metarange_id"]
    young = int((NOW - timedelta(days=20)).timestamp())
    for commit, date, parents, branch in _history(count):
        heads[branch] = commit
        metarange = _metarange(commit)
        kept = ServedCommit(commit, "someone", "work", metarange, date, {"key": "value"}, tuple(parents), 1, 1)
        records.append((commit.encode(), record_value(commit.encode(), kept.encode())))
        if date > young and branch == "main":
            lines.append(f"{commit},false,{metarange}")
    (folder / "_lakefs").mkdir()
    _make_metaranges(folder / "_lakefs", ((_metarange(commit), date) for commit, date, _, _ in _history(count)))
    records.sort()
    branches = [
        (name.encode(), record_value(name.encode(), formats.branch_data(name, head)))
        for name, head in sorted(heads.items())
    ]
    dump = RefsDump(
        True,
        None,
        _put_table(store, "commit", records),
        _put_table(store, "branch", branches),
        _put_table(store, "tag", []),
    )
    store.put(_LIST, "\n".join([*lines, ""]).encode())
    prepared = PreparedCommits("benchmark", f"s3://bucket/repo/{_LIST}")
    return ScriptedApi(
        dumps=Script(dump),
        rules=Script(_RULES),
        prepare_commits_tasks=Script(PrepareCommitsTask(True, None, prepared)),
    )


@contextmanager
def _timed(what: str) -> Iterator[None]:
    started, worked = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - started, time.process_time() - worked
    print(f"{what:<60} {wall:8.2f} s, {cpu:8.2f} s of CPU", flush=True)


def main() -> None:
    """Prints one line for each part of the work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1_000_000)
    count: int = parser.parse_args().commits
    with tempfile.TemporaryDirectory(prefix="lakefs-gc-benchmark-") as folder:
        with _timed(f"not part of a run: write a dump of {count:,} commits"):
            repository = opened(_written(Path(folder), count), LocalStore(Path(folder)), settings=_SETTINGS)
        for which in ("first time, machine code is loaded or compiled", "again"):
            print(which)
            with _timed("  read the refs dump, prove it complete"):
                dump = commits.complete_dump(repository, NOW)
            with _timed("  main parents, heads, dangling commits"):
                graph = Graph.from_commits(dump.commits, dump.branches)
            rules = effective(_RULES, Policy(), dump.branches)
            with _timed("  when metaranges were written"):
                written = retention.written_times(repository, dump.commits)
            assert rules is not None and written is not None
            with _timed("  dates by files and parents"):
                dated = dated_by_files(graph, written, NOW)
            with _timed("  active commits"):
                active_commits(dated, rules, NOW)
        with _timed("everything that a run does: dump, rules, list, times, union"):
            found = retention.live_definition(repository, NOW, NOW)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{found.counts['commits_known']:,} commits: {found.counts['commits_active']:,} active, "
        f"{len(found.expired_metaranges):,} expired metaranges, {len(found.differences):,} differences from the list; "
        f"peak {peak:,.0f} MiB with the writing"
    )


if __name__ == "__main__":
    main()
