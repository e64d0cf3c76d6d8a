"""A check of a real server: every kind of upload is intact, and a flipped bit in any upload is found."""

from collections.abc import Iterator, Sequence
from urllib.request import Request, urlopen

import pytest
from lakefs_sdk import (
    CompletePresignMultipartUpload,
    ExperimentalApi,
    ObjectCopyCreation,
    ObjectsApi,
    UploadPart,
)

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.survey import FindingKind
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.check.contents import MIB
from lakefs_gc_assets.extensions.check.fsck import EVERYTHING, Checkup, check
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.real.server import RealLakeFS, installation
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.servers.s3_server import upload_in_parts

EQUAL, UNEVEN, ONE = (5 * MIB, 5 * MIB, 1000), (6 * MIB, 5 * MIB + 1, 7), (77,)
KINDS = {"equal": EQUAL, "uneven": UNEVEN, "one": ONE}


@pytest.fixture(scope="module")
def lakefs() -> Iterator[RealLakeFS]:
    """A branch with an object for each kind of upload, and their copies, all committed."""
    with installation() as made:
        made.start()
        made.new_repository("repo")
        made.upload("repo", "main", "plain", b"content")
        made.gateway().put_object(Bucket="repo", Key="main/plain-by-gateway", Body=b"content")
        for name, sizes in KINDS.items():
            parts = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
            upload_in_parts(made.gateway(), "repo", f"main/{name}", parts)
            upload_presigned(made, f"presigned-{name}", parts)
            made.gateway().copy_object(
                Bucket="repo", Key=f"main/copy-{name}", CopySource={"Bucket": "repo", "Key": f"main/{name}"}
            )
            creation = ObjectCopyCreation.parse_obj({"src_path": name, "src_ref": "main"})
            ObjectsApi(made.sdk()).copy_object("repo", "main", f"api-copy-{name}", creation)
        made.commit("repo", "main")
        yield made


def upload_presigned(lakefs: RealLakeFS, path: str, parts: Sequence[bytes]) -> None:
    api, made = ExperimentalApi(lakefs.sdk()), []
    upload = api.create_presign_multipart_upload("repo", "main", path, parts=len(parts))
    for number, (url, part) in enumerate(zip(upload.presigned_urls or (), parts, strict=True), 1):
        with urlopen(Request(url, part, {"Content-Type": ""}, method="PUT"), timeout=900) as answer:
            made.append(UploadPart.parse_obj({"part_number": number, "etag": answer.headers["ETag"].strip('"')}))
    completion = CompletePresignMultipartUpload.parse_obj({"physical_address": upload.physical_address, "parts": made})
    api.complete_presign_multipart_upload("repo", "main", upload.upload_id, path, completion)


def checked(lakefs: RealLakeFS, deep: int) -> Checkup:
    collection = {"wait_before_dump_seconds": 0}
    configuration = Configuration.model_validate(
        {
            "repository": "repo",
            "lakefs": lakefs.lakefs_settings(),
            "store": lakefs.store_settings(),
            "collection": collection,
        }
    )
    runs = ArrowRuns(Loaded(configuration, {}))
    return check(runs.open(), LocalEngine(), runs.log, deep=deep)


def paths_in(lakefs: RealLakeFS, lines: Sequence[str]) -> set[str]:
    listed = ObjectsApi(lakefs.sdk()).list_objects("repo", "main", amount=100).results
    names = {each.physical_address.rpartition("/")[2]: each.path for each in listed}
    return {path for name, path in names.items() if any(name in line for line in lines)}


UNKNOWN = {"copy-uneven", "api-copy-uneven"}
"""Their checksums are computed from checksums of parts whose sizes are unknown."""


def test_every_kind_of_upload_is_whole(lakefs: RealLakeFS) -> None:
    checkup = checked(lakefs, EVERYTHING)
    assert checkup.findings == ()
    assert paths_in(lakefs, checkup.unchecked) == UNKNOWN
    assert (checkup.contents_read, checkup.contents_without_checksum) == (14 - len(UNKNOWN), 0)


def test_check_that_reads_no_contents_finds_no_damage(lakefs: RealLakeFS) -> None:
    checkup = checked(lakefs, 0)
    assert checkup.findings == ()
    (unchecked,) = checkup.unchecked
    assert unchecked.startswith("content of 4 objects, such as ") and unchecked.endswith("--deep reads them")


def test_bit_that_is_turned_in_any_object_is_found(lakefs: RealLakeFS) -> None:
    listed = ObjectsApi(lakefs.sdk()).list_objects("repo", "main", amount=100).results
    for each in listed:
        file = lakefs.folder / "buckets" / each.physical_address.removeprefix("s3://")
        with file.open("r+b") as content:
            first = content.read(1)
            content.seek(0)
            content.write(bytes([first[0] ^ 1]))
    checkup = checked(lakefs, EVERYTHING)
    assert {finding.kind for finding in checkup.findings} == {FindingKind.CONTENT}
    found = paths_in(lakefs, [finding.address for finding in checkup.findings])
    assert found == {each.path for each in listed}
