"""Planted secrets, and checks that no visible output of a run contains them or a large part."""

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq

_PART = 10
"""Leading characters of a secret that count as a leak."""


def spellings(*secrets: str) -> frozenset[str]:
    """Possible spellings of secrets."""
    return frozenset(spelling for secret in secrets for spelling in (secret, quote(secret), quote(secret, safe="")))


def basic(user: str, password: str) -> str:
    """Credentials as HTTP basic authorization sends them."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def require_absent(secrets: Iterable[str], text: str, where: str = "") -> None:
    """Fails if a text contains a secret, or a large part."""
    for secret in secrets:
        assert secret not in text, f"{secret} is in {where or text[:2000]}"
        assert secret[:_PART] not in text, f"a part of {secret} is in {where or text[:2000]}"


def contents(folder: Path) -> Iterator[tuple[str, str]]:
    """Every file of a folder with its content as text; tables are decoded."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            read = str(pq.read_table(file).to_pylist()) if file.suffix == ".parquet" else ""
            yield str(file), file.read_bytes().decode("latin-1") + read
