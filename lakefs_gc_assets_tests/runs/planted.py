"""Planted secrets, and looking for them, or a good part of one, in whatever can be seen of a run."""

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq

_PART = 10
"""So much of a secret is too much."""


def spellings(*secrets: str) -> frozenset[str]:
    """How secrets may be written."""
    return frozenset(spelling for secret in secrets for spelling in (secret, quote(secret), quote(secret, safe="")))


def basic(user: str, password: str) -> str:
    """What HTTP sends of them."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def require_absent(secrets: Iterable[str], text: str, where: str = "") -> None:
    """Fails where a secret, or a good part of one, is in a text."""
    for secret in secrets:
        assert secret not in text, f"{secret} is in {where or text[:2000]}"
        assert secret[:_PART] not in text, f"a part of {secret} is in {where or text[:2000]}"


def contents(folder: Path) -> Iterator[tuple[str, str]]:
    """Every file of a folder with its content as text, that of tables decoded."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            read = str(pq.read_table(file).to_pylist()) if file.suffix == ".parquet" else ""
            yield str(file), file.read_bytes().decode("latin-1") + read
