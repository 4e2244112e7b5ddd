"""What a consumer needs on the broker: its work queue, its bindings, its parking queues, its dead-letter queue.

description    says it, without a broker; what it says depends on the broker's version in one point
rules          refuses what would lose messages
declaring      verifies and applies it
"""

from consumers.config.checks import dead_letter_queue, parking_queue
from consumers.topology.declaring import Finding, Status, apply, require, verify, verify_topologies
from consumers.topology.description import Binding, Exchange, Queue, Topology, describe, topologies, topology_of

__all__ = [
    "Binding",
    "Exchange",
    "Finding",
    "Queue",
    "Status",
    "Topology",
    "apply",
    "dead_letter_queue",
    "describe",
    "parking_queue",
    "require",
    "topologies",
    "topology_of",
    "verify",
    "verify_topologies",
]
