"""Figures, bars, sparklines and tables in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.commands import terminal_output

if TYPE_CHECKING:
    import pytest


def test_small_values_are_visible_in_bars():
    assert terminal_output.draw_bar(1, 1_000_000) == "▏"
    assert terminal_output.draw_bar(0, 1) == ""
    assert [terminal_output.format_number(value) for value in (1234, 0.5, 1.23456)] == ["1,234", "0.5", "1.2346"]


def test_costs_are_dollars():
    fields = {0: "$0.00", 12.5: "$0.1250", 250: "$2.50", 123456.7: "$1,234.57", 1e-7: "$0.000000001", -3: "-$0.0300"}
    assert {cents: terminal_output.format_cost(cents) for cents in fields} == fields
    assert terminal_output.format_cost(0.000123) == "$0.0000012"


def test_sparkline_has_the_largest_of_values_that_share_a_character():
    assert terminal_output.draw_sparkline([0, 1, 4, 8, 0]) == " ▂▅█"
    assert terminal_output.draw_sparkline([1] * 500) == "█" * terminal_output.SPARKLINE_WIDTH
    assert terminal_output.draw_sparkline([0] * 199 + [9], 10) == " " * 9 + "█"
    assert (terminal_output.draw_sparkline([]), terminal_output.draw_sparkline([0, 0])) == ("", "")


def test_tables_align_numbers_and_wide_letters(capsys: pytest.CaptureFixture[str]):
    rows = [["日本", "1"], ["abc\x1b", "1,000"]]
    terminal_output.print_table(["name", "n"], rows, total=["total", "1,001"])
    assert capsys.readouterr().out.splitlines() == [
        "name       n",
        "日本       1",
        "abc�   1,000",
        "────────────",
        "total  1,001",
    ]
