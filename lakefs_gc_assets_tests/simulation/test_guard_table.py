"""Every guard call of the run, and the seeded bug that proves that it is tested.

`python -m lakefs_gc_assets_tests.simulation.test_guard_table` prints the table in docs/evidence/mutants.md.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import lakefs_gc_assets
from lakefs_gc_assets_tests.simulation.bugs import Seeded, seeded
from lakefs_gc_assets_tests.simulation.test_seeded_bugs import FOUND_BY

_REFUSES = re.compile(r"_?require_\w+")
_PACKAGE = Path(lakefs_gc_assets.__file__).parent
_PAGE = _PACKAGE.parent / "docs" / "evidence" / "mutants.md"


@dataclass(frozen=True, order=True, slots=True)
class Call:
    """A call of a guard: the calling function, as `module:function`, and the name of the guard."""

    caller: str
    callee: str


_COLLECTOR, _EXTENSIONS = "lakefs_gc_assets.collector", "lakefs_gc_assets.extensions"
_BELIEVABLE = "each of its three checks is taken out by itself"
_SIGNED = "nothing is let through without it: other entries than expected are refused, in words that name no key"
_BRANCHES = "no part of a run: `test_too_many_at_once` of stale branches"
_STANDING = "no part of a run: `test_a_standing_approval_covers_a_listing_or_nothing_goes`"
_METADATA = "no part of a run: `test_where_another_repository_is_on_the_namespace_or_clocks_disagree_it_refuses`"
_SOLE_WRITER = "no part of a run: `test_where_another_server_may_write_nothing_is_moved_or_purged`"
_ORPHANS = "no part of a run: each is taken out in "
_FIRST_LOOK = f"{_ORPHANS}`TestFirstLook.test_it_refuses_and_records_nothing`"
_SECOND_LOOK = f"{_ORPHANS}`TestSecondLook.test_a_change_keeps_everything`"
_EACH_BATCH = f"{_ORPHANS}`TestMeanwhile.test_without_the_look_before_a_batch_the_change_is_missed`"
_CLEAN = (
    "no part of a run, and lakeFS refuses such merges itself: "
    "`test_a_dirty_branch_before_anything_is_done`, `test_staged_changes_and_hooks_keep_it`"
)
_UPLOADED = "no part of a run: it reads what is uploaded"
NOT_SEEDED = {
    Call(f"{_COLLECTOR}.repository.opening:open_repository.opened", "require_writable"): (
        "lakeFS itself refuses to prepare such a repository"
    ),
    Call(f"{_COLLECTOR}.engine.local:LocalEngine.map_by_address.tasks", "_require_addresses"): (
        "`test_no_row_without_an_address_is_in_a_part` of the contract of engines"
    ),
    Call(f"{_COLLECTOR}.live.uncommitted:prepare", "_require_text"): (
        "`test_that_name_a_path_of_other_bytes_end_the_run`: no simulated server has such paths"
    ),
    Call(f"{_COLLECTOR}.quarantine.purge:LiveCheck.__call__", "_require_believable"): _BELIEVABLE,
    Call(f"{_COLLECTOR}.records.records_json:decode", "_require_no_signature"): _SIGNED,
    Call(f"{_COLLECTOR}.records.records_json:require_digest", "_require_no_signature"): _SIGNED,
    Call(f"{_EXTENSIONS}.branches.stale_branches:delete", "require_few_stale"): _BRANCHES,
    Call(f"{_EXTENSIONS}.branches.stale_branches:list_branches", "require_few_stale"): _BRANCHES,
    Call(f"{_COLLECTOR}.standing_approvals:standing_approver.cover", "require_covered"): _STANDING,
    Call(f"{_EXTENSIONS}.check.unneeded_metadata:_cutoff", "require_clocks_agree"): _METADATA,
    Call(f"{_EXTENSIONS}.check.unneeded_metadata:find_unneeded", "require_own_namespace"): _METADATA,
    Call(f"{_EXTENSIONS}.erasure.find:take_first_step", "_require_nothing_else_staged"): (
        "no part of a run: `test_a_commit_takes_nothing_along_that_others_staged`, `test_nor_what_they_stage_meanwhile`"
    ),
    Call(f"{_EXTENSIONS}.lifecycle.acting:_Deletion._decide", "require_nothing_staged"): _CLEAN,
    Call(f"{_EXTENSIONS}.lifecycle.acting:_Deletion._merge", "require_nothing_staged"): _CLEAN,
    Call(f"{_EXTENSIONS}.lifecycle.merging:bring_back", "require_nothing_staged"): _CLEAN,
    Call(f"{_EXTENSIONS}.check.unneeded_metadata:list_movable", "require_sole_writer"): _SOLE_WRITER,
    Call(f"{_EXTENSIONS}.check.unneeded_metadata:move", "require_sole_writer"): _SOLE_WRITER,
    Call(f"{_EXTENSIONS}.check.unneeded_metadata:purge", "require_sole_writer"): _SOLE_WRITER,
    Call(f"{_EXTENSIONS}.orphans.deletion:PlaceQuarantine.delete_batch", "require_unchanged"): _EACH_BATCH,
    Call(f"{_EXTENSIONS}.orphans.deletion:_locked", "require_clocks_agree"): (
        "no part of a run: `TestFirstLook.test_clocks_that_disagree`"
    ),
    Call(f"{_EXTENSIONS}.orphans.deletion:_move", "require_few_orphaned"): _SECOND_LOOK,
    Call(f"{_EXTENSIONS}.orphans.deletion:examine", "require_few_orphaned"): _FIRST_LOOK,
    Call(f"{_EXTENSIONS}.orphans.deletion:examine", "require_quiet"): _FIRST_LOOK,
    Call(f"{_EXTENSIONS}.orphans.deletion:examine", "require_signs"): _FIRST_LOOK,
    Call(f"{_EXTENSIONS}.orphans.deletion:purge", "_require_moved"): (
        "no part of a run: `TestLife.test_a_deletion_that_was_killed_goes_on`"
    ),
    Call(f"{_EXTENSIONS}.orphans.deletion:restore", "_require_moved"): (
        "no part of a run: `TestLife.test_copies_are_purged_when_they_are_due`"
    ),
    Call(f"{_EXTENSIONS}.orphans.looks:look", "require_no_imports"): _FIRST_LOOK,
    Call(f"{_EXTENSIONS}.orphans.looks:look", "require_no_namespace_around"): _FIRST_LOOK,
    Call(f"{_EXTENSIONS}.orphans.looks:look", "require_no_repository"): _FIRST_LOOK,
    Call(f"{_EXTENSIONS}.orphans.looks:look", "require_only_lakefs_files"): _FIRST_LOOK,
    Call(f"{_EXTENSIONS}.orphans.looks:require_unchanged", "require_no_repository"): (
        "no part of a run: `TestMeanwhile.test_a_change_before_a_batch_keeps_the_rest`"
    ),
    Call(f"{_COLLECTOR}.retention.retention:read", "require_sane"): (
        "`TestBadRules.test_end_the_run`: before the server is made to list commits by them"
    ),
    Call(f"{_COLLECTOR}.retention.rules:load_server_rules", "require_settable"): _UPLOADED,
    Call(f"{_COLLECTOR}.retention.rules:edit_server_rules", "require_settable"): _UPLOADED,
    Call(f"{_COLLECTOR}.retention.rules:require_settable", "require_sane"): _UPLOADED,
}
"""Calls without a seeded bug, and the reason."""
_FOLDERS = (
    "collector",
    *(
        f"extensions/{name}"
        for name in ("approvals", "branches", "check", "erasure", "forecast", "lifecycle", "orphans")
    ),
)
NO_PART_OF_A_RUN = ("diagnosis.py", "definitions.py", "*_command.py")
"""Modules whose refusals concern a command, a launch, or a report about a future run."""


def calls() -> Iterator[Call]:
    """Every call in the run and its extensions whose name marks a guard."""
    for file in sorted(path for folder in _FOLDERS for path in (_PACKAGE / folder).rglob("*.py")):
        if any(map(file.match, NO_PART_OF_A_RUN)):
            continue
        module = ".".join(file.relative_to(_PACKAGE.parent).with_suffix("").parts)
        yield from _calls(ast.parse(file.read_text()), f"{module}:", "")


def _calls(node: ast.AST, module: str, name: str) -> Iterator[Call]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from _calls(child, module, f"{name}.{child.name}".lstrip("."))
            continue
        if isinstance(child, ast.Call):
            callee = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
            if _REFUSES.fullmatch(callee):
                yield Call(f"{module}{name}", callee)
        yield from _calls(child, module, name)


@cache
def found_by() -> dict[Call, list[Seeded]]:
    """Seeded bugs that remove each call and nothing else."""
    found: dict[Call, list[Seeded]] = defaultdict(list)
    everywhere = {*calls()}
    for each in seeded():
        named, changes = {name for _, name, _ in each.bug.replacements()}, each.bug.changes
        for call in everywhere:
            if named == {call.callee} and (not each.bug.changed or call.caller in changes):
                found[call].append(each)
    return found


def rows() -> Iterator[str]:
    """Lines of the table."""
    found = found_by()
    yield "| call | seeded bug | found by |"
    yield "|---|---|---|"
    for call in sorted({*calls()}):
        caller = call.caller.removeprefix("lakefs_gc_assets.").removeprefix("collector.")
        place = f"`{caller}` → `{call.callee}`"
        if call not in found:
            yield f"| {place} | | {NOT_SEEDED.get(call, 'nothing')} |"
        for each in found[call]:
            yield f"| {place} | {each.name} | {reported(each)} |"


def reported(seeded_bug: Seeded) -> str:
    """How a bug is found: by a history, or by the test that fails."""
    seeds = {str(kind): bugs for kind, bugs in FOUND_BY.items()}.get(seeded_bug.found_by, {})
    by = [f"{seeded_bug.found_by} history {seeds[seeded_bug.name]}"] if seeds else []
    by += [f"`{seeded_bug.test.rpartition(':')[2]}`"] if seeded_bug.test else []
    return ", ".join(by) or seeded_bug.found_by


def test_each_call_that_may_refuse_has_a_seeded_bug_or_a_reason_why_not() -> None:
    assert {*calls()} - found_by().keys() == NOT_SEEDED.keys()


def test_the_page_has_the_table_of_today() -> None:
    assert "\n".join(rows()) in _PAGE.read_text()


if __name__ == "__main__":
    print("\n".join(rows()))
