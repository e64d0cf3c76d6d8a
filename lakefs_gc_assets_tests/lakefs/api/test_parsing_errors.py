import base64
import json
from urllib.parse import quote

import pytest

from lakefs_gc_assets.lakefs.api.parsing import Answer, Call, refusal
from lakefs_gc_assets_tests.lakefs.api.scripted_server import refused
from lakefs_gc_assets_tests.lakefs.api.talking import KEY_ID, SECRET, talking

CALL = Call("GET", "/repositories/repo", "fs:ReadRepository")


def said(words: str) -> str:
    return str(refusal(CALL, Answer(400, {}, json.dumps({"message": words})), "http://server", (SECRET, KEY_ID)))


@pytest.mark.parametrize("spelling", [SECRET, quote(SECRET), quote(SECRET, safe=""), quote(SECRET, safe="").lower()])
def test_secrets_are_left_out_however_they_are_escaped(spelling: str) -> None:
    assert f"cannot sign ***: {'x' * 5}" in said(f"cannot sign {spelling}: {'x' * 5}")


@pytest.mark.parametrize("before", range(270, 301))
def test_no_part_of_a_secret_is_left_where_a_long_message_is_cut(before: int) -> None:
    assert SECRET[:4] not in said("x" * before + SECRET)


def test_the_header_that_holds_both_keys_is_left_out() -> None:
    header = "Basic " + base64.b64encode(f"{KEY_ID}:{SECRET}".encode()).decode()
    with talking(refused(400, f"cannot read {header} at all")) as (client, _, _), pytest.raises(Exception) as caught:
        client.repository()
    assert "cannot read Basic *** at all" in str(caught.value)


def test_a_body_of_many_brackets_is_no_message() -> None:
    assert Answer(500, {}, "[" * 100_000).message is None
