"""Which fields decide where a credential goes: each is in one of two lists."""

from __future__ import annotations

from penstock import engine
from penstock.kit import configurations, references
from penstock.kit.addresses import BESIDE, DECIDING, whom
from penstock.kit.credentials import is_named_secret

# Of virtual keys, as older clients call them.
OLDER = {"resourceName", "apiVersion", "deploymentName", "deploymentConfig"}


def fields() -> set[str]:
    """Every field of an integration, a target of a config, a virtual key and a secret reference."""
    forms = {name for form in configurations.FORMS.values() for name in form.__struct_fields__}
    options = {header.replace("-", "_") for row in engine.catalogue() for _, header in row["options"]}
    of_configs = set(engine.config_schema()["$defs"]["config"]["properties"])
    ways = [form for _, forms in references.FORMS.values() for form in forms.values()]
    return forms | options | of_configs | OLDER | {name for form in ways for name in form.__struct_fields__}


def test_each_field_is_known_to_decide_where_a_credential_goes_or_not():
    secret = {name for name in fields() if name in configurations.SECRET or is_named_secret(name)}
    assert not DECIDING & BESIDE
    assert fields() - secret == DECIDING | BESIDE


def test_what_nobody_thought_of_decides_and_what_is_secret_does_not():
    said = {"made_next_year": "x", "custom_host": "https://a.example", "api_key": "x", "openai_project": "p"}
    assert whom(said) == {"made_next_year": "x", "custom_host": "https://a.example"}
