"""Providers of LiteLLM, each with the equivalent provider of this gateway, the environment variable with its key, and
its address.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Account(StrEnum):
    """How an account at a provider is identified. This determines the options of an integration."""

    KEY = "key"
    AZURE_OPENAI = "azure-resource"
    AZURE_AI = "azure-foundry"
    AWS = "aws"
    GOOGLE_CLOUD = "google-cloud"


class ProviderRule(NamedTuple):
    """Equivalent provider of this gateway. `env` is the variable that LiteLLM reads if a model has no key. `host` is an
    address that differs from the provider's own.
    """

    slug: str
    env: str = ""
    host: str = ""
    account: Account = Account.KEY


PROVIDERS: dict[str, ProviderRule] = {
    "ai21": ProviderRule("ai21", "AI21_API_KEY"),
    "ai21_chat": ProviderRule("ai21", "AI21_API_KEY"),
    "aiml": ProviderRule("openai", "AIML_API_KEY", "https://api.aimlapi.com/v1"),
    "anthropic": ProviderRule("anthropic", "ANTHROPIC_API_KEY"),
    "anyscale": ProviderRule("anyscale", "ANYSCALE_API_KEY"),
    "azure": ProviderRule("azure-openai", "AZURE_API_KEY", account=Account.AZURE_OPENAI),
    "azure_ai": ProviderRule("azure-ai", "AZURE_AI_API_KEY", account=Account.AZURE_AI),
    "azure_text": ProviderRule("azure-openai", "AZURE_API_KEY", account=Account.AZURE_OPENAI),
    "baseten": ProviderRule("openai", "BASETEN_API_KEY", "https://inference.baseten.co/v1"),
    "bedrock": ProviderRule("bedrock", account=Account.AWS),
    "bedrock_converse": ProviderRule("bedrock", account=Account.AWS),
    "cerebras": ProviderRule("cerebras", "CEREBRAS_API_KEY"),
    "cloudflare": ProviderRule("workers-ai", "CLOUDFLARE_API_KEY"),
    "codestral": ProviderRule("mistral-ai", "CODESTRAL_API_KEY", "https://codestral.mistral.ai/v1"),
    "cohere": ProviderRule("cohere", "COHERE_API_KEY"),
    "cohere_chat": ProviderRule("cohere", "COHERE_API_KEY"),
    "cometapi": ProviderRule("cometapi", "COMETAPI_KEY"),
    "custom_openai": ProviderRule("openai"),
    "dashscope": ProviderRule("dashscope", "DASHSCOPE_API_KEY"),
    "databricks": ProviderRule("databricks", "DATABRICKS_API_KEY"),
    "deepgram": ProviderRule("deepgram", "DEEPGRAM_API_KEY"),
    "deepinfra": ProviderRule("deepinfra", "DEEPINFRA_API_KEY"),
    "deepseek": ProviderRule("deepseek", "DEEPSEEK_API_KEY"),
    "docker_model_runner": ProviderRule("openai"),
    "fal_ai": ProviderRule("fal-ai", "FAL_AI_API_KEY"),
    "featherless_ai": ProviderRule("featherless-ai", "FEATHERLESS_AI_API_KEY"),
    "fireworks_ai": ProviderRule("fireworks-ai", "FIREWORKS_AI_API_KEY"),
    "friendliai": ProviderRule("openai", "FRIENDLI_TOKEN", "https://api.friendli.ai/serverless/v1"),
    "galadriel": ProviderRule("openai", "GALADRIEL_API_KEY", "https://api.galadriel.com/v1"),
    "gemini": ProviderRule("google", "GEMINI_API_KEY"),
    "github": ProviderRule("github", "GITHUB_API_KEY"),
    "groq": ProviderRule("groq", "GROQ_API_KEY"),
    "hosted_vllm": ProviderRule("openai", "HOSTED_VLLM_API_KEY"),
    "huggingface": ProviderRule("huggingface", "HF_TOKEN"),
    "hyperbolic": ProviderRule("hyperbolic", "HYPERBOLIC_API_KEY"),
    "infinity": ProviderRule("openai", "INFINITY_API_KEY"),
    "jina_ai": ProviderRule("jina", "JINA_AI_API_KEY"),
    "lambda_ai": ProviderRule("lambda", "LAMBDA_API_KEY"),
    "litellm_proxy": ProviderRule("openai", "LITELLM_PROXY_API_KEY"),
    "llamafile": ProviderRule("openai", "LLAMAFILE_API_KEY"),
    "lm_studio": ProviderRule("openai", "LM_STUDIO_API_KEY"),
    "meta_llama": ProviderRule("openai", "LLAMA_API_KEY", "https://api.llama.com/compat/v1"),
    "minimax": ProviderRule("minimax", "MINIMAX_API_KEY"),
    "mistral": ProviderRule("mistral-ai", "MISTRAL_API_KEY"),
    "moonshot": ProviderRule("moonshot", "MOONSHOT_API_KEY", "https://api.moonshot.ai"),
    "nebius": ProviderRule("nebius", "NEBIUS_API_KEY"),
    "novita": ProviderRule("novita-ai", "NOVITA_API_KEY"),
    "nscale": ProviderRule("nscale", "NSCALE_API_KEY"),
    "nvidia_nim": ProviderRule("openai", "NVIDIA_NIM_API_KEY", "https://integrate.api.nvidia.com/v1"),
    "ollama": ProviderRule("ollama", "", "http://localhost:11434"),
    "ollama_chat": ProviderRule("ollama", "", "http://localhost:11434"),
    "openai": ProviderRule("openai", "OPENAI_API_KEY"),
    "openai_like": ProviderRule("openai", "OPENAI_LIKE_API_KEY"),
    "openrouter": ProviderRule("openrouter", "OPENROUTER_API_KEY"),
    "ovhcloud": ProviderRule("ovhcloud", "OVHCLOUD_API_KEY"),
    "perplexity": ProviderRule("perplexity-ai", "PERPLEXITYAI_API_KEY"),
    "predibase": ProviderRule("predibase", "PREDIBASE_API_KEY"),
    "recraft": ProviderRule("recraft-ai", "RECRAFT_API_KEY"),
    "replicate": ProviderRule("replicate", "REPLICATE_API_KEY"),
    "sagemaker": ProviderRule("sagemaker", account=Account.AWS),
    "sagemaker_chat": ProviderRule("sagemaker", account=Account.AWS),
    "sambanova": ProviderRule("sambanova", "SAMBANOVA_API_KEY"),
    "siliconflow": ProviderRule("siliconflow", "SILICONFLOW_API_KEY"),
    "snowflake": ProviderRule("cortex", "SNOWFLAKE_JWT"),
    "stability": ProviderRule("stability-ai", "STABILITY_API_KEY"),
    "text-completion-codestral": ProviderRule("mistral-ai", "CODESTRAL_API_KEY", "https://codestral.mistral.ai/v1"),
    "text-completion-openai": ProviderRule("openai", "OPENAI_API_KEY"),
    "together_ai": ProviderRule("together-ai", "TOGETHERAI_API_KEY"),
    "triton": ProviderRule("triton"),
    "upstage": ProviderRule("upstage", "UPSTAGE_API_KEY"),
    "vertex_ai": ProviderRule("vertex-ai", account=Account.GOOGLE_CLOUD),
    "vertex_ai_beta": ProviderRule("vertex-ai", account=Account.GOOGLE_CLOUD),
    "vllm": ProviderRule("openai", "VLLM_API_KEY"),
    "volcengine": ProviderRule("openai", "ARK_API_KEY", "https://ark.cn-beijing.volces.com/api/v3"),
    "voyage": ProviderRule("voyage", "VOYAGE_API_KEY"),
    "xai": ProviderRule("x-ai", "XAI_API_KEY"),
    "xinference": ProviderRule("openai", "XINFERENCE_API_KEY", "http://127.0.0.1:9997/v1"),
    "zai": ProviderRule("z-ai", "ZAI_API_KEY"),
}

# Beginnings of model names by which LiteLLM finds the provider, if the model name does not contain one.
MODEL_PREFIXES: tuple[tuple[str, str], ...] = (
    ("ft:gpt-", "openai"),
    ("gpt-", "openai"),
    ("chatgpt-", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("text-embedding-", "openai"),
    ("text-moderation-", "openai"),
    ("omni-moderation-", "openai"),
    ("whisper-", "openai"),
    ("tts-", "openai"),
    ("dall-e-", "openai"),
    ("davinci-", "openai"),
    ("babbage-", "openai"),
    ("claude-", "anthropic"),
    ("command", "cohere"),
    ("embed-english-", "cohere"),
    ("embed-multilingual-", "cohere"),
    ("rerank-", "cohere"),
    ("gemini-", "vertex_ai"),
    ("text-bison", "vertex_ai"),
    ("anthropic.", "bedrock"),
    ("amazon.", "bedrock"),
    ("meta.", "bedrock"),
    ("cohere.", "bedrock"),
    ("mistral.", "bedrock"),
    ("us.", "bedrock"),
    ("eu.", "bedrock"),
    ("apac.", "bedrock"),
)
# Parts of a Bedrock or Vertex AI name that select an API, and not a model.
API_SEGMENTS = {
    "bedrock": ("converse", "converse_like", "invoke", "async_invoke"),
    "vertex_ai": ("gemini",),
    "azure": ("responses", "chat", "o_series", "gpt5_series"),
    "openai": ("responses", "chat"),
    "ollama": ("chat",),
}
# Providers whose `custom_host` does not contain `/v1`, while LiteLLM's `api_base` does.
ADDRESS_BEFORE_VERSION = frozenset(
    [
        "cohere",
        "deepseek",
        "huggingface",
        "hyperbolic",
        "lingyi",
        "moonshot",
        "novita-ai",
        "ollama",
        "openrouter",
        "sambanova",
        "together-ai",
    ]
)

ADDRESS_SUFFIXES_TO_REMOVE = {"anthropic": ("/messages",), "google": ("/v1beta",)}
ADDRESS_SUFFIX_TO_ADD = {"anthropic": "/v1"}
# LiteLLM's providers for servers that the user runs, which have no fixed address.
OWN_SERVERS = frozenset(
    [
        "custom_openai",
        "docker_model_runner",
        "hosted_vllm",
        "infinity",
        "litellm_proxy",
        "llamafile",
        "lm_studio",
        "openai_like",
        "vllm",
    ]
)


def split_model(model: str, custom_provider: str | None) -> tuple[str | None, str]:
    """Splits a model name of LiteLLM into its provider and the name that is sent upstream. The provider is `None` if
    LiteLLM would find none.
    """
    head, slash, rest = model.partition("/")
    if custom_provider:
        provider, name = custom_provider, rest if slash and head == custom_provider else model
    elif slash and head in PROVIDERS:
        provider, name = head, rest
    elif slash:
        return (None, model) if not rest else (head if _is_provider_like(head) else None, rest)
    else:
        provider = next((provider for prefix, provider in MODEL_PREFIXES if model.startswith(prefix)), None)
        return provider, model
    segment, slash, after = name.partition("/")
    if slash and segment in API_SEGMENTS.get(provider, ()):
        name = after
    return provider, name


def _is_provider_like(head: str) -> bool:
    return head.replace("_", "").isalnum() and head.islower()


def adapt_host(provider: str, url: str) -> str:
    """Converts LiteLLM's `api_base` to the `custom_host` of a provider. They differ in whether they contain the API
    version.
    """
    url = url.rstrip("/")
    if provider in ADDRESS_BEFORE_VERSION:
        return url.removesuffix("/chat/completions").removesuffix("/v1").rstrip("/")
    for suffix in ADDRESS_SUFFIXES_TO_REMOVE.get(provider, ("/chat/completions",)):
        url = url.removesuffix(suffix)
    needed = ADDRESS_SUFFIX_TO_ADD.get(provider, "")
    return url if url.endswith(needed) else url + needed
