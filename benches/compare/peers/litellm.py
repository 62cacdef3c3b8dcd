"""LiteLLM's proxy from PyPI, with one worker."""

from __future__ import annotations

import secrets

from benches.compare.peers import packages
from benches.compare.peers.peer import Peer, Stand

REQUIREMENT = "litellm[proxy]==1.106.2"
# LiteLLM does not start without a master key.
KEY = "sk-" + secrets.token_hex(24)
CONFIG = """
model_list:
  - model_name: "*"
    litellm_params:
      model: "openai/*"
      api_base: "{provider}/v1"
      api_key: "sk-pretend"
general_settings:
  master_key: "{key}"
litellm_settings:
  telemetry: false
  num_retries: 0
"""


class Litellm(Peer):
    """Routes every model name to the mock provider."""

    name = "litellm"
    verbatim = False
    patience = 90.0
    rounds_at_most = 2

    def install(self) -> str:
        self.programs = packages.python(self.cache, REQUIREMENT)
        return REQUIREMENT.partition("==")[2]

    def command(self, stand: Stand) -> list[str]:
        config = stand.folder / "litellm.yaml"
        config.write_text(CONFIG.format(provider=stand.provider, key=KEY))
        where = ["--host", "127.0.0.1", "--port", str(stand.port), "--num_workers", "1"]
        return [str(self.programs / "litellm"), "--config", str(config), *where]

    def environment(self) -> dict[str, str]:
        # Uses the price list of the package. Downloading it would delay the start.
        return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}

    def headers(self, stand: Stand) -> dict[str, str]:  # noqa: ARG002 - peers differ in what they need
        return {"authorization": f"Bearer {KEY}"}
