"""YARN on this machine: Hadoop's resource manager and two node managers, run from the jars of its mini cluster.

The jars are downloaded once from a Maven repository into the cache folder of `emulators`; pyspark has the other
dependencies. `python -m lakefs_gc_assets_tests.clusters.yarn` only downloads them.
"""

import hashlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from xml.sax.saxutils import escape

import pytest

from lakefs_gc_assets_tests.clusters.spark_clusters import HOST, Process, started
from lakefs_gc_assets_tests.servers.emulators import CACHE, installed
from lakefs_gc_assets_tests.servers.free_ports import free_port

HADOOP = "3.5.0"
"""The Hadoop version of pyspark's client."""
_JARS = {
    f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP}": (
        "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c"
    ),
    "org.bouncycastle:bcprov-jdk18on:1.82": "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce",
    "org.bouncycastle:bcpkix-jdk18on:1.82": "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63",
    "org.bouncycastle:bcutil-jdk18on:1.82": "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d",
}
"""Downloaded jars, with their SHA-256."""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies"
_NODES = 2
_SECONDS = 900
_SERVER = "org.apache.hadoop.yarn.server"


@dataclass(frozen=True)
class Yarn:
    """A cluster that takes applications.

    Attributes:
        configuration: the folder that clients need as HADOOP_CONF_DIR.
        nodes: a folder for each node; containers run in `local` and log to `logs`.
        web: address of the resource manager's web service.
    """

    configuration: Path
    nodes: tuple[Path, ...]
    web: str

    def applications(self) -> list[tuple[str, str]]:
        """Names and final statuses of applications, oldest first.

        Waits for up to a minute: the resource manager learns of an end some time after the driver's process is gone.
        """
        until = time.monotonic() + 900
        while True:
            apps = _get(f"{self.web}/apps")["apps"]["app"]
            if time.monotonic() > until or all(app["finalStatus"] != "UNDEFINED" for app in apps):
                break
            time.sleep(0.5)
        return [(app["name"], app["finalStatus"]) for app in sorted(apps, key=lambda app: app["startedTime"])]


def jars() -> Path:
    """The folder of the jars, downloaded unless cached; skips the test if Maven cannot download them.

    Raises AssertionError if the checksum of a jar differs.
    """
    folder = CACHE / f"hadoop-{HADOOP}"
    with tempfile.TemporaryDirectory() as temporary:
        pom = Path(temporary, "pom.xml")
        pom.write_text(_pom())
        copy = ["--batch-mode", "--quiet", "--file", str(pom), _COPY, f"-DoutputDirectory={folder}"]
        installed(folder / f"hadoop-client-minicluster-{HADOOP}.jar", "mvn", copy, {})
    for coordinates, digest in _JARS.items():
        _, name, version = coordinates.split(":")
        jar = folder / f"{name}-{version}.jar"
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        assert found == digest, f"{jar} is another file than it was: remove {folder}, and see what Maven fetches anew"
    return folder


def _pom() -> str:
    """A Maven project that depends on the jars without their transitive dependencies."""
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for group, name, version in (coordinates.split(":") for coordinates in _JARS)
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>yarn</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


@contextmanager
def yarn(folder: Path, megabytes: int) -> Iterator[Yarn]:
    """Starts a cluster of two nodes, and ends it.

    Args:
        megabytes: memory per node for containers.
    """
    path = f"{jars()}/*"
    ports = _free_ports(5)
    properties = _properties(ports, megabytes)
    with ExitStack() as stack:

        def start(name: str, service: str, own: Mapping[str, str]) -> Process:
            _write(folder / name / "configuration", {**properties, **own})
            environment = {
                "HADOOP_CONF_DIR": str(folder / name / "configuration"),
                "SPARK_DIST_CLASSPATH": path,
            }
            return stack.enter_context(started(folder / f"{name}.log", f"{_SERVER}.{service}", environment=environment))

        folder.mkdir()
        manager = "resource-manager"
        running = [start(manager, "resourcemanager.ResourceManager", {"hadoop.tmp.dir": str(folder / manager)})]
        nodes = tuple(folder / f"node-{number}" for number in range(_NODES))
        for node in nodes:
            own = {
                "hadoop.tmp.dir": str(node),
                "yarn.nodemanager.local-dirs": str(node / "local"),
                "yarn.nodemanager.log-dirs": str(node / "logs"),
            }
            running.append(start(node.name, "nodemanager.NodeManager", own))
        cluster = Yarn(folder / manager / "configuration", nodes, f"http://{HOST}:{ports[-1]}/ws/v1/cluster")
        _wait_for_nodes(cluster, running)
        yield cluster


def _properties(ports: list[int], megabytes: int) -> dict[str, str]:
    services = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
    of_nodes = ("address", "localizer.address", "webapp.address", "collector-service.address")
    return {
        "fs.defaultFS": "file:///",
        **{f"yarn.resourcemanager.{name}": f"{HOST}:{port}" for name, port in zip(services, ports, strict=True)},
        **{f"yarn.nodemanager.{name}": f"{HOST}:0" for name in of_nodes},
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "100",
        "yarn.nodemanager.resource.memory-mb": str(megabytes),
        "yarn.nodemanager.resource.cpu-vcores": "4",
        "yarn.scheduler.minimum-allocation-mb": "128",
        # Memory that a JVM reserves is not memory in use.
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        # Keeps files of containers for inspection.
        "yarn.nodemanager.delete.debug-delay-sec": "3600",
        "yarn.scheduler.capacity.root.queues": "default",
        "yarn.scheduler.capacity.root.default.capacity": "100",
        "yarn.scheduler.capacity.maximum-am-resource-percent": "0.5",
    }


def _write(folder: Path, properties: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    written = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in properties.items()
    )
    for name in ("core-site.xml", "yarn-site.xml", "capacity-scheduler.xml"):
        (folder / name).write_text(f"<configuration>{written}</configuration>")


def _free_ports(count: int) -> list[int]:
    ports = set[int]()
    while len(ports) < count:
        ports.add(free_port())
    return [*ports]


def _wait_for_nodes(cluster: Yarn, running: list[Process]) -> None:
    """Returns when all nodes take containers. Raises AssertionError if they never do."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until and all(each.process.poll() is None for each in running):
        try:
            if _get(f"{cluster.web}/metrics")["clusterMetrics"]["activeNodes"] == _NODES:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError("\n".join(f"{each.log.name} ends:\n{each.log.read_text()[-3000:]}" for each in running))


def _get(address: str) -> Any:
    """A JSON answer of the resource manager."""
    with urlopen(address, timeout=10) as answer:
        return json.load(answer)


if __name__ == "__main__":
    try:
        print(f"{jars()} is there")
    except pytest.skip.Exception as reason:
        print(reason)
