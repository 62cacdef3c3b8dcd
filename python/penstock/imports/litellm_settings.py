"""Reads the settings sections of LiteLLM. Routing, cache and budgets become options of the config and of the
workspace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.imports import litellm_messages as messages
from penstock.imports.litellm_deployment import read_retries
from penstock.imports.litellm_limits import read_budget
from penstock.imports.litellm_routing import Fallbacks
from penstock.imports.litellm_values import read_timeout_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.imports.findings import Node

JsonObject = dict[str, Any]

# LiteLLM's defaults for a cool-down, for a configuration that sets only the failures or only the time.
DEFAULT_ALLOWED_FAILS, MIN_COOLDOWN_MS = 3, 30_000
# Statuses after which LiteLLM cools down a deployment.
FAILURE_STATUSES = [401, 404, 408, 429, 500, 502, 503, 504, 529]
MIN_CACHE_SECONDS, MAX_CACHE_SECONDS, DEFAULT_CACHE_SECONDS = 60, 7_776_000, 600
CACHE_TYPES = frozenset({"local", "redis", "s3", "gcs", "disk", "azure-blob"})
BALANCING = "load balancing by weight, which is what simple-shuffle does"
POLICY_STATUSES = {
    "AuthenticationErrorRetries": [401],
    "BadRequestErrorRetries": [400],
    "ContentPolicyViolationErrorRetries": [400],
    "InternalServerErrorRetries": [500, 502, 503, 504, 529],
    "RateLimitErrorRetries": [429],
    "TimeoutErrorRetries": [408, 504],
}
FALLBACK_MESSAGES = {
    "fallbacks": "fallback on every status but 2xx; a content policy refusal is returned, not sent to other models",
    "context_window_fallbacks": "fallback on the statuses 400 and 413, with which providers report a long prompt",
    "content_policy_fallbacks": "fallback on status 400, with which providers report a content policy violation",
    "default_fallbacks": "fallback of every model without fallbacks; a model that is not listed has none",
}


class SettingsReader:
    """Reads the settings sections of all sources. A value of `router_settings` precedes one of `litellm_settings`."""

    def __init__(self) -> None:
        """Starts without settings."""
        self.aliases: dict[str, str] = {}
        self.usage_limits: JsonObject | None = None
        self._retries: dict[str, JsonObject] = {}
        self._timeouts: dict[str, int] = {}
        self._fallbacks: dict[str, dict[str, list[str]]] = {}
        self._default_fallbacks: list[str] = []
        self._allowed_fails: int | None = None
        self._cooldown_ms: int | None = None
        self._is_cooldown_disabled = False
        self._cache: JsonObject | None = None
        self._readers: dict[str, Callable[[Node, str], None]] = {
            "num_retries": self._read_retries,
            "retry_policy": self._read_retry_policy,
            "timeout": self._read_timeout,
            "request_timeout": self._read_timeout,
            "stream_timeout": self._read_stream_timeout,
            "allowed_fails": self._read_allowed_fails,
            "cooldown_time": self._read_cooldown,
            "disable_cooldowns": self._read_disabled_cooldowns,
            "fallbacks": self._read_fallbacks,
            "context_window_fallbacks": self._read_fallbacks,
            "content_policy_fallbacks": self._read_fallbacks,
            "default_fallbacks": self._read_default_fallbacks,
            "model_group_alias": self._read_aliases,
            "routing_strategy": self._read_strategy,
            "enable_pre_call_checks": self._read_pre_call_checks,
            "cache": self._read_cache_switch,
        }

    def read_section(self, section: Node) -> None:
        """Reads `litellm_settings`, `router_settings` or `general_settings`."""
        known = {
            "litellm_settings": messages.LITELLM_SETTINGS,
            "router_settings": messages.ROUTER_SETTINGS,
            "general_settings": messages.GENERAL_SETTINGS,
        }[section.name]
        # A setting may be in another section: LiteLLM reads most router settings from `litellm_settings`, too.
        known = {**messages.GENERAL_SETTINGS, **messages.ROUTER_SETTINGS, **messages.LITELLM_SETTINGS, **known}
        if section.name != "general_settings" and section.is_mapping:
            self._read_cache(section)
            self._read_global_budget(section)
        for field in section.fields():
            if reader := self._readers.get(field.name):
                reader(field, section.name)
            elif field.name in known:
                field.report_manual(known[field.name])
            elif field.name in messages.WITHOUT_EFFECT:
                field.report_approximate("has no equivalent and needs none")

    def root_options(self) -> JsonObject:
        """Returns the options at the root of the config, which apply to all targets."""
        options: JsonObject = {}
        if retry := self._retries.get("router_settings") or self._retries.get("litellm_settings"):
            options["retry"] = retry
        if timeout := self._timeouts.get("router_settings") or self._timeouts.get("litellm_settings"):
            options["request_timeout"] = timeout
        has_cooldown = self._allowed_fails is not None or self._cooldown_ms is not None
        if has_cooldown and not self._is_cooldown_disabled:
            fails = DEFAULT_ALLOWED_FAILS if self._allowed_fails is None else self._allowed_fails
            options["cb_config"] = {
                "failure_threshold": max(1, fails),
                "cooldown_interval": max(MIN_COOLDOWN_MS, self._cooldown_ms or 0),
                "failure_status_codes": FAILURE_STATUSES,
            }
        if self._cache:
            options["cache"] = self._cache
        return options

    def fallbacks(self) -> Fallbacks:
        """Returns all fallbacks."""
        kinds = (self._fallbacks.get(name, {}) for name in list(FALLBACK_MESSAGES)[:3])
        return Fallbacks(*kinds, default=self._default_fallbacks)

    def missing_models(self, is_known: Callable[[str], bool]) -> list[str]:
        """Returns the models that fallbacks and aliases name and that do not exist."""
        names = [*self._default_fallbacks]
        names += [name for table in self._fallbacks.values() for listed in table.values() for name in listed]
        model_names = {*names} - self.aliases.keys() | {*self.aliases.values()}
        return sorted(name for name in model_names if not is_known(name))

    def _read_retries(self, field: Node, section: str) -> None:
        if (attempts := read_retries(field)) is not None:
            self._retries.setdefault(section, {"attempts": attempts})

    def _read_retry_policy(self, field: Node, section: str) -> None:
        attempts, statuses = 0, set[int]()
        for item in field.fields():
            if item.name not in POLICY_STATUSES or (number := read_retries(item)) is None:
                continue
            item.report_approximate(
                "retry: the highest number of all kinds of errors, on the statuses of those with retries"
            )
            attempts = max(attempts, number)
            statuses |= set(POLICY_STATUSES[item.name]) if number else set()
        if attempts:
            self._retries[section] = {"attempts": attempts, "on_status_codes": sorted(statuses)}

    def _read_timeout(self, field: Node, section: str) -> None:
        if timeout := read_timeout_ms(field):
            self._timeouts[section] = timeout

    def _read_stream_timeout(self, field: Node, section: str) -> None:
        if section in self._timeouts:
            field.report_manual("request_timeout is the one timeout of a target, for streams and other responses")
        else:
            self._read_timeout(field, section)

    def _read_allowed_fails(self, field: Node, _section: str) -> None:
        if (number := field.number()) is not None:
            self._allowed_fails = int(min(number, 1_000_000))
            field.report_approximate(
                "failure_threshold of cb_config: at least 1; counts one to two cool-downs, not a minute"
            )

    def _read_cooldown(self, field: Node, _section: str) -> None:
        if (seconds := field.number()) is not None:
            self._cooldown_ms = int(min(seconds, 86_400) * 1000)
            field.report_approximate("cooldown_interval of cb_config: at least 30 seconds")

    def _read_disabled_cooldowns(self, field: Node, _section: str) -> None:
        if (flag := field.flag()) is not None:
            self._is_cooldown_disabled = flag
            field.report_exact("without cb_config there is no circuit breaker")

    def _read_fallbacks(self, field: Node, _section: str) -> None:
        """Reads the fallbacks of each model: one mapping from a model to its fallbacks, or a list of such mappings."""
        fallbacks = self._fallbacks.setdefault(field.name, {})
        tables = field.items() if field.is_list else [field]
        for table in tables:
            for entry in table.fields():
                names = [entry.text()] if isinstance(entry.value, str) else [item.text() for item in entry.items()]
                fallbacks.setdefault(entry.name, []).extend(name for name in names if name)
                entry.report_approximate(FALLBACK_MESSAGES[field.name])
        if field.value in ([], {}):
            field.report_exact("no fallbacks")

    def _read_default_fallbacks(self, field: Node, _section: str) -> None:
        self._default_fallbacks += field.texts()
        field.report_approximate(FALLBACK_MESSAGES["default_fallbacks"])

    def _read_aliases(self, field: Node, _section: str) -> None:
        for item in field.fields():
            if item.is_mapping:
                model_node = item.child("model")
                if hidden := item.child("hidden"):
                    hidden.report_approximate("names of the config are not in the list of models")
            else:
                model_node = item
            model = model_node.text() if model_node else None
            if model_node is None or model is None or not item.name.isprintable() or not item.name:
                item.report_unsupported("an alias stands for the name of one model")
                continue
            model_node.report_exact("another name in the condition of the model")
            self.aliases[item.name] = model
        if field.value == {}:
            field.report_exact("no aliases")

    def _read_strategy(self, field: Node, _section: str) -> None:
        if field.text() == "simple-shuffle":
            field.report_exact(BALANCING)
        elif isinstance(field.value, str):
            field.report_approximate(
                f"becomes {BALANCING}; the gateway does not choose by latency, cost, or current usage"
            )

    def _read_pre_call_checks(self, field: Node, _section: str) -> None:
        field.report_approximate("a prompt is not compared with the context window before it is sent")

    def _read_cache_switch(self, field: Node, _section: str) -> None:
        if field.flag() is not None:
            field.report_exact("cache of the config")

    def _read_cache(self, section: Node) -> None:
        switch, params = section.child("cache"), section.child("cache_params")
        kind = params.child("type") if params else None
        ttl = params.child("ttl") if params else None
        for field in params.fields() if params else ():
            if field.name == "supported_call_types":
                field.report_approximate("all responses that caching.md lists are cached")
            elif field.name in messages.CACHE_PARAMS:
                field.report_manual(messages.CACHE_MESSAGE)
        name = kind.text() if kind else "local"
        if kind and name in CACHE_TYPES:
            kind.report_approximate(messages.CACHE_MESSAGE)
        elif kind:
            kind.report_manual("responses are cached for equal requests only, not for similar ones")
        if switch is None or switch.value is not True or name not in CACHE_TYPES:
            if ttl:
                ttl.report_approximate("has no effect, because the cache is off")
            return
        seconds = ttl.number() if ttl else None
        if ttl and seconds is not None:
            is_inside = MIN_CACHE_SECONDS <= seconds <= MAX_CACHE_SECONDS and seconds == int(seconds)
            (ttl.report_exact if is_inside else ttl.report_approximate)("max_age: from 60 seconds to 90 days")
        requested = DEFAULT_CACHE_SECONDS if seconds is None else int(seconds)
        self._cache = {"mode": "simple", "max_age": min(max(requested, MIN_CACHE_SECONDS), MAX_CACHE_SECONDS)}

    def _read_global_budget(self, section: Node) -> None:
        if limits := read_budget(section):
            self.usage_limits = limits
