"""Limits of size: lines of code of the core and of each extension, modules, and class names that exist once.

Code is counted without docstrings, comments and blank lines. Limits may be lowered; whoever raises one says why in the
commit.
"""

import ast
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from lakefs_gc_assets_tests.documentation.pages import doc_strings, tokens

PACKAGE = Path(__file__).parents[2] / "lakefs_gc_assets"
EXTENSIONS = PACKAGE / "extensions"
CORE_CODE = 26_140
CORE_MODULES = 151
EXTENSION_CODE = {
    "approvals": 250,
    "branches": 860,
    "check": 1_240,
    "emr": 140,
    "erasure": 1_210,
    "explain": 480,
    "forecast": 1_220,
    "holdings": 2_590,
    "lifecycle": 1_730,
    "metrics": 120,
    "notifications": 210,
    "orphans": 900,
    "playground": 3_730,
    "routine": 350,
    "setup": 690,
}
NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


@cache
def parsed() -> dict[Path, ast.Module]:
    """Every module of the package."""
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def code_lines(text: str) -> int:
    """Lines with code."""
    code = (token for token in tokens(text) if token.type not in NOT_CODE)
    lines = {line for token in code for line in range(token.start[0], token.end[0] + 1)}
    documents = doc_strings(ast.parse(text))
    return len(lines.difference(line for each in documents for line in range(each.lineno, (each.end_lineno or 0) + 1)))


@cache
def code_of(path: Path) -> int:
    """Lines of code of a module."""
    return code_lines(path.read_text())


def of_folder(folder: Path) -> int:
    return sum(code_of(path) for path in parsed() if folder in path.parents)


def test_lines_of_code_leave_out_docstrings_comments_and_blank_lines() -> None:
    text = '"""Head.\n\nMore.\n"""\n\nX = 1  # why\n"""X."""\n\n\ndef f() -> str:\n    # why\n    return """a\nb"""\n'
    assert code_lines(text) == 4


def test_the_core_stays_small_enough_to_read() -> None:
    assert of_folder(PACKAGE) - of_folder(EXTENSIONS) <= CORE_CODE
    assert sum(EXTENSIONS not in path.parents for path in parsed()) <= CORE_MODULES


@pytest.mark.parametrize("name", EXTENSION_CODE)
def test_an_extension_stays_within_its_size(name: str) -> None:
    assert of_folder(EXTENSIONS / name) <= EXTENSION_CODE[name]


def test_every_extension_has_a_limit() -> None:
    assert {path.name for path in EXTENSIONS.iterdir() if (path / "__init__.py").exists()} == EXTENSION_CODE.keys()


def test_no_class_name_is_defined_twice() -> None:
    names = Counter(
        node.name for tree in parsed().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} == set()
