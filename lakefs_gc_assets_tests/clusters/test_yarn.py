"""Runs on YARN, from the command line; its nodes have only the contents of an archive."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyspark
import pytest

import lakefs_gc_assets
from lakefs_gc_assets_tests.clusters import yarn
from lakefs_gc_assets_tests.clusters.spark_clusters import HOST, QUICK, EventLog, SampleRuns, sample_runs

__all__ = ["sample_runs"]
pytestmark = pytest.mark.timeout(900)


def packed_environment(folder: Path) -> Path:
    """An archive of an environment with this package; other packages are linked.

    Copies of all packages would be gigabytes. A file with the path of the other packages replaces them.
    """
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
    shutil.copytree(Path(lakefs_gc_assets.__file__).parent, packages / "lakefs_gc_assets")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return Path(shutil.make_archive(str(environment), "gztar", environment))


@pytest.mark.slow
def test_yarn_with_a_packed_environment(sample_runs: SampleRuns, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    # A node has memory for one executor, so both nodes get one.
    with yarn.yarn(tmp_path / "yarn", megabytes=2560) as cluster:
        properties = {
            **log.properties,
            "spark.submit.deployMode": "client",
            "spark.driver.host": HOST,
            "spark.yarn.stagingDir": (tmp_path / "staging").as_uri(),
            "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent / 'jars'}/*",
            "spark.yarn.am.memory": "256m",
            "spark.yarn.am.extraJavaOptions": QUICK,
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.executor.memoryOverhead": "1g",
            "spark.executor.extraJavaOptions": QUICK,
            "spark.archives": f"{packed_environment(tmp_path)}#environment",
            "spark.pyspark.python": "./environment/bin/python",
            "spark.python.daemon.module": "lakefs_gc_assets.spark.start.worker_daemon",
            "spark.sql.shuffle.partitions": "2",
        }
        spark = {"master": "yarn", "config": properties}
        environment = {"HADOOP_CONF_DIR": str(cluster.configuration)}

        assert f"{len(sample_runs.sample.garbage)} objects" in sample_runs.run("clean", spark, environment)
        sample_runs.require_collected()

        assert cluster.applications() == [("lakefs-gc sample", "SUCCEEDED")]
        for node in cluster.nodes:
            # Python writes compiled files beside the modules that it imports: so workers loaded the package from the
            # archive.
            assert list(node.glob("local/**/environment/**/collector/__pycache__/*.pyc"))
    assert {event["Task Info"]["Executor ID"] for event in log.read("SparkListenerTaskEnd")} == {"1", "2"}
