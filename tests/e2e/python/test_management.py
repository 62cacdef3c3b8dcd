"""The portkey-ai SDK manages a gateway: it is strict about what it is answered, with limits set too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.python.test_routes import calls_of
from tests.founded import ADMIN_KEY
from tests.integration.managed import Client, good

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.founded import Founded
    from tests.gateway import Gateway

SAID = {
    "workspaces.retrieve": "Sdk",
    "users.retrieve": "owner",
    "users.list": 1,
    "workspaces.users.list": 0,
    "invites.retrieve": "pending",
    "invites.list": 1,
    "integrations.create": "shared",
    "integrations.list": ["shared"],
    "integrations.workspaces.list": [[10, 7]],
    "providers.create": "p",
    "providers.list": [["p", 7], ["shared", None]],
    "providers.retrieve": 7,
    "providers.update": "p",
    "configs.list": 1,
    "configs.retrieve": "C",
    "api_keys.retrieve": 7,
}


def managed(gateway: Callable[..., Gateway], founded: Founded, folder: Path) -> Gateway:
    url = founded.copy("sqlite", folder)
    return gateway(env={"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": url})


def test_every_call_of_the_portkey_sdk_is_understood(gateway: Callable[..., Gateway], founded: Founded, tmp_path: Path):
    served = managed(gateway, founded, tmp_path)
    version, calls = calls_of("portkey_management.py", "portkey-ai-2", served, KEY=ADMIN_KEY)
    assert version.startswith("2.")
    found = dict(calls)
    virtual = found.pop("virtual_keys.create")
    assert virtual, found
    # What is not said here is that something was there.
    assert found == {name: SAID.get(name, True) for name in found}
    assert set(SAID) <= set(found)


def test_limits_are_lists_for_everybody_else(gateway: Callable[..., Gateway], founded: Founded, tmp_path: Path):
    served = managed(gateway, founded, tmp_path)
    admin = Client(served)
    rate = {"type": "requests", "unit": "rpm", "value": 7}
    place = admin.made("/v1/workspaces", {"name": "w"})["id"]
    admin.made("/v1/virtual-keys", {"name": "v", "provider": "mock", "workspace_id": place, "rate_limits": rate})
    given = {"name": "i", "slug": "i", "ai_provider_id": "mock"}
    admin.made("/v1/integrations", given)
    good(
        admin.put(
            "/v1/integrations/i/workspaces", {"workspaces": [{"id": place, "enabled": True, "rate_limits": [rate]}]}
        )
    )
    node = {"x-portkey-package-version": "portkey-3.1.0", "x-portkey-runtime": "node"}
    python = {"x-portkey-package-version": "portkey-2.3.4", "x-portkey-runtime": "CPython"}
    for headers, shown in (({}, [rate]), (node, [rate]), (python, rate)):
        client = Client(served, headers=headers)
        listed = client.shown(f"/v1/virtual-keys?workspace_id={place}")["data"]
        assert [row["rate_limits"] for row in listed if row["rate_limits"]] == [shown]
        assert client.shown("/v1/integrations/i/workspaces")["workspaces"][0]["rate_limits"] == shown
