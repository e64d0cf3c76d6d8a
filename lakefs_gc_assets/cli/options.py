"""What commands share: options, and how they find their configuration."""

import json
import logging
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import click

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.repositories import load_all, named
from lakefs_gc_assets.saying import Say
from lakefs_gc_assets.settings import CONFIGURATION_VARIABLE, DEFAULT_FILE, Configuration, Loaded, default_file

CONFIG = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Configuration file; by default the one named by {CONFIGURATION_VARIABLE}, else {DEFAULT_FILE}.",
)
REPOSITORY = click.option(
    "--repository", help="Name of the lakeFS repository: in place of the file's, or out of its list."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Answer in JSON, as docs/command-line.md describes.")
QUIET = click.option("--quiet", is_flag=True, help="Say on standard error only warnings and what went wrong.")
VERBOSE = click.option("--verbose", is_flag=True, help="Say also what Dagster says of each step.")
RULES = click.option(
    "--rules",
    type=click.Choice(["oss", "seed"]),
    default="oss",
    show_default=True,
    help="How the embedded server treats copies and issued addresses.",
)
OBJECTS = click.option("--objects", default=500, show_default=True, help="Size of the sample repository.")
FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".playground"),
    show_default=True,
    help="Where the embedded server keeps its files.",
)
STORE_URL = click.option(
    "--store-url",
    default="",
    help="Bucket and prefix for the objects, such as s3://bucket/prefix, instead of a local folder. Credentials and "
    "endpoint come from the environment, as for the AWS command line.",
)


def loaded_configuration(file: Path | None, repository: str | None) -> Loaded:
    """The configuration that options, environment and working folder name; its secrets are there.

    Raises ConfigurationError.
    """
    chosen = _chosen(file)
    found = load_all(chosen)
    loaded = found[0] if len(found) == 1 else named(found, repository, "--repository")
    if repository and len(found) == 1:
        content = {**loaded.configuration.model_dump(), "repository": repository}
        loaded = replace(loaded, configuration=Configuration.model_validate(content))
    if not loaded.configuration.repository:
        raise ConfigurationError(f"no repository is named: give --repository, or set `repository` in {chosen}")
    loaded.with_secrets()
    return loaded


def loaded_configurations(file: Path | None) -> tuple[Loaded, ...]:
    """The configurations of all repositories of the file; their secrets are there. Raises ConfigurationError."""
    chosen = _chosen(file)
    found = load_all(chosen)
    for loaded in found:
        if not loaded.configuration.repository:
            raise ConfigurationError(f"no repository is named: set `repository` in {chosen}")
        loaded.with_secrets()
    return found


def _chosen(file: Path | None) -> Path:
    chosen = file or default_file()
    if chosen is None:
        raise ConfigurationError(
            f"no configuration: give --config, set {CONFIGURATION_VARIABLE}, or put a {DEFAULT_FILE} here"
        )
    return chosen


def level_of(quiet: bool, verbose: bool) -> int:
    """The level of the lines that are told, as in `logging`. Raises UsageError where both are given."""
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other.")
    return logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO


def answer(content: object, indent: int | None = 1) -> None:
    """Answers in JSON; times are ISO 8601.

    Args:
        indent: None for one line.
    """
    click.echo(json.dumps(content, default=datetime.isoformat, indent=indent, ensure_ascii=False))


def show_progress(line: str) -> None:
    """Says a line on standard error, apart from what the command answers."""
    click.echo(line, err=True)


def progress_unless(quiet: bool) -> Say:
    """Says lines of progress, or takes them where nobody wants to see any."""
    return (lambda line: None) if quiet else show_progress
