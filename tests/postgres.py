"""PostgreSQL server for the tests, on a private Unix socket, with a separate database for each caller."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.processes import Program, wait_for

NOBODY_USER = pwd.getpwnam("nobody")
DATABASE_NUMBERS = itertools.count(1)


def find_program(name: str) -> str:
    """Returns the path of a PostgreSQL program; Debian installs some of them outside of `PATH`."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    actual = shutil.which(name) or (str(installed[0]) if installed else None)
    if actual is None:
        raise FileNotFoundError(f"{name} is missing; hint: make test")
    return actual


def dump_database(url: str) -> bytes:
    """Returns the output of `pg_dump` for a database."""
    return subprocess.run([find_program("pg_dump"), url], check=True, capture_output=True, timeout=30).stdout


class Postgres:
    """One server without durability: it never waits for the disk, and its data is deleted at the end."""

    def __init__(self, parent: Path | None = None) -> None:
        # Outside of the test's folder, because the path of a Unix socket is limited to 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-pg-", dir=parent))
        data = self.folder / "data"
        # initdb and the server refuse to run as root.
        as_nobody = []
        if os.geteuid() == 0:
            as_nobody = ["setpriv", f"--reuid={NOBODY_USER.pw_uid}", f"--regid={NOBODY_USER.pw_gid}", "--clear-groups"]
            os.chown(self.folder, NOBODY_USER.pw_uid, NOBODY_USER.pw_gid)
        init = [
            find_program("initdb"),
            "-D",
            data,
            "-U",
            "penstock",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
        ]
        subprocess.run([*as_nobody, *init], check=True, capture_output=True, timeout=60, cwd=self.folder)
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            # Hundreds of databases, none of which outlives its test, so durability and maintenance are off.
            "fsync": "off",
            "full_page_writes": "off",
            "wal_init_zero": "off",
            "max_wal_size": "8GB",
            "autovacuum": "off",
        }
        body = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self._server = [*as_nobody, find_program("postgres"), "-D", data, *body]
        self.start()

    def start(self) -> None:
        """Starts the server, for the first time or after a crash."""
        self.program = Program(self._server, self.folder / "postgres.log", env={}, cwd=self.folder)
        wait_for("PostgreSQL", self._is_ready, 20)

    def crash(self) -> None:
        """Kills all processes of the server at once."""
        self._signal_all(signal.SIGKILL)
        self.program.kill()
        # The PID file that is left would make the next start believe that the folder is in use.
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def create_database(self, template: str = "template1") -> str:
        """Creates an empty database, or a copy of an unused one, and returns its URL."""
        name = f"penstock{next(DATABASE_NUMBERS)}"
        subprocess.run(
            [find_program("createdb"), "-h", self.folder, "-U", "penstock", "-T", template, name],
            check=True,
            capture_output=True,
            timeout=20,
        )
        return f"postgresql://penstock@/{name}?host={self.folder}"

    def set_option(self, name: str, value: str) -> None:
        """Changes an option of the running server."""
        psql = [find_program("psql"), "-h", self.folder, "-U", "penstock", "-d", "postgres"]
        for statement in (f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()"):
            env = {**os.environ, "PGOPTIONS": "-c default_transaction_read_only=off"}
            command = [*psql, "-c", statement]
            subprocess.run(command, check=True, capture_output=True, timeout=20, env=env)

    def lower_priority(self) -> None:
        """Gives the server only idle CPU time, so that it acts like a server on another machine."""
        for pid in self._pids():
            # Some processes of the server are short-lived.
            with suppress(ProcessLookupError):
                os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))

    def suspend(self) -> None:
        """Suspends all processes of the server with SIGSTOP."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Resumes all processes of the server with SIGCONT."""
        self._signal_all(signal.SIGCONT)

    def stop(self) -> None:
        if self.program.process.poll() is None:
            self.resume()
        self.program.kill()
        shutil.rmtree(self.folder)

    def _pids(self) -> list[int]:
        # Each process of the server leads a session of its own, so a signal to one session does not reach the others.
        children = Path(f"/proc/{self.program.pid}/task/{self.program.pid}/children").read_text()
        return [self.program.pid, *map(int, children.split())]

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _is_ready(self) -> bool | None:
        self.program.check_alive()
        requested = [find_program("pg_isready"), "-h", self.folder, "-U", "penstock"]
        return subprocess.run(requested, check=False, capture_output=True, timeout=10).returncode == 0 or None
