import threading
from pathlib import Path
from urllib.request import urlopen

from lakefs_gc_assets.embedded.serving import serve


def test_it_serves_a_sample_until_it_is_stopped(tmp_path: Path) -> None:
    said: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("repository sample"):
            ready.set()

    def run() -> None:
        serve(tmp_path, rules="seed", port=0, s3_port=0, objects=80, say=say, stop=stop)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60)
        url = said[1].split()[1].rstrip(",")
        with urlopen(f"{url}/_health") as answer:
            assert answer.status == 200
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
    assert "no production server" in said[0]
