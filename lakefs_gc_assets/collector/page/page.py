"""Making the page of a run, and keeping it beside the run's report.

The page is no part of the run: it is made when the run has ended, from what that left, and a run whose page cannot be
made has ended all the same.
"""

import hashlib
from datetime import datetime

from lakefs_gc_assets.collector.page import markup
from lakefs_gc_assets.collector.page.facts import Count, RunFacts, gather
from lakefs_gc_assets.collector.page.sections import sections
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.settings import CollectionSettings, ReportSettings
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there


def make_page(
    store: ObjectStore,
    run_id: str,
    settings: CollectionSettings,
    prices: ReportSettings,
    now: datetime,
    count: Count,
    most_read: int | None = None,
) -> bytes:
    """The page of a run that left a report: one HTML file, well below 1 MB however large the run was.

    Args:
        settings: by which its figures are judged.
        now: UTC.
        count: counts its candidates, if there are any.
        most_read: how much may be read to learn which commits held its candidates last; None for any amount.
    Raises:
        CollectionError: there is no such run, it left no report, or plan or report are damaged.
    """
    return render(gather(store, run_id, settings, prices, now, count, most_read))


def render(facts: RunFacts) -> bytes:
    """The page of these facts."""
    title = f"{facts.report.repository}: {facts.report.ending.value}"
    return markup.document(title, _mark(facts.report), sections(facts))


def write(store: ObjectStore, run_id: str, page: bytes) -> None:
    """Stores the page of a run, in place of an earlier one."""
    store.put(run_folder.page(run_id), page)


def read(store: ObjectStore, report: Report) -> bytes | None:
    """The stored page of this very report; None where there is none, or it is that of an earlier report of the run."""
    page = get_if_there(store, run_folder.page(report.run_id))
    return page if page is not None and _mark(report).encode() in page else None


def _mark(report: Report) -> str:
    return hashlib.sha256(report.to_json()).hexdigest()
