"""Models of TensorZero: each provider of a model becomes a target, in the order of `routing`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.imports.litellm_credentials import AZURE_HOST
from penstock.imports.litellm_providers import Account, adapt_host
from penstock.imports.state import Credential, env_reference

if TYPE_CHECKING:
    from penstock.imports.findings import Node
    from penstock.imports.state import StateBuilder

JsonObject = dict[str, Any]

DEFAULT_AZURE_VERSION = "2024-10-21"
ENV_PREFIX = "env::"


class ProviderRule(NamedTuple):
    """Equivalent provider of this gateway, the environment variable with its key, and whether an address is
    required.
    """

    slug: str
    env: str = ""
    needs_address: bool = False
    account: Account = Account.KEY


PROVIDERS = {
    "anthropic": ProviderRule("anthropic", "ANTHROPIC_API_KEY"),
    "aws_bedrock": ProviderRule("bedrock", account=Account.AWS),
    "aws_sagemaker": ProviderRule("sagemaker", account=Account.AWS),
    "azure": ProviderRule("azure-openai", "AZURE_API_KEY", account=Account.AZURE_OPENAI),
    "deepseek": ProviderRule("deepseek", "DEEPSEEK_API_KEY"),
    "fireworks": ProviderRule("fireworks-ai", "FIREWORKS_API_KEY"),
    "gcp_vertex_anthropic": ProviderRule("vertex-ai", account=Account.GOOGLE_CLOUD),
    "gcp_vertex_gemini": ProviderRule("vertex-ai", account=Account.GOOGLE_CLOUD),
    "google_ai_studio_gemini": ProviderRule("google", "GOOGLE_AI_STUDIO_API_KEY"),
    "groq": ProviderRule("groq", "GROQ_API_KEY"),
    "hyperbolic": ProviderRule("hyperbolic", "HYPERBOLIC_API_KEY"),
    "mistral": ProviderRule("mistral-ai", "MISTRAL_API_KEY"),
    "openai": ProviderRule("openai", "OPENAI_API_KEY"),
    "openrouter": ProviderRule("openrouter", "OPENROUTER_API_KEY"),
    "sglang": ProviderRule("openai", "", needs_address=True),
    "tgi": ProviderRule("openai", "", needs_address=True),
    "together": ProviderRule("together-ai", "TOGETHER_API_KEY"),
    "vllm": ProviderRule("openai", "", needs_address=True),
    "xai": ProviderRule("x-ai", "XAI_API_KEY"),
}
MODEL_FIELDS = ("model_name", "model_id", "deployment_id", "endpoint_name", "endpoint_id")
MANUAL_FIELDS = {
    "extra_body": "set override_params of the target in the config",
    "extra_headers": "set custom_headers of the integration",
    "cost": "set pricing_config of the model in the integration",
    "batch_cost": "set pricing_config of the model in the integration",
    "provider_tools": "set tools in default_params of the target",
    "beta_structured_outputs": "set response_format in the request",
    "service_tier": "set service_tier in override_params of the target",
    "thinking": "set thinking in default_params of the target",
}
INFORMATION_FIELDS = frozenset(
    [
        "discard_unknown_chunks",
        "allow_auto_detect_region",
        "api_type",
        "include_encrypted_reasoning",
        "model_name_for_cost",
        "hosted_provider",
        "namespace",
        "skip_relay",
    ]
)


def read_provider(node: Node, state: StateBuilder) -> JsonObject | None:
    """Returns the target for one provider of a model. Returns `None` and marks the provider if it is not supported."""
    kind = node.child("type")
    name = kind.text() if kind else None
    rule = PROVIDERS.get(name or "")
    if kind is None or rule is None:
        node.report_unsupported(
            "the type of the provider is not supported; an OpenAI-compatible one: openai with api_base"
        )
        return None
    model_node = next((value for field in MODEL_FIELDS if (value := node.child(field))), None)
    model = model_node.text() if model_node else None
    if model_node is None or model is None or not model.isprintable():
        node.report_unsupported("a provider needs the name of its model")
        return None
    kind.report_exact(f"provider {rule.slug}")
    model_node.report_exact()
    key = _read_key(node, rule)
    options, deployment = _read_options(node, rule, model)
    if rule.needs_address and "custom_host" not in options:
        node.report_unsupported("needs api_base")
        return None
    slug = state.add_integration(Credential(rule.slug, key, options, key[2:-1].lower()), deployment)
    for field in node.fields():
        if field.name in MANUAL_FIELDS:
            field.report_manual(MANUAL_FIELDS[field.name])
        elif field.name in INFORMATION_FIELDS:
            field.report_approximate("the gateway decides this by itself")
    target: JsonObject = {"provider": f"@{slug}", "override_params": {"model": model}}
    if timeout := read_timeouts(node):
        target["request_timeout"] = timeout
    return target


def read_shorthand(text: str, state: StateBuilder) -> JsonObject | None:
    """Returns the target for a model name such as `openai::gpt-4o`. Returns `None` for names of another form, or with
    an unknown provider.
    """
    kind, separator, model = text.partition("::")
    rule = PROVIDERS.get(kind)
    if not separator or rule is None or not rule.env or rule.account is not Account.KEY or not model:
        return None
    slug = state.add_integration(Credential(rule.slug, f"${{{rule.env}}}", {}, rule.env.lower()))
    return {"provider": f"@{slug}", "override_params": {"model": model}}


def read_timeouts(node: Node) -> int | None:
    """Returns the timeout of a target in milliseconds, from `timeouts` or `timeout_ms`."""
    timeouts = node.child("timeouts")
    position: int | None = None
    for group in timeouts.fields() if timeouts else ():
        for field in group.fields():
            if field.name == "total_ms" and group.name == "non_streaming" and (number := field.number()):
                field.report_approximate("request_timeout: ends when the first byte of the response arrives")
                position = max(1, int(min(number, 86_400_000)))
            elif field.name in {"ttft_ms", "total_ms"}:
                field.report_manual("request_timeout is the one timeout of a target, for streams and other responses")
    return position


def _read_key(node: Node, rule: ProviderRule) -> str:
    field = node.child("api_key_location") or node.child("credential_location")
    if field is None:
        return f"${{{rule.env}}}" if rule.env else ""
    if field.value == "none":
        field.report_exact("no key")
        return ""
    text = field.value if isinstance(field.value, str) else ""
    if text.startswith(ENV_PREFIX) and (reference := env_reference(text.removeprefix(ENV_PREFIX))):
        field.report_exact("read from this environment variable when the state is applied")
        return reference
    if field.value in {"sdk", "path", "env"} and not rule.env:
        field.report_manual("set the authentication in configurations of the integration")
        return ""
    field.report_manual("set the key of the integration; clients may also send a credential of their own")
    return f"${{{rule.env}}}" if rule.env else ""


def _read_options(node: Node, rule: ProviderRule, model: str) -> tuple[JsonObject, JsonObject | None]:
    options: JsonObject = {}
    if rule.account is Account.AZURE_OPENAI:
        return _read_azure(node, model)
    for name in ("api_base", "endpoint_url"):
        if (field := node.child(name)) and (url := _read_location(field)):
            options["custom_host"] = url if url.startswith("${") else adapt_host(rule.slug, url)
    if rule.account is Account.AWS:
        region = node.child("region")
        options["aws_region"] = (_read_location(region) if region else None) or "${AWS_REGION}"
        options |= {"aws_auth_type": "accessKey", "aws_access_key_id": "${AWS_ACCESS_KEY_ID}"}
        options["aws_secret_access_key"] = "${AWS_SECRET_ACCESS_KEY}"  # noqa: S105 - a reference
        for name, option in (("access_key_id", "aws_access_key_id"), ("secret_access_key", "aws_secret_access_key")):
            if (field := node.child(name)) and (value := _read_location(field)):
                options[option] = value
    if rule.account is Account.GOOGLE_CLOUD:
        project, location = node.child("project_id"), node.child("location")
        options["vertex_region"] = (_read_location(location) if location else None) or "us-central1"
        if project and (value := _read_location(project)):
            options["vertex_project_id"] = value
    return options, None


def _read_azure(node: Node, model: str) -> tuple[JsonObject, JsonObject]:
    options: JsonObject = {"azure_resource_name": "${AZURE_RESOURCE_NAME}"}
    endpoint = node.child("endpoint")
    url = _read_location(endpoint) if endpoint else None
    if url and (matched := AZURE_HOST.match(url)):
        options["azure_resource_name"] = matched[1]
    elif url:
        address = url if url.startswith("${") else f"{url.rstrip('/')}/openai"
        options |= {"azure_resource_name": "custom", "custom_host": address}
    deployment = {
        "azure_deployment_name": model,
        "azure_api_version": DEFAULT_AZURE_VERSION,
        "azure_model_slug": model,
    }
    return options, deployment


def _read_location(field: Node) -> str | None:
    """Returns a string. Converts TensorZero's `env::NAME` to the reference `${NAME}` of a state document."""
    text = field.text()
    if text is None:
        return None
    if text.startswith(ENV_PREFIX) and (reference := env_reference(text.removeprefix(ENV_PREFIX))):
        field.report_exact("read from this environment variable when the state is applied")
        return reference
    if re.match(r"(dynamic|path|path_from_env|sdk)(::|\Z)", text) or text.startswith(ENV_PREFIX):
        field.report_manual("set this option in configurations of the integration")
        return None
    field.report_exact("an option of the integration")
    return text
