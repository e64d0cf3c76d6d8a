"""Marking in the simulated collector: the product's own functions in the order of the first four assets.

What those assets do in Spark is done on plain rows, all else is the product's code.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice

import pyarrow as pa

from lakefs_gc_assets.collection import (
    carry,
    commits,
    digests,
    guards,
    hidden,
    neighbours,
    order,
    ranges_read,
    run_folder,
    uncommitted,
    universe,
)
from lakefs_gc_assets.collection.commits import CommitSource, LiveCommits
from lakefs_gc_assets.collection.eligibility import Kept
from lakefs_gc_assets.collection.hidden import Question
from lakefs_gc_assets.collection.live_files import LiveFiles
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.lakefs.ranges import RangeRecord
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation import plain
from lakefs_gc_assets_tests.simulation.carrying import Inherited
from lakefs_gc_assets_tests.simulation.plain import Row
from lakefs_gc_assets_tests.simulation.retaining import Retaining
from lakefs_gc_assets_tests.simulation.stepping import STEPS

SIGHTING_RUNS = 20


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


def _unread(reader: LiveFiles, live: LiveCommits, known: frozenset[str]) -> Unread:
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


def _addresses(reader: LiveFiles, unread: Unread) -> set[str]:
    if unread.source is CommitSource.METADATA_FOLDER:
        tables = [reader.metadata_file(name) for name in unread.files]
    else:
        tables = [reader.range(record) for record in unread.records]
    return {address for table in tables for address in table.column("address").to_pylist()}


def _key(row: Row) -> str:
    """Where an object lies."""
    key: str = row["key"] if "key" in row else row["address"]
    return key


@dataclass
class Marking(Retaining):
    """The first four steps."""

    def make_store_df(self) -> None:
        store, plan = self.repository.store, self.plan
        repository, others = self.repository, self.repository.settings.also_live
        before = self.inherited()
        around = neighbours.neighbours(repository.api, repository.facts.id, repository.namespace, others)
        self.began_listing(self.run_id)
        listing, rows = universe.nothing(store), []
        if plan.flow is Flow.COMMITTED:
            rows = self.expired_objects()
        else:
            listing = self.listing(before)
            if plan.flow is Flow.OPTIMIZED:
                self.exactness.listing(plan, listing)
            rows = self.listed(listing)
        carried = before.open_objects() if before else ()
        figures = {
            "slices_listed": len(listing.slices),
            "slices_skipped": len(listing.skipped_slices),
            "last_read_slice": min(listing.slices, default=""),
            "nested_namespaces": around.nested,
            "other_folders": listing.folders.others,
            "settled_objects": before.carry.settled_objects if before else 0,
            "listed_now": frozenset(row["address"] for row in rows),
        }
        carry.write_listed_slices(store, plan.run_id, plan.attempt, listing.slices)
        self.store("store_df", [*rows, *carried], figures=figures)

    def listed(self, listing: universe.Listing) -> list[Row]:
        """The objects of a listing."""
        parts = (universe.list_part(self.repository.store, part, self.plan.slice_window) for part in listing.parts)
        return [row for part in parts for batch in part for row in batch.to_pylist()]

    def listing(self, before: Inherited | None) -> universe.Listing:
        """What is to be listed; all but what an earlier run settled."""
        return universe.listing(self.repository.store, self.plan.cutoff, before.settled if before else None)

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
            commits_expire=self.plan.flow.by_retention,
        )

    def staged(self, files: Sequence[str]) -> set[str]:
        """The addresses in files of uncommitted data."""
        reader = self.live_files()
        return {address for file in files for address in reader.uncommitted(file).column("address").to_pylist()}

    def make_committed_df(self) -> None:
        previous = self.stored("uncommitted_df")
        before = self.inherited()
        live = self.live_at_mark(previous.span.ended_at)
        if before and before.report.commit_source != live.source.value:
            raise OrderViolation(f"commits come from the {live.source}, unlike in run {before.run_id}")
        if before:
            self.exactness.commits(self.run_id, partial(self.all_committed, live))
        known = before.read_ids if before else frozenset()
        unread = self.unread_at_mark(live, known)
        rows = [{"address": address} for address in sorted(self.committed(unread))]
        if before:
            rows += before.committed()
        self.store_committed(rows, live, unread, known)

    def unread_at_mark(self, live: LiveCommits, known: frozenset[str]) -> "Unread":
        """What of the commits this run and the ones before it have not read."""
        return self.unread(live, known)

    def store_committed(self, rows: Sequence[Row], live: LiveCommits, unread: "Unread", known: frozenset[str]) -> None:
        """Stores committed addresses with what tells which of them need not be read again."""
        ids = known | unread.ids
        figures = {
            "commit_source": live.source.value,
            "commits": live.commits,
            "ranges_read": len(unread.records) or len(unread.files),
            "entries_promised": unread.promised,
            "heads": live.heads,
            "sealed": dict(live.sealed),
            "read_sha256": ranges_read.write(self.repository.store, self.run_id, self.plan.attempt, ids),
        }
        self.store("committed_df", rows, (self.stored("uncommitted_df"),), figures, live.started_at)

    def all_committed(self, live: LiveCommits, store: ObjectStore) -> set[str]:
        """All that commits hold, read anew."""
        reader = replace(self.live_files(), store=store)
        return _addresses(reader, _unread(reader, live, frozenset()))

    def live_at_mark(self, prepared_until: datetime) -> LiveCommits:
        """The commits that are live, at the mark."""
        if self.plan.flow.by_retention:
            return self.marked_by_rules(prepared_until).live
        return self.live_commits(prepared_until)

    def live_commits(self, prepared_until: datetime, shown: Collection[str] = ()) -> LiveCommits:
        """The commits that are live; see `live_by_rules`."""
        if self.plan.flow.by_retention:
            return self.live_by_rules(prepared_until, shown).live
        repository = self.repository
        return commits.live_commits(
            api=repository.api,
            store=repository.store,
            settings=repository.settings,
            clock=repository.clock,
            prepared_until=prepared_until,
        )

    def unread(self, live: LiveCommits, known: frozenset[str]) -> Unread:
        """Reads the metaranges that are not known, as `assets.live.Unread`."""
        return _unread(self.live_files(), live, known)

    def committed(self, unread: Unread) -> set[str]:
        """The addresses of what was not read before."""
        return _addresses(self.live_files(), unread)

    def make_candidates(self) -> None:
        listed, staged, committed = (self.stored(name) for name in STEPS[:3])
        order.require_safe_order(listed.span, staged.span, committed.span)
        first = self.earlier_sightings(listed.span.started_at)
        sighted = plain.old_enough(first, listed.span.started_at)
        unreferenced = self.unreferenced(listed.rows, staged.addresses, committed.addresses)
        kept: dict[str, int] = {}
        eligible: list[Row] = []
        reasons = {row["address"]: self.kept_because(row, sighted) for row in unreferenced}
        if self.plan.flow is Flow.OPTIMIZED:
            now = [row for row in listed.rows if row["address"] in listed.figures["listed_now"]]
            self.exactness.marked(self.plan, now, staged.addresses, sighted, reasons)
        for row in unreferenced:
            reason = reasons[row["address"]]
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

    def unreferenced(self, rows: Sequence[Row], staged: frozenset[str], committed: frozenset[str]) -> list[Row]:
        """What nothing references."""
        return plain.without(rows, staged, committed)

    def kept_because(self, row: Row, sighted: Collection[str]) -> Kept | None:
        """Why an unreferenced object stays all the same."""
        return plain.kept_because(row, self.plan.cutoff, self.plan.windows, sighted)

    def earlier_sightings(self, before: datetime) -> dict[str, datetime]:
        """When objects uploaded in parts were listed first, as `assets.sightings.earlier`."""
        found = []
        for run_id in islice(run_folder.newest_runs(self.repository.store), SIGHTING_RUNS):
            frame = self.shelf.get((run_id, "sightings"))
            if frame is not None and frame.span.ended_at <= before and run_id != self.run_id:
                found.append(frame.rows)
        return plain.first_sightings(found)

    def without_hidden(self, eligible: list[Row], heads: dict[str, str], kept: dict[str, int]) -> list[Row]:
        """Leaves out candidates staged with the content of a committed object: `sources.hidden_staged.clear`."""
        staged, uncertain = self.hidden(eligible, heads)
        for reason, found in ((Kept.HIDDEN_STAGED, staged), (Kept.UNCERTAIN, uncertain)):
            if found:
                kept[reason.value] = sum(row["address"] in found for row in eligible)
        return plain.without(eligible, staged, uncertain)

    def hidden(self, rows: list[Row], heads: dict[str, str]) -> tuple[frozenset[str], set[str]]:
        """What is staged with the content of a committed object, and of what that is not known.

        Args:
            rows: address, size and etag, and `key` where an object lies elsewhere than at its address.
        """
        repository = self.repository
        branches = hidden.branches_by_range(repository.store, heads)
        sizes = pa.array(sorted({row["size"] for row in rows}), pa.int64())
        reader = self.live_files()
        entries = [row for range_id in sorted(branches) for row in reader.head_entries(range_id, sizes).to_pylist()]
        contents = self.known_contents(rows, {entry["size"] for entry in entries})
        alike = plain.same_content(entries, contents)
        questions = [Question(*pair) for pair in dict.fromkeys((row["range_id"], row["path"]) for row in alike)]
        limit = repository.settings.hidden_suspect_limit
        answers = hidden.ask(repository.api, repository.namespace, questions[:limit], branches, limit)
        uncertain: set[str] = set()
        if answers.unasked or len(questions) > limit:
            asked = {(each.range_id, each.path) for each in set(questions[:limit]) - set(answers.unasked)}
            unknown = [entry for entry in entries if (entry["range_id"], entry["path"]) not in asked]
            open_ = [row for row in contents if row["address"] not in answers.live]
            uncertain = {row["address"] for row in plain.same_content(open_, unknown)}
        return answers.live & {row["address"] for row in rows}, uncertain

    def known_contents(self, eligible: list[Row], sizes: set[int]) -> list[Row]:
        """Candidates with ETags that are the MD5 of the content, or None: `sources.hidden_staged.known_contents`."""
        store = self.repository.store
        sample = [(_key(row), row["etag"]) for row in eligible if plain.plain_etag(row)][:16]
        trusted = digests.etags_are_digests(store, sample)
        contents = []
        for row in eligible:
            etag = row["etag"] if trusted else None
            if etag is None and row["size"] in sizes and row["size"]:
                etag = digests.content_digest(store, _key(row))
            contents.append({**row, "etag": etag})
        return contents

    def mark(self) -> guards.Mark:
        """The figures of the mark, as `assets.candidates.mark_of`."""
        listed, staged, committed, candidates = (self.stored(name) for name in STEPS[:4])
        unlisted = len(committed.rows) if self.plan.flow is Flow.COMMITTED else listed.figures["settled_objects"]
        return guards.Mark(
            listed=len(listed.rows),
            stored=len(listed.rows) + unlisted,
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
