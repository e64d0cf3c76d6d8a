"""What the server says of itself."""

from typing import Any

from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.http import Request, Response, Route, json_response

_VERSION = {"version": "1.84.0", "version_context": "lakeFS"}
"""The release whose answers this server gives."""


def _storage_config(core: Core) -> dict[str, Any]:
    scheme = core.blockstore.scheme
    return {
        "blockstore_description": "",
        "blockstore_id": "",
        "blockstore_namespace_ValidityRegex": f"^{scheme}",
        "blockstore_namespace_example": f"{scheme}example-bucket/",
        "blockstore_type": core.blockstore.type,
        "default_namespace_prefix": "",
        "import_support": True,
        "import_validity_regex": f"^{scheme}",
        "pre_sign_multipart_upload": True,
        "pre_sign_support": True,
        "pre_sign_support_ui": False,
    }


def _everything(core: Core, request: Request) -> Response:
    return json_response(
        200,
        {
            "capabilities_config": {},
            "storage_config": _storage_config(core),
            "storage_config_list": [],
            "ui_config": {},
            "version_config": _VERSION,
        },
    )


def _storage(core: Core, request: Request) -> Response:
    return json_response(200, _storage_config(core))


def _version(core: Core, request: Request) -> Response:
    return json_response(200, _VERSION)


def _garbage_collection(core: Core, request: Request) -> Response:
    return json_response(200, {"grace_period": core.settings.link_seconds})


ROUTES = (
    Route("GET", "/config", "", _everything),
    Route("GET", "/config/storage", "", _storage),
    Route("GET", "/config/version", "", _version),
    Route("GET", "/config/garbage-collection", "", _garbage_collection),
)
