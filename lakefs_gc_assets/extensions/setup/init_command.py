"""`lakefs-gc init`: writes an initial configuration file."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from lakefs_gc_assets.cli.common import JSON, print_answer
from lakefs_gc_assets.configuration_file import DEFAULT_FILE, schema
from lakefs_gc_assets.errors import CollectionError, ConfigurationError
from lakefs_gc_assets.storage.opening import KINDS

_SECTIONS = {name: section for kind in KINDS for name, section in kind.init_sections.items()}
"""Lines of the section `store`, by kind of store."""
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_SETTING = re.compile("# [a-z_]+: ")
_SCHEMA = "lakefs-gc.schema.json"
_PLAIN = re.compile(r"[A-Za-z/][\w./:~-]*")


@click.command()
@click.option("--endpoint", help="URL of the lakeFS server.")
@click.option("--repository", help="Name of the repository to collect.")
@click.option("--store", type=click.Choice([*_SECTIONS]), help="Store of the repository's objects.")
@click.option("--store-endpoint", help="URL of the store, for S3-compatible stores other than AWS.")
@click.option("--local-root", help="Folder that local:// storage namespaces are relative to.")
@click.option("--region", help="Region of the bucket; defaults to that of the environment.")
@click.option(
    "--key-variable",
    default="LAKEFS_ACCESS_KEY_ID",
    show_default=True,
    help="Environment variable that holds lakeFS's access key.",
)
@click.option(
    "--secret-variable",
    default="LAKEFS_SECRET_ACCESS_KEY",
    show_default=True,
    help="Environment variable that holds its secret key.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path(DEFAULT_FILE),
    show_default=True,
    help="File to write; an existing file is not changed.",
)
@JSON
def init(
    endpoint: str | None,
    repository: str | None,
    store: str | None,
    store_endpoint: str | None,
    local_root: str | None,
    region: str | None,
    key_variable: str,
    secret_variable: str,
    out: Path,
    as_json: bool,
) -> None:
    """Writes a first configuration file.

    Asks for values that are not given as options. The file contains no secrets: it names the environment variables that
    do. It configures dry runs; check it with `lakefs-gc doctor`. The command also writes lakefs-gc.schema.json beside
    the file, with which editors that have a YAML language server complete and check settings.
    """
    for option, variable in (("--key-variable", key_variable), ("--secret-variable", secret_variable)):
        if not _VARIABLE.fullmatch(variable):
            # The value may be the secret itself, so the message does not repeat it.
            raise click.UsageError(f"{option} must be the name of an environment variable, not its value.")
    _require_absent(out)
    endpoint = _url("--endpoint", endpoint, "URL of the lakeFS server")
    repository = repository or _ask("--repository", "Repository", value_proc=str.strip)
    store = store or _ask("--store", "Kind of object store", type=click.Choice([*_SECTIONS]), default="s3")
    answers = _Answers(store_endpoint, local_root, _scalar(region) if region else "")
    lines = [*_SECTIONS[store](answers), _SIGNING]
    text = _TEMPLATE.format(
        schema=_SCHEMA,
        repository=_scalar(repository),
        endpoint=_scalar(endpoint),
        key_variable=key_variable,
        secret_variable=secret_variable,
        store="\n".join(_section("store", lines)),
    )
    _write(out, text)
    written = {"file": str(out), "schema": str(out.with_name(_SCHEMA)), "variables": [key_variable, secret_variable]}
    stores = "" if store == "local" else ", and the store's credentials as described in its section `store`"
    line = f"wrote {out}. Set {key_variable} and {secret_variable}{stores}, then try: lakefs-gc doctor --config {out}"
    print_answer(as_json, lambda: written, [line])


def _require_absent(out: Path) -> None:
    if out.exists():
        raise CollectionError(f"{out} already exists and was not changed: give another file with --out, or remove it")


def _write(out: Path, text: str) -> None:
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
        # A schema beside the file works on every machine without a network, and in version control.
        out.with_name(_SCHEMA).write_text(schema(), encoding="utf-8")
    except FileExistsError:
        _require_absent(out)
    except OSError as error:
        raise CollectionError(f"cannot write {error.filename}: {error.strerror}") from None


def _ask(option: str, question: str, **prompt: Any) -> str:
    """Asks a question on the terminal, again after a UsageError. Raises UsageError if there is no terminal.

    Args:
        prompt: options of click.prompt.
    """
    try:
        return str(click.prompt(question, err=True, **prompt))
    except click.Abort:
        raise click.UsageError(f"there is no terminal to ask on: give {option}.") from None


@dataclass(frozen=True, slots=True)
class _Answers:
    """See InitAnswers."""

    _store_endpoint: str | None
    _local_root: str | None
    region: str

    def store_endpoint(self) -> str:
        return _scalar(_url("--store-endpoint", self._store_endpoint, "URL of the store"))

    def local_root(self) -> str:
        question = "Folder of the server's blockstore.local.path"
        return _scalar(self._local_root or _ask("--local-root", question, value_proc=str.strip))


def _url(option: str, value: str | None, question: str) -> str:
    """The URL from the option, or from the user's answer.

    Raises ConfigurationError, without the URL, if it contains a user or a password; UsageError if it is not a URL.
    """

    def parse(text: str) -> str:
        url = text.strip()
        if "@" in url:
            raise ConfigurationError(f"{option} contains a user or password: set credentials as environment variables")
        if not url.startswith(("http://", "https://")):
            raise click.UsageError(f"{option} must begin with http:// or https://")
        return url

    return parse(value) if value else _ask(option, question, value_proc=parse)


def _scalar(value: str) -> str:
    """A text as a YAML scalar: plain if YAML parses it back as the same text, otherwise quoted."""
    if _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _section(name: str, lines: Sequence[str]) -> list[str]:
    """A section with its lines. If all lines are comments, its name is too, because YAML has no empty sections."""
    if not all(line.startswith("#") for line in lines):
        return [f"{name}:", *(f"  {line}" for line in lines)]
    settings = [f"#   {line[2:]}" for line in lines if _SETTING.match(line)]
    return [*(line for line in lines if not _SETTING.match(line)), f"# {name}:", *settings]


_SIGNING = "# signing_key: {env: LAKEFS_GC_SIGNING_KEY}  # signs the files of runs: docs/security.md#signing-key"
_TEMPLATE = """\
# yaml-language-server: $schema={schema}
# Configuration of lakefs-gc. Commented-out lines show defaults, or examples if a sentence says so.
# Every setting, its meaning and its default: docs/reference/settings.md.
# Secrets come only from environment variables, such as {{env: NAME}}.

repository: {repository}

lakefs:
  endpoint: {endpoint}
  # A user with the rights of docs/policies/lakefs-collect.json.
  access_key_id: {{env: {key_variable}}}
  secret_access_key: {{env: {secret_variable}}}

{store}

collection:
  # A dry run marks, reports and deletes nothing. `lakefs-gc approve RUN` deletes its candidates.
  sweep: false
  # For a sweep that can be undone in any store: it moves objects to _lakefs/retention/gc/quarantine/.
  # sweep_mode: quarantine
  # quarantine_days: 14
  # Younger objects stay.
  # min_age_hours: 24
  # If clocks differ by more than half of this, the run ends.
  # clock_skew_minutes: 60
  # Larger shares of all objects are not swept.
  # max_candidate_share: 0.5

# spark:
#   driver_memory: 2g
#   many_objects: true  # with tens of millions

# Schedules and sensors that open runs are off until you turn them on in the Dagster UI.
# automation:
#   optimized_every_hours: 24
#   clean_cron: "0 2 * * 6"
#   time_zone: UTC
"""
