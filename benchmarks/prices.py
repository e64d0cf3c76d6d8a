"""Cost of a run's requests at list prices, and the minimum possible cost.

Prices are an editable table for users with other prices. Storage, traffic, machines and the lakeFS server's own
requests to the bucket are excluded.
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
        source: origin and date of the prices.
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
"""PUT, COPY, POST and LIST have the same price there; HEAD is billed as GET; DELETE is free."""


def least(listed: int, files: int, deleted: int) -> Counts:
    """The fewest requests for a run's work: listing, reading and deleting, without any records.

    Args:
        listed: listed objects, 1,000 in a request.
        files: ranges, metaranges and files of uncommitted data, one in a request.
        deleted: deleted candidates, 1,000 in a request.
    """
    return Counts(lists=pages(listed), gets=files, deletes=-(-deleted // _KEYS_OF_A_DELETE))


def least_of_clean(shape: Shape) -> Counts:
    """The minimum for a clean run with sweep of a generated repository, in which each commit has its own metarange."""
    return least(shape.objects, shape.ranges + shape.commits + bool(shape.uncommitted), shape.garbage)


def cost(counts: Counts, prices: Prices = S3_STANDARD) -> Mapping[str, float]:
    """US dollars by kind of request."""
    kinds = {"lists": prices.lists, "gets": prices.gets, "puts": prices.puts, "deletes": prices.deletes}
    return {kind: getattr(counts, kind) * price / 1000 for kind, price in kinds.items()}


def table(made: Counts, possible: Counts | None = None, prices: Prices = S3_STANDARD) -> Iterator[str]:
    """Lines with the cost of a run's requests, beside the minimum."""
    yield f"  requests at list prices ({prices.source})"
    yield f"  {'':16} {'LIST':>10} {'GET':>10} {'PUT':>10} {'DELETE':>10} {'US dollars':>12}"
    rows = [("this run", made), *([("least possible", possible)] if possible else [])]
    for name, counts in rows:
        numbers = " ".join(f"{getattr(counts, kind):>10,}" for kind in cost(counts))
        yield f"  {name:16} {numbers} {sum(cost(counts, prices).values()):>12.6f}"
