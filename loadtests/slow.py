"""`python -m loadtests.slow`: slow-connection attacks (slowhttptest) and their effect on ordinary requests.

The attackers use CPU time of the same machine. Therefore they first attack nginx while the ordinary client sends
requests to the gateway. The latency measured then is not caused by the gateway.
"""

from __future__ import annotations

import argparse
import http.client
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from benches.compare import bodies, gateway, ports, provider
from benches.compare.peers import packages
from benches.compare.peers.nginx import Nginx
from benches.compare.peers.peer import CHAT, Unavailable
from benches.compare.peers.penstock import Penstock
from loadtests.options import between

if TYPE_CHECKING:
    from collections.abc import Sequence

# Options of slowhttptest, by the name of the attack.
KINDS = {
    "slow headers": ["-H", "-i", "10"],
    "slow body": ["-B", "-i", "10", "-s", "8192"],
    "slow read": ["-X", "-w", "10", "-y", "20", "-n", "5", "-z", "32", "-k", "3"],
    "range": ["-R", "-a", "10", "-b", "3000"],
}
SHARE = 0.99
# Maximum factor by which an attack may slow down ordinary requests.
MOST = 2.0
PAUSE_SECONDS = 0.005
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if the service was unavailable or ordinary requests took too long."""
    asked = _parser().parse_args(arguments)
    try:
        attacker = packages.debian("slowhttptest", "slowhttptest")
        penstock, nginx = Penstock(), Nginx()
        penstock.install()
        nginx.install()
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    problems: list[str] = []
    with (
        provider.running(ports.free()) as address,
        gateway.running(penstock, address, core=None) as loaded,
        gateway.running(nginx, address, core=None) as other,
    ):
        for kind in asked.kinds:
            problems += _judged(loaded, other, attacker, kind, asked)
    print("\n".join(problems), file=sys.stderr)
    return int(bool(problems))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.slow", description=__doc__)
    parser.add_argument("--connections", type=between(1, 10_000), default=4000, metavar="N")
    parser.add_argument("--seconds", type=between(5, 600), default=30, metavar="S", help="per attack")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    return parser


def _judged(
    loaded: gateway.Gateway, other: gateway.Gateway, attacker: str, kind: str, asked: argparse.Namespace
) -> list[str]:
    alone = _healthy(loaded, asked.seconds / 3)
    aside, _ = _attacked(loaded, other, attacker, kind, asked)
    beside, is_available = _attacked(loaded, loaded, attacker, kind, asked)
    alone_ms, aside_ms, beside_ms = (seconds * 1000 for seconds in (alone, aside, beside))
    told = f"{alone_ms:.1f} ms alone, {aside_ms:.1f} ms while nginx is attacked, {beside_ms:.1f} ms while Penstock is attacked"
    print(f"{kind}, {asked.connections} attacking connections: p99 {told}", flush=True)
    problems: list[str] = []
    if not is_available:
        problems.append(f"{kind}: the service was not available throughout")
    if beside > MOST * max(alone, aside):
        problems.append(f"{kind}: an ordinary request took {beside / max(alone, aside):.1f} times as long")
    return problems


def _attacked(
    loaded: gateway.Gateway, victim: gateway.Gateway, attacker: str, kind: str, asked: argparse.Namespace
) -> tuple[float, bool]:
    """Returns the p99 of ordinary requests during an attack, and whether the attackers found the service available
    throughout.
    """
    path = CHAT if "-B" in KINDS[kind] else "/live"
    command = [attacker, *KINDS[kind], "-c", str(asked.connections), "-r", str(asked.connections // 4)]
    command += ["-l", str(asked.seconds), "-p", "3", "-u", f"http://{victim.host}{path}"]
    with ThreadPoolExecutor(1) as aside:
        attack = aside.submit(
            subprocess.run, command, capture_output=True, text=True, timeout=asked.seconds + 60, check=False
        )
        # Waits until all attackers are connected.
        time.sleep(5)
        took = _healthy(loaded, asked.seconds - 6)
        said = attack.result().stdout
    available = [value == "YES" for value in re.findall(r"service available:\s*(YES|NO)", COLOUR.sub("", said))]
    return took, bool(available) and all(available)


def _healthy(loaded: gateway.Gateway, seconds: float) -> float:
    """Returns the time in seconds within which 99 % of the ordinary requests finished."""
    ask = bodies.whole()
    took: list[float] = []
    caller = http.client.HTTPConnection(loaded.host, timeout=10)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.monotonic()
        caller.request("POST", CHAT, loaded.body(ask), loaded.headers())
        answer = caller.getresponse()
        answer.read()
        took.append(time.monotonic() - started if answer.status == http.HTTPStatus.OK else float("inf"))
        time.sleep(PAUSE_SECONDS)
    return sorted(took)[int(len(took) * SHARE)]


if __name__ == "__main__":
    sys.exit(main())
