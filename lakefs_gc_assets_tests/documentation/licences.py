"""The table of licences in docs/licences.md: `python -m lakefs_gc_assets_tests.documentation.licences` writes it."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution, requires

from packaging.requirements import Requirement

from lakefs_gc_assets_tests.documentation.pages import DOCS

PAGE = DOCS / "licences.md"
_PROJECT = DOCS.parent / "pyproject.toml"
_OF_IMAGE = "dagster-postgres"
"""What the image has besides."""
_MARK = "| package | licence |\n|---|---|\n"


def installed() -> dict[str, str]:
    """Licences of what an installation with all extras has, and the image, by the packages' normal names."""
    project = tomllib.loads(_PROJECT.read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    left = [*map(Requirement, wanted), Requirement(_OF_IMAGE)]
    names: set[str] = set()
    seen: set[tuple[str, str]] = set()
    while left:
        requirement = left.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                left += _needed(name, extra)
                names.add(name)
    return dict(_licences(sorted(names)))


def _needed(name: str, extra: str) -> list[Requirement]:
    """What a package needs on this machine for an extra, or for none."""
    try:
        stated = requires(name) or ()
    except PackageNotFoundError:
        return []
    needed = [Requirement(each) for each in stated]
    return [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]


def _licences(names: list[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield name, licence_of(distribution(name).metadata)
        except PackageNotFoundError:
            continue


def licence_of(metadata: PackageMetadata) -> str:
    """The licence that a package states: an expression, classifiers, or the first line of a text."""
    prefix = "License :: "
    stated = [each for each in metadata.get_all("Classifier") or () if each.startswith(prefix)]
    classified = ", ".join(sorted(each.rpartition(" :: ")[2] for each in stated))
    # Newer ones state an expression, and nothing else.
    expression, free = (metadata.get_all(name) or [""] for name in ("License-Expression", "License"))
    return expression[0] or classified or free[0].strip().partition("\n")[0] or "not stated"


def main() -> None:
    """Writes the table, behind the text that people write."""
    text, mark, _ = PAGE.read_text().partition(_MARK)
    rows = "".join(f"| {name} | {licence} |\n" for name, licence in installed().items())
    PAGE.write_text(text + mark + rows)


if __name__ == "__main__":
    main()
