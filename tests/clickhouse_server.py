"""ClickHouse for tests: the real engine, as a library, behind a small server that speaks its HTTP interface."""

from __future__ import annotations

import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tests.processes import Program, free_port, wait_for

ROOT = Path(__file__).parents[1]
# Settings that are not applied to the session: those of the HTTP interface, and those that a session cannot revert.
IGNORED_SETTINGS = {"database", "wait_end_of_query", "readonly", "async_insert"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    session = None
    # The settings and the database belong to the session, so one request runs at a time.
    lock = threading.Lock()

    def do_POST(self):
        options = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        parameters = {key[6:]: value for key, value in options.items() if key.startswith("param_")}
        settings = {key: value for key, value in options.items() if not key.startswith("param_")}
        status, headers = 200, {}
        try:
            with self.lock:
                for key in settings.keys() - IGNORED_SETTINGS:
                    self.session.query(f"SET {key} = '{settings[key]}'")
                self.session.query(f"USE `{options['database']}`")
                result = self.session.query(body, params=parameters or None).bytes()
        except Exception as error:  # noqa: BLE001 - every error goes to the client
            status, result = 500, str(error).encode()
            headers["X-ClickHouse-Exception-Code"] = re.match(r"Code: (\d+)|", str(error))[1] or "0"
        self.send_response(status)
        for key, value in {**headers, "content-length": str(len(result))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(result)

    def log_message(self, *_: object):
        pass


class ClickHouseServer:
    """One server on loopback. Each test uses a database of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "tests.clickhouse_server", str(self.port), str(folder / "data")]
        self.program = Program(command, folder / "clickhouse.log", env=os.environ, cwd=ROOT)
        # Loading the engine of half a gigabyte from a slow disk takes long.
        wait_for("ClickHouse", self._is_ready, 120)

    def _is_ready(self) -> bool | None:
        self.program.check_alive()
        return "ready" in self.program.read_output() or None

    def stop(self) -> None:
        self.program.kill()


def main() -> None:
    # Imported here, because only this program needs the engine, which takes long to load.
    from chdb.session import Session  # noqa: PLC0415

    Handler.session = Session(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
