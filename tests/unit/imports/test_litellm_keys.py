"""Virtual keys, teams, users and budgets of LiteLLM's database, and its encrypted values."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.errors import SettingsError
from penstock.imports import output
from penstock.imports.findings import Status
from penstock.imports.litellm import import_litellm
from penstock.imports.litellm_secrets import Decryptor, LegacyEncryptionError
from penstock.imports.output import ImportedState, check_state, write_results
from penstock.imports.source import Source, parse_yaml

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
model_list:
  - {model_name: fast, litellm_params: {model: openai/gpt-4o-mini}, model_info: {access_groups: [beta]}}
  - {model_name: slow, litellm_params: {model: openai/o3}}
  - {model_name: "anthropic/*", litellm_params: {model: "anthropic/*"}}
"""
TABLES: dict[str, Any] = {
    "LiteLLM_TeamTable": [
        {"team_id": "t-1", "team_alias": "Red", "models": ["slow"], "max_budget": 0.5, "budget_duration": "1mo",
         "rpm_limit": 60, "metadata": {"x": 1}, "members_with_roles": [{"role": "admin", "user_id": "u-1"}], "spend": 3.2},
        {"team_id": "t-2", "team_alias": "Red", "blocked": False},
        {"team_id": "t-3", "blocked": True},
    ],
    "LiteLLM_UserTable": [
        {"user_id": "u-1", "user_email": "ada@x.test", "user_role": "proxy_admin", "max_budget": 20, "teams": ["t-1"],
         "password": "scrypt:canary", "spend": 4.5},
        {"user_id": "u-2"},
        {"user_id": "u-3", "user_email": "no address", "budget_id": "b-3", "spend": 1.5, "budget_reset_at": "2998-01-01"},
        {"user_id": "u-4", "spend": 9},
    ],
    "LiteLLM_TeamMembership": [
        {"user_id": "u-1", "team_id": "t-1", "budget_id": "b-3", "spend": 2},
        {"user_id": "u-1", "team_id": "gone", "spend": 2},
    ],
    "LiteLLM_EndUserTable": [
        {"user_id": "customer-1", "alias": "A", "budget_id": "b-3", "spend": 0.5, "default_model": "fast"},
        {"user_id": "customer-2", "blocked": True},
        {"user_id": "c" * 300, "budget_id": "b-3", "spend": 7},
    ],
    "LiteLLM_BudgetTable": [{"budget_id": "b-1", "max_budget": 7, "tpm_limit": 1000}, {"budget_id": "b-2"},
                            {"budget_id": "b-3", "max_budget": 40, "rpm_limit": 6, "budget_duration": "30d"}],
    "LiteLLM_VerificationToken": [
        {"token": "1" * 64, "key_alias": "app", "user_id": "u-1", "models": ["beta"], "budget_id": "b-1",
         "metadata": {"env": "prod", "tags": ["a"]}, "expires": "2999-01-01T00:00:00", "max_parallel_requests": 3},
        {"token": "2" * 64, "key_alias": "app", "models": ["all-team-models"], "team_id": "t-1"},
        {"token": "3" * 64, "team_id": "t-2", "models": ["no-default-models"]},
        {"token": "4" * 64, "team_id": "t-3"},
        {"token": "5" * 64, "team_id": "litellm-dashboard"},
        {"token": "6" * 64, "team_id": "gone"},
        {"token": "sk-canary-in-clear"},
        {"token": "7" * 64, "models": ["fast", "unknown"], "max_budget": 100, "soft_budget": 80, "budget_duration": "7d",
         "spend": 12.5, "budget_reset_at": "2998-01-01T00:00:00"},
        {"token": "8" * 64, "models": ["anthropic/claude-opus-4-5"], "max_budget": 9, "spend": 2.25},
        {"token": "9" * 64, "models": ["anthropic/*"], "spend": 5},
    ],
    "LiteLLM_GuardrailsTable": [{"guardrail_name": "pii"}],
}  # fmt: skip


def import_tables(tables: Any) -> ImportedState:
    sources = [parse_yaml("config.yaml", CONFIG), Source("database", tables, is_table=True)]
    return check_state(import_litellm(sources))


@pytest.fixture(scope="module")
def imported_state() -> ImportedState:
    return import_tables(TABLES)


def names_of(config: dict[str, Any]) -> list[str]:
    return [item["then"] for item in config["strategy"]["conditions"]]


def keys_of(workspace: dict[str, Any]) -> dict[str, Any]:
    configs = {row["slug"]: names_of(row["config"]) for row in workspace["configs"]}
    return {
        row["key_sha256"][0]: {**row, "models": configs[row["defaults"]["config_id"]]} for row in workspace["api_keys"]
    }


def test_keys_get_their_models_limits_and_metadata(imported_state: ImportedState):
    keys = keys_of(imported_state.state["workspaces"][0])
    assert keys.keys() == {"1", "7", "8", "9"}
    item = keys["1"]
    assert (item["name"], item["models"], item["expires_at"]) == ("app", ["fast"], "2999-01-01T00:00:00Z")
    assert item["usage_limits"] == {"type": "cost", "credit_limit": 7}
    assert item["rate_limits"] == [{"type": "tokens", "unit": "rpm", "value": 1000}]
    assert item["defaults"]["metadata"] == {"env": "prod", "_user": "ada@x.test"}
    assert item["defaults"]["allow_config_override"] is False
    limits = {"type": "cost", "credit_limit": 100, "alert_threshold": 80, "periodic_reset_days": 7}
    assert (keys["7"]["usage_limits"], keys["7"]["models"]) == (limits, ["fast"])


def test_budgets_begin_with_what_was_spent(imported_state: ImportedState):
    keys = keys_of(imported_state.state["workspaces"][0])
    assert [keys[name].get("initial_usage") for name in "1789"] == [None, 12.5, 2.25, None]
    assert imported_state.state["workspaces"][1]["initial_usage"] == 3.2
    spent = {
        (finding.status, finding.message)
        for finding in imported_state.findings
        if finding.path.endswith("Token[*].spend")
    }
    assert spent == {
        (Status.APPROXIMATE, "initial_usage: counts in the first period, which begins with the import"),
        (Status.EXACT, "initial_usage"),
        (Status.APPROXIMATE, "without a budget, nothing counts it; analytics begin with the import"),
    }


def test_models_of_a_pattern_are_allowed_by_name(imported_state: ImportedState):
    workspace = imported_state.state["workspaces"][0]
    keys, configs = keys_of(workspace), {row["slug"]: row["config"] for row in workspace["configs"]}
    assert (keys["8"]["models"], keys["9"]["models"]) == (["anthropic/claude-opus-4-5"], ["anthropic/*"])
    (target, _) = configs[keys["8"]["defaults"]["config_id"]]["targets"]
    assert target["override_params"] == {"model": "claude-opus-4-5"}
    assert "drop_model_prefix" not in target


def test_teams_become_workspaces(imported_state: ImportedState):
    _, red, other = imported_state.state["workspaces"]
    assert (red["slug"], red["name"], other["name"]) == ("litellm-red", "Red", "Red t-2")
    assert red["usage_limits"] == [{"type": "cost", "credit_limit": 1, "periodic_reset": "monthly"}]
    assert red["rate_limits"] == [{"type": "requests", "unit": "rpm", "value": 60}]
    assert keys_of(red)["2"]["models"] == ["slow"]
    assert keys_of(other)["3"]["models"] == []
    integration = imported_state.state["organisation"]["integrations"][0]
    assert [item["id"] for item in integration["workspaces"]] == ["litellm", "litellm-red", "litellm-red-t-2"]


def test_users_become_invitations_and_policies(imported_state: ImportedState):
    (invite,) = imported_state.state["organisation"]["invites"]
    assert (invite["email"], invite["role"]) == ("ada@x.test", "member")
    workspace, red, _ = imported_state.state["workspaces"]
    policies = {policy["conditions"][0]["value"]: policy for policy in workspace["usage_limits_policies"]}
    assert policies.keys() == {"ada@x.test", "u-3", "customer-1", "c" * 300}
    ada = policies["ada@x.test"]
    assert ada["conditions"] == [{"key": "metadata._user", "value": "ada@x.test"}]
    assert (ada["name"], ada["credit_limit"], ada["group_by"]) == ("user ada@x.test", 20, [{"key": "metadata._user"}])
    assert {name: policy.get("initial_usage") for name, policy in policies.items()} == {
        "ada@x.test": {"ada@x.test": 4.5}, "u-3": {"u-3": 1.5}, "customer-1": {"customer-1": 0.5}, "c" * 300: None,
    }  # fmt: skip
    assert policies["customer-1"]["periodic_reset_days"] == 30
    (member,) = red["usage_limits_policies"]
    assert (member["name"], member["credit_limit"]) == ("member ada@x.test", 40)
    assert member["initial_usage"] == {"ada@x.test": 2}
    (rate,) = red["rate_limits_policies"]
    assert (rate["name"], rate["type"], rate["value"]) == ("member ada@x.test requests", "requests", 6)
    names = [policy["name"] for policy in (*workspace["usage_limits_policies"], *workspace["rate_limits_policies"])]
    assert len(names) == len(set(names))


def test_reports_users_without_a_policy(imported_state: ImportedState):
    findings = {
        (finding.path.partition("_")[2], finding.status, finding.message.split(";")[0].split(",")[0])
        for finding in imported_state.findings
    }
    assert ("TeamMembership[*].team_id", Status.MANUAL, "names no imported team") in findings
    assert ("EndUserTable[*].blocked", Status.MANUAL, "the end user is blocked") in findings
    assert ("EndUserTable[*].spend", Status.MANUAL, "the name of the user is longer than 256 bytes") in findings
    assert ("UserTable[*].spend", Status.APPROXIMATE, "without a budget") in findings


def test_users_with_one_address_have_policies_of_their_own():
    rows = [{"user_id": name, "user_email": "a@x.test", "max_budget": 5} for name in ("u-1", "u-2", "u-3")]
    workspace = import_tables({"LiteLLM_UserTable": rows}).state["workspaces"][0]
    names = [policy["name"] for policy in workspace["usage_limits_policies"]]
    assert names == ["user a@x.test", "user a@x.test (2)", "user a@x.test (3)"]


def test_names_of_policies_are_compared_as_a_whole():
    limits = {"max_budget": 5, "rpm_limit": 6}
    names = ("anna", "ann", "bob requests", "bob")
    rows = [{"user_id": name, **limits} for name in names]
    workspace = import_tables({"LiteLLM_EndUserTable": rows}).state["workspaces"][0]
    assert [policy["name"] for policy in workspace["usage_limits_policies"]] == [
        "end user anna", "end user ann", "end user bob requests", "end user bob (2)",
    ]  # fmt: skip


def test_users_whose_names_no_condition_can_select_get_no_policies():
    rows = [{"user_id": name, "max_budget": 5, "rpm_limit": 6, "spend": 1} for name in ("a*", "u" * 513, "u" * 512)]
    imported_state = import_tables({"LiteLLM_EndUserTable": rows})
    workspace = imported_state.state["workspaces"][0]
    for policies in (workspace["usage_limits_policies"], workspace["rate_limits_policies"]):
        assert [policy["conditions"][0]["value"] for policy in policies] == ["u" * 512]
    manual = {
        (finding.path.rpartition(".")[2], finding.message.split(",")[0].split(";")[0])
        for finding in imported_state.findings
        if finding.status is Status.MANUAL
    }
    reasons = ("the name of the user contains *", "the name of the user is longer than 512 characters")
    assert {(name, reason) for name in ("max_budget", "rpm_limit") for reason in reasons} <= manual


def test_reports_keys_that_are_left_out(imported_state: ImportedState):
    findings = {
        (finding.path, finding.message.split(",")[0])
        for finding in imported_state.findings
        if finding.path.endswith("].token")
    }
    assert ("LiteLLM_VerificationToken[*].token", "the team of the key is blocked") in findings
    assert ("LiteLLM_VerificationToken[*].token", "a key of a session of LiteLLM's interface") in findings
    manual = " ".join(finding.message for finding in imported_state.findings if finding.status is Status.MANUAL)
    for reason in ("a team that is not in the database", "is no SHA-256 digest", "names no imported model"):
        assert reason in manual
    assert not [finding for finding in imported_state.findings if finding.status is Status.UNSUPPORTED]
    assert "canary" not in json.dumps([str(finding) for finding in imported_state.findings])


def test_large_states_are_written_as_json(
    imported_state: ImportedState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(output, "MAX_YAML_KEYS", 1)
    write_results(imported_state, tmp_path / "state.yaml", tmp_path / "report.json")
    assert json.loads((tmp_path / "state.yaml").read_text()) == imported_state.state


SALT = "sk-salt"


def encrypt(value: str) -> str:
    nonce, key = os.urandom(12), hashlib.sha256(SALT.encode()).digest()
    return "v2:gcm:" + base64.urlsafe_b64encode(nonce + AESGCM(key).encrypt(nonce, value.encode(), None)).decode()


def test_decrypts_values_and_keeps_those_in_clear():
    values = {"api_key": encrypt("sk-1"), "model": "openai/gpt-4o", "rpm": 5, "other": "x" * 60}
    assert Decryptor(SALT, "SALT").decrypt_table(values) == {**values, "api_key": "sk-1"}


@pytest.mark.parametrize(
    "value",
    [encrypt("canary"), "v2:gcm:", "v2:gcm:%%%", encrypt("canary")[:-4]],
    ids=["another key", "empty", "no base64", "cut"],
)
def test_wrong_salt_key_is_one_clear_error(value: str):
    with pytest.raises(SettingsError, match="the salt key in SALT does not decrypt") as raised:
        Decryptor("another", "SALT").decrypt_table({"api_key": value})
    assert "canary" not in str(raised.value)
    with pytest.raises(SettingsError, match="--salt-key-env"):
        Decryptor(None, None).decrypt_table({"api_key": value})


def test_older_encryption_needs_another_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.imports.litellm_secrets.find_spec", lambda _: None)
    sealed = base64.urlsafe_b64encode(hashlib.sha512(b"a").digest()).decode()
    with pytest.raises(LegacyEncryptionError):
        Decryptor(SALT, "SALT").decrypt_table({"api_key": sealed})
    tables = {"LiteLLM_ProxyModelTable": [{"model_name": "a", "litellm_params": {"model": sealed}}]}
    path = ("LiteLLM_ProxyModelTable", 0)
    source = Source("database", tables, is_table=True, encrypted_rows=frozenset([path]))
    findings = check_state(import_litellm([source])).findings
    assert {finding.status for finding in findings} == {Status.MANUAL}
    assert all("penstock[import]" in finding.message for finding in findings)
