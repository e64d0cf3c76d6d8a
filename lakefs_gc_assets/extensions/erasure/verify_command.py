"""`lakefs-gc verify`: checks the certificate of an erasure against the store."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from lakefs_gc_assets.cli.common import JSON, Target, on_repository, open_repository, print_answer
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.errors import ConfigurationError, counted
from lakefs_gc_assets.extensions.erasure import certificate

_HOLDS = "the signature holds, the receipts match those in the store, and no erased object has come back"
_HOLDS_WITHOUT_RECEIPTS = "the signature holds, and no erased object has come back; some deletions have no receipt"
FILE = click.Path(path_type=Path, dir_okay=False)


def read_file(file: Path) -> bytes:
    """The content of a file. Raises ConfigurationError."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None


@click.command()
@on_repository
@click.option("--key", required=True, type=FILE, help="The signer's public Ed25519 key, in PEM.")
@JSON
@click.argument("certificate_file", metavar="CERTIFICATE", type=FILE)
def verify(target: Target, key: Path, as_json: bool, certificate_file: Path) -> None:
    """Checks a certificate of `lakefs-gc erase`, and that its objects are still gone.

    The signature must be valid for this key, and the Merkle root must match the receipts. The command searches the
    store for every object that the certificate calls gone, and compares the receipts with those of the run.

    Exit status 0 if all of this holds and everything was gone, 6 if an object exists or the certificate is incomplete.
    """
    loaded = target.loaded
    public_key = certificate.read_public_key(read_file(key))
    content = certificate.read(read_file(certificate_file), str(certificate_file), public_key)
    opened = open_repository(loaded, to_read=True)
    problems = certificate.verify(opened, content)
    verdict = _HOLDS_WITHOUT_RECEIPTS if certificate.list_without_receipt(content) else _HOLDS
    lines = [*describe_certificate(content), *content["limits"], *(problems or [verdict])]
    print_answer(as_json, lambda: {"certificate": content, "problems": problems}, lines)
    if problems or not is_complete(content):
        sys.exit(Status.INCOMPLETE)


def is_complete(content: Mapping[str, Any]) -> bool:
    """True if a certificate says that everything is gone and nothing was left out."""
    return all(each["is_gone"] for each in content["addresses"]) and not content.get("incomplete")


def describe_certificate(content: Mapping[str, Any]) -> Iterator[str]:
    """A certificate as lines: gaps, hints, addresses that are not gone or have no receipt, and the verdict."""
    addresses = content["addresses"]
    yield from (f"incomplete: {what}" for what in content.get("incomplete", ()))
    yield from (f"nothing found: {path}" for path in content.get("unmatched", ()))
    yield from (f"hint: {hint}" for hint in content.get("hints", ()))
    yield from (f"not gone: {each['address']}: {each['how']}" for each in addresses if not each["is_gone"])
    yield from (
        f"no receipt: {address} is gone, and no run of this repository has a receipt of its deletion"
        for address in certificate.list_without_receipt(content)
    )
    gone = sum(each["is_gone"] for each in addresses)
    yield f"{content['repository']}: {gone:,} of {counted(len(addresses), 'addresses')} gone at {content['issued_at']}"
