"""What the simulated collector does by retention rules: `assets.live` and `assets.expired` on plain rows."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from lakefs_gc_assets.collection import receipts, restoration, retention, run_folder
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.collection.retention import LiveDefinition
from lakefs_gc_assets.lakefs.ranges import RangeRecord
from lakefs_gc_assets_tests.simulation.carrying import Carrying
from lakefs_gc_assets_tests.simulation.plain import Row


@dataclass
class Retaining(Carrying):
    """What is live, and what may go, where rules apply."""

    def live_by_rules(self, prepared_until: datetime, shown: Collection[str] = ()) -> LiveDefinition:
        """Reads refs, rules and the server's list anew; `shown` are the heads before uncommitted data was prepared."""
        repository = self.repository
        return retention.live_definition(
            api=repository.api,
            store=repository.store,
            namespace=repository.namespace,
            settings=repository.settings,
            clock=repository.clock,
            now=self.plan.earliest_clock,
            prepared_until=prepared_until,
            shown=shown,
        )

    def heads_shown(self) -> list[str]:
        """The heads that branches show, where a recheck must know them."""
        return [branch.commit_id for branch in self.repository.api.branches()] if self.plan.flow.by_retention else []

    def marked_by_rules(self, prepared_until: datetime) -> LiveDefinition:
        """The same for a mark, which is compared with what must stay."""
        found = self.live_by_rules(prepared_until)
        assert self.retention is not None
        self.retention.defined(self.plan, self.told(), found)
        return found

    def expired_objects(self) -> list[Row]:
        """What ranges that no active commit has hold, but for what earlier runs deleted: `assets.expired.objects`."""
        found = self.marked_by_rules(self.plan.cutoff)
        active = {record.id for record in self.ranges(found.live.metarange_ids)}
        newest: dict[str, Row] = {}
        for record in self.ranges(found.expired_metaranges):
            if record.id not in active:
                for row in self.live_files().entries(record).to_pylist():
                    known = newest.setdefault(row["address"], row)
                    if row["last_modified"] > known["last_modified"]:
                        newest[row["address"]] = row
        gone = self.deleted_before()
        rows = [row for address, row in sorted(newest.items()) if address not in gone]
        assert self.retention is not None
        self.retention.universe(self.plan, self.told(), newest.keys() - gone)
        return rows

    def ranges(self, metarange_ids: tuple[str, ...]) -> list[RangeRecord]:
        """The distinct ranges of metaranges."""
        reader = self.live_files()
        rows = (row for metarange_id in metarange_ids for row in reader.metarange(metarange_id).to_pylist())
        return list(dict.fromkeys(RangeRecord(**row) for row in rows))

    def deleted_before(self) -> frozenset[str]:
        """Addresses that earlier runs deleted, and nobody brought back: `assets.history.deleted_before`."""
        store = self.repository.store
        earlier = [run_id for run_id in run_folder.newest_runs(store) if run_id != self.run_id]
        rows = [row for run_id in earlier for row in receipts.read(store, run_id).to_pylist()]
        back: set[tuple[str, str]] = set()
        if restoration.read(store) is not None:
            back = {(row["address"], row["attempt"]) for row in rows if row["outcome"] == Outcome.RESTORED}
        gone = (row for row in rows if row["outcome"] in receipts.GONE)
        return frozenset(row["address"] for row in gone if (row["address"], row["attempt"]) not in back)
