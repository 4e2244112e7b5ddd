"""Processes of the product that begin where its imports have ended.

Two thirds of what a start costs are imports, and the tests start many hundreds of processes. So each process of tests
keeps one, the standard library's fork server, that has imported the product and run nothing of it. From there a process
is forked that runs a module as `python -m` does: with arguments, a folder, variables and streams of its own. It can be
killed, frozen and asked for its exit code as any other.

What depends on the start of the interpreter itself is not the same: variables that it reads then, as PYTHONUTF8.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_context = get_context("forkserver")
_context.set_forkserver_preload(["tests.support.imports"])


def fork(
    module: str,
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    stdin: int,
    stdout: int,
    stderr: int,
) -> ForkServerProcess:
    """Run a module as a program, in a process of its own, and return without waiting for it.

    Args:
        module: As after `python -m`.
        arguments: As on a command line.
        folder: The current folder of the process.
        environment: All of its variables.
        stdin: A descriptor; the caller's own ones stay open and are the caller's to close.
        stdout: The same.
        stderr: The same.
    """
    streams = tuple(Connection(os.dup(stream)) for stream in (stdin, stdout, stderr))
    try:
        process = _context.Process(
            target=_run,
            args=(module, tuple(arguments), str(folder), dict(environment), streams),
            daemon=True,
        )
        process.start()
    finally:
        for stream in streams:
            stream.close()
    return process


def _run(
    module: str,
    arguments: tuple[str, ...],
    folder: str,
    environment: dict[str, str],
    streams: tuple[Connection, Connection, Connection],
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    by_line = 1 if "PYTHONUNBUFFERED" in environment else -1
    sys.stdout = os.fdopen(1, "w", buffering=by_line, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    path = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = [folder, *path, *(part for part in sys.path if part and part not in path)]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
