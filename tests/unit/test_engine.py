"""The schema of configs that editors are given says the same as the engine's parser."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec

from penstock import engine

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = (100, 1000, 50)
# Whatever a hand may write in the place of something else.
ODD: list[Any] = [None, True, False, -1, 0, 0.5, 1, 5.0, 60, 200, 700, 30_000, 1e9, "", "x", "a\nb", "metadata.a"]
ODD += [[], [1], ["x"], [{}], {}, {"a": 1}, {"mode": "simple"}, {"attempts": 1}, {"query": {}, "then": "t0"}]


class Writer:
    """Writes configs as people do: mostly right, now and then with something that is not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - the same configs each time, and nobody's secret

    def either(self, *values: object) -> object:
        return self.random.choice(values)

    def object(self, **keys: Callable[[], Any]) -> dict[str, Any]:
        written = {key: write() for key, write in keys.items() if self.random.random() < 0.6}
        if written and self.random.random() < 0.01:
            written[self.random.choice([*written, "odd", "mode"])] = self.random.choice(ODD)
        return written

    def config(self, depth: int) -> dict[str, Any]:
        count = self.random.randrange(4) if depth else 0
        targets = [{"name": f"t{at}", **self.config(depth - 1)} for at in range(count)]
        config = self.features()
        if targets or self.random.random() < 0.05:
            config["targets"] = targets
        if targets or self.random.random() < 0.1:
            config["strategy"] = self.strategy(max(count, 1))
        if self.random.random() < 0.03:
            del config[self.random.choice([*config])]
        return config

    def strategy(self, count: int) -> dict[str, Any]:
        def named() -> str:
            return f"t{self.random.randrange(count)}"

        strategy = self.object(on_status_codes=self.statuses, cb_config=self.breaker)
        strategy["mode"] = mode = self.either("single", "fallback", "loadbalance", "conditional")
        if (mode == "conditional") == (self.random.random() < 0.95):
            strategy |= self.object(conditions=lambda: [{"query": self.query(2), "then": named()}])
            strategy["default"] = named()
        if (mode == "loadbalance") == (self.random.random() < 0.95):
            strategy |= self.object(**{str(self.either("sticky", "sticky_session")): self.sticky})
        if self.random.random() < 0.2:
            strategy["hedge"] = self.object(after_ms=lambda: 20, percentile=lambda: 95, max_ratio=lambda: 0.1)
        return strategy

    def sticky(self) -> dict[str, Any]:
        return self.object(
            enabled=lambda: self.random.random() < 0.3, hash_fields=lambda: ["metadata.user"], ttl=lambda: 5
        )

    def query(self, depth: int) -> dict[str, Any]:
        def bound() -> object:
            return self.either(*[5, "5", "-.5", 0.5] * 20, "five", True)

        tests = self.object(
            **{"$eq": lambda: 1, "$ne": lambda: None, "$in": lambda: ["a"], "$nin": list, "$regex": lambda: "^a"},
            **dict.fromkeys(("$gt", "$gte", "$lt", "$lte"), bound),
        )
        keys: dict[str, Callable[[], Any]] = {
            "metadata.plan": lambda: self.either("paid", tests),
            "params.temperature": lambda: self.either(1, None, tests),
            "url.pathname": lambda: self.either("/v1", tests),
        }
        if depth:
            keys |= {key: lambda: [self.query(depth - 1)] for key in ("$and", "$or")}
        return self.object(**keys)

    def breaker(self) -> dict[str, Any]:
        return {"failure_threshold": 1, "cooldown_interval": 30_000} | self.object(
            failure_threshold_percentage=lambda: self.either(*[0.5, 99.5, 100] * 4, 0, 101),
            minimum_requests=lambda: 3,
            failure_status_codes=self.statuses,
        )

    def deployments(self) -> list[dict[str, Any]]:
        chosen = {"is_default": lambda: self.random.random() < 0.1}
        needed = {"deployment_id": "d", "alias": "a", "api_version": "2024-10-21"}
        written = [needed | self.object(**chosen) for _ in range(self.random.randrange(3))]
        if written and self.random.random() < 0.05:
            del written[0][self.random.choice([*needed])]
        return written

    def statuses(self) -> list[int]:
        return [self.random.randrange(95, 605) if self.random.random() < 0.01 else 503 for _ in range(3)]

    def features(self) -> dict[str, Any]:
        return self.object(
            provider=lambda: self.either(*["openai", "@mine"] * 10, "opnai", "@"),
            api_key=lambda: "k",
            virtual_key=lambda: "mine",
            passthrough=lambda: self.random.random() < 0.05,
            weight=lambda: self.either(0.5, 0.5, 1, 0),
            retry=lambda: {"attempts": 2} | self.object(on_status_codes=self.statuses, use_retry_after_headers=bool),
            cache=lambda: self.either(
                "simple", {"mode": "simple"} | self.object(max_age=lambda: self.either(*[60] * 9, 59))
            ),
            cb_config=self.breaker,
            recovery=lambda: self.either("off", "hold", {"mode": "continue"} | self.object(prefill=bool)),
            request_timeout=lambda: self.either(1, 500, 2.0),
            custom_host=lambda: "https://host.example/v1",
            forward_headers=lambda: ["x-team"],
            default_params=lambda: {"a": 1},
            override_params=lambda: {"a": 1},
            drop_params=lambda: ["tools[0].a"],
            strict_open_ai_compliance=bool,
            vertex_region=lambda: self.either(*["eu"] * 20, ""),
            vertex_service_account_json=lambda: self.either(*[{"type": "service_account"}, '{\n"a": 1}\n'] * 20, "", 1),
            oracle_private_key=lambda: self.either(*["-----BEGIN PRIVATE KEY-----\nabc\n"] * 40, "a\0", {}),
            deployments=self.deployments,
        )


def refusals(config: dict[str, Any]) -> list[str]:
    try:
        engine.check("config", msgspec.json.encode(config), LIMITS)
    except engine.EngineError as error:
        return [f"{problem['path']} {problem['message']}" for problem in error.problems]
    return []


def test_the_schema_takes_and_refuses_what_the_parser_does():
    schema = jsonschema_rs.validator_for(engine.config_schema())
    seen = {True: 0, False: 0}
    for seed in range(5_000):
        config = Writer(seed).config(seed % 4)
        found, problems = [str(error) for error in schema.iter_errors(config)], refusals(config)
        # Whether a name is that of a target no schema can say.
        told = [problem for problem in problems if "no target is named" not in problem]
        assert bool(found) == bool(told), (config, found, problems)
        seen[not told] += 1
    assert min(seen.values()) > 1_000, seen
