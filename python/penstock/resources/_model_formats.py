"""Model lists in the formats of OpenAI, Anthropic, Google and Cohere. Their SDKs read only their own format."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from penstock.kit.client_format import ClientFormat
from penstock.kit.shared_fields import ObjectType

_ModelName = Annotated[str, Meta(description="model name for requests: `@slug/model`, or `model` alone")]


class CatalogueModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the catalogue."""

    id: _ModelName
    created: Annotated[int, Meta(description="when its provider was created here, in Unix seconds")]
    owned_by: Annotated[str, Meta(description="name of the provider in the engine")]
    object: ObjectType = "model"
    # Mistral's SDK cannot read models without a type.
    type: Annotated[Literal["model"], Meta(description="type of the object")] = "model"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the models that may be used."""

    data: Annotated[list[CatalogueModel], Meta(description="models of this page")]
    total_count: Annotated[int, Meta(description="number of models on all pages")]
    object: ObjectType = "list"


class AnthropicModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model in the format of Anthropic's API."""

    id: _ModelName
    display_name: Annotated[str, Meta(description="the same")]
    created_at: Annotated[datetime, Meta(description="when its provider was created here")]
    type: Annotated[Literal["model"], Meta(description="type of the object")] = "model"


class AnthropicModelList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the models that may be used, in the format of Anthropic's API."""

    data: Annotated[list[AnthropicModel], Meta(description="models of this page")]
    first_id: Annotated[str | None, Meta(description="id of the first model; null for an empty page")]
    last_id: Annotated[str | None, Meta(description="id of the last model; null for an empty page")]
    has_more: Annotated[bool, Meta(description="true if more models follow the last one")]


class GoogleModel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One model in the format of Google's API."""

    name: Annotated[str, Meta(description="`models/`, followed by the model name for requests")]
    display_name: Annotated[str, Meta(description="model name for requests")]


class GoogleModelList(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One page of the models that may be used, in the format of Google's API."""

    models: Annotated[list[GoogleModel], Meta(description="models of this page")]
    next_page_token: Annotated[str | None, Meta(description="`pageToken` of the next page, if there is one")] = None


class CohereModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model in the format of Cohere's API."""

    name: _ModelName


class CohereModelList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One page of the models that may be used, in the format of Cohere's API."""

    models: Annotated[list[CohereModel], Meta(description="models of this page")]
    next_page_token: Annotated[str | None, Meta(description="`page_token` of the next page, if there is one")] = None


AnyModel = CatalogueModel | AnthropicModel | GoogleModel | CohereModel
AnyModelList = ModelList | AnthropicModelList | GoogleModelList | CohereModelList


def to_client_model(client: ClientFormat, model: CatalogueModel) -> AnyModel:
    """Returns a model in the client's format."""
    match client:
        case ClientFormat.ANTHROPIC:
            return _to_anthropic_model(model)
        case ClientFormat.GOOGLE:
            return _to_google_model(model)
        case ClientFormat.COHERE:
            return CohereModel(name=model.id)
        case ClientFormat.OPENAI:
            return model


class PageBounds(NamedTuple):
    """Bounds of a page in the list of models. `start` is the index of its first model, and `end` the index after its
    last. `goes_back` is true if the client pages backwards.
    """

    start: int
    end: int
    goes_back: bool = False


def to_client_list(client: ClientFormat, models: list[CatalogueModel], bounds: PageBounds) -> AnyModelList:
    """Returns one page of the models in the client's format."""
    page = models[bounds.start : bounds.end]
    has_more = bounds.start > 0 if bounds.goes_back else bounds.end < len(models)
    # The token of the next page is the number of models before that page.
    next_token = str(bounds.end) if has_more else None
    match client:
        case ClientFormat.ANTHROPIC:
            data = [_to_anthropic_model(model) for model in page]
            first, last = (data[0].id, data[-1].id) if data else (None, None)
            return AnthropicModelList(data=data, first_id=first, last_id=last, has_more=has_more)
        case ClientFormat.GOOGLE:
            return GoogleModelList(models=[_to_google_model(model) for model in page], next_page_token=next_token)
        case ClientFormat.COHERE:
            return CohereModelList(models=[CohereModel(name=model.id) for model in page], next_page_token=next_token)
        case ClientFormat.OPENAI:
            return ModelList(data=page, total_count=len(models))


def _to_anthropic_model(model: CatalogueModel) -> AnthropicModel:
    created_at = datetime.fromtimestamp(model.created, UTC)
    return AnthropicModel(id=model.id, display_name=model.id, created_at=created_at)


def _to_google_model(model: CatalogueModel) -> GoogleModel:
    return GoogleModel(name=f"models/{model.id}", display_name=model.id)
