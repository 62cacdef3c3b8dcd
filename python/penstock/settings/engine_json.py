"""Settings of the engine: the part of the settings tree that each edge worker passes to the Rust engine, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.settings import Settings
    from penstock.settings.secret import Secret


def encode_engine_settings(settings: Settings, worker: int) -> bytes:
    """Returns the settings that the engine of one edge worker needs, as JSON. `Settings` of the Rust crate
    `penstock-core` has the same fields.
    """
    return msgspec.json.encode(
        {
            "control_socket": settings.control_socket,
            "worker": worker,
            "workers": settings.server.workers,
            "port": settings.server.port,
            "base_path": settings.server.base_path,
            "header_timeout_ms": settings.server.header_timeout_ms,
            "header_bytes": settings.server.header_bytes,
            "keep_alive_ms": settings.server.keep_alive_ms,
            "request_timeout_ms": settings.upstream.request_timeout_ms,
            "dns_timeout_ms": settings.upstream.dns_timeout_ms,
            "connect_timeout_ms": settings.upstream.connect_timeout_ms,
            "tls_timeout_ms": settings.upstream.tls_timeout_ms,
            "idle_timeout_ms": settings.upstream.idle_timeout_ms,
            "stream_timeout_ms": settings.upstream.stream_timeout_ms,
            "heartbeat_ms": round(settings.server.heartbeat_seconds * 1000),
            "write_stall_ms": settings.server.write_stall_ms,
            "max_body_bytes": settings.limits.body_bytes,
            "buffered_body_bytes": settings.limits.buffered_body_bytes,
            "body_idle_ms": settings.limits.body_idle_ms,
            "body_total_ms": settings.limits.body_total_ms,
            "body_rate": settings.limits.body_rate,
            "body_grace_ms": settings.limits.body_grace_ms,
            "max_in_flight": settings.limits.in_flight,
            **msgspec.structs.asdict(settings.routing),
            "redis_url": _reveal_optional(settings.redis.url),
            "redis_prefix": settings.redis.prefix,
            "redis_wait_ms": settings.redis.wait_ms,
            "redis_answer_bytes": settings.redis.response_bytes,
            "trusted_custom_hosts": settings.upstream.trusted_custom_hosts,
            "header_aliases": [prefix.lower() for prefix in settings.security.header_aliases],
            "require_key": settings.require_key,
            "block_inline_config": settings.security.block_inline_config,
            "records": settings.records.enabled,
            "outbox_bytes": settings.records.outbox_bytes,
            "record_bodies": settings.records.bodies,
            "record_body_bytes": settings.records.body_bytes,
            "spool_bytes": settings.records.spool_bytes,
            "sync_records": settings.records.durability == "power",
            "spool_path": settings.spool_folder,
            "limits_path": settings.limits_folder,
            "record_peers": settings.log.access,
            "sensitive_headers": settings.records.sensitive_headers,
            "headers_to_metadata": settings.records.headers_to_metadata,
            "mock_host": settings.mock.host or None,
            "http2": settings.upstream.http2,
            "https_proxy": _reveal_optional(settings.upstream.https_proxy),
            "http_proxy": _reveal_optional(settings.upstream.http_proxy),
            "no_proxy": settings.upstream.no_proxy,
            "tls_ca": settings.upstream.tls_ca or None,
            "identity": _identity_fields(settings),
        }
    )


def _identity_fields(settings: Settings) -> dict[str, object]:
    identity = settings.identity
    return {
        "allow_provider_use": identity.allow_provider_use,
        "aws_role_arn": identity.aws_role_arn or None,
        "aws_sts_endpoint": identity.aws_sts_endpoint or None,
        "aws_web_identity_token_file": identity.aws_web_identity_token_file or None,
        "aws_container_url": settings.container_credentials_url,
        "aws_container_token": _reveal_optional(identity.aws_container_token),
        "aws_container_token_file": identity.aws_container_token_file or None,
        "aws_metadata_url": identity.aws_metadata_url,
        "azure_identity_url": identity.azure_identity_url or None,
        "azure_identity_header": _reveal_optional(identity.azure_identity_header),
        "azure_metadata_url": identity.azure_metadata_url,
        "azure_federated_token_file": identity.azure_federated_token_file or None,
        "azure_tenant_id": identity.azure_tenant_id or None,
        "azure_client_id": identity.azure_client_id or None,
        "azure_authority_host": identity.azure_authority_host,
        "google_token_file": identity.google_token_file or None,
        "google_sts_url": identity.google_sts_url,
        "google_iam_url": identity.google_iam_url,
    }


def _reveal_optional(secret: Secret | None) -> str | None:
    return secret.reveal() if secret else None
