import re

import pytest

from lakefs_gc_assets.collector.eligibility import MULTIPART_ETAG, PLAIN_ETAG, Kept

MD5 = "d41d8cd98f00b204e9800998ecf8427e"


@pytest.mark.parametrize(
    ("etag", "plain", "multipart"),
    [
        (MD5, True, False),
        (f"{MD5}-1", False, True),
        (f"{MD5}-10000", False, True),
        (f"{MD5}-", False, False),
        (f"{MD5}-1x", False, False),
        (f'"{MD5}"', False, False),
        (MD5[:-1], False, False),
        (f"x{MD5}-1", False, False),
        ("18b9a3-4d-7", False, False),
        ("", False, False),
    ],
)
def test_kinds_of_etags(etag: str, plain: bool, multipart: bool) -> None:
    assert (re.search(PLAIN_ETAG, etag) is not None, re.search(MULTIPART_ETAG, etag) is not None) == (plain, multipart)


def test_reasons_are_told_apart() -> None:
    assert len({reason.value for reason in Kept}) == len(Kept) == 7
