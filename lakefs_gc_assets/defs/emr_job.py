"""The program on EMR Serverless: it makes one whole run, and reports to Dagster through Pipes.

The job `collect_on_emr_serverless` starts it. Pipes' context holds all of its input except secrets. The Spark session
is the one that EMR made.
"""

import boto3
from dagster_pipes import PipesContext, PipesS3MessageWriter, open_dagster_pipes

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.settings import Configuration


def main() -> None:
    """Makes the run that Pipes' context requests. Raises CollectionError if it fails."""
    with open_dagster_pipes(message_writer=PipesS3MessageWriter(client=boto3.client("s3"))) as pipes:
        _run(pipes)


def _run(pipes: PipesContext) -> None:
    extras = pipes.extras
    variables = {(section, name): variable for section, name, variable in extras["secret_variables"]}
    loaded = Loaded(Configuration.model_validate(extras["configuration"]), variables)
    with running.instance() as home:
        asked = running.AskedRun(extras["sweep"], Flow(extras["flow"]), extras["windows"])
        run_id, error = running.execute(loaded, asked, pipes.log.info, SystemClock(), home)
    pipes.report_custom_message({"run_id": run_id})
    if error is not None:
        raise error


if __name__ == "__main__":
    main()
