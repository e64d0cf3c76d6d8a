"""Storage namespaces in local folders."""

from pathlib import Path

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import StoreKind
from lakefs_gc_assets.storage.local.store import LocalStore


def _folder(settings: StoreSettings, namespace: Namespace) -> Path:
    """The folder of a namespace: lakeFS appends the namespace to the path of its blockstore."""
    if not settings.local_root:
        raise ConfigurationError(
            f"storage namespace {namespace.uri} is a folder: set store.local_root to lakeFS's blockstore.local.path"
        )
    relative = Path(namespace.location.bucket, namespace.location.key.strip("/"))
    if ".." in relative.parts:
        raise ConfigurationError(f"storage namespace {namespace.uri} leads out of store.local_root")
    folder = Path(settings.local_root).expanduser() / relative
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder} for {namespace.uri}: check store.local_root")
    return folder


KIND = StoreKind(
    name="local",
    addresses="local://",
    open=lambda settings, namespace: LocalStore(_folder(settings, namespace)),
    readable_path=lambda settings, namespace, key: str(_folder(settings, namespace) / key),
    init_sections={"local": lambda answers: (f"local_root: {answers.local_root()}",)},
)
