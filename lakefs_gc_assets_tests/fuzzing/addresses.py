"""Addresses as entries may spell them: any spelling of a key keeps that key, and no address elsewhere is inside."""

import random
import re
from urllib.parse import quote, unquote

from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets_tests.fuzzing.mutation import HOSTILE_TEXTS, hostile_text
from lakefs_gc_assets_tests.fuzzing.running import Case, Target

_SPELLINGS = {
    "s3://bucket/repo": ("s3://bucket/repo/", "s3a://bucket/repo/", "s3n://bucket//repo/", "S3://bucket/repo//"),
    "gs://bucket/a b": ("gs://bucket/a b/", "gcs://bucket/a%20b/"),
    "local://repo": ("local://repo/",),
    "https://account.blob.core.windows.net/container/repo": (
        "https://account.dfs.core.windows.net/container/repo/",
        "abfss://container@ACCOUNT.dfs.core.windows.net/repo/",
        "wasb://container@account.blob.core.windows.net/repo/",
    ),
}
_ELSEWHERE = {
    "s3://bucket/repo": ("s3://bucket/repo2/", "s3://bucket2/repo/", "gs://bucket/repo/", "s3://bucket/", "s3://x/"),
    "gs://bucket/a b": ("gs://bucket/a/", "gs://bucket/a+b/", "s3://bucket/a b/"),
    "local://repo": ("local://repo2/", "s3://repo/"),
    "https://account.blob.core.windows.net/container/repo": (
        "https://account.blob.core.windows.net/container2/repo/",
        "abfs://container@account2.dfs.core.windows.net/repo/",
        "abfs://account@container.dfs.core.windows.net/repo/",
    ),
}
_NAMESPACES = {uri: Namespace.parse(uri) for uri in _SPELLINGS}
_TYPES = (*AddressType, 7, 255)
_USUAL = "data/g4uk6erfnfus73frbnqg/dc0n8tpksdu988af5sdg,LUas8wrQe8Hzoq3Ux5a4TOJhAC6mWEfg4QyauNaM7XQ"


def _key(rng: random.Random) -> str:
    """A key that lakeFS or an importer may have chosen: any non-empty text that is no full address."""
    key = "/".join(hostile_text(rng, segment) for segment in _USUAL.split("/"))
    return key if rng.random() < 0.8 else rng.choice(HOSTILE_TEXTS) + key


def _spelt(rng: random.Random, key: str) -> str:
    """An escaped form of a key; decoding it once returns the key."""
    escaped = rng.choice((quote(key), quote(key, safe=""), key.replace("%", "%25").replace("?", "%3F")))
    if rng.random() < 0.3:
        escaped = re.sub("/", lambda _: "/" * rng.randrange(1, 4), escaped)
    return escaped + rng.choice(("", "", "?a=b", "?"))


def _plain(key: str) -> bool:
    """True if a key has no empty segments: empty ones cannot be told from doubled slashes."""
    return all(key.split("/"))


def _spelling_case(rng: random.Random) -> Case:
    """Any spelling of a key is kept, under any address type."""
    uri = rng.choice(list(_SPELLINGS))
    namespace, key = _NAMESPACES[uri], _key(rng)
    verbatim = rng.random() < 0.4
    starts = [namespace.uri, *_SPELLINGS[uri]]
    if verbatim:  # A client that escapes part of an address escapes the whole.
        starts = [start for start in starts if "%" not in start and "//" not in start.partition("://")[2]]
    address = rng.choice(starts) + (key if verbatim else _spelt(rng, key))
    if verbatim and rng.random() < 0.5 and not re.match("[^/]+://", key):
        address = key

    def run() -> str:
        for address_type in _TYPES:
            found = namespace.live_keys(address, address_type)
            if key.strip("/") and (verbatim or _plain(key)):
                assert key in found, f"{address!r} does not mean {key!r} but {found}"
            _require_sound(address, found)
        return "full" if address != key else "relative"

    return Case(len(address), run)


def _elsewhere_case(rng: random.Random) -> Case:
    """An address of another repository has no key here."""
    uri = rng.choice(list(_ELSEWHERE))
    start = rng.choice(_ELSEWHERE[uri])
    key = re.sub("^/*(repo|a b)?", "", unquote(_key(rng)).replace("?", ""))
    address = start + _spelt(rng, key)

    def run() -> str:
        for address_type in (AddressType.FULL, AddressType.BY_PREFIX_DEPRECATED, 7):
            assert _NAMESPACES[uri].live_keys(address, address_type) == (), address
        assert _NAMESPACES[uri].relative(address) is None
        return "outside"

    return Case(len(address), run)


def _any_case(rng: random.Random) -> Case:
    """Any text gives keys that can be compared with listed ones."""
    address, uri = (
        hostile_text(rng, rng.choice((_USUAL, "s3://bucket/repo/data/x", "abfs://c@a/x"))),
        "s3://bucket/repo",
    )

    def run() -> str:
        found = _NAMESPACES[uri].live_keys(address, rng.choice(_TYPES))
        _require_sound(address, found)
        return "inside" if found else "outside"

    return Case(len(address), run)


def _require_sound(address: str, found: tuple[str, ...]) -> None:
    """Each key is an end of the address, perhaps decoded or without a query."""
    assert len(found) == len(set(found)) <= 128
    wholes = {address}
    for _ in range(4):
        wholes |= {form for whole in wholes for form in (unquote(whole), whole.partition("?")[0])}
    ends = {_without_slashes(whole) for whole in wholes}
    for key in found:
        assert key.strip("/")
        assert any(end.endswith(_without_slashes(key)) for end in ends), (address, key)


def _without_slashes(text: str) -> str:
    return text.replace("/", "")


def _case(rng: random.Random) -> Case:
    return rng.choice((_spelling_case, _spelling_case, _elsewhere_case, _any_case))(rng)


TARGETS = (Target("addresses", _case, frozenset({"full", "relative", "inside", "outside"})),)
