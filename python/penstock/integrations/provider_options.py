"""Provider options of integrations. Defines the fields of each provider, which of them are secret, and how they map to
engine options.
"""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from penstock import engine
from penstock.errors import MAX_PROBLEMS, Problem
from penstock.ids import HEADER_NAME_PATTERN, MASK_TEXT, URL_PATTERN, mask_secret
from penstock.schemas import field_error, invalid_error
from penstock.secrets.credential_binding import address_fields, arbitrary_host_fields
from penstock.secrets.masks import MOVED_MESSAGE
from penstock.similar_names import NameSuggester
from penstock.type_validation import find_problems, join_path, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BoundedText = Annotated[str, Meta(min_length=1, max_length=4096)]
HostUrl = Annotated[str, Meta(pattern=URL_PATTERN, max_length=2048)]
HeaderName = Annotated[str, Meta(pattern=HEADER_NAME_PATTERN)]
Headers = Annotated[dict[HeaderName, Annotated[str, Meta(max_length=8192)]], Meta(max_length=64)]

# Options that responses show masked. A masked value that is sent back leaves the stored value unchanged.
SECRET_FIELDS = (
    "aws_secret_access_key",
    "aws_session_token",
    "azure_ad_token",
    "azure_entra_client_secret",
    "custom_headers",
    "oracle_key_passphrase",
    "oracle_private_key",
    "vault_secret_id",
    "vault_token",
    "vertex_service_account_json",
)
# Placeholder for a value that a secret reference supplies. It is valid as text and as a URL.
MAPPED_PLACEHOLDER = "https://" + MASK_TEXT
OVERLOADED_ERROR_FIELD = "anthropic_inspect_stream_for_overloaded_error"


class ProviderOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of every provider and model: its host, and the headers that are sent with every request."""

    custom_host: HostUrl | None = None
    custom_headers: Headers | None = None


class OpenAiOptions(ProviderOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of OpenAI: organisation and project."""

    openai_organization: BoundedText | None = None
    openai_project: BoundedText | None = None


class AnthropicOptions(ProviderOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of Anthropic: inspection of streams for overload errors."""

    anthropic_inspect_stream_for_overloaded_error: bool | None = None


class KeylessOptions(ProviderOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of providers that can be used without an API key. The flag is for consoles; it does not change requests."""

    is_key_required: bool | None = None


class EntraOptions(KeylessOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication options of Azure (Microsoft Entra ID)."""

    azure_auth_mode: Literal["default", "entra", "managed", "workload", "entraFederated"] | None = None
    azure_entra_tenant_id: BoundedText | None = None
    azure_entra_client_id: BoundedText | None = None
    azure_entra_client_secret: BoundedText | None = None
    azure_managed_client_id: BoundedText | None = None
    azure_workload_client_id: BoundedText | None = None
    azure_workload_tenant_id: BoundedText | None = None


class AzureDeployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One deployment of an Azure resource."""

    azure_deployment_name: BoundedText
    azure_api_version: Annotated[str, Meta(min_length=1, max_length=30)]
    azure_model_slug: BoundedText
    alias: BoundedText | None = None
    is_default: bool = False


class AzureOpenAiOptions(EntraOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of an Azure OpenAI resource."""

    azure_resource_name: BoundedText | None = None
    azure_deployment_config: Annotated[list[AzureDeployment], Meta(min_length=1)] | None = None
    # Other names that some clients use for the resource, for its only deployment, and for the API version of that.
    resource_name: BoundedText | None = None
    deployment_name: BoundedText | None = None
    api_version: Annotated[str, Meta(min_length=1, max_length=30)] | None = None


class AzureAiOptions(EntraOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of an Azure AI Foundry resource."""

    azure_foundry_url: HostUrl
    azure_api_version: Annotated[str, Meta(max_length=30)] | None = None
    azure_deployment_name: BoundedText | None = None


class AwsOptions(KeylessOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Region and authentication options of AWS."""

    aws_auth_type: Literal["accessKey", "assumedRole", "apiKey", "serviceRole"] | None = None
    aws_region: BoundedText
    aws_access_key_id: BoundedText | None = None
    aws_secret_access_key: BoundedText | None = None
    aws_role_arn: BoundedText | None = None
    aws_external_id: BoundedText | None = None


class BedrockOptions(AwsOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of Bedrock, with the S3 bucket and the role for files and batches."""

    aws_s3_bucket: BoundedText | None = None
    amz_server_side_encryption: BoundedText | None = None
    amz_server_side_encryption_aws_kms_key_id: BoundedText | None = None
    aws_batch_role_arn: BoundedText | None = None


class OracleOptions(ProviderOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of Oracle Cloud. The signing key is for authentication without an API key of the service."""

    oracle_region: BoundedText
    oracle_compartment_id: BoundedText | None = None
    oracle_tenancy: BoundedText | None = None
    oracle_user: BoundedText | None = None
    oracle_fingerprint: BoundedText | None = None
    oracle_private_key: BoundedText | None = None
    oracle_key_passphrase: BoundedText | None = None


class SageMakerOptions(AwsOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a SageMaker endpoint."""

    amzn_sagemaker_custom_attributes: BoundedText | None = None
    amzn_sagemaker_target_model: BoundedText | None = None
    amzn_sagemaker_target_variant: BoundedText | None = None
    amzn_sagemaker_target_container_hostname: BoundedText | None = None
    amzn_sagemaker_inference_id: BoundedText | None = None
    amzn_sagemaker_enable_explanations: BoundedText | None = None
    amzn_sagemaker_inference_component: BoundedText | None = None
    amzn_sagemaker_session_id: BoundedText | None = None
    amzn_sagemaker_model_name: BoundedText | None = None


class VertexAiOptions(KeylessOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of Vertex AI in a Google Cloud project. `workload` is another name of `workloadIdentityFederation`; its
    file may be added later.
    """

    vertex_auth_type: Literal["basic", "serviceAccount", "workload", "workloadIdentityFederation"] | None = None
    vertex_region: BoundedText
    vertex_project_id: BoundedText | None = None
    vertex_service_account_json: dict[str, Any] | Literal["*****"] | None = None
    vertex_storage_bucket_name: BoundedText | None = None
    vertex_skip_ptu_cost_attribution: bool | None = None
    # Stored only for consoles, which display it; requests do not use it.
    vertex_map_metadata: bool | None = None
    skipPtuCostAttribution: bool | None = None  # noqa: N815 - name that clients of other gateways send


class FireworksOptions(ProviderOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of Fireworks: the account in which batches are created."""

    fireworks_account_id: BoundedText | None = None


class WorkersAiOptions(ProviderOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of Cloudflare Workers AI."""

    workers_ai_account_id: BoundedText


class HuggingFaceOptions(ProviderOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a Hugging Face endpoint."""

    huggingface_base_url: HostUrl | None = None


class CortexOptions(ProviderOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of Snowflake Cortex."""

    snowflake_account: BoundedText


OPTIONS_BY_PROVIDER: dict[str, type[ProviderOptions]] = {
    "openai": OpenAiOptions,
    "anthropic": AnthropicOptions,
    "azure-openai": AzureOpenAiOptions,
    "azure-ai": AzureAiOptions,
    "bedrock": BedrockOptions,
    "oracle": OracleOptions,
    "sagemaker": SageMakerOptions,
    "vertex-ai": VertexAiOptions,
    "workers-ai": WorkersAiOptions,
    "fireworks-ai": FireworksOptions,
    "huggingface": HuggingFaceOptions,
    "cortex": CortexOptions,
}
# Fields that each authentication type requires.
REQUIRED_FIELDS = {
    ("azure_auth_mode", "entra"): ("azure_entra_tenant_id", "azure_entra_client_id", "azure_entra_client_secret"),
    ("azure_auth_mode", "entraFederated"): ("azure_entra_tenant_id", "azure_entra_client_id"),
    ("azure_auth_mode", "workload"): ("azure_workload_tenant_id", "azure_workload_client_id"),
    ("aws_auth_type", "accessKey"): ("aws_access_key_id", "aws_secret_access_key"),
    ("aws_auth_type", "assumedRole"): ("aws_role_arn",),
    ("vertex_auth_type", "serviceAccount"): ("vertex_service_account_json",),
    ("vertex_auth_type", "workloadIdentityFederation"): ("vertex_service_account_json",),
}
# Groups of fields, by provider. Each group has the names of one option in different clients, and one of them is
# required.
REQUIRED_ALTERNATIVES = {
    "azure-openai": (("azure_resource_name", "resource_name"), ("azure_deployment_config", "deployment_name")),
}
# Values that the engine calls differently, by field and value.
VALUE_ALIASES = {("vertex_auth_type", "workload"): "workloadIdentityFederation"}
# Field names of older clients (virtual keys), with the engine's header for each.
LEGACY_FIELDS = {
    "resourceName": "azure-resource-name",
    "apiVersion": "azure-api-version",
    "deploymentName": "azure-deployment-id",
    "azure_deployment_name": "azure-deployment-id",
    "resource_name": "azure-resource-name",
    "api_version": "azure-api-version",
    "deployment_name": "azure-deployment-id",
    "skipPtuCostAttribution": "vertex-skip-ptu-cost-attribution",
}


def describe_fields() -> str:
    """Returns a text that lists the fields of each provider. Optional fields end with a question mark."""
    common_options = ProviderOptions.__struct_fields__
    fields_by_provider = {
        provider: [item.name + "?" * (not item.required) for item in fields(form) if item.name not in common_options]
        for provider, form in OPTIONS_BY_PROVIDER.items()
    }
    each = "; ".join(f"{provider}: {', '.join(names)}" for provider, names in fields_by_provider.items() if names)
    return (
        f"all providers: {', '.join(common_options)}; {each}; others: the names of their headers without `x-gateway-`"
    )


def check_options(path: str, provider: str, fields: Mapping[str, Any], mapped: frozenset[str] = frozenset()) -> None:
    """Rejects fields that the provider does not have, and missing required fields. `mapped` fields come from secret
    references.
    """
    form = OPTIONS_BY_PROVIDER.get(provider, ProviderOptions)
    others = _extra_fields(provider, form)
    problems = _find_unknown_options(path, provider, fields, (*form.__struct_fields__, *others))
    problems += _find_extra_problems(path, {name: fields[name] for name in others if name in fields})
    present = {name for name, value in fields.items() if value is not None} | mapped
    for (field, value), names in REQUIRED_FIELDS.items():
        reason = f"is needed where {field} is {value!r}"
        problems += [
            Problem(f"{path}.{name}", reason) for name in names if fields.get(field) == value and name not in present
        ]
    # If a client sends only fields that all providers have, required fields may be missing: the key alone configures
    # the provider.
    if set(fields) <= set(ProviderOptions.__struct_fields__) and not mapped & set(form.__struct_fields__):
        form = ProviderOptions
    else:
        for names in REQUIRED_ALTERNATIVES.get(provider, ()):
            if present.isdisjoint(names):
                problems.append(Problem(f"{path}.{names[0]}", "is needed"))
    known_options = {name: value for name, value in fields.items() if name in form.__struct_fields__}
    placeholders = dict.fromkeys(mapped & set(form.__struct_fields__), MAPPED_PLACEHOLDER)
    problems += find_problems(form, {**placeholders, **known_options}, path)
    if problems:
        raise invalid_error(problems)
    _reject_unsupported(path, provider, fields)


def field_names(provider: str) -> tuple[str, ...]:
    """Returns the names of all fields that a provider accepts."""
    form = OPTIONS_BY_PROVIDER.get(provider, ProviderOptions)
    return (*form.__struct_fields__, *_extra_fields(provider, form))


def needs_key(provider: str) -> bool:
    """Returns true if requests to a provider fail without a credential. That is the case if its host is public
    and it does not accept the identity of the machine.
    """
    form = OPTIONS_BY_PROVIDER.get(provider, ProviderOptions)
    host = urlsplit(_base_urls().get(provider, "")).hostname or ""
    return not issubclass(form, KeylessOptions) and bool(host) and not engine.refuse_destination([], host, 443, [])


def check_partial_options(path: str, provider: str, fields: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Rejects fields that the provider does not have; required fields may be missing. `allowed` lists extra field names
    of older clients.
    """
    form = OPTIONS_BY_PROVIDER.get(provider, ProviderOptions)
    others = _extra_fields(provider, form)
    known_fields = (*form.__struct_fields__, *others, *(name for name in allowed if name not in others))
    problems = _find_unknown_options(path, provider, fields, known_fields)
    problems += _find_extra_problems(path, {name: fields[name] for name in others if name in fields})
    types = get_type_hints(form, include_extras=True)
    for name in (name for name in fields if name in types):
        problems += find_problems(types[name], fields[name], f"{path}.{name}")
    if problems:
        raise invalid_error(problems)
    _reject_unsupported(path, provider, fields)


def _find_unknown_options(
    path: str, provider: str, fields: Mapping[str, Any], known_fields: Sequence[str]
) -> list[Problem]:
    subject, suggester = f"field of {provider}", NameSuggester()
    unknown = (name for name in fields if name not in known_fields)
    return [
        Problem(join_path(path, name), unknown_name(name, known_fields, suggester, subject))
        for name in islice(unknown, MAX_PROBLEMS)
    ]


def _extra_fields(provider: str, form: type[ProviderOptions]) -> list[str]:
    """Lists the engine options of a provider that its options class does not declare, named after their headers."""
    names = [header.replace("-", "_") for _, header in _engine_options().get(provider, ())]
    return [name for name in names if name not in form.__struct_fields__]


def _find_extra_problems(path: str, fields: Mapping[str, Any]) -> list[Problem]:
    items = (find_problems(BoundedText | None, value, f"{path}.{name}") for name, value in fields.items())
    return [problem for problems in items for problem in problems]


def _reject_unsupported(path: str, provider: str, fields: Mapping[str, Any]) -> None:
    try:
        row = provider_row(provider, fields)
    except (AttributeError, TypeError):
        # Field names of older clients have no declared types, so a wrong type is detected only here.
        raise field_error(path, "holds a string where an object or a list is expected") from None
    for engine_path, reason in unsupported_fields({"provider": provider, **row}):
        raise field_error(f"{path}.{_client_field(provider, engine_path, fields)}", reason)


def model_row(slug: str, enabled: object, endpoint: Mapping[str, Any], prices: object = None) -> dict[str, Any]:
    """Returns the snapshot row of a model: its host, headers and prices."""
    row = {"slug": slug, "enabled": enabled, "custom_host": endpoint.get("custom_host")}
    optional = {"headers": endpoint.get("custom_headers"), "prices": prices}
    return row | {name: value for name, value in optional.items() if value}


def unsupported_fields(row: Mapping[str, Any], models: Iterable[Mapping[str, Any]] = ()) -> list[tuple[str, str]]:
    """Returns the errors that the engine reports for a provider row, as pairs of engine path and message."""
    if row["provider"] not in _engine_options():
        return []
    shown_row = {name: value for name, value in row.items() if name != "deployments"}
    document = {"epoch": "-", "providers": [{"slug": "-", **shown_row}], "models": list(models)}
    try:
        engine.check("snapshot", msgspec.json.encode(document))
    except engine.EngineError as error:
        return [(problem["path"].removeprefix("$.providers[0]."), problem["message"]) for problem in error.problems]
    return []


def _client_field(provider: str, engine_path: str, fields: Mapping[str, Any]) -> str:
    """Converts a path of the engine to the field name that the client sent."""
    kind, _, name = engine_path.partition(".")
    if kind == "headers":
        return f"custom_headers.{name}"
    headers_by_key = dict(_engine_options().get(provider, ()))
    headers = {_header_name(sent, headers_by_key.values()): sent for sent in fields}
    return headers.get(headers_by_key.get(name, ""), kind)


def split_secrets(
    path: str, options: Mapping[str, Any], masked: Mapping[str, Any], secrets: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Splits options of a request into displayed and secret values. `masked` and `secrets` are the stored ones."""
    displayed = {name: value for name, value in options.items() if value is not None}
    hidden: dict[str, Any] = {}
    moved = has_new_destination(masked, displayed)
    for name in (name for name in SECRET_FIELDS if name in displayed):
        hidden[name] = _restore_masked(displayed[name], masked.get(name), secrets.get(name))
        if moved and hidden[name] != displayed[name]:
            raise field_error(f"{path}.{name}", MOVED_MESSAGE)
        displayed[name] = mask_value(hidden[name])
    return displayed, hidden


def is_complete_secret(sent: Any, masked: Any, secret: Any) -> bool:  # noqa: ANN401 - a text, or a table of them
    """Returns true if a request contains the complete secret, without a mask for the stored value."""
    return bool(sent) and _restore_masked(sent, masked, secret) == sent


def has_new_destination(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Returns true if credentials would be sent to another destination than before."""
    item, other = (address_fields(_without_secrets(options)) for options in (before, after))
    return item != other


def untrusted_host_fields(options: Mapping[str, Any]) -> list[str]:
    """Lists the options that may send credentials to a host outside the provider."""
    return arbitrary_host_fields(_without_secrets(options))


def _without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in options.items() if name not in SECRET_FIELDS}


def mask_value(value: Any) -> Any:  # noqa: ANN401 - a text, or a table of them
    """Masks a string, or each string of an object. An object with other values is masked as a whole."""
    if isinstance(value, str):
        return mask_secret(value)
    table = _as_dict(value)
    is_of_texts = all(isinstance(inner, str) for inner in table.values())
    return {name: mask_secret(inner) for name, inner in table.items()} if table and is_of_texts else MASK_TEXT


def _restore_masked(sent: Any, masked: Any, secret: Any) -> Any:  # noqa: ANN401 - as above
    if secret is not None and sent == masked:
        return secret
    if not isinstance(sent, dict):
        return sent
    before, hidden, fields = _as_dict(masked), _as_dict(secret), _as_dict(cast("object", sent)).items()
    return {name: hidden[name] if name in hidden and value == before.get(name) else value for name, value in fields}


def _as_dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def provider_row(provider: str, configurations: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the snapshot row of a provider: its host, options, headers, and the options of single deployments."""
    keys_by_header = {header: key for key, header in _engine_options().get(provider, ())}
    row: dict[str, Any] = {"custom_host": configurations.get("custom_host"), "options": {}}
    for name, value in configurations.items():
        header = _header_name(name, keys_by_header)
        # Values may be objects, which a header carries as JSON.
        if header in keys_by_header and value is not None and value != "":
            known_value = VALUE_ALIASES.get((name, value), value) if isinstance(value, str) else value
            row["options"][keys_by_header[header]] = _encode_header_value(known_value)
    if configurations.get("custom_headers"):
        row["headers"] = configurations["custom_headers"]
    if configurations.get(OVERLOADED_ERROR_FIELD) is not None:
        row[OVERLOADED_ERROR_FIELD] = configurations[OVERLOADED_ERROR_FIELD]
    deployments = {model: dict(deployment) for model, deployment in _list_deployments(configurations)}
    if deployment_keys := {
        key for header, key in keys_by_header.items() if header in {"azure-deployment-id", "azure-api-version"}
    }:
        default = deployments.pop("", {})
        row["options"] = {**{key: value for key, value in default.items() if key in deployment_keys}, **row["options"]}
        row["deployments"] = deployments
    return row


def _header_name(name: str, known_headers: Iterable[str]) -> str:
    """Returns the provider's header for a field."""
    header = name.replace("_", "-")
    return header if header in known_headers else LEGACY_FIELDS.get(name, header)


def _encode_header_value(value: object) -> str:
    """Writes a value on one line, as a header requires: JSON without spaces, and a PEM key with escaped line ends."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if "\n" not in text:
        return text
    if "-----BEGIN" in text and not text.lstrip().startswith("{"):
        return "\\n".join(text.split("\n")).replace("\r", "")
    try:
        return msgspec.json.format(text, indent=-1)
    except msgspec.DecodeError:
        return text


def _list_deployments(configurations: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Lists deployments with each model name that selects them. The default deployment has an empty model name."""
    listed: list[dict[str, Any]] = (
        configurations.get("azure_deployment_config") or configurations.get("deploymentConfig") or []
    )
    forms: list[tuple[str, dict[str, str]]] = []
    for item in listed:
        name = str(item.get("azure_deployment_name") or item.get("deploymentName"))
        version = str(item.get("azure_api_version") or item.get("apiVersion"))
        deployment: dict[str, str] = {"deployment_id": name, "api_version": version}
        model_names: set[str] = {text for text in (item.get("alias"), item.get("azure_model_slug"), name) if text}
        forms += [(model, deployment) for model in sorted(model_names)]
        if item.get("is_default") or len(listed) == 1:
            forms.append(("", deployment))
    return forms


@cache
def _base_urls() -> dict[str, str]:
    return {provider["slug"]: provider["base_url"] or "" for provider in engine.catalogue()}


@cache
def _engine_options() -> dict[str, list[tuple[str, str]]]:
    return {provider["slug"]: [tuple(pair) for pair in provider["options"]] for provider in engine.catalogue()}
