"""Errors of a full disk name folder and remedy, those of too little memory a remedy, whichever part they come from."""

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from sqlalchemy.exc import DBAPIError

from lakefs_gc_assets.cli.group import Status, one_line_errors
from lakefs_gc_assets.defs.failures import summary
from lakefs_gc_assets.errors import exhausted


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def of_dagster(home: Path) -> DBAPIError:
    """The error that Dagster's own storage raises when SQLite cannot allocate another page."""
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        with sqlite3.connect(home / "history" / "runs.db") as database:
            [(pages,)] = database.execute("PRAGMA page_count")
        with pytest.raises(DBAPIError) as caught, instance.run_storage.connect() as connection:  # type: ignore[attr-defined]
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            connection.exec_driver_sql("CREATE TABLE more AS SELECT zeroblob(1000000)")
    return caught.value


def test_dagsters_storage_that_is_full_names_its_folder(
    of_dagster: DBAPIError, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = summary(of_dagster)
    assert said.startswith(f"Dagster cannot store events in DAGSTER_HOME, {home}: database or disk is full. Free space")
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise of_dagster
    assert ended.value.code == Status.FAILED
    assert capsys.readouterr().err == f"lakefs-gc: {said}\n"


def test_temporary_files_without_space_name_theirs() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):
        try:
            try:
                raise OSError(number, os.strerror(number), "/folder/file")
            except OSError as error:
                raise RuntimeError from error
        except RuntimeError as error:
            assert f"/folder/file: {os.strerror(number)}. Free space on that disk" in summary(error)


def test_other_errors_are_not_reported_as_exhausted() -> None:
    for error in (sqlite3.OperationalError("no such table: runs"), OSError(errno.EIO, "I/O error"), ValueError("bug")):
        assert exhausted(error) is None


@pytest.mark.parametrize("allocate", [lambda: bytes(1 << 62), lambda: pa.allocate_buffer(1 << 62)])
def test_too_little_memory_is_reported_with_what_to_raise(
    allocate: Callable[[], object], capsys: pytest.CaptureFixture[str]
) -> None:
    remedy = "the system gave this process no more memory. Give the machine or the container more, or raise the limit"
    with pytest.raises(SystemExit) as ended, one_line_errors():
        allocate()
    assert ended.value.code == Status.FAILED
    assert capsys.readouterr().err.startswith(f"lakefs-gc: {remedy}")
    with pytest.raises(MemoryError) as caught:
        allocate()
    assert summary(caught.value).startswith(remedy)
