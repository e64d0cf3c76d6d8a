"""Objects that earlier runs deleted, for work that brings back entries which may refer to them."""

from dataclasses import dataclass
from functools import cached_property, partial

import pyarrow as pa

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.incremental.earlier_runs import are_gone, deleted_before
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import LogLine
from lakefs_gc_assets.lakefs import layout


@dataclass(frozen=True)
class DeletedData:
    """Receipts of earlier runs. They are read once, and only if something is brought back.

    Attributes:
        lock: the repository's lock, which is held.
        work: name of the work.
    """

    repository: OpenRepository
    lock: Lock
    work: str
    warn: LogLine

    @cached_property
    def step(self) -> Step[ArrowRows]:
        """A step of no run, for functions that read what runs stored."""
        now, store_clock = self.repository.clock.now(), self.lock.store_clock
        plan = planning.make_plan(self.repository, layout.issue_run_id(now), (), self.work, store_clock, Flow.CLEAN)
        return Step(lambda line: None, self.warn, self.repository, LocalEngine(), plan, self.lock)

    @cached_property
    def addresses(self) -> pa.Table:
        """Addresses (`address`) that earlier runs deleted or moved to quarantine, each once."""
        engine = self.step.engine
        return engine.collect(engine.distinct(deleted_before(self.step)))

    def count_gone(self, held: ArrowRows) -> int:
        """Number of these deleted addresses without an object in the store."""
        engine = self.step.engine
        return engine.count(engine.where(held, partial(are_gone, self.repository.opener)))
