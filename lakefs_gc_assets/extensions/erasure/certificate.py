"""The certificate of an erasure: the requested paths, every address's state in the store, and a signature.

It is a JSON object with the members `content`, `public_key` and `signature`. The signature is Ed25519 over the content
in canonical form: keys sorted, no spaces, UTF-8. The Merkle root covers the receipts of the addresses, in their order.
A leaf is SHA-256 of a zero byte and the receipt in canonical form. A node is SHA-256 of a one byte and its two
children. A node without a sibling moves up unchanged.
"""

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, FRAMES, STEPS
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import ConfigurationError, CorruptFile
from lakefs_gc_assets.extensions.erasure.find import ErasureFindings, Held
from lakefs_gc_assets.extensions.erasure.remains import Remains, VersionOutcome, look
from lakefs_gc_assets.storage.interface import ObjectStore, head_if_there

FORMAT_VERSION = 1
LIMITS = (
    "It does not cover backups, replicas, inventories, logs and copies outside of this storage namespace.",
    "It does not cover objects that another lakeFS server, or any other writer, has on this storage namespace under "
    "other addresses.",
    "Addresses were found by the paths of commits, and of objects staged at that time. An object that was "
    "overwritten before it was committed has no path any more: a usual run deletes it.",
    "The object store was asked for the objects. Objects that it keeps but does not list, such as softly deleted ones, "
    "are unknown.",
)
_NO_VERSIONS = "The object store does not list versions to this program, so versions that it may keep are unknown."
_MAKE_KEY = "Make one: lakefs-gc erase --new-key erasure.pem"
_WHERE_PUBLIC_KEY = "`lakefs-gc erase --new-key erasure.pem` writes it beside the key, as erasure.pub"
_MEMBERS = frozenset(["content", "public_key", "signature"])
_DELETED = (*receipts.GONE, Outcome.PURGED.value)
"""Outcomes in receipts which prove that the program deleted an object or its copy."""
_HOW = "neither a request for the object nor a listing finds it: of its folder, of quarantine"


def new_key() -> tuple[bytes, bytes]:
    """A new Ed25519 key and its public half, both in PEM without a password."""
    key = Ed25519PrivateKey.generate()
    return (
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


def read_private_key(data: bytes) -> Ed25519PrivateKey:
    """An Ed25519 key in PEM without a password. Raises ConfigurationError."""
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"the key cannot be read: {error}. {_MAKE_KEY}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(f"the key is no Ed25519 key. {_MAKE_KEY}")
    return key


def read_public_key(data: bytes) -> Ed25519PublicKey:
    """The public half of an Ed25519 key, in PEM. Raises ConfigurationError."""
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"the public key cannot be read: {error}. {_WHERE_PUBLIC_KEY}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError(f"the public key is no Ed25519 key. {_WHERE_PUBLIC_KEY}")
    return key


def make(
    repository: OpenRepository,
    finding: ErasureFindings,
    run_id: str,
    versions: Collection[VersionOutcome],
    failures: Sequence[str],
) -> dict[str, Any]:
    """The content of a certificate, after reading the store again. Raises CollectionError.

    Args:
        finding: the approved finding.
        run_id: the run that deleted the objects that nothing held.
        versions: outcomes of the versions to be erased.
        failures: parts of the erasure that ended early, with the reason.
    """
    store, found = repository.store, {each.address: each for each in finding.addresses}
    of_address: defaultdict[str, list[VersionOutcome]] = defaultdict(list)
    for version in versions:
        of_address[version.address].append(version)
    remains = look(repository, [*found])
    committed = files.read_manifest(store, run_id, COMMITTED_DF).figures
    gone = {each.address for each in remains if each.is_gone}
    rows = _read_all_receipts(store, {run_id, *finding.quarantined_by}, found.keys(), gone)
    content = {
        "incomplete": [*finding.gaps, *failures],
        "format_version": FORMAT_VERSION,
        "repository": finding.repository,
        "storage_namespace": finding.storage_namespace,
        "asked": finding.asked,
        "unmatched": finding.unmatched,
        "hints": finding.hints,
        "approved_digest": finding.digest,
        "issued_at": repository.clock.now(),
        "addresses": [_state(each, found[each.address], of_address[each.address]) for each in remains],
        "searched": {
            "from": finding.started_at,
            "to": finding.ended_at,
            "commits": finding.commits,
            "ranges": finding.ranges,
            "entries": finding.entries,
            "unread": finding.unread,
            "elsewhere": finding.elsewhere,
        },
        "run": {
            "run_id": run_id,
            "commits": committed.commits,
            "ranges": committed.ranges_read,
            "frames": {name: files.read_manifest(store, run_id, FRAMES[name]).digest for name in STEPS},
        },
        "receipts": rows,
        "merkle_root": merkle_root(rows),
        "limits": [*LIMITS, *([_NO_VERSIONS] if any(each.versions is None for each in remains) else [])],
    }
    # Gaps come first for the reader; the signature covers sorted keys.
    stated: dict[str, Any] = {"incomplete": [], **json.loads(_canonical(content))}
    return stated


def _state(remains: Remains, found: Held, versions: Collection[VersionOutcome]) -> dict[str, Any]:
    """A certificate's statement about an address and its erased versions."""
    refused = {version.name: version.error for version in versions if version.error is not None}
    return {
        "address": remains.address,
        "paths": found.paths,
        "is_gone": remains.is_gone,
        "seen_at": remains.seen_at,
        "how": _describe(remains, bool(found.holders), refused),
        "erased_versions": sorted(version.name for version in versions if version.error is None),
        "refused_versions": refused,
    }


def _describe(remains: Remains, is_held: bool, refused: Mapping[str, str]) -> str:
    """The evidence that an address is gone, or the reason it is not."""
    if remains.is_gone:
        return _HOW if remains.versions is None else f"{_HOW}, and of versions"
    if is_held:
        return "it is held, and was not touched"
    if refused:
        return f"{remains} is left: the store refused to delete {'; '.join(map(': '.join, refused.items()))}"
    return f"{remains} is left: `lakefs-gc explain {remains.address}` says why a run keeps it"


def read_receipts(store: ObjectStore, run_ids: Collection[str], addresses: Collection[str]) -> list[dict[str, Any]]:
    """The receipts of runs for addresses, in canonical order, without empty members. Raises CorruptFile."""
    return _in_order(row for run_id in run_ids for row in _read_rows(store, run_id, addresses))


def _in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    stated: list[dict[str, Any]] = json.loads(_canonical([*rows]))
    return sorted(stated, key=_canonical)


def _read_rows(
    store: ObjectStore, run_id: str, addresses: Collection[str], damaged: receipts.DamagedFile | None = None
) -> Iterator[dict[str, Any]]:
    wanted = pa.array(sorted(addresses), pa.string())
    for table in receipts.read_files(store, receipts.keys(store, run_id), damaged):
        rows = table.filter(pc.is_in(table.column("address"), value_set=wanted))
        for row in rows.drop_columns(["slice", "slice_window"]).to_pylist():
            yield {"run_id": run_id, **{name: value for name, value in row.items() if value is not None}}


def _read_all_receipts(
    store: ObjectStore, run_ids: Collection[str], addresses: Collection[str], gone: Collection[str]
) -> list[dict[str, Any]]:
    """The receipts of these runs for the addresses; earlier runs supply missing receipts.

    An erasure that ended without a certificate is such an earlier run. Damaged receipts of earlier runs are ignored
    during this search.

    Raises CorruptFile for damaged receipts of the given runs.
    """
    rows = [row for run_id in run_ids for row in _read_rows(store, run_id, addresses)]
    missing = {*gone} - _deleted(rows)
    for run_id in run_folder.newest_runs(store) if missing else ():
        earlier = () if run_id in run_ids else _read_rows(store, run_id, missing, lambda damage: None)
        if deleted := _deleted(earlier):
            rows += _read_rows(store, run_id, addresses)
            missing -= deleted
        if not missing:
            break
    return _in_order(rows)


def _deleted(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """Addresses that have a receipt of a deletion."""
    return {row["address"] for row in rows if row["outcome"] in _DELETED}


def list_without_receipt(content: Mapping[str, Any]) -> list[str]:
    """Addresses that a certificate calls gone, but without a receipt for their deletion."""
    deleted = _deleted(content["receipts"])
    return [each["address"] for each in content["addresses"] if each["is_gone"] and each["address"] not in deleted]


def merkle_root(rows: Iterable[Mapping[str, Any]]) -> str:
    """The Merkle root of receipts, in hexadecimal."""
    level = [hashlib.sha256(b"\0" + _canonical(row)).digest() for row in rows]
    while len(level) > 1:
        pairs = [level[place : place + 2] for place in range(0, len(level), 2)]
        level = [hashlib.sha256(b"\1" + b"".join(pair)).digest() if len(pair) == 2 else pair[0] for pair in pairs]
    return (level[0] if level else hashlib.sha256().digest()).hex()


def sign(content: Mapping[str, Any], key: Ed25519PrivateKey) -> bytes:
    """The certificate as it is stored."""
    signed = {
        "content": content,
        "public_key": base64.b64encode(key.public_key().public_bytes_raw()).decode(),
        "signature": base64.b64encode(key.sign(_canonical(content))).decode(),
    }
    return json.dumps(signed, indent=1, ensure_ascii=False).encode() + b"\n"


def read(data: bytes, file: str, key: Ed25519PublicKey) -> dict[str, Any]:
    """The content of a certificate, after checking its signature with this key and its Merkle root.

    Raises CorruptFile.
    """
    try:
        signed = json.loads(data, object_pairs_hook=_without_duplicates)
        if unknown := {*signed} - _MEMBERS:
            raise ValueError(f"its signature does not cover its member {min(unknown)!r}")
        content, signature = signed["content"], base64.b64decode(signed["signature"], validate=True)
        if base64.b64decode(signed["public_key"], validate=True) != key.public_bytes_raw():
            raise InvalidSignature
        key.verify(signature, _canonical(content))
        version, rows, root = content["format_version"], content["receipts"], content["merkle_root"]
    except InvalidSignature:
        raise CorruptFile(file, "signature", "it was not signed by this key, or was altered after that") from None
    except RecursionError:
        raise CorruptFile(file, "certificate", "it is no certificate: it is nested too deeply") from None
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptFile(file, "certificate", f"it is no certificate: {error!r}") from None
    if version != FORMAT_VERSION:
        raise CorruptFile(file, "format_version", f"it is of format {version}, this program reads {FORMAT_VERSION}")
    if merkle_root(rows) != root:
        raise CorruptFile(file, "Merkle root", "it does not match the receipts")
    stated: dict[str, Any] = content
    return stated


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError for a duplicate name: parsers disagree on which value counts."""
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has the member {max(names, key=names.count)!r} twice")
    return members


def verify(repository: OpenRepository, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Statements of a certificate that the store now contradicts; empty if there are none.

    Raises ConfigurationError for a certificate of another repository, CollectionError if the store cannot be read.
    """
    own = (repository.facts.id, repository.namespace.uri)
    if (content["repository"], content["storage_namespace"]) != own:
        raise ConfigurationError(
            f"the certificate is about {content['repository']} at {content['storage_namespace']}, and this is {own[0]} "
            f"at {own[1]}"
        )
    stated = {each["address"]: each for each in content["addresses"]}
    problems = [
        f"{remains.address} is not gone: {remains} is there, and the certificate says that it was gone at "
        f"{stated[remains.address]['seen_at']}"
        for remains in look(repository, stated)
        if stated[remains.address]["is_gone"] and not remains.is_gone
    ]
    own_run = content["run"]["run_id"]
    if head_if_there(repository.store, run_folder.plan(own_run)) is None:
        problems.append(
            f"run {own_run}, which erased the objects, is not in the store: its files were deleted, or this is another "
            "store of the same name"
        )
    run_ids = {own_run, *(row["run_id"] for row in content["receipts"])}
    # Addresses that were not gone may have further receipts by now, such as of the purge of their copies.
    gone = {address for address, state in stated.items() if state["is_gone"]}
    certified = [row for row in content["receipts"] if row["address"] in gone]
    if read_receipts(repository.store, run_ids, gone) != certified:
        problems.append(f"the receipts of run {', '.join(sorted(run_ids))} in the store differ from the certificate's")
    return tuple(problems)


def _canonical(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=datetime.isoformat)
    return text.encode()
