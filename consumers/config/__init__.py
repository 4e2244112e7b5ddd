"""The configuration of a fleet: `load(path)` reads a TOML file into frozen structs, or refuses it by `ConfigError`."""

from consumers.config.describing import describe
from consumers.config.fleet import FleetConfig
from consumers.config.reading import load, parse
from consumers.config.settings import (
    Binding,
    BreakerSettings,
    BrokerSettings,
    ConsumerSettings,
    DatabaseSettings,
    DrainSettings,
    HousekeepingSettings,
    HttpSettings,
    LogSettings,
    MemberSettings,
    PoolSettings,
    ReceiptSettings,
    RetentionSettings,
    ServiceSettings,
    SweepSettings,
    TypeSettings,
)

__all__ = [
    "Binding",
    "BreakerSettings",
    "BrokerSettings",
    "ConsumerSettings",
    "DatabaseSettings",
    "DrainSettings",
    "FleetConfig",
    "HousekeepingSettings",
    "HttpSettings",
    "LogSettings",
    "MemberSettings",
    "PoolSettings",
    "ReceiptSettings",
    "RetentionSettings",
    "ServiceSettings",
    "SweepSettings",
    "TypeSettings",
    "describe",
    "load",
    "parse",
]
