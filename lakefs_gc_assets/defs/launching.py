"""What a launch through Dagster may decide, and how a run learns what it was opened to do.

Whoever reaches the UI can launch any job with any tags and any configuration, so neither says who asked for a run. What
a run may do is decided by the configuration file, and by a permit that the job open_run, the job approve, a schedule or
the sensor has left for it in Dagster's database, in a table that no GraphQL mutation writes.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

import dagster as dg
from pydantic import Field, ValidationError, create_model

from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import describe_loosened
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.settings import RELAXABLE, CollectionSettings, Configuration, FlowName, LaunchSettings, Settings

Relaxed: TypeAlias = dict[str, bool | int | float]
"""Settings of `collection` that a launch changed, and `sweep` where it asked for that, by name."""

LOOSENED_TAG = "lakefs/loosened"
TICKET_TAG = "lakefs/ticket"
_FILE = "in the configuration file"


class Overrides(dg.PermissiveConfig):
    """Settings of `collection` for this run alone; those that the file does not list are refused by name."""


def overrides_of(policy: LaunchSettings) -> type[Overrides]:
    """The model of the settings that a launch may change, as the launchpad shows them."""
    fields = {}
    for name in policy.may_relax:
        setting = CollectionSettings.model_fields[name]
        kind = setting.annotation or float
        fields[name] = (kind | None, Field(default=None, description=setting.description))
    made: type[Overrides] = create_model(  # type: ignore[call-overload]
        Overrides.__name__, __base__=Overrides, __module__=__name__, __doc__=Overrides.__doc__, **fields
    )
    return made


def relaxed_by(config: Overrides, policy: LaunchSettings) -> Relaxed:
    """What a launch changes. Raises ConfigurationError for a setting that the file does not let it change."""
    found: Relaxed = {name: value for name, value in config.model_dump().items() if value is not None}
    require_relaxable(found, policy)
    return found


def require_relaxable(relaxed: Mapping[str, object], policy: LaunchSettings) -> None:
    """Raises ConfigurationError for a setting that the file does not let a launch change."""
    for name in relaxed:
        if name not in policy.may_relax:
            raise ConfigurationError(f"{_refused(f'collection.{name}')}: {_where(name, policy)}")


def require_closed(run_config: Mapping[str, object], policy: LaunchSettings) -> None:
    """Refuses whatever a launch sets of a resource, and would have read from the environment.

    Raises ConfigurationError with the first setting of the launch, and where it belongs.
    """
    for place, variable in _from_environment(run_config):
        raise ConfigurationError(
            f"a launch cannot read the environment, such as the variable {variable} for {place}: write the value itself"
        )
    resources = run_config.get("resources")
    for resource, given in resources.items() if isinstance(resources, Mapping) else ():
        config = given.get("config") if isinstance(given, Mapping) else None
        if not isinstance(config, Mapping) or not config:
            continue
        name = next(iter(config))
        section = _section(resource)
        if section == "collection":
            raise ConfigurationError(f"{_refused(f'collection.{name}')}: {_where(name, policy)}")
        if section is not None:
            raise ConfigurationError(f"{_refused(f'{section}.{name}')}: set it {_FILE}, under `{section}`")
        raise ConfigurationError(f"{_refused(f'{resource}.{name}')}: it follows from what is {_FILE}")


def _from_environment(given: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Where a configuration names a variable, and which: Dagster takes `{env: NAME}` in place of any text or number.

    What a run says of a text that it cannot use would tell a secret to whoever launched it.
    """
    match given:
        case {"env": str(variable), **rest} if not rest:
            yield place, variable
        case Mapping():
            for name, value in given.items():
                yield from _from_environment(value, f"{place}.{name}".lstrip("."))
        case list():
            for number, value in enumerate(given):
                yield from _from_environment(value, f"{place}.{number}")


def _section(resource: str) -> str | None:
    """The section of the file that a resource shows; resources of several repositories end with their names."""
    sections = (
        name
        for name, described in Configuration.model_fields.items()
        if isinstance(described.annotation, type) and issubclass(described.annotation, Settings)
    )
    return next((name for name in sections if resource == name or resource.startswith(f"{name}_")), None)


def _refused(setting: str) -> str:
    return f"a launch cannot set {setting}"


def _where(name: str, policy: LaunchSettings) -> str:
    """Where a setting of `collection` belongs."""
    if name == "sweep":
        if policy.sweep == "any":
            return "launch the job open_run with `sweep`"
        return how_to_sweep(policy)
    if name == "approve_run":
        return "launch the job approve with the run's id"
    if name in policy.may_relax:
        return f"launch the job open_run or approve with it under `relax`, as launch.may_relax allows {_FILE}"
    if name in RELAXABLE:
        return f"set it {_FILE}, under `collection`, or list it there under launch.may_relax"
    return f"set it {_FILE}, under `collection`"


def how_to_sweep(policy: LaunchSettings) -> str:
    """What else there is for somebody whose launch may not delete at once."""
    others = f"run `lakefs-gc run --sweep`, or set launch.sweep to any {_FILE}"
    if policy.sweep == "approved":
        return f"launch a dry run and then the job approve with its id, {others}"
    return others


@dataclass(frozen=True)
class Permit:
    """What a run was opened to do.

    Attributes:
        opened_by: the job, schedule or sensor that opened it.
        automatic: whether it was no person's launch: then the file alone decides.
        sweep: whether a launch asked for deletions; None where it did not say.
        relaxed: settings of `collection` that a launch changed.
        flow: of a run that was opened automatically; it is no permit for another one. None by earlier versions, by
            which only clean and optimized runs were opened so.
    """

    opened_by: str
    automatic: bool = False
    sweep: bool | None = None
    relaxed: Relaxed = field(default_factory=dict)
    flow: FlowName | None = None

    @property
    def loosened(self) -> Relaxed:
        """Everything in which a launch asked for more than a dry run by the file."""
        return {**({"sweep": True} if self.sweep and not self.automatic else {}), **self.relaxed}

    @property
    def tags(self) -> dict[str, str]:
        """Tags that show it; none where nothing was loosened."""
        return {LOOSENED_TAG: describe_loosened(self.loosened)} if self.loosened else {}


def write(instance: dg.DagsterInstance, repository: str, run_id: str, permit: Permit) -> None:
    """Leaves a permit for a run, in place of an earlier one.

    Args:
        repository: what Dagster calls it.
    """
    _put(instance, _run_key(repository, run_id), permit)


def read(instance: dg.DagsterInstance, repository: str, run_id: str) -> Permit | None:
    """The permit of a run; None for one that nobody opened here."""
    return _get(instance, _run_key(repository, run_id))


def issue_ticket(instance: dg.DagsterInstance, repository: str, permit: Permit) -> dict[str, str]:
    """Tags by which the jobs open_run and purge find a permit, once."""
    ticket = secrets.token_urlsafe(16)
    _put(instance, _ticket_key(repository, ticket), permit)
    return {TICKET_TAG: ticket}


def find_ticket(instance: dg.DagsterInstance, repository: str, tags: Mapping[str, str]) -> Permit | None:
    """The permit that the tags of a Dagster run lead to; None where they name none, or one that was used."""
    return _get(instance, _ticket_key(repository, tags[TICKET_TAG])) if tags.get(TICKET_TAG) else None


def use_ticket(instance: dg.DagsterInstance, repository: str, tags: Mapping[str, str]) -> None:
    """Makes a ticket worthless: its tag can be read by whoever reaches the UI."""
    if tags.get(TICKET_TAG):
        instance.daemon_cursor_storage.set_cursor_values({_ticket_key(repository, tags[TICKET_TAG]): ""})


def settle(
    settings: CollectionSettings, policy: LaunchSettings, permit: Permit | None
) -> tuple[CollectionSettings, Relaxed]:
    """The settings that a run is made with, and in what a launch loosened them.

    The file is asked again here: what it no longer allows is refused although the run was opened before.

    Args:
        settings: of the file.
        permit: of the run; None where somebody materializes assets without opening a run.
    Raises:
        ConfigurationError: the launch asked for what the file does not allow, or for a value that makes no sense.
    """
    if permit is not None and permit.automatic:
        return settings, {}
    permit = permit or Permit("materializing")
    require_relaxable(permit.relaxed, policy)
    if permit.sweep and policy.sweep != "any":
        raise ConfigurationError(f"a launch may not delete at once: {how_to_sweep(policy)}")
    asked = settings.sweep if permit.sweep is None else permit.sweep
    sweep = asked and policy.sweep == "any"
    try:
        settled = CollectionSettings.model_validate({**settings.model_dump(), **permit.relaxed, "sweep": sweep})
    except ValidationError as error:
        problems = "; ".join(f"collection.{each['loc'][0]}: {each['msg'].lower()}" for each in error.errors())
        raise ConfigurationError(f"what the launch relaxes makes no sense: {problems}") from None
    return settled, permit.loosened


def require_flow(permit: Permit | None, flow: Flow) -> None:
    """Raises ConfigurationError where a launch gives what was opened automatically another flow."""
    if permit is None or not permit.automatic:
        return
    opened: tuple[str, ...] = (permit.flow,) if permit.flow else (Flow.CLEAN.value, Flow.OPTIMIZED.value)
    if flow not in opened:
        raise ConfigurationError(
            f"{permit.opened_by} opened a run of flow {' or '.join(opened)}, and a launch cannot make it {flow.value}: "
            "launch the job open_run with that flow"
        )


def require_opened(plan: Plan) -> None:
    """Raises ConfigurationError where a dry run cannot be approved by a launch, since somebody chose its id.

    A page of another site, which sees no answer, could launch both.
    """
    if not plan.opened:
        raise ConfigurationError(
            f"run {plan.run_id} was opened by nobody: somebody materialized assets under this id. Launch the job "
            f"open_run, look at what it finds, and approve that; or run `lakefs-gc approve {plan.run_id}`"
        )


def require_purging(policy: LaunchSettings, ticket: Permit | None, schedule: str) -> None:
    """Raises ConfigurationError where no launch may delete, and this purge was not asked for by its schedule.

    Args:
        ticket: the permit that the tags of the Dagster run lead to.
    """
    if policy.sweep == "never" and (ticket is None or ticket.opened_by != schedule):
        raise ConfigurationError(
            f"a launch may not purge: run `lakefs-gc purge`, turn on the schedule {schedule}, or set launch.sweep to "
            f"approved {_FILE}"
        )


def _run_key(repository: str, run_id: str) -> str:
    return _key("run", repository, run_id)


def _ticket_key(repository: str, ticket: str) -> str:
    return _key("ticket", repository, ticket)


def _key(*parts: str) -> str:
    # MySQL tells keys apart by their first 64 letters.
    return f"lakefs-gc/{hashlib.blake2b(json.dumps(parts).encode(), digest_size=20).hexdigest()}"


def _put(instance: dg.DagsterInstance, key: str, permit: Permit) -> None:
    instance.daemon_cursor_storage.set_cursor_values({key: json.dumps(asdict(permit))})


def _get(instance: dg.DagsterInstance, key: str) -> Permit | None:
    content = instance.daemon_cursor_storage.get_cursor_values({key}).get(key)
    return Permit(**json.loads(content)) if content else None
