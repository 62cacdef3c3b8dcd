"""Texts of the web console: they cover the values of the API that the documentation lists."""

from __future__ import annotations

import re

from tests.shape.repository import ROOT, read_text


def test_each_state_of_bodies_has_a_text():
    (sentence,) = re.findall(r"`details\.body` is (.*?)\.\s", read_text("docs/logs.md"), re.DOTALL)
    states = set(re.findall(r"`(\w+)`", sentence))
    assert {"complete", "damaged", "unavailable"} <= states
    sheet = read_text(ROOT / "console/src/ui/LogSheet.svelte")
    (texts,) = re.findall(r"const BODY_STATES: .*?\{\n(.*?)\};", sheet, re.DOTALL)
    assert set(re.findall(r"^\s*(\w+):", texts, re.MULTILINE)) == states - {"complete"}
