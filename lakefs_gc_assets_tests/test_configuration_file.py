from pathlib import Path
from typing import Any

import pytest
import yaml

from lakefs_gc_assets.configuration_file import all_from, discovery_from, load, load_all, load_one, named
from lakefs_gc_assets.errors import ConfigurationError

TEXT = """
lakefs: {endpoint: http://lakefs:8000, access_key_id: AKIA, secret_access_key: {env: LAKEFS_SECRET}}
collection: {min_age_hours: 48, clock_skew_minutes: 30}
repositories:
  - repository: measurements
  - repository: images
    lakefs: {endpoint: http://other:8000}
    collection: {min_age_hours: 72, sweep: true}
    automation: {keep_runs: 5}
  - repository: measurements
    name: measurements-eu
    lakefs: {secret_access_key: {env: OTHER_SECRET}}
"""


def refused(content: dict[str, Any]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        all_from(content, "gc.yaml")
    return str(caught.value)


def test_each_entry_differs_only_in_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "gc.yaml").write_text(TEXT)

    first, second, third = load_all(tmp_path / "gc.yaml")

    assert [loaded.configuration.label for loaded in (first, second, third)] == [
        "measurements",
        "images",
        "measurements-eu",
    ]
    assert [loaded.configuration.repository for loaded in (first, third)] == ["measurements"] * 2
    assert [loaded.configuration.lakefs.endpoint for loaded in (first, second, third)] == [
        "http://lakefs:8000",
        "http://other:8000",
        "http://lakefs:8000",
    ]
    assert [loaded.configuration.collection.min_age_hours for loaded in (first, second, third)] == [48, 72, 48]
    assert [loaded.configuration.collection.clock_skew_minutes for loaded in (first, second, third)] == [30, 30, 30]
    assert [loaded.configuration.collection.sweep for loaded in (first, second, third)] == [False, True, False]
    assert [loaded.configuration.automation.keep_runs for loaded in (first, second, third)] == [30, 5, 30]
    assert all(loaded.apart for loaded in (first, second, third))
    secret = ("lakefs", "secret_access_key")
    assert [loaded.secret_variables[secret] for loaded in (first, second, third)] == [
        "LAKEFS_SECRET",
        "LAKEFS_SECRET",
        "OTHER_SECRET",
    ]


def test_one_repository_is_a_list_of_one(tmp_path: Path) -> None:
    (tmp_path / "gc.yaml").write_text("repository: measurements")

    (found,) = load_all(tmp_path / "gc.yaml")

    assert found == load(tmp_path / "gc.yaml")
    assert not found.apart


def test_secrets_of_a_section_that_entries_share_by_an_anchor(tmp_path: Path) -> None:
    (tmp_path / "gc.yaml").write_text(
        "repositories:\n"
        "  - {repository: one, lakefs: &server {secret_access_key: {env: SECRET}}}\n"
        "  - {repository: two, lakefs: *server}\n"
    )

    assert [loaded.secret_variables for loaded in load_all(tmp_path / "gc.yaml")] == [
        {("lakefs", "secret_access_key"): "SECRET"}
    ] * 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"repositories": []}, "`repositories` must be a list of entries, each with `repository`"),
        ({"repositories": ["one"]}, "`repositories` must be a list of entries"),
        ({"repositories": {"repository": "one"}}, "`repositories` must be a list of entries"),
        ({"repositories": [{"repository": "one"}, {"name": "two"}]}, "entry 2 of `repositories` has no `repository`"),
        ({"repositories": [{"repository": "one"}, {"repository": "one"}]}, "have the name 'one': set another"),
        ({"repository": "one", "repositories": [{"repository": "two"}]}, "`repository` belongs in an entry"),
        ({"name": "one", "repositories": [{"repository": "two"}]}, "`name` belongs in an entry"),
    ],
)
def test_lists_that_make_no_sense_are_refused(content: dict[str, Any], said: str) -> None:
    message = refused(content)

    assert message.startswith("gc.yaml: ")
    assert said in message


def test_what_is_wrong_is_said_of_its_repository() -> None:
    message = refused({"repositories": [{"repository": "one"}, {"repository": "two", "collection": {"swep": True}}]})

    assert message.startswith("gc.yaml, repository two: collection.swep: ")


def test_a_secret_in_an_entry_is_refused_and_not_shown() -> None:
    message = refused({"repositories": [{"repository": "one", "lakefs": {"secret_access_key": "s3cr3t"}}]})

    assert "lakefs.secret_access_key is a secret" in message
    assert "s3cr3t" not in message


def test_one_is_chosen_by_what_it_is_called() -> None:
    found = all_from(yaml.safe_load(TEXT), "gc.yaml")

    assert named(found, "measurements-eu", "--repository") is found[2]
    assert named(found, "measurements", "--repository") is found[0]
    for unknown in (None, "", "others"):
        with pytest.raises(ConfigurationError, match="has measurements, images, measurements-eu"):
            named(found, unknown, "--repository")


DISCOVERED = """
lakefs: {endpoint: http://lakefs:8000, access_key_id: AKIA, secret_access_key: {env: LAKEFS_SECRET}}
collection: {min_age_hours: 48}
repositories:
  - {repository: images, collection: {sweep: true}}
discover:
  include: [prod-*, im*]
  exclude: ["*-old"]
  defaults:
    prod-*: {collection: {min_age_hours: 72}, overview: {budget: 40 TB}}
    prod-logs*: {overview: {budget: 1.5 TiB}}
"""


def test_patterns_cover_repositories_and_give_them_defaults(tmp_path: Path) -> None:
    file = tmp_path / "gc.yaml"
    file.write_text(DISCOVERED)
    (images,) = load_all(file)
    assert images.apart and images.configuration.collection.sweep
    found = discovery_from(yaml.safe_load(DISCOVERED), "gc.yaml")
    assert found is not None
    names = ("prod-a", "prod-a-old", "images", "test")
    assert [found.covers(name) for name in names] == [True, False, True, False]
    logs = load_one(file, "prod-logs", "--repository")
    assert (logs.configuration.repository, logs.apart) == ("prod-logs", True)
    assert logs.configuration.overview.budget_bytes == round(1.5 * 2**40), "the last pattern counts"
    assert logs.configuration.collection.min_age_hours == 72, "other settings of earlier patterns stay"
    assert logs.secret_variables == images.secret_variables
    assert load_one(file, "prod-a", "--repository").configuration.overview.budget_bytes == 40 * 10**12
    assert load_one(file, "images", "--repository") == images, "an entry counts more than patterns"
    for name in ("test", "prod-a-old", "", None):
        with pytest.raises(ConfigurationError, match="the configuration has images"):
            load_one(file, name, "--repository")


def test_patterns_alone_list_no_repository() -> None:
    assert all_from({"discover": {}}, "gc.yaml") == ()


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        ({"discover": {"includes": ["a"]}}, "gc.yaml: discover.includes: "),
        ({"discover": {"include": "a"}}, "gc.yaml: discover.include: "),
        (
            {"discover": {"defaults": {"a*": {"colection": {}}}}},
            "gc.yaml, discover.defaults.a*: colection: there is no",
        ),
        ({"discover": {"defaults": {"a*": {"repository": "b"}}}}, "discover.defaults.a*: `repository` names one"),
        ({"discover": {"defaults": {"a*": {"overview": {"budget": "40"}}}}}, "write a number and a unit"),
    ],
)
def test_misspelt_patterns_are_reported_at_once(content: dict[str, Any], reported: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        discovery_from(content, "gc.yaml")
    assert reported in str(caught.value)


def test_name_of_one_repository_beside_patterns_is_refused() -> None:
    assert "`repository` belongs in an entry" in refused({"repository": "one", "discover": {}})


def test_only_repository_can_be_replaced_by_name_if_no_pattern_covers_others(tmp_path: Path) -> None:
    file = tmp_path / "gc.yaml"
    file.write_text("{repository: one, name: first}")
    assert load_one(file, "other", "--repository", replaces=True).configuration.repository == "other"
    assert load_one(file, None, "--repository").configuration.repository == "one"
    with pytest.raises(ConfigurationError):
        load_one(file, "other", "`repository`")
