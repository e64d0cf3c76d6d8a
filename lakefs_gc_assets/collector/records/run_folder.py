"""Keys of a run's plan, frames, receipts and report, beside the files of lakeFS's own collections.

Keys are relative to the storage namespace. lakeFS uses the same root for uncommitted data, so our runs and the server's
prepared files are siblings. Only folders with our plan are ours.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator

from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore, head_if_there

HOLDINGS = f"{layout.RUNS_PREFIX}holdings/"
"""Folder of holdings, which an extension stores: a file for each run, and facts about branch heads. Python reads the
files without it."""
HOLDINGS_HEADS = f"{HOLDINGS}heads/"
"""Folder of facts about branch heads, with a folder for each run; only the newest ones are used."""
LIFECYCLE = f"{layout.RUNS_PREFIX}lifecycle/listings/"
"""Folder of listings of object lifecycle, which an extension stores: a folder for each, named by its digest."""
ROUTINE_PAGE = f"{layout.RUNS_PREFIX}routine.html"
"""Key of the page of the newest routine, which an extension stores; each routine replaces it."""
_ONE_NAME = re.compile(r"[\w-]{1,100}", re.ASCII)


def folder(run_id: str) -> str:
    """The run's folder, with a trailing slash.

    Every key of a run is built here. Since an id may come from a command line, a launch or a file, it must be a single
    path component.

    Raises CollectionError if it is not.
    """
    if not _ONE_NAME.fullmatch(run_id):
        raise CollectionError(f"{run_id[:100]!r} is not a run id: `lakefs-gc status` lists the ids of all runs")
    return f"{layout.RUNS_PREFIX}{run_id}/"


def run_of(key: str) -> str:
    """The id of the run whose folder holds an object; empty for an object beside these folders."""
    name, slash, _ = key.removeprefix(layout.RUNS_PREFIX).partition("/")
    return name if slash and key.startswith(layout.RUNS_PREFIX) else ""


def plan(run_id: str) -> str:
    """Key of the plan."""
    return f"{folder(run_id)}plan.json"


def report(run_id: str) -> str:
    """Key of the report."""
    return f"{folder(run_id)}report.json"


def page(run_id: str) -> str:
    """Key of the page that shows the report."""
    return f"{folder(run_id)}report.html"


def approval(run_id: str) -> str:
    """Key of the approval of a dry run."""
    return f"{folder(run_id)}approval.json"


def first_approval(run_id: str) -> str:
    """Key of the first of two approvals of a dry run."""
    return f"{folder(run_id)}first-approval.json"


def frame(run_id: str, name: str) -> str:
    """Folder of a frame, with a trailing slash."""
    return f"{folder(run_id)}{name}/"


def manifest(run_id: str, name: str) -> str:
    """Key of a frame's manifest."""
    return f"{frame(run_id, name)}manifest.json"


def receipts(run_id: str) -> str:
    """Folder of the receipts, with a trailing slash."""
    return f"{folder(run_id)}receipts/"


def names(run_name: str) -> str:
    """Folder of the records of a run name, one for each selection of windows."""
    return f"{layout.RUNS_PREFIX}names/{_digest(run_name)}/"


def name(run_name: str, windows: Collection[str]) -> str:
    """Key of the record of a run name over some windows, in any order."""
    return f"{names(run_name)}{_digest(*sorted(windows))}.json"


def _digest(*texts: str) -> str:
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=20).hexdigest()


def folders(store: ObjectStore) -> list[str]:
    """The ids of all folders in the root of runs, ours and the server's, newest first."""
    names = (
        prefix.removeprefix(layout.RUNS_PREFIX).rstrip("/") for prefix in store.list_level(layout.RUNS_PREFIX).prefixes
    )
    return sorted(name for name in names if layout.is_xid(name))


def has_plan(store: ObjectStore, run_id: str) -> bool:
    """True if a folder holds our plan, so that it is one of our runs."""
    return head_if_there(store, plan(run_id)) is not None


def newest_runs(store: ObjectStore) -> Iterator[str]:
    """Yields the ids of our runs in this namespace, newest first; each lookup is lazy."""
    return (name for name in folders(store) if has_plan(store, name))
