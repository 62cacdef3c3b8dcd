"""Credential binding fields. Each option field is in exactly one of three lists, by whether it decides the host that
receives a credential.
"""

from __future__ import annotations

from penstock import engine
from penstock.engine import is_secret_field
from penstock.integrations import provider_options
from penstock.secrets import references
from penstock.secrets.credential_binding import (
    NON_ADDRESS_FIELDS,
    PROVIDER_HOST_FIELDS,
    address_fields,
    arbitrary_host_fields,
)

# Names of virtual key options that older clients use.
LEGACY_OPTION_NAMES = {"resourceName", "apiVersion", "deploymentName", "deploymentConfig"}

# Fields that can name any host, also one of an attacker.
ARBITRARY_HOST_FIELDS = {
    "aws_sts_endpoint",
    "azure_authority_host",
    # The host name of a standalone model deployment starts with it.
    "azure_deployment_name",
    "azure_endpoint_name",
    "azure_foundry_url",
    "azure_vault_url",
    "custom_host",
    # Guardrails name the hosts of webhooks, to which they send their credentials.
    "after_request_hooks",
    "before_request_hooks",
    "input_guardrails",
    "input_mutators",
    "output_guardrails",
    "output_mutators",
    "huggingface_base_url",
    "provider",
    "vault_addr",
    "vault_namespace",
    "virtual_key",
}


def all_option_fields() -> set[str]:
    """Returns every field of an integration, a config target, a virtual key and a secret reference."""
    forms = {name for form in provider_options.OPTIONS_BY_PROVIDER.values() for name in form.__struct_fields__}
    options = {header.replace("-", "_") for row in engine.catalogue() for _, header in row["options"]}
    of_configs = set(engine.config_schema()["$defs"]["config"]["properties"])
    ways = [form for _, forms in references.AUTH_CONFIGS.values() for form in forms.values()]
    return (
        forms | options | of_configs | LEGACY_OPTION_NAMES | {name for form in ways for name in form.__struct_fields__}
    )


def test_each_field_is_classified_as_address_or_not():
    secret = {name for name in all_option_fields() if name in provider_options.SECRET_FIELDS or is_secret_field(name)}
    lists = (ARBITRARY_HOST_FIELDS, PROVIDER_HOST_FIELDS, NON_ADDRESS_FIELDS)
    assert sum(map(len, lists)) == len(set().union(*lists))
    assert all_option_fields() - secret == set().union(*lists)


def test_unknown_fields_count_as_address_and_secrets_do_not():
    content = {"made_next_year": "x", "custom_host": "https://a.example", "api_key": "x", "openai_project": "p"}
    assert address_fields(content) == {"made_next_year": "x", "custom_host": "https://a.example"}
    assert arbitrary_host_fields({**content, "aws_region": "eu-west-1", "api_version": "v"}) == [
        "custom_host",
        "made_next_year",
    ]
