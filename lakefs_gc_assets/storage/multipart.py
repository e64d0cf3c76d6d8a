"""Many small requests in one body, and the answers to them (`multipart/mixed`, RFC 2046; parts are HTTP messages)."""

import re
import uuid
from collections.abc import Sequence
from email.parser import BytesParser
from email.policy import HTTP

from lakefs_gc_assets.storage.http_service import Answer

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_NUMBER = re.compile(r"(\d+)\D*$")


def composed(targets: Sequence[str]) -> tuple[str, bytes]:
    """Content type and body of a batch that deletes targets; the first part has the Content-ID 0."""
    boundary = f"batch_{uuid.uuid4()}"
    lines = []
    for number, target in enumerate(targets):
        lines += [f"--{boundary}", "Content-Type: application/http", "Content-Transfer-Encoding: binary"]
        lines += [f"Content-ID: {number}", "", f"DELETE {target} HTTP/1.1"]
        lines += ["Content-Length: 0", "", ""]
    lines += [f"--{boundary}--", ""]
    return f"multipart/mixed; boundary={boundary}", "\r\n".join(lines).encode()


def answers(batch: Answer) -> dict[int, Answer]:
    """The answer of each part, by the number of its request. What cannot be read is left out."""
    head = f"Content-Type: {batch.headers.get('content-type', '')}\r\n\r\n".encode()
    message = BytesParser(policy=HTTP).parsebytes(head + batch.body)
    found = {}
    for part in message.iter_parts() if message.is_multipart() else ():
        number = _NUMBER.search(part.get("Content-ID", "").strip("<> "))
        content = part.get_payload(decode=True)
        if number and isinstance(content, bytes) and (status := _STATUS.match(content)):
            _, _, rest = content.partition(b"\n")
            inner = BytesParser(policy=HTTP).parsebytes(rest)
            body = inner.get_payload(decode=True)
            fields = {name.lower(): str(value) for name, value in inner.items()}
            found[int(number[1])] = Answer(int(status[1]), fields, body if isinstance(body, bytes) else b"")
    return found
