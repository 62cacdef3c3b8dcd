"""All settings of an operator: one immutable tree, read once from `penstock.toml`, the environment and command options."""

from __future__ import annotations

from penstock.settings.jwt import Issuer, Jwt
from penstock.settings.loader import (
    DEFAULT_SETTINGS_FILE,
    PRICES_TABLE,
    SNAPSHOT_TABLES,
    decode_secret,
    find_settings_file,
    load_settings,
    read_toml_file,
)
from penstock.settings.records import Records
from penstock.settings.request_limits import Limits
from penstock.settings.secret import Secret
from penstock.settings.secret_managers import Secrets
from penstock.settings.server import Security, Server
from penstock.settings.specs import ISSUERS_TABLE, SettingSpec, is_secret_type, iter_setting_specs
from penstock.settings.store import Store
from penstock.settings.tree import DEFAULT_DATA_DIR, MASTER_KEY_FILE, STORE_FILE, Settings

__all__ = [
    "DEFAULT_DATA_DIR",
    "DEFAULT_SETTINGS_FILE",
    "ISSUERS_TABLE",
    "MASTER_KEY_FILE",
    "PRICES_TABLE",
    "SNAPSHOT_TABLES",
    "STORE_FILE",
    "Issuer",
    "Jwt",
    "Limits",
    "Records",
    "Secret",
    "Secrets",
    "Security",
    "Server",
    "SettingSpec",
    "Settings",
    "Store",
    "decode_secret",
    "find_settings_file",
    "is_secret_type",
    "iter_setting_specs",
    "load_settings",
    "read_toml_file",
]
