"""Provider options of an integration: validation, hidden secrets, and the row that the engine receives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import engine
from penstock.errors import InvalidError
from penstock.integrations.provider_options import SECRET_FIELDS as HIDDEN
from penstock.integrations.provider_options import (
    check_options,
    check_partial_options,
    field_names,
    provider_row,
    split_secrets,
)

AZURE_OPTIONS: dict[str, Any] = {
    "azure_auth_mode": "default",
    "azure_resource_name": "res",
    "azure_deployment_config": [
        {"azure_deployment_name": "d1", "azure_api_version": "v1", "azure_model_slug": "gpt-4o", "alias": "main"},
        {"azure_deployment_name": "d2", "azure_api_version": "v2", "azure_model_slug": "o3", "is_default": True},
    ],
}
SECRET_VALUE = "canary-0123456789"


@pytest.mark.parametrize(
    ("provider", "options", "message"),
    [
        ("openai", {"azure_resource_name": "x"}, "configurations.azure_resource_name"),
        ("azure-openai", {**AZURE_OPTIONS, "azure_deployment_config": []}, "configurations.azure_deployment_config"),
        ("azure-openai", {**AZURE_OPTIONS, "azure_auth_mode": "none"}, "configurations.azure_auth_mode"),
        ("azure-openai", {**AZURE_OPTIONS, "azure_auth_mode": "workload"}, "configurations.azure_workload_tenant_id"),
        ("bedrock", {"aws_auth_type": "accessKey", "aws_region": "r"}, "configurations.aws_access_key_id"),
        ("bedrock", {"aws_auth_type": "serviceRole"}, "aws_region"),
        ("mock", {"custom_host": "ftp://x"}, "configurations.custom_host"),
        # Rules that only the engine checks.
        ("openai", {"custom_host": "https://a.example/v1?x=1"}, "configurations.custom_host must not have a query"),
        ("openai", {"custom_headers": {"host": "x"}}, "configurations.custom_headers.host"),
        ("azure-openai", {**AZURE_OPTIONS, "azure_resource_name": "a\nb"}, "configurations.azure_resource_name"),
    ],
)
def test_rejects_invalid_options_by_name(provider: str, options: dict[str, Any], message: str):
    with pytest.raises(InvalidError, match=message):
        check_options("configurations", provider, options)


ENTRA_FIELDS = (
    "azure_auth_mode azure_entra_tenant_id azure_entra_client_id azure_entra_client_secret azure_managed_client_id"
)
# The last field is for consoles; requests do not depend on it.
WORKLOAD_FIELDS = "is_key_required azure_workload_client_id azure_workload_tenant_id"
AWS_FIELDS = "aws_auth_type aws_region aws_access_key_id aws_secret_access_key aws_role_arn aws_external_id"
# Option fields of each provider that clients use.
CLIENT_FIELDS = {
    "openai": "openai_organization openai_project",
    "azure-openai": f"{ENTRA_FIELDS} {WORKLOAD_FIELDS} azure_resource_name azure_deployment_config",
    "azure-ai": f"{ENTRA_FIELDS} {WORKLOAD_FIELDS} azure_foundry_url azure_deployment_name azure_api_version",
    "bedrock": AWS_FIELDS,
    "sagemaker": f"{AWS_FIELDS} amzn_sagemaker_custom_attributes amzn_sagemaker_target_model amzn_sagemaker_target_variant "
    "amzn_sagemaker_target_container_hostname amzn_sagemaker_inference_id amzn_sagemaker_enable_explanations "
    "amzn_sagemaker_inference_component amzn_sagemaker_session_id amzn_sagemaker_model_name",
    "vertex-ai": "vertex_auth_type vertex_region vertex_project_id vertex_service_account_json is_key_required "
    "vertex_map_metadata",
    "workers-ai": "workers_ai_account_id",
    "huggingface": "huggingface_base_url",
    "cortex": "snowflake_account",
    "anthropic": "anthropic_inspect_stream_for_overloaded_error",
}


@pytest.mark.parametrize("provider", CLIENT_FIELDS)
def test_accepts_every_field_that_clients_use(provider: str):
    assert {*CLIENT_FIELDS[provider].split(), "custom_host", "custom_headers"} <= set(field_names(provider))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vertex_auth_type": "other"}, "vertex_auth_type"),
        ({"vertex_auth_type": "workloadIdentityFederation"}, "vertex_service_account_json"),
        ({"skipPtuCostAttribution": "yes"}, "skipPtuCostAttribution"),
        ({"vertex_skip_ptu_cost_attribution": 1}, "vertex_skip_ptu_cost_attribution"),
    ],
)
def test_rejects_invalid_vertex_ai_options_by_name(options: dict[str, Any], words: str):
    complete = {"vertex_auth_type": "basic", "vertex_region": "r", **options}
    with pytest.raises(InvalidError, match=rf"configurations\.{words}"):
        check_options("configurations", "vertex-ai", complete)


@pytest.mark.parametrize(
    ("provider", "fields", "options"),
    [
        (
            "bedrock",
            {"aws_region": "r", "aws_role_arn": "arn:aws:iam::1:role/x"},
            {"aws_role_arn": "arn:aws:iam::1:role/x"},
        ),
        ("vertex-ai", {"vertex_region": "r", "vertex_map_metadata": False}, {"vertex_region": "r"}),
        (
            "vertex-ai",
            {"vertex_region": "r", "vertex_auth_type": "workload"},
            {"vertex_auth_type": "workloadIdentityFederation"},
        ),
        (
            "azure-openai",
            {"resource_name": "res", "deployment_name": "d1", "api_version": "v1", "is_key_required": True},
            {"resource_name": "res", "deployment_id": "d1", "api_version": "v1"},
        ),
    ],
)
def test_accepts_fields_of_other_clients(provider: str, fields: dict[str, Any], options: dict[str, str]):
    check_options("configurations", provider, fields)
    assert options.items() <= provider_row(provider, fields)["options"].items()


def test_reports_all_problems_at_once():
    body = {"azure_resource_name": 7, "azure_auth_mode": "none", "azure_resorce": "x", "azure_ad_token": 1}
    with pytest.raises(InvalidError) as raised:
        check_options("configurations", "azure-openai", body)
    assert [problem.path.removeprefix("configurations.") for problem in raised.value.problems] == [
        "azure_resorce",
        "azure_ad_token",
        "azure_deployment_config",
        "azure_resource_name",
        "azure_auth_mode",
    ]


def test_exports_vertex_workload_identity_and_ptu_flag():
    account = {"type": "external_account", "audience": "//a", "subject_token_type": "urn:t"}
    account |= {"credential_source": {"file": "/run/token"}}
    body = {"vertex_auth_type": "workloadIdentityFederation", "vertex_region": "r"}
    body |= {"vertex_service_account_json": account}
    for name in ("skipPtuCostAttribution", "vertex_skip_ptu_cost_attribution"):
        check_options("configurations", "vertex-ai", {**body, name: True})
        options = provider_row("vertex-ai", {**body, name: True})["options"]
        assert options["vertex_skip_ptu_cost_attribution"] == "true"
        assert json.loads(options["vertex_service_account_json"]) == account
    secrets, hidden = split_secrets("configurations", body, {}, {})
    assert (secrets["vertex_service_account_json"], hidden["vertex_service_account_json"]) == ("*****", account)


ENGINE_OPTIONS = {provider["slug"]: dict(provider["options"]) for provider in engine.catalogue() if provider["options"]}


@pytest.mark.parametrize(
    ("provider", "field"),
    [
        ("databricks", "databricks_workspace"),
        ("databricks", "databricks_serving_endpoint_name"),
        ("byteplus", "byteplus_region"),
        ("predibase", "predibase_tenant"),
        ("claude-platform-aws", "anthropic_aws_workspace_id"),
        ("claude-platform-aws", "aws_region"),
        ("bedrock-mantle", "aws_region"),
        ("bedrock", "aws_customization_role_arn"),
        ("azure-ai", "azure_extra_params"),
        ("openrouter", "x_title"),
        *((provider, header.replace("-", "_")) for provider, own in ENGINE_OPTIONS.items() for header in own.values()),
    ],
)
def test_provider_headers_are_integration_fields(provider: str, field: str):
    key = next(key for key, header in ENGINE_OPTIONS[provider].items() if header == field.replace("_", "-"))
    check_partial_options("configurations", provider, {field: SAMPLE_VALUES.get(field, "x1")}, ())
    assert provider_row(provider, {field: "x1"})["options"][key] == "x1"


# Valid values of fields that do not accept every string.
SAMPLE_VALUES: dict[str, Any] = {
    "aws_auth_type": "accessKey",
    "azure_auth_mode": "default",
    "azure_foundry_url": "https://x.example",
    "huggingface_base_url": "https://x.example",
    "vertex_auth_type": "basic",
    "vertex_skip_ptu_cost_attribution": True,
    "vertex_service_account_json": {"a": "b"},
}


def test_engine_only_fields_are_strings_beside_the_form():
    azure = {"azure_auth_mode": "default", "azure_foundry_url": "https://x.example"}
    check_options("configurations", "azure-ai", {**azure, "azure_extra_params": "pass-through"})
    check_options("configurations", "databricks", {"databricks_workspace": "w"})
    with pytest.raises(InvalidError, match=r"configurations\.azure_extra_params"):
        check_options("configurations", "azure-ai", {**azure, "azure_extra_params": {"a": 1}})
    with pytest.raises(InvalidError, match="azure_foundry_url"):
        check_options("configurations", "azure-ai", {"azure_auth_mode": "default", "azure_extra_params": "x"})


def test_every_credential_field_is_hidden():
    names = {header.replace("-", "_") for own in ENGINE_OPTIONS.values() for header in own.values()}
    words = ("secret", "token", "passphrase", "private_key", "service_account")
    assert {name for name in names if any(word in name for word in words)} <= set(HIDDEN)


def test_multi_line_values_are_exported_on_one_line():
    pem = "-----BEGIN PRIVATE KEY-----\r\nabc\n-----END PRIVATE KEY-----\n"
    oracle = {f"oracle_{name}": "x" for name in ("region", "tenancy", "user", "fingerprint", "compartment_id")}
    check_options("configurations", "oracle", {**oracle, "oracle_private_key": pem})
    options = provider_row("oracle", {**oracle, "oracle_private_key": pem})["options"]
    assert options["oracle_private_key"] == "-----BEGIN PRIVATE KEY-----\\nabc\\n-----END PRIVATE KEY-----\\n"
    account = {"vertex_service_account_json": json.dumps({"private_key": pem, "type": "service_account"}, indent=2)}
    written = provider_row("vertex-ai", account)["options"]["vertex_service_account_json"]
    assert "\n" not in written
    assert json.loads(written)["private_key"] == pem


def test_hugging_face_endpoint_is_exported():
    own = {"huggingface_base_url": "https://mine.endpoints.huggingface.cloud"}
    check_options("configurations", "huggingface", own)
    assert provider_row("huggingface", own)["options"] == own


def test_mapped_secret_fields_are_not_required():
    body = {"aws_auth_type": "accessKey", "aws_region": "r", "aws_access_key_id": "AK"}
    check_options("configurations", "bedrock", body, frozenset({"aws_secret_access_key"}))
    check_options("configurations", "openai", {}, frozenset({"custom_host"}))


def test_masked_secrets_keep_their_value_when_sent_back():
    sent = {
        "aws_secret_access_key": SECRET_VALUE,
        "aws_role_arn": "arn:x",
        "custom_headers": {"a": SECRET_VALUE},
        "vertex_service_account_json": {"private_key": SECRET_VALUE, "n": 1},
    }
    secrets, hidden = split_secrets("auth_config", sent, {}, {})
    assert SECRET_VALUE not in str(secrets)
    assert secrets["aws_role_arn"] == "arn:x"
    assert split_secrets("auth_config", secrets, secrets, hidden) == (secrets, hidden)
    changed = {
        **secrets,
        "custom_headers": {**secrets["custom_headers"], "b": "new-value-0123"},
        "aws_secret_access_key": None,
    }
    _, remaining = split_secrets("auth_config", changed, secrets, hidden)
    assert remaining["custom_headers"] == {"a": SECRET_VALUE, "b": "new-value-0123"}
    assert "aws_secret_access_key" not in remaining


def test_exports_options_headers_and_deployments():
    row = provider_row("azure-openai", {**AZURE_OPTIONS, "custom_headers": {"x": "y"}})
    assert row["options"] == {
        "azure_auth_mode": "default",
        "resource_name": "res",
        "deployment_id": "d2",
        "api_version": "v2",
    }
    assert row["headers"] == {"x": "y"}
    first = {"deployment_id": "d1", "api_version": "v1"}
    assert {"main": first, "gpt-4o": first, "d1": first}.items() <= row["deployments"].items()
    flag = "anthropic_inspect_stream_for_overloaded_error"
    assert provider_row("anthropic", {flag: True})[flag] is True
    assert provider_row("openai", {"openai_project": "p"})["options"] == {"openai_project": "p"}


def test_service_account_is_exported_as_a_string():
    account = {"client_email": "a@b.test", "private_key": SECRET_VALUE}
    options = provider_row("vertex-ai", {"vertex_region": "r", "vertex_service_account_json": account})["options"]
    assert json.loads(options["vertex_service_account_json"]) == account
