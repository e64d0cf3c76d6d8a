import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lakefs_gc_assets.configuration_file import (
    CONFIGURATION_VARIABLE,
    DEFAULT_FILE,
    Loaded,
    default_file,
    load,
    loaded_from,
)
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.settings import (
    CollectionSettings,
    Configuration,
    LakeFSSettings,
    ReportSettings,
    SparkSettings,
    StoreSettings,
)

SECRET = "s3cr3t/never+shown"


def written(folder: Path, text: str) -> Path:
    file = folder / "gc.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(written(folder, text))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("colection: {}", "colection: there is no such setting. Did you mean `collection`?"),
        ("repositores: []", "repositores: there is no such setting. Did you mean `repositories`?"),
        ("collection: {min_age_hour: 1}", "collection.min_age_hour: there is no such setting. Did you mean `min_age_"),
        ("store: {endpoint: a}", "store.endpoint: there is no such setting. Did you mean `endpoint_url`?"),
        ("sweep: true", "sweep: there is no such setting here. It belongs in `collection`"),
        (
            "spark: {repository: a}",
            "spark.repository: there is no such setting here. It belongs at the top of the file",
        ),
        ("lakefs: {bucket: a}", "lakefs.bucket: there is no such setting"),
        ("whatever: a", "whatever: there is no such section. There are repository, name, owners, tags, lakefs, store"),
    ],
)
def test_a_name_that_is_misspelt_is_answered_with_what_may_have_been_meant(
    tmp_path: Path, text: str, reported: str
) -> None:
    assert reported in refused(tmp_path, text)
    assert "extra inputs" not in refused(tmp_path, text)


def test_what_stands_at_a_misspelt_name_is_not_shown(tmp_path: Path) -> None:
    assert SECRET not in refused(tmp_path, f"stor: {{secret_access_key: {SECRET}}}")
    assert SECRET not in refused(tmp_path, f"store: {{secret_acess_key: {SECRET}}}")


class TestWhatSettingsAre:
    def test_nothing_is_deleted_until_somebody_says_so(self) -> None:
        assert Configuration().collection.sweep is False

    def test_cautious_defaults(self) -> None:
        collection = CollectionSettings()
        assert (collection.min_age_hours, collection.clock_skew_minutes) == (24, 60)
        assert (collection.wait_before_dump_seconds, collection.wait_before_recheck_seconds) == (30, 600)
        assert (collection.prepare_timeout_seconds, collection.prepare_page_limit) == (900, 10_000)
        assert 0 < collection.max_candidate_share < 1

    def test_every_setting_is_described(self) -> None:
        for section in (LakeFSSettings, StoreSettings, CollectionSettings, SparkSettings):
            for name, setting in section.model_fields.items():
                assert setting.description, f"{section.__name__}.{name}"

    @given(
        st.dictionaries(st.sampled_from(["STANDARD", "GLACIER", "unknown"]), st.floats(0, 10)),
        st.dictionaries(st.sampled_from(["STANDARD", "GLACIER", "COLD"]), st.integers(0, 2**50)),
        st.integers(0, 2**50),
    )
    def test_each_byte_has_the_price_of_its_class_or_none(
        self, prices: dict[str, float], classes: dict[str, int], rest: int
    ) -> None:
        total = sum(classes.values()) + rest
        cost, unpriced = ReportSettings(price_per_gb_month=prices or 0).monthly_cost(total, classes)
        sizes = {**classes, "unknown": rest}
        assert cost == pytest.approx(sum(size / 2**30 * prices.get(name, 0) for name, size in sizes.items()))
        assert unpriced == (sum(size for name, size in sizes.items() if name not in prices) if prices else 0)
        assert ReportSettings(price_per_gb_month=3).monthly_cost(total, classes) == (total / 2**30 * 3, 0)

    @pytest.mark.parametrize("price", [-1, {"STANDARD": -1}, {"STANDARD": "dear"}, {"STANDARD": float("nan")}, "dear"])
    def test_a_price_is_a_number_or_one_for_each_class(self, price: Any) -> None:
        with pytest.raises(ValidationError):
            ReportSettings(price_per_gb_month=price)

    def test_settings_never_change(self) -> None:
        settings: Any = CollectionSettings()
        with pytest.raises(ValidationError):
            settings.sweep = True

    @pytest.mark.parametrize(
        "setting",
        [
            {"min_age_hours": -1},
            {"clock_skew_minutes": -0.1},
            {"max_candidate_share": 1.01},
            {"max_candidate_share": -0.01},
            {"max_candidates": -1},
            {"lock_expiry_minutes": 0},
            {"prepare_timeout_seconds": 0},
            {"prepare_page_limit": 0},
            {"dump_fetch_limit": -1},
            {"slice_window": "week"},
            {"sweep": "perhaps"},
            {"dry_run": True},
        ],
    )
    def test_values_that_make_no_sense_are_refused(self, setting: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            CollectionSettings(**setting)

    @pytest.mark.parametrize("number", [math.nan, math.inf])
    def test_numbers_are_finite(self, number: float) -> None:
        for section in (LakeFSSettings, CollectionSettings):
            for name, setting in section.model_fields.items():
                if setting.annotation is float:
                    with pytest.raises(ValidationError):
                        section.model_validate({name: number})

    @given(st.booleans() | st.sampled_from(["true", "false"]))
    def test_sweep_is_what_was_said(self, said: bool | str) -> None:
        assert CollectionSettings.model_validate({"sweep": said}).sweep is (said in (True, "true"))


class TestFiles:
    def test_sections_of_a_file(self, tmp_path: Path) -> None:
        loaded = load(
            written(
                tmp_path,
                "repository: repo\nlakefs: {endpoint: http://lakefs:8000}\n"
                "collection: {min_age_hours: 48.5, sweep: yes}\nspark: {config: {spark.ui.enabled: 'false'}}\n",
            )
        )
        found = loaded.configuration
        assert (found.repository, found.lakefs.endpoint) == ("repo", "http://lakefs:8000")
        assert (found.collection.min_age_hours, found.collection.sweep) == (48.5, True)
        assert found.spark.config == {"spark.ui.enabled": "false"}
        assert found.store == StoreSettings()
        assert loaded.with_secrets() == found

    def test_an_empty_file_is_all_defaults(self, tmp_path: Path) -> None:
        assert load(written(tmp_path, "# nothing\n")) == Loaded(Configuration(), {})

    def test_a_file_that_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"cannot read configuration file .*no\.yaml: No such file"):
            load(tmp_path / "no.yaml")

    @pytest.mark.parametrize("text", ["- a\n- b\n", "just text", "3"])
    def test_a_file_without_sections(self, tmp_path: Path, text: str) -> None:
        assert "must contain sections" in refused(tmp_path, text)

    def test_a_file_that_is_not_text(self, tmp_path: Path) -> None:
        file = tmp_path / "gc.yaml"
        file.write_bytes(b"repository: \xff\xfe")
        with pytest.raises(ConfigurationError, match=r"gc\.yaml is not YAML"):
            load(file)

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("repo: x", "repo:"),
            ("collection: {swep: true}", "collection.swep:"),
            ("collection: {min_age_hours: a day}", "collection.min_age_hours:"),
            ("collection: [sweep]", "collection:"),
            ("collection: {min_age_hours: .inf}", "collection.min_age_hours:"),
            ("collection: {max_candidate_share: .nan}", "collection.max_candidate_share:"),
            ("repository: 7", "repository:"),
            ("lakefs: {env: 7}", "lakefs.env:"),
        ],
    )
    def test_a_wrong_setting_is_named(self, tmp_path: Path, text: str, named: str) -> None:
        message = refused(tmp_path, text)
        assert message.startswith(f"{tmp_path / 'gc.yaml'}: {named}")

    def test_tags_that_run_code_are_refused(self, tmp_path: Path) -> None:
        assert "is not YAML" in refused(tmp_path, "repository: !!python/object/apply:os.getcwd []")


class TestTheEnvironment:
    def test_any_value_may_come_from_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GC_ENDPOINT", "http://lakefs:8000")
        monkeypatch.setenv("GC_SWEEP", "true")
        file = written(tmp_path, "lakefs: {endpoint: {env: GC_ENDPOINT}}\ncollection: {sweep: {env: GC_SWEEP}}")
        found = load(file).configuration
        assert (found.lakefs.endpoint, found.collection.sweep) == ("http://lakefs:8000", True)

    def test_what_is_not_set_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GC_ENDPOINT", raising=False)
        message = refused(tmp_path, "lakefs: {endpoint: {env: GC_ENDPOINT}}")
        assert "lakefs.endpoint" in message
        assert "GC_ENDPOINT" in message

    def test_an_empty_switch_is_no_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GC_SWEEP", "")
        assert "collection.sweep" in refused(tmp_path, "collection: {sweep: {env: GC_SWEEP}}")

    def test_the_file_may_be_named_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv(CONFIGURATION_VARIABLE, raising=False)
        assert default_file() is None
        (tmp_path / DEFAULT_FILE).touch()
        assert default_file() == Path(DEFAULT_FILE)
        monkeypatch.setenv(CONFIGURATION_VARIABLE, "/etc/gc.yaml")
        assert default_file() == Path("/etc/gc.yaml")
        monkeypatch.setenv(CONFIGURATION_VARIABLE, "")
        assert default_file() == Path(DEFAULT_FILE)


SECRETS = [
    ("lakefs", "secret_access_key"),
    ("store", "secret_access_key"),
    ("store", "session_token"),
    ("store", "account_key"),
    ("store", "sas_token"),
    ("store", "client_secret"),
]


@pytest.mark.parametrize(("section", "name"), SECRETS)
class TestSecrets:
    def test_stay_in_the_environment_until_needed(
        self, section: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("GC_SECRET", raising=False)
        loaded = load(written(tmp_path, f"{section}: {{{name}: {{env: GC_SECRET}}}}"))
        assert getattr(getattr(loaded.configuration, section), name) == ""
        with pytest.raises(ConfigurationError, match=rf"{section}\.{name} .* GC_SECRET"):
            loaded.with_secrets()
        monkeypatch.setenv("GC_SECRET", SECRET)
        complete = loaded.with_secrets()
        assert getattr(getattr(complete, section), name) == SECRET
        for shown in (repr(complete), str(complete), repr(loaded), repr(getattr(complete, section))):
            assert SECRET not in shown

    @pytest.mark.parametrize("value", [SECRET, "", None, {"env": 3}, {"env": SECRET, "default": SECRET}, [SECRET]])
    def test_in_the_file_are_refused_and_not_shown(self, section: str, name: str, value: Any, tmp_path: Path) -> None:
        message = refused(tmp_path, yaml.safe_dump({section: {name: value}}))
        assert f"{section}.{name} is a secret" in message
        assert SECRET not in message

    @pytest.mark.parametrize(
        "value", [f'"{SECRET}', f"{{{SECRET}", f"@{SECRET}", f"*{SECRET}", f"!{SECRET} x", f"a: b: {SECRET}"]
    )
    def test_are_not_shown_by_a_file_that_is_not_yaml(
        self, section: str, name: str, value: str, tmp_path: Path
    ) -> None:
        message = refused(tmp_path, f"repository: repo\n{section}:\n  {name}: {value}\n")
        assert "is not YAML" in message
        assert "line 3" in message or "line 4" in message
        assert "s3cr3t" not in message


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"owners": ["ops@example.com", "data"]}, "data: write an email address, or team:name"),
        ({"tags": {"tier": "cold store"}}, "tier: a tag's name"),
        ({"tags": {"a/b/c": ""}}, "a/b/c: a tag's name"),
    ],
)
def test_owners_and_tags_are_what_dagster_takes(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        loaded_from(wrong, "file")


def test_every_secret_is_known() -> None:
    found = {
        (section, name)
        for section, field in Configuration.model_fields.items()
        for name in getattr(field.annotation, "model_fields", {})
        if any(word in name for word in ("secret", "token", "password", "account_key"))
    }
    assert found == set(SECRETS)
