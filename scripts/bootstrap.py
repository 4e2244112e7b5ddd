"""Makes the checkout's virtual environment from the hashed lock, unless it stands, and prints its interpreter's path.

An environment is named by a hash of all that it is made from and never changes afterwards: another lock makes another
one, and scripts that run on the old one go on. It is marked complete last, so one that was interrupted or has lost its
interpreter is made again. pip is used as the machine has configured it. `.venv` leads to the current environment,
unless a folder of the developer's own has that name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
LOCK = CHECKOUT / "requirements" / "dev.txt"
ENVIRONMENTS = CHECKOUT / ".venvs"


def main() -> int:
    """Print the path of a complete environment's interpreter; return the exit code."""
    environment = ENVIRONMENTS / name()
    try:
        if not is_complete(environment):
            ENVIRONMENTS.mkdir(exist_ok=True)
            with (ENVIRONMENTS / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not is_complete(environment):
                    make(environment)
        point_to(environment)
    except subprocess.CalledProcessError as error:
        print(f"the virtual environment could not be made: {error}", file=sys.stderr)
        if error.cmd[1:3] == ["-m", "venv"]:
            print("this Python lacks venv or ensurepip (Debian, Ubuntu: apt-get install python3-venv)", file=sys.stderr)
        return 1
    print(environment / "bin" / "python")
    return 0


def name() -> str:
    """Return the environment's name: what it is made from, which is also where, because it cannot be moved."""
    project = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8").partition("\n[tool.")[0]
    parts = (str(CHECKOUT), sys.version, os.path.realpath(sys.executable), LOCK.read_text(encoding="utf-8"), project)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def is_complete(environment: Path) -> bool:
    """Return whether it was made to the end and its interpreter still runs."""
    if not (environment / "complete").exists():
        return False
    try:
        return subprocess.run([environment / "bin" / "python", "-c", ""], check=False).returncode == 0
    except OSError:
        return False


def make(environment: Path) -> None:
    """Make it, saying so on stderr; raises CalledProcessError."""
    print("making the virtual environment; this takes a minute the first time", file=sys.stderr)
    shutil.rmtree(environment, ignore_errors=True)
    run(sys.executable, "-m", "venv", str(environment))
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-qq", "--no-input", "--no-deps"]
    run(*pip, "--require-hashes", "--requirement", str(LOCK))
    run(*pip, "--no-build-isolation", "--editable", str(CHECKOUT))
    (environment / "complete").touch()


def run(*command: str) -> None:
    """Run a step with its output on stderr: stdout holds nothing but the path."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def point_to(environment: Path) -> None:
    """Make `.venv` lead to the current environment, in one step."""
    link = CHECKOUT / ".venv"
    target = environment.relative_to(CHECKOUT)
    if link.exists() and not link.is_symlink():
        return
    if not link.is_symlink() or link.readlink() != target:
        fresh = ENVIRONMENTS / f"link-{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(link)


if __name__ == "__main__":
    sys.exit(main())
