"""Steps of a run outside any process, for tests of operations on frames."""

from typing import Any, cast

from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.live.current import Committed, Unread
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention.commits import CommitSource, LiveCommits
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import LogLine
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.past_runs import NOW
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.collector.scripted import HandClock, ScriptedApi
from lakefs_gc_assets_tests.runs.made_ranges import range_records


def opened_by(opener: StoreOpener, **settings: Any) -> OpenRepository:
    """A repository with the store of an opener; its server's answers are irrelevant."""
    api = ScriptedApi()
    return OpenRepository(
        api.repository(),
        Namespace.parse(opener.namespace_uri),
        api,
        opener.open(),
        opener,
        CollectionSettings(**settings),
        HandClock(),
    )


def made_step(
    engine: Engine[R], repository: OpenRepository, plan: Plan = PLAN, note: LogLine = lambda line: None
) -> Step[R]:
    """A step of a run without a lock.

    Args:
        note: called with each line that the step logs, and with each warning.
    """
    return Step(note, note, repository, engine, plan, cast(Lock, None))


def found_live(step: Step[Any], *ranges: RangeRecord) -> Committed:
    """Live commits with these ranges."""
    own = Unread(step.repository, CommitSource.REFS_DUMP, (), range_records(ranges), ())
    return Committed(LiveCommits(CommitSource.REFS_DUMP, NOW, NOW, (), (), {}), (own,), None)
