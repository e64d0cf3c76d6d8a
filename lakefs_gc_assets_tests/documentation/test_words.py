"""Names and docstrings of the package are plain English: no private words, and docstrings begin with a noun.

The sources are read as text, without importing them. The limits may be lowered, never raised.
"""

import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "lakefs_gc_assets"

PRIVATE_PARTS = frozenset(
    {"told", "untold", "unheld", "insisting", "patient", "settling", "leaving"}
    | {"Neighbours", "Looking", "Turn", "Asking", "Opening", "Approving", "Relaxing", "Say"}
)
"""Words that may not be a part of a name; names are split at underscores and capitals."""
PRIVATE_NAMES = frozenset({"LookedAt", "HeldEngine", "tell_apart", "look_around", "leave_out"})
"""Texts that a name may not contain."""

MOST_QUESTIONS = 30
MOST_FOUND = 150
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
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.NAME
    )


def private_words(name: str) -> set[str]:
    """Private words that a name contains or equals."""
    return {*PRIVATE_PARTS.intersection(_PART.findall(name)), *(word for word in PRIVATE_NAMES if word in name)}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("told", {"told"}),
        ("_select_told_each_time", {"told"}),
        ("UnheldRows", set()),
        ("unheld_rows", {"unheld"}),
        ("TurnRequest", {"Turn"}),
        ("NoReturn", set()),
        ("returned", set()),
        ("_look_around", {"look_around"}),
    ],
)
def test_private_words_are_seen_in_a_name(name: str, words: set[str]) -> None:
    assert private_words(name) == words


@pytest.mark.parametrize(
    ("line", "is_question"),
    [
        ('    """What is read."""', True),
        ('"""Whether it is."""', True),
        ('"""Whatever."""', False),
        ('log("What")', False),
    ],
)
def test_docstrings_that_begin_with_a_question_are_seen(line: str, is_question: bool) -> None:
    assert bool(_QUESTION.search(line)) == is_question


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
