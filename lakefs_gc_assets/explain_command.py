"""`lakefs-gc explain`: why one object stays or goes."""

from pathlib import Path

import click

from lakefs_gc_assets.command_options import CONFIG, REPOSITORY, loaded_configuration, one_line_errors


@click.command()
@CONFIG
@REPOSITORY
@click.argument("address")
def explain(file: Path | None, repository: str | None, address: str) -> None:
    """Says why the object at ADDRESS stays or goes.

    ADDRESS is relative to the storage namespace (data/…), or a physical address in full. Every range of the repository
    is read.
    """
    with one_line_errors():
        loaded = loaded_configuration(file, repository)
        from lakefs_gc_assets.explaining import explained

        for line in explained(loaded, address, lambda line: click.echo(line, err=True)):
            click.echo(line)
