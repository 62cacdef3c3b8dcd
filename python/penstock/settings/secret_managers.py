"""Settings of external secret managers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """External secret managers: AWS Secrets Manager, Azure Key Vault, HashiCorp Vault."""

    refresh_seconds: Annotated[int, Meta(ge=1, description="time after which a value is fetched again")] = 300
    fetch_ms: Annotated[int, Meta(ge=100, description="time limit for fetching one value")] = 10_000
    aws_endpoint_url: Annotated[str, Meta(description="endpoint URL of AWS; default: that of the region")] = ""
    azure_authority: Annotated[str, Meta(description="URL of Microsoft Entra; default: that of the public cloud")] = ""
