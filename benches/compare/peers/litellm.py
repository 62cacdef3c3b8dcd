"""LiteLLM's proxy from PyPI, with one worker."""

from __future__ import annotations

import secrets

from benches.compare.peers import packages
from benches.compare.peers.peer import LaunchContext, Peer

REQUIREMENT = "litellm[proxy]==1.106.2"
# LiteLLM does not start without a master key.
MASTER_KEY = "sk-" + secrets.token_hex(24)
CONFIG_TEMPLATE = """
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
    is_verbatim = False
    timeout_seconds = 90.0
    max_rounds = 2

    def install(self) -> str:
        self.programs = packages.install_python_package(self.cache_dir, REQUIREMENT)
        return REQUIREMENT.partition("==")[2]

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        config = launch.folder / "litellm.yaml"
        config.write_text(CONFIG_TEMPLATE.format(provider=launch.provider_url, key=MASTER_KEY))
        listen_flags = ["--host", "127.0.0.1", "--port", str(launch.port), "--num_workers", "1"]
        return [str(self.programs / "litellm"), "--config", str(config), *listen_flags]

    def environment(self) -> dict[str, str]:
        # Uses the price list of the package. Downloading it would delay the start.
        return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}

    def request_headers(self, launch: LaunchContext) -> dict[str, str]:  # noqa: ARG002 - other peers use it
        return {"authorization": f"Bearer {MASTER_KEY}"}
