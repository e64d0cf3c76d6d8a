"""Bodies that some S3 clients send in chunks, each with its length and signature ahead (aws-chunked)."""

from lakefs_gc_assets.embedded.http import Request


class BrokenChunks(ValueError):
    """The body ends inside a chunk, or has no length where one must be."""


def content_of(request: Request) -> bytes:
    """The body, taken out of its chunks where it has any. Raises BrokenChunks."""
    if not request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        return request.body
    content, position, body = bytearray(), 0, request.body
    while True:
        end = body.find(b"\r\n", position)
        length = body[position:end].partition(b";")[0]
        if end < 0 or not length or length.strip(b"0123456789abcdefABCDEF"):
            raise BrokenChunks("a chunk does not begin with its length")
        size = int(length, 16)
        if size == 0:
            return bytes(content)
        chunk = body[end + 2 : end + 2 + size]
        if len(chunk) < size:
            raise BrokenChunks("the body ends inside a chunk")
        content += chunk
        position = end + 2 + size + 2
