"""The collector of the simulation: the product's own functions in the order of the assets, on plain rows.

What `assets/` does around its work (lock, plan, failure report) and what it does in Spark is spelled out here; all else
is the product's code. A run goes step by step, each of which can be the last for a while, or for ever.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

import pyarrow as pa

from lakefs_gc_assets.collection import (
    approval,
    commits,
    digests,
    failing,
    guards,
    hidden,
    neighbours,
    order,
    ownership,
    planning,
    ranges_read,
    receipts,
    report,
    run_folder,
    uncommitted,
    universe,
)
from lakefs_gc_assets.collection import plan as plans
from lakefs_gc_assets.collection.approval import Approval
from lakefs_gc_assets.collection.commits import CommitSource, LiveCommits
from lakefs_gc_assets.collection.eligibility import Kept
from lakefs_gc_assets.collection.hidden import Question
from lakefs_gc_assets.collection.live_files import LiveFiles
from lakefs_gc_assets.collection.lock import Lock
from lakefs_gc_assets.collection.order import Span
from lakefs_gc_assets.collection.plan import Plan
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.collection.report import Ending, Report
from lakefs_gc_assets.collection.repository import OpenRepository
from lakefs_gc_assets.collection.sweep import Sweep
from lakefs_gc_assets.errors import CollectionError, OrderViolation
from lakefs_gc_assets.lakefs.ranges import RangeRecord
from lakefs_gc_assets_tests.simulation import plain
from lakefs_gc_assets_tests.simulation.frames import Frame, Shelf
from lakefs_gc_assets_tests.simulation.plain import Row

STEPS = ("store_df", "uncommitted_df", "committed_df", "candidates", "deleted_report")
_SIGHTING_RUNS = 20
_CANDIDATE_COLUMNS = pa.schema(
    [
        pa.field("address", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("slice", pa.string()),
        pa.field("slice_window", pa.string()),
    ]
)


class Killed(BaseException):
    """The process of a collector ends at once, without a chance to clean up."""


@dataclass(frozen=True)
class Unread:
    """What of the live commits was not read before."""

    source: CommitSource
    metarange_ids: tuple[str, ...]
    records: tuple[RangeRecord, ...]
    files: tuple[str, ...]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset([*self.metarange_ids, *self.files, *(record.id for record in self.records)])

    @property
    def promised(self) -> int | None:
        if self.source is CommitSource.METADATA_FOLDER:
            return None
        return sum(record.count for record in self.records)


@dataclass
class Run:
    """One run of one collector process; a resumed run is another object with the same run id and owner.

    Attributes:
        shelf: frames stored so far, of all runs.
        began_listing, marked, rechecked: tell the oracle.
        lock: held by the step under way.
    """

    repository: OpenRepository
    run_id: str
    owner: str
    shelf: Shelf
    began_listing: Callable[[str], None]
    marked: Callable[[str, Sequence[str]], None]
    rechecked: Callable[[], None]
    lock: Lock | None = None
    started_at: datetime = field(init=False)
    plan: Plan = field(init=False)

    def collect(self, done: Sequence[str] = ()) -> None:
        """All steps but those that are done already."""
        for name in STEPS:
            if name not in done:
                with self.step(name):
                    getattr(self, f"make_{name}")()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """What `assets.step.step` does around the work of an asset."""
        repository = self.repository
        plan: Plan | None = None
        lock: Lock | None = None
        try:
            if name != STEPS[0]:
                plan = plans.read(repository.store, self.run_id)
                self.owner = plan.owner
            lock = Lock.acquire(
                repository.store,
                run_id=self.run_id,
                owner=self.owner,
                now=latest_clock(repository),
                expiry=timedelta(minutes=repository.settings.lock_expiry_minutes),
            )
            if plan is None:
                windows = universe.windows_of(
                    universe.folders(repository.store).slices, repository.settings.slice_window
                )
                plan = planning.begin(
                    repository=repository, run_id=self.run_id, windows=windows, owner=self.owner, lock=lock
                )
            self.plan, self.lock = plan, lock
            self.started_at = repository.clock.now()
            yield
            self.lock = None
            if name == STEPS[-1]:
                lock.release()
        except Killed:
            raise
        except BaseException as error:
            self.lock = None
            if plan is not None:
                with suppress(CollectionError):
                    failing.store_report(repository.store, plan, repository.clock.now(), str(error))
            if lock is not None:
                with suppress(CollectionError):
                    lock.release()
            raise

    def stored(self, name: str) -> Frame:
        """A frame of this run. Raises OrderViolation where it was not made."""
        if (self.run_id, name) not in self.shelf:
            raise OrderViolation(f"{name} of run {self.run_id} does not exist: materialize it first")
        return self.shelf[self.run_id, name]

    def store(
        self,
        name: str,
        rows: Sequence[Row],
        inputs: tuple[Frame, ...] = (),
        figures: Mapping[str, object] | None = None,
        started_at: datetime | None = None,
    ) -> Frame:
        """Stores a frame of this run. Raises OrderViolation where an input is of another attempt."""
        for given in inputs:
            if given.span.attempt != self.plan.attempt:
                raise OrderViolation(f"{given.span.frame} is of another attempt")
        span = Span(name, self.run_id, self.plan.attempt, started_at or self.started_at, self.repository.clock.now())
        frame = Frame(span, tuple(rows), inputs, figures or {})
        self.shelf[self.run_id, name] = frame
        return frame

    def live_files(self) -> LiveFiles:
        return LiveFiles(
            store=self.repository.store, namespace=self.repository.namespace, window_size=self.plan.slice_window
        )

    def make_store_df(self) -> None:
        store, plan = self.repository.store, self.plan
        repository, others = self.repository, self.repository.settings.also_live
        around = neighbours.neighbours(repository.api, repository.facts.id, repository.namespace, others)
        self.began_listing(self.run_id)
        listing = universe.listing(store, plan.cutoff)
        rows: list[Row] = []
        for part in listing.parts:
            for batch in universe.list_part(store, part, plan.slice_window):
                rows += batch.to_pylist()
        figures = {
            "slices_listed": len(listing.slices),
            "slices_skipped": len(listing.skipped_slices),
            "last_read_slice": min(listing.slices, default=""),
            "nested_namespaces": around.nested,
        }
        self.store("store_df", rows, figures=figures)

    def make_uncommitted_df(self) -> None:
        prepared = self.prepare()
        rows = [{"address": address} for address in sorted(self.staged(prepared.files))]
        figures = {"server_run_ids": prepared.server_run_ids}
        self.store("uncommitted_df", rows, (self.stored("store_df"),), figures, prepared.started_at)

    def prepare(self) -> uncommitted.Prepared:
        repository = self.repository
        return uncommitted.prepare_checked(
            api=repository.api,
            store=repository.store,
            namespace=repository.namespace,
            settings=repository.settings,
            clock=repository.clock,
            cutoff=self.plan.cutoff,
        )

    def staged(self, files: Sequence[str]) -> set[str]:
        """The addresses in files of uncommitted data."""
        reader = self.live_files()
        return {address for file in files for address in reader.uncommitted(file).column("address").to_pylist()}

    def make_committed_df(self) -> None:
        previous = self.stored("uncommitted_df")
        live = self.live_commits(previous.span.ended_at)
        unread = self.unread(live, frozenset())
        figures = {
            "commit_source": live.source.value,
            "commits": live.commits,
            "ranges_read": len(unread.records) or len(unread.files),
            "entries_promised": unread.promised,
            "heads": live.heads,
        }
        rows = [{"address": address} for address in sorted(self.committed(unread))]
        self.store("committed_df", rows, (previous,), figures, live.started_at)
        ranges_read.write(self.repository.store, self.run_id, self.plan.attempt, unread.ids)

    def live_commits(self, prepared_until: datetime) -> LiveCommits:
        repository = self.repository
        return commits.live_commits(
            api=repository.api,
            store=repository.store,
            settings=repository.settings,
            clock=repository.clock,
            prepared_until=prepared_until,
        )

    def unread(self, live: LiveCommits, known: frozenset[str]) -> Unread:
        """Reads the metaranges that are not known, as `assets.committed_df.Unread`."""
        reader = self.live_files()
        metarange_ids = tuple(name for name in live.metarange_ids if name not in known)
        records: dict[RangeRecord, None] = {}
        for metarange_id in metarange_ids:
            for row in reader.metarange(metarange_id).to_pylist():
                records[RangeRecord(**row)] = None
        return Unread(
            live.source,
            metarange_ids,
            tuple(record for record in records if record.id not in known),
            tuple(name for name in live.files if name not in known),
        )

    def committed(self, unread: Unread) -> set[str]:
        """The addresses of what was not read before."""
        reader = self.live_files()
        if unread.source is CommitSource.METADATA_FOLDER:
            tables = [reader.metadata_file(name) for name in unread.files]
        else:
            tables = [reader.range(record) for record in unread.records]
        return {address for table in tables for address in table.column("address").to_pylist()}

    def make_candidates(self) -> None:
        listed, staged, committed = (self.stored(name) for name in STEPS[:3])
        order.require_safe_order(listed.span, staged.span, committed.span)
        first = self.earlier_sightings(listed.span.started_at)
        sighted = plain.old_enough(first, listed.span.started_at)
        unreferenced = plain.without(listed.rows, staged.addresses, committed.addresses)
        kept: dict[str, int] = {}
        eligible: list[Row] = []
        for row in unreferenced:
            reason = self.kept_because(row, sighted)
            if reason is None:
                eligible.append(row)
            else:
                kept[reason.value] = kept.get(reason.value, 0) + 1
        cleared = self.without_hidden(eligible, committed.figures["heads"], kept) if eligible else eligible
        seen = [
            {"address": row["address"], "first_listed_at": first.get(row["address"], listed.span.ended_at)}
            for row in unreferenced
            if plain.is_multipart(row)
        ]
        self.store("sightings", seen)
        stored = self.store("candidates", cleared, (listed, staged, committed), {"kept": kept})
        guards.require_live_set(self.mark())
        self.marked(self.run_id, [row["address"] for row in stored.rows])

    def kept_because(self, row: Row, sighted: Collection[str]) -> Kept | None:
        """Why an unreferenced object stays all the same."""
        return plain.kept_because(row, self.plan.cutoff, self.plan.windows, sighted)

    def earlier_sightings(self, before: datetime) -> dict[str, datetime]:
        """When objects uploaded in parts were listed first, as `assets.sightings.earlier`."""
        found = []
        for run_id in islice(run_folder.newest_runs(self.repository.store), _SIGHTING_RUNS):
            frame = self.shelf.get((run_id, "sightings"))
            if frame is not None and frame.span.ended_at <= before and run_id != self.run_id:
                found.append(frame.rows)
        return plain.first_sightings(found)

    def without_hidden(self, eligible: list[Row], heads: dict[str, str], kept: dict[str, int]) -> list[Row]:
        """Leaves out candidates staged with the content of a committed object: `sources.hidden_staged.clear`."""
        repository = self.repository
        branches = hidden.branches_by_range(repository.store, heads)
        sizes = pa.array(sorted({row["size"] for row in eligible}), pa.int64())
        reader = self.live_files()
        entries = [row for range_id in sorted(branches) for row in reader.head_entries(range_id, sizes).to_pylist()]
        contents = self.known_contents(eligible, {entry["size"] for entry in entries})
        alike = plain.same_content(entries, contents)
        questions = [Question(*pair) for pair in dict.fromkeys((row["range_id"], row["path"]) for row in alike)]
        limit = repository.settings.hidden_suspect_limit
        answers = hidden.ask(repository.api, repository.namespace, questions[:limit], branches, limit)
        staged = [row for row in eligible if row["address"] in answers.live]
        uncertain: set[str] = set()
        if answers.unasked or len(questions) > limit:
            asked = {(each.range_id, each.path) for each in set(questions[:limit]) - set(answers.unasked)}
            unknown = [entry for entry in entries if (entry["range_id"], entry["path"]) not in asked]
            open_ = [row for row in contents if row["address"] not in answers.live]
            uncertain = {row["address"] for row in plain.same_content(open_, unknown)}
        for reason, count in ((Kept.HIDDEN_STAGED, len(staged)), (Kept.UNCERTAIN, len(uncertain))):
            if count:
                kept[reason.value] = count
        return [row for row in eligible if row["address"] not in answers.live and row["address"] not in uncertain]

    def known_contents(self, eligible: list[Row], sizes: set[int]) -> list[Row]:
        """Candidates with ETags that are the MD5 of the content, or None: `sources.hidden_staged.known_contents`."""
        store = self.repository.store
        sample = [(row["address"], row["etag"]) for row in eligible if plain.plain_etag(row)][:16]
        trusted = digests.etags_are_digests(store, sample)
        contents = []
        for row in eligible:
            etag = row["etag"] if trusted else None
            if etag is None and row["size"] in sizes and row["size"]:
                etag = digests.content_digest(store, row["address"])
            contents.append({**row, "etag": etag})
        return contents

    def mark(self) -> guards.Mark:
        """The figures of the mark, as `assets.candidates.mark_of`."""
        listed, staged, committed, candidates = (self.stored(name) for name in STEPS[:4])
        return guards.Mark(
            listed=len(listed.rows),
            stored=len(listed.rows),
            listed_bytes=listed.object_bytes,
            uncommitted=len(staged.rows),
            committed=len(committed.rows),
            entries_promised=committed.figures["entries_promised"],
            candidates=len(candidates.rows),
            candidate_bytes=candidates.object_bytes,
            kept=dict(candidates.figures["kept"]),
            branches=len(committed.figures["heads"]),
            nested=tuple(listed.figures["nested_namespaces"]),
        )

    def make_deleted_report(self) -> None:
        candidates = self.stored("candidates")
        for given in candidates.inputs:
            if given is not self.stored(given.span.frame):
                raise OrderViolation(f"{given.span.frame} was made again after candidates was made from it")
        sweep = self.plan.sweep or self.approved(candidates)
        rows = self.swept(candidates) if sweep else self.decided(candidates.rows, Outcome.DRY_RUN)
        self.store("deleted_report", rows, (candidates,))
        report.write(self.repository.store, self.report_of(rows, sweep))

    def approved(self, candidates: Frame) -> bool:
        """Whether these candidates of a dry run are to be deleted after all: `assets.deleted_report.approved`."""
        store, digest = self.repository.store, repr(candidates.span)
        if self.repository.settings.approve_run == self.run_id:
            approval.write(store, Approval(self.run_id, self.plan.attempt, digest, self.repository.clock.now()))
        found = approval.read(store, self.run_id)
        return found is not None and found.candidates_digest == digest

    def swept(self, candidates: Frame) -> list[Row]:
        """Deletes the candidates, pass by pass: what `assets.deleted_report.swept` does."""
        repository, settings = self.repository, self.repository.settings
        self.require_fresh_mark()
        for guard in guards.tripped(self.mark(), settings):
            raise guard
        if not candidates.rows:
            return []
        heads = self.stored("committed_df").figures["heads"]
        ownership.require_own_addresses(repository.api, repository.store, repository.namespace, heads)
        self.wait_for_recheck()
        earlier = receipts.read(repository.store, self.run_id).to_pylist()
        done = {row["address"]: row for row in earlier if row["outcome"] == Outcome.ACCEPTED}
        decided = list(done.values())
        remaining = self.remaining(candidates.rows, done)
        while remaining:
            outcomes = self.one_pass(remaining, done)
            if not outcomes:
                raise CollectionError("nothing could be deleted in the time for which a recheck is valid")
            decided += outcomes
            named = {row["address"] for row in outcomes}
            remaining = [row for row in remaining if row["address"] not in named]
        return decided

    def require_fresh_mark(self) -> None:
        """Raises GuardTripped where the mark is too old by any clock."""
        guards.require_fresh_mark(
            listed_at=self.stored("store_df").span.started_at,
            latest_now=latest_clock(self.repository),
            settings=self.repository.settings,
        )

    def one_pass(self, remaining: list[Row], done: Collection[str]) -> list[Row]:
        """Rechecks what is live, and deletes for as long as that is valid."""
        live = self.live_before(done)
        kept = self.decided([row for row in remaining if row["address"] in live], Outcome.KEPT_LIVE)
        gone = [row for row in remaining if row["address"] not in live]
        valid = timedelta(minutes=self.repository.settings.recheck_valid_minutes)
        return [*self.deleted(gone, self.repository.clock.now() + valid), *kept]

    def live_before(self, done: Collection[str]) -> set[str]:
        """What is live right before deleting, whether or not a part is deleted already."""
        return self.live_again()

    def remaining(self, rows: Sequence[Row], done: Collection[str]) -> list[Row]:
        """Candidates that no earlier try of this sweep has deleted."""
        return [row for row in rows if row["address"] not in done]

    def deleted(self, rows: list[Row], valid_until: datetime) -> list[Row]:
        """Deletes rows until a moment; returns their receipts."""
        if not rows:
            return []
        assert self.lock is not None
        sweep = Sweep(
            store=self.repository.store,
            run_id=self.run_id,
            lock=self.lock.token,
            clock=self.repository.clock,
            valid_until=valid_until,
        )
        named = [{name: row[name] for name in _CANDIDATE_COLUMNS.names} for row in rows]
        table = pa.Table.from_pylist(named, schema=_CANDIDATE_COLUMNS)
        return [receipt for batch in sweep.delete(table) for receipt in batch.to_pylist()]

    def live_again(self) -> set[str]:
        """Addresses that became live since the mark, as `assets.deleted_report.live_again`."""
        prepared = self.prepare()
        live = self.live_commits(prepared.ended_at)
        unread = self.unread(live, ranges_read.read(self.repository.store, self.run_id, self.plan.attempt))
        found = self.staged(prepared.files) | self.committed(unread)
        self.rechecked()
        return found

    def wait_for_recheck(self) -> None:
        """The recheck comes a set time after the listing."""
        clock = self.repository.clock
        seconds = timedelta(seconds=self.repository.settings.wait_before_recheck_seconds)
        wait = self.stored("store_df").span.ended_at + seconds - clock.now()
        if wait > timedelta():
            clock.sleep(wait.total_seconds())

    def decided(self, rows: Sequence[Row], outcome: Outcome) -> list[Row]:
        """Receipts of rows that are not deleted."""
        columns = ("address", "size", "slice", "slice_window")
        return [{**{name: row[name] for name in columns}, "outcome": outcome.value} for row in rows]

    def report_of(self, outcomes: Sequence[Row], sweep: bool) -> Report:
        """The report, as `assets.reporting.report_of`."""
        mark, plan = self.mark(), self.plan
        listed, committed = self.stored("store_df"), self.stored("committed_df")
        objects, sizes = dict.fromkeys(Outcome, 0), dict.fromkeys(Outcome, 0)
        for row in outcomes:
            objects[Outcome(row["outcome"])] += 1
            sizes[Outcome(row["outcome"])] += row["size"]
        failed = objects[Outcome.FAILED]
        return Report(
            run_id=plan.run_id,
            attempt=plan.attempt,
            repository=plan.repository,
            storage_namespace=plan.storage_namespace,
            flow=plan.flow.value,
            previous_run=plan.previous_run,
            dry_run=not sweep,
            success=not failed,
            ending=_ending(sweep, mark.candidates, failed),
            started_at=plan.started_at,
            ended_at=self.repository.clock.now(),
            cutoff=plan.cutoff,
            windows=plan.windows,
            last_read_slice=listed.figures["last_read_slice"],
            counts={
                "listed": mark.listed,
                "uncommitted": mark.uncommitted,
                "committed": mark.committed,
                "commits": committed.figures["commits"],
                "candidates": mark.candidates,
                "deleted": objects[Outcome.ACCEPTED],
                "failed": failed,
                "kept_live": objects[Outcome.KEPT_LIVE],
            },
            object_bytes={
                "listed": mark.listed_bytes,
                "candidates": mark.candidate_bytes,
                "deleted": sizes[Outcome.ACCEPTED],
            },
            kept=mark.kept,
        )


def _ending(sweep: bool, candidates: int, failed: int) -> Ending:
    if not candidates:
        return Ending.NOTHING_TO_DELETE
    if not sweep:
        return Ending.MARKED
    return Ending.PARTLY_DELETED if failed else Ending.DELETED


def latest_clock(repository: OpenRepository) -> datetime:
    """As `assets.step.latest_clock`: others' locks have expired by the clock that is ahead."""
    own = repository.clock.now()
    return max(own, own + (repository.api.server_clocks.latest or timedelta()))
