"""Python interface of the Rust engine. Only this module imports `_engine`."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

import msgspec

# Disables transparent huge pages, which would cost an idle process 10 MB. The allocator of the extension reads this
# variable once, at import.
os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")

from penstock.errors import StartupError

try:
    from penstock._engine import (
        SOURCES_SHA256,
        VERSION,
        BatchRecorder,
        BudgetSums,
        BurstTicker,
        DecodedRecords,
        Engine,
        EngineError,
        RecordDecoder,
        RequestCounts,
        WebSocketHandle,
        check,
        client_format,
        count_interrupted,
        decode_spool_frames,
        is_secret_field,
        mask_body_secrets,
        mask_query,
        refuse_destination,
        register_plugins,
        replace_inline_data,
        set_default_models,
        set_plugin_socket,
        set_recorded_usage,
        shown_header,
        split_spool_frames,
        start_preemption_ticker,
        translate_batch_line,
        translate_batch_result,
    )
    from penstock._engine import catalogue as _catalogue
    from penstock._engine import classify_texts as _classify_texts
    from penstock._engine import config_schema as _config_schema
    from penstock._engine import guardrail_checks as _guardrail_checks
    from penstock._engine import prompt_variables as _prompt_variables
    from penstock._engine import run_guardrail as _run_guardrail
except ImportError as missing:
    message = (
        f"the engine lacks what this version needs: {missing}; hint: run `make build`, or install the package again"
    )
    raise StartupError(message) from None

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = [
    "SOURCES_SHA256",
    "VERSION",
    "BatchRecorder",
    "BudgetSums",
    "BurstTicker",
    "DecodedRecords",
    "Engine",
    "EngineError",
    "RecordDecoder",
    "RequestCounts",
    "WebSocketHandle",
    "catalogue",
    "check",
    "classify_texts",
    "client_format",
    "config_schema",
    "count_interrupted",
    "decode_spool_frames",
    "guardrail_checks",
    "is_secret_field",
    "mask_body_secrets",
    "mask_query",
    "prompt_variables",
    "refuse_destination",
    "register_plugins",
    "replace_inline_data",
    "run_guardrail",
    "set_default_models",
    "set_plugin_socket",
    "set_recorded_usage",
    "shown_header",
    "split_spool_frames",
    "start_preemption_ticker",
    "translate_batch_line",
    "translate_batch_result",
]


@cache
def catalogue() -> tuple[Mapping[str, Any], ...]:
    """Returns the providers that the engine supports, with `slug`, `base_url`, `api_format`, the operations
    that each `offers`, its `options`, and its names in the public `price_list`. All callers share the result.
    """
    return tuple(msgspec.json.decode(_catalogue()))


def classify_texts(data: bytes) -> list[Any]:
    """Classifies texts with the engine. `data` is JSON with `kind`, `inputs` and `categories`. Returns one entry for
    each input.
    """
    return msgspec.json.decode(_classify_texts(data))


def config_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a config."""
    return msgspec.json.decode(_config_schema())


@cache
def guardrail_checks() -> tuple[dict[str, Any], ...]:
    """Returns the guardrail checks of the engine. In each, `parameters` is the JSON Schema of its parameters, and
    `secrets` lists the parameters that are credentials. All callers share the result.
    """
    return tuple(msgspec.json.decode(_guardrail_checks()))


def run_guardrail(settings: bytes, content: bytes, subject: bytes) -> dict[str, Any]:
    """Runs a guardrail on a request or response, as a trial. Returns the content of the trial's response in the API. A
    check may wait for another host. Raises `EngineError` with all problems if the guardrail is not valid.
    """
    return msgspec.json.decode(_run_guardrail(settings, content, subject))


def prompt_variables(content: bytes) -> dict[str, Any]:
    """Returns the names of variables, sections and partials in the content of a prompt. Raises `EngineError` with all
    problems if a template in it is not valid.
    """
    return msgspec.json.decode(_prompt_variables(content))
