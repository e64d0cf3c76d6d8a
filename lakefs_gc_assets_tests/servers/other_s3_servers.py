"""S3 servers of other makes: installed once into the emulators' cache, started once by the tests that need one.

`python -m lakefs_gc_assets_tests.servers.other_s3_servers` only installs them. docs/stores.md lists their gaps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from botocore.config import Config

from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets_tests.servers.emulators import CACHE, go_program, installed, npm_program, started
from lakefs_gc_assets_tests.servers.s3_server import ACCESS_KEY, SECRET_KEY

_COPY_JAR = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy"


@dataclass(frozen=True)
class S3Service:
    """A running server, with its one pair of keys."""

    url: str
    access_key_id: str
    secret_access_key: str

    def settings(self) -> StoreSettings:
        """Settings of a store that reach this server."""
        return StoreSettings(
            endpoint_url=self.url,
            region="us-east-1",
            path_style=True,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
        )

    def new_bucket(self) -> str:
        """Makes a bucket with a unique name."""
        bucket = f"bucket-{uuid4().hex}"
        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
            config=Config(s3={"addressing_style": "path"}),
        )
        client.create_bucket(Bucket=bucket)
        client.close()
        return bucket


@dataclass(frozen=True)
class Make:
    """How a server is installed and started.

    Attributes:
        install: installs it if it is not in the cache; returns its program, or skips the test.
        command: command that starts the program on a port.
        keys: the pair of keys that it accepts.
    """

    install: Callable[[], Path]
    command: Callable[[Path, int], Sequence[str]]
    keys: tuple[str, str] = (ACCESS_KEY, SECRET_KEY)


def _jar(coordinates: str) -> Path:
    """A jar from Maven that contains its dependencies."""
    _, artifact, version, _, classifier = coordinates.split(":")
    jar = CACHE / f"{artifact}-{version}" / f"{artifact}-{version}-{classifier}.jar"
    copy = ["--batch-mode", "--quiet", _COPY_JAR, f"-Dartifact={coordinates}", f"-DoutputDirectory={jar.parent}"]
    return installed(jar, "mvn", copy, {})


def _s3proxy_command(jar: Path, port: int) -> list[str]:
    properties = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": ACCESS_KEY,
        "s3proxy.credential": SECRET_KEY,
        "jclouds.provider": "transient-nio2",
        "jclouds.identity": "unused",
        "jclouds.credential": "unused",
    }
    settings = [f"-D{name}={value}" for name, value in properties.items()]
    return ["java", "-Xmx512m", *settings, "-jar", str(jar), "--properties", "/dev/null"]


def _versitygw_command(program: Path, port: int) -> list[str]:
    keys = ["--access", ACCESS_KEY, "--secret", SECRET_KEY]
    # Data is in the working folder, which is deleted after the program ends.
    return [str(program), "--port", f"127.0.0.1:{port}", *keys, "--quiet", "posix", "."]


def _s3rver_command(program: Path, port: int) -> list[str]:
    return [str(program), "--directory", ".", "--port", str(port), "--silent"]


MAKES = {
    "s3proxy": Make(lambda: _jar("org.gaul:s3proxy:2.9.0:jar:jar-with-dependencies"), _s3proxy_command),
    "s3rver": Make(lambda: npm_program("s3rver", "3.7.1", "s3rver"), _s3rver_command, ("S3RVER", "S3RVER")),
    "versitygw": Make(lambda: go_program("github.com/versity/versitygw/cmd/versitygw", "v1.8.0"), _versitygw_command),
}


@cache
def s3_service(name: str) -> S3Service:
    """A server of the named make, ended with this process; skips the test if it cannot be installed."""
    make = MAKES[name]
    program = make.install()
    _, url = started(lambda port: make.command(program, port))
    return S3Service(url, *make.keys)


def _install() -> None:
    for make in MAKES.values():
        try:
            print(f"{make.install()} is there")
        except pytest.skip.Exception as reason:
            print(reason)


if __name__ == "__main__":
    _install()
