"""The commands that ask a running gateway, and the whole state from one store into another."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from tests.integration.managed import ADMIN_KEY, Client
from tests.integration.serving import running
from tests.integration.wire import CHAT, MOCK, ask, asked
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Mock


@pytest.fixture
def pair(provider: Mock, tmp_path: Path) -> Iterator[tuple[Client, Client]]:
    """Two gateways with a store each."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    envs = [
        {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": f"sqlite:///{folder}/penstock.db"} for folder in folders
    ]
    tables = {"mock": {"host": provider.url}}
    with running(folders[0], tables, env=envs[0]) as one, running(folders[1], tables, env=envs[1]) as two:
        yield Client(one), Client(two)


def run(client: Client, *words: str, said: str | None = None, status: int = 0, **env: str) -> str:
    command = [sys.executable, "-m", "penstock", *words]
    given = {"PENSTOCK_URL": client.gateway.base_url, "PENSTOCK_API_KEY": client.key, **env}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=given, input=said, timeout=30)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + (done.stderr if status else "")


def furnish(admin: Client) -> dict[str, Any]:
    """Make something of each kind."""
    user = admin.shown("/v1/admin/users")["data"][0]["id"]
    rules = {"user_api_key_rotation_period": 9}
    place = admin.made(
        "/v1/workspaces",
        {"name": "Rockets", "settings": rules, "users": [{"id": user, "role": "manager"}], "description": "up"},
    )
    own = {"workspace_id": place["id"]}
    admin.made("/v1/virtual-keys", {"name": "the provider", "provider": "openai", "key": "sk-canary-0123456789", **own})
    config = admin.made("/v1/configs", {"name": "main", "config": {"provider": "mock"}, **own})
    admin.put(f"/v1/workspaces/{place['id']}", {"defaults": {"user_api_key_config": config["slug"]}})
    defaults = {"config_id": config["slug"], "metadata": {"team": "a"}}
    body = {"name": "app", "scopes": ["completions.write"], "defaults": defaults, **own}
    admin.made("/v1/api-keys/workspace/service", {**body, "usage_limits": {"credit_limit": 5}})
    admin.put("/v1/admin/organisation/settings", {"session_settings": {"max_session_ttl": 3600}})
    return place


def test_a_key_is_made_listed_rotated_and_deleted_by_command(pair: tuple[Client, Client]):
    admin, _ = pair
    place = admin.shown("/v1/workspaces")["data"][0]["slug"]
    text = run(admin, "keys", "create", "app", "--workspace", place, "--scope", "completions.write").strip()
    headers = {**MOCK, "x-gateway-api-key": text}
    wait("the key", lambda: ask(admin.gateway.base_url, CHAT, asked(), headers).status == 200 or None, 3)
    (line,) = run(admin, "keys", "list", "--workspace", place).splitlines()
    key_id, masked, kind, status, name = line.split("\t")
    assert (masked, kind, status, name) == (f"{text[:2]}*****{text[-3:]}", "workspace-service", "active", "app")
    assert run(admin, "keys", "rotate", key_id).strip() not in {"", text}
    assert "in transition" in run(admin, "keys", "rotate", key_id, status=1)
    run(admin, "keys", "delete", key_id)
    assert run(admin, "keys", "list", "--workspace", place) == ""
    assert "scopes[0] 'fly' is not known" in run(
        admin, "keys", "create", "x", "--workspace", place, "--scope", "fly", status=1
    )
    assert "AB05" not in run(Client(admin.gateway, "nobody"), "keys", "list", status=1)


def test_a_config_is_saved_shown_and_saved_again_by_command(pair: tuple[Client, Client], tmp_path: Path):
    admin, _ = pair
    place = admin.shown("/v1/workspaces")["data"][0]["slug"]
    file = tmp_path / "config.json"
    file.write_text('{"provider": "mock"}')
    slug = run(admin, "config", "save", str(file), "--name", "main", "--workspace", place).strip()
    assert json.loads(run(admin, "config", "show", slug)) == {"provider": "mock"}
    run(admin, "config", "save", "-", "--slug", slug, said='{"provider": "openai"}')
    assert json.loads(run(admin, "config", "show", slug)) == {"provider": "openai"}
    assert run(admin, "config", "list", "--workspace", place).startswith(f"{slug}\tactive\t")
    assert "provider" in run(admin, "config", "save", "-", "--slug", slug, said='{"provider": 1}', status=1)
    assert "is not JSON" in run(admin, "config", "save", "-", "--slug", slug, said="{", status=1)
    run(admin, "config", "save", str(file), status=2)


def test_the_state_of_one_store_becomes_that_of_another_and_then_there_is_nothing_to_do(
    pair: tuple[Client, Client], tmp_path: Path
):
    one, two = pair
    furnish(one)
    file = tmp_path / "state.yaml"
    run(one, "export", "-o", str(file))
    written = file.read_text()
    assert "canary" not in written
    assert run(one, "apply", str(file)).strip() == "nothing to do"
    assert "rockets / virtual_keys the provider.key" in run(two, "apply", str(file), "--yes", status=1).lower()
    assert two.shown("/v1/workspaces")["total"] == 1
    document = YAML(typ="safe").load(written)
    rockets = next(place for place in document["workspaces"] if place["name"] == "Rockets")
    rockets["virtual_keys"][0]["key"] = "${PROVIDER_KEY}"
    with file.open("w") as opened:
        YAML(typ="safe").dump(document, opened)
    assert "PROVIDER_KEY" in run(two, "apply", str(file), "--yes", status=1)
    env = {"PROVIDER_KEY": "sk-canary-0123456789"}
    planned = run(two, "apply", str(file), "--plan", status=2, **env)
    for line in (
        "+ workspace Rockets",
        "+ Rockets / configs main",
        "+ Rockets / api_keys app",
        "~ organisation settings",
    ):
        assert line in planned
    assert two.shown("/v1/workspaces")["total"] == 1
    done = run(two, "apply", str(file), said="y\n", **env)
    assert "canary" not in done
    text = next(line for line in done.splitlines() if "it is shown this once" in line).rpartition(" ")[2]
    headers = {**MOCK, "x-gateway-api-key": text}
    wait("the key", lambda: ask(two.gateway.base_url, CHAT, asked(), headers).status == 200 or None, 3)
    # The keys of the two providers are the same, so their masked forms are too.
    again = YAML(typ="safe").load(run(two, "export"))
    theirs = next(place for place in again["workspaces"] if place["name"] == "Rockets")
    for place in (rockets, theirs):
        drop(place)
    rockets["virtual_keys"][0]["key"] = theirs["virtual_keys"][0]["key"]
    assert theirs == rockets
    assert again["organisation"] == document["organisation"]
    # Whether a credential is another one cannot be seen from its masked form.
    assert run(two, "apply", str(file), "--yes", **env).splitlines() == [
        "~ Rockets / virtual_keys the provider: key",
        "1 done",
    ]


def drop(place: dict[str, Any]) -> None:
    """Leave out what two stores cannot have in common: ids, and slugs made by chance."""
    config = place["configs"][0]["slug"]
    for value in (
        place,
        *(thing for name in ("members", "virtual_keys", "configs", "api_keys") for thing in place[name]),
    ):
        value.pop("id", None)
    place.pop("slug")
    place["configs"][0].pop("slug")
    assert place["defaults"].pop("user_api_key_config") == config
    assert place["api_keys"][0]["defaults"].pop("config_id") == config


def test_what_the_file_does_not_hold_goes_only_when_asked(pair: tuple[Client, Client], tmp_path: Path):
    admin, _ = pair
    place = furnish(admin)
    document = YAML(typ="safe").load(run(admin, "export"))
    rockets = next(found for found in document["workspaces"] if found["name"] == "Rockets")
    rockets["virtual_keys"] = []
    rockets["description"] = "down"
    file = tmp_path / "state.yaml"
    with file.open("w") as opened:
        YAML(typ="safe").dump(document, opened)
    run(admin, "apply", str(file), "--yes")
    assert admin.shown(f"/v1/workspaces/{place['id']}")["description"] == "down"
    assert admin.shown(f"/v1/virtual-keys?workspace_id={place['id']}")["total"] == 1
    assert "- Rockets / virtual_keys the provider" in run(admin, "apply", str(file), "--prune", "--yes")
    assert admin.shown(f"/v1/virtual-keys?workspace_id={place['id']}")["total"] == 0


@pytest.mark.parametrize(
    ("text", "words"), [("a: [", "is not YAML"), ("- a", "mapping"), ("version: 2", "version must be 1")]
)
def test_a_file_that_is_no_state_is_refused(pair: tuple[Client, Client], tmp_path: Path, text: str, words: str):
    (tmp_path / "state.yaml").write_text(text)
    assert words in run(pair[0], "apply", str(tmp_path / "state.yaml"), status=1).replace(":", "")
