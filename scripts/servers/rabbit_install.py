"""Finds the programs of RabbitMQ on this machine, or installs Debian's package without starting its system service.

A private node runs the package's own scripts and not the ones on PATH, which insist on root or the user `rabbitmq`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from servers.processes import ServerError

_POLICY = Path("/usr/sbin/policy-rc.d")


def find_programs() -> Path | None:
    """Return the folder with `rabbitmq-server`, `rabbitmqctl` and `rabbitmq-env`, or None. INBOX_RABBITMQ_SBIN wins."""
    if (wanted := os.environ.get("INBOX_RABBITMQ_SBIN")) is not None:
        if not (Path(wanted) / "rabbitmq-env").is_file():
            raise ServerError(
                f"INBOX_RABBITMQ_SBIN={wanted}: expected a folder that holds rabbitmq-server and rabbitmq-env"
            )
        return Path(wanted)
    folders = [
        *sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"), reverse=True),
        *sorted(Path("/opt").glob("rabbitmq*/sbin"), reverse=True),
    ]
    if (on_path := shutil.which("rabbitmq-server")) is not None:
        folders.append(Path(on_path).resolve().parent)
    complete = (folder for folder in folders if (folder / "rabbitmq-env").is_file())
    return next(complete, None) if shutil.which("erl") is not None else None


def require_programs() -> Path:
    """Return the folder with RabbitMQ's programs, installed first where root may.

    Raises ServerError with what to install.
    """
    if (found := find_programs()) is not None:
        return found
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        install_debian_package()
        if (found := find_programs()) is not None:
            return found
    raise ServerError(
        "RabbitMQ is not installed. Install it (Debian and Ubuntu: apt-get install rabbitmq-server), or set "
        "INBOX_RABBITMQ_SBIN to the sbin folder of an unpacked release, or set AMQP_URL to a broker that runs."
    )


def docker_answers() -> bool:
    """Return whether a Docker daemon can run a broker instead."""
    if shutil.which("docker") is None:
        return False
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def install_debian_package() -> None:
    """Install the package `rabbitmq-server`; raises ServerError with apt's last lines.

    policy-rc.d is Debian's way to say that a package must not start its service; it stands only while the package is
    unpacked.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    own_policy = not _POLICY.exists()
    if own_policy:
        _POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
        _POLICY.chmod(0o755)
    try:
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", "rabbitmq-server"]):
            finished = subprocess.run(
                ["apt-get", "-q", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=600,
                check=False,
            )
            if finished.returncode != 0:
                raise ServerError(f"apt-get {' '.join(arguments)} failed:\n{finished.stdout[-1500:]}")
    finally:
        if own_policy:
            _POLICY.unlink(missing_ok=True)
