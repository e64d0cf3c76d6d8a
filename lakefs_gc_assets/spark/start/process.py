"""Sets up the processes of a run: environment variables, garbage collection, and the search path of workers.

A shell may be set up for another Spark: `SPARK_HOME` of an older release, `PYSPARK_SUBMIT_ARGS` with a cluster's
master, `HADOOP_CONF_DIR` with a cluster's security. A session on a local master takes its settings from the
configuration alone. Clusters are configured by these variables, so their drivers keep them all.
"""

import atexit
import gc
import os
import sys
from collections.abc import MutableMapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from types import ModuleType

_FAMILIES = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "HIVE_")
"""Prefixes of the variables of Spark and Hadoop."""
_OTHERS = frozenset({"MASTER", "DEPLOY_MODE", "CONTAINER_ID", "LOCAL_DIRS", "BASH_ENV"})
"""More variables that Spark's scripts and its Java read.

spark-submit reads the master and the deploy mode from MASTER and DEPLOY_MODE. In a YARN container, CONTAINER_ID makes
Spark use the folders in LOCAL_DIRS. BASH_ENV is a script that runs before Spark's own.
"""
_KEPT = frozenset({"SPARK_LOCAL_DIRS", "SPARK_CONNECT_MODE", "PYSPARK_PYTHON"})
"""Variables with these prefixes that a local Java keeps.

The folder for temporary files is a property of the machine. pyspark sets SPARK_CONNECT_MODE for each Java that it
starts, and `java.use_python` sets PYSPARK_PYTHON.
"""
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_HIDDEN = "LAKEFS_GC_FOR_WORKERS_"
"""Prefix that hides variables from Java, so that only its Python workers read them."""
_UMASK = f"{_HIDDEN}UMASK"


def keep_own_settings(environment: MutableMapping[str, str]) -> None:
    """Removes variables of Spark and Hadoop from the environment of a local Java."""
    for name in [name for name in environment if name.startswith(_FAMILIES) or name in _OTHERS]:
        if name not in _KEPT:
            del environment[name]


def hide_aws_keys(environment: MutableMapping[str, str]) -> None:
    """Renames AWS keys, so that workers can read them but Java does not.

    If Spark's Java finds AWS keys, it copies them into Hadoop's configuration and resolves this machine's host name
    (`SparkHadoopUtil.appendS3CredentialsFromEnvironment`). It ends if the name does not resolve.
    """
    for name in _AWS_KEYS:
        if name in environment:
            environment[_HIDDEN + name] = environment.pop(name)


def show_aws_keys(environment: MutableMapping[str, str]) -> None:
    """Undoes `hide_aws_keys` in the process from which workers are forked."""
    for name in _AWS_KEYS:
        if _HIDDEN + name in environment:
            environment[name] = environment.pop(_HIDDEN + name)


def keep_umask(environment: MutableMapping[str, str]) -> None:
    """Records this process's umask for the workers of a Java that is started with another umask."""
    mask = os.umask(0o077)
    os.umask(mask)
    environment[_UMASK] = f"{mask:o}"


def restore_umask(environment: MutableMapping[str, str]) -> None:
    """Sets the umask that `keep_umask` recorded: workers write objects of a local store, which others may read."""
    if _UMASK in environment:
        os.umask(int(environment.pop(_UMASK), 8))


_OBJECTS = 100_000
"""Number of new objects since the last garbage collection that triggers the next one."""


def collect_cycles_rarely() -> None:
    """Makes Python's cyclic garbage collection a hundred times rarer, and disables it at exit.

    By default a small run spends two seconds on it, half at its end.
    """
    gc.set_threshold(_OBJECTS)
    atexit.register(gc.freeze)


class _WithoutPandas(MetaPathFinder):
    """Hides pandas from imports. Compiled modules ignore None in `sys.modules`, so a finder is needed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raises ModuleNotFoundError for pandas; leaves other modules to other finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=fullname)


def exclude_pandas() -> None:
    """Hides pandas from this process, because importing it takes half a second and 40 MB.

    pyarrow imports pandas if it is installed, to recognise its values; no task has such values. Only a driver of Spark
    needs it: pyspark refuses `mapInArrow` without pandas.
    """
    sys.meta_path.insert(0, _WithoutPandas())


def without_archives(path: Sequence[str]) -> list[str]:
    """A search path without source archives, if pyspark is also installed otherwise; else the same path."""
    installed = [entry for entry in path if not entry.endswith(".zip")]
    are_installed = all(PathFinder.find_spec(package, installed) for package in ("pyspark", "py4j"))
    return installed if are_installed else list(path)
