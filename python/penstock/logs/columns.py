"""Columns of the log store. Both engines create their table from this list, and docs/log-fields.md is generated from
it.
"""

from __future__ import annotations

import enum

import msgspec

# One cent in nano-dollars. Costs are stored in nano-dollars; filters and results of analytics are in cents.
NANODOLLARS_PER_CENT = 10_000_000
# Value of the column `source` for requests that compare prompt versions.
COMPARISON_SOURCE = "comparison"


class ColumnType(enum.Enum):
    """Type of a column. `CATEGORY` is a string of which there are only few different values."""

    UUID = "UUID"
    STRING = "string"
    CATEGORY = "category"
    INTEGER = "integer"
    FLOAT = "number"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    JSON = "JSON"
    MAP = "map of strings"


class Origin(enum.Enum):
    """Source of a column's value."""

    RECORD = "record"
    BATCH = "log worker"
    DERIVED = "computed"


class Column(msgspec.Struct, frozen=True):
    """One column. Its name is also the key in the record line."""

    name: str
    type: ColumnType
    meaning: str
    origin: Origin = Origin.RECORD
    is_listed: bool = True
    """False for columns with long values, which lists of logs omit."""
    is_amendable: bool = False
    """True if an amendment may set the value after the record was written."""


def _define(
    column_type: ColumnType, *, origin: Origin = Origin.RECORD, is_listed: bool = True, **names: str
) -> list[Column]:
    return [Column(name, column_type, meaning, origin, is_listed) for name, meaning in names.items()]


def _define_amendable(
    column_type: ColumnType, origin: Origin = Origin.RECORD, *, is_listed: bool = True, **names: str
) -> list[Column]:
    return [Column(name, column_type, meaning, origin, is_listed, is_amendable=True) for name, meaning in names.items()]


COLUMNS: tuple[Column, ...] = (
    *_define(ColumnType.UUID, id="identifier of the request"),
    *_define(ColumnType.TIMESTAMP, created_at="start of the request, UTC, in milliseconds"),
    *_define(
        ColumnType.CATEGORY,
        organisation_id="organisation; empty for a request without a valid key",
        workspace_id="workspace",
        workspace_slug="slug of the workspace when the request was made",
        api_key_id="API key of the client",
        api_key_name="name of the API key when the request was made",
        user_id="user who owns the API key; for a token its `email_id`, `sub` or `uid`",
        user="end user, from the metadata key `_user`",
    ),
    *_define(
        ColumnType.STRING,
        trace_id="trace; the request's identifier if the client sent none",
        span_id="span",
        span_name="name of the span",
        parent_span_id="span that caused this one",
        request_url="path and query, with secrets masked",
    ),
    *_define(
        ColumnType.CATEGORY,
        request_method="HTTP method",
        operation="operation of the gateway, such as `chatComplete`",
        ai_org="provider, such as `openai`",
        ai_model="model that responded",
        virtual_key="slug of the saved provider",
        provider_id="saved provider",
        integration_id="integration",
        config="slug of the config",
        config_id="config",
        config_version_id="version of the config",
        prompt_id="prompt",
        prompt_slug="slug of the prompt",
        prompt_version_id="identifier of the prompt's version",
        prompt_label="label by which the client chose the version",
        mode="strategy: `single`, `fallback`, `loadbalance`, `conditional`",
        last_used_option_index="config path of the target that responded",
        cache_status="`disabled`, `hit`, `semantic_hit`, `miss` or `refresh`",
        cache_type="`simple` or `semantic`",
        outcome="`complete`, `refused`, `failed`, `aborted`, `cut`, `panicked` or `killed`",
        error="error code of the gateway",
        source="what made the request: `gateway` for clients, `comparison` of versions of a prompt, `batch` or `external`",
        runtime="language of the client's SDK",
        runtime_version="version of that language",
        sdk_version="version of the client's SDK",
        body="state of the stored bodies: `complete`, `cut`, `dropped` or `off`",
    ),
    *_define(
        ColumnType.INTEGER,
        response_status_code="HTTP status",
        prompt_version="number of the prompt's version",
        retry_success_count="number of the retry that succeeded; 0 for none, -1 if all failed",
        bytes_out="bytes that were sent to the client",
        request_bytes="length of the request body",
        response_bytes="length of the response body",
        worker="number of the edge worker",
        events_left_out="session events that were not recorded",
    ),
    *_define(
        ColumnType.BOOLEAN,
        is_success="status 2xx or 101, complete, and without an error",
        is_proxy_call="passed through without translation",
        stream_mode="streamed response",
        is_shortened="record without its long parts",
        debug="false if the client asked for metrics only",
    ),
    *_define(
        ColumnType.FLOAT,
        response_time="milliseconds until the end of the response",
        time_to_first_byte="milliseconds until the first byte of the response",
        upstream_response_time="milliseconds until the provider's response headers",
        gateway_processing_time="milliseconds that the gateway added",
        request_parsing_time="milliseconds to parse the request",
        pre_processing_time="milliseconds before the request was sent to the provider",
        response_parsing_time="milliseconds to translate the response; of a stream all its parts together",
        cache_processing_time="milliseconds to look up the cache",
        authentication_time="milliseconds to find who sent the request",
        limit_check_time="milliseconds to count the request in the limits of its caller",
        audio_file_duration="milliseconds of audio in the request",
    ),
    *_define_amendable(
        ColumnType.INTEGER,
        req_units="tokens of the request, including cached ones",
        res_units="tokens of the response, including reasoning",
        total_units="tokens of request and response",
        cost_nanodollars="cost in billionths of a US dollar; null if no price is known",
    ),
    *_define_amendable(ColumnType.BOOLEAN, units_estimated="the gateway counted the tokens itself"),
    *_define_amendable(
        ColumnType.CATEGORY,
        cost_currency="currency of the cost",
        price_version="version of the price",
        previous_price_version="version of the price before the last re-rating",
    ),
    *_define_amendable(
        ColumnType.INTEGER, previous_cost_nanodollars="cost before the last re-rating; null if no price was known"
    ),
    *_define_amendable(ColumnType.JSON, usage="parts of the token counts, tool uses, images and service tier"),
    *_define(ColumnType.MAP, metadata="metadata of the request"),
    *_define(
        ColumnType.JSON,
        is_listed=False,
        attempts="attempts: provider, slug of the saved provider (`virtual_key`), model, config path of the target, host, status, start and duration in milliseconds, error, reason, which for a status is the message of the provider",
        decisions="steps of routing",
        limits="budgets that the request counts for, and limits that rejected it or would have",
        events="events of a realtime session",
        request_headers="request headers, with secrets masked",
        response_headers="response headers that may be stored",
        prompt_variables="variables of the prompt; without their values if bodies are not stored",
    ),
    *_define_amendable(ColumnType.JSON, is_listed=False, hook_results="results of guardrails"),
    *_define(
        ColumnType.STRING,
        is_listed=False,
        peer="network address of a client without a valid key; of each client with `log.access`",
    ),
    *_define(
        ColumnType.BOOLEAN, origin=Origin.DERIVED, is_fallback="a later target than the first of a fallback responded"
    ),
    *_define(ColumnType.CATEGORY, origin=Origin.BATCH, node="node that wrote the record"),
    *_define_amendable(ColumnType.STRING, Origin.BATCH, body_key="key of the pack that holds the bodies"),
    *_define_amendable(
        ColumnType.INTEGER,
        Origin.BATCH,
        body_offset="first byte in the pack",
        body_length="number of bytes in the pack",
    ),
)

# Columns that are set only when the cost of a stored record is corrected.
CORRECTION_COLUMNS = frozenset({"previous_cost_nanodollars", "previous_price_version"})

COLUMNS_BY_NAME = {column.name: column for column in COLUMNS}
RECORD_COLUMNS = tuple(column for column in COLUMNS if column.origin is Origin.RECORD)
LISTED_COLUMNS = tuple(column for column in COLUMNS if column.is_listed)
AMENDABLE_COLUMNS = tuple(column for column in COLUMNS if column.is_amendable)


def render_markdown() -> list[str]:
    """Renders the generated parts of docs/log-fields.md: the introduction and the table."""
    rows = [
        f"| `{column.name}` | {column.type.value} | {_describe_origin(column)} | {column.meaning} |"
        for column in COLUMNS
    ]
    introduction = (
        "The log store has one row per request. DuckDB and ClickHouse have the same columns. With DuckDB, each day before "
        "yesterday is one or more Parquet files `days/<day>.<number>.parquet` in `log_store.path`, which other tools may "
        "read."
    )
    origins = [
        "- `record`: the value has the same key in the record file.",
        "- `log worker`: the log worker adds it when it inserts the record.",
        "- `computed`: the log store computes it from other columns.",
        "- `re-rating`: `penstock rerate` sets it when it corrects a cost.",
    ]
    costs = "Costs are integers in billionths of a US dollar here. The API returns and filters costs in cents."
    table = ["| column | type | set by | meaning |", "| --- | --- | --- | --- |", *rows]
    return [introduction, "\n".join(origins), costs, "\n".join(table)]


def _describe_origin(column: Column) -> str:
    if column.name in CORRECTION_COLUMNS:
        return "re-rating"
    return column.origin.value
