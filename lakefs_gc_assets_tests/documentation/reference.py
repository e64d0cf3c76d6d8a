"""Generated reference pages: settings, commands, the report and the figures of a run, and JSON schemas.

`python -m lakefs_gc_assets_tests.documentation.reference` writes them; a test fails if one is out of date.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import click
from pydantic.fields import FieldInfo

from lakefs_gc_assets.cli import COMMANDS
from lakefs_gc_assets.cli.group import MEANINGS
from lakefs_gc_assets.collector.records.figures import FIGURES, HISTORY_FIGURES, STEP_FIGURES, Figure
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.report import FORMAT_VERSION, Checkpoint, Ending, Report
from lakefs_gc_assets.configuration_file import DISCOVER, schema
from lakefs_gc_assets.settings import Configuration, DiscoverSettings
from lakefs_gc_assets_tests.documentation.pages import DOCS, PROGRAM, section_models

_NOTE = "<!-- Written by `python -m lakefs_gc_assets_tests.documentation.reference`: change what it is made from. -->"
_KINDS: dict[object, str] = {str: "text", bool: "switch", int: "whole number", float: "number"}
_ATTRIBUTE = re.compile(r"^    (\w+(?:, \w+)*): (.+(?:\n     +.+)*)", re.MULTILINE)
_JSON_TYPES: dict[object, str] = {
    str: "text",
    bool: "true or false",
    int: "number",
    float: "number",
    datetime: "time",
    Ending: "text",
    Checkpoint: "object",
    NoneType: "null",
}


def settings_page() -> str:
    """Every setting of a configuration file."""
    models = section_models()
    tops = {name: field for name, field in Configuration.model_fields.items() if name not in models}
    lines = [
        "# Settings",
        _NOTE,
        "A configuration file is YAML: the settings of the first table at its top, the others in their sections. "
        "Unknown names are refused. If a value differs between machines, write `{env: NAME}` to take it from that "
        "environment variable; settings marked as secret may only be given that way. With a list `repositories`, the "
        "sections apply to all of its entries, and an entry overrides them "
        "([many repositories](../how-to/many-repositories.md)). The Dagster UI shows the same texts under *Deployment, "
        "Resources*.",
        "Editors with a YAML language server complete and check a file that names [its JSON schema]"
        "(lakefs-gc.schema.json) in its first line, `# yaml-language-server: $schema=lakefs-gc.schema.json`. "
        "`lakefs-gc init` writes this line, and the schema beside the file; after an upgrade, replace the schema. "
        "Policies have [a schema](policy.schema.json), too.",
        "A launch in the Dagster UI sets none of these; the section `launch` lists its rights "
        "([security](../security.md)).",
        "## At the top",
        _table(_setting_rows(tops), ("setting", "type", "default", "meaning")),
    ]
    for section, model in models.items():
        lines += [
            f"## {section}",
            _text(inspect.getdoc(model) or ""),
            _table(_setting_rows(model.model_fields), ("setting", "type", "default", "meaning")),
        ]
    lines += [
        f"## {DISCOVER}",
        _text(inspect.getdoc(DiscoverSettings) or ""),
        _table(_setting_rows(DiscoverSettings.model_fields), ("setting", "type", "default", "meaning")),
    ]
    return "\n\n".join(lines) + "\n"


def _setting_rows(fields: dict[str, FieldInfo]) -> Iterator[tuple[str, ...]]:
    for name, field in fields.items():
        extra = field.json_schema_extra
        secret = isinstance(extra, dict) and bool(extra.get("dagster__is_secret"))
        default = field.get_default(call_default_factory=True)
        yield (
            f"`{name}`",
            _type(field) + (", secret" if secret else ""),
            "" if default in ("", [], {}, None) else f"`{_scalar(default)}`",
            _text(field.description or ""),
        )


def _scalar(value: object) -> str:
    """A value in YAML syntax."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(field: FieldInfo) -> str:
    """The values that a setting takes, in words, with its limits."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f"`{each}`" if each else "empty" for each in get_args(kind))
    if NoneType in get_args(kind):
        return "list of texts"
    if get_origin(kind) in (Union, UnionType):
        return "number, or a number for each storage class; at least 0"
    if get_origin(kind) is list:
        return "list of texts"
    if get_origin(kind) is dict:
        return "texts by name" if get_args(kind)[1] is str else "sections by pattern"
    limits = [
        f"{words} {getattr(each, limit)}"
        for each in field.metadata
        for limit, words in (("gt", "above"), ("ge", "at least"), ("le", "at most"))
        if hasattr(each, limit)
    ]
    return ", ".join([_KINDS[kind], *limits])


def commands_page() -> str:
    """Every command with its options."""
    lines = [
        "# Commands",
        _NOTE,
        f"`{PROGRAM} COMMAND --help` prints the same. JSON output and completion: "
        "[the command line for scripts](../command-line.md).",
    ]
    for name in sorted(COMMANDS):
        lines += _described(name, COMMANDS[name].load(), 2)
    lines += [
        "## Exit statuses",
        _table(((str(int(status)), words) for status, words in MEANINGS.items()), ("status", "meaning")),
    ]
    return "\n\n".join(lines) + "\n"


def _described(name: str, command: click.Command, depth: int) -> list[str]:
    """A command's usage, help and options, followed by its subcommands."""
    context = click.Context(command, info_name=f"{PROGRAM} {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f"{'#' * depth} {name}",
        f"    {PROGRAM} {name} {usage}",
        *map(_text, inspect.cleandoc(command.help or "").split("\n\n")),
    ]
    options = [each for each in command.params if isinstance(each, click.Option)]
    if options:
        lines.append(_table((_option_row(each, context) for each in options), ("option", "meaning")))
    if isinstance(command, click.Group):
        for inner in sorted(command.commands):
            lines += _described(f"{name} {inner}", command.commands[inner], depth + 1)
    return lines


def _option_row(option: click.Option, context: click.Context) -> tuple[str, str]:
    """An option's entry in `--help`."""
    record = option.get_help_record(context)
    assert record is not None
    return f"`{record[0].replace('|', ', ')}`", _text(record[1])


def meanings(kind: type) -> dict[str, str]:
    """Definitions of the fields of a class, as its docstring gives them under Attributes."""
    stated = _ATTRIBUTE.findall((inspect.getdoc(kind) or "").partition("Attributes:")[2])
    return {name: " ".join(words.split()) for names, words in stated for name in names.split(", ")}


def report_page() -> str:
    """Every field of the report of a run."""
    meaning = meanings(Report)
    types = get_type_hints(Report)
    names = [field.name for field in fields(Report)]
    rows = ((f"`{name}`", _json_type(types[name]), _text(meaning[name])) for name in names)
    lines = [
        "# The report of a run",
        _NOTE,
        "Each run, even a failed one, stores `report.json` in its folder, `_lakefs/retention/gc/uncommitted/RUN/`. "
        "`lakefs-gc run --json`, `approve --json` and `report --json` print it. Times are ISO 8601 in UTC, sizes are "
        f"bytes. This is format version {FORMAT_VERSION}; a program reads only reports of its own version "
        "([upgrading](../upgrading.md)). The entry `sha256` reveals accidental changes. `counts` and `object_bytes` "
        "have [the figures of a run](figures.md).",
        _table(rows, ("field", "type", "meaning")),
        "## Endings",
        "`ending` is one of these texts. Later versions may add texts; they change and remove none.",
        _table(((f"`{each.value}`",) for each in Ending), ("ending",)),
        "## Reasons to keep",
        "`kept` counts unreferenced objects that stay, by one of these texts.",
        _table(((f"`{each.value}`",) for each in Kept), ("reason",)),
    ]
    return "\n\n".join(lines) + "\n"


def figures_page() -> str:
    """Every figure of a run: its unit, where it is shown, the version that stated it first, and its definition."""
    lines = [
        "# The figures of a run",
        _NOTE,
        "One definition for each figure, wherever it is shown. A figure that a run does not know is absent: 0 says "
        "that there is none.",
        "- *Step*: the asset whose step counts the figure.\n"
        "- *Asset page*: the page of that asset and the manifest of its frame show the figure.\n"
        "- *Report*: [`report.json`](report.md) has the figure under `counts`, if it is in bytes under `object_bytes`, "
        "without `_bytes`. Derived figures follow from the report. `lakefs-gc metrics` gives both kinds: objects and "
        "addresses as `lakefs_gc_last_run_objects`, bytes as `lakefs_gc_last_run_bytes`, with these names as `kind`.\n"
        "- *History*: its name in the plots of the asset `collection_history`.\n"
        "- *Since*: the version that stated it first; files of earlier versions lack it.",
        _table(
            (_figure_row(name, figure) for name, figure in FIGURES.items()),
            ("figure", "unit", "step", "asset page", "report", "history", "since", "meaning"),
        ),
        "## The history",
        "Events of `collection_history` have these, too.",
        _table(
            ((f"`{name}`", figure.unit, _text(figure.meaning)) for name, figure in HISTORY_FIGURES.items()),
            ("figure", "unit", "meaning"),
        ),
    ]
    return "\n\n".join(lines) + "\n"


def _figure_row(name: str, figure: Figure) -> tuple[str, ...]:
    in_report = "yes" if figure.reported else "" if name in STEP_FIGURES else "derived"
    return (
        f"`{name}`",
        figure.unit,
        f"`{figure.step}`" if figure.step else "all",
        "yes" if name in STEP_FIGURES else "",
        in_report,
        f"`{figure.event}`" if figure.event else "",
        figure.since,
        _text(figure.meaning),
    )


def _json_type(kind: object) -> str:
    """The type of a field, in JSON terms."""
    if isinstance(kind, UnionType):
        return " or ".join(dict.fromkeys(_json_type(each) for each in get_args(kind)))
    if get_origin(kind) is dict:
        values = get_args(kind)[1]
        return "object" if get_origin(values) is dict else f"{_json_type(values)} by name"
    if get_origin(kind) is tuple:
        return f"list of {_json_type(get_args(kind)[0])}"
    return _JSON_TYPES[kind]


def _text(words: str) -> str:
    """A text of the code as Markdown that shows it literally, except for its backticks."""
    words = " ".join(words.split())
    parts = re.split(r"(`[^`]*`)", words)
    return "".join(part if part.startswith("`") else re.sub(r"([*<>])", r"\\\1", part) for part in parts).replace(
        "|", "\\|"
    )


def _table(rows: Iterator[tuple[str, ...]], head: tuple[str, ...]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def policy_schema() -> str:
    """The JSON schema of a policy file: the checks of its reader, except for dates and names that need a server."""
    duration = {"type": "string", "pattern": r"^\d{1,9}[hdw]$"}
    flag = {"type": "boolean"}
    pattern = {"pattern": r"^[A-Za-z0-9_./*?\[\]!{},-]{1,1000}$"}
    names = {"type": "array", "items": {"type": "string", **pattern}}
    count = {"type": "integer", "minimum": 1, "maximum": 100_000}
    rule = {
        "type": "object",
        "additionalProperties": False,
        "required": ["retention"],
        "properties": {
            "retention": duration,
            "keep_last": {**count, "description": "How many of the newest commits stay."},
            "keep": {
                "type": "object",
                "description": "For how many days, weeks, months, years that have any the newest commit stays.",
                "additionalProperties": False,
                "properties": dict.fromkeys(("daily", "weekly", "monthly", "yearly"), count),
            },
            "follow": {
                "enum": ["first-parents", "all-parents"],
                "description": "Whether the retention counts for what merges brought in, too.",
            },
        },
    }
    properties = {
        "default": {**duration, "description": "Retention of branches that no rule fits, and of dangling commits."},
        "branches": {
            "type": "object",
            "description": "Retention by name or pattern of branches: * ? [abc] [!abc] {a,b}.",
            "propertyNames": pattern,
            "additionalProperties": {"anyOf": [duration, rule]},
        },
        "pinned": {
            "type": "array",
            "description": "Ids of commits that stay whatever their age.",
            "items": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        },
        "keep_tags": {
            "anyOf": [flag, names],
            "description": "Whether tagged commits stay; so they do by default. A list: those of tags that one fits.",
        },
        "stale_after": {**duration, "description": "Branches whose head is older are reported, and nothing else."},
        "stale_branches": {
            "type": "array",
            "description": "Branches that `lakefs-gc branches` deletes if approved; the first rule that fits counts.",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["branches"],
                "properties": {
                    "branches": {"anyOf": [{"type": "string", **pattern}, names]},
                    "max_age": {**duration, "description": "Since the first commit of the branch's own."},
                    "max_inactivity": {**duration, "description": "Since its last commit or staged write."},
                    "uncommitted": {**flag, "description": "Whether uncommitted changes go with a branch."},
                },
            },
        },
        "lifecycle": _lifecycle_schema(duration, {"anyOf": [{"type": "string", **pattern}, names]}, count),
        "replace": {**flag, "description": "Whether the server's rules do not count. Needs a default."},
    }
    content = {
        "title": "A policy of retention",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": properties,
        "if": {"required": ["replace"], "properties": {"replace": {"const": True}}},
        "then": {"required": ["default"]},
    }
    return json.dumps(content, indent=1) + "\n"


def _lifecycle_schema(
    duration: Mapping[str, object], branches: Mapping[str, object], count: Mapping[str, object]
) -> dict[str, object]:
    """The schema of rules of object lifecycle; names must be unique, which it cannot say."""
    path = {"type": "string", "minLength": 1, "maxLength": 1000}
    paths = {"anyOf": [path, {"type": "array", "items": path, "minItems": 1, "maxItems": 100}]}
    kinds = ("older_than", "unchanged_for", "keep_newest")
    return {
        "type": "array",
        "description": "Objects that `lakefs-gc lifecycle` deletes if approved; the first rule that fits counts.",
        "maxItems": 100,
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "branches", "paths"],
            "oneOf": [{"required": [kind]} for kind in kinds],
            "dependentRequired": {"keep_newest": ["of"], "of": ["keep_newest"], "partition": ["of"]},
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z0-9-]{1,60}$"},
                "branches": branches,
                "paths": {**paths, "description": "Paths, folders with a slash at the end, and patterns: * **."},
                "except": {**paths, "description": "Paths that stay."},
                "older_than": {**duration, "description": "By the time of the object."},
                "unchanged_for": {
                    **duration,
                    "description": "Since the path got its object, by the commits of the branch.",
                },
                "keep_newest": {**count, "description": "How many partitions or objects of each folder stay."},
                "of": {"enum": ["partitions", "objects"]},
                "partition": {
                    "type": "string",
                    "pattern": "^[\\w.-]{1,100}$",
                    "description": "Key of partitions, such as dt.",
                },
            },
        },
    }


GENERATED: dict[Path, Callable[[], str]] = {
    DOCS / "reference" / "settings.md": settings_page,
    DOCS / "reference" / "commands.md": commands_page,
    DOCS / "reference" / "report.md": report_page,
    DOCS / "reference" / "figures.md": figures_page,
    DOCS / "reference" / "lakefs-gc.schema.json": schema,
    DOCS / "reference" / "policy.schema.json": policy_schema,
}
"""The function that writes each generated page."""


def main() -> None:
    """Writes the pages."""
    for file, page in GENERATED.items():
        file.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
