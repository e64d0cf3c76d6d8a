"""The supported kinds of store, and opening the store of a storage namespace."""

import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.errors import ConfigurationError, requiring
from lakefs_gc_assets.lakefs.addresses import Namespace, parse_location
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import local
from lakefs_gc_assets.storage.interface import (
    POLICIES,
    InitAnswers,
    ObjectStore,
    OpensStore,
    StoreKind,
    bucket_path,
)
from lakefs_gc_assets.storage.signing import SignedStore, Signer

if TYPE_CHECKING:
    from lakefs_gc_assets.storage import azure, gcs
    from lakefs_gc_assets.storage.s3 import store as s3
else:
    # Deferred: importing boto3 is slow, and only users of the other two install their libraries.
    azure, gcs = deferred("lakefs_gc_assets.storage.azure"), deferred("lakefs_gc_assets.storage.gcs")
    s3 = deferred("lakefs_gc_assets.storage.s3.store")


def _init_aws(answers: InitAnswers) -> Sequence[str]:
    return (
        "# Credentials come from AWS's usual chain: environment, profile, role, instance.",
        f"region: {answers.region}" if answers.region else "# region: eu-central-1  # by default the environment's",
        "# profile: data-platform",
        "# role_arn: arn:aws:iam::123456789012:role/lakefs-gc",
        "# server_side_encryption: aws:kms  # for buckets that demand it",
    )


def _init_compatible(answers: InitAnswers) -> Sequence[str]:
    return (
        f"endpoint_url: {answers.store_endpoint()}",
        "path_style: true  # the bucket in the path, as most such services want it",
        f"region: {answers.region or 'us-east-1'}",
        "# Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from variables that you name:",
        "# access_key_id: {env: STORE_ACCESS_KEY_ID}",
        "# secret_access_key: {env: STORE_SECRET_ACCESS_KEY}",
        "# ca_bundle: /etc/ssl/ours.pem  # certificates to trust",
    )


def _init_gcs(answers: InitAnswers) -> Sequence[str]:
    return (
        "# Needs this package's extra [gcs]. Credentials are the application default ones, or a key file:",
        "# service_account_file: /etc/lakefs-gc/key.json",
    )


def _init_azure(answers: InitAnswers) -> Sequence[str]:
    return (
        "# Needs this package's extra [azure]. Credentials come from a managed identity, az login,",
        "# from an application, or from a shared access signature:",
        "# tenant_id: 00000000-0000-0000-0000-000000000000",
        "# client_id: 00000000-0000-0000-0000-000000000000",
        "# client_secret: {env: AZURE_CLIENT_SECRET}",
        "# sas_token: {env: AZURE_SAS_TOKEN}",
    )


KINDS = (
    StoreKind(
        name="s3",
        addresses="s3:// (AWS and services that speak S3)",
        open=lambda settings, namespace: s3.S3Store(settings, namespace.location),
        readable_path=bucket_path,
        init_sections={"s3": _init_aws, "s3-compatible": _init_compatible},
        rights={
            "list": f"s3:ListBucket, statement FindObjects of {POLICIES}/s3-dry-run.json",
            "read": f"s3:GetObject, statement ReadObjects of {POLICIES}/s3-dry-run.json",
            "write": f"s3:PutObject, statement KeepOwnFiles of {POLICIES}/s3-dry-run.json",
            "delete": f"s3:DeleteObject, statement DeleteGarbage of {POLICIES}/s3-sweep.json",
            "versions": f"s3:ListBucketVersions and s3:DeleteObjectVersion, see {POLICIES}/README.md",
        },
        browser_link=lambda bucket, key: (
            f"https://console.aws.amazon.com/s3/object/{quote(bucket)}?prefix={quote(key, safe='')}"
        ),
        takes_encryption=True,
    ),
    StoreKind(
        name="gs",
        addresses="gs://",
        open=lambda settings, namespace: gcs.GCSStore(settings, namespace.location),
        readable_path=bucket_path,
        init_sections={"gcs": _init_gcs},
        rights={
            "list": f"storage.objects.list, see {POLICIES}/README.md",
            "read": f"storage.objects.get, see {POLICIES}/README.md",
            "write": f"storage.objects.create, and .delete to replace, see {POLICIES}/README.md",
            "delete": f"storage.objects.delete, see {POLICIES}/README.md",
        },
        browser_link=lambda bucket, key: f"https://storage.cloud.google.com/{quote(bucket)}/{quote(key)}",
        extra="gcs",
    ),
    StoreKind(
        name="azure",
        addresses="https:// and abfss:// (Azure)",
        open=lambda settings, namespace: azure.AzureStore(settings, namespace),
        readable_path=lambda settings, namespace, key: namespace.uri + key,
        init_sections={"azure": _init_azure},
        rights={
            "list": f"the data action read, see {POLICIES}/README.md",
            "read": f"the data action read, see {POLICIES}/README.md",
            "write": f"the data actions write and add/action, see {POLICIES}/README.md",
            "delete": f"the data action delete, see {POLICIES}/README.md",
        },
        extra="azure",
    ),
    StoreKind(
        name="local",
        addresses="local://",
        open=lambda settings, namespace: local.LocalStore(local.folder_of(settings, namespace)),
        readable_path=lambda settings, namespace, key: str(local.folder_of(settings, namespace) / key),
        init_sections={"local": lambda answers: (f"local_root: {answers.local_root()}",)},
    ),
)

_KINDS = {kind.name: kind for kind in KINDS}
_opened: dict[tuple[int, "StoreOpener"], ObjectStore] = {}
_opening = threading.Lock()


def kind_of(namespace: Namespace) -> StoreKind:
    """The kind of store that a namespace lies in. Raises ConfigurationError if it is not supported."""
    name = namespace.location.kind
    if name not in _KINDS:
        *others, last = (kind.addresses for kind in KINDS)
        raise ConfigurationError(
            f"storage namespace {namespace.uri} is on a store of kind {name!r}: supported are {', '.join(others)} and "
            f"{last}"
        )
    return _KINDS[name]


def open_store(settings: StoreSettings, namespace: Namespace) -> ObjectStore:
    """The store bound to a namespace. Raises ConfigurationError if its kind is unsupported or a setting is wrong."""
    if "@" in settings.endpoint_url:
        raise ConfigurationError("store.endpoint_url holds a user or password: credentials have settings of their own")
    kind = kind_of(namespace)
    if not kind.takes_encryption and (settings.server_side_encryption or settings.kms_key_id):
        raise ConfigurationError(
            f"store.server_side_encryption is for S3, and {namespace.uri} is none: other stores encrypt as the bucket "
            "or the account says"
        )
    with requiring(kind.extra, namespace.uri) if kind.extra else nullcontext():
        store = kind.open(settings, namespace)
    if not settings.signing_key:
        return store
    return SignedStore(store, Signer.from_setting(settings.signing_key, namespace.uri))


def readable_path(opener: OpensStore, key: str) -> str:
    """An object's name in other programs: a file's path, `s3://…`, `gs://…`, or lakeFS's spelling for Azure.

    Raises ConfigurationError if a local folder does not exist.
    """
    namespace = Namespace.parse(opener.namespace_uri)
    return kind_of(namespace).readable_path(opener.settings, namespace, key)


def browser_link(uri: str) -> str | None:
    """The link that shows an object in a browser after signing in; None if there is none."""
    location = parse_location(uri)
    kind = None if location is None else _KINDS.get(location.kind)
    if location is None or kind is None or kind.browser_link is None:
        return None
    return kind.browser_link(location.bucket, location.key)


@dataclass(frozen=True, slots=True)
class StoreOpener:
    """Opens a store in any process, once per process. Its repr shows no settings.

    It does not hold credentials from the environment. Each process reads them from its own environment, so Spark never
    writes them to a disk or sends them.
    """

    settings: StoreSettings = field(repr=False)
    namespace_uri: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", self.settings.by_reference())

    def open(self) -> ObjectStore:
        """The store, opened on the first call in this process.

        Raises the errors of open_store, and ConfigurationError if the environment lacks a credential.
        """
        with _opening:
            # A forked process must not use connections of its parent.
            key = (os.getpid(), self)
            if key not in _opened:
                _opened[key] = open_store(self.settings.with_credentials(), Namespace.parse(self.namespace_uri))
            return _opened[key]
