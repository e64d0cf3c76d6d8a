"""Checks of `make docs` before it builds the site: `python -m lakefs_gc_assets_tests.documentation`.

It fails if a page names missing settings, generated pages are out of date, or pictures are older than the UI's code.
"""

import sys
from collections.abc import Iterator

from lakefs_gc_assets_tests.documentation import reference
from lakefs_gc_assets_tests.documentation.pages import name_of, outdated, pages, wrong_settings


def problems() -> Iterator[str]:
    """Problems of the pages, each with its page."""
    for page in pages():
        yield from (f"{name_of(page)}: {wrong}" for wrong in wrong_settings(page.read_text(encoding="utf-8")))
    for page, write in reference.GENERATED.items():
        if not page.exists() or page.read_text(encoding="utf-8") != write():
            yield f"{name_of(page)} is out of date: write it by `python -m {reference.__name__}`"


def main() -> None:
    """Prints the problems; exits with status 1 if there are any."""
    found = [*problems(), *filter(None, [outdated()])]
    for problem in found:
        print(f"docs: {problem}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
