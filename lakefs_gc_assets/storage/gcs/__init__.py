"""Storage namespaces in buckets of Google Cloud Storage."""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.storage.interface import POLICIES, InitAnswers, StoreKind, bucket_path

if TYPE_CHECKING:
    from lakefs_gc_assets.storage.gcs import store as _store
else:
    # Deferred: only users of such a store install its libraries.
    _store = deferred("lakefs_gc_assets.storage.gcs.store")


def _init_section(answers: InitAnswers) -> Sequence[str]:
    return (
        "# Needs this package's extra [gcs]. Credentials are the application default ones, or a key file:",
        "# service_account_file: /etc/lakefs-gc/key.json",
    )


KIND = StoreKind(
    name="gs",
    addresses="gs://",
    open=lambda settings, namespace: _store.GCSStore(settings, namespace.location),
    readable_path=bucket_path,
    init_sections={"gcs": _init_section},
    rights={
        "list": f"storage.objects.list, see {POLICIES}/README.md",
        "read": f"storage.objects.get, see {POLICIES}/README.md",
        "write": f"storage.objects.create, and .delete to replace, see {POLICIES}/README.md",
        "delete": f"storage.objects.delete, see {POLICIES}/README.md",
    },
    browser_link=lambda bucket, key: f"https://storage.cloud.google.com/{quote(bucket)}/{quote(key)}",
    extra="gcs",
)
