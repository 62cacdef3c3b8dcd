"""Batches that the gateway stores: their statuses, their API representation, and the headers that their
requests carry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import select

from penstock.batches.files import BATCH, FILE, MS_PER_SECOND, UnixSeconds, not_found_error, parse_prefixed_id
from penstock.batches.hook_summary import HookSummary
from penstock.errors import PenstockError
from penstock.schemas import field_error, now, unknown_reference_error
from penstock.store.job_tables import batches
from penstock.store.tables import integration_models, integrations, providers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.batches.input import BatchLine, LineFault
    from penstock.store.tenant import Row, TenantStore

# Statuses of a batch that runs to its end, in order.
VALIDATING, IN_PROGRESS, FINALIZING, COMPLETED = "validating", "in_progress", "finalizing", "completed"
# Statuses of a batch that is cancelled, and the other final statuses.
CANCELLING, CANCELLED, EXPIRED, FAILED = "cancelling", "cancelled", "expired", "failed"
# Status of a provider's batch whose responses are being checked. The column of the store is too short for the name in the
# API.
CHECKING_RESPONSES = "checking_responses"
STATUS_NAMES = {CHECKING_RESPONSES: "processing_post_request_guardrails"}
ACTIVE_STATUSES = (VALIDATING, IN_PROGRESS, CHECKING_RESPONSES, FINALIZING, CANCELLING)
FINISHED_STATUSES = (COMPLETED, CANCELLED, EXPIRED, FAILED)
IMMEDIATE_WINDOW = "immediate"

HEADER_PREFIX = "x-gateway-"
# Headers of the creating request that the batch's requests carry: those with a provider's credential, its account or
# its API version.
FORWARDED_HEADERS = frozenset(
    [
        "authorization",
        "x-api-key",
        "api-key",
        "x-goog-api-key",
        "openai-organization",
        "openai-project",
        "openai-beta",
        "anthropic-version",
        "anthropic-beta",
    ]
)
MOST_OPTIONS, LONGEST_OPTION = 64, 32 * 1024
API_KEY_HEADER = f"{HEADER_PREFIX}api-key"


class BatchClaimLostError(PenstockError):
    """Another node runs this batch now, or it was deleted."""

    def __init__(self) -> None:
        """Has the same message for all batches, because the log line names the batch."""
        super().__init__("another node runs it, or it was deleted")


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Number of lines by outcome."""

    total: Annotated[int, Meta(description="all")]
    completed: Annotated[int, Meta(description="lines that succeeded")]
    failed: Annotated[int, Meta(description="lines that failed")]


class ProviderDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Run of a batch at its provider, as of the last poll."""

    provider: Annotated[str, Meta(description="slug of the provider")]
    virtual_key: Annotated[str | None, Meta(description="slug of the saved provider, if one was named")]
    job_id: Annotated[str | None, Meta(description="id of the batch at the provider; null before it is submitted")]
    status: Annotated[str | None, Meta(description="status at the provider, in the terms of OpenAI")]
    polled_at: Annotated[int | None, Meta(description="time of the last poll, Unix time in seconds")]
    completed: Annotated[int | None, Meta(description="number of lines that succeeded at the provider")]
    failed: Annotated[int | None, Meta(description="number of lines that failed at the provider")]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch in OpenAI's format."""

    id: Annotated[str, Meta(description="its id")]
    endpoint: Annotated[str, Meta(description="path that its lines are sent to")]
    errors: Annotated[dict[str, Any] | None, Meta(description="errors in its input file, by line")]
    input_file_id: Annotated[str, Meta(description="file with its lines")]
    completion_window: Annotated[str, Meta(description="`immediate` or `24h`")]
    status: Annotated[
        str,
        Meta(
            description="`validating`, `in_progress`, `processing_post_request_guardrails`, `finalizing`, `completed`, `cancelling`, `cancelled`, `expired` or `failed`"
        ),
    ]
    output_file_id: Annotated[str | None, Meta(description="file with the responses")]
    error_file_id: Annotated[str | None, Meta(description="file with the errors")]
    created_at: UnixSeconds
    in_progress_at: UnixSeconds | None
    expires_at: UnixSeconds
    processing_post_request_guardrails_at: UnixSeconds | None
    finalizing_at: UnixSeconds | None
    completed_at: UnixSeconds | None
    failed_at: UnixSeconds | None
    expired_at: UnixSeconds | None
    cancelling_at: UnixSeconds | None
    cancelled_at: UnixSeconds | None
    request_counts: Annotated[Counts, Meta(description="number of lines by outcome")]
    metadata: Annotated[dict[str, str] | None, Meta(description="metadata that its creator set")]
    model: Annotated[str | None, Meta(description="default model for lines that name none")]
    provider_job_id: Annotated[str | None, Meta(description="id of the batch at the provider that runs it")]
    hook_results: Annotated[HookSummary, Meta(description="results of the guardrails so far, over all lines")]
    provider_details: Annotated[
        ProviderDetails | None,
        Meta(description="run at the provider, if `include_provider_details` is true and a provider runs the batch"),
    ] = None
    object: Annotated[str, Meta(description="`batch`")] = "batch"


def to_batch(row: Row, *, has_provider_details: bool = False) -> Batch:
    """Converts a row to the API response."""
    moments: dict[str, int] = {status: moment // MS_PER_SECOND for status, moment in row["moments"].items()}
    details: dict[str, Any] = row["details"] or {}
    job: dict[str, Any] = row["job"] or {}
    output = row["internal_output_file_id"] or row["output_file_id"]
    return Batch(
        id=BATCH + row["id"],
        endpoint=row["endpoint"],
        errors={"object": "list", "data": row["errors"]} if row["errors"] else None,
        input_file_id=FILE + row["input_file_id"],
        completion_window=row["completion_window"],
        status=status_name(row),
        output_file_id=FILE + output if output else None,
        error_file_id=FILE + row["error_file_id"] if row["error_file_id"] else None,
        created_at=row["created_at"] // MS_PER_SECOND,
        expires_at=row["expires_at"] // MS_PER_SECOND,
        request_counts=Counts(total=row["total"], completed=row["completed"], failed=row["failed"]),
        metadata=details.get("metadata"),
        model=row["model"],
        provider_job_id=job.get("id"),
        hook_results=HookSummary.load(details),
        provider_details=_provider_details(job) if has_provider_details and job else None,
        in_progress_at=moments.get(IN_PROGRESS),
        processing_post_request_guardrails_at=moments.get(CHECKING_RESPONSES),
        finalizing_at=moments.get(FINALIZING),
        completed_at=moments.get(COMPLETED),
        failed_at=moments.get(FAILED),
        expired_at=moments.get(EXPIRED),
        cancelling_at=moments.get(CANCELLING),
        cancelled_at=moments.get(CANCELLED),
    )


def _provider_details(job: Mapping[str, Any]) -> ProviderDetails:
    polled: Mapping[str, Any] = job.get("polled") or {}
    return ProviderDetails(
        provider=job["provider"],
        virtual_key=job.get("virtual_key"),
        job_id=job.get("id"),
        status=polled.get("status"),
        polled_at=polled["at"] // MS_PER_SECOND if polled else None,
        completed=polled.get("completed"),
        failed=polled.get("failed"),
    )


def status_name(row: Row) -> str:
    """Returns the name of a batch's status in the API."""
    status: str = row["status"]
    return STATUS_NAMES.get(status, status)


async def find_batch(session: TenantStore, prefixed_id: str) -> Row:
    """Returns the row of a batch by its public id. Raises a 404 error if there is none."""
    row = await session.find(batches, parse_prefixed_id(BATCH, prefixed_id))
    if row is None:
        raise not_found_error(prefixed_id)
    return row


def status_change(row: Mapping[str, Any], status: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - columns
    """Returns the column values to write when a batch gets another status."""
    moment = now()
    change = {"status": status, "moments": {**row["moments"], status: moment}, "last_updated_at": moment, **more}
    # A finished batch sends no more requests, so its encrypted headers are deleted.
    return {**change, "sealed": None, "run_by": None, "run_until": None} if status in FINISHED_STATUSES else change


def collect_headers(
    sent: Iterable[tuple[str, str]], key: str, options: Mapping[str, str], aliases: Iterable[str]
) -> dict[str, str]:
    """Returns the headers that requests of a batch carry: those of the creating request, overridden by the batch's
    options.
    """
    prefixes = (HEADER_PREFIX, *aliases)
    headers: dict[str, str] = {}
    for name, value in sent:
        gateway_header = _to_gateway_header(name, prefixes)
        if gateway_header or name in FORWARDED_HEADERS:
            headers[gateway_header or name] = value
    # `x-gateway-provider: gateway` (or an alias, such as `portkey`) names this gateway, not a provider, so the header
    # is dropped.
    if headers.get(f"{HEADER_PREFIX}provider") in {prefix.removeprefix("x-").removesuffix("-") for prefix in prefixes}:
        del headers[f"{HEADER_PREFIX}provider"]
    headers.update(_validate_options(options, prefixes))
    # The API key is set last, so that no header or option can replace it.
    return {**headers, API_KEY_HEADER: key}


class SelectedProvider(NamedTuple):
    """The provider that runs a batch: its slug, and the saved provider and its integration if there is one."""

    provider: str
    integration_id: str | None = None
    configurations: Mapping[str, Any] = {}
    slug: str | None = None


async def select_provider(
    session: TenantStore, headers: Mapping[str, str], supported_providers: Collection[str]
) -> SelectedProvider:
    """Returns the provider that runs a batch in its own batch API. `supported_providers` names providers with such an API. A config
    is rejected, because it may lead to several providers.
    """
    provider_name = headers.get(f"{HEADER_PREFIX}provider") or ""
    slug = headers.get(f"{HEADER_PREFIX}virtual-key") or provider_name.removeprefix("@")
    if not slug:
        message = f"is '24h', for which {HEADER_PREFIX}provider or {HEADER_PREFIX}virtual-key must name who runs it; hint: gateway_options"
        raise field_error("completion_window", message)
    provider = SelectedProvider(provider_name)
    if slug != provider_name:
        query = select(integrations).join(providers, providers.c.integration_id == integrations.c.id)
        row = await session.fetch_first(
            query.where(providers.c.slug == slug, providers.c.status == "active"), providers
        )
        if row is None:
            raise unknown_reference_error(
                "gateway_options", f"name the provider {slug!r}, which is not saved in this workspace"
            )
        provider = SelectedProvider(row["ai_provider_id"], row["id"], row["configurations"], slug)
    if provider.provider not in supported_providers:
        message = f"is '24h', which {provider.provider!r} does not run here: expected {', '.join(sorted(supported_providers))}; hint: immediate takes any provider"
        raise field_error("completion_window", message)
    return provider


class AllowedModels(NamedTuple):
    """Models that requests to a saved provider may use. The engine applies the same rule to single requests."""

    allow_all: bool
    enabled_by_model: Mapping[str, bool]

    def find_faults(self, line: BatchLine) -> Iterator[LineFault]:
        """Yields a fault if the line's model is not allowed. Only the gateway knows this rule, so the provider would
        accept the line.
        """
        model = str(line.body.get("model"))
        if not self.enabled_by_model.get(model, self.allow_all):
            yield "model_not_allowed", f"body.model is {model!r}, which may not be used here", "body.model"


async def load_allowed_models(connection: AsyncConnection, integration_id: str) -> AllowedModels:
    """Reads which models of an integration are allowed. Allows none if the integration was deleted."""
    query = select(integrations.c.allow_all_models).where(integrations.c.id == integration_id)
    allow_all = bool(await connection.scalar(query))
    columns = (integration_models.c.slug, integration_models.c.enabled)
    rows = await connection.execute(select(*columns).where(integration_models.c.integration_id == integration_id))
    return AllowedModels(allow_all, {row.slug: row.enabled for row in rows})


def _to_gateway_header(name: str, prefixes: Iterable[str]) -> str | None:
    rest = next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), None)
    return HEADER_PREFIX + rest if rest else None


def _validate_options(options: Mapping[str, str], prefixes: Iterable[str]) -> dict[str, str]:
    if len(options) > MOST_OPTIONS:
        raise field_error("gateway_options", f"has {len(options)} fields: {MOST_OPTIONS} are allowed")
    model_names: dict[str, str] = {}
    for name, value in options.items():
        path, gateway_header = f"gateway_options.{name}", _to_gateway_header(name.lower(), prefixes)
        if gateway_header is None or gateway_header == API_KEY_HEADER or not name.isascii():
            raise field_error(
                path, f"is not allowed: expected the name of a header that begins with {HEADER_PREFIX}, not the key"
            )
        if len(value) > LONGEST_OPTION or not (value.isascii() and value.isprintable()):
            raise field_error(path, f"is not allowed: expected up to {LONGEST_OPTION} printable ASCII characters")
        model_names[gateway_header] = value
    return model_names
