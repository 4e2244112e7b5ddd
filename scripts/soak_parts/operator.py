"""The operator: replays and discards by the fleet's own commands, in the middle of everything that breaks.

A command that fails is run again until it has done what it is for. Each replay is killed on its way, and gone on with.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from deadlines import RunFailed
from soak_parts.facts import Said
from soak_parts.mail import CONSUMER, Mail
from soak_parts.place import Place
from soak_parts.slots import CHECKOUT, fleet_command, fleet_environment

_WHAT_HAS_ENDED = ("--consumer", CONSUMER, "--state", "exhausted", "--state", "rejected")
_EVERYTHING = ("--limit", "100000", "--output", "json")
_RATE = "8/s"
_KILLED_AFTER = (1, 8)
_NOTHING_IS_MEANT = 6
_PAUSE_S = 0.5
_COMMAND_S = 60.0
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """The lines of JSON that a command wrote, and its exit code; minus the signal's number if a signal ended it."""

    lines: list[dict[str, Any]]
    code: int


class Operator:
    """Whoever runs the commands.

    Args:
        place: Whose fleet it is; the commands reach its servers past the relays.
        published: All messages by their ids, as they are published.
        seed: Of the run.
        say: Called with a line for each thing that is done.
    """

    def __init__(self, place: Place, *, published: Mapping[str, Mail], seed: int, say: Callable[[str], None]) -> None:
        self.said = Said()
        self._place, self._published, self._say = place, published, say
        self._random = Random(f"{seed} operator")

    async def work(self, seconds: float) -> None:
        """Replay, discard, and replay again, spread over so many seconds. Raises RunFailed if one cannot be done."""
        began = time.monotonic()
        for share, name, act in (
            (0.30, "a first replay", self._replay),
            (0.50, "a discard", self._discard),
            (0.70, "a last replay", self._replay),
        ):
            await asyncio.sleep(max(0.0, began + share * seconds - time.monotonic()))
            self._say(f"an operator begins {name}")
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await act(name)
            except TimeoutError:
                raise RunFailed(f"waited {_PATIENCE_S:g} s in vain for {name} to be done") from None

    async def _replay(self, name: str) -> None:
        """Make a job of all that has ended, and run it until it has finished."""
        kill_after = self._random.randint(*_KILLED_AFTER)
        begin = ("messages", "replay", *_WHAT_HAS_ENDED, "--rate", _RATE, "--reason", name, "--yes")
        answer = await self._run(*begin, kill_after=kill_after)
        while not _has_finished(answer) and answer.code != _NOTHING_IS_MEANT:
            await asyncio.sleep(_PAUSE_S)
            # Whether there is a job is to be found out: the answer that named it may have been lost.
            jobs = await self._run("replays", "list", *_EVERYTHING)
            if jobs.code == 0:
                [job] = [job["id"] for job in jobs.lines if job["reason"] == name] or [None]
                answer = await self._run(*(begin if job is None else ("replays", "resume", job)))
        self._say(f"{name} is done")

    async def _discard(self, name: str) -> None:
        """Discard those of the messages that have ended which are to be given up."""
        while True:
            listed = await self._run("messages", "list", *_WHAT_HAS_ENDED, *_EVERYTHING)
            ids = [row["message_id"] for row in listed.lines]
            chosen = [of for of in ids if of in self._published and self._published[of].given_up]
            if listed.code == 0:
                if not chosen:
                    break
                given = ("--consumer", CONSUMER, "--reason", name, "--yes", *chosen)
                if (await self._run("messages", "discard", *given)).code == 0:
                    break
            await asyncio.sleep(_PAUSE_S)
        self._say(f"{name} is done")

    async def _run(self, *command: str, kill_after: int = 0) -> _Answer:
        """Run a command and return what it said.

        Args:
            kill_after: Kill it once it has said of so many messages that they are replayed; 0: let it be.
        """
        place = self._place
        process = await asyncio.create_subprocess_exec(
            *fleet_command(*command, "--config", str(place.directory / "fleet-0.toml")),
            env=fleet_environment(place.directory, database_url=place.postgres.url(), amqp_url=place.broker.url()),
            cwd=CHECKOUT, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None, "it is a pipe"
        lines: list[dict[str, Any]] = []
        replayed = 0
        try:
            async with asyncio.timeout(_COMMAND_S):
                async for line in process.stdout:
                    lines.append(json.loads(line))
                    replayed += self._listen(lines[-1])
                    if replayed == kill_after > 0:
                        self._say(f"SIGKILL to the replay, {replayed} messages after its begin")
                        self.said.kills += 1
                        break
        except TimeoutError:
            pass  # it hangs on a server that is gone
        finally:
            if process.returncode is None:
                process.kill()
            code = await process.wait()
        return _Answer(lines, code)

    def _listen(self, line: Mapping[str, Any]) -> bool:
        """Remember what a command says that it has done; return whether it has replayed a message."""
        match line:
            case {"event": "item", "outcome": "replayed", "message_id": str(of), "generation": int(generation)}:
                self.said.replayed.add((of, generation))
                return True
            case {"event": "message", "answer": "discarded", "message_id": str(of)}:
                self.said.discarded.add(of)
        return False


def _has_finished(answer: _Answer) -> bool:
    return any(line["event"] == "ended" and line["state"] == "finished" for line in answer.lines)
