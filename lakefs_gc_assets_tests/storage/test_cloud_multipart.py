from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets.storage.cloud import StoreAnswer

TARGETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
BODIES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40)
PARTS = st.dictionaries(st.integers(0, 300), st.tuples(st.integers(200, 599), BODIES), max_size=5)


def answered(parts: dict[int, tuple[int, str]], identity: str, newline: str) -> StoreAnswer:
    lines = []
    for number, (status, body) in parts.items():
        lines += ["--limit", "Content-Type: application/http", f"Content-ID: {identity.format(number)}", ""]
        lines += [f"HTTP/1.1 {status} Some Reason", "Content-Type: application/xml", "X-Said: yes", "", body]
    content = newline.join([*lines, "--limit--", ""]).encode()
    return StoreAnswer(200, {"content-type": "multipart/mixed; boundary=limit"}, content)


@given(PARTS, st.sampled_from(["{}", "<{}>", "<response-{}>", "<a-1+{}>"]), st.sampled_from(["\r\n", "\n"]))
def test_each_part_is_found_by_its_number(parts: dict[int, tuple[int, str]], identity: str, newline: str) -> None:
    found = cloud.batch_answers(answered(parts, identity, newline))
    assert {number: answer.status for number, answer in found.items()} == {
        n: status for n, (status, _) in parts.items()
    }
    assert all(answer.headers["x-said"] == "yes" for answer in found.values())
    for number, (_, body) in parts.items():
        assert found[number].body.decode().strip() == body.strip()


@given(st.lists(TARGETS, max_size=5))
def test_a_batch_holds_each_target_once_and_in_order(targets: list[str]) -> None:
    content_type, body = cloud.batch_of_deletes(targets)
    boundary = content_type.partition("boundary=")[2]
    parts = body.decode().split(f"--{boundary}")
    assert parts[0] == "" and parts[-1].strip() == "--"
    assert len(parts) == len(targets) + 2
    for number, (target, part) in enumerate(zip(targets, parts[1:-1], strict=True)):
        head, _, request = part.partition("\r\n\r\n")
        assert f"Content-ID: {number}" in head
        assert request.startswith(f"DELETE {target} HTTP/1.1\r\n")


@given(st.binary(max_size=60))
def test_nonsense_answers_nothing(body: bytes) -> None:
    for content_type in ("multipart/mixed; boundary=limit", "text/html", ""):
        assert cloud.batch_answers(StoreAnswer(200, {"content-type": content_type}, body)) == {}
