"""Every setting, described once: the same classes define the configuration file and the texts in the Dagster UI.

`configuration_file` reads the file.
"""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.layout import WindowSize

_OWNER = re.compile(r"team:\S+|[^@\s]+@[^@\s]+\.[^@\s]+")
_TAG_NAME = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")
"""Owners and tags of assets that Dagster accepts."""

FlowName = Literal["clean", "optimized", "committed", "unified"]
"""The flows that a user can request, as in a plan."""

SweepMode = Literal["delete", "quarantine"]
"""Treatment of candidates by a sweep."""

CommitDates = Literal["written", "claimed"]
"""Date of a commit for retention rules: see `collection.commit_dates`."""

Encryption = Literal["", "AES256", "aws:kms", "aws:kms:dsse"]
"""Encryption of written objects by S3; empty for the bucket's default."""

LaunchedSweep = Literal["never", "approved", "any"]
"""Limit on deletions by runs that are launched through Dagster."""


class Settings(BaseModel):
    """Base of the sections: unknown keys are refused, numbers are finite, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _secret(what: str) -> Any:
    """A setting that messages, logs and the UI never show, and that a file can only take from the environment."""
    description = f"{what}; write {{env: NAME}} in a file."
    return Field(default="", description=description, repr=False, json_schema_extra={"dagster__is_secret": True})


class LakeFSSettings(Settings):
    """The lakeFS server."""

    endpoint: str = Field(
        default="http://127.0.0.1:8000",
        description="URL of the lakeFS server, with or without /api/v1.",
    )
    access_key_id: str = Field(
        default="",
        description="Access key of a lakeFS user with the rights of docs/policies/lakefs-collect.json.",
    )
    secret_access_key: str = _secret("Secret key of that user")
    ca_bundle: str = Field(
        default="",
        description="PEM file of certificates to trust at the endpoint; empty: those of REQUESTS_CA_BUNDLE or "
        "SSL_CERT_FILE in the environment, else the system's.",
    )
    connect_timeout_seconds: float = Field(default=10, gt=0, description="Timeout of a connection.")
    read_timeout_seconds: float = Field(
        default=300,
        gt=0,
        description="Timeout until an answer begins, and again until it ends; prepare_uncommited may take minutes.",
    )
    retries: int = Field(
        default=4,
        ge=0,
        description="Retries of a call after a timeout, a broken connection, 429 or 5xx.",
    )


CREDENTIALS = (
    "access_key_id",
    "secret_access_key",
    "session_token",
    "account_key",
    "sas_token",
    "client_secret",
    "signing_key",
)
"""Settings of `store` that other processes read from their own environment, if the file takes them from there."""


class StoreSettings(Settings):
    """The object store that holds the repository. Left empty, credentials come from the service's usual chain."""

    resource: str = Field(
        default="",
        description="Key of dagster-aws's S3Resource in your Dagster project. It supplies endpoint, region, "
        "profile and keys that are not set here.",
    )
    endpoint_url: str = Field(
        default="", description="Endpoint of an S3-compatible service or of an emulator; empty for the cloud itself."
    )
    region: str = Field(default="", description="Region of the bucket; empty to take it from the environment.")
    path_style: bool = Field(
        default=False,
        description="Put the bucket into the path, not the host name (most S3-compatible servers).",
    )
    ca_bundle: str = Field(
        default="",
        description="PEM file of certificates to trust at the endpoint, on every machine that reads or deletes; "
        "empty for the usual ones.",
    )
    profile: str = Field(default="", description="Profile of the AWS configuration files.")
    role_arn: str = Field(default="", description="Role to assume for every access to the bucket.")
    access_key_id: str = Field(default="", description="Access key of the store.")
    secret_access_key: str = _secret("Secret key of the store")
    session_token: str = _secret("Session token of temporary credentials")
    service_account_file: str = Field(
        default="",
        description="Key file of a service account of Google Cloud, on every machine that reads or deletes; empty for "
        "the application default credentials.",
    )
    delete_snapshots: bool = Field(
        default=False,
        description="Also delete an Azure blob's snapshots. If false, blobs with snapshots cannot be deleted.",
    )
    account_key: str = _secret("Key of the Azure storage account")
    sas_token: str = _secret("Shared access signature for the Azure container")
    tenant_id: str = Field(default="", description="Azure tenant of client_id.")
    client_id: str = Field(
        default="", description="Azure application (with client_secret), or the managed identity to use."
    )
    client_secret: str = _secret("Secret of that application")
    server_side_encryption: Encryption = Field(
        default="",
        description="Encryption to request from S3 for every write and copy, for buckets that require the header: "
        "AES256, aws:kms or aws:kms:dsse. Empty: the bucket's default.",
    )
    kms_key_id: str = Field(
        default="", description="Key of AWS KMS for that encryption; empty for the account's default key."
    )
    local_root: str = Field(
        default="",
        description="Folder to which local:// storage namespaces are relative, as in lakeFS's blockstore.local.path.",
    )
    signing_key: str = _secret(
        "Keys of at least 32 characters, separated by blanks or commas. The first key signs the files of runs; any of "
        "them verifies a file. With keys set, files without a signature count as damaged. Empty: files are not signed"
    )
    from_environment: dict[str, str] = Field(
        default_factory=dict,
        description="Names of environment variables with credentials, by the name of the setting. `secret_access_key: "
        "{env: NAME}` means the same. Spark's executors receive only the name, and read their own environment.",
    )

    @field_validator("from_environment")
    @classmethod
    def _require_credentials(cls, variables: dict[str, str]) -> dict[str, str]:
        if unknown := [name for name in variables if name not in CREDENTIALS]:
            raise ValueError(f"{', '.join(unknown)}: not a credential of `store`; these are {', '.join(CREDENTIALS)}")
        return variables

    def __hash__(self) -> int:
        """A hash of the content, so that stores handed to other processes are distinguished by their settings."""
        return hash(self.model_dump_json())

    def by_reference(self) -> "StoreSettings":
        """The settings for other processes, without credentials that are in environment variables."""
        return self.model_copy(update=dict.fromkeys(self.from_environment, ""))

    def with_credentials(self) -> "StoreSettings":
        """The settings with credentials from the environment of this process.

        Raises ConfigurationError if a variable is not set here.
        """
        for name, variable in self.from_environment.items():
            if variable not in os.environ:
                raise ConfigurationError(
                    f"store.{name} is to come from the environment variable {variable}, which is not set on "
                    f"{os.uname().nodename}: Spark's executors receive only its name. Set it for them as well"
                    + ("" if name == "signing_key" else ", or give them a role that may use the bucket")
                )
        return self.model_copy(update={name: os.environ[variable] for name, variable in self.from_environment.items()})


class CollectionSettings(Settings):
    """Rules for what may be collected, how carefully, and how wide."""

    sweep: bool = Field(
        default=False,
        description="Delete the candidates. If false, a run is a dry run: it marks, reports and deletes nothing.",
    )
    sweep_mode: SweepMode = Field(
        default="delete",
        description="delete: a sweep deletes objects. quarantine: it copies each object to "
        "_lakefs/retention/gc/quarantine/<run id>/ before deleting it, from where `lakefs-gc restore` restores it. "
        "Quarantine alone frees nothing: see quarantine_days.",
    )
    quarantine_days: float = Field(
        default=14,
        ge=0,
        description="`lakefs-gc purge` and the job purge permanently delete objects that have been in quarantine for "
        "this long, after checking again that nothing uses them. Objects in use again are restored.",
    )
    min_age_hours: float = Field(
        default=24,
        ge=0,
        description="Younger objects are kept. If the server's own grace period is longer, that is used; if the server "
        "does not report it, it counts as 24 hours.",
    )
    clock_skew_minutes: float = Field(
        default=60,
        ge=0,
        description="Safety margin below every clock. If clocks differ by more than half of it, the run stops.",
    )
    slice_window: WindowSize = Field(
        default="month",
        description="How slices are grouped into partitions: month, day, hour (UTC), or slice for small repositories.",
    )
    inventory: str = Field(
        default="",
        description="S3 Inventory to read instead of listing every object: a report's manifest.json, or the folder "
        "above the dated folders for the newest report, such as s3://reports/bucket/daily/. Runs that build on another "
        "run still list new objects. Empty: list the store.",
    )
    inventory_margin_hours: float = Field(
        default=24,
        ge=0,
        description="Objects younger than this when the inventory was made are kept: it may lack or misstate them.",
    )
    full_listing_days: float = Field(
        default=7,
        ge=0,
        description="Days between runs of flow unified that list every object. In between, such a run builds on the "
        "previous one: it lists new objects, and examines data that has expired since. Runs of flow committed list "
        "nothing: they read all expired data at this interval, and in between only data that has expired since. 0: "
        "every such run examines everything.",
    )
    listing_partitions: int = Field(
        default=0, ge=0, description="Spark partitions of the listing; 0: four per core. A large slice takes several."
    )
    range_partitions: int = Field(
        default=0, ge=0, description="Spark partitions for reading ranges; 0: four per core, at most one per range."
    )
    address_partitions: int = Field(
        default=0,
        ge=0,
        description="Spark partitions for shuffles of addresses. 0: four per core on a local master, otherwise "
        "spark.sql.shuffle.partitions. Spark merges small ones.",
    )
    wait_before_dump_seconds: float = Field(
        default=30,
        ge=0,
        description="Pause between the last uncommitted page and the refs dump, so that most commits in progress can "
        "end. Dry runs do not wait, unless only young ranges count as live (keep_old_unnamed_ranges).",
    )
    wait_before_recheck_seconds: float = Field(
        default=600,
        ge=0,
        description="Minimum time between reading the mark's uncommitted data and the recheck. By then, commits in "
        "progress at the mark have ended, and a server that silently omitted data for some minutes returns it again. "
        "The time for which hooks in _lakefs_actions/ can delay a commit is added.",
    )
    longest_commit_minutes: float = Field(
        default=0,
        ge=0,
        description="Maximum duration of a commit, merge, revert or import in this repository, hooks included. The "
        "recheck waits at least this long. 0: wait_before_recheck_seconds and the time limits of hooks decide. "
        "Required for sweeps if a hook has no time limit, such as a Lua hook.",
    )
    prepare_timeout_seconds: float = Field(
        default=900,
        gt=0,
        description="The run fails if prepare_uncommited makes no progress for this long.",
    )
    prepare_page_limit: int = Field(
        default=10_000, gt=0, description="The run fails if this many pages repeat one continuation token."
    )
    retention_policy: str = Field(
        default="",
        description="Policy file on top of the repository's retention rules; empty: only those rules.",
    )
    commit_dates: CommitDates = Field(
        default="written",
        description="Date of a commit, for retention rules. written: no earlier than the time when its metarange's "
        "file was written, and than its parents' dates, whatever date it claims; a copied or restored namespace keeps "
        "everything for one more retention period. claimed: the date that the commit claims, as the server uses it; a "
        "backdated commit expires at once, and so does the commit that it replaced.",
    )
    prepare_commits_timeout_seconds: float = Field(
        default=1200, gt=0, description="Timeout for the server's own list of commits that retention keeps."
    )
    allow_rules_of_unknown_branches: bool = Field(
        default=False,
        description="Sweep although retention rules, or keep_tags of the policy, contain branches or tags that do not "
        "exist. Such a name may be misspelt.",
    )
    dump_timeout_seconds: float = Field(default=3600, gt=0, description="Timeout for a refs dump.")
    dump_fetch_limit: int = Field(
        default=1000, ge=0, description="Maximum commits missing from a refs dump that the run fetches one by one."
    )
    staged_change_limit: int = Field(
        default=100_000,
        ge=1,
        description="Maximum uncommitted changes of a branch that `lakefs-gc branches` reads, a thousand in one "
        "request, and once more before the deletion. A branch with more stays, and the list says so.",
    )
    hidden_suspect_limit: int = Field(
        default=10_000_000,
        ge=0,
        description="Maximum lookups of paths on branches on which a candidate may be staged with the content of a "
        "committed object: by default 10,000 paths on 1,000 branches, up to a thousand per request. Above the limit, "
        "the rarest contents are looked up first; the other candidates are kept and counted.",
    )
    max_candidate_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Maximum share of candidates among all objects known to the run, each counted once: listed objects "
        "and objects in sealed slices. A run of flow committed lists nothing; for it, the known objects are those of "
        "live commits and the unreferenced objects that it checked. A sweep with a larger share is refused. Ten "
        "candidates are always allowed, unless this is 0.",
    )
    max_candidates: int = Field(
        default=100_000_000, ge=0, description="Maximum candidates; a sweep with more is refused."
    )
    max_delete_rate: float = Field(
        default=0,
        ge=0,
        description="Maximum objects per second that a sweep or a purge deletes, on average and over all its tasks, "
        "for buckets that others use at the same time. 0: no limit. If a store throttles, deletes slow down.",
    )
    max_missing_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Maximum share of addresses of branch heads and staging, in the listed slices, that may be missing "
        "from the listing. Above it, a sweep is refused.",
    )
    max_missing: int = Field(
        default=1000,
        ge=0,
        description="Maximum number of such addresses that may be missing. Above it, a sweep is refused.",
    )
    max_branch_loss_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Maximum share of branches with possibly deleted objects at their heads that may have disappeared "
        "since the newest successful sweep, or a later dry run. Above it, a sweep is refused. Five may always "
        "disappear if one is left, unless this is 0. Branches that `lakefs-gc branches` deleted do not count; that "
        "command refuses to delete a larger share of all branches at once.",
    )
    max_uncommitted_loss_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Maximum share of the mark's uncommitted addresses that may be missing at the recheck without "
        "having been committed. Above it, a sweep is refused. Ten are always allowed, unless this is 0.",
    )
    max_mark_age_hours: float = Field(
        default=168, gt=0, description="Maximum age of a listing. A sweep of an older one is refused: open a new run."
    )
    recheck_valid_minutes: float = Field(
        default=15, gt=0, description="How long a sweep deletes after the start of its recheck, before it checks again."
    )
    also_live: list[str] = Field(
        default_factory=list,
        description="Other repositories of the same lakeFS server whose references into this one count as live, such "
        "as repositories that import from it. Their staged objects are looked up path by path.",
    )
    allow_unknown_repositories: bool = Field(
        default=False,
        description="Sweep although the server does not report which repositories it has (fs:ListRepositories on *). A "
        "repository on the same storage namespace, or around it, then goes unnoticed.",
    )
    no_lock_reason: str = Field(
        default="",
        description="Reason why runs may delete on a store without conditional writes, where no lock is enforced: how "
        "you ensure that no other run is active, such as a single cron job on one machine. Plan and report repeat it. "
        "On stores with conditional writes it has no effect.",
    )
    keep_unnamed_ranges: bool = Field(
        default=True,
        description="Objects of ranges in _lakefs/ that belong to no commit of the repository count as live: another "
        "repository on the same storage namespace, perhaps of another server, may have committed them. Turn it off "
        "if such ranges are known to be left over from failed commits, merges and imports.",
    )
    keep_old_unnamed_ranges: bool = Field(
        default=True,
        description="With `keep_unnamed_ranges`, such ranges count regardless of their age. Turn it off if the server "
        "compacts staging (lakeFS Enterprise) and no other repository is on the storage namespace. Then a range "
        "counts only while it is younger than the cutoff, and objects of replaced compactions can be deleted.",
    )
    approve_run: str = Field(
        default="",
        description="Id of a dry run whose candidates to delete, as by `lakefs-gc approve`; in the UI launch the job "
        "approve. The sweep first checks again what is live.",
    )
    only_addresses: tuple[str, ...] | None = Field(
        default=None,
        description="The only objects that runs and purges may delete, relative to the storage namespace (data/…); "
        "`lakefs-gc erase` sets it. Empty: all.",
    )
    lock_expiry_minutes: float = Field(
        default=60,
        gt=0,
        description="Another run may take over a lock that was not renewed for this long.",
    )

    @property
    def quarantines(self) -> bool:
        """True if a sweep moves candidates to quarantine, and does not delete them."""
        return self.sweep_mode == "quarantine"

    @property
    def counts_old_unnamed_ranges(self) -> bool:
        """True if objects in ranges that no commit names count as live at any age."""
        return self.keep_unnamed_ranges and self.keep_old_unnamed_ranges


class SparkSettings(Settings):
    """The Spark session of a run."""

    master: str = Field(
        default="local[*]",
        description="Spark master, such as local[*] or spark://host:7077. Empty if spark-submit sets it; then the "
        "session is used unchanged.",
    )
    resource: str = Field(
        default="",
        description="Key of dagster-pyspark's LazyPySparkResource or PySparkResource in your Dagster project. Its "
        "spark_config applies to properties that are not set here.",
    )
    remote: str = Field(default="", description="Spark Connect endpoint, such as sc://host; replaces the master.")
    driver_memory: str = Field(default="2g", description="Heap of the driver (of everything, on a local master).")
    many_objects: bool = Field(
        default=False,
        description="Turns on the second compiler of a local master's Java. It pays off for about twenty million "
        "objects; for two million it costs more time than it saves.",
    )
    config: dict[str, str] = Field(default_factory=dict, description="Further Spark properties, by name.")
    config_from_environment: dict[str, str] = Field(
        default_factory=dict,
        description="Further Spark properties with values in environment variables: variable names by property. "
        "`config: {name: {env: NAME}}` means the same.",
    )


RELAXABLE = tuple(
    name
    for name, field in CollectionSettings.model_fields.items()
    if field.annotation in (bool, int, float) and name != "sweep"
)
"""Settings of `collection` that a file may let launches change: its numbers and switches; `sweep` has its own rule."""


def lacks_deployment(section: str, resource: str) -> ConfigurationError:
    """The error for a section that names a resource of a Dagster deployment outside of one."""
    return ConfigurationError(
        f"{section}.resource is {resource}, a resource of a Dagster deployment, and there is none here: write its "
        f"settings under `{section}`"
    )


class LaunchSettings(Settings):
    """Rights of launches through Dagster. The command line, schedules and the sensor go by the file instead."""

    sweep: LaunchedSweep = Field(
        default="approved",
        description="never: no launch deletes or purges. approved: the job approve deletes the candidates of an "
        "earlier dry run. any: a launch may delete at once, by `sweep` of the job open_run; without it, "
        "collection.sweep decides.",
    )
    approvers: Literal[1, 2] = Field(
        default=1,
        description="2: the job approve deletes only after a second launch, with another name in approved_by, approves "
        "the same dry run. The names come from the proxy if dagster.yaml names its header, otherwise from the "
        "launches. Only if `sweep` is approved.",
    )
    may_relax: list[str] = Field(
        default_factory=list,
        description="Settings of `collection` that a launch may change for its run by `relax`, such as "
        "max_candidate_share. Each use is in the run's tags, plan and report.",
    )

    @field_validator("approvers")
    @classmethod
    def _require_approvals(cls, approvers: int, info: ValidationInfo) -> int:
        if approvers == 2 and info.data.get("sweep") == "any":
            raise ValueError("2 contradicts launch.sweep any, by which one launch deletes at once: set approved")
        return approvers

    @field_validator("may_relax")
    @classmethod
    def _require_relaxable(cls, names: list[str]) -> list[str]:
        if unknown := [name for name in names if name not in RELAXABLE]:
            raise ValueError(
                f"{', '.join(unknown)}: not a number or switch of `collection`. Launches may be allowed to set "
                f"{', '.join(RELAXABLE)}"
            )
        return names


class EMRServerlessSettings(Settings):
    """A Spark application of EMR Serverless, for the job collect_on_emr_serverless; without one, no such job."""

    application_id: str = Field(default="", description="Id of the application; its image has this package.")
    execution_role_arn: str = Field(default="", description="Execution role of the job.")
    region: str = Field(default="", description="Region of the application; empty: from the environment.")
    message_bucket: str = Field(default="", description="Bucket for the job's messages to Dagster.")
    entry_point: str = Field(
        default="local:///opt/lakefs-gc/emr_job.py",
        description="Path of lakefs_gc_assets/defs/emr_job.py in the image.",
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="Ids of secrets in AWS Secrets Manager, by the environment variable from which the configuration "
        "reads each secret.",
    )
    poll_seconds: float = Field(default=5, gt=0, description="Interval between requests for the job's state.")


class AutomationSettings(Settings):
    """Automatic starts of runs. Schedules and sensors that open runs are off until you turn them on in the UI."""

    optimized_every_hours: float = Field(
        default=24,
        gt=0,
        description="Time between the start of a run that deleted and the optimized run that follows it.",
    )
    sensor_interval_seconds: int = Field(
        default=60, gt=0, description="Interval at which the sensor looks for a run to follow."
    )
    clean_cron: str = Field(default="0 2 * * 6", description="When the schedule opens a clean run (cron).")
    dry_run_cron: str = Field(default="0 1 * * *", description="When the schedule opens a dry run (cron).")
    dry_run_flow: FlowName = Field(default="optimized", description="The flow of these dry runs.")
    expiry_cron: str = Field(
        default="0 5 * * 0", description="When the schedule permanently removes the frames of old runs (cron)."
    )
    keep_runs: int = Field(
        default=30, gt=0, description="Number of newest runs that keep their frames, regardless of how they ended."
    )
    purge_cron: str = Field(
        default="0 6 * * *",
        description="When the schedule purges objects that have been in quarantine for quarantine_days (cron).",
    )
    stale_branches_cron: str = Field(
        default="0 7 * * 1", description="When the schedules list or delete stale branches (cron)."
    )
    lifecycle_cron: str = Field(
        default="0 4 * * 1", description="When the schedules list or delete expired objects of branches (cron)."
    )
    routine_cron: str = Field(
        default="0 3 * * 6", description="When the schedule plays the routine of all parts (cron). It deletes nothing."
    )
    sweep_within_days: float = Field(
        default=0,
        ge=0,
        description="The asset `sweeps` is overdue if no sweep has succeeded for this long; 0: never.",
    )
    time_zone: str = Field(default="UTC", description="Time zone of the schedules, such as Europe/Berlin.")


class NotificationSettings(Settings):
    """Webhooks for messages about ended runs, as `{"text": …}` in Slack's format. Without a URL, none is sent."""

    failure_webhook: str = _secret("URL that receives a message about each failed run or job")
    ended_webhook: str = _secret("URL that receives the outcome of each run that came to its end")
    ca_bundle: str = Field(
        default="",
        description="PEM file with the certificates of an authority to trust for both URLs. Empty: the file in "
        "REQUESTS_CA_BUNDLE, else the certificates that this machine trusts.",
    )
    ui_url: str = Field(
        default="",
        description="Address of the Dagster UI, such as https://dagster.example.com. Messages then link to the "
        "launchpad that approves a dry run. Pages of runs need it if the UI is not at the root of its host.",
    )


_GB = 2**30
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
UNKNOWN_CLASS = "unknown"
"""Storage class of objects that were not listed, or were listed by an earlier version."""


class ReportSettings(Settings):
    """The page that each run leaves, report.html."""

    price_per_gb_month: Price | dict[str, Price] = Field(
        default=0.0,
        description="Price of a GB (2^30 bytes) per month, to show the cost of garbage on pages. One number, or one "
        "for each storage class as the store spells it, such as `{STANDARD: 0.023, GLACIER: 0.0036}`; `unknown` is for "
        "objects of an unknown class. 0: no prices.",
    )
    currency: str = Field(default="USD", max_length=10, description="Currency of that price.")

    def monthly_cost(self, total: int, classes: Mapping[str, int]) -> tuple[float, int]:
        """Monthly cost of bytes, and the number of bytes in storage classes without a price.

        Args:
            total: all bytes; bytes beyond those in `classes` are of unknown class.
            classes: bytes by storage class.
        """
        prices = self.price_per_gb_month
        if not isinstance(prices, dict):
            return total / _GB * prices, 0
        sizes = {**classes, UNKNOWN_CLASS: total - sum(classes.values()) + classes.get(UNKNOWN_CLASS, 0)}
        unpriced = sum(size for name, size in sizes.items() if name not in prices)
        return sum(size / _GB * prices[name] for name, size in sizes.items() if name in prices), unpriced


class HoldingsSettings(Settings):
    """Holdings of the repository: its bytes by branch, path, committer and age, kept for each run."""

    lens_days: int = Field(
        default=400, ge=1, description="Days for which holdings are kept; the job expire_runs deletes older ones."
    )
    lens_depth: int = Field(
        default=1,
        ge=1,
        le=16,
        description="Number of leading path components that make up a folder. A change reads all branch heads again.",
    )
    lens_metadata: list[str] = Field(
        default=[], description="Keys in the metadata of commits by which holdings are added up, such as team."
    )


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGTP]i?)?B", re.IGNORECASE)


class OverviewSettings(Settings):
    """The overview of all repositories, by `lakefs-gc overview` and the job overview."""

    budget: str = Field(
        default="",
        description="Limit on the bytes that the repository stores, such as 40 TB or 500 GiB. An alert comes before "
        "the trend breaks it; nothing is deleted because of it. Empty: no limit.",
    )
    budget_alert_days: float = Field(
        default=30, ge=0, description="Alert if the trend breaks the budget within this many days."
    )
    growth_alert_share: float = Field(
        default=0.25,
        ge=0,
        description="Alert if the stored bytes grew by more than this share in a week. 0: no such alert.",
    )
    prices: str = Field(
        default="",
        description="YAML file with prices in place of the list that comes with the package. "
        "report.price_per_gb_month takes precedence over it.",
    )
    history: str = Field(
        default="",
        description="Folder of a store that keeps each overview, such as s3://bucket/overviews/, with the settings of "
        "`store`. Empty: none is kept, so that trends and vanished repositories are unknown.",
    )
    cron: str = Field(default="30 7 * * *", description="When the schedule makes the overview (cron).")

    @field_validator("budget")
    @classmethod
    def _require_size(cls, budget: str) -> str:
        if budget and not _SIZE.fullmatch(budget):
            raise ValueError(f"{budget}: write a number and a unit, such as 40 TB or 500 GiB")
        return budget

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes; None without one."""
        if (match := _SIZE.fullmatch(self.budget)) is None:
            return None
        unit = (match[2] or "").upper()
        factor: int = (1024 if unit.endswith("I") else 1000) ** (" KMGTP".index(unit[0]) if unit else 0)
        return round(float(match[1]) * factor)


class DiscoverSettings(Settings):
    """Repositories of the server by patterns of their names, beside those in `repositories`."""

    include: list[str] = Field(default=["*"], description="Patterns of names to cover, such as prod-*.")
    exclude: list[str] = Field(default=[], description="Patterns of names to leave out.")
    defaults: dict[str, dict[str, Any]] = Field(
        default={},
        description="Sections by pattern, such as `{prod-*: {overview: {budget: 40 TB}}}`. If several patterns match, "
        "the last one counts.",
    )


class Configuration(Settings):
    """One repository and how to collect it."""

    repository: str = Field(default="", description="Name of the lakeFS repository to collect.")
    name: str = Field(
        default="",
        description="Name of the repository in Dagster, if it differs from its own: two servers may have "
        "repositories of the same name.",
    )
    owners: list[str] = Field(
        default_factory=list,
        description="Owners of the assets in Dagster: email addresses, and teams as team:name.",
    )
    tags: dict[str, str] = Field(
        default_factory=dict,
        description="Further tags of the assets in Dagster, beside lakefs/repository.",
    )
    lakefs: LakeFSSettings = LakeFSSettings()
    store: StoreSettings = StoreSettings()
    collection: CollectionSettings = CollectionSettings()
    spark: SparkSettings = SparkSettings()
    automation: AutomationSettings = AutomationSettings()
    notifications: NotificationSettings = NotificationSettings()
    report: ReportSettings = ReportSettings()
    holdings: HoldingsSettings = HoldingsSettings()
    overview: OverviewSettings = OverviewSettings()
    launch: LaunchSettings = LaunchSettings()
    emr_serverless: EMRServerlessSettings = EMRServerlessSettings()

    @field_validator("owners")
    @classmethod
    def _require_owners(cls, owners: list[str]) -> list[str]:
        for owner in owners:
            if not _OWNER.fullmatch(owner):
                raise ValueError(f"{owner}: write an email address, or team:name")
        return owners

    @field_validator("tags")
    @classmethod
    def _require_tags(cls, tags: dict[str, str]) -> dict[str, str]:
        for name, value in tags.items():
            if not (_TAG_NAME.fullmatch(name) and _TAG_VALUE.fullmatch(value)):
                raise ValueError(
                    f"{name}: a tag's name (with or without a prefix/) and its value may each have up to 63 letters, "
                    "digits and _ . -"
                )
        return tags

    @property
    def label(self) -> str:
        """The name of the repository in Dagster."""
        return self.name or self.repository

    @property
    def session(self) -> SparkSettings:
        """The section `spark`, with an application named after the repository if this process starts one."""
        if not self.spark.master or self.spark.remote:
            return self.spark
        named = {"spark.app.name": f"lakefs-gc {self.label}", **self.spark.config}
        return self.spark.model_copy(update={"config": named})

    @property
    def resource_keys(self) -> dict[str, str]:
        """Keys of the deployment's resources by section; sections without a resource are left out."""
        keys = {"store": self.store.resource, "spark": self.spark.resource}
        return {section: key for section, key in keys.items() if key}
