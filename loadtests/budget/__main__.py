"""`python -m loadtests.budget URL…` spends a budget through running gateways from many clients at once, and reports by how
much it was exceeded. With `--litellm PYTHON`, starts Penstock with a hard and a soft budget, and LiteLLM with the
same budget. Then spends each of them with the same clients.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from benches.compare import gateway, ports, provider
from benches.compare.peers.peer import PeerUnavailable
from loadtests.budget.gateways import BudgetLitellm, BudgetPenstock
from loadtests.budget.spending import Spending, SpendingOptions
from loadtests.options import make_int_parser

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKERS = 2


class Comparison(NamedTuple):
    """What clients spent of the budget of one gateway."""

    name: str
    spending: Spending


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a budget was exceeded that must not be."""
    parsed = _build_parser().parse_args(arguments)
    options = _spending_options(parsed)
    if parsed.litellm is None:
        spending = _spend(options)
        return 1 if spending.overshoot else 0
    compared, skipped = compare(options, parsed.litellm)
    print("\n| gateway | requests | admitted | spent | exceeded by |\n|---|---|---|---|---|")
    for name, spending in compared:
        total, admitted = sum(spending.statuses.values()), spending.statuses.get(200, 0)
        print(f"| {name} | {total} | {admitted} | ${spending.dollars:.4f} | {spending.overshoot:.1%} |")
    if skipped:
        print(f"\nLiteLLM was skipped: {skipped}")
    return int(any(spending.overshoot for name, spending in compared if name.endswith("hard budget")))


def compare(options: SpendingOptions, litellm_python: str) -> tuple[list[Comparison], str]:
    """Spends the budget of each gateway. Returns what was spent, and why LiteLLM was skipped if it was."""
    compared: list[Comparison] = []
    with provider.run_provider(ports.find_free_port()) as address:
        for enforcement in ("hard", "soft"):
            penstock = BudgetPenstock(enforcement, options.budget, options.dollars_per_token, WORKERS)
            penstock.install()
            with gateway.run_gateway(penstock, address, core=None) as running:
                headers = penstock.create_budget(running)
                spending = _spend_at(running, options, headers)
            compared.append(Comparison(f"Penstock, {enforcement} budget", spending))
        litellm = BudgetLitellm(litellm_python, options.budget, options.dollars_per_token)
        try:
            version = litellm.install()
            with gateway.run_gateway(litellm, address, core=None) as running:
                spending = _spend_at(running, options, running.request_headers())
        except (PeerUnavailable, gateway.NotStarted) as reason:
            return compared, str(reason)
        compared.append(Comparison(f"LiteLLM {version}, budget of the provider", spending))
    return compared, ""


def _spend_at(running: gateway.RunningGateway, options: SpendingOptions, headers: dict[str, str]) -> Spending:
    return _spend(options._replace(urls=[f"http://{running.host}"], headers={**options.headers, **headers}))


def _spend(options: SpendingOptions) -> Spending:
    spending = Spending(options)
    began = time.monotonic()
    spending.run()
    statuses = dict(sorted(spending.statuses.items()))
    print(f"{sum(statuses.values())} requests in {time.monotonic() - began:.0f} s, by status {statuses}")
    print(f"spent ${spending.dollars:.4f} of ${options.budget:g}, exceeded by {spending.overshoot:.1%}")
    return spending


def _spending_options(parsed: argparse.Namespace) -> SpendingOptions:
    headers = {"content-type": "application/json"}
    headers |= {name.strip(): value.strip() for name, _, value in (text.partition(":") for text in parsed.header)}
    return SpendingOptions(
        parsed.urls,
        headers,
        parsed.model,
        parsed.price,
        parsed.budget,
        parsed.clients,
        parsed.max_tokens,
        parsed.seconds,
    )


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.budget", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "urls", nargs="*", default=[], metavar="URL", help="address of a gateway, such as http://127.0.0.1:8787"
    )
    where.add_argument(
        "--litellm",
        metavar="PYTHON",
        help="compare with the LiteLLM that is installed for this Python, such as .venv-litellm/bin/python",
    )
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="header of each request")
    parser.add_argument("--model", default="mock", help="model in the body (default: %(default)s)")
    parser.add_argument(
        "--price", type=float, default=0.0002, metavar="DOLLARS", help="price of a token (default: %(default)s)"
    )
    parser.add_argument("--budget", type=float, default=1.0, metavar="DOLLARS", help="default: %(default)s")
    parser.add_argument(
        "--clients", type=make_int_parser(1, 5000), default=200, help="clients at once (default: %(default)s)"
    )
    parser.add_argument("--max-tokens", type=make_int_parser(6, 100_000), default=60, help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=make_int_parser(1, 3600), default=120, help="longest time (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
