"""Node store. Values that workers share on one node, within a memory limit."""

from __future__ import annotations

from penstock.node_store import NodeStore


def test_stores_the_last_value_and_evicts_the_oldest():
    notes = NodeStore(most=1000)
    assert notes.put("a", "said") is None
    assert (notes.get("a"), notes.get("b")) == ("said", None)
    assert notes.put("a", "") == "said"
    assert notes.get("a") == ""
    for name in "bcd":
        notes.put(name, "x")
    assert [notes.get(name) for name in "abcd"] == [None, "x", "x", "x"]
    notes.put("b", "y")
    notes.put("e", "z" * 200)
    assert [notes.get(name) for name in "bcde"] == ["y", None, "x", "z" * 200]
    # A value larger than the whole store is not stored.
    notes.put("f", "z" * 2000)
    assert notes.get("f") is None
