"""Commands of docs/clusters.md that start a job: their arguments, and the shape of requests, without sending any."""

import json
import re
import shlex
from typing import Any

import pytest
from boto3.session import Session
from botocore.validate import ParamValidator
from click.testing import CliRunner

from lakefs_gc_assets.cli import main
from lakefs_gc_assets_tests.documentation.pages import DOCS

_PAGE = (DOCS / "clusters.md").read_text()
_JOB = "lakefs_gc_job.py"
_SUBMIT = {"--master", "--deploy-mode", "--archives", "--files", "--conf"}
"""Options of spark-submit, the same from Spark 3.5 to 4.3."""
_GCLOUD = {"--cluster", "--region", "--archives", "--files", "--properties"}
_RUN = {"run_name", "tasks"}
_TASK = {"task_key", "existing_cluster_id", "spark_python_task"}
_PYTHON_TASK = {"python_file", "parameters"}
"""Fields of databricks-sdk 0.162: of `JobsAPI.submit`, `SubmitTask` and `SparkPythonTask`."""


def commands(beginning: str) -> list[list[str]]:
    """Commands of the page with this beginning, as a shell parses them."""
    blocks = re.findall(r"(?m)(?:^    .*\n)+", _PAGE)
    texts = ("\n".join(line[4:] for line in block.splitlines()).replace("\\\n", " ") for block in blocks)
    found = [shlex.split(text) for text in texts if text.startswith(beginning)]
    assert found
    return found


def command(beginning: str) -> list[str]:
    """The only command of the page with this beginning."""
    [found] = commands(beginning)
    return found


def options(words: list[str]) -> dict[str, str]:
    """The options of a command in which every option has a value."""
    return dict(zip(words[::2], words[1::2], strict=True))


def require_arguments(arguments: list[str]) -> None:
    """Requires that our command parses the arguments of a job, up to the missing configuration file."""
    assert "cannot read configuration file" in CliRunner().invoke(main, arguments).output


def require_shape(service: str, operation: str, request: dict[str, Any]) -> None:
    """Requires that AWS accepts a request of this shape."""
    client = Session(region_name="us-east-1").client(service)  # type: ignore[call-overload]
    shape = client.meta.service_model.operation_model(operation).input_shape
    report = ParamValidator().validate(request, shape)
    assert not report.has_errors(), report.generate_report()


@pytest.mark.parametrize("submit", commands("spark-submit"), ids=lambda submit: submit[2].partition(":")[0])
def test_spark_submit(submit: list[str]) -> None:
    at = next(place for place, word in enumerate(submit) if word.endswith(_JOB))
    assert {*submit[1:at:2]} <= _SUBMIT
    assert all("=" in value for name, value in zip(submit[1:at:2], submit[2:at:2], strict=True) if name == "--conf")
    require_arguments(submit[at + 1 :])


def test_emr_serverless() -> None:
    given = options(command("aws emr-serverless start-job-run")[3:])
    driver, overrides = json.loads(given["--job-driver"]), json.loads(given["--configuration-overrides"])
    request = {
        "clientToken": "token",
        "name": given["--name"],
        "applicationId": given["--application-id"],
        "executionRoleArn": given["--execution-role-arn"],
        "jobDriver": driver,
        "configurationOverrides": overrides,
    }
    assert len(given) == len(request) - 1
    require_shape("emr-serverless", "StartJobRun", request)
    require_arguments(driver["sparkSubmit"]["entryPointArguments"])


def test_emr_on_ec2() -> None:
    given = options(command("aws emr add-steps")[3:])
    [step] = json.loads(given["--steps"])
    # The command line has a type in place of a level.
    assert step.pop("Type") == "CUSTOM_JAR"
    jar = {name: step.pop(name) for name in ("Jar", "Args")}
    request = {"JobFlowId": given["--cluster-id"], "Steps": [{**step, "HadoopJarStep": jar}]}
    require_shape("emr", "AddJobFlowSteps", request)
    assert given.keys() == {"--cluster-id", "--steps"}


def test_dataproc() -> None:
    words = command("gcloud dataproc jobs submit pyspark")
    assert words[5].endswith(_JOB)
    end = words.index("--")
    assert {word.partition("=")[0] for word in words[6:end]} == _GCLOUD
    require_arguments(words[end + 1 :])


def test_databricks() -> None:
    [run] = map(json.loads, options(command("databricks jobs submit")[3:]).values())
    [task] = run["tasks"]
    assert (run.keys(), task.keys(), task["spark_python_task"].keys()) == (_RUN, _TASK, _PYTHON_TASK)
    require_arguments(task["spark_python_task"]["parameters"])
