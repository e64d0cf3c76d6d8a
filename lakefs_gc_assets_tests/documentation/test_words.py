"""Names and docstrings of the package are plain English: no private words, and docstrings begin with a noun.

The sources are read as text, without importing them. The limits may be lowered, never raised.
"""

import ast
import re
import tokenize
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from lakefs_gc_assets_tests.documentation.pages import DOCS, doc_strings, tokens

PACKAGE = Path(__file__).parents[2] / "lakefs_gc_assets"

PRIVATE_PARTS = frozenset(
    {"told", "untold", "unheld", "insisting", "patient", "settling", "leaving"}
    | {"Neighbours", "Looking", "Turn", "Asking", "Opening", "Approving", "Relaxing", "Say"}
)
"""Words that may not be a part of a name; names are split at underscores and capitals."""
PRIVATE_NAMES = frozenset({"LookedAt", "HeldEngine", "tell_apart", "look_around", "leave_out"})
"""Texts that a name may not contain."""

MARKS = {
    r"\bwhat(?:ever)?\b": 2.0,
    r"\bwhere (?:it|a|an|the|there|that|one|they|nobody|none|no|nothing|somebody|each|this|all)\b": 1.0,
    r"\bof (?:them|it|these|those|each|one|which|whom)\b": 2.0,
    r"\b(?:that which|those (?:that|which|of))\b": 0.35,
    r"\b(?:some|no|any)body\b": 0.4,
}
"""Marks of translated English: their maximum per 1,000 words of docstrings, comments, messages or pages."""
MOST_QUESTIONS = 30
MOST_FOUND = 150
_WORD = re.compile(r"[A-Za-z']+")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_QUESTION = re.compile(r'"""\s*(What|Whether)\b.*')


@cache
def sources() -> dict[str, str]:
    """Text by module path in the package."""
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def names() -> tuple[tuple[str, str], ...]:
    """Module and text of every name of the package, once per occurrence."""
    return tuple(
        (module, token.string)
        for module, text in sources().items()
        for token in tokens(text)
        if token.type == tokenize.NAME
    )


def private_words(name: str) -> set[str]:
    """Private words that a name contains or equals."""
    return {*PRIVATE_PARTS.intersection(_PART.findall(name)), *(word for word in PRIVATE_NAMES if word in name)}


def test_no_name_is_a_private_word() -> None:
    private = {(module, name) for module, name in set(names()) if private_words(name)}

    assert not private


def test_docstrings_begin_with_a_noun() -> None:
    questions = [
        f"{module}: {match.group()}" for module, text in sources().items() for match in _QUESTION.finditer(text)
    ]

    assert len(questions) <= MOST_QUESTIONS, questions


def test_values_are_named_for_what_they_are() -> None:
    modules = [module for module, name in names() if name == "found"]

    assert len(modules) <= MOST_FOUND, sorted(set(modules))


def prose(root: Path) -> str:
    """Docstrings, strings that document attributes, and comments of all modules below a folder."""
    parts = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        parts += [str(each.value) for each in doc_strings(ast.parse(text))]
        parts += [token.string for token in tokens(text) if token.type == tokenize.COMMENT]
    return " ".join(parts)


def messages(root: Path) -> str:
    """Strings of three words or more: messages, help texts and descriptions that users see."""
    parts = []
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text())
        documents = {id(each) for each in doc_strings(tree)}
        strings = (each for each in ast.walk(tree) if isinstance(each, ast.Constant) and id(each) not in documents)
        parts += [text for each in strings if isinstance(text := each.value, str) and len(_WORD.findall(text)) > 2]
    return ". ".join(parts)


def pages(root: Path) -> str:
    """All pages below a folder, without code."""
    text = "\n".join(path.read_text() for path in sorted(root.rglob("*.md")))
    return re.sub(r"```.*?```|`[^`]*`", " ", text, flags=re.DOTALL)


def too_many(text: str) -> dict[str, float]:
    """Marks that a text has too often, by their pattern: how many there are in 1,000 words."""
    words = len(_WORD.findall(text)) or 1
    text = re.sub(r"\s+", " ", text)
    counts = {mark: 1000 * len(re.findall(mark, text, re.IGNORECASE)) / words for mark in MARKS}
    return {mark: round(count, 2) for mark, count in counts.items() if count > MARKS[mark]}


def test_marks_are_counted_per_thousand_words() -> None:
    assert too_many("What is told of it where it is known") == dict.fromkeys([*MARKS][:3], 111.11)
    assert too_many("Facts about each range") == {}


@pytest.mark.parametrize(
    ("read", "folder"),
    [
        (prose, PACKAGE),
        (messages, PACKAGE),
        pytest.param(prose, PACKAGE.parent / "lakefs_gc_assets_tests", marks=pytest.mark.slow),
        (pages, DOCS),
    ],
)
def test_sentences_are_not_translated(read: Callable[[Path], str], folder: Path) -> None:
    assert too_many(read(folder)) == {}
