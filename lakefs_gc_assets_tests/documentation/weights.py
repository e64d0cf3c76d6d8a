"""Disk space of an installation, package by package, measured in this environment.

`python -m lakefs_gc_assets_tests.documentation.weights` prints the tables of docs/install.md and of
docs/evidence/installation-size.md. A size is the bytes of the files that a package's wheel has and of the bytecode
beside them, in millions; it differs a little with the machine and the versions.
"""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lakefs_gc_assets_tests.documentation.pages import ROOT

_SHOWN = 10
_MB = 1e6


@dataclass(frozen=True)
class Environment:
    """The packages of this environment."""

    packages: dict[str, metadata.Distribution]

    @classmethod
    def here(cls) -> "Environment":
        """The environment that this interpreter runs in."""
        return cls({canonicalize_name(each.name): each for each in metadata.distributions()})

    def closure(self, requirements: Iterable[str]) -> set[str]:
        """Names of all packages installed for some requirements, including themselves."""
        waiting = [Requirement(each) for each in requirements]
        seen: set[tuple[str, frozenset[str]]] = set()
        while waiting:
            requirement = waiting.pop()
            asked = (canonicalize_name(requirement.name), frozenset(requirement.extras))
            if asked in seen or asked[0] not in self.packages:
                continue
            seen.add(asked)
            for given in map(Requirement, self.packages[asked[0]].requires or ()):
                extras = ("", *requirement.extras)
                if given.marker is None or any(given.marker.evaluate({"extra": extra}) for extra in extras):
                    waiting.append(given)
        return {name for name, _ in seen}

    def files(self, name: str) -> Iterator[Path]:
        """The files of a package, and their bytecode."""
        package = self.packages[name]
        for given in package.files or ():
            if given.suffix != ".pyc":
                yield from filter(Path.is_file, _with_bytecode(Path(str(package.locate_file(given)))))

    def size(self, names: Iterable[str]) -> float:
        """Size of packages in MB."""
        return sum(file.stat().st_size for name in names for file in self.files(name)) / _MB


def _with_bytecode(file: Path) -> Iterator[Path]:
    yield file
    if file.suffix == ".py":
        yield from (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc")


def tables() -> Iterator[str]:
    """The lines of both tables."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    here, base = Environment.here(), list(project["dependencies"])
    needed = here.closure(base)
    yield from ("| installed | packages | MB |", "|---|---|---|")
    yield f"| `lakefs-gc-assets` | {len(needed)} | {here.size(needed):,.0f} |"
    for extra, requirements in project["optional-dependencies"].items():
        more = here.closure([*base, *requirements]) - needed
        yield f"| `[{extra}]` | {len(more)} more | {here.size(more):,.0f} more |"
    yield ""
    yield from ("| package | MB | MB that only it brings |", "|---|---|---|")
    direct = {str(canonicalize_name(Requirement(each).name)): each for each in base}
    sizes = {name: here.size([name]) for name in needed}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if sizes[name] < _SHOWN:
            continue
        alone = ""
        if name in direct:
            without = here.closure(each for each in base if each != direct[name])
            alone = f"{here.size(needed - without):,.0f}"
        yield f"| {name} | {sizes[name]:,.0f} | {alone} |"


if __name__ == "__main__":
    print("\n".join(tables()))
