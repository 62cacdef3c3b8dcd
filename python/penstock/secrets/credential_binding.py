"""Binding of credentials to addresses. Defines which fields decide where a credential is sent: an unchanged credential
may only go to the address that its owner set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.engine import is_secret_field

if TYPE_CHECKING:
    from collections.abc import Mapping

# Fields that select among the provider's own hosts: regions, tenants, accounts. All other address fields may lead to
# arbitrary hosts.
PROVIDER_HOST_FIELDS = frozenset(
    {
        "aws_region",
        "azure_deployment_type",
        "azure_entra_tenant_id",
        "azure_region",
        "azure_resource_name",
        "azure_workload_tenant_id",
        "byteplus_region",
        "databricks_workspace",
        "oracle_region",
        "resourceName",
        "resource_name",
        "snowflake_account",
        "vertex_region",
    }
)
# Fields that do not affect the address. They decide what is requested, on whose behalf, and how.
NON_ADDRESS_FIELDS = frozenset(
    {
        "amz_server_side_encryption",
        "amz_server_side_encryption_aws_kms_key_id",
        "amzn_sagemaker_custom_attributes",
        "amzn_sagemaker_enable_explanations",
        "amzn_sagemaker_inference_component",
        "amzn_sagemaker_inference_id",
        "amzn_sagemaker_model_name",
        "amzn_sagemaker_session_id",
        "amzn_sagemaker_target_container_hostname",
        "amzn_sagemaker_target_model",
        "amzn_sagemaker_target_variant",
        "anthropic_aws_workspace_id",
        "anthropic_beta",
        "anthropic_inspect_stream_for_overloaded_error",
        "anthropic_version",
        "apiVersion",
        "api_version",
        "aws_auth_type",
        "aws_batch_role_arn",
        "aws_bedrock_model",
        "aws_customization_role_arn",
        "aws_external_id",
        "aws_role_arn",
        "aws_role_session_name",
        "aws_s3_bucket",
        "aws_s3_object_key",
        "azure_api_version",
        "azure_auth_mode",
        "azure_deployment_config",
        "azure_deployment_id",
        "azure_entra_client_id",
        "azure_entra_scope",
        "azure_extra_params",
        "azure_managed_client_id",
        "azure_model_name",
        "azure_workload_client_id",
        "cache",
        "cb_config",
        "databricks_serving_endpoint_name",
        "default_params",
        "deploymentConfig",
        "deploymentName",
        "deployment_id",
        "deployment_name",
        "deployments",
        "drop_model_prefix",
        "drop_params",
        "fetch_integrated_models",
        "file_purpose",
        "file_upload_size",
        "fireworks_account_id",
        "forward_headers",
        "http_referer",
        "is_key_required",
        "mistral_fim_completion",
        "name",
        "on_status_codes",
        "opc_conversation_store_id",
        "openai_beta",
        "openai_organization",
        "openai_project",
        "oracle_api_version",
        "oracle_compartment_id",
        "oracle_fingerprint",
        "oracle_serving_mode",
        "oracle_tenancy",
        "oracle_user",
        "override_params",
        "passthrough",
        "predibase_tenant",
        "provider_batch_endpoint",
        "provider_file_name",
        "provider_model",
        "provider_responses_proxy",
        "recovery",
        "request_timeout",
        "retry",
        "skipPtuCostAttribution",
        "stability_client_id",
        "stability_client_user_id",
        "stability_client_version",
        "strategy",
        "strict_open_ai_compliance",
        "targets",
        "vault_role",
        "vault_role_id",
        "vertex_auth_type",
        "vertex_map_metadata",
        "vertex_project_id",
        "vertex_skip_ptu_cost_attribution",
        "vertex_storage_bucket_name",
        "weight",
        "workers_ai_account_id",
        "x_title",
    }
)


def address_fields(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a table that decide where its credentials are sent. Unknown fields count as address fields."""
    return {
        name: item
        for name, item in table.items()
        if item is not None and name not in NON_ADDRESS_FIELDS and not is_secret_field(name)
    }


def arbitrary_host_fields(table: Mapping[str, Any]) -> list[str]:
    """Returns the names of fields that may send the table's credentials to an arbitrary host."""
    return sorted(set(address_fields(table)) - PROVIDER_HOST_FIELDS)
