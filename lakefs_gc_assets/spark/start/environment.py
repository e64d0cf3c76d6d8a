"""The environment that a local session's Java gets from the shell that started this process.

A shell may be set up for another Spark: `SPARK_HOME` of an older release, `PYSPARK_SUBMIT_ARGS` with a cluster's
master, `HADOOP_CONF_DIR` with a cluster's security. A session on a local master takes its settings from the
configuration alone. Clusters are configured by these variables, so their drivers keep all of them.
"""

from collections.abc import MutableMapping

_FAMILIES = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "HIVE_")
"""How the names of variables begin that Spark and Hadoop read."""
_KEPT = frozenset({"SPARK_LOCAL_DIRS", "SPARK_CONNECT_MODE", "PYSPARK_PYTHON"})
"""Variables of these families that a local Java is to have.

The folder for temporary files is a property of the machine. pyspark sets the second one for each Java that it starts,
and `java.use_python` the third.
"""
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_HIDDEN = "LAKEFS_GC_FOR_WORKERS_"
"""Prefix by which a Java has variables that only its Python workers are to read."""


def keep_own_settings(environment: MutableMapping[str, str]) -> None:
    """Removes variables of Spark and Hadoop from the environment of a local Java."""
    for name in [name for name in environment if name.startswith(_FAMILIES) and name not in _KEPT]:
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
