import json
import re
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.addresses import AddressType, Location, Namespace, parse_location
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, needs_recordings

FULL, RELATIVE, EITHER = AddressType.FULL, AddressType.RELATIVE, AddressType.BY_PREFIX_DEPRECATED
KEY = "data/g4uk6erfnfus73frbnqg/dc0n8tpksdu988af5sdg"
SIGNED = KEY + ",LUas8wrQe8Hzoq3Ux5a4TOJhAC6mWEfg4QyauNaM7XQ"

SPELLINGS_OF_A_NAMESPACE = {
    "s3://bucket/repo": ["s3://bucket/repo/", "s3a://bucket/repo/", "s3n://bucket/repo/", "S3://bucket/repo/"],
    "s3://bucket": ["s3://bucket/", "s3a://bucket/"],
    "s3://bucket/a b/repo/": ["s3://bucket/a b/repo/", "s3a://bucket/a%20b/repo/", "s3://bucket//a b//repo/"],
    # The bucket itself, by the alias of an access point, and vice versa.
    "s3://bucket/shared": [
        "s3://reader-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias/shared/",
        "s3a://reader-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias/shared/",
        "s3a://arn:aws:s3:eu-central-1:123456789012:accesspoint/reader/shared/",
    ],
    "s3://reader-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias/repo": ["s3://bucket/repo/", "s3a://other-s3alias/repo/"],
    # lakeFS decodes the path of a namespace, and spells addresses with the decoded path.
    "s3://bucket/my%20repo": ["s3://bucket/my%20repo/", "s3://bucket/my repo/", "s3a://bucket/my repo/"],
    "s3://bucket/100%25%2520": ["s3://bucket/100%25%2520/", "s3://bucket/100%%20/"],
    "gs://bucket/repo": ["gs://bucket/repo/", "gcs://bucket/repo/"],
    # A real server prepends the folder of its blockstore.
    "local://repo": ["local://repo/", "local:///var/lakefs/repo/", "local:///repo/repo/", "local:///srv//data//repo/"],
    "local://data/repo": ["local://data/repo/", "local:///var/lakefs/data/repo/", "local:///data/data/data/repo/"],
    "local://repo/my%20folder": ["local:///var/lakefs/repo/my folder/"],
    "https://account.blob.core.windows.net/container/repo": [
        "https://account.blob.core.windows.net/container/repo/",
        "https://account.dfs.core.windows.net/container/repo/",
        "https://ACCOUNT.blob.core.windows.net/container/repo/",
        "abfs://container@account.dfs.core.windows.net/repo/",
        "abfss://container@account.dfs.core.windows.net/repo/",
        "wasb://container@account.blob.core.windows.net/repo/",
        "wasbs://container@account.blob.core.windows.net/repo/",
    ],
}
NAMESPACES = st.sampled_from(
    [(Namespace.parse(uri), start) for uri, starts in SPELLINGS_OF_A_NAMESPACE.items() for start in starts]
)

SEGMENTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/%?"), min_size=1, max_size=6
) | st.sampled_from([KEY.split("/")[1], SIGNED.split("/")[2], "!ab", "a,b", "x y", "é"])
KEYS = st.sampled_from([KEY, SIGNED]) | st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)


@st.composite
def spelt(draw: st.DrawFn, key: str) -> str:
    """A spelling of a key that a writer may have chosen."""
    match draw(st.sampled_from(["plain", "quoted", "partly quoted", "wholly quoted"])):
        case "quoted":
            key = quote(key)
        case "partly quoted":
            key = key.replace(",", "%2C").replace(" ", "%20")
        case "wholly quoted":
            key = quote(key, safe="")
    if draw(st.booleans()):
        key = re.sub("/", lambda _: "/" * draw(st.integers(1, 3)), key)
    return draw(st.sampled_from(["", "", "/", "//"])) + key + draw(st.sampled_from(["", "", "/", "//", "?a=b/c", "/?"]))


@given(NAMESPACES, KEYS, st.data())
def test_every_full_spelling_of_a_key_means_it(
    namespace_and_start: tuple[Namespace, str], key: str, data: st.DataObject
) -> None:
    namespace, start = namespace_and_start
    address = start + data.draw(spelt(key))
    for address_type in (FULL, RELATIVE, EITHER, 7):
        assert key in namespace.live_keys(address, address_type)


@given(KEYS, st.data(), st.sampled_from([RELATIVE, EITHER, FULL, 7]))
def test_every_relative_spelling_of_a_key_means_it(key: str, data: st.DataObject, address_type: int) -> None:
    address = data.draw(spelt(key))
    assume("://" not in address)
    assert key in Namespace.parse("s3://bucket/repo").live_keys(address, address_type)


@pytest.mark.parametrize("address_type", [RELATIVE, EITHER, FULL])
@pytest.mark.parametrize("key", [KEY, SIGNED, "data/!ab/c/x/y", "d41d8cd98f00b204e9800998ecf8427e"])
def test_the_usual_spelling_is_one_key(key: str, address_type: AddressType) -> None:
    namespace = Namespace.parse("s3://bucket/repo")
    address = namespace.uri + key if address_type is FULL else key
    assert namespace.live_keys(address, address_type) == (key,)


OTHER_PLACES = {
    "s3://bucket/repo": [
        "s3://bucket/repo2/",
        "s3://bucket/repo-2/",
        "s3://bucket/repo%32/",
        "s3://bucket/rep/",
        "s3://bucket/Repo/",
        "s3://bucket/",
        "s3://bucket/x/repo/",
        "s3a://bucket/repo2/",
        "s3://bucket2/repo/",
        "s3://bucke/repo/",
        "s3://bucket.repo/",
        "s3://reader-s3alias/repo2/",
        "gs://reader-s3alias/repo/",
        "gs://bucket/repo/",
        "https://bucket/repo/",
        "local://bucket/repo/",
        "hdfs://bucket/repo/",
    ],
    "https://account.blob.core.windows.net/container/repo": [
        "https://account.blob.core.windows.net/container/repo2/",
        "https://account.blob.core.windows.net/container2/repo/",
        "https://account2.blob.core.windows.net/container/repo/",
        "abfs://container@account2.dfs.core.windows.net/repo/",
        "abfs://container2@account.dfs.core.windows.net/repo/",
        "abfs://account@container.dfs.core.windows.net/repo/",
        "s3://account/container/repo/",
    ],
    "s3://bucket/my%20repo": ["s3://bucket/my%20repo2/", "s3://bucket/my+repo/", "s3://bucket/myrepo/"],
    "local://repo": ["local://repo2/", "local://rep/", "local:///repo/", "s3://repo/", "local:///var/repo2/"],
}


@given(
    st.sampled_from([(uri, place) for uri, places in OTHER_PLACES.items() for place in places]),
    KEYS,
    st.sampled_from([FULL, EITHER, 7]),
)
def test_a_full_address_elsewhere_is_never_inside(uri_and_place: tuple[str, str], key: str, address_type: int) -> None:
    uri, place = uri_and_place
    assume(not key.startswith("repo"))
    namespace = Namespace.parse(uri)
    assert namespace.live_keys(place + key, address_type) == ()
    assert namespace.relative(place + key) is None


def test_a_query_ends_where_it_was_written_even_if_the_namespace_is_escaped() -> None:
    namespace = Namespace.parse("gs://bucket/a b")
    for start in ("gs://bucket/a b/", "gs://bucket/a%20b/", "gcs://bucket/a%20b/"):
        for address_type in AddressType:
            assert "data/x?y" in namespace.live_keys(f"{start}data/x%3Fy?version=1", address_type)


def test_the_namespace_itself_is_no_key() -> None:
    namespace = Namespace.parse("s3://bucket/repo")
    for address in ("s3://bucket/repo/", "s3a://bucket/repo/", "s3://bucket/repo//", "s3://bucket/repo"):
        assert namespace.live_keys(address, FULL) == ()
    for address_type in AddressType:
        assert namespace.live_keys("", address_type) == ()


def test_a_full_spelling_in_a_relative_entry_may_mean_two_keys() -> None:
    namespace = Namespace.parse("s3://bucket/repo")
    assert set(namespace.live_keys("s3://bucket/repo/data/x", RELATIVE)) >= {"s3://bucket/repo/data/x", "data/x"}


def test_a_key_may_look_like_a_scheme_further_on() -> None:
    namespace = Namespace.parse("s3://bucket/repo")
    assert "data/a://b" in namespace.live_keys("data/a://b", EITHER)
    assert parse_location("data/a://b") is None


@given(st.text(max_size=30), st.integers(0, 255))
def test_no_address_at_all_is_an_error(address: str, address_type: int) -> None:
    for key in Namespace.parse("s3://bucket/repo").live_keys(address, address_type):
        assert key
        key.encode()


def test_where_a_namespace_lies() -> None:
    def location(uri: str) -> Location:
        return Namespace.parse(uri).location

    assert location("s3://bucket/repo") == location("s3a://bucket/repo//") == Location("s3", "bucket", "repo/")
    assert location("s3://bucket") == location("s3://bucket/") == Location("s3", "bucket", "")
    # lakeFS trims slashes around the namespace's path before it joins keys to it.
    assert location("s3://bucket//repo") == Location("s3", "bucket", "repo/")
    assert location("local://repo") == Location("local", "repo", "")
    assert location("https://a.blob.core.windows.net/c/repo") == location("abfs://c@a.dfs.core.windows.net/repo/")
    assert Namespace.parse("s3://bucket/repo//").uri == "s3://bucket/repo/"


@pytest.mark.parametrize(
    ("address", "location"),
    [
        ("s3://bucket/data/a://b", Location("s3", "bucket", "data/a://b")),
        ("s3://arn:aws:s3:eu:1:accesspoint/name/a/b", Location("s3", "arn:aws:s3:eu:1:accesspoint/name", "a/b")),
        ("s3://arn:aws:s3:eu:1:accesspoint/name", Location("s3", "arn:aws:s3:eu:1:accesspoint/name", "")),
        ("gs://arn:bucket/name/a", Location("gs", "arn:bucket", "name/a")),
        ("https://Account.blob.core.windows.net/c/a//b/", Location("azure", "account/c", "a//b/")),
        ("https://account.blob.core.windows.net//c/a", Location("azure", "account/c", "a")),
        ("abfs://c@account.dfs.core.windows.net/a/b", Location("azure", "account/c", "a/b")),
        ("abfs://c@d@account.dfs.core.windows.net/a", Location("azure", "d@account/c", "a")),
        ("local:///var/lakefs/a", Location("local", "", "var/lakefs/a")),
    ],
)
def test_where_an_address_lies(address: str, location: Location) -> None:
    assert parse_location(address) == location


@pytest.mark.parametrize(
    ("address", "keys"),
    [
        ("data//a/", {"data//a/", "data/a/", "data//a", "data/a"}),
        ("/data/a", {"/data/a", "data/a"}),
        ("//data/a/", {"//data/a/", "data/a/", "/data/a", "data/a", "//data/a", "/data/a/"}),
        (" data/a/ ", {" data/a/ "}),
        (" data//a", {" data//a", " data/a"}),
        ("data/a?b?c", {"data/a?b?c", "data/a"}),
        ("data/%61?b", {"data/%61?b", "data/a?b", "data/%61", "data/a"}),
    ],
)
def test_all_spellings_of_a_key_count(address: str, keys: set[str]) -> None:
    assert set(Namespace.parse("s3://bucket/repo").live_keys(address, RELATIVE)) == keys


@pytest.mark.parametrize(
    ("uri", "key"),
    [
        ("s3://bucket/my%20repo", "my repo/"),
        ("s3://bucket/my+repo", "my+repo/"),
        ("s3://bucket/%C3%A9/x", "é/x/"),
        ("s3://bucket/100%25", "100%/"),
        ("s3://bucket/my%2520repo", "my%20repo/"),
        ("s3://bucket/repo?version=1", "repo/"),
        ("gs://bucket/my%20repo/", "my repo/"),
        ("https://account.blob.core.windows.net/container/my%20repo", "my repo/"),
        ("local://repo/my%20folder", "my folder/"),
    ],
)
def test_keys_lie_where_lakefs_decodes_them_to(uri: str, key: str) -> None:
    namespace = Namespace.parse(uri)
    assert namespace.location.key == key
    assert namespace.uri == uri.rstrip("/") + "/"
    assert Namespace.parse(namespace.uri) == namespace
    assert namespace.is_escaped == (key not in namespace.uri)


@pytest.mark.parametrize("uri", ["s3://bucket/%zz", "s3://bucket/100%", "s3://bucket/%ff", "s3://buck%65t/repo"])
def test_a_namespace_that_cannot_be_decoded_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match=r"storage namespace .* cannot be decoded"):
        Namespace.parse(uri)


@pytest.mark.parametrize(
    ("uri", "address", "doubtful"),
    [
        ("s3://bucket/repo", "s3://bucket/repo/data/x", False),
        ("s3://bucket/repo", "data/x", False),
        ("s3://bucket/repo", "s3://reader-s3alias/repo/data/x", True),
        ("s3://reader-s3alias/repo", "s3://bucket/repo/data/x", True),
        ("s3://reader-s3alias/repo", "s3://reader-s3alias/repo/data/x", False),
        ("s3://bucket/repo", "s3://other/repo/data/x", False),
        ("local://repo", "local://repo/data/x", False),
        ("local://repo", "local:///var/lakefs/repo/data/x", True),
    ],
)
def test_where_an_address_lies_may_be_unknown(uri: str, address: str, doubtful: bool) -> None:
    assert Namespace.parse(uri).may_lie_elsewhere(address) == doubtful


@pytest.mark.parametrize(
    "wrong", ["", "/", "repo", "/repo", "bucket/repo", "s3:/bucket", "s3://", "s3:///", "://bucket"]
)
def test_what_is_no_namespace(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="storage namespace"):
        Namespace.parse(wrong)


def test_a_namespace_without_a_bucket_is_refused() -> None:
    for wrong in ("s3:///repo", "gs:///repo", "https:///container/repo"):
        with pytest.raises(ConfigurationError, match="storage namespace"):
            Namespace.parse(wrong)


@pytest.mark.parametrize(
    ("uri", "address", "key"),
    [
        ("local://locns", "local:///var/lakefs/locns/_lakefs/x", "_lakefs/x"),
        ("local://locns", "local:///locns/locns/_lakefs/x", "_lakefs/x"),
        ("local://gc", "local:///var/gc/_lakefs/retention/gc/uncommitted/x", "_lakefs/retention/gc/uncommitted/x"),
        ("local://locns/inner", f"local:///var/locns/inner/{KEY}", KEY),
        ("local://data", f"local:///data/data/{KEY}", KEY),
        # A folder of the blockstore may have the namespace's name; lakeFS's own names tell which one is meant.
        ("local://a", "local:///x/a/b/a/_lakefs/x", "_lakefs/x"),
        ("local://a", "local:///x/a/data/b/a/c", "data/b/a/c"),
    ],
)
def test_a_place_below_the_folder_of_a_blockstore(uri: str, address: str, key: str) -> None:
    assert Namespace.parse(uri).relative(address) == key


def test_every_place_below_the_folder_of_a_blockstore_counts() -> None:
    namespace = Namespace.parse("local://a")
    assert set(namespace.live_keys("local:///a/a/a/b", EITHER)) == {"a/b", "b"}
    assert set(namespace.live_keys("local:///x/a/c/a/b", EITHER)) == {"c/a/b", "b"}
    assert set(namespace.live_keys("local:///x/a/1/a/2/a/3", EITHER)) == {"1/a/2/a/3", "2/a/3", "3"}
    assert Namespace.parse("local:///inner").live_keys("local:///var/inner/data/x", EITHER) == ("data/x",)
    assert namespace.live_keys("local://b/x/a/c", EITHER) == ()
    assert Namespace.parse("s3://a/r").live_keys("s3:///x/a/r/c", EITHER) == ()


@needs_recordings
@pytest.mark.parametrize("name", ["small", "chain/4", "merge-dangling"])
def test_addresses_of_a_real_server(name: str) -> None:
    truth = json.loads((FIXTURES / name / "truth.json").read_text())
    namespace = Namespace.parse(truth["storage_namespace"])
    tables = map(json.loads, (FIXTURES / name / "sstables.jsonl").read_text().splitlines())
    entries = [entry for table in tables for entry in table.get("entries", ()) if "address" in entry]
    assert len(entries) > 20
    inside = {row["address"] for row in truth["objects"] if row["inside_namespace"]}
    for entry in entries:
        keys = namespace.live_keys(entry["address"], AddressType[entry["address_type"]])
        assert keys == ((entry["address"],) if entry["address"] in inside else ())
