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
from benches.compare.peers.peer import CHAT_PATH, PeerUnavailable
from benches.compare.peers.penstock import Penstock
from loadtests.options import make_int_parser

if TYPE_CHECKING:
    from collections.abc import Sequence

# Options of slowhttptest, by the name of the attack.
ATTACK_OPTIONS = {
    "slow headers": ["-H", "-i", "10"],
    "slow body": ["-B", "-i", "10", "-s", "8192"],
    "slow read": ["-X", "-w", "10", "-y", "20", "-n", "5", "-z", "32", "-k", "3"],
    "range": ["-R", "-a", "10", "-b", "3000"],
}
LATENCY_QUANTILE = 0.99
# Maximum factor by which an attack may slow down ordinary requests.
MAX_SLOWDOWN = 2.0
REQUEST_PAUSE_SECONDS = 0.005
ANSI_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if the service was unavailable or ordinary requests took too long."""
    options = _build_parser().parse_args(arguments)
    try:
        attacker = packages.install_debian_program("slowhttptest", "slowhttptest")
        penstock, nginx = Penstock(), Nginx()
        penstock.install()
        nginx.install()
    except PeerUnavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    problems: list[str] = []
    with (
        provider.run_provider(ports.find_free_port()) as address,
        gateway.run_gateway(penstock, address, core=None) as loaded,
        gateway.run_gateway(nginx, address, core=None) as other,
    ):
        for kind in options.kinds:
            problems += _check_attack(loaded, other, attacker, kind, options)
    print("\n".join(problems), file=sys.stderr)
    return int(bool(problems))


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.slow", description=__doc__)
    parser.add_argument("--connections", type=make_int_parser(1, 10_000), default=4000, metavar="N")
    parser.add_argument("--seconds", type=make_int_parser(5, 600), default=30, metavar="S", help="per attack")
    parser.add_argument("--kinds", nargs="+", default=list(ATTACK_OPTIONS), choices=ATTACK_OPTIONS)
    return parser


def _check_attack(
    loaded: gateway.RunningGateway, other: gateway.RunningGateway, attacker: str, kind: str, options: argparse.Namespace
) -> list[str]:
    alone = _measure_p99_seconds(loaded, options.seconds / 3)
    nginx_attacked, _ = _measure_attack(loaded, other, attacker, kind, options)
    penstock_attacked, is_available = _measure_attack(loaded, loaded, attacker, kind, options)
    alone_ms, aside_ms, beside_ms = (seconds * 1000 for seconds in (alone, nginx_attacked, penstock_attacked))
    summary = f"{alone_ms:.1f} ms alone, {aside_ms:.1f} ms while nginx is attacked, {beside_ms:.1f} ms while Penstock is attacked"
    print(f"{kind}, {options.connections} attacking connections: p99 {summary}", flush=True)
    problems: list[str] = []
    if not is_available:
        problems.append(f"{kind}: the service was not available throughout")
    if penstock_attacked > MAX_SLOWDOWN * max(alone, nginx_attacked):
        problems.append(
            f"{kind}: an ordinary request took {penstock_attacked / max(alone, nginx_attacked):.1f} times as long"
        )
    return problems


def _measure_attack(
    loaded: gateway.RunningGateway,
    victim: gateway.RunningGateway,
    attacker: str,
    kind: str,
    options: argparse.Namespace,
) -> tuple[float, bool]:
    """Returns the p99 of ordinary requests during an attack, and whether the attackers found the service available
    throughout.
    """
    path = CHAT_PATH if "-B" in ATTACK_OPTIONS[kind] else "/live"
    command = [attacker, *ATTACK_OPTIONS[kind], "-c", str(options.connections), "-r", str(options.connections // 4)]
    command += ["-l", str(options.seconds), "-p", "3", "-u", f"http://{victim.host}{path}"]
    with ThreadPoolExecutor(1) as executor:
        attack = executor.submit(
            subprocess.run, command, capture_output=True, text=True, timeout=options.seconds + 60, check=False
        )
        # Waits until all attackers are connected.
        time.sleep(5)
        p99_seconds = _measure_p99_seconds(loaded, options.seconds - 6)
        output = attack.result().stdout
    available = [value == "YES" for value in re.findall(r"service available:\s*(YES|NO)", ANSI_ESCAPE.sub("", output))]
    return p99_seconds, bool(available) and all(available)


def _measure_p99_seconds(loaded: gateway.RunningGateway, seconds: float) -> float:
    """Returns the time in seconds within which 99 % of the ordinary requests finished."""
    request = bodies.non_streaming_request()
    durations: list[float] = []
    caller = http.client.HTTPConnection(loaded.host, timeout=10)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.monotonic()
        caller.request("POST", CHAT_PATH, loaded.request_body(request), loaded.request_headers())
        response = caller.getresponse()
        response.read()
        durations.append(time.monotonic() - started if response.status == http.HTTPStatus.OK else float("inf"))
        time.sleep(REQUEST_PAUSE_SECONDS)
    return sorted(durations)[int(len(durations) * LATENCY_QUANTILE)]


if __name__ == "__main__":
    sys.exit(main())
