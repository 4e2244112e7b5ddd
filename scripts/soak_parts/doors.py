"""What a process says of itself at its HTTP door: whether it is ready, and what of its pools is not given back."""

from __future__ import annotations

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from soak_parts.slots import Slot

_ANSWER_S = 5.0
_CONNECTIONS = "db_client_connection_count"
_BUSY = "inbox_lanes_busy"


def is_ready(slot: Slot) -> bool:
    """Return whether the process consumes. Blocks."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{slot.port}/readyz", timeout=_ANSWER_S) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


def not_given_back(slot: Slot) -> list[str]:
    """Return which of its connections and lanes are in use, as sentences. Blocks, and raises OSError."""
    with urllib.request.urlopen(f"http://127.0.0.1:{slot.port}/metrics", timeout=_ANSWER_S) as answer:
        text = answer.read().decode()
    found = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.value:
                continue
            if sample.name == _CONNECTIONS and sample.labels["db_client_connection_state"] == "used":
                pool = sample.labels["db_client_connection_pool_name"]
                found.append(f"process {slot.number + 1} has {sample.value:g} connections of pool {pool} in use")
            if sample.name == _BUSY:
                found.append(f"process {slot.number + 1} has {sample.value:g} lanes busy")
    return found
