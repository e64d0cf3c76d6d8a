"""Candidates that may be staged where the server does not list them: found by content, asked for by path."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from lakefs_gc_assets.collection import hidden
from lakefs_gc_assets.collection.eligibility import Kept
from lakefs_gc_assets.collection.hidden import Question
from lakefs_gc_assets.collection.repository import OpenRepository
from lakefs_gc_assets.sources import subtraction
from lakefs_gc_assets.sources.references import References


@dataclass(frozen=True)
class Cleared:
    """Candidates without those that are staged after all, and how many were kept, by reason."""

    candidates: DataFrame
    kept: dict[str, int] = field(default_factory=dict)
    asked: int = 0


def clear(
    candidates: DataFrame,
    references: References,
    repository: OpenRepository,
    heads: Mapping[str, str],
    note: Callable[[str], None],
) -> Cleared:
    """Leaves out candidates that a branch has staged with the content of a committed object.

    Args:
        candidates: address, size and etag at least; used several times, so worth being persisted.
        heads: metarange of each branch's head.
    """
    sizes = pa.array([row.size for row in candidates.select("size").distinct().collect()], pa.int64())
    branches = hidden.branches_by_range(repository.store, heads)
    entries = references.head_entries(sorted(branches), sizes).persist()
    try:
        limit = repository.settings.hidden_suspect_limit
        alike = subtraction.same_content(entries, candidates)
        rows = alike.select("range_id", "path").distinct().limit(limit + 1).collect()
        if not rows:
            return Cleared(candidates)
        questions = [Question(row.range_id, bytes(row.path)) for row in rows]
        answers = hidden.ask(repository.api, repository.namespace, questions[:limit], branches, limit)
        note(f"asked for {answers.asked:,} paths that have the content of a candidate")
        spark = references.spark
        live = spark.createDataFrame([(address,) for address in sorted(answers.live)], "address string")
        staged = candidates.join(F.broadcast(live), "address", "left_semi").select("address")
        kept = {Kept.HIDDEN_STAGED.value: staged.count()}
        cleared = subtraction.without_exactly(candidates, live)
        if answers.unasked or len(questions) > limit:
            known = set(questions[:limit]) - set(answers.unasked)
            asked = spark.createDataFrame(
                [(q.range_id, bytearray(q.path)) for q in known], "range_id string, path binary"
            )
            unknown = entries.join(asked, ["range_id", "path"], "left_anti")
            uncertain = subtraction.same_content(cleared, unknown).select("address").persist()
            kept[Kept.UNCERTAIN.value] = uncertain.count()
            cleared = subtraction.without_exactly(cleared, uncertain)
        return Cleared(cleared, {reason: count for reason, count in kept.items() if count}, answers.asked)
    finally:
        entries.unpersist()
