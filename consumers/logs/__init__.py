"""Logs: one line per fact, as JSON or for a terminal, from structlog and from the standard library alike.

`configure` is called once by the process. Everybody else calls `structlog.get_logger()` and logs events named
`noun.verb` with facts as keywords; what `bind_attempt` binds is on every line of an attempt, also on the lines of the
handler and of the threads it starts. A log call never raises and never loses its event: values that cannot be written
are described instead. Passwords and message bodies are not written.
"""

from consumers.logs.attempts import AttemptBinding, attempt_settled, bind_attempt
from consumers.logs.exhaustions import bind_try, exhaustion_tried
from consumers.logs.output import Output
from consumers.logs.setup import Format, configure

__all__ = [
    "AttemptBinding",
    "Format",
    "Output",
    "attempt_settled",
    "bind_attempt",
    "bind_try",
    "configure",
    "exhaustion_tried",
]
