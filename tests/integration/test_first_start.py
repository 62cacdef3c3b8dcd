"""First start in an empty folder: a store, an admin key, a sign-in link, and with the mock provider a demo key."""

from __future__ import annotations

import json
import re
import socket
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.fork_server import run_penstock
from tests.gateway import find_binary
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, MOCK_HEADERS, Response, chat_body, send_raw_request
from tests.integration.test_sessions import PASSWORD
from tests.processes import Program, free_port, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SESSIONS = "/v1/auth/sessions"
START_SECONDS = 60


@dataclass
class FirstStart:
    """A gateway that was started in an empty folder."""

    folder: Path
    program: Program
    url: str

    @property
    def output(self) -> str:
        return self.program.read_output()

    def find_output(self, pattern: str) -> str:
        """Returns the only printed text that matches the group of a pattern."""
        (actual,) = re.findall(pattern, self.output, re.MULTILINE)
        return actual

    @property
    def admin_key(self) -> str:
        return self.find_output(r"^admin key .*: (\S+)$")

    @property
    def demo_key(self) -> str:
        return self.find_output(r"^export PENSTOCK_API_KEY=(\S+)$")

    @property
    def sign_in_token(self) -> str:
        return self.find_output(r"^sign in once.*/console/#sign-in=(\S+)$")

    def send_chat(self, key: str = "") -> Response:
        keys = {"x-gateway-api-key": key} if key else {}
        return send_raw_request(self.url, CHAT_PATH, chat_body(), {**MOCK_HEADERS, **keys})

    def get(self, path: str, key: str) -> Response:
        return send_raw_request(self.url, path, b"", {"x-gateway-api-key": key}, method="GET")

    def sign_in(self, token: str) -> Response:
        return send_raw_request(self.url, SESSIONS, b'{"sign_in_token": "%s"}' % token.encode(), JSON_HEADERS)


def start_in(folder: Path, *options: str) -> FirstStart:
    port = free_port()
    command = [sys.executable, "-m", "penstock", "serve", "--port", str(port), *options]
    program = Program(command, folder.with_name(f"{folder.name}-{port}.log"), env={}, cwd=folder)

    def is_listening() -> bool | None:
        program.check_alive()
        return "listens on" in program.read_output() or None

    try:
        wait_for("the gateway", is_listening, START_SECONDS)
    except BaseException:
        program.kill()
        raise
    return FirstStart(folder, program, f"http://127.0.0.1:{port}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("first-start")


@pytest.fixture(scope="module")
def first_start(folder: Path) -> Iterator[FirstStart]:
    started = start_in(folder, "--mock", str(find_binary("penstock-mock")))
    wait_for("the example commands", lambda: "curl" in started.output or None)
    yield started
    started.program.stop()


def test_stores_everything_in_one_private_folder(first_start: FirstStart):
    (data,) = first_start.folder.iterdir()
    assert data.name == "penstock-data"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert {"penstock.db", "penstock.key"} <= {path.name for path in data.iterdir()}
    assert f"data: {data}; back up this folder" in first_start.output
    assert f"console: {first_start.url}/console/" in first_start.output


def test_demo_key_answers_and_its_requests_are_logged(first_start: FirstStart):
    assert first_start.send_chat().status == 401
    response = first_start.send_chat(first_start.demo_key)
    assert response.status == 200
    log_id = response.get_header("x-gateway-request-id")
    log = wait_for(
        "the log",
        lambda: (
            actual if (actual := first_start.get(f"/v1/logs/{log_id}", first_start.admin_key)).status == 200 else None
        ),
    )
    workspaces = first_start.get("/v1/workspaces", first_start.admin_key).json()["data"]
    (demo,) = [workspace for workspace in workspaces if workspace["name"] == "Demo"]
    assert log.json()["metrics"]["workspace_slug"] == demo["slug"]
    assert (first_start.folder / "penstock-data/logs/store").is_dir()


def test_demo_key_cannot_manage_anything(first_start: FirstStart):
    assert first_start.get("/v1/providers", first_start.demo_key).status == 403


def test_sign_in_link_works_once_as_the_owner(first_start: FirstStart):
    response = first_start.sign_in(first_start.sign_in_token)
    assert response.status == 200
    cookie = (response.get_header("set-cookie") or "").split(";")[0]
    about = send_raw_request(first_start.url, "/v1/auth/self", b"", {"cookie": cookie}, method="GET").json()
    assert about["user"]["role"] == "owner"
    again = first_start.sign_in(first_start.sign_in_token)
    assert again.status == 401
    assert "was used or has expired" in again.body.decode()


@pytest.mark.parametrize("more", ['"email": "owner@localhost"', '"api_key": "k"', '"password": "p"'])
def test_link_cannot_be_combined_with_other_credentials(first_start: FirstStart, more: str):
    body = f'{{"sign_in_token": "{"t" * 43}", {more}}}'
    response = send_raw_request(first_start.url, SESSIONS, body.encode(), JSON_HEADERS)
    assert response.status == 400
    assert "sign_in_token" in response.body.decode()


def test_command_makes_a_new_link_for_a_user(first_start: FirstStart):
    done = run_penstock("users", "sign-in-link", "--email", "OWNER@localhost", env={}, cwd=first_start.folder)
    assert done.returncode == 0, done.stderr
    link = done.stdout.strip()
    assert link.startswith("http://127.0.0.1:8787/console/#sign-in=")
    newer = run_penstock(
        "users", "sign-in-link", "--url", first_start.url, env={}, cwd=first_start.folder
    ).stdout.strip()
    assert first_start.sign_in(link.partition("=")[2]).status == 401
    assert first_start.sign_in(newer.partition("=")[2]).status == 200
    log = first_start.get("/v1/audit-logs?page_size=100", first_start.admin_key).body.decode()
    assert "sign_in_links" in log
    assert newer.partition("=")[2] not in log


def test_password_change_ends_an_unused_link(first_start: FirstStart):
    email = {"email": "linked@example.test", "role": "member", "workspaces": []}
    invited = send_raw_request(
        first_start.url,
        "/v1/admin/users/invites",
        json.dumps(email).encode(),
        {**JSON_HEADERS, "x-gateway-api-key": first_start.admin_key},
    ).json()
    body = {
        "token": invited["invite_link"].rpartition("=")[2],
        "first_name": "A",
        "last_name": "B",
        "password": PASSWORD,
    }
    assert send_raw_request(first_start.url, "/v1/auth/invites", json.dumps(body).encode(), JSON_HEADERS).status == 200
    command = ("users", "sign-in-link", "--email", "linked@example.test", "--url", first_start.url)
    link = run_penstock(*command, env={}, cwd=first_start.folder).stdout.strip()
    credentials = {"email": "linked@example.test", "password": PASSWORD}
    answer = send_raw_request(first_start.url, SESSIONS, json.dumps(credentials).encode(), JSON_HEADERS)
    cookie = (answer.get_header("set-cookie") or "").split(";")[0]
    headers = {**JSON_HEADERS, "cookie": cookie, "x-csrf-token": answer.json()["csrf_token"]}
    change = {"current_password": PASSWORD, "new_password": PASSWORD + "!"}
    done = send_raw_request(first_start.url, "/v1/auth/password", json.dumps(change).encode(), headers, method="PUT")
    assert done.status == 200
    assert first_start.sign_in(link.partition("=")[2]).status == 401


def test_command_rejects_an_unknown_user(first_start: FirstStart):
    done = run_penstock("users", "sign-in-link", "--email", "nobody@example.com", env={}, cwd=first_start.folder)
    assert done.returncode == 1
    assert "'nobody@example.com'" in done.stderr


@pytest.mark.parametrize("url", ["javascript:alert(1)", "ai.example.com", "ftp://a"])
def test_command_rejects_an_address_that_is_no_url(first_start: FirstStart, url: str):
    done = run_penstock("users", "sign-in-link", "--url", url, env={}, cwd=first_start.folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"--url {url!r} is not allowed" in done.stderr


def test_second_start_keeps_the_store_and_issues_another_demo_key(tmp_path: Path):
    mock = ("--mock", str(find_binary("penstock-mock")))
    first_start = start_in(tmp_path, *mock)
    wait_for("the example commands", lambda: "curl" in first_start.output or None)
    admin_key, old = first_start.admin_key, first_start.demo_key
    assert first_start.program.stop() == 0
    second = start_in(tmp_path, *mock)
    try:
        wait_for("the example commands", lambda: "curl" in second.output or None)
        assert "admin key" not in second.output
        assert "sign in once" not in second.output
        assert [second.send_chat(key).status for key in (old, second.demo_key)] == [401, 200]
        workspaces = second.get("/v1/workspaces", admin_key).json()["data"]
        assert sorted(workspace["name"] for workspace in workspaces) == ["Demo", "Shared"]
    finally:
        assert second.program.stop() == 0


def test_start_without_the_mock_provider_makes_no_demo(tmp_path: Path):
    started = start_in(tmp_path)
    try:
        workspaces = started.get("/v1/workspaces", started.admin_key).json()["data"]
        assert [workspace["name"] for workspace in workspaces] == ["Shared"]
        assert "PENSTOCK_API_KEY" not in started.output
    finally:
        assert started.program.stop() == 0


def test_used_port_leaves_no_store_and_prints_no_key(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        done = run_penstock("serve", "--port", str(port), env={}, cwd=tmp_path)
    assert done.returncode == 1
    assert "in use" in done.stderr
    assert "admin key" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_settings_file_alone_creates_no_store(tmp_path: Path):
    (tmp_path / "penstock.toml").write_text("")
    started = start_in(tmp_path)
    try:
        assert started.send_chat().status == 400
        assert "console" not in started.output
        assert not list(tmp_path.glob("*.db"))
    finally:
        assert started.program.stop() == 0


def test_settings_file_can_name_the_data_folder(tmp_path: Path):
    (tmp_path / "penstock.toml").write_text('[store]\ndata_dir = "data"\n')
    started = start_in(tmp_path)
    try:
        assert started.get("/v1/workspaces", started.admin_key).status == 200
        assert (tmp_path / "data/penstock.db").exists()
        assert not (tmp_path / "logs").exists()
    finally:
        assert started.program.stop() == 0


def test_folder_that_cannot_be_created_is_named(tmp_path: Path):
    (tmp_path / "penstock-data").write_text("a file")
    done = run_penstock("serve", "--port", str(free_port()), env={}, cwd=tmp_path, timeout=30)
    assert done.returncode == 1
    assert f"cannot create the folder '{tmp_path}/penstock-data'" in done.stderr
    assert "--no-store" in done.stderr
