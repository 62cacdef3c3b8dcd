"""Credentials within configs. Separates secrets from plain values, and restores masked secrets to their place or
rejects the masks.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidError
from penstock.secrets.config_credentials import (
    SplitDocument,
    decode_secrets,
    encode_secrets,
    is_same_document,
    join_credentials,
    split_credentials,
)
from penstock.secrets.masks import has_unknown_masks, restore_masks

KEY, OTHER = "sk-0123456789-abc", "sk-9876543210-abc"
MASK = "sk*****abc"
NO_CREDENTIALS = SplitDocument({}, {})


def make_pool_config(*keys: str, **more: object) -> dict[str, Any]:
    return {
        "strategy": {"mode": "loadbalance"},
        "targets": [
            {"provider": "openai", "api_key": key, "weight": weight, **more} for weight, key in enumerate(keys, 1)
        ],
    }


@pytest.mark.parametrize(
    "config",
    [
        {"api_key": KEY},
        {"aws_secret_access_key": KEY},
        {"targets": [{"targets": [{"azure_entra_client_secret": KEY}]}]},
        {"vertex_service_account_json": '{"private_key": "' + KEY + '"}'},
        {"override_params": {"tools": [{"type": "mcp", "headers": {"Authorization": KEY, "x-team": KEY}}]}},
        {"default_params": {"extra_headers": {"x-team": KEY}}},
        {"default_params": {"metadata": {"tokens": [KEY, KEY]}}},
        {"override_params": {"said": '{"nested": {"apiKey": "' + KEY + '"}}'}},
        {"override_params": {"tools": [{"type": "mcp", "server_url": f"https://mcp.test/sse?api_key={KEY}&a=b"}]}},
        {"override_params": {"webhook": f"https://user:{KEY}@hooks.test"}},
        {"override_params": {"tools": [{"headers": [{"name": "x-team", "value": KEY}]}]}},
        {"override_params": {"fields": [{"name": "Authorization", "value": KEY}]}},
        {"override_params": {"parameters": {"api_key": KEY}, "metadata": {"properties": {"api_key": KEY}}}},
        {"override_params": {"metadata": {"strategy": {"api_key": KEY}}}},
    ],
)
def test_finds_and_restores_secrets_at_any_depth(config: dict[str, Any]):
    divided = split_credentials(config)
    assert KEY not in str(divided.masked)
    remaining = SplitDocument(divided.masked, decode_secrets(encode_secrets(divided.secrets)))
    assert join_credentials(remaining) == config
    assert restore_masks("config", divided.masked, remaining) == config


def test_url_secrets_are_masked_and_the_host_is_shown():
    config = {"custom_host": f"https://me:{KEY}@host.test/v1", "default_params": {"url": f"https://a.test/b?sig={KEY}"}}
    credentials = split_credentials(config).masked
    assert (credentials["custom_host"], credentials["default_params"]["url"]) == (
        "https://*****@host.test/v1",
        "https://a.test/b?*****",
    )
    credentials["default_params"]["url"] = "https://elsewhere.test/b?*****"
    with pytest.raises(InvalidError, match=r"default_params\.url is masked"):
        restore_masks("config", credentials, split_credentials(config))


@pytest.mark.parametrize(
    "params",
    [
        {"author": "Somebody Else", "tokenizer": "cl100k_base", "keywords": ["a long keyword"], "stop": ["*****"]},
        {"stop_token": "<|end_of_text|>", "prompt_cache_key": "customer-12345", "max_output_tokens": "1000000000"},
        {"tools": [{"parameters": {"type": "OBJECT", "required": ["api_key_of_theirs"], "title": "api key"}}]},
        {"response_format": {"json_schema": {"schema": {"$defs": {"ApiToken": {"title": "token of theirs"}}}}}},
        {"tools": [{"input_schema": {"type": "object", "dependentRequired": {"token": ["signature_of_it"]}}}]},
        {"anything": {"definitions": {"ApiToken": {"title": "token of theirs"}}}},
        {"image_url": {"url": "https://images.test/cat.png?size=1234567890#keyword"}},
    ],
)
def test_other_parameters_are_shown(params: dict[str, Any]):
    config = {"override_params": params, "vertex_auth_type": "service-account"}
    assert split_credentials(config) == SplitDocument(config, {})


def test_conditions_are_shown():
    condition = {"query": {"metadata.api_key": {"$eq": "gold-customers"}}, "then": "a"}
    config = {"targets": [{"strategy": {"mode": "conditional", "conditions": [condition]}, "targets": [{"name": "a"}]}]}
    assert split_credentials(config) == SplitDocument(config, {})


def test_plain_values_are_shown():
    tool = {"type": "function", "function": {"parameters": {"properties": {"api_key": {"description": "which one"}}}}}
    config = {
        "targets": [{"virtual_key": "openai-prod", "forward_headers": ["authorization"], "azure_auth_mode": "entra"}],
        "strategy": {"mode": "single"},
        "override_params": {"max_tokens": 5, "tools": [tool], "stop": "*****"},
    }
    assert split_credentials(config) == SplitDocument(config, {})
    assert restore_masks("config", config, NO_CREDENTIALS) == config


def test_credentials_follow_reordered_added_and_removed_targets():
    before = split_credentials(make_pool_config(KEY, OTHER))
    assert [target["api_key"] for target in before.masked["targets"]] == [MASK, MASK]
    first, second = before.masked["targets"]
    new = {"provider": "openai", "api_key": "sk-quite-another"}
    for sent, keys in (
        ([second, first], [OTHER, KEY]),
        ([new, second], [new["api_key"], OTHER]),
        ([{**first, "weight": 9}, second], [KEY, OTHER]),
        ([first, second, second], [KEY, OTHER, OTHER]),
        ([second], [OTHER]),
    ):
        complete = restore_masks("config", {**before.masked, "targets": sent}, before)
        assert [target["api_key"] for target in complete["targets"]] == keys


def test_named_targets_keep_their_credentials():
    config = make_pool_config(KEY, OTHER)
    for name, target in zip("ab", config["targets"], strict=True):
        target["name"] = name
    before = split_credentials(config)
    swapped = [{**target, "weight": 7} for target in reversed(before.masked["targets"])]
    complete = restore_masks("config", {**before.masked, "targets": swapped}, before)
    assert [target["api_key"] for target in complete["targets"]] == [OTHER, KEY]


def test_rejects_ambiguous_masks_with_their_path():
    before = split_credentials(make_pool_config(KEY, OTHER))
    changed = [{**target, "weight": 7 + index} for index, target in enumerate(before.masked["targets"])]
    with pytest.raises(InvalidError, match="several credentials") as refused:
        restore_masks("config", {**before.masked, "targets": changed}, before)
    assert [problem.path for problem in refused.value.problems] == [
        f"config.targets[{index}].api_key" for index in (0, 1)
    ]


def test_credential_is_not_sent_to_another_provider_or_host():
    before = split_credentials({"targets": [{"provider": "openai", "api_key": KEY}]})
    for more in ({"provider": "anthropic"}, {"custom_host": "https://elsewhere.test/v1"}):
        sent = {"targets": [{**before.masked["targets"][0], **more}]}
        with pytest.raises(InvalidError, match=r"config\.targets\[0\]\.api_key is masked"):
            restore_masks("config", sent, before)
    around = {"custom_host": "https://elsewhere.test/v1", **before.masked}
    with pytest.raises(InvalidError, match="is masked"):
        restore_masks("config", around, before)


@pytest.mark.parametrize(
    ("member", "other"),
    [
        ("azure_foundry_url", "https://elsewhere.test"),
        ("resource_name", "another"),
        ("azure_deployment_type", "serverless"),
        ("azure_deployment_name", "another"),
        ("azure_region", "westus"),
        ("azure_authority_host", "https://elsewhere.test"),
        ("azure_entra_tenant_id", "another"),
        ("aws_region", "elsewhere.test/"),
        ("aws_sts_endpoint", "https://elsewhere.test"),
        ("oracle_region", "another"),
        ("huggingface_base_url", "https://elsewhere.test"),
        ("snowflake_account", "another"),
        ("databricks_workspace", "another"),
        ("virtual_key", "another"),
        ("made_next_year", {"host": "elsewhere.test"}),
    ],
)
def test_credential_requires_unchanged_address_fields(member: str, other: object):
    group = {"provider": "one", "targets": [{"api_key": KEY, member: "first", "weight": 1}]}
    for before in (split_credentials(group), split_credentials({"targets": [group]})):
        complete = {**before.masked, "cache": "simple", "request_timeout": 5, "override_params": {"a": 1}}
        assert KEY in str(restore_masks("config", complete, before))
    before = split_credentials(group)
    (target,) = before.masked["targets"]
    lost = {name: item for name, item in target.items() if name != member}
    assert KEY in str(
        restore_masks("config", {**before.masked, "targets": [{**target, "weight": 2, "name": "b"}]}, before)
    )
    for changed in ({**target, member: other}, lost):
        with pytest.raises(InvalidError, match="is masked, and stands for no credential"):
            restore_masks("config", {**before.masked, "targets": [changed]}, before)
    with pytest.raises(InvalidError, match="is masked"):
        restore_masks("config", {**before.masked, member: other}, before)


@pytest.mark.parametrize("member", ["openai_project", "api_version", "deployment_id", "aws_role_arn", "passthrough"])
def test_credential_stays_if_other_options_change(member: str):
    before = split_credentials({"provider": "one", "api_key": KEY, member: "first"})
    assert KEY in str(restore_masks("config", {**before.masked, member: "another"}, before))


@pytest.mark.parametrize(
    "moved",
    [
        {"override_params": {"api_key": MASK}},
        {"override_params": {"metadata": {"api_key": MASK}}},
        {"override_params": {"provider": "openai", "api_key": MASK}},
        {"default_params": {"targets": [{"provider": "openai", "api_key": MASK}]}},
        {"azure_ad_token": MASK},
    ],
)
def test_rejects_a_mask_moved_to_another_field(moved: dict[str, Any]):
    before = split_credentials({"provider": "openai", "api_key": KEY})
    with pytest.raises(InvalidError, match="is masked"):
        restore_masks("config", {"provider": "openai", **moved}, before)


MCP_TOOL = {
    "type": "mcp",
    "server_url": "https://mcp.test",
    "authorization": KEY,
    "headers": [{"name": "x-team", "value": OTHER}],
}


def make_tools_config(*rows: dict[str, Any], **more: object) -> dict[str, Any]:
    targets = [{"provider": "openai", "name": "a"}, {"targets": [{"virtual_key": "b"}]}]
    return {"override_params": {"tools": [*rows], **more}, "targets": targets}


def test_parameter_secrets_require_unchanged_siblings():
    before = split_credentials(make_tools_config(MCP_TOOL))
    assert KEY not in str(before.masked)
    (tool,) = before.masked["override_params"]["tools"]
    for sent in (
        make_tools_config(tool, temperature=1),
        make_tools_config({"type": "function"}, tool),
        {**before.masked, "strategy": {}},
    ):
        assert KEY in str(restore_masks("config", sent, before))
        assert OTHER in str(restore_masks("config", sent, before))
    with pytest.raises(InvalidError) as refused:
        restore_masks("config", make_tools_config({**tool, "server_url": "https://elsewhere.test"}), before)
    locations = [problem.path.removeprefix("config.override_params.tools[0].") for problem in refused.value.problems]
    assert locations == ["authorization", "headers[0].value"]


@pytest.mark.parametrize(
    "targets",
    [
        [{"provider": "anthropic"}, {"targets": [{"virtual_key": "b"}]}],
        [{"provider": "openai"}, {"targets": [{"virtual_key": "c"}]}],
        [{"provider": "openai"}, {"targets": [{"virtual_key": "b"}, {"provider": "mock"}]}],
        [{"provider": "openai"}, {"targets": [{"virtual_key": "b"}], "custom_host": "https://elsewhere.test"}],
        [{"provider": "openai"}],
    ],
)
def test_parameter_secrets_do_not_reach_other_targets(targets: list[Any]):
    before = split_credentials(make_tools_config(MCP_TOOL))
    assert KEY in str(restore_masks("config", {**before.masked, "targets": before.masked["targets"][::-1]}, before))
    with pytest.raises(InvalidError, match="is masked"):
        restore_masks("config", {**before.masked, "targets": targets}, before)


@pytest.mark.parametrize("location", [("hook",), ("hook", "auth"), ()])
def test_parameter_secret_requires_an_unchanged_url(location: tuple[str, ...]):
    def make_config(address: str, secret: str) -> dict[str, Any]:
        inner: dict[str, Any] = {"token": secret}
        if location[1:]:
            inner = {"auth": inner}
        inner["url"] = address
        return {"provider": "openai", "override_params": {"hook": inner} if location else inner}

    before = split_credentials(make_config("https://one.test", KEY))
    assert KEY in str(restore_masks("config", before.masked, before))
    with pytest.raises(InvalidError, match="is masked"):
        restore_masks("config", make_config("https://elsewhere.test", MASK), before)


def test_older_version_is_used_only_for_unknown_masks():
    last, older = (
        split_credentials(make_pool_config(KEY, OTHER)),
        split_credentials(make_pool_config("sk-quite-another-abc")),
    )
    changed = [{**target, "weight": 7 + index} for index, target in enumerate(last.masked["targets"])]
    sent = {**last.masked, "targets": changed}
    assert not has_unknown_masks(sent, last)
    with pytest.raises(InvalidError, match="several credentials"):
        restore_masks("config", sent, last, [older])
    last, older = (
        split_credentials(make_pool_config(KEY)),
        split_credentials({"targets": [{"provider": "mock", "api_key": OTHER}]}),
    )
    sent = {"targets": [*last.masked["targets"], *older.masked["targets"]]}
    assert has_unknown_masks(sent, last)
    complete = restore_masks("config", sent, last, [last, older])
    assert [target["api_key"] for target in complete["targets"]] == [KEY, OTHER]
    another = split_credentials({"targets": [{"provider": "mock", "api_key": "sk-quite-another-abc"}]})
    with pytest.raises(InvalidError, match="several credentials"):
        restore_masks("config", sent, last, [older, another])


def test_compares_json_types_strictly():
    for item, other in ((1, True), (1, 1.0), (0, False)):
        assert not is_same_document(split_credentials({"a": item}), split_credentials({"a": other}))
    assert is_same_document(split_credentials({"api_key": KEY}), split_credentials({"api_key": KEY}))
    assert not is_same_document(split_credentials({"api_key": KEY}), split_credentials({"api_key": OTHER}))


JSON_LEAVES = st.sampled_from(
    [KEY, OTHER, "short", "", 1, 1.0, True, None, "https://a.test?key=b", '{"token": "a"}', "gpt-4o", "object"]
)
MEMBER_NAMES = st.sampled_from(
    [
        "api_key",
        "name",
        "value",
        "headers",
        "provider",
        "targets",
        "strategy",
        "override_params",
        "tools",
        "type",
        "parameters",
        "properties",
        "a",
    ]
)
JSON_VALUES = st.recursive(
    JSON_LEAVES, lambda part: st.lists(part, max_size=3) | st.dictionaries(MEMBER_NAMES, part, max_size=4)
)


# No deadline, since the run time means nothing on a busy machine.
@settings(deadline=None, derandomize=True, database=None)
@given(st.dictionaries(MEMBER_NAMES, JSON_VALUES, max_size=5))
def test_unchanged_masked_config_restores_the_original(config: dict[str, Any]):
    before = split_credentials(config)
    remaining = SplitDocument(before.masked, decode_secrets(encode_secrets(before.secrets)))
    again = restore_masks("config", before.masked, remaining, [before])
    assert is_same_document(split_credentials(again), before)
    assert join_credentials(before) == config


def test_restores_many_credentials_at_once():
    rows = [{"name": f"x-{index}", "value": f"{KEY}-{index}-abc"} for index in range(1000)]
    config = {
        **make_pool_config(*(f"{KEY}-{index}-abc" for index in range(1000))),
        "override_params": {"headers": rows},
    }
    before = split_credentials(config)
    assert restore_masks("config", before.masked, before) == config


def test_rejects_a_mask_without_a_credential():
    with pytest.raises(InvalidError, match=r"config\.api_key is masked"):
        restore_masks("config", {"provider": "openai", "api_key": MASK}, NO_CREDENTIALS)
    # A value that is secret only because of its embedded JSON.
    before = split_credentials({"provider": "openai", "override_params": {"said": '{"api_key": "' + KEY + '"}'}})
    with pytest.raises(InvalidError, match=r"override_params\.said is masked"):
        restore_masks("config", {**before.masked, "provider": "anthropic"}, before)
