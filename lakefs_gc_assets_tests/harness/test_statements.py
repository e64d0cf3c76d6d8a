"""Changes of `make statements`, and their effect on a function."""

from pathlib import Path

import pytest

from lakefs_gc_assets_tests.harness.statements import changes, function_of

SOURCE = '''
from contextlib import contextmanager

class Asking:
    def ask(self, told, log):
        """Asks twice."""
        told.append("one")
        log(len(told))
        if told:
            told.append("two")
        return told

@contextmanager
def held(told):
    try:
        yield
    finally:
        told.append("ended")
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "asked_twice.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "asked_twice"


def test_each_statement_goes_and_neighbours_change_places(module: str) -> None:
    assert [(each.line, each.function, each.what) for each in changes(module)] == [
        (7, "Asking.ask", "without told.append('one')"),
        (7, "Asking.ask", "told.append('one') | after | log(len(told))"),
        (8, "Asking.ask", "without log(len(told))"),
        (8, "Asking.ask", "log(len(told)) | after | if told:"),
        (9, "Asking.ask", "without if told:"),
        (10, "Asking.ask", "without told.append('two')"),
        (11, "Asking.ask", "without return told"),
        (15, "held", "without try:"),
        (15, "held", "only the body of try:"),
        (16, "held", "without yield"),
        (18, "held", "without told.append('ended')"),
    ]


def test_whoever_has_imported_a_function_has_the_change(module: str) -> None:
    reported: dict[str, list[object]] = {}
    ask = function_of(module, "Asking.ask")
    for each in changes(module):
        if each.function == "Asking.ask":
            ask.__code__, reported[each.what] = each.code, []
            ask(None, reported[each.what], reported[each.what].append)
    assert reported["without told.append('one')"] == [0, "two"]
    assert reported["told.append('one') | after | log(len(told))"] == [0, "one", "two"]
    assert reported["log(len(told)) | after | if told:"] == ["one", "two", 2]
    assert reported["without if told:"] == ["one", 1]
