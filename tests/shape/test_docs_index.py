"""Index of the documentation: every page is listed, and the usual words of the field lead to a page."""

from __future__ import annotations

import re

import pytest

from penstock import engine
from tests.doc_examples import DOCUMENTS
from tests.shape.repository import read_text

INDEX = "docs/README.md"
INDEX_ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<page>[^)]+)\): (?P<description>.+)$", re.MULTILINE)
MAX_PAGE_LINES = 200
# Headers on pages of providers that are not options of a provider.
GENERAL_HEADERS = {"x-gateway-provider", "x-gateway-custom-host", "x-gateway-not-translated"}
# What people type into a search box, and a page that must answer it.
SEARCHES = {
    "401": "troubleshooting", "429": "troubleshooting", "A/B test": "load-balancing", "Anthropic": "providers/anthropic",
    "API key": "keys", "Azure OpenAI": "providers/azure-openai", "back up": "backup-and-restore", "backup": "backup-and-restore", "Bedrock": "providers/bedrock",
    "cached": "caching", "canary": "load-balancing", "circuit breaker": "circuit-breaker", "Claude Code": "tools",
    "Codex": "tools", "conditional routing": "conditional-routing", "cost": "cost-tracking", "Cursor": "tools",
    "custom prices": "cost-tracking", "expiry": "keys", "fallback": "fallbacks", "Gemini": "providers/gemini",
    "graceful shutdown": "timeouts", "Grafana": "monitoring", "Helm": "deploy-kubernetes", "Kubernetes": "deploy-kubernetes", "systemd": "deploy-server",
    "Compose": "deploy-containers", "high availability": "deploy-several-nodes", "roll back": "upgrade", "Groq": "providers/groq", "half-open": "circuit-breaker",
    "heartbeats": "timeouts", "hedging": "hedging", "invite": "users-and-roles", "JWT": "tokens",
    "LangChain": "sdks", "LiteLLM": "sdks", "load balancing": "load-balancing", "lost admin key": "operations",
    "Mistral": "providers/mistral", "Ollama": "providers/ollama", "Open WebUI": "tools", "OpenRouter": "providers/openrouter",
    "OpenTelemetry": "opentelemetry", "Prometheus": "monitoring", "quick start": "quickstart", "realtime": "realtime",
    "retries": "retries", "roles": "users-and-roles", "rotate": "keys", "streams stall": "troubleshooting",
    "sticky sessions": "load-balancing", "troubleshooting": "troubleshooting", "Vercel AI SDK": "sdks",
    "rate limit exceeded": "troubleshooting", "too many requests": "troubleshooting", "timeout": "timeouts",
    **dict.fromkeys((
        "macOS", "Windows", "ARM", "air-gapped", "offline", "corporate proxy", "HTTPS_PROXY", "custom CA", "IPv6",
        "autoscaling", "OpenShift", "GitOps", "Terraform", "blue-green", "zero downtime", "memory usage", "CPU usage", "ulimit",
        "connection pool", "PgBouncer", "read replica", "MySQL", "Redis Cluster", "Sentinel", "MinIO", "disk full", "SAML",
        "SCIM", "LDAP", "MFA", "revoke", "forgot the password", "CORS", "cost center", "GDPR", "log retention", "PII",
        "model alias", "prompt caching", "token count", "context window", "JSON schema", "latency-based", "semantic cache",
        "Splunk", "Datadog", "Kafka", "Slack", "correlation id", "SBOM", "supply chain",
        "svc.cluster.local", "private host",
    ), "faq"),
    "Vertex AI": "providers/vertex-ai", "vLLM": "providers/vllm", "WebSockets": "realtime", "workspace": "users-and-roles",
}  # fmt: skip

# Words that a search finds in the index: the description there must name them, and the page must answer them.
INDEX_SEARCHES = {
    "API reference": "management", "audit trail": "security-model", "benchmark": "comparison",
    "budget alert": "policies", "capacity planning": "sizing", "connection refused": "troubleshooting",
    "cost per team": "cost-tracking", "custom provider": "providers/openai-compatible", "dashboard": "monitoring",
    "disaster recovery": "backup-and-restore", "distributed tracing": "opentelemetry", "Docker Compose": "deploy-containers",
    "downgrade": "upgrade", "encryption at rest": "security-model", "failover": "fallbacks",
    "file descriptors": "sizing", "function calling": "translation", "health check": "operations",
    "hot reload": "operations", "idempotency": "management", "Ingress": "deploy-kubernetes",
    "liveness": "deploy-kubernetes", "log level": "monitoring", "metrics endpoint": "monitoring",
    "non-root": "deploy-containers", "playground": "console", "prompt injection": "guardrail-models",
    "quotas": "policies", "RBAC": "users-and-roles", "readiness": "deploy-kubernetes",
    "rotate the master key": "operations", "schema migration": "upgrade", "self-hosted models": "providers/openai-compatible",
    "spend limit": "policies", "SSO": "tokens", "Swagger": "management", "throttling": "limits", "tool calling": "translation",
    "error codes": "errors", "rollback": "upgrade", "chargeback": "cost-tracking", "cost per": "cost-tracking", "threat model": "security-model",
    "multi-tenant": "security-model", "environment variables": "settings", "load test": "sizing", "web UI": "console",
    "JSON mode": "translation", "image generation": "routes", "PodDisruptionBudget": "deploy-kubernetes", "pip": "quickstart",
    "redact": "guardrail-recipes",
    "traceparent": "clients", "traffic split": "load-balancing", "Vault": "security-model", "413": "troubleshooting", "504": "troubleshooting",
}  # fmt: skip


def headings(document: str) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", read_text(document), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^#+ (.*)$", text, re.MULTILINE)


def index_entries() -> dict[str, str]:
    """Returns the description of each listed page, by its path."""
    return {f"docs/{entry['page']}": entry["description"] for entry in INDEX_ENTRY.finditer(read_text(INDEX))}


def test_index_lists_every_page_once_with_a_description():
    pages = [path for path in DOCUMENTS if path != INDEX]
    listed = [f"docs/{entry['page']}" for entry in INDEX_ENTRY.finditer(read_text(INDEX))]
    assert not set(pages) - set(listed)
    assert len(listed) == len(set(listed))
    assert not [page for page, description in index_entries().items() if not description.endswith(".")]


def test_list_for_language_models_has_a_line_for_every_page():
    lines = read_text("docs/llms.txt").splitlines()
    for page in index_entries():
        assert len([line for line in lines if f"]({page.removeprefix('docs/')}): " in line]) == 1, page


@pytest.mark.parametrize(("word", "page"), SEARCHES.items(), ids=SEARCHES)
def test_usual_word_leads_to_a_heading(word: str, page: str):
    actual = {
        document for document in DOCUMENTS if any(word.lower() in heading.lower() for heading in headings(document))
    }
    assert f"docs/{page}.md" in actual


@pytest.mark.parametrize(("word", "page"), INDEX_SEARCHES.items(), ids=INDEX_SEARCHES)
def test_usual_word_leads_to_a_line_of_the_index(word: str, page: str):
    assert word.lower() in index_entries()[f"docs/{page}.md"].lower()


def test_new_pages_are_short():
    written = {f"docs/{page}.md" for page in SEARCHES.values()} - {"docs/clients.md"}
    assert not [page for page in written if len(read_text(page).splitlines()) > MAX_PAGE_LINES]


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if path.startswith("docs/providers/")])
def test_provider_page_names_existing_headers(document: str):
    text = read_text(document)
    names = set(re.findall(r'"ai_provider_id": "([\w-]+)"', text)) | set(
        re.findall(r'^provider = "(.+)"', text, re.MULTILINE)
    )
    rows = {row["slug"]: row for row in engine.catalogue()}
    assert names
    assert names <= set(rows)
    headers = {f"x-gateway-{header}" for name in names for _, header in rows[name]["options"]}
    displayed = set(re.findall(r"`(x-gateway-[\w-]+)`", text)) - GENERAL_HEADERS
    assert not displayed - headers


def test_troubleshooting_page_names_existing_error_codes():
    section = read_text("docs/troubleshooting.md").split("## 502, 503, 504")[1].split("\n## ")[0]
    codes = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert len(codes) > 5
    assert not [code for code in codes if f"| `{code}` | " not in read_text("docs/errors.md")]
