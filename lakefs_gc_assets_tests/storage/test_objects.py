import pytest

from lakefs_gc_assets.errors import ObjectNotFound
from lakefs_gc_assets.storage import objects
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.stores import bucket, local_store, s3_server, s3_store, store

__all__ = ["bucket", "local_store", "s3_server", "s3_store", "store"]

SOURCE, TARGET = "_lakefs/a", "_lakefs/b"


@pytest.mark.parametrize("by_itself", [True, False])
def test_the_target_is_what_the_source_is(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, by_itself: bool) -> None:
    if not by_itself:
        monkeypatch.setattr(objects, "CopiesObjects", type("Nothing", (), {}))
    with pytest.raises(ObjectNotFound):
        objects.copy(store, SOURCE, TARGET)
    store.put(SOURCE, b"content")
    store.put(TARGET, b"another")
    objects.copy(store, SOURCE, TARGET)
    assert store.get(TARGET) == store.get(SOURCE) == b"content"
