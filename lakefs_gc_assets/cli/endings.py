"""How a command ends that could not do what it was asked for."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from lakefs_gc_assets.errors import CollectionError


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
