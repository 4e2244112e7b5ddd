"""Processes of private servers: who runs them, how they are started, recognised and ended.

A process is remembered as pid *and* start time, because a pid alone may by now belong to a stranger. Servers refuse
to run as root, so root starts them as `nobody`, without code between fork and exec, so that a threaded caller is
safe.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.01


class ServerError(Exception):
    """A private server could not be found, started or ended; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user that owns a server's files and runs its processes."""

    uid: int
    gid: int

    @staticmethod
    def unprivileged() -> Account:
        """Return the current user, or `nobody` for root."""
        if os.geteuid() != 0:
            return Account(uid=os.geteuid(), gid=os.getegid())
        try:
            entry = pwd.getpwnam("nobody")
        except KeyError:
            raise ServerError(
                "servers refuse to run as root and there is no user `nobody`: run this as another user"
            ) from None
        return Account(uid=entry.pw_uid, gid=entry.pw_gid)

    @property
    def is_current(self) -> bool:
        """Whether no change of user is needed."""
        return self.uid == os.geteuid()

    def make_directory(self, path: Path) -> Path:
        """Create a directory that only this user can read, and return it."""
        path.mkdir(mode=0o700, exist_ok=True)
        self.own(path)
        return path

    def write(self, path: Path, text: str) -> Path:
        """Write a file that only this user can read, and return its path."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        self.own(path)
        return path

    def own(self, path: Path) -> None:
        """Make this user the owner of one path."""
        if not self.is_current:
            os.chown(path, self.uid, self.gid)

    def can_reach(self, path: Path) -> bool:
        """Return whether this user may enter every directory from the root down to `path`."""
        if self.is_current:
            return os.access(path, os.X_OK)
        for directory in [path, *path.parents]:
            status = directory.stat()
            if status.st_uid == self.uid:
                needed = stat.S_IXUSR
            elif status.st_gid == self.gid:
                needed = stat.S_IXGRP
            else:
                needed = stat.S_IXOTH
            if not status.st_mode & needed:
                return False
        return True

    def run(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str],
        directory: Path,
        deadline_s: float,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of this user to its end and return its output, both streams in `stdout`."""
        return subprocess.run(
            [str(part) for part in command],
            env=dict(environment),
            cwd=directory,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=deadline_s,
            check=False,
            user=self._user,
            group=self._group,
            extra_groups=self._groups,
        )

    def start(
        self, command: Sequence[str | Path], *, environment: Mapping[str, str], directory: Path, log: Path
    ) -> Servant:
        """Start a long-running process of this user in a session of its own, output appended to `log`."""
        with log.open("ab") as output:
            self.own(log)
            return Servant(
                [str(part) for part in command],
                env=dict(environment),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=self._user,
                group=self._group,
                extra_groups=self._groups,
            )

    @property
    def _user(self) -> int | None:
        return None if self.is_current else self.uid

    @property
    def _group(self) -> int | None:
        return None if self.is_current else self.gid

    @property
    def _groups(self) -> list[int] | None:
        return None if self.is_current else []


class Servant(subprocess.Popen[bytes]):
    """A child that is meant to outlive the object, and often the process, that started it."""

    def __del__(self) -> None:
        """Say nothing: the base class warns of a child that still runs."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    started: int

    @staticmethod
    def of(pid: int) -> Process:
        """Return the process that has this pid now; raises ProcessLookupError if there is none."""
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(pid)
        return Process(pid=pid, started=fields.started)

    def alive(self) -> bool:
        """Return whether it still runs; a zombie does not."""
        fields = _stat(self.pid)
        return fields is not None and fields.started == self.started and fields.state not in "ZX"

    def stopped(self) -> bool:
        """Return whether it is stopped by a signal."""
        fields = _stat(self.pid)
        return fields is not None and fields.started == self.started and fields.state == "T"

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def children(self) -> list[Process]:
        """Return the direct children that run now."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None and fields.parent == self.pid:
                found.append(Process(pid=int(entry.name), started=fields.started))
        return found


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    started: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the command name before it may hold spaces and brackets
    return _Stat(state=fields[0], parent=int(fields[1]), started=int(fields[19]))


def wait_until(fact: Callable[[], bool], *, deadline_s: float) -> bool:
    """Poll a fact and return whether it became true within `deadline_s` seconds."""
    end = time.monotonic() + deadline_s
    while not fact():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def free_ports(count: int) -> list[int]:
    """Return loopback TCP ports that nobody listens on.

    They lie below the range from which the kernel gives outgoing connections their ports: a server that is stopped
    for a while in a test must find its port free when it comes back.
    """
    ports: list[int] = []
    for port in _candidates():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise ServerError("no free TCP port between 12000 and 32000 on 127.0.0.1")


def _candidates() -> Iterable[int]:
    return random.SystemRandom().sample(range(12_000, 32_000), 2_000)


def tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a log for an error message."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"
