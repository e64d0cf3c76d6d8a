"""A sample repository with commits of a year, to see what a retention period would free.

It is built through the API while the server's clock is moved back: tables that are replaced every day, every week and
every month, months that are only added, a branch that somebody forgot, a release with its tag, and retention rules.
"""

from datetime import timedelta

from lakefs_gc_assets.embedded.server import EmbeddedServer
from lakefs_gc_assets.embedded.session import Session, session

STALE = "experiment"
"""The branch that nobody has worked on for months."""
RULES = {"default_retention_days": 60, "branches": [{"branch_id": "main", "retention_days": 120}]}

_KIB = 1024
_DAYS = 364
_NEWEST = 2
"""Days ago: what is younger stays by any rules."""


def make_repository_of_months(server: EmbeddedServer) -> None:
    """Makes a repository whose first commit is a year old and whose newest is of the day before yesterday.

    Raises UnexpectedAnswer where the server does not do its part.
    """
    now = server.clock.now()
    with session(server, "months") as api:
        for ago in range(_DAYS, _NEWEST - 1, -1):
            with server.clock.at(now - timedelta(days=ago)):
                _day(api, ago)
        api.expect(204, "PUT", "/settings/gc_rules", RULES)


def _day(api: Session, ago: int) -> None:
    """What people do on one day, so many days ago."""
    if ago == _DAYS:
        api.create()
        _put(api, "main", "reference/countries", "first", 400)
    monthly, weekly, daily = ago % 28 == 0, ago % 7 == 0, ago <= 30
    if monthly:
        _put(api, "main", "models/recommender.bin", str(ago), 512)
        for part in range(3):
            _put(api, "main", f"events/month={(_DAYS - ago) // 28:02}/part-{part}.parquet", str(ago), 64)
    if weekly:
        for part in range(6):
            _put(api, "main", f"sales/part-{part}.parquet", str(ago), 24)
    if daily:
        _put(api, "main", "prices/today.parquet", str(ago), 32)
    if monthly or weekly or daily:
        api.commit("main", f"{ago} days ago")
    if ago == 196:
        api.branch("release", "main")
        _put(api, "release", "models/recommender.bin", "release", 512)
        api.commit("release", "what was released")
        api.expect(201, "POST", "/tags", {"id": "v1.0", "ref": "release"})
    if ago == 150:
        api.branch(STALE, "main")
    if ago in (150, 140, 130):
        for part in range(4):
            _put(api, STALE, f"features/part-{part}.parquet", str(ago), 256)
        api.commit(STALE, "another try")
    if ago == 20:
        api.branch("next", "main")
    if ago in (20, 15, 10, 5):
        _put(api, "next", "models/recommender.bin", f"next {ago}", 512)
        api.commit("next", "a better model")


def _put(api: Session, branch: str, path: str, version: str, kib: int) -> None:
    api.upload(branch, path, f"{branch} {path} {version}\n".encode().ljust(kib * _KIB, b"."))
