"""Storage namespaces in S3 buckets, on AWS and on services that speak S3, and the inventory of a bucket."""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.storage.interface import POLICIES, InitAnswers, StoreKind, bucket_path

if TYPE_CHECKING:
    from lakefs_gc_assets.storage.s3 import store as _store
else:
    # Deferred: importing boto3 is slow.
    _store = deferred("lakefs_gc_assets.storage.s3.store")


def _aws(answers: InitAnswers) -> Sequence[str]:
    return (
        "# Credentials come from AWS's usual chain: environment, profile, role, instance.",
        f"region: {answers.region}" if answers.region else "# region: eu-central-1  # by default the environment's",
        "# profile: data-platform",
        "# role_arn: arn:aws:iam::123456789012:role/lakefs-gc",
        "# server_side_encryption: aws:kms  # for buckets that demand it",
    )


def _compatible(answers: InitAnswers) -> Sequence[str]:
    return (
        f"endpoint_url: {answers.store_endpoint()}",
        "path_style: true  # the bucket in the path, as most such services want it",
        f"region: {answers.region or 'us-east-1'}",
        "# Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from variables that you name:",
        "# access_key_id: {env: STORE_ACCESS_KEY_ID}",
        "# secret_access_key: {env: STORE_SECRET_ACCESS_KEY}",
        "# ca_bundle: /etc/ssl/ours.pem  # certificates to trust",
    )


def _browser_link(bucket: str, key: str) -> str:
    return f"https://console.aws.amazon.com/s3/object/{quote(bucket)}?prefix={quote(key, safe='')}"


KIND = StoreKind(
    name="s3",
    addresses="s3:// (AWS and services that speak S3)",
    open=lambda settings, namespace: _store.S3Store(settings, namespace.location),
    readable_path=bucket_path,
    init_sections={"s3": _aws, "s3-compatible": _compatible},
    rights={
        "list": f"s3:ListBucket, statement FindObjects of {POLICIES}/s3-dry-run.json",
        "read": f"s3:GetObject, statement ReadObjects of {POLICIES}/s3-dry-run.json",
        "write": f"s3:PutObject, statement KeepOwnFiles of {POLICIES}/s3-dry-run.json",
        "delete": f"s3:DeleteObject, statement DeleteGarbage of {POLICIES}/s3-sweep.json",
        "versions": f"s3:ListBucketVersions and s3:DeleteObjectVersion, see {POLICIES}/README.md",
    },
    browser_link=_browser_link,
    takes_encryption=True,
)
