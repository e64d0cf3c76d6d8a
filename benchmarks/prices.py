"""What a run's requests cost at list prices, and the least that they could.

Prices are a table to be changed: whoever pays others puts theirs in. Storage, traffic, machines and what the lakeFS
server asks of the bucket itself are no part of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.counting import Counts, pages
from benchmarks.shapes import Shape

_KEYS_OF_A_DELETE = 1000


@dataclass(frozen=True)
class Prices:
    """List prices of requests, US dollars for a thousand.

    Attributes:
        source: where they are from, and of when.
    """

    source: str
    lists: float
    gets: float
    puts: float
    deletes: float


S3_STANDARD = Prices(
    source="Amazon S3 pricing page, requests of S3 Standard in us-east-1, as of November 2026",
    lists=0.005,
    gets=0.0004,
    puts=0.005,
    deletes=0.0,
)
"""PUT, COPY, POST and LIST are one price there; HEAD is billed as GET; DELETE is free."""


def least(listed: int, files: int, deleted: int) -> Counts:
    """The fewest requests that could do what a run does: list, read and delete, and keep no record of it.

    Args:
        listed: objects that are listed, 1,000 in a request.
        files: ranges, metaranges and files of uncommitted data that are read, each in one.
        deleted: candidates that are deleted, 1,000 in a request.
    """
    return Counts(lists=pages(listed), gets=files, deletes=-(-deleted // _KEYS_OF_A_DELETE))


def least_of_clean(shape: Shape) -> Counts:
    """The least for a clean run with sweep of a generated repository, where each commit has a metarange of its own."""
    return least(shape.objects, shape.ranges + shape.commits + bool(shape.uncommitted), shape.garbage)


def cost(counts: Counts, prices: Prices = S3_STANDARD) -> Mapping[str, float]:
    """US dollars by kind of request."""
    kinds = {"lists": prices.lists, "gets": prices.gets, "puts": prices.puts, "deletes": prices.deletes}
    return {kind: getattr(counts, kind) * price / 1000 for kind, price in kinds.items()}


def table(made: Counts, possible: Counts | None = None, prices: Prices = S3_STANDARD) -> Iterator[str]:
    """What the requests of a run cost, in lines, beside those of the least possible."""
    yield f"  requests at list prices ({prices.source})"
    yield f"  {'':16} {'LIST':>10} {'GET':>10} {'PUT':>10} {'DELETE':>10} {'US dollars':>12}"
    rows = [("this run", made), *([("least possible", possible)] if possible else [])]
    for name, counts in rows:
        numbers = " ".join(f"{getattr(counts, kind):>10,}" for kind in cost(counts))
        yield f"  {name:16} {numbers} {sum(cost(counts, prices).values()):>12.6f}"
