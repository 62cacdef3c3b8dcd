"""What an integration says of its provider besides the key: which fields there are, which are secret, what the engine is told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_type_hints

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from penstock import engine
from penstock.ids import DOTS, END, URL, mask
from penstock.schemas import misfit, refuse
from penstock.secrets.credential_binding import anybodys, whom
from penstock.secrets.masks import MOVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Text = Annotated[str, Meta(min_length=1, max_length=4096)]
Host = Annotated[str, Meta(pattern=URL, max_length=2048)]
HeaderName = Annotated[str, Meta(pattern="^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}" + END)]
Headers = Annotated[dict[HeaderName, Annotated[str, Meta(max_length=8192)]], Meta(max_length=64)]

# Values that are masked when they are shown, and mean themselves when they come back masked.
SECRET = (
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
# Stands for a text that is kept elsewhere, an address or another.
ELSEWHERE = "https://" + DOTS
OVERLOADED = "anthropic_inspect_stream_for_overloaded_error"


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a provider or a model is, and what it is sent with every request."""

    custom_host: Host | None = None
    custom_headers: Headers | None = None


class OpenAi(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """OpenAI's accounts."""

    openai_organization: Text | None = None
    openai_project: Text | None = None


class Anthropic(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Anthropic's streams."""

    anthropic_inspect_stream_for_overloaded_error: bool | None = None


class Entra(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How Azure is told who asks."""

    azure_auth_mode: Literal["default", "entra", "managed", "workload", "entraFederated"]
    azure_entra_tenant_id: Text | None = None
    azure_entra_client_id: Text | None = None
    azure_entra_client_secret: Text | None = None
    azure_managed_client_id: Text | None = None
    azure_workload_client_id: Text | None = None
    azure_workload_tenant_id: Text | None = None


class AzureDeployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One deployment of an Azure resource."""

    azure_deployment_name: Text
    azure_api_version: Annotated[str, Meta(min_length=1, max_length=30)]
    azure_model_slug: Text
    alias: Text | None = None
    is_default: bool = False


class AzureOpenAi(Entra, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An Azure OpenAI resource."""

    azure_resource_name: Text
    azure_deployment_config: Annotated[list[AzureDeployment], Meta(min_length=1)]


class AzureAi(Entra, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An Azure AI Foundry."""

    azure_foundry_url: Host
    azure_api_version: Annotated[str, Meta(max_length=30)] | None = None
    azure_deployment_name: Text | None = None


class Aws(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How AWS is told who asks."""

    aws_auth_type: Literal["accessKey", "assumedRole", "apiKey", "serviceRole"]
    aws_region: Text
    aws_access_key_id: Text | None = None
    aws_secret_access_key: Text | None = None
    aws_role_arn: Text | None = None
    aws_external_id: Text | None = None


class Bedrock(Aws, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bedrock, and where its files are and its batches read and write."""

    aws_s3_bucket: Text | None = None
    amz_server_side_encryption: Text | None = None
    amz_server_side_encryption_aws_kms_key_id: Text | None = None
    aws_batch_role_arn: Text | None = None


class Oracle(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How Oracle's cloud is told who asks, where no API key of its service does."""

    oracle_region: Text
    oracle_compartment_id: Text | None = None
    oracle_tenancy: Text | None = None
    oracle_user: Text | None = None
    oracle_fingerprint: Text | None = None
    oracle_private_key: Text | None = None
    oracle_key_passphrase: Text | None = None


class SageMaker(Aws, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A SageMaker endpoint."""

    amzn_sagemaker_custom_attributes: Text | None = None
    amzn_sagemaker_target_model: Text | None = None
    amzn_sagemaker_target_variant: Text | None = None
    amzn_sagemaker_target_container_hostname: Text | None = None
    amzn_sagemaker_inference_id: Text | None = None
    amzn_sagemaker_enable_explanations: Text | None = None
    amzn_sagemaker_inference_component: Text | None = None
    amzn_sagemaker_session_id: Text | None = None
    amzn_sagemaker_model_name: Text | None = None


class VertexAi(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A project of Google's cloud."""

    vertex_auth_type: Literal["basic", "serviceAccount", "workloadIdentityFederation"]
    vertex_region: Text
    vertex_project_id: Text | None = None
    vertex_service_account_json: dict[str, Any] | Literal["*****"] | None = None
    vertex_storage_bucket_name: Text | None = None
    vertex_skip_ptu_cost_attribution: bool | None = None
    skipPtuCostAttribution: bool | None = None  # noqa: N815 - as clients of others call it


class Fireworks(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An account of Fireworks's, which its batches are made in."""

    fireworks_account_id: Text | None = None


class WorkersAi(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An account of Cloudflare's."""

    workers_ai_account_id: Text


class HuggingFace(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A Hugging Face endpoint."""

    huggingface_base_url: Host | None = None


class Cortex(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A Snowflake account."""

    snowflake_account: Text


FORMS: dict[str, type[Place]] = {
    "openai": OpenAi,
    "anthropic": Anthropic,
    "azure-openai": AzureOpenAi,
    "azure-ai": AzureAi,
    "bedrock": Bedrock,
    "oracle": Oracle,
    "sagemaker": SageMaker,
    "vertex-ai": VertexAi,
    "workers-ai": WorkersAi,
    "fireworks-ai": Fireworks,
    "huggingface": HuggingFace,
    "cortex": Cortex,
}
# What a way of authenticating needs besides.
NEEDED = {
    ("azure_auth_mode", "entra"): ("azure_entra_tenant_id", "azure_entra_client_id", "azure_entra_client_secret"),
    ("azure_auth_mode", "entraFederated"): ("azure_entra_tenant_id", "azure_entra_client_id"),
    ("azure_auth_mode", "workload"): ("azure_workload_tenant_id", "azure_workload_client_id"),
    ("aws_auth_type", "accessKey"): ("aws_access_key_id", "aws_secret_access_key"),
    ("aws_auth_type", "assumedRole"): ("aws_role_arn",),
    ("vertex_auth_type", "serviceAccount"): ("vertex_service_account_json",),
    ("vertex_auth_type", "workloadIdentityFederation"): ("vertex_service_account_json",),
}
# Names that virtual keys have for what integrations say in another way.
LEGACY = {
    "resourceName": "azure-resource-name",
    "apiVersion": "azure-api-version",
    "deploymentName": "azure-deployment-id",
    "azure_deployment_name": "azure-deployment-id",
    "skipPtuCostAttribution": "vertex-skip-ptu-cost-attribution",
}


def described() -> str:
    """Say which fields are known of which provider; those with a question mark may be left out."""
    usual = Place.__struct_fields__
    own = {
        provider: [one.name + "?" * (not one.required) for one in fields(form) if one.name not in usual]
        for provider, form in FORMS.items()
    }
    each = "; ".join(f"{provider}: {', '.join(names)}" for provider, names in own.items() if names)
    return f"of all providers: {', '.join(usual)}; {each}; of others what their headers say, without `x-gateway-`"


def check(path: str, provider: str, given: Mapping[str, Any], mapped: frozenset[str] = frozenset()) -> None:
    """Refuse what the provider does not have, and what it cannot do without; `mapped` fields come from elsewhere."""
    form = FORMS.get(provider, Place)
    others = _others(provider, form)
    if unknown := sorted(set(given) - {*form.__struct_fields__, *others}):
        allowed = ", ".join((*form.__struct_fields__, *others))
        raise refuse(f"{path}.{unknown[0]}", f"is not known for {provider}; allowed: {allowed}")
    _refuse_other_texts(path, {name: given[name] for name in others if name in given})
    there = {name for name, value in given.items() if value is not None} | mapped
    for (field, value), names in NEEDED.items():
        missing = [name for name in names if name not in there]
        if given.get(field) == value and missing:
            raise refuse(f"{path}.{missing[0]}", f"is needed where {field} is {value!r}")
    # Without any of its own fields, only the key is said of a provider.
    if set(given) <= set(Place.__struct_fields__) and not mapped & set(form.__struct_fields__):
        form = Place
    own = {name: value for name, value in given.items() if name in form.__struct_fields__}
    convert(path, form, {**dict.fromkeys(mapped & set(form.__struct_fields__), ELSEWHERE), **own})
    _refuse_unserved(path, provider, given)


def names(provider: str) -> tuple[str, ...]:
    """Name the fields that are known of a provider."""
    form = FORMS.get(provider, Place)
    return (*form.__struct_fields__, *_others(provider, form))


def check_some(path: str, provider: str, given: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Refuse what the provider does not have, of a table that need not have all; `allowed` are names of older clients."""
    form = FORMS.get(provider, Place)
    others = _others(provider, form)
    known = (*form.__struct_fields__, *others, *(name for name in allowed if name not in others))
    if unknown := sorted(set(given) - set(known)):
        raise refuse(f"{path}.{unknown[0]}", f"is not known for {provider}; allowed: {', '.join(known)}")
    _refuse_other_texts(path, {name: given[name] for name in others if name in given})
    types = get_type_hints(form, include_extras=True)
    for name in (name for name in given if name in types):
        try:
            msgspec.convert(given[name], types[name])
        except msgspec.ValidationError as error:
            raise misfit(f"{path}.{name}", error) from None
    _refuse_unserved(path, provider, given)


def _others(provider: str, form: type[Place]) -> list[str]:
    """List what the engine may be told of a provider that has no place in its form, as its headers have it."""
    names = [header.replace("-", "_") for _, header in _options().get(provider, ())]
    return [name for name in names if name not in form.__struct_fields__]


def _refuse_other_texts(path: str, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        try:
            msgspec.convert(value, Text | None)
        except msgspec.ValidationError as error:
            raise misfit(f"{path}.{name}", error) from None


def _refuse_unserved(path: str, provider: str, given: Mapping[str, Any]) -> None:
    try:
        row = told(provider, given)
    except (AttributeError, TypeError):
        # Names of older clients have no types here.
        raise refuse(path, "holds a text where a table or a list belongs") from None
    for place, why in unserved({"provider": provider, **row}):
        raise refuse(f"{path}.{_named(provider, place, given)}", why)


def of_model(slug: str, enabled: object, place: Mapping[str, Any], prices: object = None) -> dict[str, Any]:
    """Give what the engine is told of a model: where it is, with what it is asked there, and what is said of its price."""
    told = {"slug": slug, "enabled": enabled, "custom_host": place.get("custom_host")}
    said = {"headers": place.get("custom_headers"), "prices": prices}
    return told | {name: value for name, value in said.items() if value}


def unserved(row: Mapping[str, Any], models: Iterable[Mapping[str, Any]] = ()) -> list[tuple[str, str]]:
    """Give what the engine does not take of what it would be told of a provider, each by its place there."""
    if row["provider"] not in _options():
        return []
    told_of = {name: value for name, value in row.items() if name != "deployments"}
    document = {"epoch": "-", "providers": [{"slug": "-", **told_of}], "models": list(models)}
    try:
        engine.check("snapshot", msgspec.json.encode(document))
    except engine.EngineError as error:
        return [(problem["path"].removeprefix("$.providers[0]."), problem["message"]) for problem in error.problems]
    return []


def _named(provider: str, place: str, given: Mapping[str, Any]) -> str:
    """Name what stands at a place of the engine's as it was sent."""
    kind, _, name = place.partition(".")
    if kind == "headers":
        return f"custom_headers.{name}"
    known = dict(_options().get(provider, ()))
    headers = {_header(sent, known.values()): sent for sent in given}
    return headers.get(known.get(name, ""), kind)


def convert(path: str, form: type[Place], given: Mapping[str, Any]) -> Place:
    """Read a form, or say what is wrong where."""
    try:
        return msgspec.convert(given, form)
    except msgspec.ValidationError as error:
        raise misfit(path, error) from None


def split(
    path: str, given: Mapping[str, Any], shown: Mapping[str, Any], secrets: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Divide what was sent into what is shown and what is secret; `shown` and `secrets` are what was before."""
    kept = {name: value for name, value in given.items() if value is not None}
    hidden: dict[str, Any] = {}
    moved = is_moved(shown, kept)
    for name in (name for name in SECRET if name in kept):
        hidden[name] = _unmasked(kept[name], shown.get(name), secrets.get(name))
        if moved and hidden[name] != kept[name]:
            raise refuse(f"{path}.{name}", MOVED)
        kept[name] = masked(hidden[name])
    return kept, hidden


def is_moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether credentials would go elsewhere than before."""
    one, other = (whom(_without_secrets(said)) for said in (before, after))
    return one != other


def leads_anywhere(said: Mapping[str, Any]) -> list[str]:
    """Name what sends credentials to a host that may be anybody's, not only the provider's."""
    return anybodys(_without_secrets(said))


def _without_secrets(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in said.items() if name not in SECRET}


def masked(value: Any) -> Any:  # noqa: ANN401 - a text, or a table of them
    """Show the ends of a text; of a table that is a secret as a whole nothing."""
    if isinstance(value, str):
        return mask(value)
    table = _table(value)
    is_of_texts = all(isinstance(inner, str) for inner in table.values())
    return {name: mask(inner) for name, inner in table.items()} if table and is_of_texts else DOTS


def _unmasked(sent: Any, shown: Any, secret: Any) -> Any:  # noqa: ANN401 - as above
    if secret is not None and sent == shown:
        return secret
    if not isinstance(sent, dict):
        return sent
    before, hidden, given = _table(shown), _table(secret), _table(cast("object", sent)).items()
    return {name: hidden[name] if name in hidden and value == before.get(name) else value for name, value in given}


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def told(provider: str, configurations: Mapping[str, Any]) -> dict[str, Any]:
    """Give what the engine is told of a provider: its address, options, header fields, and options of single models."""
    known = {header: key for key, header in _options().get(provider, ())}
    row: dict[str, Any] = {"custom_host": configurations.get("custom_host"), "options": {}}
    for name, value in configurations.items():
        header = _header(name, known)
        # Some are tables.
        if header in known and value is not None and value != "":
            row["options"][known[header]] = _line(value)
    if configurations.get("custom_headers"):
        row["headers"] = configurations["custom_headers"]
    if configurations.get(OVERLOADED) is not None:
        row[OVERLOADED] = configurations[OVERLOADED]
    deployments = {model: dict(chosen) for model, chosen in _deployments(configurations)}
    if own := {key for header, key in known.items() if header in {"azure-deployment-id", "azure-api-version"}}:
        default = deployments.pop("", {})
        row["options"] = {**{key: value for key, value in default.items() if key in own}, **row["options"]}
        row["deployments"] = deployments
    return row


def _header(name: str, known: Iterable[str]) -> str:
    """Give the header that a field stands for, among those that a provider knows."""
    own = name.replace("_", "-")
    return own if own in known else LEGACY.get(name, own)


def _line(value: object) -> str:
    """Write a value in one line, as a header field has it: JSON without spaces, a key with its line ends escaped."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if "\n" not in text:
        return text
    if "-----BEGIN" in text and not text.lstrip().startswith("{"):
        return "\\n".join(text.split("\n")).replace("\r", "")
    try:
        return msgspec.json.format(text, indent=-1)
    except msgspec.DecodeError:
        return text


def _deployments(configurations: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """List deployments under the models that they are asked for by; the default one under none."""
    listed: list[dict[str, Any]] = (
        configurations.get("azure_deployment_config") or configurations.get("deploymentConfig") or []
    )
    found: list[tuple[str, dict[str, str]]] = []
    for one in listed:
        name = str(one.get("azure_deployment_name") or one.get("deploymentName"))
        version = str(one.get("azure_api_version") or one.get("apiVersion"))
        chosen: dict[str, str] = {"deployment_id": name, "api_version": version}
        asked: set[str] = {text for text in (one.get("alias"), one.get("azure_model_slug"), name) if text}
        found += [(model, chosen) for model in sorted(asked)]
        if one.get("is_default") or len(listed) == 1:
            found.append(("", chosen))
    return found


def _options() -> dict[str, list[tuple[str, str]]]:
    return {provider["slug"]: [tuple(pair) for pair in provider["options"]] for provider in engine.catalogue()}
