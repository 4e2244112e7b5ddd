"""The configuration as a whole, and the URLs that it leads to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from consumers.config.settings import (
    BreakerSettings,
    BrokerSettings,
    ConsumerSettings,
    DatabaseSettings,
    DrainSettings,
    HttpSettings,
    LogSettings,
    MemberSettings,
    OutboxSettings,
    PoolSettings,
    ReceiptSettings,
    RetentionSettings,
    ServiceSettings,
    Settings,
    SweepSettings,
    no_entries,
)
from consumers.errors import ConfigError
from consumers.secrets import Secret, UrlSource
from inbox.redaction import redacted


class FleetConfig(Settings, frozen=True, kw_only=True):
    """A whole configuration file, checked.

    :param file: the path it was read from, for messages.
    """

    file: str
    service: ServiceSettings
    database: DatabaseSettings = DatabaseSettings()
    broker: BrokerSettings = BrokerSettings()
    pools: Mapping[str, PoolSettings] = msgspec.field(default_factory=no_entries)
    consumers: Mapping[str, ConsumerSettings] = msgspec.field(default_factory=no_entries)
    breaker: BreakerSettings = BreakerSettings()
    drain: DrainSettings = DrainSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    receipts: ReceiptSettings = ReceiptSettings()
    outbox: OutboxSettings = OutboxSettings()
    retention: RetentionSettings = RetentionSettings()
    sweep: SweepSettings = SweepSettings()
    members: MemberSettings = MemberSettings()

    def database_source(self) -> UrlSource:
        """Return where the database URL is to be read from."""
        return _source(self.database, "DATABASE_URL", ("postgresql", "postgres"))

    def broker_source(self) -> UrlSource:
        """Return where the broker URL is to be read from."""
        return _source(self.broker, "AMQP_URL", ("amqp", "amqps"))

    def database_url(self, environ: Mapping[str, str] = os.environ) -> Secret:
        """Read the database URL as it stands now.

        :raises ConfigError: it is missing or unusable.
        """
        return self._url("database", self.database_source(), environ)

    def broker_url(self, environ: Mapping[str, str] = os.environ) -> Secret:
        """Read the broker URL as it stands now.

        :raises ConfigError: it is missing or unusable.
        """
        # Imported here: commands that ask the database alone need nothing of what reads it.
        from consumers.broker_url import check_broker_url

        return self._url("broker", self.broker_source(), environ, check_broker_url)

    def _url(
        self,
        table: str,
        source: UrlSource,
        environ: Mapping[str, str],
        check: Callable[[str], None] = lambda _: None,
    ) -> Secret:
        try:
            url = source.read(environ)
            check(url.reveal())
        except ValueError as error:
            field = "url_env" if source.env is not None else "url_file" if source.file is not None else "url"
            named = source.env or source.file or ""
            raise ConfigError(
                file=self.file,
                key=f"{table}.{field}",
                value=redacted(source.plain) if source.plain else redacted(named) if "://" in named else named,
                problem=str(error),
                allowed=f"url_env or url_file that leads to a URL such as {source.schemes[0]}://user:password@host/name",
            ) from None
        return url


def _source(settings: DatabaseSettings | BrokerSettings, default_env: str, schemes: tuple[str, ...]) -> UrlSource:
    if settings.url_env is None and settings.url_file is None and settings.url is None:
        return UrlSource(schemes=schemes, env=default_env)
    return UrlSource(schemes=schemes, env=settings.url_env, file=settings.url_file, plain=settings.url)
