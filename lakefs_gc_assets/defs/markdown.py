"""Texts that others chose, within the Markdown of Dagster's pages."""

import re

_MARKED = re.compile(r"[\\|<\[\]`]")
_LINE_ENDS = re.compile(r"[\r\n]+")


def plain(text: str) -> str:
    """A text that is shown as it is, in one line: no link, image, HTML or cell of a table comes of it.

    An image would have the browser of whoever looks at it ask its host.
    """
    return _LINE_ENDS.sub(" ", _MARKED.sub(r"\\\g<0>", text))
