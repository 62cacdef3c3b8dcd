"""LiteLLM's proxy from PyPI, one worker."""

from __future__ import annotations

from benches.compare.peers import packages
from benches.compare.peers.peer import Peer, Stand

REQUIREMENT = "litellm[proxy]==1.106.2"
CONFIG = """
model_list:
  - model_name: "*"
    litellm_params:
      model: "openai/*"
      api_base: "{provider}/v1"
      api_key: "sk-pretend"
litellm_settings:
  telemetry: false
  num_retries: 0
"""


class Litellm(Peer):
    """Every model name goes to the pretend provider."""

    name = "litellm"
    verbatim = False
    patience = 90.0
    rounds_at_most = 2

    def install(self) -> str:
        self.programs = packages.python(self.cache, REQUIREMENT)
        return REQUIREMENT.partition("==")[2]

    def command(self, stand: Stand) -> list[str]:
        config = stand.folder / "litellm.yaml"
        config.write_text(CONFIG.format(provider=stand.provider))
        where = ["--host", "127.0.0.1", "--port", str(stand.port), "--num_workers", "1"]
        return [str(self.programs / "litellm"), "--config", str(config), *where]

    def environment(self) -> dict[str, str]:
        # The price list comes with the package; asking the network for it delays the start.
        return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
