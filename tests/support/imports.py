"""What every process of the product imports sooner or later; imported once by what such processes are forked from."""

from __future__ import annotations

import gc
import pkgutil
from importlib import import_module

import consumers
import inbox
import pools
import tests.support.forked  # noqa: F401

for _package in (pools, inbox, consumers):
    for _module in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
        if not _module.name.endswith(".__main__"):
            import_module(_module.name)

# Nothing of it is garbage, and a collection in a forked process would copy all of it.
gc.freeze()
