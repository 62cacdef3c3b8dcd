"""Credentials of LiteLLM's models: the key, address and options of a provider, as an integration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from penstock.imports.litellm_providers import OWN_SERVERS, Account, ProviderRule, adapt_host
from penstock.imports.litellm_values import is_reference, read_secret, resolve_text
from penstock.imports.state import Credential
from penstock.integrations.provider_options import field_names

if TYPE_CHECKING:
    from penstock.imports.findings import Node
    from penstock.imports.state import StateBuilder

JsonObject = dict[str, Any]

AZURE_HOST = re.compile(r"https://([A-Za-z0-9-]+)\.openai\.azure\.com(/.*)?\Z")
DEFAULT_AZURE_VERSION = "2024-10-21"
AWS_OPTIONS = {
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
    "aws_region_name": "aws_region",
    "aws_role_name": "aws_role_arn",
    "aws_external_id": "aws_external_id",
    "aws_batch_role_arn": "aws_batch_role_arn",
    "s3_bucket_name": "aws_s3_bucket",
}
AWS_SECRETS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
AWS_MANUAL = {
    "aws_session_name": "the session of an assumed role has a name of its own",
    "aws_profile_name": "profiles of AWS are not read; set the keys or the role of the integration",
    "aws_web_identity_token": "use the identity of the machine: aws_auth_type serviceRole and identity.… settings",
    "aws_sts_endpoint": "set aws_sts_endpoint in the config",
    "s3_region_name": "the bucket of batches is in the region of the integration",
    "s3_access_key_id": "batches use the credentials of the integration",
    "s3_secret_access_key": "batches use the credentials of the integration",
    "aws_bedrock_client": "set the keys or the role of the integration",
}
ENTRA_OPTIONS = {
    "tenant_id": "azure_entra_tenant_id",
    "client_id": "azure_entra_client_id",
    "client_secret": "azure_entra_client_secret",
}
# Options of a provider that LiteLLM reads only from the environment.
ENVIRONMENT_OPTIONS = {
    "workers-ai": {"workers_ai_account_id": "CLOUDFLARE_ACCOUNT_ID"},
    "cortex": {"snowflake_account": "SNOWFLAKE_ACCOUNT_ID"},
    "predibase": {"predibase_tenant": "PREDIBASE_TENANT_ID"},
    "databricks": {"custom_host": "DATABRICKS_API_BASE"},
}
# Name of the option with a provider's address, for providers where it is not `custom_host`.
HOST_OPTIONS = {"huggingface": "huggingface_base_url"}
# Providers whose servers usually have no key.
KEYLESS_PROVIDERS = frozenset(
    ["docker_model_runner", "hosted_vllm", "infinity", "llamafile", "lm_studio", "openai_like", "vllm", "xinference"]
)
PRIVATE_HOST_HINT = "; a private address must be listed in upstream.trusted_custom_hosts"


class CredentialReader:
    """Reads the credential of a `model_list` row. Its own fields precede those of the named credential that it refers
    to.
    """

    def __init__(self, params: Node, shared: Node | None, rule: ProviderRule, provider: str) -> None:
        """Stores the parameters of a row, the values of its named credential, and its provider."""
        self._params, self._shared, self._rule, self._provider = params, shared, rule, provider
        self._options: JsonObject = {}

    def add_integration(self, state: StateBuilder, model: str, base_model: str | None) -> str:
        """Adds the integration to the state, and returns its slug."""
        key, hint = self._read_key()
        self._read_headers()
        deployment = None
        match self._rule.account:
            case Account.AZURE_OPENAI:
                deployment = self._read_azure_deployment(model, base_model)
            case Account.AZURE_AI:
                self._read_address("azure_foundry_url")
                self._read_version("azure_api_version")
            case Account.AWS:
                self._read_aws(key)
            case Account.GOOGLE_CLOUD:
                self._read_vertex()
            case Account.KEY:
                self._read_host()
        for name, variable in ENVIRONMENT_OPTIONS.get(self._rule.slug, {}).items():
            self._options.setdefault(name, f"${{{variable}}}")
        return state.add_integration(Credential(self._rule.slug, key, self._options, hint), deployment)

    def _take_parameter(self, name: str) -> Node | None:
        own = self._params.child(name)
        shared = self._shared.child(name) if self._shared else None
        if own and shared:
            shared.report_exact("a row has a value of its own")
        return own or shared

    def _take_text(self, name: str, message: str = "") -> str | None:
        node = self._take_parameter(name)
        text = resolve_text(node) if node else None
        if node and text:
            node.report_exact(message or "an option of the integration")
        return text

    def _take_secret(self, name: str) -> str | None:
        node = self._take_parameter(name)
        return read_secret(node) if node else None

    def _read_key(self) -> tuple[str, str]:
        """Returns the key, and a hint for the name of the integration. Both are empty for a server without keys."""
        if key := self._take_secret("api_key"):
            return key, key[2:-1].lower() if is_reference(key) else ""
        has_identity = self._take_parameter("azure_ad_token") or self._take_parameter("client_secret")
        is_keyless = not self._rule.env or self._provider in KEYLESS_PROVIDERS
        return ("", "") if is_keyless or has_identity else (f"${{{self._rule.env}}}", "")

    def _read_headers(self) -> None:
        headers: dict[str, str] = {}
        for name in ("extra_headers", "headers"):
            for field in node.fields() if (node := self._take_parameter(name)) else ():
                if value := read_secret(field):
                    headers[field.name] = value
        if headers:
            self._options["custom_headers"] = headers

    def _read_version(self, option: str) -> str | None:
        if version := self._take_text("api_version"):
            self._options[option] = version
        return version

    def _read_address(self, option: str) -> str | None:
        """Sets the address as the option with this name, and returns it."""
        node = self._take_parameter("api_base") or self._take_parameter("base_url")
        url = resolve_text(node) if node else None
        if node is None or url is None:
            return None
        if is_reference(url):
            node.report_approximate(
                "the variable must hold the address in the form of this gateway, see provider-files.md"
            )
            self._options[option] = url
            return url
        if not _is_http_url(url):
            node.report_unsupported("must be an http or https URL without credentials")
            return None
        adapted = adapt_host(self._rule.slug, url)
        node.report_exact(f"{option} of the integration{PRIVATE_HOST_HINT if _is_private(adapted) else ''}")
        self._options[option] = adapted
        return adapted

    def _read_host(self) -> None:
        option = HOST_OPTIONS.get(self._rule.slug, "custom_host")
        if self._read_address(option) is None and self._rule.host:
            self._options[option] = self._rule.host
        elif self._provider in OWN_SERVERS:
            # Without a `custom_host`, the key of the user's own server would be sent to OpenAI.
            self._options.setdefault(option, f"${{{self._provider.upper()}_API_BASE}}")
        has_organisation = "openai_organization" in field_names(self._rule.slug)
        if has_organisation and (organisation := self._take_text("organization")):
            self._options["openai_organization"] = organisation
        self._take_text("api_version", "has no effect at this provider")

    def _read_azure_deployment(self, model: str, base_model: str | None) -> JsonObject:
        node = self._take_parameter("api_base") or self._take_parameter("base_url")
        url = resolve_text(node) if node else None
        if node and url and (matched := AZURE_HOST.match(url)):
            node.report_exact("azure_resource_name of the integration")
            self._options["azure_resource_name"] = matched[1]
        elif node and url:
            self._options["azure_resource_name"] = "custom"
            if is_reference(url):
                node.report_approximate("custom_host: the variable must hold the address with /openai at its end")
                self._options["custom_host"] = url
            elif _is_http_url(url):
                node.report_exact("custom_host of the integration")
                self._options["custom_host"] = url.rstrip("/").removesuffix("/openai") + "/openai"
            else:
                node.report_unsupported("must be an http or https URL without credentials")
        else:
            # A new variable name: LiteLLM's AZURE_API_BASE contains the whole address, and this option only the
            # resource in it.
            self._options["azure_resource_name"] = "${AZURE_RESOURCE_NAME}"
        for name, option in ENTRA_OPTIONS.items():
            if value := self._take_secret(name):
                self._options[option] = value
        if "azure_entra_client_secret" in self._options:
            self._options["azure_auth_mode"] = "entra"
        if token := self._take_secret("azure_ad_token"):
            self._options["azure_ad_token"] = token
        version = self._take_text("api_version") or DEFAULT_AZURE_VERSION
        return {
            "azure_deployment_name": model,
            "azure_api_version": version,
            "azure_model_slug": base_model or model,
        }

    def _read_aws(self, key: str) -> None:
        for name, option in AWS_OPTIONS.items():
            value = self._take_secret(name) if name in AWS_SECRETS else self._take_text(name)
            if value:
                self._options[option] = value
        for name, reason in AWS_MANUAL.items():
            if node := self._take_parameter(name):
                node.report_manual(reason)
        if node := self._take_parameter("aws_region"):
            self._options.setdefault("aws_region", resolve_text(node) or "${AWS_REGION_NAME}")
            node.report_exact("aws_region of the integration")
        self._options.setdefault("aws_region", "${AWS_REGION_NAME}")
        if "aws_role_arn" in self._options:
            kind = "assumedRole"
        elif key:
            kind = "apiKey"
        elif "aws_access_key_id" in self._options:
            kind = "accessKey"
            self._options.setdefault("aws_secret_access_key", "${AWS_SECRET_ACCESS_KEY}")
        else:
            kind = "accessKey"
            self._options |= {option: f"${{{option.upper()}}}" for option in AWS_SECRETS[:2]}
        self._options["aws_auth_type"] = kind
        if node := self._take_parameter("aws_bedrock_runtime_endpoint"):
            self._read_endpoint(node)
        self._read_host_only_if_given()

    def _read_endpoint(self, node: Node) -> None:
        if url := resolve_text(node):
            self._options["custom_host"] = url
            node.report_exact("custom_host of the integration")

    def _read_host_only_if_given(self) -> None:
        if self._take_parameter("api_base") or self._take_parameter("base_url"):
            self._read_address("custom_host")

    def _read_vertex(self) -> None:
        if project := self._take_text("vertex_project"):
            self._options["vertex_project_id"] = project
        self._options["vertex_region"] = self._take_text("vertex_location") or "us-central1"
        self._read_host_only_if_given()
        node = self._take_parameter("vertex_credentials")
        if node is None:
            return
        account = _parse_account(node.value)
        if account is None:
            node.report_manual(
                "put the content of the file into vertex_service_account_json of the integration, as a mapping"
            )
            return
        self._options["vertex_auth_type"] = "serviceAccount"
        self._options["vertex_service_account_json"] = account
        node.report_exact("copied in clear to the state document")


def _parse_account(value: Any) -> JsonObject | None:  # noqa: ANN401 - a value of a source
    """Returns the key file of a Google service account. The value may be a mapping, or a string with JSON."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return None
    return cast("JsonObject", value) if isinstance(value, dict) and value else None


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_credential = parts.username is not None or parts.password is not None
    except ValueError:
        return False
    is_plain = text.isprintable() and not any(item.isspace() for item in text)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not has_credential and is_plain


def _is_private(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    is_internal = host in {"localhost", "host.docker.internal"} or host.endswith((".local", ".internal"))
    return is_internal or "." not in host or host.startswith(("127.", "10.", "192.168.", "172."))
