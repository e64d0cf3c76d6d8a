"""Storage namespaces that are folders."""

from collections.abc import Sequence
from pathlib import Path

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import InitAnswers, ObjectStore, StoreKind
from lakefs_gc_assets.storage.local.store import LocalStore


def _open(settings: StoreSettings, namespace: Namespace) -> ObjectStore:
    return LocalStore(_folder(settings, namespace))


def _readable_path(settings: StoreSettings, namespace: Namespace, key: str) -> str:
    return str(_folder(settings, namespace) / key)


def _folder(settings: StoreSettings, namespace: Namespace) -> Path:
    """The folder of a namespace, which lakeFS joins to the path of its blockstore."""
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


def _init_section(answers: InitAnswers) -> Sequence[str]:
    return (f"local_root: {answers.local_root()}",)


KIND = StoreKind(
    name="local",
    addresses="local://",
    open=_open,
    readable_path=_readable_path,
    init_sections={"local": _init_section},
)
