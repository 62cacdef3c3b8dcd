"""Model lists and single models by the SDKs of Google, Cohere and Mistral. The first of `PROVIDERS` is a model here."""

from __future__ import annotations

import cohere
import httpx
from google import genai
from google.genai import errors, types
from mistralai.client import Mistral
from mistralai.client.errors import MistralError
from sdk_calls import GATEWAY, KEY, PROVIDERS, failure_status, report_call

WRONG_KEY = "pk-unknown-0123456789"
MODEL = PROVIDERS[0]


def google_client(key: str, headers: dict[str, str]) -> genai.Client:
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=GATEWAY, headers=headers))


def google(key: str, headers: dict[str, str]) -> object:
    client = google_client(key, headers)
    actual = [model.name for model in client.models.list(config={"page_size": 1})]
    return (
        actual
        if headers
        else [actual, client.models.get(model=MODEL).name, client.models.get(model=MODEL).display_name]
    )


def google_error(key: str) -> object:
    def status(error: Exception) -> object:
        return [error.code, error.status, error.message] if isinstance(error, errors.APIError) else repr(error)

    client = google_client(key, {})
    return failure_status(lambda: client.models.get(model="none"), errors.APIError, status)


def cohere_client(key: str, headers: dict[str, str]) -> cohere.ClientV2:
    return cohere.ClientV2(api_key=key, base_url=GATEWAY, httpx_client=httpx.Client(headers=headers, timeout=10))


def cohere_list(key: str, headers: dict[str, str]) -> object:
    client = cohere_client(key, headers)
    page = client.models.list(page_size=1)
    models = [model.name for model in page.models]
    if headers:
        return models
    rest = client.models.list(page_size=5, page_token=page.next_page_token)
    return [models + [model.name for model in rest.models], client.models.get(MODEL).name]


def cohere_error(key: str) -> object:
    return failure_status(
        lambda: cohere_client(key, {}).models.get("none"),
        cohere.core.api_error.ApiError,
        lambda error: [error.status_code, error.body["message"]],
    )


def mistral_client(key: str) -> Mistral:
    return Mistral(api_key=key, server_url=GATEWAY, timeout_ms=10_000)


def mistral(key: str, headers: dict[str, str]) -> object:
    listed = mistral_client(key).models.list(http_headers=headers).data
    actual = [model.raw["id"] for model in listed]
    return actual if headers else [actual, mistral_client(key).models.retrieve(model_id=MODEL).raw["id"]]


def mistral_error(key: str) -> object:
    return failure_status(
        lambda: mistral_client(key).models.retrieve(model_id="none"),
        MistralError,
        lambda error: [error.status_code],
    )


for name, list_models, error in (
    ("google", google, google_error),
    ("cohere", cohere_list, cohere_error),
    ("mistral", mistral, mistral_error),
):
    names = {"x-gateway-provider": "@p"}
    report_call(name, "catalogue", lambda list_models=list_models: list_models(KEY, {}))
    report_call(name, "provider", lambda list_models=list_models, headers=names: list_models(KEY, headers))
    report_call(name, "not_found", lambda error=error: error(KEY))
    report_call(name, "unauthorised", lambda error=error: error(WRONG_KEY))
