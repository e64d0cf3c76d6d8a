"""Candidates that may be staged where the server does not list them: found by content, asked for by path."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from lakefs_gc_assets.collection import digests, hidden
from lakefs_gc_assets.collection.eligibility import PLAIN_ETAG, Kept
from lakefs_gc_assets.collection.hidden import Question
from lakefs_gc_assets.collection.repository import OpenRepository
from lakefs_gc_assets.collection.tables import HEAD_ENTRIES
from lakefs_gc_assets.sources import subtraction, tasks
from lakefs_gc_assets.sources.references import References

_SAMPLE = 16
_SAMPLED_BYTES = 1024 * 1024
_LARGE_SAMPLE = 2
_QUESTIONS = pa.schema([HEAD_ENTRIES.field("range_id"), HEAD_ENTRIES.field("path")])


@dataclass(frozen=True)
class Cleared:
    """Candidates without those that are staged after all, and how many were kept, by reason.

    Attributes:
        asked: how many paths were asked for.
        live: every address that these paths have.
    """

    candidates: DataFrame
    kept: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    live: frozenset[str] = frozenset()


def clear(
    candidates: DataFrame,
    references: References,
    repository: OpenRepository,
    heads: Mapping[str, str],
    note: Callable[[str], None],
) -> Cleared:
    """Leaves out candidates that a branch has staged with the content of a committed object.

    Args:
        candidates: address, size and etag at least, and `key` where an object lies elsewhere than at its address; used
            several times, so worth being persisted.
        heads: metarange of each branch's head.
    """
    sizes = pa.array([row.size for row in candidates.select("size").distinct().collect()], pa.int64())
    branches = hidden.branches_by_range(repository.store, heads)
    entries = references.head_entries(sorted(branches), sizes).persist()
    contents = known_contents(candidates, entries, repository, note).persist()
    try:
        limit = repository.settings.hidden_suspect_limit
        alike = subtraction.same_content(entries, contents)
        rows = alike.select("range_id", "path").distinct().limit(limit + 1).collect()
        if not rows:
            return Cleared(candidates)
        questions = [Question(row.range_id, bytes(row.path)) for row in rows]
        answers = hidden.ask(repository.api, repository.namespace, questions[:limit], branches, limit)
        note(f"asked for {answers.asked:,} paths that have the content of a candidate")
        spark = references.spark
        live = tasks.of_addresses(spark, answers.live)
        staged = subtraction.among_exactly(candidates, live, len(answers.live))
        kept = {Kept.HIDDEN_STAGED.value: staged.count()}
        cleared = subtraction.without_exactly(candidates, live, len(answers.live))
        if answers.unasked or len(questions) > limit:
            known = set(questions[:limit]) - set(answers.unasked)
            asked = pa.Table.from_pylist([asdict(question) for question in known], _QUESTIONS)
            unknown = entries.join(tasks.of_table(spark, asked), ["range_id", "path"], "left_anti")
            uncertain = subtraction.same_content(subtraction.without_exactly(contents, live), unknown).select("address")
            kept[Kept.UNCERTAIN.value] = uncertain.count()
            cleared = subtraction.without_exactly(cleared, uncertain)
        kept = {reason: count for reason, count in kept.items() if count}
        return Cleared(cleared, kept, answers.asked, answers.live)
    finally:
        entries.unpersist()
        contents.unpersist()


def known_contents(
    candidates: DataFrame, entries: DataFrame, repository: OpenRepository, note: Callable[[str], None]
) -> DataFrame:
    """Address, size and ETag of candidates, where the ETag is null or the MD5 of the content.

    Where the store gives no ETags, or a sample shows that they are something else, candidates that have the size of an
    entry are read.
    """
    key = F.col("key" if "key" in candidates.columns else "address").alias("key")
    contents = candidates.select("address", "size", "etag", key)
    # Small ones first, and of these at random: where all are large, a few of the smallest.
    plain = contents.where(F.col("etag").rlike(PLAIN_ETAG) & (F.col("size") > 0))
    sample = plain.orderBy(F.greatest("size", F.lit(_SAMPLED_BYTES)), F.xxhash64("address")).limit(_SAMPLE).collect()
    small = [row for row in sample if row.size <= _SAMPLED_BYTES] or sample[:_LARGE_SAMPLE]
    readable = [(row.key, row.etag) for row in small if row.size <= digests.LARGEST_READ]
    if len(readable) < len(small) or not digests.etags_are_digests(repository.store, readable):
        note("the store's ETags are no MD5 of the content: candidates of the size of a committed object are read")
        contents = contents.withColumn("etag", F.lit(None).cast("string"))
    unknown = contents.where(F.col("etag").isNull() & F.col("size").between(1, digests.LARGEST_READ))
    suspects = unknown.join(entries.select("size").distinct(), "size", "left_semi").select("key")
    opener = repository.opener

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = batch.column("key").to_pylist()
            found = [digests.content_digest(opener.open(), key) for key in keys]
            yield pa.RecordBatch.from_arrays(
                [pa.array(keys, pa.string()), pa.array(found, pa.string())], schema=digests.DIGESTS
            )

    computed = suspects.mapInArrow(read, from_arrow_schema(digests.DIGESTS))
    return contents.join(computed, "key", "left").select("address", "size", F.coalesce("digest", "etag").alias("etag"))
