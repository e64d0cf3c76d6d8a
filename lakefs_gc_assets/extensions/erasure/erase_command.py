"""`lakefs-gc erase`: erases the objects at paths, and certifies it."""

import io
import os
import shlex
import sys
import uuid
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    YES,
    Target,
    agrees,
    on_repository,
    print_answer,
    print_result,
    require_yes_or_terminal,
    show_progress,
)
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.cli.progress import shown_bar
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck, PurgeFate
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.outcomes import describe_result, size
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.lock import locked
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import maintenance
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.running import AskedRun, decided_here, execute, instance
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, LogLine, counted
from lakefs_gc_assets.extensions.erasure import certificate
from lakefs_gc_assets.extensions.erasure.find import (
    ErasureFindings,
    Held,
    Selection,
    find,
    list_first_steps,
    take_first_step,
)
from lakefs_gc_assets.extensions.erasure.remains import VersionOutcome, erase_versions
from lakefs_gc_assets.extensions.erasure.verify_command import FILE, describe_certificate, is_complete, read_file
from lakefs_gc_assets.spark.faults import errors_of_spark

_SHOWN = 50
_HOLDERS = 5
_PATHS = 5
_KEY = Path("erasure.pem")
"""Key file in printed commands if none is given."""


def _write_new_key(file: Path) -> None:
    """Writes a new key and its public half. Raises ConfigurationError if either file exists."""
    public_file, written = _public_half(file), list[Path]()
    if public_file == file:
        raise ConfigurationError(f"{file} has the suffix of the public half: choose another one, such as .pem")
    private, public = certificate.new_key()
    for each, data, mode in ((file, private, 0o600), (public_file, public, 0o644)):
        try:
            with open(each, "xb", opener=partial(os.open, mode=mode)) as opened:
                written.append(each)
                opened.write(data)
        except OSError as error:
            for part in written:
                part.unlink(missing_ok=True)
            raise ConfigurationError(
                f"{each} cannot be written: {error.strerror}. No key was made: choose another file"
            ) from None
    print_result(f"wrote the key to {file}: keep it secret, it signs certificates")
    print_result(f"wrote its public half to {public_file}: give it to everybody who checks certificates")


def _public_half(key: Path) -> Path:
    return key.with_suffix(".pub")


@click.command()
@on_repository
@click.option(
    "--new-key",
    type=FILE,
    help="Only write a new key to this file, and its public half beside it with the suffix .pub.",
)
@click.option(
    "--from", "list_", type=click.File("rb"), help="File with further paths, one a line; - for standard input."
)
@click.option("--prepare", is_flag=True, help="Prepare branches and tags for the erasure, step by step.")
@click.option("--approve", metavar="DIGEST", help="Erase the objects that an earlier call showed under this digest.")
@click.option("--key", type=FILE, help="Ed25519 key in PEM that signs the certificate.")
@click.option("--certificate", "file_of_certificate", type=FILE, help="File to write the certificate to.")
@YES
@QUIET
@JSON
@click.argument("paths", metavar="lakefs://REPOSITORY/PATH...", nargs=-1)
def erase(
    target: Target,
    new_key: Path | None,
    list_: IO[bytes] | None,
    prepare: bool,
    approve: str | None,
    key: Path | None,
    file_of_certificate: Path | None,
    quiet: bool,
    as_json: bool,
    paths: tuple[str, ...],
) -> None:
    """Erases the objects at paths in all commits, and certifies that they are gone.

    Without --approve it only shows what would go and what must be done first.

    A PATH has no branch: the command searches all commits and staged data for it. A path that ends with a slash means
    everything below it; * stands for any text without a slash, ** for any text.

    The command shows every address at the paths, its holders, and the steps to take first. With --prepare, it takes
    these steps on branches and tags, and asks before each one unless --yes is given: it resets staged data, deletes
    paths on branches and commits, and deletes tags. This includes other paths and repositories that hold the same
    objects. With --approve, a run deletes the addresses without a holder, after checking again that nothing uses them.
    All guards apply, and the objects do not go to quarantine. Their copies in quarantine and their older versions are
    deleted too. Addresses with a holder are not touched.

    Exit status 0 if everything is gone, 6 if not or if a part could not be checked. Without --approve, 0 if everything
    could be checked.
    """
    if new_key is not None:
        _write_new_key(new_key)
        return
    if prepare and (approve or as_json):
        raise click.UsageError("--prepare goes with neither --approve nor --json.")
    if prepare:
        require_yes_or_terminal()
    if approve and (key is None or file_of_certificate is None):
        raise click.UsageError("--approve needs --key and --certificate.")
    if approve and file_of_certificate is not None and file_of_certificate.exists():
        raise ConfigurationError(f"{file_of_certificate} already exists: choose another file for the certificate")
    signing_key = certificate.read_private_key(read_file(key)) if approve and key is not None else None
    asked = [*paths, *(_read_list(list_) if list_ is not None else ())]
    selection = Selection.parse(target.loaded.configuration.repository, asked)
    collector = target.collector()
    opened = collector.open(to_read=True).dumping_at_once()
    with shown_bar("searching commits", quiet) as (say, _), errors_of_spark():
        finding = find(opened, collector.engine(opened.settings), selection, say)
    further = () if list_ is None else ("--from", list_.name if list_.name != "<stdin>" else "-")
    again = partial(target.command_line, "erase", *paths, *further)
    if prepare:
        _prepare(opened, finding, again())
        return
    if signing_key is None or approve is None or key is None or file_of_certificate is None:
        encoded = {"remedies": finding.remedies, "digest": finding.digest}
        lines = chain(describe(finding), _describe_next(finding, again, key, file_of_certificate))
        print_answer(as_json, lambda: {**asdict(finding), **encoded}, lines)
        if finding.gaps:
            sys.exit(Status.INCOMPLETE)
        return
    _require_approved(finding, approve)
    with _reserve(file_of_certificate) as write:
        with shown_bar("erasing", quiet) as (say, _):
            run_id, versions, failures = _erase(target.loaded, collector, finding, say)
        content = certificate.make(collector.open(), finding, run_id, versions, failures)
        write(certificate.sign(content, signing_key))
    check = target.command_line("verify", str(file_of_certificate), "--key", str(_public_half(key)))
    lines = chain(describe_certificate(content), [f"next, check the certificate: {check}"])
    print_answer(as_json, lambda: content, lines)
    if not is_complete(content):
        sys.exit(Status.INCOMPLETE)


@contextmanager
def _reserve(file: Path) -> Iterator[Callable[[bytes], None]]:
    """Creates a temporary file beside `file`. The yielded function writes it and renames it to `file`.

    Raises ConfigurationError if it cannot be created. The function raises CollectionError: the erasure is over by then.
    """
    part = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        opened = part.open("xb")
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be written: {error.strerror}. Nothing was erased: choose another --certificate"
        ) from None

    def write(data: bytes) -> None:
        try:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
            if file.exists():
                raise FileExistsError(0, "it exists by now")
            part.replace(file)
        except OSError as error:
            raise CollectionError(
                f"the objects are erased, but the certificate could not be written to {file}: {error.strerror}. Repeat "
                "the command with another --certificate: it finds the receipts"
            ) from None

    try:
        with opened:
            yield write
    finally:
        part.unlink(missing_ok=True)


def _prepare(repository: OpenRepository, finding: ErasureFindings, look_again: str) -> None:
    """Takes the steps that the user confirms; `look_again` is the command without --prepare."""
    steps = list_first_steps(finding)
    for step in steps:
        print_result(str(step))
        if agrees("Do it?"):
            print_result(take_first_step(repository, step))
    if not steps:
        print_result("no branch and no tag holds an address")
    for line in (*_describe_unmatched(finding), *finding.gaps):
        print_result(line)
    print_result(f"next, see which holders are left: {look_again}")
    if finding.gaps:
        sys.exit(Status.INCOMPLETE)


def _read_list(file: IO[bytes]) -> list[str]:
    """The non-empty lines of a list of paths in UTF-8, or in UTF-16 with a byte order mark.

    Raises ConfigurationError if it has another encoding.
    """
    data = file.read()
    try:
        text = data.decode("utf-16" if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{file.name} is neither in UTF-8 nor in UTF-16 with a byte order mark: store it in UTF-8"
        ) from None
    return [line.strip() for line in io.StringIO(text) if line.strip()]


def _require_approved(finding: ErasureFindings, digest: str) -> None:
    """Raises CollectionError unless the finding can be erased and is the approved one."""
    if finding.unchecked:
        raise CollectionError(f"nothing was erased, since not everything could be checked: {finding.unchecked[0]}")
    if not finding.erasable:
        raise CollectionError("nothing was erased: something holds each of the addresses, or there are none")
    if finding.digest != digest:
        raise CollectionError(
            f"nothing was erased: the addresses at the paths, or their holders, are not the approved ones. Look again "
            f"without --approve; the digest is now {finding.digest}"
        )


def _erase(
    loaded: Loaded, collector: Collector, finding: ErasureFindings, note: LogLine
) -> tuple[str, list[VersionOutcome], list[str]]:
    """Deletes objects that nothing holds: first in a run, then their copies in quarantine, then their versions.

    After the run has ended, a failure no longer stops the rest: the certificate then says which objects are gone.

    Returns the run's id, the outcomes of versions, and the failures.
    """
    addresses = tuple(each.address for each in finding.erasable)
    limited = decided_here(loaded, only_addresses=addresses, sweep_mode="delete", quarantine_days=0)
    with instance() as home:
        run_id, error = execute(limited, AskedRun(True, Flow.UNIFIED), note, collector.clock, home)
    if error is not None:
        raise error
    erasing = Collector.from_loaded(limited, collector.clock)
    outcomes, failures = list[VersionOutcome](), list[str]()
    if finding.quarantined_by:
        try:
            for purged in maintenance.purge(erasing, None, f"erase-{uuid.uuid4().hex}", note, show_progress):
                note(describe_result(purged.address, purged))
                if purged.fate is PurgeFate.FAILED:
                    failures.append(f"copies in quarantine: {describe_result(purged.address, purged)}")
        except CollectionError as failure:
            failures.append(f"copies in quarantine: {failure}")
    try:
        outcomes.extend(_erase_versions(erasing, run_id, addresses, note))
    except CollectionError as failure:
        failures.append(f"older versions: {failure}")
    return run_id, outcomes, failures


def _erase_versions(
    collector: Collector, run_id: str, addresses: Collection[str], note: LogLine
) -> Iterator[VersionOutcome]:
    """Erases versions of objects that a run deleted, under the lock, unless the objects are live by then."""
    repository = collector.open()
    plan = plans.read(repository.store, run_id)
    with errors_of_spark(), locked(repository, "erase", f"erase-{run_id}", show_progress) as lock:
        step = Step(note, show_progress, repository, collector.engine(repository.settings), plan, lock)
        yield from erase_versions(repository, plan, lock, addresses, LiveCheck(step))


def describe(finding: ErasureFindings) -> Iterator[str]:
    """A finding as lines: each address with its holders, and the steps to take first."""
    for each in finding.addresses[:_SHOWN]:
        yield from _describe_address(each)
    if (more := len(finding.addresses) - _SHOWN) > 0:
        yield f"{counted(more, 'more addresses are')} shown with --json"
    yield from (*_describe_unmatched(finding), *finding.gaps)
    yield from (f"hint: {hint}" for hint in finding.hints)
    yield from (f"first: {remedy}" for remedy in finding.remedies)
    erasable, held = len(finding.erasable), len(finding.addresses) - len(finding.erasable)
    yield (
        f"searched {counted(finding.commits, 'commits')}, {counted(finding.ranges, 'ranges')} with "
        f"{counted(finding.entries, 'entries')}"
    )
    yield f"{finding.repository}: {counted(erasable, 'objects')} can be erased, held: {held:,}"


def _describe_next(
    finding: ErasureFindings, again: Callable[..., str], key: Path | None, file_of_certificate: Path | None
) -> Iterator[str]:
    """The next commands; `again` adds options to the command just run."""
    if list_first_steps(finding):
        yield f"next, do this on branches and tags, which asks before each step: {again('--prepare')}"
    if finding.erasable and not finding.unchecked:
        key, file = key or _KEY, file_of_certificate or Path(f"erasure-{finding.digest[:8]}.json")
        if not key.exists():
            yield f"next, make a key: lakefs-gc erase --new-key {shlex.quote(str(key))}"
        options = ("--approve", finding.digest, "--key", str(key), "--certificate", str(file))
        yield f"next, erase the free objects: {again(*options)}"


def _describe_unmatched(finding: ErasureFindings) -> Iterator[str]:
    """Lines about requested paths without a match."""
    yield from (f"nothing found: {path}" for path in finding.unmatched)


def _describe_address(held: Held) -> Iterator[str]:
    remains, paths = held.remains, ", ".join(held.paths[:_PATHS])
    there = "not there" if remains.is_gone else "deleted, with remains" if remains.size is None else size(remains.size)
    copies = f", {counted(len(remains.copies), 'copies')} in quarantine" if remains.copies else ""
    versions = f", {counted(len(remains.versions), 'versions')}" if remains.versions else ""
    yield f"{'held' if held.holders else 'free'}  {held.address} at {paths}: {there}{copies}{versions}"
    yield from (f"    held by {holder}" for holder in held.holders[:_HOLDERS])
    if (more := len(held.holders) - _HOLDERS) > 0:
        yield f"    held by {more:,} more"
