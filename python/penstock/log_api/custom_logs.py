"""Logs of requests that did not go through the gateway, which clients send themselves. Each becomes a record like any
other, with its tokens and cost if the model and its price are known.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec
from msgspec import Meta
from sqlalchemy import select

from penstock import engine
from penstock.errors import PenstockError
from penstock.ids import MASK_TEXT, PROVIDER_ALIASES, new_id
from penstock.logs.spool_format import BODY_CUT, CLIENT_REQUEST, CLIENT_RESPONSE, END
from penstock.logs.spool_writer import NewFrame
from penstock.pricing.cost_calculator import StoredRequest
from penstock.pricing.saved_prices import SavedPrices, load_saved_prices
from penstock.schemas import format_timestamp, now
from penstock.store.tables import integrations, providers, workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.kit.tenant_session import TenantSession
    from penstock.log_api.service import LogService
    from penstock.pricing.cost_calculator import CostCalculator
    from penstock.settings import Settings

log = logging.getLogger("penstock")

MAX_TEXT_CHARS, MAX_METADATA_PAIRS, MAX_METADATA_VALUE_CHARS = 2048, 64, 512
MAX_HEADERS = 200
SUCCESS_STATUSES = range(200, 300)
DEFAULT_STATUS = 200
# Suffixes of the headers that contain the name of a provider, or the slug of a saved provider.
PROVIDER_HEADERS = ("-provider", "-virtual-key")
MAX_PROVIDER_NAMES = 3
# Metadata fields that describe the trace of a custom log, in both spellings that clients use, with their names in
# records.
TRACE_FIELDS = {
    **{name: name for name in ("trace_id", "span_id", "span_name", "parent_span_id")},
    "traceId": "trace_id",
    "spanId": "span_id",
    "spanName": "span_name",
    "parentSpanId": "parent_span_id",
}
# Fields of a record that the engine derives from the response.
USAGE_FIELDS = ("operation", "req_units", "res_units", "total_units", "usage")
# Provider in whose API format the logged responses must be.
RESPONSE_FORMAT = "openai"

_Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
_Headers = Annotated[dict[str, str], Meta(max_length=MAX_HEADERS)]


class CustomRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a custom log."""

    url: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT_CHARS, description="URL that the request was sent to")]
    body: Annotated[Any, Meta(description="body of the request: a JSON value")]
    method: Annotated[_Text, Meta(description="HTTP method; default POST")] = "POST"
    headers: Annotated[
        _Headers | None, Meta(description="headers of the request; values that may be credentials are masked")
    ] = None
    provider: Annotated[
        _Text | None,
        Meta(
            description="provider, such as `openai`, or saved provider, such as `@mine`, which decides the price; default: the provider header among `headers`, else the host of the URL"
        ),
    ] = None


class CustomResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Response of a custom log."""

    body: Annotated[Any, Meta(description="body of the response: a JSON value, in OpenAI's format if it has a cost")]
    status: Annotated[
        Annotated[int, Meta(ge=100, le=599)] | None, Meta(description="status code of the response; default 200")
    ] = None
    headers: Annotated[_Headers | None, Meta(description="headers of the response")] = None
    response_time: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="time until the end of the response in milliseconds")
    ] = None


class CustomLog(msgspec.Struct, frozen=True, kw_only=True):
    """One request that did not go through the gateway, with its response."""

    request: Annotated[CustomRequest, Meta(description="the request")]
    response: Annotated[CustomResponse, Meta(description="the response")]
    metadata: Annotated[
        Annotated[dict[str, Any], Meta(max_length=MAX_METADATA_PAIRS)] | None,
        Meta(
            description="`trace_id`, `span_id`, `span_name` and `parent_span_id`, and further fields with string values, such as `_user`"
        ),
    ] = None


class SavedProvider(NamedTuple):
    """A saved provider of the sender's workspace."""

    id: str
    slug: str
    # Provider of its integration, such as `openai`.
    provider: str
    integration_id: str


class LogOrigin(NamedTuple):
    """Origin of custom logs. `fields` describe the sender and are copied to the records. `providers` are the saved
    providers that the logs name, and `prices` those of their integrations.
    """

    fields: dict[str, Any]
    keeps_bodies: bool
    providers: Mapping[str, SavedProvider]
    prices: Mapping[str, SavedPrices]


class LogIdentity(NamedTuple):
    """Id of a new record, and when its request began, in milliseconds since 1970."""

    id: str
    started_at: int


async def find_log_origin(
    session: TenantSession, log_service: LogService, items: Iterable[CustomLog] = ()
) -> LogOrigin:
    """Returns the origin of logs that the caller of a session sends, with the saved providers that `items` name."""
    caller = session.caller
    workspace = await session.fetch_first(
        select(workspaces.c.slug, workspaces.c.settings).where(workspaces.c.id == session.bound_workspace_id),
        workspaces,
    )
    fields = {
        "organisation_id": session.organisation_id,
        "workspace_id": session.workspace_id,
        "workspace_slug": workspace["slug"] if workspace else None,
        "api_key_id": caller.key_id,
        "api_key_name": caller.key_name,
        "user_id": caller.user_id,
    }
    has_debug_log = workspace is None or workspace["settings"].get("debug_log") != 0
    names = {name for item in items for name in list_provider_names(item.request)}
    saved = await _find_saved_providers(session, names) if names else {}
    used = {provider.integration_id for provider in saved.values()}
    prices = await load_saved_prices(session.connection, integrations.c.id.in_(used)) if used else {}
    return LogOrigin(fields, log_service.keeps_bodies and has_debug_log, saved, prices)


async def _find_saved_providers(session: TenantSession, slugs: Iterable[str]) -> dict[str, SavedProvider]:
    columns = (providers.c.id, providers.c.slug, providers.c.integration_id, integrations.c.ai_provider_id)
    query = (
        select(*columns)
        .join(integrations, integrations.c.id == providers.c.integration_id)
        .where(providers.c.slug.in_(slugs))
    )
    rows = await session.fetch_rows(query, providers)
    return {
        row["slug"]: SavedProvider(row["id"], row["slug"], row["ai_provider_id"], row["integration_id"]) for row in rows
    }


class CustomLogWriter:
    """Converts custom logs to frames of the record spool. Loads the prices with the first log."""

    def __init__(self, settings: Settings, calculator: CostCalculator) -> None:
        """Stores the maximum size of a stored body, and the calculator of costs."""
        self._max_body_bytes = settings.records.body_bytes
        self._calculator = calculator
        self._reader: engine.BatchRecorder | None = None
        self._hosts: dict[str, str] = {}
        self._slugs: frozenset[str] = frozenset()

    async def encode_frames(
        self, items: Iterable[CustomLog], origin: LogOrigin, identities: Iterable[LogIdentity] | None = None
    ) -> tuple[list[str], list[NewFrame]]:
        """Returns the ids of the new records, and their frames. Runs in a thread, because prices take long to load.

        Without `identities`, the records have new ids and the current time.
        """
        logs = list(items)
        locations = list(identities or (LogIdentity(new_id(), now()) for _ in logs))
        return await asyncio.to_thread(self._encode_all, logs, locations, origin)

    def _encode_all(
        self, items: list[CustomLog], identities: list[LogIdentity], origin: LogOrigin
    ) -> tuple[list[str], list[NewFrame]]:
        self._load_catalogue()
        records = [self._build_record(identity, item, origin) for identity, item in zip(identities, items, strict=True)]
        self._add_costs(records, identities, origin.prices)
        frames = list[NewFrame]()
        for record, item in zip(records, items, strict=True):
            frames += self._encode(record, item, keeps_bodies=origin.keeps_bodies)
        return [identity.id for identity in identities], frames

    def _encode(self, record: dict[str, Any], item: CustomLog, *, keeps_bodies: bool) -> list[NewFrame]:
        key = uuid.UUID(record["id"]).bytes
        bodies: list[NewFrame] = []
        for kind, body in ((CLIENT_REQUEST, item.request.body), (CLIENT_RESPONSE, item.response.body)):
            encoded = msgspec.json.encode(body)
            content = engine.mask_body_secrets(encoded) or encoded
            is_cut = len(content) > self._max_body_bytes
            bodies.append(NewFrame(kind, key, content[: self._max_body_bytes], BODY_CUT if is_cut else 0))
        if keeps_bodies:
            record["body"] = "cut" if any(frame.flags for frame in bodies) else "complete"
        else:
            bodies, record["body"] = [], "off"
        return [*bodies, NewFrame(END, key, msgspec.json.encode(record))]

    def _build_record(self, identity: LogIdentity, item: CustomLog, origin: LogOrigin) -> dict[str, Any]:
        record_id, moment = identity
        request, response, metadata = item.request, item.response, item.metadata or {}
        status = response.status or DEFAULT_STATUS
        trace = {
            TRACE_FIELDS[name]: str(value)[:MAX_TEXT_CHARS]
            for name, value in metadata.items()
            if name in TRACE_FIELDS and isinstance(value, str | int | float) and value != ""
        }
        pairs = {
            name: str(value)[:MAX_METADATA_VALUE_CHARS]
            for name, value in metadata.items()
            if name not in TRACE_FIELDS and isinstance(value, str | int | float)
        }
        model = _find_model(request.body) or _find_model(response.body)
        return {
            "id": record_id,
            "created_at": format_timestamp(moment),
            "trace_id": record_id,
            **trace,
            "request_method": request.method,
            "request_url": mask_url(request.url),
            "response_status_code": status,
            "is_success": status in SUCCESS_STATUSES,
            "outcome": "complete",
            "response_time": response.response_time,
            **self._find_provider(request, origin.providers),
            "ai_model": model,
            "mode": "single",
            "is_proxy_call": False,
            "stream_mode": False,
            "cache_status": "disabled",
            "source": "external",
            **self._read_usage(record_id, moment, model, item),
            **origin.fields,
            **({"user": pairs["_user"]} if "_user" in pairs else {}),
            "metadata": pairs,
            "request_headers": mask_headers(request.headers or {}),
            "response_headers": mask_headers(response.headers or {}),
        }

    def _find_provider(self, request: CustomRequest, saved: Mapping[str, SavedProvider]) -> dict[str, Any]:
        for name in list_provider_names(request):
            if provider := saved.get(name):
                return {
                    "ai_org": provider.provider,
                    "virtual_key": provider.slug,
                    "provider_id": provider.id,
                    "integration_id": provider.integration_id,
                }
            slug = PROVIDER_ALIASES.get(name.lower(), name.lower())
            if slug in self._slugs:
                return {"ai_org": slug}
        if host := self._hosts.get(_split_url(request.url).hostname or ""):
            return {"ai_org": host}
        # A provider that the gateway does not know is recorded by its name, because the operator may have set prices
        # for it.
        provider = (request.provider or "").strip()
        return {"ai_org": "" if provider.startswith("@") else provider.lower()}

    def _load_catalogue(self) -> None:
        if not self._slugs:
            rows = engine.catalogue()
            self._hosts = {urlsplit(str(row["base_url"])).hostname or "": row["slug"] for row in reversed(rows)}
            self._hosts.pop("", None)
            self._slugs = frozenset(row["slug"] for row in rows)

    def _read_usage(self, record_id: str, moment: int, model: str, item: CustomLog) -> dict[str, Any]:
        """Returns those fields in `USAGE_FIELDS` that the response of a log provides."""
        entry = {
            "id": record_id,
            "created_at": moment,
            "trace_id": record_id,
            "path": _split_url(item.request.url).path or "/",
            "provider": RESPONSE_FORMAT,
            "model": model,
            "status": item.response.status or DEFAULT_STATUS,
            "api_key_id": None,
            "metadata": None,
        }
        self._reader = self._reader or engine.BatchRecorder(b"{}")
        try:
            line = self._reader.record(msgspec.json.encode(entry), msgspec.json.encode(item.response.body))
        except engine.EngineError as error:
            log.warning("the tokens of a custom log cannot be read: %s", error)
            return {}
        read: dict[str, Any] = msgspec.json.decode(line)
        return {name: read[name] for name in USAGE_FIELDS if name in read}

    def _add_costs(
        self, records: list[dict[str, Any]], identities: list[LogIdentity], prices: Mapping[str, SavedPrices]
    ) -> None:
        """Adds the cost to records with token counts. The cost is null if no price is known."""
        used = [
            (record, identity.started_at)
            for record, identity in zip(records, identities, strict=True)
            if "total_units" in record
        ]
        if not used:
            return
        requests = [
            StoredRequest(
                provider=record["ai_org"],
                model=record["ai_model"],
                created_at_ms=started_at,
                req_units=record.get("req_units"),
                res_units=record.get("res_units"),
                usage=record.get("usage"),
                saved=prices.get(record.get("integration_id", "")),
            )
            for record, started_at in used
        ]
        try:
            costs = self._calculator.compute_costs(requests)
        except PenstockError as error:
            # Stores the logs without costs, because re-rating can add these later.
            log.error("the costs of custom logs are not known: %s", error)  # noqa: TRY400 - a traceback would add nothing to the problems
            costs = [None] * len(used)
        for (record, _), cost in zip(used, costs, strict=True):
            record["cost_nanodollars"] = None
            if cost is not None:
                record["cost_nanodollars"], record["cost_currency"] = cost.nanodollars, "USD"
                record["price_version"] = cost.price_version


def list_provider_names(request: CustomRequest) -> list[str]:
    """Returns the provider names in a custom log, without a leading `@`: first that in the field `provider`, then those
    in headers.
    """
    headers = request.headers or {}
    named_items = [
        request.provider,
        *(value for name, value in headers.items() if name.lower().endswith(PROVIDER_HEADERS)),
    ]
    names = ((name or "").strip().removeprefix("@") for name in named_items)
    return [name for name in dict.fromkeys(names) if name][:MAX_PROVIDER_NAMES]


def mask_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Masks the values of headers that may be credentials. Names become lower-case."""
    return {
        name.lower()[:MAX_TEXT_CHARS]: (engine.shown_header(name.lower(), value) or MASK_TEXT)[:MAX_TEXT_CHARS]
        for name, value in headers.items()
    }


def mask_url(url: str) -> str:
    """Removes user names and passwords from a URL, and masks the values of its query parameters that may be secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK_TEXT
    query = engine.mask_query(parts.query)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def _split_url(url: str) -> SplitResult:
    """Splits a URL. All parts of an invalid URL are empty."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _find_model(body: object) -> str:
    model = cast("dict[str, object]", body).get("model") if isinstance(body, dict) else None
    return model[:MAX_TEXT_CHARS] if isinstance(model, str) else ""
