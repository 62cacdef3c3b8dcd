"""What is secret within a config is told from what is not, and comes back to where it belongs, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidError
from penstock.secrets.config_credentials import Divided, divide, is_same, joined, read, write
from penstock.secrets.masks import has_strangers, restored

KEY, OTHER = "sk-0123456789-abc", "sk-9876543210-abc"
MASK = "sk*****abc"
NOTHING = Divided({}, {})


def pool(*keys: str, **more: object) -> dict[str, Any]:
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
def test_what_is_secret_is_found_at_any_depth_and_put_back(config: dict[str, Any]):
    divided = divide(config)
    assert KEY not in str(divided.shown)
    kept = Divided(divided.shown, read(write(divided.hidden)))
    assert joined(kept) == config
    assert restored("config", divided.shown, kept) == config


def test_of_an_address_is_shown_where_it_leads_to():
    config = {"custom_host": f"https://me:{KEY}@host.test/v1", "default_params": {"url": f"https://a.test/b?sig={KEY}"}}
    shown = divide(config).shown
    assert (shown["custom_host"], shown["default_params"]["url"]) == (
        "https://*****@host.test/v1",
        "https://a.test/b?*****",
    )
    shown["default_params"]["url"] = "https://elsewhere.test/b?*****"
    with pytest.raises(InvalidError, match=r"default_params\.url is masked"):
        restored("config", shown, divide(config))


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
def test_what_parameters_say_otherwise_is_shown(params: dict[str, Any]):
    config = {"override_params": params, "vertex_auth_type": "service-account"}
    assert divide(config) == Divided(config, {})


def test_conditions_are_shown():
    condition = {"query": {"metadata.api_key": {"$eq": "gold-customers"}}, "then": "a"}
    config = {"targets": [{"strategy": {"mode": "conditional", "conditions": [condition]}, "targets": [{"name": "a"}]}]}
    assert divide(config) == Divided(config, {})


def test_what_is_no_secret_is_shown():
    tool = {"type": "function", "function": {"parameters": {"properties": {"api_key": {"description": "which one"}}}}}
    config = {
        "targets": [{"virtual_key": "openai-prod", "forward_headers": ["authorization"], "azure_auth_mode": "entra"}],
        "strategy": {"mode": "single"},
        "override_params": {"max_tokens": 5, "tools": [tool], "stop": "*****"},
    }
    assert divide(config) == Divided(config, {})
    assert restored("config", config, NOTHING) == config


def test_credentials_follow_targets_that_change_places_come_and_go():
    before = divide(pool(KEY, OTHER))
    assert [target["api_key"] for target in before.shown["targets"]] == [MASK, MASK]
    first, second = before.shown["targets"]
    new = {"provider": "openai", "api_key": "sk-quite-another"}
    for sent, keys in (
        ([second, first], [OTHER, KEY]),
        ([new, second], [new["api_key"], OTHER]),
        ([{**first, "weight": 9}, second], [KEY, OTHER]),
        ([first, second, second], [KEY, OTHER, OTHER]),
        ([second], [OTHER]),
    ):
        whole = restored("config", {**before.shown, "targets": sent}, before)
        assert [target["api_key"] for target in whole["targets"]] == keys


def test_targets_that_have_names_are_told_apart_though_all_else_changes():
    config = pool(KEY, OTHER)
    for name, target in zip("ab", config["targets"], strict=True):
        target["name"] = name
    before = divide(config)
    swapped = [{**target, "weight": 7} for target in reversed(before.shown["targets"])]
    whole = restored("config", {**before.shown, "targets": swapped}, before)
    assert [target["api_key"] for target in whole["targets"]] == [OTHER, KEY]


def test_where_it_cannot_be_told_which_credential_is_meant_it_is_refused_by_its_place():
    before = divide(pool(KEY, OTHER))
    changed = [{**target, "weight": 7 + index} for index, target in enumerate(before.shown["targets"])]
    with pytest.raises(InvalidError, match="several credentials") as refused:
        restored("config", {**before.shown, "targets": changed}, before)
    assert [problem.path for problem in refused.value.problems] == [
        f"config.targets[{index}].api_key" for index in (0, 1)
    ]


def test_a_credential_goes_to_nobody_whom_it_was_not_for():
    before = divide({"targets": [{"provider": "openai", "api_key": KEY}]})
    for more in ({"provider": "anthropic"}, {"custom_host": "https://elsewhere.test/v1"}):
        sent = {"targets": [{**before.shown["targets"][0], **more}]}
        with pytest.raises(InvalidError, match=r"config\.targets\[0\]\.api_key is masked"):
            restored("config", sent, before)
    around = {"custom_host": "https://elsewhere.test/v1", **before.shown}
    with pytest.raises(InvalidError, match="is masked"):
        restored("config", around, before)


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
def test_a_credential_stays_where_nothing_that_decides_where_it_goes_has_changed(member: str, other: object):
    group = {"provider": "one", "targets": [{"api_key": KEY, member: "first", "weight": 1}]}
    for before in (divide(group), divide({"targets": [group]})):
        whole = {**before.shown, "cache": "simple", "request_timeout": 5, "override_params": {"a": 1}}
        assert KEY in str(restored("config", whole, before))
    before = divide(group)
    (target,) = before.shown["targets"]
    lost = {name: item for name, item in target.items() if name != member}
    assert KEY in str(restored("config", {**before.shown, "targets": [{**target, "weight": 2, "name": "b"}]}, before))
    for changed in ({**target, member: other}, lost):
        with pytest.raises(InvalidError, match="is masked, and stands for no credential"):
            restored("config", {**before.shown, "targets": [changed]}, before)
    with pytest.raises(InvalidError, match="is masked"):
        restored("config", {**before.shown, member: other}, before)


@pytest.mark.parametrize("member", ["openai_project", "api_version", "deployment_id", "aws_role_arn", "passthrough"])
def test_a_credential_stays_where_something_else_is_asked_of_the_same(member: str):
    before = divide({"provider": "one", "api_key": KEY, member: "first"})
    assert KEY in str(restored("config", {**before.shown, member: "another"}, before))


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
def test_a_mask_that_was_moved_to_another_place_is_refused(moved: dict[str, Any]):
    before = divide({"provider": "openai", "api_key": KEY})
    with pytest.raises(InvalidError, match="is masked"):
        restored("config", {"provider": "openai", **moved}, before)


TOOL = {
    "type": "mcp",
    "server_url": "https://mcp.test",
    "authorization": KEY,
    "headers": [{"name": "x-team", "value": OTHER}],
}


def tools(*rows: dict[str, Any], **more: object) -> dict[str, Any]:
    targets = [{"provider": "openai", "name": "a"}, {"targets": [{"virtual_key": "b"}]}]
    return {"override_params": {"tools": [*rows], **more}, "targets": targets}


def test_what_is_secret_in_a_parameter_follows_it_where_all_of_it_is_as_it_was():
    before = divide(tools(TOOL))
    assert KEY not in str(before.shown)
    (tool,) = before.shown["override_params"]["tools"]
    for sent in (tools(tool, temperature=1), tools({"type": "function"}, tool), {**before.shown, "strategy": {}}):
        assert KEY in str(restored("config", sent, before))
        assert OTHER in str(restored("config", sent, before))
    with pytest.raises(InvalidError) as refused:
        restored("config", tools({**tool, "server_url": "https://elsewhere.test"}), before)
    places = [problem.path.removeprefix("config.override_params.tools[0].") for problem in refused.value.problems]
    assert places == ["authorization", "headers[0].value"]


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
def test_what_is_secret_in_a_parameter_reaches_no_other_targets(targets: list[Any]):
    before = divide(tools(TOOL))
    assert KEY in str(restored("config", {**before.shown, "targets": before.shown["targets"][::-1]}, before))
    with pytest.raises(InvalidError, match="is masked"):
        restored("config", {**before.shown, "targets": targets}, before)


@pytest.mark.parametrize("place", [("hook",), ("hook", "auth"), ()])
def test_an_address_beside_it_within_a_parameter_stays_too(place: tuple[str, ...]):
    def params(address: str, secret: str) -> dict[str, Any]:
        inner: dict[str, Any] = {"token": secret}
        if place[1:]:
            inner = {"auth": inner}
        inner["url"] = address
        return {"provider": "openai", "override_params": {"hook": inner} if place else inner}

    before = divide(params("https://one.test", KEY))
    assert KEY in str(restored("config", before.shown, before))
    with pytest.raises(InvalidError, match="is masked"):
        restored("config", params("https://elsewhere.test", MASK), before)


def test_an_older_version_is_asked_only_for_what_the_last_one_knows_nothing_of():
    last, older = divide(pool(KEY, OTHER)), divide(pool("sk-quite-another-abc"))
    changed = [{**target, "weight": 7 + index} for index, target in enumerate(last.shown["targets"])]
    sent = {**last.shown, "targets": changed}
    assert not has_strangers(sent, last)
    with pytest.raises(InvalidError, match="several credentials"):
        restored("config", sent, last, [older])
    last, older = divide(pool(KEY)), divide({"targets": [{"provider": "mock", "api_key": OTHER}]})
    sent = {"targets": [*last.shown["targets"], *older.shown["targets"]]}
    assert has_strangers(sent, last)
    whole = restored("config", sent, last, [last, older])
    assert [target["api_key"] for target in whole["targets"]] == [KEY, OTHER]
    another = divide({"targets": [{"provider": "mock", "api_key": "sk-quite-another-abc"}]})
    with pytest.raises(InvalidError, match="several credentials"):
        restored("config", sent, last, [older, another])


def test_what_python_calls_equal_is_not_the_same():
    for one, other in ((1, True), (1, 1.0), (0, False)):
        assert not is_same(divide({"a": one}), divide({"a": other}))
    assert is_same(divide({"api_key": KEY}), divide({"api_key": KEY}))
    assert not is_same(divide({"api_key": KEY}), divide({"api_key": OTHER}))


LEAVES = st.sampled_from(
    [KEY, OTHER, "short", "", 1, 1.0, True, None, "https://a.test?key=b", '{"token": "a"}', "gpt-4o", "object"]
)
WORDS = st.sampled_from(
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
PARTS = st.recursive(LEAVES, lambda part: st.lists(part, max_size=3) | st.dictionaries(WORDS, part, max_size=4))


# How long it takes says nothing on a busy machine.
@settings(deadline=None, derandomize=True, database=None)
@given(st.dictionaries(WORDS, PARTS, max_size=5))
def test_whatever_comes_back_as_it_was_shown_is_as_it_was(config: dict[str, Any]):
    before = divide(config)
    kept = Divided(before.shown, read(write(before.hidden)))
    again = restored("config", before.shown, kept, [before])
    assert is_same(divide(again), before)
    assert joined(before) == config


def test_many_credentials_come_back_at_once():
    rows = [{"name": f"x-{index}", "value": f"{KEY}-{index}-abc"} for index in range(1000)]
    config = {**pool(*(f"{KEY}-{index}-abc" for index in range(1000))), "override_params": {"headers": rows}}
    before = divide(config)
    assert restored("config", before.shown, before) == config


def test_a_mask_of_nothing_is_refused():
    with pytest.raises(InvalidError, match=r"config\.api_key is masked"):
        restored("config", {"provider": "openai", "api_key": MASK}, NOTHING)
    # Where only the whole text says that it is secret.
    before = divide({"provider": "openai", "override_params": {"said": '{"api_key": "' + KEY + '"}'}})
    with pytest.raises(InvalidError, match=r"override_params\.said is masked"):
        restored("config", {**before.shown, "provider": "anthropic"}, before)
