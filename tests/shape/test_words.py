"""Words that have no place in the repository: one machine's paths, registries' hosts, leftovers."""

from __future__ import annotations

import json
import re

from tests.shape.repository import ROOT, files, text

# Put together here so that this file does not find itself.
MACHINE = ["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "/tmp/tar" + "get", "/tmp/bri" + "ef"]
REGISTRIES = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "registry." + "npmjs",
    "static.crates" + ".io",
    "index.crates" + ".io",
]
LEFTOVERS = ["<<<<" + "<<< ", ">>>>" + ">>> ", "XX" + "X", "FIX" + "ME", "TO" + "DO"]
PATTERN = re.compile("|".join(map(re.escape, MACHINE + REGISTRIES + LEFTOVERS)))


def test_nothing_belongs_to_one_machine_or_was_left_behind():
    found = []
    for path in files():
        try:
            lines = text(path).splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path}:{number}: {line.strip()[:120]}" for number, line in enumerate(lines, 1) if PATTERN.search(line)
        ]
    assert not found, "\n".join(found)


def test_locks_name_packages_and_hashes_and_no_place():
    for path in files():
        if path.parts[0] == "requirements":
            assert "://" not in text(path), path
            unhashed = [
                line for line in re.sub(r" \\\n +", " ", text(path)).splitlines() if "--hash=sha256:" not in line
            ]
            assert not unhashed, f"{path}: {unhashed}"


def test_the_node_lock_names_no_place():
    lock = json.loads((ROOT / "tests/e2e/node/package-lock.json").read_text())
    for name, package in lock["packages"].items():
        if name:
            assert "resolved" not in package, name
            assert package["integrity"].startswith("sha512-"), name
