"""Prices of storage by store, region and storage class, from a file that names its source and date.

The package brings `prices.yaml`; `overview.prices` replaces it. A repository whose configuration has
`report.price_per_gb_month` goes by that.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from pydantic import Field, ValidationError

from lakefs_gc_assets.configuration_file import describe_problems
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import Configuration, Price, ReportSettings, Settings, StoreSettings

OWN_PRICES = "report.price_per_gb_month"
"""Source of prices that the configuration itself has."""
_SHIPPED = Path(__file__).with_name("prices.yaml")
_OTHER_REGIONS = "*"
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")


class PriceList(Settings):
    """A file of prices.

    Attributes:
        source: origin of the prices.
        date: the day on which they were valid.
        stores: price of 2^30 bytes for a month, by store, region and storage class.
    """

    source: str = Field(min_length=1)
    date: date
    currency: str = Field(max_length=10)
    stores: dict[str, dict[str, dict[str, Price]]]

    @property
    def origin(self) -> str:
        """Source and date in words."""
        return f"{self.source}, as of {self.date:%F}"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of stored bytes for a month.

    Attributes:
        amount: None if no byte has a price.
        unpriced_bytes: bytes of storage classes without a price, which are not in the amount.
        origin: source and date of the prices.
    """

    amount: float | None
    currency: str
    unpriced_bytes: int
    origin: str


@cache
def read_prices(file: str) -> PriceList:
    """Reads a file of prices; the package's own one if the name is empty. Raises ConfigurationError."""
    path = Path(file) if file else _SHIPPED
    try:
        return PriceList.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"the file of prices {path} cannot be read: {error}") from None
    except ValidationError as error:
        raise ConfigurationError(f"the file of prices {path}: {describe_problems(error)}") from None


def cost_of(configuration: Configuration, namespace: Namespace, total: int, classes: Mapping[str, int]) -> Cost:
    """Monthly cost of a repository's bytes.

    Args:
        total: all bytes; those beyond `classes` are of unknown storage class.
        classes: bytes by storage class.
    Raises:
        ConfigurationError: the file of prices cannot be read.
    """
    prices, origin = configuration.report, OWN_PRICES
    if not prices.price_per_gb_month:
        price_list = read_prices(configuration.overview.prices)
        prices, origin = _prices_there(price_list, configuration.store, namespace), price_list.origin
    amount, unpriced = prices.monthly_cost(total, classes)
    return Cost(None if total and unpriced >= total else amount, prices.currency, unpriced, origin)


def _prices_there(price_list: PriceList, store: StoreSettings, namespace: Namespace) -> ReportSettings:
    """The prices of a repository's store and region; empty if the file has none."""
    regions = price_list.stores.get(urlsplit(store.endpoint_url).hostname or namespace.location.kind, {})
    region = store.region or next((os.environ[name] for name in _REGION_VARIABLES if os.environ.get(name)), "")
    classes = regions.get(region) or regions.get(_OTHER_REGIONS) or {}
    return ReportSettings(price_per_gb_month=classes, currency=price_list.currency)
