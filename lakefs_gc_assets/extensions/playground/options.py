"""Options that the commands of the playground share."""

from pathlib import Path

import click

RULES = click.option(
    "--rules",
    type=click.Choice(["oss", "seed"]),
    default="oss",
    show_default=True,
    help="lakeFS variant that the embedded server imitates for copies and issued addresses.",
)
OBJECTS = click.option("--objects", default=500, show_default=True, help="Size of the sample repository.")
FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".playground"),
    show_default=True,
    help="Folder for the files of the embedded server.",
)
STORE_URL = click.option(
    "--store-url",
    default="",
    help="Bucket and prefix for the objects, such as s3://bucket/prefix, instead of a local folder. Credentials and "
    "endpoint come from the environment, as for the AWS command line.",
)
