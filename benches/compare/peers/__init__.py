"""The compared gateways, in the order in which every round measures them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benches.compare.peers.bifrost import Bifrost
from benches.compare.peers.direct import Direct
from benches.compare.peers.envoy import Envoy
from benches.compare.peers.haproxy import Haproxy
from benches.compare.peers.litellm import Litellm
from benches.compare.peers.nginx import Nginx
from benches.compare.peers.penstock import Penstock
from benches.compare.peers.portkey import Portkey

if TYPE_CHECKING:
    from benches.compare.peers.peer import Peer

ALL_PEERS: tuple[type[Peer], ...] = (
    Direct,
    Nginx,
    Penstock,
    Haproxy,
    Envoy,
    Portkey,
    Litellm,
    Bifrost,
)
