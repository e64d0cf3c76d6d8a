"""What candidates were counted to be, kept beside them, so that they are counted once for all who show it."""

import json

from pydantic import TypeAdapter, ValidationError

from lakefs_gc_assets.collector.frame.kinds import CANDIDATES_DF, CandidateFigures
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.page.garbage import Garbage
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

_GARBAGE = TypeAdapter(Garbage)


def keep(store: ObjectStore, candidates: Manifest[CandidateFigures], garbage: Garbage) -> None:
    """Stores what these very candidates were counted to be. Raises StorageError."""
    content = {"candidates": candidates.digest, "garbage": _GARBAGE.dump_python(garbage, mode="json")}
    store.put(_key(candidates), json.dumps(content).encode())


def find(store: ObjectStore, candidates: Manifest[CandidateFigures]) -> Garbage | None:
    """What these very candidates were counted to be; None where nobody has counted them, or it cannot be read."""
    data = get_if_there(store, _key(candidates))
    if data is None:
        return None
    try:
        content = json.loads(data)
        return _GARBAGE.validate_python(content["garbage"]) if content["candidates"] == candidates.digest else None
    except (ValidationError, ValueError, KeyError, TypeError):
        return None


def _key(candidates: Manifest[CandidateFigures]) -> str:
    return f"{run_folder.frame(candidates.span.run_id, CANDIDATES_DF.name)}counted.json"
