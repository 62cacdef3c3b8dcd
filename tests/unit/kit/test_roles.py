"""The flags of roles say what the scopes of the roles say."""

from __future__ import annotations

from penstock.caller import SCOPES
from penstock.kit import roles


def test_there_is_a_flag_for_each_that_clients_know_and_it_says_what_the_role_may():
    flags = roles.flags()
    assert len(flags) == 35
    assert {name for name, may in flags.items() if not may} == {f"membersWrite{what}" for what in roles.WRITES}


def test_each_flag_stands_for_a_scope_that_exists():
    every = frozenset[str]().union(*SCOPES.values())
    assert {*roles.VIEWS.values(), *roles.MANAGERS_WRITES.values()} <= every
