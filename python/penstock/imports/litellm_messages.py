"""Settings of LiteLLM that are not imported, with what to do instead. Every known name is listed here or read elsewhere."""

from __future__ import annotations

_CALLBACKS = "export logs or OpenTelemetry instead, see logs.md and opentelemetry.md"
_REDIS = "set redis.url in penstock.toml"
_STORE = "set store.url in penstock.toml; to import the rows of this database, use --database"
_KEYS = "set rules of the organisation or the workspace, such as user_api_key_ttl"
_ALERTS = "alert rules for Prometheus are in deploy/; keys and policies have alert_threshold and alert_emails"
_LOGGING = "set log.level and log.format in penstock.toml"
_JWT = "set [jwt] in penstock.toml, see clients.md"
_SECRETS = "create secret references, and use them in secret_mappings of the integrations"
_SPEND = "logs and usage are always stored; see retention in settings.md"
_NOT_NEEDED = "has no effect here"
_NETWORK = "set upstream.… or server.… in penstock.toml, see settings.md"
_CACHE = "responses are cached in memory, and in Redis if redis.url is set"

TOP_LEVEL = {
    "environment_variables": "set these variables for the process that runs penstock",
    "guardrails": "create the guardrails, see guardrails.md",
    "callback_settings": _CALLBACKS,
    "mcp_servers": "MCP servers are not imported",
    "mcp_tools": "MCP servers are not imported",
    "mcp_aliases": "MCP servers are not imported",
    "finetune_settings": "send x-gateway-provider with requests for fine-tuning, see provider-files.md",
    "files_settings": "send x-gateway-provider with requests for files, see provider-files.md",
    "assistant_settings": "send x-gateway-provider with requests for assistants",
    "prompts": "create the prompts, see prompts.md",
    "vector_store_registry": "send x-gateway-provider with requests for vector stores",
    "search_tools": "search tools are not imported",
    "default_team_settings": _CALLBACKS,
    "policies": "create the guardrails, and name them in the config",
    "policy_attachments": "create the guardrails, and name them in the config",
    "agents": "agents are not imported",
    "tools": "tools are not imported",
    "pass_through_endpoints": "a request with x-gateway-provider can be passed through to any saved provider",
}

LITELLM_SETTINGS = {
    "callbacks": _CALLBACKS,
    "success_callback": _CALLBACKS,
    "failure_callback": _CALLBACKS,
    "audit_log_callbacks": _CALLBACKS,
    "service_callback": _CALLBACKS,
    "service_callbacks": _CALLBACKS,
    "s3_callback_params": "export logs to a bucket, see logs.md",
    "gcs_callback_params": "export logs to a bucket, see logs.md",
    "datadog_params": _CALLBACKS,
    "default_team_settings": _CALLBACKS,
    "langfuse_default_tags": _CALLBACKS,
    "turn_off_message_logging": "send x-gateway-debug: false, or set metrics_only for requests of the workspace",
    "redact_user_api_key_info": "logs contain no keys",
    "redact_messages_in_exceptions": "errors contain no messages of requests",
    "store_audit_logs": "the audit log is always stored",
    "json_logs": _LOGGING,
    "log_raw_request_response": "logs contain requests and responses",
    "ssl_verify": _NETWORK,
    "ssl_certificate": _NETWORK,
    "ssl_security_level": _NETWORK,
    "force_ipv4": _NETWORK,
    "user_agent": "set custom_headers of the integrations",
    "headers": "set custom_headers of the integrations",
    "api_base": "set custom_host of the integrations",
    "api_key": "set key of the integrations",
    "max_end_user_budget": "create a usage limits policy with group_by metadata._user",
    "max_internal_user_budget": "create a usage limits policy with group_by metadata._user",
    "internal_user_budget_duration": "create a usage limits policy with group_by metadata._user",
    "default_internal_user_params": _KEYS,
    "default_key_generate_params": _KEYS,
    "upperbound_key_generate_params": _KEYS,
    "key_generation_settings": _KEYS,
    "default_team_params": "set limits of each workspace",
    "default_max_internal_user_budget": "create a usage limits policy with group_by metadata._user",
    "tag_budget_config": "create usage limits policies with conditions on metadata",
    "provider_budget_config": "set usage_limits of the providers",
    "custom_provider_map": "code is not imported; a provider with OpenAI's API needs no code",
    "guardrails": "create the guardrails, see guardrails.md",
    "guardrail_name_config_map": "create the guardrails, see guardrails.md",
    "enable_json_schema_validation": "use the guardrail check default.jsonSchema",
    "blocked_user_list": "use a condition on metadata in the config",
    "banned_keywords_list": "use the guardrail check default.contains",
    "llamaguard_model_name": "create the guardrails, see guardrails.md",
    "llm_guard_mode": "create the guardrails, see guardrails.md",
    "openai_moderations_model_name": "create the guardrails, see guardrails.md",
    "presidio_ad_hoc_recognizers": "create the guardrails, see guardrails.md",
    "output_parse_pii": "create the guardrails, see guardrails.md",
    "mcp_aliases": "MCP servers are not imported",
    "mcp_semantic_tool_filter": "MCP servers are not imported",
    "public_model_groups": "every key lists the models that it may use",
    "public_model_groups_links": "every key lists the models that it may use",
    "priority_reservation": "use rate limits policies",
    "prometheus_metrics_config": "see monitoring.md for the metrics",
    "prometheus_initialize_budget_metrics": "see monitoring.md for the metrics",
    "custom_prometheus_metadata_labels": "see monitoring.md for the metrics",
    "custom_prometheus_tags": "see monitoring.md for the metrics",
    "require_auth_for_metrics_endpoint": "see monitoring.md for the metrics",
    "enable_end_user_cost_tracking_prometheus_only": "see monitoring.md for the metrics",
    "disable_end_user_cost_tracking": "see monitoring.md for the metrics",
    "disable_end_user_cost_tracking_prometheus_only": "see monitoring.md for the metrics",
    "cost_discount_config": "set pricing_adjustments of the integrations",
    "cost_margin_config": "set pricing_adjustments of the integrations",
    "forward_traceparent_to_llm_provider": "traceparent is always sent to the provider",
    "add_user_information_to_llm_headers": "use forward_headers in the config",
    "return_response_headers": "response headers of the provider are always returned",
    "extra_spend_tag_headers": "set HEADERS_TO_METADATA, see settings.md",
    "default_in_memory_ttl": _CACHE,
    "default_redis_ttl": _CACHE,
    "default_redis_batch_cache_expiry": _CACHE,
    "responses_api_bridge": _NOT_NEEDED,
    "aiohttp_trust_env": _NETWORK,
    "polling_via_cache": _NOT_NEEDED,
    "vector_store_registry": "send x-gateway-provider with requests for vector stores",
}
# Settings whose effect is the normal behaviour here, or that only concern LiteLLM's own process.
WITHOUT_EFFECT = frozenset(
    """
    set_verbose telemetry drop_params modify_params suppress_debug_info debug debug_level num_workers port
    disable_copilot_system_to_assistant disable_hf_tokenizer_download enable_preview_features
    disable_add_transform_inline_image_block use_chat_completions_url_for_anthropic_messages
    disable_token_counter disable_streaming_logging enable_caching_on_provider_specific_optional_params
    disable_spend_logs disable_spend_updates disable_reset_budget disable_adding_master_key_hash_to_db
    disable_master_key_return disable_prisma_schema_update proxy_batch_write_at proxy_batch_polling_interval
    proxy_budget_rescheduler_min_time proxy_budget_rescheduler_max_time infer_model_from_keys client_ttl
    polling_interval disable_retry_on_max_parallel_request_limit_error background_health_checks
    health_check_interval health_check_details disable_error_logs proxy_batch_write_interval
    use_background_health_checks user_api_key_cache_ttl store_model_in_db supported_db_objects
    disable_aiohttp_transport disable_aiohttp_trust_env reasoning_auto_summary disable_load_balancing_for_batches
    """.split()
)
ROUTER_SETTINGS = {
    "redis_host": _REDIS,
    "redis_port": _REDIS,
    "redis_password": _REDIS,
    "redis_username": _REDIS,
    "redis_url": _REDIS,
    "redis_db": _REDIS,
    "cache_responses": "set cache in the config, see caching.md",
    "caching_groups": "models share no cached responses",
    "cache_kwargs": _REDIS,
    "enable_tag_filtering": "use conditions on metadata.<key> in the config",
    "tag_filtering_match_any": "use conditions on metadata.<key> in the config",
    "routing_strategy_args": "load balancing uses weights",
    "retry_after": "set routing.retry_backoff_ms in penstock.toml",
    "max_fallbacks": "all fallbacks of the config are tried",
    "default_max_parallel_requests": "there is no limit of concurrent requests; use a rate limits policy",
    "default_priority": "requests have no priority",
    "allowed_fails_policy": "a circuit breaker counts all failure_status_codes of cb_config alike",
    "model_group_retry_policy": "set retry of the targets in the config",
    "assistants_config": "send x-gateway-provider with requests for assistants",
    "provider_budget_config": "set usage_limits of the providers",
    "deployment_affinity_ttl_seconds": "use sticky sessions in the config",
    "router_general_settings": _NOT_NEEDED,
    "optional_pre_call_checks": "use sticky sessions in the config, and rate limits policies with conditions on model",
    "alerting_config": _ALERTS,
    "fallback_max_depth": "all fallbacks of the config are tried",
    "search_tools": "search tools are not imported",
    "guardrail_list": "create the guardrails, see guardrails.md",
    "ignore_invalid_deployments": _NOT_NEEDED,
    "enable_weighted_failover": "use a fallback in the config",
    "default_litellm_params": "set default_params at the root of the config",
    "set_verbose": _LOGGING,
}
GENERAL_SETTINGS = {
    "master_key": "use the admin key of `penstock init` for management, and a workspace key for models",
    "database_url": _STORE,
    "database_type": _STORE,
    "database_args": _STORE,
    "database_connection_pool_limit": _STORE,
    "database_connection_timeout": _STORE,
    "allow_requests_on_db_unavailable": "requests to models never wait for the database",
    "enable_jwt_auth": _JWT,
    "litellm_jwtauth": _JWT,
    "enable_oauth2_auth": _JWT,
    "enable_oauth2_proxy_auth": _JWT,
    "oauth2_config_mappings": _JWT,
    "allow_user_auth": _JWT,
    "custom_auth": "code is not imported; use keys, or tokens of an identity provider (clients.md)",
    "custom_auth_settings": "code is not imported; use keys, or tokens of an identity provider (clients.md)",
    "custom_sso": "code is not imported",
    "custom_ui_sso_sign_in_handler": "code is not imported",
    "custom_key_generate": "code is not imported; " + _KEYS,
    "alerting": _ALERTS,
    "alerting_threshold": _ALERTS,
    "alerting_args": _ALERTS,
    "alert_types": _ALERTS,
    "alert_to_webhook_url": _ALERTS,
    "spend_report_frequency": _ALERTS,
    "email_settings": _ALERTS,
    "key_management_system": _SECRETS,
    "key_management_settings": _SECRETS,
    "use_azure_key_vault": _SECRETS,
    "use_google_kms": _SECRETS,
    "use_aws_kms": _SECRETS,
    "completion_model": "the model of a request is never replaced; clients must name it",
    "embedding_model": "the model of a request is never replaced; clients must name it",
    "image_generation_model": "the model of a request is never replaced; clients must name it",
    "moderation_model": "the model of a request is never replaced; clients must name it",
    "max_parallel_requests": "there is no limit of concurrent requests; use a rate limits policy",
    "global_max_parallel_requests": "there is no limit of concurrent requests; use a rate limits policy",
    "max_request_size_mb": "set limits.body_bytes in penstock.toml",
    "max_response_size_mb": "responses are streamed and have no limit",
    "store_prompts_in_spend_logs": _SPEND,
    "maximum_spend_logs_retention_period": _SPEND,
    "maximum_spend_logs_retention_interval": _SPEND,
    "forward_client_headers_to_llm_api": "use forward_headers in the config",
    "forward_openai_org_id": "openai-organization of the client is forwarded",
    "forward_llm_provider_auth_headers": "a credential of the client is used if the config has none",
    "use_client_credentials_pass_through_routes": "a credential of the client is used if the config has none",
    "allow_client_side_credentials": "a credential of the client is used if the config has none",
    "pass_through_endpoints": "a request with x-gateway-provider can be passed through to any saved provider",
    "allowed_routes": "keys have scopes, see scopes.md",
    "admin_only_routes": "keys have scopes, see scopes.md",
    "public_routes": "keys have scopes, see scopes.md",
    "enforced_params": "use the guardrail check default.allowedRequestTypes, or conditions in the config",
    "enforce_user_param": "use conditions in the config",
    "reject_clientside_metadata_tags": "metadata of a request takes precedence over that of the key",
    "service_account_settings": "use keys of services",
    "allowed_ips": "limit the addresses in front of the gateway",
    "use_x_forwarded_for": "set security.trusted_proxies in penstock.toml",
    "default_team_disabled": _KEYS,
    "disable_responses_id_security": "the provider checks ids of responses",
    "litellm_key_header_name": "set GATEWAY_HEADER_ALIASES, or send the key in a header of clients.md",
    "litellm_license": "no license is needed",
    "ui_access_mode": "roles decide what a user may do in the console",
    "user_mcp_management_mode": "MCP servers are not imported",
    "control_plane_url": _NOT_NEEDED,
    "role_permissions": "keys have scopes, see scopes.md",
    "user_header_name": "set HEADERS_TO_METADATA, see settings.md",
    "user_header_mappings": "set HEADERS_TO_METADATA, see settings.md",
    "proxy_config_path": _NOT_NEEDED,
    "proxy_base_url": _NOT_NEEDED,
    "server_root_path": _NOT_NEEDED,
    "mcp_internal_ip_ranges": "MCP servers are not imported",
    "store_model_in_db": _STORE,
    "disable_key_creation": _KEYS,
    "custom_ui_settings": _NOT_NEEDED,
}
CACHE_PARAMS = frozenset(
    """
    host port password username url db namespace max_connections redis_startup_nodes service_name sentinel_nodes
    sentinel_password ssl ssl_cert_reqs ssl_check_hostname gcp_service_account gcp_ssl_ca_certs redis_flush_size
    s3_bucket_name s3_region_name s3_aws_access_key_id s3_aws_secret_access_key s3_endpoint_url s3_path
    gcs_bucket_name gcs_path_service_account gcs_path disk_cache_dir default_in_redis_ttl default_in_memory_ttl
    qdrant_semantic_cache_embedding_model qdrant_collection_name qdrant_quantization_config
    qdrant_semantic_cache_vector_size qdrant_api_base qdrant_api_key similarity_threshold
    redis_semantic_cache_embedding_model redis_semantic_cache_index_name mode redis_db redis_url
    """.split()
)
CACHE_MESSAGE = _CACHE
