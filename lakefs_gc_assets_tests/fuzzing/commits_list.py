"""The server's list of prepared commits: CSV that is damaged, or has unexpected columns, quotes and lines."""

import csv
import io
import random

from lakefs_gc_assets.collector.retention import commits
from lakefs_gc_assets.collector.retention.commits import ServerCommits
from lakefs_gc_assets_tests.fuzzing.mutation import hostile_text, mutated
from lakefs_gc_assets_tests.fuzzing.running import Case, Target, outcome

_COLUMNS = ("commit_id", "expired", "metarange_id")


def _built(rng: random.Random) -> bytes:
    columns = _COLUMNS[: rng.choice((2, 3, 3, 3))]
    lines = [",".join(columns)]
    for _ in range(rng.randrange(5)):
        row = (
            rng.randbytes(32).hex(),
            rng.choice(("false", "false", "true")),
            rng.choice(("", rng.randbytes(32).hex())),
        )
        lines.append(",".join(row[: len(columns)]))
    if rng.random() < 0.2:
        lines.insert(rng.randrange(len(lines) + 1), hostile_text(rng, "x,false,y"))
    return "\n".join(lines).encode()


def _rows(data: bytes) -> list[tuple[str, ...]]:
    """Rows by Python's own reader, without empty lines."""
    lines = [row for row in csv.reader(io.StringIO(data.decode(), newline="")) if row]
    head = lines[0]
    at = [head.index(name) for name in _COLUMNS if name in head]
    return [tuple(row[index] for index in at) for row in lines[1:] if row[head.index("expired")] == "false"]


def _case(rng: random.Random) -> Case:
    """All columns are valid text, and a plain list reads as with another reader."""
    data = _built(rng)
    if rng.random() < 0.8:
        data = mutated(rng, data, data)

    def right(found: ServerCommits) -> None:
        columns = [column for column in (found.ids, found.metarange_ids) if column is not None]
        for column in columns:
            column.validate(full=True)
            assert not column.null_count and len(column) == len(found.ids)
        assert len(found.ids) and "" not in found.ids.to_pylist()
        if data.isascii() and not set(data) & set(b'"\r\0\\'):
            ids = [row[0] for row in _rows(data)]
            assert found.ids.to_pylist() == ids

    return Case(len(data), lambda: outcome(lambda: commits.read_server_commits(data, "commits.csv"), right))


TARGETS = (Target("commits-list", _case),)
