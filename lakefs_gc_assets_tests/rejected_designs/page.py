"""The page `docs/evidence/rejected-designs.md`, made from the modules' docstrings and the explorer's results."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from types import ModuleType

from lakefs_gc_assets_tests.rejected_designs import (
    no_copies,
    offline,
    reference_counter,
    staged_path,
    staging_references,
    token_states,
)
from lakefs_gc_assets_tests.rejected_designs.explorer import Case, Exploration

PAGE = Path(__file__).parents[2] / "docs/evidence/rejected-designs.md"
DESIGNS: tuple[ModuleType, ...] = (staged_path, reference_counter, staging_references, token_states, no_copies)
MODULES = (*DESIGNS, offline)
_WIDTH = 118
_INTRODUCTION = """\
Could a lakeFS server delete data as soon as nothing refers to it? lakeFS's own
[document about it](https://github.com/treeverse/lakeFS/blob/master/design/rejected/hard-delete.md) describes five
designs, and why each was rejected. Here each design is a small model: actors with atomic steps, as in the document. An
explorer visits all interleavings, nearest first, so that each history below is one of the shortest. Every design must
keep each object that has a live reference.

`lakefs_gc_assets_tests/rejected_designs/` has the models. `python -m lakefs_gc_assets_tests.rejected_designs` prints
this page, and a test compares them."""


def render() -> str:
    """The whole page."""
    return "\n\n".join(["# Why collection is offline", _INTRODUCTION, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    for number, module in enumerate(MODULES, 1):
        yield f"## {number}. {module.TITLE}" if module is not offline else f"## {module.TITLE}"
        yield (module.__doc__ or "").strip()
        for case in module.CASES:
            yield _reported(case, case.found)


def _reported(case: Case, found: Exploration) -> str:
    if found.problem is None:
        return fill(f"**{_sentence(case.title)}** {case.says} *Holds in all {found.states:,} states.*", _WIDTH)
    width = max(len(moment.actor) for moment in found.history)
    steps = [f"    {moment.actor:{width}}  {moment.label}" for moment in found.history]
    return "\n".join(
        [
            fill(f"**{_sentence(case.title)}** {case.says} *Found in {len(found.history)} steps:*", _WIDTH),
            "",
            *steps,
            f"    => {found.problem}",
        ]
    )


def _sentence(title: str) -> str:
    return f"{title[0].upper()}{title[1:]}."
