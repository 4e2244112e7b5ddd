"""What a pool is to be: its name, its size and where that comes from, its deadlines."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from pools.errors import PoolConfigError
from pools.session import SessionSettings

MAX_NAME_BYTES = 63
"""PostgreSQL cuts an application_name beyond this, and replaces what is not ASCII."""

_MAX_SECONDS = 2_147_483
"""The server keeps durations as milliseconds in 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """One pool.

    :param name: as in the configuration.
    :param application_name: how its sessions show in `pg_stat_activity`.
    :param lanes: workers that hold one connection each, over all consumers of this pool.
    :param nested: connections that a worker may take beyond its first.
    :param headroom: connections on top of the structural need.
    :param fixed_size: in place of the derived size: a background pool may be smaller than its workers' concurrency,
        where that bounds the load on the database on purpose.
    :param acquire_timeout_s: how long to wait for a free connection.
    :param connect_timeout_s: how long opening one may take.
    :param release_timeout_s: how long giving one back may take until it is cut, and the reset before a next user.
    """

    name: str
    application_name: str
    session: SessionSettings
    lanes: int = 0
    nested: int = 0
    headroom: int = 1
    fixed_size: int | None = None
    acquire_timeout_s: float = 5.0
    connect_timeout_s: float = 10.0
    release_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        """Refuse what could not work.

        :raises PoolConfigError: names the key.
        """
        for key in ("lanes", "nested", "headroom"):
            if getattr(self, key) < 0:
                raise self._refused(key, getattr(self, key), "zero or more")
        for key in ("acquire_timeout_s", "connect_timeout_s", "release_timeout_s"):
            self._check_duration(key, getattr(self, key))
        for field in fields(self.session):
            value = getattr(self.session, field.name)
            if field.name.endswith("_s") and value is not None:
                self._check_duration(f"session.{field.name}", value)
        if self.session.keepalive_count < 1:
            raise self._refused("session.keepalive_count", self.session.keepalive_count, "one or more")
        if self.size < 1:
            raise self._refused("size", self.size, "one connection or more")
        if self.nested and self.size <= self.lanes * self.nested:
            # Every lane could hold what it may but one, and wait for that one.
            raise self._refused(
                "fixed_size",
                self.size,
                f"more than {self.lanes * self.nested}: {self.lanes} lanes × {self.nested} nested could wait for each "
                "other for ever",
            )
        name = self.application_name
        if not name.isascii() or not name.isprintable() or not 0 < len(name) <= MAX_NAME_BYTES:
            raise self._refused("application_name", name, f"1 to {MAX_NAME_BYTES} printable ASCII characters")

    @property
    def size(self) -> int:
        """How many connections the pool may hold: lanes × (1 + nested) + headroom, unless it is fixed."""
        return self.lanes * (1 + self.nested) + self.headroom if self.fixed_size is None else self.fixed_size

    def _check_duration(self, key: str, value: float) -> None:
        if not (math.isfinite(value) and 0 < value <= _MAX_SECONDS):
            raise self._refused(key, value, f"seconds, more than zero and at most {_MAX_SECONDS}")

    def _refused(self, key: str, value: object, allowed: str) -> PoolConfigError:
        return PoolConfigError(pool=self.name, key=key, value=value, allowed=allowed)
