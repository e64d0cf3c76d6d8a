"""The demonstration on an embedded lakeFS server, and a playground for the collector.

The demonstration collects garbage among live objects of every kind: a dry run, the reasons for each deletion, the
sweep, and an optimized run. Then it reads every live object through the API and compares it byte for byte. Objects are
in a folder, or in an existing bucket or container, reached by the cloud's usual configuration.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import click
import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from rich.console import Console
from rich.table import Table

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, PHASES, UNCOMMITTED_DF, UNRECOGNISED_DF
from lakefs_gc_assets.collector.page.garbage import WITH_A_RUN, FrameReader, written_by
from lakefs_gc_assets.collector.page.page import find_last_seen
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report, describe
from lakefs_gc_assets.collector.repository.repository import Clock, SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, Loaded
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.running import AskedRun
from lakefs_gc_assets.errors import ConfigurationError, LogLine
from lakefs_gc_assets.extensions.playground.embedded.core import RuleSet, ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.sample import (
    GarbageObject,
    Sample,
    Session,
    copy,
    link_pending,
    make_repository_of_months,
    make_sample_repository,
    rename,
    unreadable,
)
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.playground.embedded.stores import RemoteBlockstore
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import CollectionSettings, Configuration, LakeFSSettings, StoreSettings
from lakefs_gc_assets.storage.opening import open_store

BUCKET_GRACE = timedelta(seconds=5)
"""Lifetime of an issued address. It is short, since objects in a bucket cannot be backdated."""
BUCKET_SKEW = timedelta(seconds=12)
"""Allowed clock skew, small for the same reason; clocks must agree within half of it."""
BUCKET_AGING = BUCKET_GRACE + BUCKET_SKEW + timedelta(seconds=2)
"""Age at which an object may be collected."""


def store_from_environment(url: str) -> StoreSettings:
    """Settings for the cloud's usual credential chain; an S3 endpoint in the environment is used in path style."""
    if not url.startswith("s3"):
        return StoreSettings()
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    return StoreSettings(endpoint_url=endpoint, path_style=bool(endpoint))


def in_bucket(url: str, settings: StoreSettings) -> RemoteBlockstore:
    """A blockstore below an address such as `s3://bucket/prefix`, with a folder for each repository.

    Raises ConfigurationError if it cannot be opened.
    """
    root = Namespace.parse(url)
    if root.location.kind == "local":
        raise ConfigurationError(f"{url} is no bucket: objects lie in a local folder unless one is named")
    return RemoteBlockstore(root.location.kind, lambda uri: open_store(settings, Namespace.parse(uri)), root.uri)


def open_server(
    folder: Path,
    rules: RuleSet,
    url: str,
    store: StoreSettings | None,
    *,
    port: int = 0,
    credentials: tuple[str, str] = ("", ""),
) -> EmbeddedServer:
    """A server with its metadata in a folder. Objects are there too or, with settings of a store, below the URL."""
    access_key_id, secret_access_key = credentials
    return EmbeddedServer(
        folder,
        blockstore=None if store is None else in_bucket(url, store),
        settings=ServerSettings(rules=rules)
        if store is None
        else ServerSettings(rules=rules, link_seconds=BUCKET_GRACE.seconds),
        port=port,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
    )


@dataclass(frozen=True)
class DemoResult:
    """Results of a demonstration: candidates of the dry run, objects deleted and failed, and flows of the sweeps."""

    candidates: frozenset[str]
    deleted: int
    failed: int
    flows: tuple[str, ...]


def demonstrate(
    loaded: Loaded,
    clock: Clock,
    console: Console,
    meanwhile: Callable[[str], None] = lambda step: None,
    then: Sequence[Flow] = (),
) -> DemoResult:
    """Makes a dry run and a sweep in one process and one Spark session, and prints both.

    Args:
        meanwhile: called with the name of each finished step of the sweep, to change the repository during the run.
        then: flows of further sweeps, to compare how much each one reads.
    Raises:
        CollectionError: a run fails.
    """

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    with running.instance() as home:
        console.rule("dry run: show garbage")
        dry = _run(loaded, clock, home, say, AskedRun(False, Flow.CLEAN))
        repository = Collector.from_loaded(loaded, clock).open()
        store, opener = repository.store, repository.opener
        candidates = StoredFrame.from_run(store, opener, dry, CANDIDATES_DF).table()
        strange = StoredFrame.from_run(store, opener, dry, UNRECOGNISED_DF).table()
        seen = find_last_seen(store, dry, candidates, FrameReader(LocalEngine(), opener), WITH_A_RUN)
        console.print(_table(candidates))
        for line in seen.describe_unknown():
            say(line)
        if strange.num_rows:
            names = ", ".join(strange.column("address").to_pylist())
            console.print(f"kept, names that lakeFS never makes: {names}", soft_wrap=True)
        console.rule("sweep")
        swept = [_run(loaded, clock, home, say, AskedRun(True, Flow.CLEAN), meanwhile)]
        for flow in then:
            console.rule(f"the next run, {flow}")
            swept.append(_run(loaded, clock, home, say, AskedRun(True, flow)))
        ended = [run_report for run_id in swept if (run_report := report.read(store, run_id))]
        console.rule("report")
        for run_report in ended:
            for line in describe(run_report):
                say(line)
        if then:
            console.print(_compared(ended))
        deleted = sum(run_report.statistics.deleted or 0 for run_report in ended)
        failed = sum(run_report.statistics.failed or 0 for run_report in ended)
        return DemoResult(
            frozenset(candidates.column("address").to_pylist()),
            deleted,
            failed,
            tuple(run_report.flow for run_report in ended),
        )


def _run(
    loaded: Loaded,
    clock: Clock,
    home: dg.DagsterInstance,
    say: LogLine,
    asked: AskedRun,
    meanwhile: Callable[[str], None] = lambda step: None,
) -> str:
    detail = running.Detail(logging.INFO, _StepLines(say, meanwhile))
    run_id, error = running.execute(loaded, asked, say, clock, home, detail)
    if error is not None:
        raise error
    return run_id


class _StepLines:
    """Prints a line for each finished step, then calls `meanwhile` with its name."""

    def __init__(self, say: LogLine, meanwhile: Callable[[str], None]) -> None:
        self._say, self._meanwhile = say, meanwhile
        self._since = time.monotonic()

    def begins(self, step: str) -> None:
        """See Watch.begins."""
        self._since = time.monotonic()

    def ends(self, step: str) -> None:
        """See Watch.ends."""
        if step in PHASES:
            self._say(f"  {PHASES[step]}: {time.monotonic() - self._since:.1f} s")
            self._meanwhile(step)


def _table(candidates: pa.Table) -> Table:
    """Objects and bytes by reason and writer, with an example of each."""
    table = Table(
        "why it is garbage", "written by", "objects", "bytes", "for example", title="objects that a sweep would delete"
    )
    rows = candidates.append_column("written_by", written_by(candidates))
    groups = rows.group_by(["why", "written_by"]).aggregate([("address", "count"), ("size", "sum"), ("address", "min")])
    for row in groups.sort_by([("why", "ascending"), ("written_by", "ascending")]).to_pylist():
        count = f"{row['address_count']:,}"
        table.add_row(row["why"], row["written_by"], count, size(row["size_sum"]), row["address_min"])
    table.add_section()
    table.add_row("all", "", f"{rows.num_rows:,}", size(pc.sum(rows.column("size")).as_py() or 0), "")
    return table


def _compared(reports: Sequence[Report]) -> Table:
    """Slices, objects and ranges examined by each run."""
    table = Table("run", "slices listed", "objects looked at", "ranges read", "did", title="work of each run")
    for run_report in reports:
        figures = run_report.statistics
        counted = (figures.slices_listed, figures.listed, figures.ranges_read)
        table.add_row(run_report.flow, *(f"{count:,}" for count in counted), run_report.did)
    return table


@contextmanager
def months(folder: Path) -> Iterator[Loaded]:
    """Serves the sample repository with a year of commits from a folder; yields collector settings for it."""
    with EmbeddedServer(folder / "lakefs") as server:
        make_repository_of_months(server)
        policy = folder / "policy.yaml"
        policy.write_text("stale_after: 90d\n", encoding="utf-8")
        base = configuration(server, "months")
        collection = base.collection.model_copy(update={"retention_policy": str(policy)})
        yield Loaded(base.model_copy(update={"collection": collection}), {})


def configuration(server: EmbeddedServer, repository: str, store: StoreSettings | None = None) -> Configuration:
    """Settings that collect a repository of an embedded server, without waits.

    Args:
        store: settings of the bucket with the server's objects. Objects there count as old after seconds.
    """
    waits = {"wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0}
    ages = {"min_age_hours": 0, "clock_skew_minutes": BUCKET_SKEW / timedelta(minutes=1)} if store else {}
    return Configuration(
        repository=repository,
        lakefs=LakeFSSettings(
            endpoint=server.url, access_key_id=server.access_key_id, secret_access_key=server.secret_access_key
        ),
        store=store or StoreSettings(local_root=str(server.objects_folder.resolve())),
        collection=CollectionSettings.model_validate(waits | ages),
    )


def show(folder: Path, rules: RuleSet, objects: int, console: Console, store_url: str = "") -> bool:
    """Makes the repository in a folder, collects it, and prints the result; returns True if everything is as expected.

    With a `store_url` such as s3://bucket/prefix, objects are stored there.

    Raises CollectionError if a run fails.
    """
    began = time.monotonic()
    store = store_from_environment(store_url) if store_url else None
    with open_server(folder, rules, store_url, store) as server:
        console.print(f"making a repository of about {objects:,} objects, call by call")
        # A bucket may hold the repository of an earlier demonstration.
        repository = f"sample-{uuid4().hex[:8]}" if store_url else "sample"
        sample = make_sample_repository(server, objects=objects, repository=repository)
        console.print(
            f"an embedded lakeFS (no production server) at {server.url}, rule set {rules}: repository "
            f"{sample.repository!r} with {len(sample.live):,} live objects and {len(sample.garbage):,} objects of "
            + ("garbage, up to 40 days old; waits are zero" if store is None else f"garbage, in {store_url}"),
            soft_wrap=True,
        )
        if store is not None:
            link_pending(server, sample)
            console.print(f"nothing in a bucket can be made to look old: waiting {BUCKET_AGING.seconds} s")
            time.sleep(BUCKET_AGING.total_seconds())
        users = _Users(server, sample, console)
        loaded = Loaded(configuration(server, sample.repository, store), {})
        shown = demonstrate(loaded, SystemClock(), console, users.work, then=(Flow.OPTIMIZED,))
        lost = unreadable(server, sample)
        remaining = still_stored(server, sample)
    for live in lost:
        console.print(f"LOST: {live.kind}, {live.path} of {live.reference} at {live.address}", style="bold red")
    for garbage in remaining:
        console.print(f"still there: {garbage.kind}, {garbage.address}", style="yellow")
    console.print(
        f"{len(sample.live) - len(lost):,} of {len(sample.live):,} live objects answered, "
        f"{len(sample.garbage) - len(remaining):,} of {len(sample.garbage):,} objects of garbage are gone, "
        f"in {time.monotonic() - began:.0f} s",
        style="bold",
        soft_wrap=True,
    )
    as_asked = shown.flows == (Flow.CLEAN, Flow.OPTIMIZED)
    return not lost and not remaining and not shown.failed and users.worked and as_asked


def still_stored(server: EmbeddedServer, sample: Sample) -> list[GarbageObject]:
    """Garbage objects that are still in the store."""
    store = server.core.blockstore.open(f"{server.core.blockstore.scheme}{sample.repository}")
    stored = {key for batch in store.list("data/") for key in batch.column("key").to_pylist()}
    return [garbage for garbage in sample.garbage if garbage.address in stored]


class _Users:
    """Users who keep working during the collection: they copy and rename staged objects, and link uploads."""

    def __init__(self, server: EmbeddedServer, sample: Sample, console: Console) -> None:
        self._server, self._sample, self._console = server, sample, console
        self.worked = False

    def work(self, step: str) -> None:
        """Makes the users' changes right after the collector has read uncommitted data."""
        if step != UNCOMMITTED_DF.name:
            return
        moved, linked = list(self._sample.to_rename), len(self._sample.pending)
        for live in moved:
            copy(self._server, self._sample, live, f"{live.path}-copy")
            rename(self._server, self._sample, live)
        link_pending(self._server, self._sample)
        self._console.print(
            f"  while it ran, users copied {len(moved)} objects, renamed {len(moved)} and linked {linked} uploads",
            style="italic",
        )
        self.worked = True


REPOSITORY = "sample"
ACCESS_KEY_ID = "AKIAEMBEDDEDPLAYGROUND"
SECRET_VARIABLE = "LAKEFS_GC_PLAYGROUND_SECRET"  # noqa: S105
# A public secret: the server that accepts it listens only on this machine.
_SECRET = "embedded-playground-secret"  # noqa: S105
CONFIGURATION_FILE = "lakefs-gc.yaml"
_POLICY_FILE = "policy.yaml"
_POLICY = """\
stale_after: 90d
stale_branches:
  - {branches: release}
  - {branches: "*", max_inactivity: 90d}
"""
"""Under this policy, the branch without commits for months is stale; the release stays."""
_SOON = {"optimized_every_hours": 0.05, "sensor_interval_seconds": 10}
"""With the sensor on, an optimized run starts within minutes."""


@contextmanager
def playground(
    folder: Path,
    *,
    rules: RuleSet,
    objects: int,
    port: int,
    store_url: str = "",
    say: LogLine = click.echo,
) -> Iterator[dict[str, str]]:
    """Serves a sample repository from a folder, created on first use; yields environment variables that point to it.

    The configuration file is in the folder. It names the secret's environment variable instead of the secret.
    With a `store_url` such as s3://bucket/prefix, objects are stored there.

    Args:
        say: receives lines for the user.
    """
    store = store_from_environment(store_url) if store_url else None
    server = open_server(folder / "lakefs", rules, store_url, store, port=port, credentials=(ACCESS_KEY_ID, _SECRET))
    with server:
        if not _exists(server, REPOSITORY):
            sample = make_sample_repository(server, objects=objects, repository=REPOSITORY, with_months=store is None)
            # The pending uploads are never linked, so they become garbage seconds after they were made.
            garbage = len(sample.garbage) + len(sample.pending)
            made = f"{len(sample.live)} live objects, {garbage} of garbage"
            say(f"made repository {REPOSITORY}: {made}{'' if store else ', and the commits of a year'}")
        policy = folder / _POLICY_FILE
        policy.write_text(_POLICY, encoding="utf-8")
        base = configuration(server, REPOSITORY, store)
        # Objects go to quarantine, so that users can try a restore.
        changes = {"sweep_mode": "quarantine", "retention_policy": str(policy.resolve())}
        settings = base.model_copy(update={"collection": base.collection.model_copy(update=changes)})
        file = folder / CONFIGURATION_FILE
        write_configuration(file, settings, automation=_SOON)
        say(f"embedded lakeFS (no production server) at {server.url}")
        say(f"access key {ACCESS_KEY_ID}, secret key {_SECRET}")
        say(f"collect it, in another shell: {SECRET_VARIABLE}={_SECRET} lakefs-gc run --config {file}")
        yield {CONFIGURATION_VARIABLE: str(file.resolve()), SECRET_VARIABLE: _SECRET}


def write_configuration(file: Path, settings: Configuration, **sections: object) -> None:
    """Writes a configuration file that names the secret's environment variable instead of the secret.

    Args:
        sections: additional sections of the file.
    """
    content = settings.model_dump(exclude_defaults=True) | sections
    content["lakefs"]["secret_access_key"] = {"env": SECRET_VARIABLE}
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def _exists(server: EmbeddedServer, repository: str) -> bool:
    with closing(Session(server, repository)) as api:
        return api.call("GET", "")[0] == 200
