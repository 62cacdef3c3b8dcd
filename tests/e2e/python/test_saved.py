"""Saved keys, providers and configs in `penstock.toml`, as the README promises. The file is reloaded when it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway, Mock

SETTINGS: dict[str, Any] = {
    "keys": [{"name": "team-a", "key": "pk-team-a"}],
    "providers": [{"slug": "my-mock", "provider": "mock", "api_key": "${MOCK_KEY}"}],
    "configs": [{"slug": "pc-main", "config": {"provider": "@my-mock"}}],
}
ENVIRONMENT = {"MOCK_KEY": "sk-saved"}


def send_chat_request(running_gateway: Gateway, **headers: str) -> None:
    """Sends one chat request that carries only the gateway's key."""
    names = {f"x-gateway-{name.replace('_', '-')}": value for name, value in headers.items()}
    with openai.OpenAI(
        base_url=f"{running_gateway.base_url}/v1", api_key="pk-team-a", default_headers=names, max_retries=0, timeout=10
    ) as client:
        client.chat.completions.create(model="mock", messages=[{"role": "user", "content": "say something"}])


@pytest.mark.parametrize("headers", [{"provider": "@my-mock"}, {"config": "pc-main"}], ids=["provider", "config"])
def test_saved_provider_or_config_supplies_its_credential(
    gateway: Callable[..., Gateway], mock: Mock, headers: dict[str, str]
):
    send_chat_request(gateway(SETTINGS, env=ENVIRONMENT), **headers)
    (received,) = mock.ledger()
    sent = {name.lower(): value for name, value in dict(received["headers"]).items()}
    assert sent["authorization"] == "Bearer sk-saved"


@pytest.mark.parametrize("size", [1_000, 3_000_000], ids=["at once", "while it comes"])
def test_model_field_of_a_form_selects_a_saved_provider(gateway: Callable[..., Gateway], mock: Mock, size: int):
    running_gateway = gateway(SETTINGS, env=ENVIRONMENT)
    with openai.OpenAI(
        base_url=f"{running_gateway.base_url}/v1", api_key="pk-team-a", max_retries=0, timeout=10
    ) as client:
        sound = ("a.wav", b"RIFF" * (size // 4))
        assert client.audio.transcriptions.create(model="@my-mock/whisper-1", file=sound).text == "Hello."
    (received,) = mock.ledger()
    sent = {name.lower(): value for name, value in dict(received["headers"]).items()}
    assert (sent["authorization"], int(sent["content-length"])) == ("Bearer sk-saved", received["body_bytes"])
    assert running_gateway.records(1)[0]["ai_model"] == "whisper-1"


def test_reloads_a_changed_settings_file(gateway: Callable[..., Gateway], mock: Mock):
    running_gateway = gateway({"mock": {"host": mock.url}, **SETTINGS}, env=ENVIRONMENT)
    with pytest.raises(openai.BadRequestError):
        send_chat_request(running_gateway, config="pc-new")
    configs = [*SETTINGS["configs"], {"slug": "pc-new", "config": {"provider": "@my-mock"}}]
    running_gateway.configure({"mock": {"host": mock.url}, **SETTINGS, "configs": configs})

    def is_new_config_loaded() -> bool | None:
        try:
            send_chat_request(running_gateway, config="pc-new")
        except openai.BadRequestError:
            return None
        return True

    assert wait_for("the new config", is_new_config_loaded)
