"""The component as a project of one's own uses it, its YAML included."""

from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from lakefs_gc_assets.component import GarbageCollection
from lakefs_gc_assets.configuration import Configuration
from lakefs_gc_assets.errors import ConfigurationError


def component(**attributes: Any) -> GarbageCollection:
    found = GarbageCollection.from_attributes_dict(attributes=attributes)
    assert isinstance(found, GarbageCollection)
    return found


def test_attributes_are_those_of_a_configuration_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GC_ENDPOINT", "http://lakefs:8000")
    monkeypatch.setenv("GC_AGE", "72")

    found = component(
        lakefs={"endpoint": "{{ env.GC_ENDPOINT }}", "secret_access_key": {"env": "GC_SECRET"}},
        collection={"min_age_hours": {"env": "GC_AGE"}},
        repositories=[{"repository": "one"}, {"repository": "two", "collection": {"sweep": True}}],
    ).repositories

    assert [loaded.configuration.label for loaded in found] == ["one", "two"]
    assert [loaded.configuration.lakefs.endpoint for loaded in found] == ["http://lakefs:8000"] * 2
    assert [loaded.configuration.collection.min_age_hours for loaded in found] == [72, 72]
    assert [loaded.configuration.collection.sweep for loaded in found] == [False, True]
    assert [loaded.secret_variables for loaded in found] == [{("lakefs", "secret_access_key"): "GC_SECRET"}] * 2


def test_a_single_repository() -> None:
    assert [loaded.configuration for loaded in component(repository="one").repositories] == [
        Configuration(repository="one")
    ]


@pytest.mark.parametrize(
    "attributes",
    [
        {"repositry": "one"},
        {"repository": "one", "collection": {"swep": True}},
        {"repository": "one", "collection": {"min_age_hours": -1}},
        {"repositories": [{"repository": "one", "spark": {"master": 3}}]},
    ],
)
def test_what_the_schema_does_not_know_is_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        component(**attributes)


def test_a_secret_in_yaml_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match=r"lakefs\.secret_access_key is a secret") as refused:
        component(repository="one", lakefs={"secret_access_key": "s3cr3t"})
    assert "s3cr3t" not in str(refused.value)


def test_every_attribute_is_described() -> None:
    schema = GarbageCollection.get_model_cls().model_json_schema()

    for section, properties in schema["$defs"].items():
        if section.endswith("Settings"):
            for name, field in properties["properties"].items():
                assert field.get("description"), f"{section}.{name}"


def test_it_leaves_the_rest_of_a_project_alone() -> None:
    """No executor, no logger and, with a name, no plain resource that another component might have."""
    context = dg.ComponentTree.for_test().load_context

    built = component(repository="data", name="gc").build_defs(context)

    assert (built.executor, built.loggers) == (None, {})
    assert built.resources is not None
    assert all(name.endswith("_gc") for name in built.resources)
