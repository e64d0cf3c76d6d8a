from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.extensions.holdings.prices import OWN_PRICES, Cost, cost_of, read_prices
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import Configuration

GIB = 2**30
BUCKET = Namespace.parse("s3://bucket/repository")


def configured(**sections: Any) -> Configuration:
    return Configuration.model_validate({"repository": "a", **sections})


@pytest.fixture(autouse=True)
def _no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def test_shipped_prices_name_source_and_date() -> None:
    prices = read_prices("")
    assert prices.source and prices.date > date(2025, 1, 1)
    assert prices.origin == f"{prices.source}, as of {prices.date}"


def test_cost_goes_by_store_region_and_class(monkeypatch: pytest.MonkeyPatch) -> None:
    there = read_prices("").stores["s3"]["us-east-1"]
    classes = {"STANDARD": 100 * GIB, "GLACIER": 50 * GIB}
    expected = Cost(100 * there["STANDARD"] + 50 * there["GLACIER"], "USD", 0, read_prices("").origin)
    assert cost_of(configured(store={"region": "us-east-1"}), BUCKET, 150 * GIB, classes) == expected
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert cost_of(configured(), BUCKET, 150 * GIB, classes) == expected


@pytest.mark.parametrize(
    ("store", "namespace"),
    [
        ({"region": "mars-1"}, BUCKET),
        ({}, BUCKET),
        ({"region": "us-east-1", "endpoint_url": "https://minio.example.com"}, BUCKET),
        ({"region": "us-east-1"}, Namespace.parse("gs://bucket/repository")),
    ],
)
def test_cost_is_unknown_without_a_price(store: dict[str, str], namespace: Namespace) -> None:
    cost = cost_of(configured(store=store), namespace, 10 * GIB, {"STANDARD": 10 * GIB})
    assert (cost.amount, cost.unpriced_bytes) == (None, 10 * GIB)


def test_bytes_of_unknown_class_are_counted_and_not_priced() -> None:
    cost = cost_of(configured(store={"region": "us-east-1"}), BUCKET, 30 * GIB, {"STANDARD": 10 * GIB})
    assert (round(cost.amount or 0, 6), cost.unpriced_bytes) == (0.23, 20 * GIB)


def test_own_price_counts_more_than_a_file() -> None:
    own = configured(store={"region": "us-east-1"}, report={"price_per_gb_month": 1.5, "currency": "EUR"})
    assert cost_of(own, BUCKET, 2 * GIB, {}) == Cost(3.0, "EUR", 0, OWN_PRICES)


def test_file_replaces_the_list_and_may_name_a_host_and_other_regions(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    content = {
        "source": "contract 7",
        "date": date(2026, 1, 31),
        "currency": "EUR",
        "stores": {"minio.example.com": {"*": {"STANDARD": 0.01}}},
    }
    file.write_text(yaml.safe_dump(content))
    store = {"endpoint_url": "https://minio.example.com:9000", "region": "anywhere"}
    configuration = configured(store=store, overview={"prices": str(file)})
    cost = cost_of(configuration, BUCKET, 100 * GIB, {"STANDARD": 100 * GIB})
    assert cost == Cost(1.0, "EUR", 0, "contract 7, as of 2026-01-31")


@pytest.mark.parametrize("text", ["", "source: a", "source: [", "stores: {s3: {a: {b: -1}}}"])
def test_file_that_lacks_something_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"prices\.yaml"):
        read_prices(str(file))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_prices(str(tmp_path / "none.yaml"))
