"""What every command shares: how it finds its configuration, and how it says what went wrong."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from lakefs_gc_assets.configuration import (
    CONFIGURATION_VARIABLE,
    DEFAULT_FILE,
    Configuration,
    Loaded,
    default_file,
)
from lakefs_gc_assets.errors import CollectionError, ConfigurationError
from lakefs_gc_assets.repositories import load_all, named

CONFIG = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Configuration file; by default the one named by {CONFIGURATION_VARIABLE}, else {DEFAULT_FILE}.",
)
REPOSITORY = click.option(
    "--repository", help="Name of the lakeFS repository: in place of the file's, or out of its list."
)


def loaded_configuration(file: Path | None, repository: str | None) -> Loaded:
    """The configuration that options, environment and working folder name; its secrets are there.

    Raises ConfigurationError.
    """
    chosen = file or default_file()
    if chosen is None:
        raise ConfigurationError(
            f"no configuration: give --config, set {CONFIGURATION_VARIABLE}, or put a {DEFAULT_FILE} here"
        )
    found = load_all(chosen)
    loaded = found[0] if len(found) == 1 else named(found, repository)
    if repository and len(found) == 1:
        content = {**loaded.configuration.model_dump(), "repository": repository}
        loaded = replace(loaded, configuration=Configuration.model_validate(content))
    if not loaded.configuration.repository:
        raise ConfigurationError(f"no repository is named: give --repository, or set `repository` in {chosen}")
    loaded.with_secrets()
    return loaded


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns what went wrong into one line on standard error and exit status 1."""
    if "DAGSTER_HOME" not in os.environ:
        logging.getLogger("dagster").setLevel(logging.ERROR)
    try:
        yield
    except CollectionError as error:
        click.echo(f"lakefs-gc: {error}", err=True)
        sys.exit(1)
