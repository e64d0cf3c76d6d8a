import pytest

from lakefs_gc_assets.collector.records.figures import FIGURES
from lakefs_gc_assets.errors import CollectionError, CorruptFile, GuardTripped, LakeFSError, counted


@pytest.mark.parametrize("odd", ["\n", "\r", "\0", "\x1b[2J", "\u2028", "\u202e", "\ud800"])
@pytest.mark.parametrize(
    "error",
    [
        lambda text: LakeFSError(f"the server said {text}"),
        lambda text: CorruptFile(text, "check", "detail"),
        lambda text: CorruptFile("file", "check", text),
        lambda text: GuardTripped("guard", text, "advice"),
    ],
)
def test_whatever_a_message_quotes_it_is_one_line_that_can_be_shown(error: type[CollectionError], odd: str) -> None:
    text = str(error(f"a{odd}b"))
    assert text.isprintable()
    assert text.encode()


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    text = str(CorruptFile("the file", "check", "x" * 100_000))
    assert len(text) < 2100
    assert text.startswith("the file: check: xxx")
    assert text.endswith("is deleted.")


def test_usual_messages_are_shown_as_they_are() -> None:
    assert str(LakeFSError("GET /x: 404 « gone; look at 'é'")) == "GET /x: 404 « gone; look at 'é'"


def test_words_agree_with_their_number() -> None:
    assert counted(1, "more objects that runs delete are") == "1 more object that runs delete is"
    assert counted(2, "branches are") == "2 branches are"
    assert (counted(0, "copies"), counted(12_345, "copies", 8)) == ("0 copies", "  12,345 copies")
    assert [counted(days, "days") for days in (1, 1.0, 1.5, 30.0)] == ["1 day", "1 day", "1.5 days", "30 days"]
    for figure in FIGURES.values():
        assert not counted(1, figure.unit).endswith("s") or figure.unit == "addresses"
