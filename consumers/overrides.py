"""What a consumer's handlers' errors mean to it: from `[consumers.NAME.faults]` to what the inbox judges by.

Keys of that table are SQLSTATEs, classes of them, or names of exception types. Names are looked up when the handlers
are known, since they may stand in the same modules; importing them is importing the service's own code.
"""

from __future__ import annotations

import builtins
import pkgutil
from types import MappingProxyType
from typing import Any

from consumers.config import FleetConfig
from consumers.config.checks import FAULT_KEYS, OF_LOST_SESSION, is_sqlstate, refused
from consumers.config.settings import ConsumerSettings
from consumers.errors import ConfigError
from inbox import Overrides, Reject, Retry
from inbox.faults import ACTIONS, Fault, is_of_lost_session
from inbox.redaction import said


def overrides(config: FleetConfig, settings: ConsumerSettings) -> Overrides:
    """Return what a consumer judges otherwise than the table.

    :raises ConfigError: a key names no exception type, one that is an answer, one that no choice can change, or one
        that another key names too.
    """
    by_sqlstate: dict[str, Fault] = {}
    by_type: dict[type[BaseException], Fault] = {}
    names: dict[type[BaseException], str] = {}
    for name, action in settings.faults.items():
        if is_sqlstate(name):
            by_sqlstate[name] = ACTIONS[action]
            continue
        kind = _exception_type(config, settings, name)
        other = names.setdefault(kind, name)
        if other != name:
            problem = f'it is the same type as "{other}", and it is not clear which one counts'
            raise _refused(config, settings, name, problem, "one of the two names")
        by_type[kind] = ACTIONS[action]
    return Overrides(MappingProxyType(by_sqlstate), MappingProxyType(by_type))


def _exception_type(config: FleetConfig, settings: ConsumerSettings, name: str) -> type[BaseException]:
    try:
        found: Any = pkgutil.resolve_name(name) if "." in name else getattr(builtins, name)
    except (ImportError, AttributeError) as error:
        problem = f"no exception type is found under this name ({error})"
        raise _refused(config, settings, name, problem, FAULT_KEYS) from None
    except (Exception, SystemExit) as error:  # users' code: whatever it raises, nothing can start, and this says why
        problem = f"importing it failed: {said(error)}"
        raise _refused(config, settings, name, problem, FAULT_KEYS) from error
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise _refused(config, settings, name, "it is not an exception type", FAULT_KEYS)
    if issubclass(found, (Reject, Retry)):
        problem = "it is an answer of a handler, and means what it says"
        raise _refused(config, settings, name, problem, "any exception type but Reject, Retry and their subclasses")
    if is_of_lost_session(found):
        raise _refused(config, settings, name, OF_LOST_SESSION, "no choice for this one")
    return found


def _refused(config: FleetConfig, settings: ConsumerSettings, name: str, problem: str, allowed: str) -> ConfigError:
    key = f'consumers.{settings.name}.faults."{name}"'
    return refused(config, key, f'"{settings.faults[name]}"', problem, allowed)
