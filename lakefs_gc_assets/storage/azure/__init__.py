"""Storage namespaces in containers of Azure Blob Storage."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.storage.interface import POLICIES, InitAnswers, StoreKind

if TYPE_CHECKING:
    from lakefs_gc_assets.storage.azure import store as _store
else:
    # Deferred: only users of such a store install its libraries.
    _store = deferred("lakefs_gc_assets.storage.azure.store")


def _init_section(answers: InitAnswers) -> Sequence[str]:
    return (
        "# Needs this package's extra [azure]. Credentials come from a managed identity, az login,",
        "# from an application, or from a shared access signature:",
        "# tenant_id: 00000000-0000-0000-0000-000000000000",
        "# client_id: 00000000-0000-0000-0000-000000000000",
        "# client_secret: {env: AZURE_CLIENT_SECRET}",
        "# sas_token: {env: AZURE_SAS_TOKEN}",
    )


KIND = StoreKind(
    name="azure",
    addresses="https:// and abfss:// (Azure)",
    open=lambda settings, namespace: _store.AzureStore(settings, namespace),
    readable_path=lambda settings, namespace, key: namespace.uri + key,
    init_sections={"azure": _init_section},
    rights={
        "list": f"the data action read, see {POLICIES}/README.md",
        "read": f"the data action read, see {POLICIES}/README.md",
        "write": f"the data actions write and add/action, see {POLICIES}/README.md",
        "delete": f"the data action delete, see {POLICIES}/README.md",
    },
    extra="azure",
)
