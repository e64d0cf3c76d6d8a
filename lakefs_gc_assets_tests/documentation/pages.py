"""The pages of the documentation: their code blocks, commands, settings, and the age of their pictures."""

import ast
import io
import re
import shlex
import subprocess
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from lakefs_gc_assets.configuration_file import REPOSITORIES
from lakefs_gc_assets.settings import Configuration, Settings


def doc_strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Docstrings, and strings that document an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a module."""
    return tokenize.generate_tokens(io.StringIO(text).readline)


ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROGRAM = "lakefs-gc"
NOT_RUN = "not run: "
"""Start of a comment right before a block of commands that no test runs; the reason follows."""

_FENCE = re.compile(r"^ {0,8}```(\w*)\n(.*?)^ {0,8}```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(rf"<!-- {NOT_RUN}(.+?) -->\n+\Z", re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)((?:    [^\n]*\n|\n(?=    ))+)")
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_SETTING = re.compile(r"`(\w+)\.([a-z_]+)(?:: [^`]*)?`")
_FILES = {"report": ("json", "html")}
"""File names that begin like a section."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced or indented block of a page.

    Attributes:
        language: language of the fence; empty if it names none.
        line: line number at which its text begins, from 1.
        not_run: reason why no test runs its commands, from the comment before it; None without such a comment.
    """

    language: str
    text: str
    line: int
    not_run: str | None = None


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    """Name of a page in messages."""
    return str(page.relative_to(ROOT))


def fenced(text: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    for found in _FENCE.finditer(text):
        before = _COMMENT.search(text, 0, found.start())
        line = text.count("\n", 0, found.start(2)) + 1
        yield Block(found[1], found[2], line, before[1] if before else None)


def indented(text: str) -> Iterator[Block]:
    """Blocks that are code because they are indented, without fenced blocks."""
    without = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for found in _INDENTED.finditer(without):
        yield Block("", re.sub(r"^    ", "", found[1], flags=re.MULTILINE), text.count("\n", 0, found.start(1)) + 1)


def commands(text: str, program: str = PROGRAM) -> Iterator[list[str]]:
    """Commands of a program on the lines of blocks, split into words, without the program itself."""
    for block in (*fenced(text), *indented(text)):
        if block.language in ("", "bash"):
            for line in block.text.replace("\\\n", " ").splitlines():
                yield from _calls(line, program)


def mentions(text: str) -> Iterator[list[str]]:
    """Commands that sentences name, split into words; they may lack arguments."""
    for found in _INLINE.finditer(_FENCE.sub("", text)):
        if found[1].startswith(f"{PROGRAM} "):
            yield shlex.split(found[1])[1:]


def _calls(line: str, program: str) -> Iterator[list[str]]:
    """The commands of a shell line, which may be assigned to variables or piped."""
    for part in re.split(r"\$\(|\s(?:\|\|?|&&|>)\s", line):
        try:
            words = shlex.split(part.strip().rstrip(")"), comments=True)
        except ValueError:
            continue  # a piece of another program's quotes
        while words and re.fullmatch(r"\w+=.*", words[0]):
            words.pop(0)
        if words and Path(words[0]).name == program:
            yield words[1:]


def sections() -> dict[str, tuple[str, ...]]:
    """The names of settings by section."""
    return {name: tuple(settings.model_fields) for name, settings in section_models().items()}


def section_models() -> dict[str, type[Settings]]:
    """Models by section of a configuration file."""
    return {
        name: field.annotation
        for name, field in Configuration.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
    }


def wrong_settings(text: str) -> Iterator[str]:
    """Problems with settings that a page names, in sentences and in examples of the configuration file."""
    known = sections()
    # Properties of Spark look like settings of the section `spark`.
    for section, name in _SETTING.findall(_FENCE.sub("", text)):
        names = known.get(section)
        if names and section != "spark" and name not in names and name not in _FILES.get(section, ()):
            yield f"there is no setting {section}.{name}"
    for block in (*fenced(text), *indented(text)):
        content = configuration_of(block)
        if content is None:
            continue
        without = _without_references(content)
        assert isinstance(without, dict)
        for entry in _entries(without):
            try:
                Configuration.model_validate(entry)
            except ValidationError as error:
                for problem in error.errors():
                    yield f"line {block.line}: {'.'.join(map(str, problem['loc']))}: {problem['msg'].lower()}"


def configuration_of(block: Block) -> dict[str, Any] | None:
    """The content of an example of a configuration file; None for any other block."""
    if block.language not in ("", "yaml"):
        return None
    try:
        content = yaml.safe_load(block.text)
    except yaml.YAMLError:
        return None
    top = {*Configuration.model_fields, REPOSITORIES}
    return content if isinstance(content, dict) and top & content.keys() else None


def _entries(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The shared content, and the content for each repository."""
    shared = {name: value for name, value in content.items() if name != REPOSITORIES}
    yield shared
    yield from content.get(REPOSITORIES, ())


def _without_references(value: object) -> object:
    """The same value with a text in place of each `{env: NAME}`."""
    if isinstance(value, dict):
        return "" if set(value) == {"env"} else {name: _without_references(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_references(each) for each in value]
    return value


PICTURES = "docs/screens"
DRAWN_BY = (
    "lakefs_gc_assets/defs",
    "lakefs_gc_assets/definitions.py",
    "lakefs_gc_assets/collector/frame",
    "lakefs_gc_assets/extensions/playground/demo.py",
    "lakefs_gc_assets/extensions/playground/embedded/sample.py",
)
"""Code that draws the pages of the UI and produces the content they show."""


def outdated() -> str | None:
    """A problem with the pictures; None if they are newer than the code, or without a git checkout.

    Any commit to this code counts, even if it changes no picture: only a person could tell the difference.
    """
    try:
        pictures, code = _last_commit(PICTURES), _last_commit(*DRAWN_BY)
    except (OSError, subprocess.CalledProcessError):
        return None
    if pictures is None:
        return f"{PICTURES} was never committed"
    if code is None or code <= pictures:
        return None
    return (
        f"the pictures in {PICTURES} are {(code - pictures) / 3600:.1f} hours older than the UI's code: take them "
        "anew as docs/screens.md says"
    )


def _last_commit(*paths: str) -> int | None:
    """Time of the last commit to these paths, in seconds since 1970; None if there is none."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct", "--", *paths]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return int(found) if found else None
