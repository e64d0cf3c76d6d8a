"""An S3 endpoint that only lists, from pre-rendered pages: `python -m benchmarks.listing_server KEYS`.

Prints its address as one line of JSON and serves until standard input ends.
"""

import json
import sys
from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qsl, urlsplit

from benchmarks.repositories import addresses

BUCKET = "bench"
_PAGE = 1000


class _Pages:
    def __init__(self, count: int) -> None:
        self.keys = sorted(addresses(count, datetime.now(UTC) - timedelta(days=20)))
        self.page = cache(self._rendered)

    def _rendered(self, prefix: str, start: str) -> bytes:
        first = bisect_left(self.keys, max(prefix, start))
        last = min(first + _PAGE, bisect_right(self.keys, prefix + "\U0010ffff"))
        content = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-11-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag><Size>{index}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for index, key in enumerate(self.keys[first:last], start=first)
        )
        more = last < len(self.keys) and self.keys[last].startswith(prefix)
        token = f"<NextContinuationToken>{self.keys[last]}</NextContinuationToken>" if more else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult '
            f'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{BUCKET}</Name><Prefix>{prefix}</Prefix>'
            f"<KeyCount>{last - first}</KeyCount><MaxKeys>{_PAGE}</MaxKeys>"
            f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{token}{content}</ListBucketResult>"
        ).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, pages: _Pages) -> None:
        self.pages = pages
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_GET(self) -> None:
        query = dict(parse_qsl(urlsplit(self.path).query))
        page = self.server.pages.page(query.get("prefix", ""), query.get("continuation-token", ""))
        self.send_response_only(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing."""


def main() -> None:
    """See the module."""
    pages = _Pages(int(sys.argv[1]))
    server = _Server(pages)
    Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_address[1]}"}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
