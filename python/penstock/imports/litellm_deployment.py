"""Rows of LiteLLM's `model_list`: each becomes a target with a provider, a model and parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.imports.litellm_credentials import CredentialReader
from penstock.imports.litellm_providers import PROVIDERS, ProviderRule, split_model
from penstock.imports.litellm_values import ENV_PREFIX, read_timeout_ms, resolve_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.imports.findings import Node
    from penstock.imports.state import StateBuilder

JsonObject = dict[str, Any]

MAX_RETRIES = 5
# Request parameters for which a row has a default value. A client's own value precedes it.
REQUEST_PARAMETERS = frozenset(
    [
        "audio",
        "dimensions",
        "encoding_format",
        "frequency_penalty",
        "function_call",
        "functions",
        "input_type",
        "instructions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "modalities",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "quality",
        "reasoning_effort",
        "repetition_penalty",
        "response_format",
        "safety_settings",
        "seed",
        "service_tier",
        "size",
        "stop",
        "store",
        "stream_options",
        "style",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "voice",
        "web_search_options",
    ]
)
# LiteLLM's fields with prices in US dollars, and the names of these prices in `pay_as_you_go`.
TOKEN_PRICES = {
    "input_cost_per_token": "request_token",
    "output_cost_per_token": "response_token",
    "cache_read_input_token_cost": "cache_read_input_token",
    "cache_creation_input_token_cost": "cache_write_input_token",
    "input_cost_per_audio_token": "request_audio_token",
    "output_cost_per_audio_token": "response_audio_token",
    "output_cost_per_reasoning_token": "reasoning_token",
}
INFORMATION_ONLY = "information for LiteLLM's interface; the gateway has a model list of its own"
MANUAL_PARAMS = {
    "tags": "tag routing: use a condition on metadata.<key> in the config",
    "budget_duration": "set usage_limits of the provider, or a usage limits policy",
    "max_budget": "set usage_limits of the provider, or a usage limits policy",
    "max_parallel_requests": "there is no limit of concurrent requests; use a rate limits policy",
    "configurable_clientside_auth_params": "clients send their own credential without a saved provider, see clients.md",
    "guardrails": "create the guardrails, and name them in input_guardrails or output_guardrails of the config",
    "prompt_id": "create the prompt, and call it by its slug",
    "merge_reasoning_content_in_choices": "reasoning is a field of its own in responses",
    "use_in_pass_through": "a request with x-gateway-provider can be passed through to any saved provider",
    "use_chat_completions_api": "the gateway chooses the API of the provider by itself",
    "cooldown_time": "circuit breakers have one cool-down per config; change cb_config in the config",
    "health_check_model": "the gateway sends no health checks",
}
INFORMATION_PARAMS = {
    "drop_params": "parameters that a provider does not have are always dropped, and listed in a header",
    "modify_params": "parameters that a provider does not have are always dropped, and listed in a header",
    "stream": "the client decides whether a response is streamed",
    "allowed_openai_params": INFORMATION_ONLY,
    "supports_system_message": INFORMATION_ONLY,
    "litellm_trace_id": INFORMATION_ONLY,
}
UNSUPPORTED_PARAMS = {
    "mock_response": "a model cannot have a fixed response; for tests, use the mock provider",
    "mock_tool_calls": "a model cannot have a fixed response; for tests, use the mock provider",
    "region_name": "deployments are not chosen by the region of the client",
}


class Deployment(NamedTuple):
    """One row of `model_list`."""

    model_name: str
    node: Node
    target: JsonObject
    weights: Mapping[str, float]
    order: float
    access_groups: tuple[str, ...]
    provider: str = ""
    upstream_model: str = ""
    # True if the model name for the provider contains `*`, which stands for a part of the client's model name.
    has_wildcard: bool = False
    retries: int | None = None


def read_deployment(row: Node, credentials: Mapping[str, Node], state: StateBuilder) -> Deployment | None:
    """Reads a row of `model_list`; returns `None` if it cannot be imported, with a finding that contains the reason."""
    name_node, params = row.child("model_name"), row.child("litellm_params")
    if name_node is None or params is None or not params.is_mapping:
        row.report_unsupported("a row needs model_name and litellm_params")
        return None
    model_name, model_node = name_node.text(), params.child("model")
    model = resolve_text(model_node) if model_node else None
    if model_name is None or model_node is None or model is None or not (model_name + model).isprintable():
        row.report_unsupported("a row needs names of its model without control characters")
        return None
    provider_node = params.child("custom_llm_provider")
    custom = provider_node.text() if provider_node else None
    provider, upstream = split_model(model, custom)
    rule = _find_rule(provider, params)
    if rule is None or not upstream or model.startswith("${"):
        if model == "*":
            row.report_manual("a row for the models of all providers; add one for each provider, such as `openai/*`")
            return None
        subject = f"the provider {provider!r}" if provider else "the provider of this model"
        row.report_unsupported(f"{subject} is not supported; an OpenAI-compatible one: `openai/<model>` with api_base")
        return None
    model_node.report_exact(f"model {upstream!r} of {rule.slug}")
    if provider_node:
        provider_node.report_exact(f"provider {rule.slug}")
    reader = CredentialReader(params, _find_credential(params, credentials), rule, provider or "openai")
    slug = reader.add_integration(state, upstream, _read_base_model(row))
    target: JsonObject = {"provider": f"@{slug}"}
    if "*" not in upstream:
        target["override_params"] = {"model": upstream}
    deployment = _RowReader(row, params, target).read()
    _read_prices(row, params, state, (slug, upstream))
    name_node.report_exact()
    return Deployment(
        model_name,
        row,
        target,
        deployment.weights,
        deployment.order,
        deployment.access_groups,
        slug,
        upstream,
        has_wildcard="*" in upstream,
        retries=deployment.retries,
    )


def _find_rule(provider: str | None, params: Node) -> ProviderRule | None:
    if provider in PROVIDERS:
        return PROVIDERS[provider or ""]
    # LiteLLM treats an unknown provider with its own address as compatible with OpenAI.
    has_address = any(params.child(name) for name in ("api_base", "base_url"))
    return ProviderRule("openai") if provider is None and has_address else None


def _find_credential(params: Node, credentials: Mapping[str, Node]) -> Node | None:
    credential_node = params.child("litellm_credential_name")
    if credential_node is None:
        return None
    name = credential_node.text() or ""
    if name not in credentials:
        credential_node.report_manual("names no credential of credential_list; set the key of the integration")
        return None
    credential_node.report_exact()
    return credentials[name].child("credential_values")


def _read_base_model(row: Node) -> str | None:
    locations = (row.child("model_info"), row.child("litellm_params"))
    nodes = [result for location in locations if location and (result := location.child("base_model"))]
    for item in nodes:
        item.report_approximate("used as the model of an Azure deployment, otherwise without effect")
    return next((text.partition("/")[2] or text for node in nodes if (text := node.text())), None)


class _RowReader:
    """Reads the fields of a row, except for its credential: parameters, weights, limits, timeouts and model
    information.
    """

    def __init__(self, row: Node, params: Node, target: JsonObject) -> None:
        self._row, self._params, self._target = row, params, target
        self.weights: dict[str, float] = {}
        self.order = 0.0
        self.retries: int | None = None
        self.access_groups: tuple[str, ...] = ()

    def read(self) -> _RowReader:
        """Reads all fields of the row."""
        defaults: JsonObject = {}
        for field in self._params.fields():
            if field.name in REQUEST_PARAMETERS:
                self._read_parameter(field, defaults)
            elif field.name in MANUAL_PARAMS:
                field.report_manual(MANUAL_PARAMS[field.name])
            elif field.name in UNSUPPORTED_PARAMS:
                field.report_unsupported(UNSUPPORTED_PARAMS[field.name])
            else:
                self._read_field(field)
        if defaults:
            self._target["default_params"] = defaults
        for field in self._row.fields():
            if field.name == "model_info":
                self._read_info(field)
            elif field.name in {"weight", "rpm", "tpm", "order"}:
                self._read_number(field)
        return self

    def _read_parameter(self, field: Node, defaults: JsonObject) -> None:
        if isinstance(field.value, str) and field.value.startswith(ENV_PREFIX):
            field.report_manual("a config has no environment variables in parameters; set the value in default_params")
            return
        defaults[field.name] = field.value
        field.report_exact("default_params: used if the client does not send it")

    def _read_field(self, field: Node) -> None:
        name = field.name
        if name in {"weight", "rpm", "tpm", "order"}:
            self._read_number(field)
        elif name in {"timeout", "request_timeout", "stream_timeout"}:
            self._read_timeout(field)
        elif name in {"num_retries", "max_retries"}:
            self.retries = read_retries(field)
        elif name == "extra_body":
            self._read_extra_body(field)
        elif name == "additional_drop_params":
            if paths := field.texts():
                self._target["drop_params"] = paths
                field.report_exact("drop_params")
        elif name in INFORMATION_PARAMS:
            field.report_approximate(INFORMATION_PARAMS[name])

    def _read_number(self, field: Node) -> None:
        number = field.number()
        if number is None:
            return
        if field.name == "order":
            self.order = number
            field.report_exact("order of a fallback")
        else:
            self.weights[field.name] = number
            field.report_approximate("used as weight of load balancing, if several rows have this model_name")

    def _read_timeout(self, field: Node) -> None:
        if field.name == "stream_timeout" and (self._params.child("timeout") or "request_timeout" in self._target):
            field.report_manual("request_timeout is the one timeout of a target, for streams and other responses")
        elif timeout := read_timeout_ms(field):
            self._target["request_timeout"] = timeout

    def _read_extra_body(self, field: Node) -> None:
        if not field.is_mapping:
            field.report_unsupported("must be a mapping")
            return
        others = {name: value for name, value in cast("JsonObject", field.value).items() if name != "model"}
        self._target.setdefault("override_params", {}).update(others)
        field.report_exact("override_params")

    def _read_info(self, info: Node) -> None:
        for field in info.fields():
            if field.name == "access_groups":
                self.access_groups = tuple(field.texts())
                field.report_exact("models of a key may be named by the group")
            elif field.name == "mode":
                if field.value in {"audio_transcription", "image_edit"}:
                    field.report_manual(
                        "conditions cannot read forms, so such a request reaches no model of this config; "
                        "send it with a config that names this provider alone"
                    )
                else:
                    field.report_exact("the path of a request says what it is")
            elif field.name not in {"base_model", *TOKEN_PRICES}:
                field.report_approximate(INFORMATION_ONLY)


def read_retries(field: Node) -> int | None:
    """Returns the number of retries, limited to the maximum of a config."""
    number = field.number()
    if number is None:
        return None
    if number > MAX_RETRIES or number != int(number):
        field.report_approximate(f"retry.attempts: at most {MAX_RETRIES}, a whole number")
        return min(MAX_RETRIES, int(number))
    field.report_approximate(
        "retry.attempts: a retry goes to the same target; LiteLLM may choose another row of the model"
    )
    return int(number)


def _read_prices(row: Node, params: Node, state: StateBuilder, target: tuple[str, str]) -> None:
    prices: dict[str, float] = {}
    for location in (row.child("model_info"), params):
        for name, ours in TOKEN_PRICES.items() if location else ():
            field = location.child(name) if location else None
            price = field.number() if field else None
            if field is None or price is None:
                continue
            if price > 1:
                field.report_unsupported("is more than one US dollar per token")
                continue
            prices[ours] = price
            field.report_exact("pricing_config of the model in the integration")
    if prices and "*" not in target[1]:
        state.set_model_price(*target, prices)
