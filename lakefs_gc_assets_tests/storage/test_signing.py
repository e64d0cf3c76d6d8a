import io
import json
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.records import records_json, run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.errors import ConfigurationError, CorruptFile, NotOffered
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.layout import RUNS_PREFIX
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import KeepsVersions, ListsAtOnce, ListsInOrder, ListsVersions
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import StoreOpener, open_store
from lakefs_gc_assets.storage.signing import SignedStore, Signer, is_signed
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.scripted import NOW

KEY, OTHER_KEY = "k" * 32, "o" * 40
HERE = Path(__file__).parent
"""A folder that no test writes to."""
RUN = "ft3gndo75jdbnb33hrl0"
RECORD, TABLE = run_folder.plan(RUN), f"{run_folder.receipts(RUN)}batch.parquet"
CONTENTS = {
    RECORD: records_json.with_digest({"entry": "value", "number": 1}),
    TABLE: tables.encode(pa.table({"address": ["data/one", "data/two"], "size": [1, 2]})),
}


def signed(folder: Path, keys: str = KEY, namespace: str = "local://repo/") -> SignedStore:
    return SignedStore(LocalStore(folder), Signer.from_setting(keys, namespace))


@pytest.mark.parametrize("key", CONTENTS)
def test_a_signed_file_is_read_as_it_was_written_and_stays_a_file_of_its_kind(tmp_path: Path, key: str) -> None:
    signed(tmp_path).put(key, CONTENTS[key])
    assert signed(tmp_path).get(key) == CONTENTS[key]
    stored = LocalStore(tmp_path).get(key)
    assert len(stored) > len(CONTENTS[key])
    if key == RECORD:
        assert json.loads(stored).keys() == {"entry", "number", "sha256", "signature"}
    else:
        assert pq.read_table(io.BytesIO(stored)).num_rows == 2


@pytest.mark.parametrize("key", CONTENTS)
def test_every_key_verifies_and_the_first_one_signs(tmp_path: Path, key: str) -> None:
    signed(tmp_path, OTHER_KEY).put(key, CONTENTS[key])
    assert signed(tmp_path, f"{KEY}, {OTHER_KEY}\n").get(key) == CONTENTS[key]
    with pytest.raises(CorruptFile, match="it was not signed by a key"):
        signed(tmp_path).get(key)
    signed(tmp_path, f"{KEY} {OTHER_KEY}").put(key, CONTENTS[key])
    assert signed(tmp_path).get(key) == CONTENTS[key]


def test_a_file_without_a_signature_is_refused() -> None:
    with TemporaryDirectory() as folder:
        for key, content in CONTENTS.items():
            LocalStore(Path(folder)).put(key, content)
            with pytest.raises(CorruptFile, match=r"it is not signed, and store\.signing_key is set"):
                signed(Path(folder)).get(key)


def test_a_file_that_was_signed_for_another_run_or_repository_is_refused() -> None:
    with TemporaryDirectory() as folder:
        store, plain = signed(Path(folder)), LocalStore(Path(folder))
        for key, content in CONTENTS.items():
            store.put(key, content)
            moved = key.replace(RUN, "ft3gndo75jdbnb33hrm0")
            plain.put(moved, plain.get(key))
            with pytest.raises(CorruptFile, match="changed, moved or copied"):
                store.get(moved)
            with pytest.raises(CorruptFile, match="changed, moved or copied"):
                signed(Path(folder), namespace="local://other/").get(key)


@given(key=st.sampled_from(sorted(CONTENTS)), place=st.integers(0), bits=st.integers(1, 255), cut=st.booleans())
def test_a_file_that_was_changed_anywhere_is_refused(key: str, place: int, bits: int, cut: bool) -> None:
    store = signed(HERE)
    stored = bytearray(store._signed(key, CONTENTS[key]))
    place %= len(stored)
    if cut:
        del stored[place : place + bits]
    else:
        stored[place] ^= bits
    with pytest.raises(CorruptFile):
        store._verified(key, bytes(stored))


@given(data=st.binary(max_size=200), key=st.sampled_from(sorted(CONTENTS)))
def test_bytes_of_any_kind_are_refused_and_end_nothing(data: bytes, key: str) -> None:
    with pytest.raises(CorruptFile, match="signature"):
        signed(HERE)._verified(key, data)


def test_conditional_writes_sign_too(tmp_path: Path) -> None:
    store = signed(tmp_path)
    etag = store.put_if_absent(RECORD, CONTENTS[RECORD])
    assert store.get(RECORD) == CONTENTS[RECORD]
    try:
        store.put_if_match(RECORD, CONTENTS[RECORD], etag)
    except NotOffered:
        pytest.skip("the file system has no conditional writes")
    assert store.get(RECORD) == CONTENTS[RECORD]


@pytest.mark.parametrize(
    ("name", "signs"),
    [
        ("runs.json", True),
        ("names/a/b.json", True),
        (f"{RUN}/sealed-a.parquet", True),
        (f"{RUN}/committed_df/read-a.parquet", True),
        (f"{RUN}/pending/manifest.json", True),
        (f"{RUN}/anything/new.json", True),
        (f"{RUN}/receipts/part-a.parquet", True),
        (f"{RUN}/receipts/read-earlier-a", True),
        ("names/a/b", True),
        ("lock.json", False),
        (f"{RUN}/committed_df/read-earlier-a.parquet", False),
        (f"{RUN}/pending/slice_window=2026-01/part-a.parquet", False),
        (f"{RUN}/candidates/counted.json", False),
        (f"{RUN}/report.html", False),
        (f"{RUN}/uncommitted/a.parquet", False),
        ("facts/range_sizes/a/b/3-1-1-a.parquet", False),
    ],
)
def test_what_is_signed(name: str, signs: bool) -> None:
    assert is_signed(RUNS_PREFIX + name) is signs
    assert not is_signed(f"data/{name}")
    assert not is_signed(f"_lakefs/retention/gc/quarantine/{RUN}/{name}")
    assert is_signed(f"_lakefs/retention/gc/quarantine/{RUN}/purging/purged-a")


@pytest.mark.parametrize("name", ["part-a.parquet", "read-earlier-a.parquet", "counted.parquet", "a"])
def test_receipts_that_somebody_else_wrote_are_refused_whatever_their_name(tmp_path: Path, name: str) -> None:
    forged = tables.encode(receipts.table(candidates("data/live"), [Outcome.ACCEPTED], [None], NOW))
    LocalStore(tmp_path).put(run_folder.receipts(RUN) + name, forged)
    assert receipts.read(LocalStore(tmp_path), RUN).num_rows == 1
    with pytest.raises(CorruptFile, match="it is not signed"):
        receipts.read(signed(tmp_path), RUN)


@pytest.mark.parametrize("listings_at_once", [None, 8])
def test_a_store_keeps_its_abilities(tmp_path: Path, listings_at_once: int | None) -> None:
    plain = LocalStore(tmp_path)
    if listings_at_once:
        plain.listings_at_once = listings_at_once  # type: ignore[attr-defined]
    store = SignedStore(plain, Signer.from_setting(KEY, "local://repo/"))
    assert isinstance(store, ListsAtOnce) == (listings_at_once is not None)
    for ability in (ListsInOrder, KeepsVersions, ListsVersions):
        assert isinstance(store, ability) == isinstance(plain, ability)


def test_a_store_signs_where_a_key_is_set_and_no_text_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNING", KEY)
    (tmp_path / "repo").mkdir()
    namespace, root = Namespace.parse("local://repo/"), str(tmp_path)
    settings = StoreSettings(local_root=root, signing_key=KEY, from_environment={"signing_key": "SIGNING"})
    assert isinstance(open_store(StoreSettings(local_root=root), namespace), LocalStore)
    opener = StoreOpener(settings, namespace.uri)
    store = opener.open()
    assert isinstance(store, SignedStore)
    for shown in (repr(settings), repr(opener), repr(store.signer), repr(pickle.dumps(opener))):
        assert KEY not in shown


def test_an_executor_without_the_key_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIGNING", raising=False)
    settings = StoreSettings(local_root=str(tmp_path), signing_key=KEY, from_environment={"signing_key": "SIGNING"})
    with pytest.raises(ConfigurationError, match=r"store\.signing_key .* SIGNING, which is not set .* as well$"):
        StoreOpener(settings, "local://repo/").open()


@pytest.mark.parametrize("keys", ["short", f"{KEY},short", " ", ","])
def test_a_short_key_is_refused_and_not_repeated(keys: str) -> None:
    with pytest.raises(ConfigurationError, match="at least 32 characters") as refused:
        Signer.from_setting(keys, "local://repo/")
    assert "short" not in str(refused.value)
