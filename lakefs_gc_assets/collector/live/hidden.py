"""Staged entries that the server never lists: those whose content equals the committed one at the same path.

Such an entry is staged under an address of its own, yet neither uncommitted data nor a diff shows it. Its path is
known, because the branch's head has an entry of the same size and content there: it is asked for on the branch.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lakefs_gc_assets.collector.live.commits import fetch
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.models import LakeFSApi
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.storage.interface import ObjectStore

_CONCURRENT_QUESTIONS = 8


@dataclass(frozen=True, slots=True)
class Question:
    """A path in a range of a branch head whose content equals that of a candidate."""

    range_id: str
    path: bytes


@dataclass(frozen=True, slots=True)
class Answers:
    """What asking found.

    Attributes:
        live: every address that the asked paths have, in each spelling it may mean.
        unasked: questions that were not asked on every branch: candidates of the same content are kept.
        asked: how many paths were asked for, each branch counted.
    """

    live: frozenset[str]
    unasked: tuple[Question, ...]
    asked: int


def branches_by_range(store: ObjectStore, heads: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """For each range of a branch head, the branches whose head holds it.

    Args:
        heads: metarange of each branch's head.
    """
    branches: dict[str, list[str]] = {}
    for branch, metarange_id in heads.items():
        branches.setdefault(metarange_id, []).append(branch)

    def parts(metarange_id: str) -> list[str]:
        key = METADATA_PREFIX + metarange_id
        return [part.id for part in ranges.read_metarange(fetch(store, key), key)]

    found: dict[str, list[str]] = {}
    with ThreadPoolExecutor(_CONCURRENT_QUESTIONS) as pool:
        for names, range_ids in zip(branches.values(), pool.map(parts, branches), strict=True):
            for range_id in range_ids:
                found.setdefault(range_id, []).extend(names)
    return {range_id: tuple(names) for range_id, names in found.items()}


def ask(
    api: LakeFSApi,
    namespace: Namespace,
    questions: Iterable[Question],
    branches: Mapping[str, tuple[str, ...]],
    limit: int,
) -> Answers:
    """Asks for each path on each branch that has it, each (branch, path) once, at most `limit` of them.

    Raises LakeFSError where a question cannot be answered.
    """
    places: dict[tuple[str, str], None] = {}
    unasked: list[Question] = []
    for question in questions:
        try:
            path = question.path.decode()
        except UnicodeDecodeError:
            unasked.append(question)
            continue
        new = [(branch, path) for branch in branches[question.range_id] if (branch, path) not in places]
        if len(places) + len(new) > limit:
            unasked.append(question)
            continue
        places.update(dict.fromkeys(new))
    with ThreadPoolExecutor(_CONCURRENT_QUESTIONS) as pool:
        live = {key for keys in pool.map(lambda place: _keys(api, namespace, *place), places) for key in keys}
    return Answers(frozenset(live), tuple(unasked), len(places))


def _keys(api: LakeFSApi, namespace: Namespace, branch: str, path: str) -> tuple[str, ...]:
    stats = api.stat(branch, path)
    return () if stats is None else namespace.live_keys(stats.physical_address, AddressType.FULL)
