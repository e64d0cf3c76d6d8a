"""Reading of configuration files, for one repository or a list of repositories.

A file is YAML with `repository`, `name`, `owners`, `tags` and the sections `lakefs`, `store`, `collection`, `spark`,
`automation`, `launch`, `notifications`, `report` and `emr_serverless`. `{env: NAME}` takes a value from an environment
variable, for values that differ between machines. Secrets may only be given that way, and are read when they are
needed. With `repositories`, the sections apply to all, and each entry of the list overrides them:

    lakefs: {endpoint: https://lakefs.example.com, …}
    repositories:
      - repository: measurements
      - repository: images
        collection: {min_age_hours: 72}

`discover` covers further repositories of the server by patterns of their names, with defaults by pattern.
"""

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, Field, ModelWrapValidatorHandler, ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails

from lakefs_gc_assets.errors import ConfigurationError, show_by_variable
from lakefs_gc_assets.settings import CREDENTIALS, Configuration, DiscoverSettings, Settings

CONFIGURATION_VARIABLE = "LAKEFS_GC_CONFIG"
DEFAULT_FILE = "lakefs-gc.yaml"
REPOSITORIES = "repositories"
"""Name of the list in a file with several repositories."""
DISCOVER = "discover"
"""Name of the section of a file that covers repositories by patterns of their names."""
_OF_ONE = ("repository", "name")


@dataclass(frozen=True)
class Loaded:
    """A configuration whose secrets were not read yet.

    Attributes:
        configuration: the configuration, with empty secrets.
        secret_variables: environment variable of each secret, by section and name.
        apart: True if the names of its assets and jobs in Dagster must differ from other repositories' names.
        text_variables: environment variables of other texts, by section and name. The configuration contains these
            texts, but output shows the variable's name instead.
    """

    configuration: Configuration
    secret_variables: dict[tuple[str, str], str]
    apart: bool = False
    text_variables: dict[tuple[str, str], str] = field(default_factory=dict)

    def with_secrets(self) -> Configuration:
        """The configuration with secrets from the environment. Raises ConfigurationError if one is not set."""
        content = self.configuration.model_dump()
        for (section, name), variable in self.secret_variables.items():
            content[section][name] = _environment(variable, f"{section}.{name}")
        return Configuration.model_validate(content)


@dataclass(frozen=True)
class Discovery:
    """The repositories that a configuration covers by patterns, without an entry for each.

    Attributes:
        include, exclude: patterns of names such as `prod-*`; a name is covered if it matches the first and no second.
        shared: content of the sections that all repositories share.
        defaults: content of sections by pattern; of several matching ones, the last in the file counts.
        source: name of the content in messages.
    """

    include: tuple[str, ...]
    exclude: tuple[str, ...]
    shared: Mapping[str, Any] = field(repr=False)
    defaults: Mapping[str, Mapping[str, Any]] = field(repr=False)
    source: str

    def covers(self, repository: str) -> bool:
        """True if the patterns cover a repository of this name."""
        return _matches(repository, self.include) and not _matches(repository, self.exclude)

    def loaded(self, repository: str) -> Loaded:
        """The configuration of a covered repository. Raises ConfigurationError."""
        content = dict(self.shared)
        for pattern, sections in self.defaults.items():
            if fnmatchcase(repository, pattern):
                content = _over(content, dict(sections))
        return replace(
            loaded_from({**content, "repository": repository}, f"{self.source}, repository {repository}"), apart=True
        )


@dataclass(frozen=True)
class AllRepositories:
    """The repositories of a configuration.

    Attributes:
        listed: those with an entry, or the only one.
        discovery: patterns for others; None if there are none.
        sections: content of the sections that all repositories share.
        source: name of the content in messages.
    """

    listed: tuple[Loaded, ...]
    discovery: Discovery | None = None
    sections: Mapping[str, Any] = field(default_factory=dict, repr=False)
    source: str = ""

    @cached_property
    def shared(self) -> Loaded:
        """The shared sections; its repository has a name only if it is the only one. Raises ConfigurationError."""
        return loaded_from(dict(self.sections), self.source)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class FromEnvironment(Settings):
    """A value that comes from an environment variable."""

    env: str = Field(description="Name of the environment variable.")


class _Explained(Settings):
    """Adds suggestions to errors about unknown names."""

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, content: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validate(content)
        except ValidationError as error:
            details = [_detail(problem) for problem in error.errors()]
            raise ValidationError.from_exception_data(error.title, details) from None


def _detail(problem: ErrorDetails) -> InitErrorDetails:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        # Dagster rebuilds errors from type and context, to add the line of the file; custom messages would be lost.
        kind, context = "value_error", {"error": ValueError(_problem(problem))}
    return InitErrorDetails(type=kind, loc=problem["loc"], input=problem["input"], ctx=context)


def _writable(settings: type[Settings], **more: Any) -> type[BaseModel]:
    """Model of the settings in YAML: each is a value, or a reference to an environment variable."""
    fields: dict[str, Any] = dict(more)
    for name, described in settings.model_fields.items():
        kind: Any = described.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            fields[name] = (_writable(kind), Field(default=None, description=kind.__doc__))
            continue
        if kind == dict[str, str]:
            kind = dict[str, str | FromEnvironment]
        written = Annotated[kind, *described.metadata] if described.metadata else kind
        default = described.get_default(call_default_factory=True)
        fields[name] = (written | FromEnvironment, Field(default=default, description=described.description))
    base = _Explained if more else Settings
    return create_model(settings.__name__, __base__=base, __doc__=settings.__doc__, **fields)


@cache
def written() -> type[BaseModel]:
    """Model of a configuration file's content, and of the component's attributes."""
    entry = _writable(Configuration)
    described = "Several repositories, each with its own settings; other settings are in the sections beside."
    names = {name: (list[str], field) for name, field in DiscoverSettings.model_fields.items() if name != "defaults"}
    defaults = (dict[str, entry], DiscoverSettings.model_fields["defaults"])  # type: ignore[valid-type]
    discover = create_model("Discover", __base__=Settings, __doc__=DiscoverSettings.__doc__, **names, defaults=defaults)  # type: ignore[call-overload]
    return _writable(
        Configuration,
        repositories=(list[entry], Field(default=None, description=described)),  # type: ignore[valid-type]
        discover=(discover, Field(default=None, description=DiscoverSettings.__doc__)),
    )


def schema() -> str:
    """JSON schema of a configuration file, in which secrets can only come from the environment."""
    content = written().model_json_schema()
    for section, name in _secret_fields():
        properties = content["$defs"][_sections()[section].__name__]["properties"]
        properties[name] = {"$ref": "#/$defs/FromEnvironment", "description": properties[name]["description"]}
    return json.dumps(content, indent=1) + "\n"


def load(file: Path) -> Loaded:
    """Reads a configuration file and resolves values from the environment, except secrets.

    Raises ConfigurationError with the file, the setting and the problem.
    """
    return loaded_from(read(file), str(file))


def load_all(file: Path) -> tuple[Loaded, ...]:
    """The configuration of each repository of a file.

    Raises ConfigurationError.
    """
    return all_from(read(file), str(file))


def load_one(file: Path, repository: str | None, by: str, replaces: bool = False) -> Loaded:
    """The configuration of one repository of a file: an entry, or one that `discover` covers.

    Args:
        repository: its label; None for the only one.
        by: option or argument that selects the repository, for messages.
        replaces: True if any name may replace that of the only repository.
    Raises:
        ConfigurationError: the file is wrong, or does not have the repository.
    """
    content = read(file)
    listed, discovery = all_from(content, str(file)), discovery_from(content, str(file))
    if discovery is None and len(listed) == 1:
        if repository and replaces:
            content = {**listed[0].configuration.model_dump(), "repository": repository}
            return replace(listed[0], configuration=Configuration.model_validate(content))
        if not repository:
            return listed[0]
    is_listed = any(repository == loaded.configuration.label for loaded in listed)
    if discovery and repository and not is_listed and discovery.covers(repository):
        return discovery.loaded(repository)
    return named(listed, repository, by)


def everything_from(content: dict[str, Any], source: str) -> AllRepositories:
    """All repositories of a configuration, with args and errors as `all_from`."""
    return AllRepositories(
        all_from(content, source), discovery_from(content, source), _shared_sections(content), source
    )


def _shared_sections(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in (REPOSITORIES, DISCOVER)}


def describe_problems(error: ValidationError) -> str:
    """Each wrong value of a file's section, by its place."""
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in error.errors())


def discovery_from(content: dict[str, Any], source: str) -> Discovery | None:
    """The repositories that a configuration covers by patterns; None if it has no such section.

    Args and errors as `all_from`.
    """
    if DISCOVER not in content:
        return None
    try:
        settings = DiscoverSettings.model_validate(content[DISCOVER])
    except ValidationError as error:
        raise ConfigurationError(f"{source}: {DISCOVER}.{describe_problems(error)}") from None
    shared = _shared_sections(content)
    for pattern, sections in settings.defaults.items():
        if both := [name for name in _OF_ONE if name in sections]:
            raise ConfigurationError(f"{source}: {DISCOVER}.defaults.{pattern}: `{both[0]}` names one repository")
        # A misspelt setting is reported now, and not when a repository of this name appears.
        loaded_from(_over(shared, sections), f"{source}, {DISCOVER}.defaults.{pattern}")
    return Discovery(tuple(settings.include), tuple(settings.exclude), shared, settings.defaults, source)


def all_from(content: dict[str, Any], source: str) -> tuple[Loaded, ...]:
    """The configuration of each listed repository, from the content of a file or of attributes.

    It may be empty if the content has `discover`, whose repositories are not in it.

    Args:
        source: name of the content in messages, such as the file.
    Raises:
        ConfigurationError: with the source, the repository, the setting and the problem.
    """
    if REPOSITORIES not in content and DISCOVER not in content:
        return (loaded_from(content, source),)
    shared = _shared_sections(content)
    if both := [name for name in _OF_ONE if name in shared]:
        has = "this list" if REPOSITORIES in content else f"`{DISCOVER}`"
        raise ConfigurationError(
            f"{source}: `{both[0]}` belongs in an entry of `{REPOSITORIES}`, since the file has {has}"
        )
    if REPOSITORIES not in content:
        return ()
    entries = content[REPOSITORIES]
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigurationError(f"{source}: `{REPOSITORIES}` must be a list of entries, each with `repository`")
    configurations: list[Loaded] = []
    for place, entry in enumerate(entries, start=1):
        if not entry.get("repository"):
            raise ConfigurationError(f"{source}: entry {place} of `{REPOSITORIES}` has no `repository`")
        loaded = loaded_from(_over(shared, entry), f"{source}, repository {entry['repository']}")
        label = loaded.configuration.label
        if any(label == other.configuration.label for other in configurations):
            raise ConfigurationError(
                f"{source}: two entries of `{REPOSITORIES}` have the name {label!r}: set another `name` for one"
            )
        configurations.append(replace(loaded, apart=loaded.apart or len(entries) > 1 or DISCOVER in content))
    return tuple(configurations)


def named(configurations: Sequence[Loaded], repository: str | None, by: str) -> Loaded:
    """One of several repositories, by its label in the configuration.

    Args:
        by: option or argument that selects the repository, for the message.
    Raises:
        ConfigurationError: no repository has this label.
    """
    for loaded in configurations:
        if repository == loaded.configuration.label:
            return loaded
    labels = ", ".join(loaded.configuration.label for loaded in configurations)
    raise ConfigurationError(f"choose a repository with {by}: the configuration has {labels or 'no list of them'}")


def _over(shared: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """The shared values, overridden by the entry's, section by section."""
    sections = {
        name: {**shared[name], **value}
        for name, value in entry.items()
        if isinstance(value, dict) and isinstance(shared.get(name), dict)
    }
    return {**shared, **entry, **sections}


def loaded_from(content: dict[str, Any], source: str) -> Loaded:
    """The configuration of one repository, from its content.

    Args:
        content: sections, as in a file.
        source: name of the content in messages, such as the file.
    Raises:
        ConfigurationError: with the source, the setting and the problem.
    """
    content = deepcopy(content)
    _name_credentials_in_environment(content)
    secrets: dict[tuple[str, str], str] = {}
    for section, name in _secret_fields():
        values = content.get(section)
        if not isinstance(values, dict) or name not in values:
            continue
        variable = _reference(values.pop(name))
        if variable is None:
            raise ConfigurationError(
                f"{source}: {section}.{name} is a secret: put it into an environment variable and write "
                f"`{name}: {{env: NAME}}` here"
            )
        secrets[section, name] = variable
    _keep_spark_properties_in_environment(content, source)
    texts = {
        (section, name): variable
        for section, values in content.items()
        if isinstance(values, dict)
        for name, value in values.items()
        if (variable := _reference(value)) is not None and _is_text(section, name)
    }
    for variable in texts.values():
        show_by_variable(os.environ.get(variable, ""), variable)
    try:
        configuration = Configuration.model_validate(_resolved(content, ()))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {_problem(problem)}" for problem in error.errors())
        raise ConfigurationError(f"{source}: {problems}") from None
    return Loaded(configuration, secrets, apart=bool(configuration.name), text_variables=texts)


def _name_credentials_in_environment(content: dict[str, Any]) -> None:
    """Records the variables of the store's credentials, for processes that get only their names."""
    store = content.get("store")
    if not isinstance(store, dict):
        return
    variables = {name: variable for name in CREDENTIALS if (variable := _reference(store.get(name))) is not None}
    if variables:
        store["from_environment"] = {**(store.get("from_environment") or {}), **variables}


def _keep_spark_properties_in_environment(content: dict[str, Any], source: str) -> None:
    """Replaces Spark properties from the environment by the names of their variables.

    Raises ConfigurationError for a property that Spark would put on a command line.
    """
    spark = content.get("spark")
    config = spark.get("config") if isinstance(spark, dict) else None
    if not isinstance(spark, dict) or not isinstance(config, dict):
        return
    variables = {name: variable for name, value in config.items() if (variable := _reference(value)) is not None}
    if shown := [name for name in variables if name.endswith("JavaOptions")]:
        raise ConfigurationError(
            f"{source}: spark.config.{shown[0]} cannot come from the environment: Spark puts it on Java's command "
            "line, where every user of the machine can read it"
        )
    if variables:
        spark["config"] = {name: value for name, value in config.items() if name not in variables}
        spark["config_from_environment"] = {**(spark.get("config_from_environment") or {}), **variables}


def _sections() -> dict[str, type[Settings]]:
    """The class of each section."""
    annotations = {name: described.annotation for name, described in Configuration.model_fields.items()}
    return {name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, Settings)}


def _is_text(section: str, name: str) -> bool:
    kind = _sections().get(section)
    return kind is not None and name in kind.model_fields and kind.model_fields[name].annotation is str


def _secret_fields() -> Iterator[tuple[str, str]]:
    for section, kind in _sections().items():
        for name, described in kind.model_fields.items():
            extra = described.json_schema_extra
            if isinstance(extra, dict) and extra.get("dagster__is_secret"):
                yield section, name


def read(file: Path) -> dict[str, Any]:
    """The content of a configuration file. Raises ConfigurationError if it cannot be read."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read configuration file {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # The parser's message repeats the line, which may contain a secret.
        mark = getattr(error, "problem_mark", None)
        where = f": see line {mark.line + 1}, column {mark.column + 1}" if mark else " in UTF-8"
        raise ConfigurationError(f"configuration file {file} is not YAML{where}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(f"configuration file {file} must contain sections, not {type(content).__name__}")
    return content


def _reference(value: object) -> str | None:
    """The variable's name of a value `{env: NAME}`; None for other values."""
    if isinstance(value, Mapping) and set(value) == {"env"} and isinstance(value["env"], str):
        return value["env"]
    return None


def _resolved(value: Any, path: tuple[str, ...]) -> Any:
    if (name := _reference(value)) is not None:
        return _environment(name, ".".join(path))
    if isinstance(value, Mapping):
        return {key: _resolved(item, (*path, str(key))) for key, item in value.items()}
    return value


def _environment(variable: str, setting: str) -> str:
    if variable not in os.environ:
        raise ConfigurationError(f"{setting} is to come from the environment variable {variable}, which is not set")
    return environment_value(variable)


def environment_value(variable: str) -> str:
    """The value of a set environment variable, without the trailing line break that files of secrets have."""
    return os.environ[variable].rstrip("\r\n")


def _problem(problem: ErrorDetails) -> str:
    """Message about an invalid setting; for an unknown name, with a suggestion."""
    if problem["type"] != "extra_forbidden":
        return problem["msg"].lower()
    *section, name = [each for each in problem["loc"] if isinstance(each, str) and each != REPOSITORIES]
    # The empty name has the top level of the file, sections included.
    settings = {"": [*Configuration.model_fields, REPOSITORIES, DISCOVER]}
    settings |= {section: list(kind.model_fields) for section, kind in _sections().items()}
    near = difflib.get_close_matches(name, settings.get(".".join(section), ()), n=1)
    if near:
        return f"there is no such setting. Did you mean `{near[0]}`?"
    elsewhere = [other for other, names in settings.items() if name in names]
    if elsewhere:
        places = " or ".join(f"in `{other}`" if other else "at the top of the file" for other in elsewhere)
        return f"there is no such setting here. It belongs {places}"
    return "there is no such setting" if section else f"there is no such section. There are {', '.join(settings[''])}"


def default_file() -> Path | None:
    """The file named by LAKEFS_GC_CONFIG, else `lakefs-gc.yaml` in the working folder, else None."""
    if named := os.environ.get(CONFIGURATION_VARIABLE):
        return Path(named)
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None
