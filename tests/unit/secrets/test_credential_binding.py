"""Which fields decide where a credential goes: each is in one of three lists."""

from __future__ import annotations

from penstock import engine
from penstock.kit import provider_options
from penstock.secrets import references
from penstock.secrets.config_credentials import is_secret_field
from penstock.secrets.credential_binding import (
    NON_ADDRESS_FIELDS,
    PROVIDER_HOST_FIELDS,
    address_fields,
    arbitrary_host_fields,
)

# Of virtual keys, as older clients call them.
OLDER = {"resourceName", "apiVersion", "deploymentName", "deploymentConfig"}

# What names a host that may be anybody's.
ANYBODYS = {
    "aws_sts_endpoint",
    "azure_authority_host",
    # The host of a model that was deployed alone begins with it.
    "azure_deployment_name",
    "azure_endpoint_name",
    "azure_foundry_url",
    "azure_vault_url",
    "custom_host",
    "huggingface_base_url",
    "provider",
    "vault_addr",
    "vault_namespace",
    "virtual_key",
}


def fields() -> set[str]:
    """Every field of an integration, a target of a config, a virtual key and a secret reference."""
    forms = {name for form in provider_options.OPTIONS_BY_PROVIDER.values() for name in form.__struct_fields__}
    options = {header.replace("-", "_") for row in engine.catalogue() for _, header in row["options"]}
    of_configs = set(engine.config_schema()["$defs"]["config"]["properties"])
    ways = [form for _, forms in references.AUTH_CONFIGS.values() for form in forms.values()]
    return forms | options | of_configs | OLDER | {name for form in ways for name in form.__struct_fields__}


def test_each_field_is_known_to_decide_where_a_credential_goes_or_not():
    secret = {name for name in fields() if name in provider_options.SECRET_FIELDS or is_secret_field(name)}
    lists = (ANYBODYS, PROVIDER_HOST_FIELDS, NON_ADDRESS_FIELDS)
    assert sum(map(len, lists)) == len(set().union(*lists))
    assert fields() - secret == set().union(*lists)


def test_what_nobody_thought_of_decides_and_what_is_secret_does_not():
    said = {"made_next_year": "x", "custom_host": "https://a.example", "api_key": "x", "openai_project": "p"}
    assert address_fields(said) == {"made_next_year": "x", "custom_host": "https://a.example"}
    assert arbitrary_host_fields({**said, "aws_region": "eu-west-1", "api_version": "v"}) == [
        "custom_host",
        "made_next_year",
    ]
