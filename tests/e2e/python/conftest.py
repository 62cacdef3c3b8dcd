"""Fixtures for tests of official SDKs: a provider with scripted responses, and SDK clients of the gateway that a test
serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anthropic
import boto3
import openai
import pytest
from botocore.config import Config

from tests.e2e.python.packages import KEY
from tests.e2e.python.scripted_provider import ScriptedProvider

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway import Gateway


@pytest.fixture(scope="module")
def scripted_provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider() as provider:
        yield provider


@pytest.fixture(scope="module")
def chat(running_gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running_gateway.base_url}/v1", api_key=KEY, max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture(scope="module")
def claude(running_gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=running_gateway.base_url, api_key=KEY, max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture(scope="module")
def amazon(running_gateway: Gateway) -> Any:
    return boto3.client(
        "bedrock-runtime",
        endpoint_url=running_gateway.base_url,
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key="not looked at",
        config=Config(retries={"total_max_attempts": 1}),
    )
