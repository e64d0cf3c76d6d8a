"""Sets up the processes of a run: environment variables, Python's housekeeping, and the search path of workers.

A shell may be set up for another Spark: `SPARK_HOME` of an older release, `PYSPARK_SUBMIT_ARGS` with a cluster's
master, `HADOOP_CONF_DIR` with a cluster's security. A session on a local master takes its settings from the
configuration alone. Clusters are configured by these variables, so their drivers keep all of them.
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
"""How the names of variables begin that Spark and Hadoop read."""
_OTHERS = frozenset({"MASTER", "DEPLOY_MODE", "CONTAINER_ID", "LOCAL_DIRS", "BASH_ENV"})
"""More variables that Spark's scripts and its Java read.

spark-submit takes a master and a deploy mode from the first two. In a container of YARN the third makes Spark look for
its folders in the fourth. The last one is a script that runs before Spark's own.
"""
_KEPT = frozenset({"SPARK_LOCAL_DIRS", "SPARK_CONNECT_MODE", "PYSPARK_PYTHON"})
"""Variables of these families that a local Java is to have.

The folder for temporary files is a property of the machine. pyspark sets the second one for each Java that it starts,
and `java.use_python` the third.
"""
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_HIDDEN = "LAKEFS_GC_FOR_WORKERS_"
"""Prefix by which a Java has variables that only its Python workers are to read."""
_UMASK = f"{_HIDDEN}UMASK"


def keep_own_settings(environment: MutableMapping[str, str]) -> None:
    """Removes variables of Spark and Hadoop from the environment of a local Java."""
    for name in [name for name in environment if name.startswith(_FAMILIES) or name in _OTHERS]:
        if name not in _KEPT:
            del environment[name]


def hide_aws_keys(environment: MutableMapping[str, str]) -> None:
    """Renames AWS keys, so that workers can read them and Java does not.

    Where Spark's Java finds keys of AWS, it copies them into Hadoop's configuration and asks for this machine's address
    by name (`SparkHadoopUtil.appendS3CredentialsFromEnvironment`). It ends where that name does not resolve.
    """
    for name in _AWS_KEYS:
        if name in environment:
            environment[_HIDDEN + name] = environment.pop(name)


def show_aws_keys(environment: MutableMapping[str, str]) -> None:
    """Undoes `hide_aws_keys`, in the process that workers are forked from."""
    for name in _AWS_KEYS:
        if _HIDDEN + name in environment:
            environment[name] = environment.pop(_HIDDEN + name)


def keep_umask(environment: MutableMapping[str, str]) -> None:
    """Notes this process's umask for the workers of a Java that is started with another one."""
    mask = os.umask(0o077)
    os.umask(mask)
    environment[_UMASK] = f"{mask:o}"


def restore_umask(environment: MutableMapping[str, str]) -> None:
    """Sets the umask that `keep_umask` noted: workers write objects of a local store, which others may read."""
    if _UMASK in environment:
        os.umask(int(environment.pop(_UMASK), 8))


_OBJECTS = 100_000
"""Growth in objects since the last search for unreachable cycles that starts the next one."""


def look_for_cycles_seldom() -> None:
    """Lets Python look for unreachable cycles of objects a hundred times less often, and not at all as it ends.

    By default a small run spends two seconds on it, half of them at its end.
    """
    gc.set_threshold(_OBJECTS)
    atexit.register(gc.freeze)


class _WithoutPandas(MetaPathFinder):
    """Finds no pandas, wherever it is installed. None in its place in `sys.modules` is no sign to compiled modules."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raises ModuleNotFoundError for pandas; leaves all other modules to other finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=fullname)


def exclude_pandas() -> None:
    """Lets this process find no pandas, which takes half a second and 40 MB to import.

    pyarrow imports it wherever it is installed, to see whether a value is one of pandas'; no task has such values. A
    driver of Spark cannot do without: pyspark refuses `mapInArrow` where there is none.
    """
    sys.meta_path.insert(0, _WithoutPandas())


def without_archives(path: Sequence[str]) -> list[str]:
    """A search path without archives of sources, where pyspark is installed beside them; else the same path."""
    installed = [entry for entry in path if not entry.endswith(".zip")]
    are_installed = all(PathFinder.find_spec(package, installed) for package in ("pyspark", "py4j"))
    return installed if are_installed else list(path)
