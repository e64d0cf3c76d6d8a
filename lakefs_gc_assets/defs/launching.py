"""Launches through Dagster: the decisions that they may make, and the permits of runs.

Any user of the UI can launch any job with any tags and any configuration, so neither proves who requested a run. The
configuration file and a permit decide the actions of a run. The job open_run, the job approve, a schedule or the sensor
gives the permit, as a tag that is signed for one run. The key of signatures is in Dagster's database, in a table that
no GraphQL request reads or writes. A proxy that authenticates users can name the launcher of a run:
`ProxyRunCoordinator` writes that name into the same table.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeAlias, cast

import dagster as dg
from pydantic import Field, ValidationError, create_model

from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import describe_loosened
from lakefs_gc_assets.defs.partitions import RUN_TAG
from lakefs_gc_assets.errors import ConfigurationError, printable
from lakefs_gc_assets.settings import RELAXABLE, CollectionSettings, FlowName, LaunchSettings

Relaxed: TypeAlias = dict[str, bool | int | float]
"""Settings of `collection` that a launch changed, including `sweep` if requested, by name."""

LOOSENED_TAG = "lakefs/loosened"
TICKET_TAG = "lakefs/ticket"
PERMIT_TAG = ".dagster/lakefs-permit"
"""Tag with a signed permit. The UI hides tags that begin with `.dagster/`."""
_RECENT_RUNS = 100
_FILE = "in the configuration file"


class Overrides(dg.PermissiveConfig):
    """Settings of `collection` for this run alone; settings that the file does not list are refused by name."""

    @property
    def relaxed(self) -> Relaxed:
        """The settings that a launch changes; `settle` refuses those that the file does not let it change."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


def overrides_of(policy: LaunchSettings) -> type[Overrides]:
    """The launchpad's model of the settings that a launch may change."""
    fields = {}
    for name in policy.may_relax:
        setting = CollectionSettings.model_fields[name]
        kind = setting.annotation or float
        fields[name] = (kind | None, Field(default=None, description=setting.description))
    model: type[Overrides] = create_model(  # type: ignore[call-overload]
        Overrides.__name__, __base__=Overrides, __module__=__name__, __doc__=Overrides.__doc__, **fields
    )
    return model


def require_own_values(run_config: Mapping[str, object]) -> None:
    """Raises ConfigurationError for a launch that reads the environment of the run's process."""
    for place, variable in _from_environment(run_config):
        raise ConfigurationError(
            f"a launch cannot read the environment, such as the variable {variable} for {place}: write the value itself"
        )


def _from_environment(config: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Finds variables in a configuration: Dagster takes `{env: NAME}` in place of any text or number.

    Yields places and names of variables. A run's error message about a text would show a secret to its launcher.
    """
    match config:
        case {"env": str(variable), **rest} if not rest:
            yield place, variable
        case Mapping():
            for name, value in config.items():
                yield from _from_environment(value, f"{place}.{name}".lstrip("."))
        case list():
            for number, value in enumerate(config):
                yield from _from_environment(value, f"{place}.{number}")


def _where(name: str, policy: LaunchSettings) -> str:
    """Remedy for a refused setting of `collection`: the place where it belongs."""
    if name == "sweep":
        if policy.sweep == "any":
            return "launch the job open_run with `sweep`"
        return how_to_sweep(policy)
    if name == "approve_run":
        return "launch the job approve with the run's id"
    if name in RELAXABLE:
        return f"set it {_FILE}, under `collection`, or list it there under launch.may_relax"
    return f"set it {_FILE}, under `collection`"


def how_to_sweep(policy: LaunchSettings) -> str:
    """Alternatives for a launch that may not delete at once."""
    others = f"run `lakefs-gc run --sweep`, or set launch.sweep to any {_FILE}"
    if policy.sweep == "approved":
        return f"launch a dry run and then the job approve with its id, {others}"
    return others


@dataclass(frozen=True)
class Permit:
    """Permission of a run, from the time when it was opened.

    Attributes:
        opened_by: the job, schedule or sensor that opened it.
        automatic: True if a schedule or sensor opened it; then only the file decides.
        sweep: the launch's request to delete or not, or False for scheduled dry runs; None without such a request.
        relaxed: settings of `collection` that a launch changed.
        flow: the only permitted flow of a run that was opened automatically. None in permits of earlier versions, which
            opened only clean and optimized runs automatically.
    """

    opened_by: str
    automatic: bool = False
    sweep: bool | None = None
    relaxed: Relaxed = field(default_factory=dict)
    flow: FlowName | None = None

    @property
    def loosened(self) -> Relaxed:
        """Settings by which a launch requested more than a dry run by the file."""
        return {**({"sweep": True} if self.sweep and not self.automatic else {}), **self.relaxed}

    @property
    def tags(self) -> dict[str, str]:
        """Tags that show `loosened`; none if it is empty."""
        return {LOOSENED_TAG: describe_loosened(self.loosened)} if self.loosened else {}


BY_MATERIALIZING = Permit("materializing")
"""The permit of a run under a name: the default permit of the job open_run."""


def tags(instance: dg.DagsterInstance, repository: str, run_id: str, permit: Permit) -> dict[str, str]:
    """Tags that permit a run, and show what it loosens.

    Args:
        repository: its name in Dagster.
    """
    return {PERMIT_TAG: _signed(instance, permit, "run", repository, run_id), **permit.tags}


def find(
    instance: dg.DagsterInstance, repository: str, run_id: str, launched: dg.DagsterRun | None = None
) -> Permit | None:
    """The permit of a run, from the tags of a Dagster run or else of the newest one of that id; None if there is none.

    A user who materializes cells of an opened run in the UI launches it without its tags.
    """
    if launched and (permit := _verified(instance, launched.tags, "run", repository, run_id)):
        return permit
    for run in instance.get_runs(dg.RunsFilter(tags={RUN_TAG: run_id}), limit=_RECENT_RUNS):
        if permit := _verified(instance, run.tags, "run", repository, run_id):
            return permit
    # Runs that earlier versions opened.
    key = cursor_key("run", repository, run_id)
    content = instance.daemon_cursor_storage.get_cursor_values({key}).get(key)
    return Permit(**json.loads(content)) if content else None


def issue_ticket(instance: dg.DagsterInstance, repository: str, permit: Permit) -> dict[str, str]:
    """Tags by which the jobs open_run and purge find a permit, until `use_ticket`."""
    ticket = secrets.token_urlsafe(16)
    return {TICKET_TAG: ticket, PERMIT_TAG: _signed(instance, permit, "ticket", repository, ticket)}


def find_ticket(instance: dg.DagsterInstance, repository: str, given: Mapping[str, str]) -> Permit | None:
    """The permit for the ticket in a Dagster run's tags; None without a ticket, or if it was used."""
    permit = _verified(instance, given, "ticket", repository, given.get(TICKET_TAG, ""))
    used = cursor_key("used ticket", given.get(TICKET_TAG, ""))
    return None if permit is None or instance.daemon_cursor_storage.get_cursor_values({used}) else permit


def use_ticket(instance: dg.DagsterInstance, given: Mapping[str, str]) -> None:
    """Invalidates a ticket, since any user of the UI can read its tags and launch a run with them."""
    # Not by the state of runs: a run with the ticket can fail or be deleted, and would leave it valid.
    if given.get(TICKET_TAG):
        instance.daemon_cursor_storage.set_cursor_values({cursor_key("used ticket", given[TICKET_TAG]): "used"})


def _signed(instance: dg.DagsterInstance, permit: Permit, *purpose: str) -> str:
    """The value of a tag with a permit for one purpose."""
    content = json.dumps(asdict(permit))
    return f"{_signature(instance, content, *purpose)} {content}"


def _verified(instance: dg.DagsterInstance, given: Mapping[str, str], *purpose: str) -> Permit | None:
    """The permit in the tags of a Dagster run; None if they have none that was signed for the purpose."""
    if PERMIT_TAG not in given:
        return None
    signature, _, content = given[PERMIT_TAG].partition(" ")
    expected = _signature(instance, content, *purpose)
    return Permit(**json.loads(content)) if hmac.compare_digest(signature.encode(), expected.encode()) else None


def _signature(instance: dg.DagsterInstance, content: str, *purpose: str) -> str:
    place, storage = cursor_key("key of permits"), instance.daemon_cursor_storage
    key = storage.get_cursor_values({place}).get(place)
    if not key:
        # If two processes do this at once, a permit of the slower one is invalid, which lets a run do less.
        storage.set_cursor_values({place: secrets.token_hex(32)})
        key = storage.get_cursor_values({place})[place]
    return hmac.digest(bytes.fromhex(key), json.dumps([*purpose, content]).encode(), "sha256").hex()


class ProxyRunCoordinator(dg.QueuedRunCoordinator[dg.DagsterInstance]):
    """Dagster's run queue, which records who launched each run, by a header that the proxy before the webserver sets.

    Set it in dagster.yaml as `run_coordinator`. The webserver and the daemon need this package.
    """

    def __init__(self, user_header: str, **queue: Any) -> None:
        super().__init__(**queue)
        self._user_header = user_header

    @classmethod
    def config_type(cls) -> Any:
        """The settings of Dagster's own queue, and the header."""
        header = dg.Field(str, description="Header with the name of who is signed in, such as X-Forwarded-User.")
        return {**cast("Mapping[str, Any]", super().config_type()), "user_header": header}

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> Self:
        """The coordinator that dagster.yaml describes."""
        return cls(inst_data=inst_data, **config_value)

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Records the name in the header of the request, if there is one, and queues the run."""
        if user := context.get_request_header(self._user_header):
            key = cursor_key("user", context.dagster_run.run_id)
            self._instance.daemon_cursor_storage.set_cursor_values({key: user})
        return super().submit_run(context)


def user_of(instance: dg.DagsterInstance, dagster_run_id: str) -> str | None:
    """The user who launched a Dagster run, by the proxy's header; None without one."""
    key = cursor_key("user", dagster_run_id)
    return instance.daemon_cursor_storage.get_cursor_values({key}).get(key)


def is_named_by_proxy(instance: dg.DagsterInstance) -> bool:
    """True if a proxy before the webserver names the launchers of runs."""
    return isinstance(instance.run_coordinator, ProxyRunCoordinator)


def approver(instance: dg.DagsterInstance, dagster_run_id: str, name: str, policy: LaunchSettings) -> str:
    """The approver in a launch, and the source of the name, for tags and reports.

    Args:
        name: the name in the launch, which any user can choose. It counts if no proxy names the user.
    Raises:
        ConfigurationError: there is no name, or a name that could be read as more than a name.
    """
    user = user_of(instance, dagster_run_id)
    if user is None and policy.approvers == 2 and is_named_by_proxy(instance):
        raise ConfigurationError(
            "two people must approve (launch.approvers), and the proxy did not name the user of this launch: launch it "
            "through the proxy"
        )
    shown = plans.single_name(user or name)
    if not plans.person(shown):
        two = "two people must approve (launch.approvers): " if policy.approvers == 2 else ""
        raise ConfigurationError(f"{two}enter your name in approved_by for the report, since no proxy names you")
    return f"{printable(shown)}{plans.KNOWN_BY}{'proxy' if user else 'launch'} says"


def settle(
    settings: CollectionSettings, policy: LaunchSettings, permit: Permit | None, flow: Flow | None = None
) -> tuple[CollectionSettings, Relaxed]:
    """The settings of a run, and the settings that its launch loosened.

    The file is checked again here: a change that it no longer allows is refused although the run was opened before.

    Args:
        settings: settings of the file.
        permit: the run's permit; None if a user materializes assets without opening a run.
        flow: the requested flow; None for a run that has begun.
    Raises:
        ConfigurationError: the launch requested a change that the file does not allow, an invalid value, or another
            flow for a run that was opened automatically.
    """
    if permit is not None and permit.automatic:
        opened: tuple[str, ...] = (permit.flow,) if permit.flow else (Flow.CLEAN.value, Flow.OPTIMIZED.value)
        if flow is not None and flow not in opened:
            raise ConfigurationError(
                f"{permit.opened_by} opened a run of flow {' or '.join(opened)}, and a launch cannot change "
                f"it to {flow.value}: launch the job open_run with flow {flow.value}"
            )
        return settings if permit.sweep is not False else settings.model_copy(update={"sweep": False}), {}
    permit = permit or BY_MATERIALIZING
    for name in permit.relaxed:
        if name not in policy.may_relax:
            raise ConfigurationError(f"a launch cannot set collection.{name}: {_where(name, policy)}")
    if permit.sweep and policy.sweep != "any":
        raise ConfigurationError(f"a launch may not delete at once: {how_to_sweep(policy)}")
    requested = settings.sweep if permit.sweep is None else permit.sweep
    sweep = requested and policy.sweep == "any"
    try:
        settled = CollectionSettings.model_validate({**settings.model_dump(), **permit.relaxed, "sweep": sweep})
    except ValidationError as error:
        problems = "; ".join(f"collection.{problem['loc'][0]}: {problem['msg'].lower()}" for problem in error.errors())
        raise ConfigurationError(f"the launch sets invalid values: {problems}") from None
    return settled, permit.loosened


def require_opened(plan: Plan) -> None:
    """Raises ConfigurationError if a launch may not approve a dry run, because its launcher chose its id.

    Otherwise a page of another site, which cannot read responses, could launch the dry run and its approval.
    """
    if not plan.opened:
        raise ConfigurationError(
            f"run {plan.run_id} was not opened by the job open_run: a user materialized assets under this id. Launch "
            f"the job open_run, review the candidates, and approve that run; or run `lakefs-gc approve {plan.run_id}`"
        )


def require_purging(policy: LaunchSettings, ticket: Permit | None, schedule: str) -> None:
    """Raises ConfigurationError if no launch may delete, and the schedule did not launch this purge.

    Args:
        ticket: the permit for the ticket in the Dagster run's tags.
    """
    if policy.sweep == "never" and (ticket is None or ticket.opened_by != schedule):
        raise ConfigurationError(
            f"a launch may not purge: run `lakefs-gc purge`, turn on the schedule {schedule}, or set launch.sweep to "
            f"approved {_FILE}"
        )


def cursor_key(*parts: str) -> str:
    """Key of a value in Dagster's storage of cursors, which no GraphQL mutation writes."""
    # MySQL distinguishes keys by their first 64 letters.
    return f"lakefs-gc/{hashlib.blake2b(json.dumps(parts).encode(), digest_size=20).hexdigest()}"
