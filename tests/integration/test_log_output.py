"""Log lines of a real process into a real pipe: whole, in order, and without harm when nobody reads any more."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from consumers.logs.output import Output

WRITER = """
import sys, structlog
from consumers.logs import Format, configure
output = configure(format=Format.JSON, stream=getattr(sys, sys.argv[1]))
sys.stdin.readline()
for number in range(200):
    structlog.get_logger().info("line.written", number=number, padding="x" * 500)
import os
os.write(int(sys.argv[2]), b"%d" % output.lost)
"""


def writer(stream: str, told: int, **pipes: int) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", WRITER, stream, str(told)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, pass_fds=[told], cwd=Path(__file__).parents[2], **pipes)


async def test_a_reader_that_goes_away_costs_lines_and_not_the_process() -> None:
    told_read, told_write = os.pipe()
    process = writer("stdout", told_write, stdout=subprocess.PIPE)
    os.close(told_write)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()

    process.stdin.write(b"go\n")
    process.stdin.close()

    assert await asyncio.to_thread(process.wait, 60) == 0
    assert os.read(told_read, 10) == b"200"
    os.close(told_read)


async def test_lines_arrive_whole_and_in_order() -> None:
    told_read, told_write = os.pipe()
    process = writer("stderr", told_write, stderr=subprocess.PIPE)
    os.close(told_write)

    _, written = await asyncio.to_thread(process.communicate, b"go\n", 60)

    assert process.returncode == 0
    assert [json.loads(line)["number"] for line in written.splitlines()] == list(range(200))
    assert os.read(told_read, 10) == b"0"
    os.close(told_read)


def test_a_full_pipe_that_does_not_block_costs_lines_and_tears_none_together() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with os.fdopen(write, "w") as stream:
        output = Output(stream)
        line = json.dumps({"padding": "x" * 1000, "whole": True})
        written = 0
        while output.lost < 2:
            output.write(line)
            written += 1

        drained = os.read(read, 1 << 20)
        output.write(line)
        drained += os.read(read, 1 << 20)
    os.close(read)

    lines = drained.decode().splitlines()
    torn = [one for one in lines if one != line]
    assert len(torn) <= 1
    assert all(line.startswith(one) for one in torn)
    assert lines[-1] == line
    assert lines.count(line) == written - output.lost + 1
