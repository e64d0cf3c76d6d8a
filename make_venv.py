"""Makes .venv from requirements.lock: `make setup` runs it with the Python that .venv is to have.

Uses the standard library alone, and no syntax newer than Python 3.6, so that an old Python can say that it is too old.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 13)
PROJECT = Path(__file__).resolve().parent
LOCK = PROJECT / "requirements.lock"
VENV = PROJECT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"

OF_THE_UI = ("dagster._cli", "dagster._daemon.cli", "dagster_webserver.cli", "lakefs_gc_assets.definitions")

# Where pip is told of a mirror or a certificate, uv has to be told too.
UV_VARIABLE_OF_PIP_SETTING = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
}


def main() -> None:
    """Checks this Python, makes .venv if need be, and brings it to what the lock says."""
    require_usable_python()
    if existing_version() != sys.version_info[:3]:
        say(f"making .venv with Python {sys.version.split()[0]} ({sys.executable})")
        run(sys.executable, "-m", "venv", "--clear", str(VENV))
    install_uv()
    packages = len(re.findall(r"^\S+==", LOCK.read_text(), re.MULTILINE))
    say(f"installing the {packages} packages of requirements.lock (0.8 GB to fetch, half of it pyspark)")
    # The lock also pins what builds the packages that come as sources. pyspark does: its wheel is unpacked at once, so
    # compressing 0.4 GB of Java libraries for it is wasted.
    stored = "pyspark:--build-option=--compression=stored"
    uv("sync", "--require-hashes", "--build-constraints", str(LOCK), "--config-settings-package", stored, str(LOCK))
    say("installing the project itself")
    uv("install", "--no-deps", "--no-build-isolation", "--editable", str(PROJECT))
    say("compiling what the UI imports")
    # Without bytecode each process compiles what it imports, ten seconds of a small run, for ever where
    # PYTHONDONTWRITEBYTECODE is set or .venv cannot be written. A quarter of the files is ever imported: by the UI, and
    # by the run that makes the archive of Java classes, which follows.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run(str(VENV_PYTHON), "-c", f"import {', '.join(OF_THE_UI)}", environment=environment)
    say("done: .venv/bin/lakefs-gc --help")


def require_usable_python() -> None:
    """Ends with what was found and what to do, where this Python cannot make .venv."""
    found = f"{sys.version.split()[0]} ({sys.executable})"
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        names = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
        usable = [name for name in names if output_of(name, "-c", "print(True)")]
        advice = f"run: make setup PYTHON={usable[0]}" if usable else f"install one of {', '.join(names)}"
        sys.exit(f"setup: needs Python 3.11, 3.12 or 3.13 and found {found}; {advice}")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as missing:
        package = f"python3.{sys.version_info[1]}-venv"
        sys.exit(
            f"setup: Python {found} comes without its module {missing.name}, which makes environments; "
            f"install it (on Debian and Ubuntu: apt install {package}) and run make setup again"
        )


def existing_version() -> "tuple[int, ...] | None":
    """Version of the Python in .venv, where there is one that starts and has pip."""
    version = output_of(str(VENV_PYTHON), "-c", "import pip, sys; print(sys.version_info[:3])")
    return ast.literal_eval(version) if version else None


def install_uv() -> None:
    """Installs the uv of the lock, by its hashes, where .venv has another one or none."""
    pin = re.search(r"^uv==(\S+) (?:.*\\\n)*.*", LOCK.read_text(), re.MULTILINE)
    if pin is None:
        sys.exit("setup: requirements.lock does not pin uv; restore the file from git")
    if output_of(str(VENV_PYTHON), "-m", "uv", "--version").startswith(f"uv {pin.group(1)} "):
        return
    say(f"installing uv {pin.group(1)}")
    requirement = VENV / "uv.txt"
    requirement.write_text(pin.group(0) + "\n")
    run(str(VENV_PYTHON), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(requirement))


def uv(*arguments: str) -> None:
    """Runs `uv pip` on .venv, with pip's settings of registries and certificates said in uv's words."""
    environment = dict(os.environ)
    settings = output_of(str(VENV_PYTHON), "-m", "pip", "config", "list")
    for name, value in re.findall(r"^\S*\.([a-z-]+)='(.*)'$", settings, re.MULTILINE):
        if name in UV_VARIABLE_OF_PIP_SETTING:
            environment.setdefault(UV_VARIABLE_OF_PIP_SETTING[name], " ".join(value.split("\\n")).strip())
    run(str(VENV_PYTHON), "-m", "uv", "pip", *arguments, "--python", str(VENV_PYTHON), environment=environment)


def output_of(*command: str) -> str:
    """What a command prints, or nothing where it cannot be run or fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return ""
    return done.stdout.decode() if done.returncode == 0 else ""


def run(*command: str, environment: "dict[str, str] | None" = None) -> None:
    """Runs a command whose output everybody may see; ends where it fails."""
    code = subprocess.call(command, env=environment)
    if code != 0:
        sys.exit(f"setup: failed with exit code {code}: {' '.join(command)}")


def say(text: str) -> None:
    """Tells what happens, at once, also into a file or a pipe."""
    print("setup: " + text, flush=True)


if __name__ == "__main__":
    main()
