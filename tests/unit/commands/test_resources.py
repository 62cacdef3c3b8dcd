"""Commands for workspaces, users, integrations, providers and the audit log: their requests and what they print."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from click import Group
from click.testing import CliRunner

from penstock.cli import main
from penstock.remote import PAGE_SIZE
from tests.unit.cli_api import PretendedApi, pretended_api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "sk-canary-of-a-credential"
ROWS: dict[str, list[dict[str, Any]]] = {
    "/v1/workspaces": [{"slug": "ws-a", "status": "active", "created_at": "t", "name": "Team A", "id": "1"}],
    "/v1/admin/users": [{"email": "a@b.c", "role": "owner", "first_name": "Ann", "last_name": None, "id": "2"}],
    "/v1/integrations": [{"slug": "openai-1", "ai_provider_id": "openai", "status": "active", "name": "x\x1b[31m"}],
    "/v1/providers": [{"slug": "mine", "ai_provider_name": "openai", "status": "active", "name": "Mine"}],
    "/v1/api-keys": [{"id": "3", "key": "pk-***", "type": "workspace-service", "status": "active", "name": "k"}],
    "/v1/configs": [{"slug": "pc-a", "status": "active", "last_updated_at": "t", "name": "main"}],
}


@pytest.fixture
def api() -> Iterator[PretendedApi]:
    def respond(method: str, path: str, body: Any) -> Any:
        if path == "/v1/audit-logs":
            return {"records": [{"timestamp": str(at), "action": "create"} for at in range(PAGE_SIZE)], "total": 1000}
        if method == "GET":
            return {"data": ROWS[path], "total": 1}
        created = {"slug": "made-1", "invite_link": "https://gateway.example/invite?token=t", "body": body}
        warning = {"path": "key", "message": "is empty"}
        return {**created, "warnings": [warning]} if path == "/v1/integrations" and "key" not in body else created

    with pretended_api(respond) as running:
        yield running


@pytest.mark.parametrize("group", ["workspaces", "users", "integrations", "providers", "keys", "config"])
def test_lists_are_tables_with_headers_or_json(api: PretendedApi, group: str):
    table = api.run(group, "list")
    assert table.exit_code == 0, table.output
    heads, row = table.stdout.splitlines()
    (expected,) = ROWS[api.paths[-1].partition("?")[0]]
    assert all(str(value).split()[0] in row for value in expected.values() if value and "\x1b" not in value)
    assert heads.split()
    assert "\x1b" not in table.stdout
    assert json.loads(api.run(group, "list", "--json").stdout) == [expected]


@pytest.mark.parametrize("group", ["integrations", "providers", "keys", "config"])
def test_workspace_is_sent_encoded(api: PretendedApi, group: str):
    assert api.run(group, "list", "--workspace", "ws a&b=c").exit_code == 0
    assert api.query["workspace_id"] == ["ws a&b=c"]


@pytest.mark.parametrize(
    ("words", "path", "body", "printed"),
    [
        (("workspaces", "create", "Team A"), "/v1/workspaces", {"name": "Team A"}, "made-1"),
        (
            ("users", "invite", "a@b.c", "--workspace", "ws-a", "--workspace-role", "admin"),
            "/v1/admin/users/invites",
            {"email": "a@b.c", "role": "member", "workspaces": [{"id": "ws-a", "role": "admin"}]},
            "https://gateway.example/invite?token=t",
        ),
        (
            ("providers", "create", "mine", "--integration", "openai-1", "--workspace", "ws-a"),
            "/v1/providers",
            {"name": "mine", "slug": "mine", "integration_id": "openai-1", "workspace_id": "ws-a"},
            "@made-1",
        ),
    ],
)
def test_creates_send_what_was_given(
    api: PretendedApi, words: tuple[str, ...], path: str, body: dict[str, Any], printed: str
):
    done = api.run(*words)
    assert (done.exit_code, done.stdout.strip()) == (0, printed)
    assert (api.paths[-1], api.bodies[-1]) == (path, body)


@pytest.mark.parametrize(
    "words",
    [
        ("workspaces", "create", "a"),
        ("users", "invite", "a@b.c"),
        ("integrations", "create", "a", "--provider", "openai"),
        ("providers", "create", "a", "--integration", "b"),
    ],
)
def test_creates_print_the_whole_object_as_json(api: PretendedApi, words: tuple[str, ...]):
    done = api.run(*words, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["slug"] == "made-1"


def test_warnings_go_to_standard_error(api: PretendedApi):
    done = api.run("integrations", "create", "a", "--provider", "openai")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "made-1\n", "warning: key is empty\n")


def test_credential_comes_from_a_file_and_is_not_printed(api: PretendedApi, tmp_path: Path):
    (tmp_path / "key").write_text(f"{SECRET}\n")
    words = ("integrations", "create", "OpenAI", "--provider", "openai", "--slug", "mine")
    done = api.run(*words, "--key-file", f"{tmp_path}/key", "--option", "openai_organization=org-1")
    assert (done.exit_code, done.stdout.strip()) == (0, "made-1")
    expected = {"name": "OpenAI", "ai_provider_id": "openai", "slug": "mine", "default_provider_slug": "mine"}
    assert api.bodies[-1] == {**expected, "configurations": {"openai_organization": "org-1"}, "key": SECRET}
    assert SECRET not in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("integrations", "create", "x", "--provider", "openai", "--option", "nothing"), "expected NAME=VALUE"),
        (("integrations", "create", "x"), "Missing option '--provider'"),
        (("audit", "--limit", "0"), "0 is not in the range"),
    ],
)
def test_wrong_options_are_named(api: PretendedApi, words: tuple[str, ...], message: str):
    done = api.run(*words)
    assert (done.exit_code, message in done.output) == (2, True)
    assert not api.paths


def test_file_that_is_no_key_is_rejected(api: PretendedApi, tmp_path: Path):
    (tmp_path / "key").write_text("k" * 20_000)
    done = api.run("integrations", "create", "x", "--provider", "openai", "--key-file", f"{tmp_path}/key")
    assert (done.exit_code, "expected an API key" in done.output, api.paths) == (1, True, [])


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("workspaces", "delete", "ws/a"), "/v1/workspaces/ws%2Fa"),
        (("users", "remove", ".."), "/v1/admin/users/%2E%2E"),
        (("integrations", "delete", "openai-1"), "/v1/integrations/openai-1"),
        (("providers", "delete", "mine", "--workspace", "ws-a"), "/v1/providers/mine?workspace_id=ws-a"),
        (("keys", "delete", "3"), "/v1/api-keys/3"),
        (("config", "delete", "pc-a"), "/v1/configs/pc-a"),
    ],
)
def test_deletes_name_one_object(api: PretendedApi, words: tuple[str, ...], path: str):
    done = api.run(*words)
    assert (done.exit_code, done.output, api.paths) == (0, "", [path])
    done = api.run(*words, "--json")
    assert (done.exit_code, json.loads(done.stdout), api.paths) == (0, {"deleted": words[2]}, [path, path])


def test_audit_log_is_read_page_by_page_up_to_the_limit(api: PretendedApi):
    done = api.run("audit", "--limit", str(PAGE_SIZE + 20), "--action", "create")
    assert len(done.stdout.splitlines()) == 1 + PAGE_SIZE + 20
    assert len(api.paths) == 2
    assert api.query["action"] == ["create"]


# Commands that run until they are stopped, or print a document of their own.
WITHOUT_JSON = {
    *("serve", "openapi", "settings", "completion", "export"),
    *("prompts pull", "prompts diff", "prompts push", "config show"),
}


def test_commands_that_print_objects_have_json():
    without = {" ".join(words) for words in all_commands() if "--json" not in options_of(words)}
    assert without == WITHOUT_JSON


def options_of(words: list[str]) -> set[str]:
    command: Any = main
    for word in words:
        command = command.commands[word]
    return {option for parameter in command.params for option in parameter.opts}


def all_commands() -> Iterator[list[str]]:
    for name, command in main.commands.items():
        yield from ([name, inner] for inner in command.commands) if isinstance(command, Group) else [[name]]


@pytest.mark.parametrize("words", list(all_commands()), ids=" ".join)
def test_help_of_every_command_has_an_example(words: list[str]):
    displayed = CliRunner().invoke(main, [*words, "--help"]).output
    assert re.search(rf"Example:.*\bpenstock {' '.join(words)}\b", displayed, re.DOTALL), displayed
