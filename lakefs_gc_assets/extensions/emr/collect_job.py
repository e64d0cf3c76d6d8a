"""The job that makes a run on EMR Serverless instead of in a Dagster process.

EMR's own Spark does the work. As in other runs, frames, report and receipts are stored in the repository's store, so
the lineage shows them afterwards.
"""

import shlex
from typing import Any

import boto3
import dagster as dg
from dagster_aws.pipes import PipesEMRServerlessClient, PipesS3MessageReader

from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import FRAMES, STEPS
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.history import Historian
from lakefs_gc_assets.defs.io_manager import cell_metadata, metadata
from lakefs_gc_assets.defs.jobs import RunConfig, one_op_job
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.maintenance import undo_link
from lakefs_gc_assets.defs.partitions import Names, key_of
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, OrderViolation
from lakefs_gc_assets.settings import EMRServerlessSettings

_OP = "run_on_emr_serverless"
_ENVIRONMENT, _OF_EXECUTORS = "spark.emr-serverless.driverEnv.", "spark.executorEnv."


def collect_job(names: Names, loaded: Loaded) -> dg.JobDefinition:
    """A single-op job, which starts a job run of EMR Serverless, waits for its end, and materializes its frames."""
    settings = loaded.configuration.emr_serverless

    description = f"Collects {names.repository} on EMR Serverless, application {settings.application_id}."

    @one_op_job(names, "collect_on_emr_serverless", _OP, RunConfig, description)
    def run_on_emr_serverless(context: dg.OpExecutionContext, collector: Collector, config: RunConfig) -> None:
        """Starts a job run on EMR Serverless, forwards its log, and materializes the five assets when it ends."""
        permit = Permit(names.qualified("collect_on_emr_serverless"), sweep=config.sweep)
        settled, _ = launching.settle(loaded.configuration.collection, loaded.configuration.launch, permit)
        # An invalid run is refused here, before anything starts at AWS.
        planning.choose_windows(collector.open(), Flow(config.flow), config.windows)
        messages = boto3.client("s3", region_name=settings.region or None)
        client = PipesEMRServerlessClient(
            client=boto3.client("emr-serverless", region_name=settings.region or None),
            message_reader=PipesS3MessageReader(interval=1, bucket=settings.message_bucket, client=messages),
            poll_interval=settings.poll_seconds,
        )
        ended = client.run(
            context=context,
            start_job_run_params=start_parameters(settings, loaded),
            extras=extras(loaded, config, settled.sweep),
        )
        replies = ended.get_custom_messages()
        if not replies:
            raise CollectionError("the job on EMR Serverless ended without reporting a run: see the job's log")
        repository = collector.open()
        report = _materialize(context, names, repository, replies[-1]["run_id"])
        historian = Historian.from_context(context, collector)
        plan = plans.read(repository.store, report.run_id)
        historian.begins(repository.store, plan, repository.settings)
        historian.ended(repository.store, report, undo_link(collector, context.run, report))
        context.add_output_metadata({"run_id": report.run_id, "flow": report.flow, "ending": report.ending.value})
        if not report.success:
            raise CollectionError(f"run {report.run_id} failed: {report.error or '; '.join(report.warnings)}")

    return run_on_emr_serverless


def start_parameters(settings: EMRServerlessSettings, loaded: Loaded) -> dict[str, Any]:
    """The request that starts a job run; it contains names of AWS Secrets Manager secrets, and no secret.

    Raises ConfigurationError for a Spark property from the environment, since AWS stores and shows requests. Also
    raises it for a resource of this deployment, which the job cannot use.
    """
    for section, key in loaded.configuration.resource_keys.items():
        raise ConfigurationError(
            f"{section}.resource is {key}, a resource of this Dagster deployment, which a job on EMR Serverless cannot "
            f"use: write its settings under `{section}`"
        )
    if hidden := loaded.configuration.spark.config_from_environment:
        raise ConfigurationError(
            f"spark.config.{next(iter(hidden))} is read from the environment, but AWS displays the parameters of job "
            "runs: set this property in the application of EMR Serverless"
        )
    secrets = {variable: f"EMR.secret@{name}" for variable, name in settings.environment.items()}
    properties = {_ENVIRONMENT + variable: secret for variable, secret in secrets.items()}
    # Executors read credentials of the store themselves, and nothing else.
    needed = loaded.configuration.store.from_environment.values()
    properties |= {_OF_EXECUTORS + variable: secret for variable, secret in secrets.items() if variable in needed}
    return {
        "applicationId": settings.application_id,
        "executionRoleArn": settings.execution_role_arn,
        "name": f"lakefs-gc {loaded.configuration.label}",
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": settings.entry_point,
                "sparkSubmitParameters": " ".join(
                    f"--conf {shlex.quote(f'{name}={value}')}"
                    for name, value in loaded.configuration.spark.config.items()
                ),
            }
        },
        "configurationOverrides": {
            "applicationConfiguration": [{"classification": "spark-defaults", "properties": properties}]
        },
    }


def extras(loaded: Loaded, config: RunConfig, sweep: bool) -> dict[str, Any]:
    """Input of the job on EMR through Pipes: the run, and the configuration without values of the environment."""
    content = loaded.configuration.model_dump(mode="json")
    for section, name in loaded.text_variables:
        content[section][name] = ""
    # The job run's start request sets the session's properties.
    spark = {"master": "", "remote": "", "config": {}, "config_from_environment": {}}
    variables = {**loaded.text_variables, **loaded.secret_variables}
    return {
        "configuration": content | {"spark": content["spark"] | spark},
        "secret_variables": [[*setting, variable] for setting, variable in variables.items() if setting[0] != "spark"],
        "flow": config.flow,
        "windows": config.windows,
        "sweep": sweep,
    }


def _materialize(context: dg.OpExecutionContext, names: Names, repository: OpenRepository, run_id: str) -> Report:
    """Adds the run's partitions, and materializes its stored frames; returns its report."""
    plan = plans.read(repository.store, run_id)
    run_key = key_of(run_id)
    names.partitions.add(context.instance, run_key, plan.windows)
    for name in STEPS:
        try:
            frame = StoredFrame.from_run(repository.store, repository.opener, run_id, FRAMES[name])
        except OrderViolation:
            break
        key = names.asset(name)
        for window in plan.windows:
            context.log_event(
                dg.AssetMaterialization(
                    key,
                    partition=f"{run_key}|{window}",
                    metadata=metadata(frame, prefix=key.path[:-1]) | cell_metadata(frame.manifest, window),
                )
            )
    report = reports.read(repository.store, run_id)
    if report is None:
        raise CollectionError(f"run {run_id} stored no report: see the job's log")
    return report
