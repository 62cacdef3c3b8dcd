"""Last known state: callers and models from the last snapshot, for use while the store is unavailable."""

from __future__ import annotations

import json
from typing import Any

from penstock.resources import _last_known as known
from penstock.snapshot.append_log import Chunk
from penstock.snapshot.build import EMPTY_STORE_DATA, StoreData


def make_chunk(**rows: list[dict[str, Any]]) -> Chunk:
    return Chunk.from_bytes(json.dumps({"name": "part", **rows}, separators=(",", ":")).encode())


def make_store_data(*keys: dict[str, Any]) -> StoreData:
    configs = [{"id": "c-1", "slug": "pc-1", "workspace": "w", "config": {"provider": "@a"}}]
    providers = [
        {"slug": "a", "workspace": "w", "provider": "mock", "models": "i", "expires_at": None},
        {"slug": "b", "workspace": "w", "provider": "openai", "expires_at": 1},
        {"slug": "c", "workspace": "v", "provider": "openai", "expires_at": None},
    ]
    own = [{"slug": "m", "enabled": True, "custom_host": None}, {"slug": "deployed", "enabled": True, "options": {}}]
    models = [{"id": "i", "allow_all": False, "models": own, "adjustment": None}]
    return StoreData(
        chunks={"keys/1": make_chunk(keys=list(keys)), "configs/1": make_chunk(configs=configs)},
        providers=json.dumps(providers)[1:-1].encode(),
        models=json.dumps(models)[1:-1].encode(),
        workspaces=b'{"id":"w","organisation_id":"o"}',
    )


KEY_ROW = {"id": "k", "sha256": "d" * 64, "name": "app", "workspace": "w", "expires_at": None, "defaults": {}}


def test_last_known_key_may_only_call_models():
    caller = known.find_caller(make_store_data(KEY_ROW), KEY_ROW["sha256"])
    assert caller
    assert (caller.id, caller.workspace_id, caller.organisation_id) == ("k", "w", "o")
    assert (caller.scopes, caller.is_last_known) == ({"completions.write"}, True)
    bound = {**KEY_ROW, "defaults": {"config_id": "c-1", "allow_config_override": False}}
    assert known.find_default_config(make_store_data(KEY_ROW), caller) == (None, True)
    assert known.find_default_config(make_store_data(bound), caller) == ("c-1", False)


def test_expired_unscoped_or_missing_keys_are_unknown():
    for key in (
        {**KEY_ROW, "expires_at": 1},
        {"id": "k", "sha256": KEY_ROW["sha256"], "lacks": "scope"},
        {**KEY_ROW, "workspace": "v"},
    ):
        assert known.find_caller(make_store_data(key), KEY_ROW["sha256"]) is None
    # A digest in another field is not a key's digest.
    assert (
        known.find_caller(
            make_store_data({**KEY_ROW, "sha256": "e" * 64, "name": KEY_ROW["sha256"]}), KEY_ROW["sha256"]
        )
        is None
    )
    assert known.find_caller(EMPTY_STORE_DATA, KEY_ROW["sha256"]) is None


def test_configs_and_providers_are_those_of_the_workspace():
    content = make_store_data(KEY_ROW)
    assert known.find_config(content, "w", "pc-1") == known.find_config(content, "w", "c-1") == b'{"provider":"@a"}'
    assert known.find_config(content, "v", "pc-1") is None
    rows, models = known.list_providers(content, "w")
    assert [(row["slug"], row["allow_all_models"]) for row in rows] == [("a", False)]
    # A deployment alone is not a model of the catalogue.
    assert models[rows[0]["integration_id"]] == [{"slug": "m", "enabled": True}]
