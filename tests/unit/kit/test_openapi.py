"""OpenAPI document of the management API."""

from __future__ import annotations

import json

from penstock.app import create_documented_app
from penstock.kit.openapi import SCHEMA_PREFIX, build_openapi


def test_schemas_have_plain_names_and_every_reference_leads_to_one():
    described = build_openapi(create_documented_app())
    names = described["components"]["schemas"].keys()
    assert "ScopeList" in names
    # A name with a dot or an underscore contains the module of a type.
    assert not [name for name in names if not name.isalnum()]
    references = set(json.dumps(described).split(f'"$ref": "{SCHEMA_PREFIX}')[1:])
    assert {reference.partition('"')[0] for reference in references} <= names
