"""Google Gen AI SDK."""

from __future__ import annotations

from google import genai
from google.genai import errors, types
from sdk_calls import (
    GATEWAY,
    KEY,
    MOCK_REJECTION,
    PROMPT,
    PROVIDERS,
    TOOL_ARGUMENTS,
    TOOL_SCHEMA,
    failure_status,
    mock_headers,
    model_name,
    report_call,
    tool_call_headers,
)

WEATHER_FUNCTION = types.FunctionDeclaration(
    name="weather", description="The weather", parameters_json_schema=TOOL_SCHEMA
)
TOOLS = [types.Tool(function_declarations=[WEATHER_FUNCTION])]


def build_client(headers: dict[str, str], version: str = "v1beta") -> genai.Client:
    options = types.HttpOptions(base_url=GATEWAY, api_version=version, headers=headers)
    return genai.Client(api_key=KEY, http_options=options)


def text_and_usage(response: types.GenerateContentResponse, text: str) -> object:
    usage = response.usage_metadata
    assert usage
    return [text, usage.prompt_token_count, usage.candidates_token_count]


def send_chat(provider: str) -> object:
    client = build_client({}, "v1")
    response = client.models.generate_content(model=model_name(provider), contents=PROMPT)
    return text_and_usage(response, response.text or "")


def stream_chat(provider: str) -> object:
    client = build_client({})
    chunks = list(client.models.generate_content_stream(model=model_name(provider), contents=PROMPT))
    return text_and_usage(chunks[-1], "".join(chunk.text or "" for chunk in chunks))


def call_tool(provider: str) -> object:
    client = build_client(tool_call_headers())
    config = types.GenerateContentConfig(
        tools=TOOLS, automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
    )
    first = client.models.generate_content(model=model_name(provider), contents=PROMPT, config=config)
    assert first.function_calls
    assert first.candidates
    call = first.function_calls[0]
    result = types.Part.from_function_response(name="weather", response={"output": "rain"})
    turns = [
        types.Content(role="user", parts=[types.Part(text=PROMPT)]),
        first.candidates[0].content,
        types.Content(role="user", parts=[result]),
    ]
    second = client.models.generate_content(model=model_name(provider), contents=turns, config=config)
    return [call.name, call.args == TOOL_ARGUMENTS, bool(second.text)]


def stream_tool_call(provider: str) -> object:
    config = types.GenerateContentConfig(
        tools=TOOLS, automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
    )
    client = build_client(tool_call_headers())
    chunks = client.models.generate_content_stream(model=model_name(provider), contents=PROMPT, config=config)
    calls = [call for chunk in chunks for call in chunk.function_calls or ()]
    return [[call.name, call.args == TOOL_ARGUMENTS] for call in calls]


def provoke_error(provider: str) -> object:
    client = build_client(mock_headers(**MOCK_REJECTION))
    return failure_status(
        lambda: client.models.generate_content(model=model_name(provider), contents=PROMPT),
        errors.ClientError,
        lambda error: [error.code, error.status],
    )


def embed_texts(provider: str) -> object:
    """Requests two embeddings of three dimensions and returns their lengths. Returns the error if the provider has no
    embeddings.
    """
    config = types.EmbedContentConfig(output_dimensionality=3, task_type="CLUSTERING")
    client = build_client({})
    try:
        response = client.models.embed_content(model=model_name(provider), contents=[PROMPT, PROMPT], config=config)
    except errors.APIError as error:
        return [error.code, error.status]
    return [len(item.values or ()) for item in response.embeddings or ()]


def count_tokens(provider: str) -> object:
    client = build_client({})
    return client.models.count_tokens(model=model_name(provider), contents=PROMPT).total_tokens


for provider in PROVIDERS:
    for call in (send_chat, stream_chat, call_tool, stream_tool_call, provoke_error, embed_texts, count_tokens):
        report_call(provider, call.__name__, lambda call=call, provider=provider: call(provider))
