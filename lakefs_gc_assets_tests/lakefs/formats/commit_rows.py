"""Columns of commits as rows, for comparisons, without their generation."""

from lakefs_gc_assets.lakefs.api.models import Commit
from lakefs_gc_assets.lakefs.formats import refs
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns


def rows(columns: CommitColumns) -> list[Commit]:
    parents, offsets = columns.parents.to_pylist(), columns.parent_offsets.tolist()
    return [
        Commit(id_, metarange_id, tuple(parents[start:end]), seconds, version)
        for id_, metarange_id, seconds, version, start, end in zip(
            columns.ids.to_pylist(),
            columns.metarange_ids.to_pylist(),
            columns.seconds.tolist(),
            columns.versions.tolist(),
            offsets[:-1],
            offsets[1:],
            strict=True,
        )
    ]


def read_commits(data: bytes, file: str, *, expected: RangeRecord | None = None) -> list[Commit]:
    return rows(refs.read_commits(data, file, expected=expected))
