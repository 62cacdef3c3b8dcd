"""Forbidden strings in the repository: paths of one machine, hosts of package registries, leftover markers."""

from __future__ import annotations

import json
import re

from tests.shape.repository import ROOT, read_text, repository_files

# The strings are split so that this file does not match itself.
MACHINE_PATHS = ["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "/tmp/tar" + "get", "/tmp/bri" + "ef"]
REGISTRY_HOSTS = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "registry." + "npmjs",
    "static.crates" + ".io",
    "index.crates" + ".io",
]
LEFTOVER_MARKERS = ["<<<<" + "<<< ", ">>>>" + ">>> ", "XX" + "X", "FIX" + "ME", "TO" + "DO"]
FORBIDDEN_PATTERN = re.compile("|".join(map(re.escape, MACHINE_PATHS + REGISTRY_HOSTS + LEFTOVER_MARKERS)))


def test_no_machine_paths_or_leftover_markers():
    actual = []
    for path in repository_files():
        try:
            lines = read_text(path).splitlines()
        except UnicodeDecodeError:
            continue
        actual += [
            f"{path}:{number}: {line.strip()[:120]}"
            for number, line in enumerate(lines, 1)
            if FORBIDDEN_PATTERN.search(line)
        ]
    assert not actual, "\n".join(actual)


def test_lock_files_have_hashes_and_no_urls():
    for path in repository_files():
        if path.parts[0] == "requirements":
            assert "://" not in read_text(path), path
            unhashed = [
                line for line in re.sub(r" \\\n +", " ", read_text(path)).splitlines() if "--hash=sha256:" not in line
            ]
            assert not unhashed, f"{path}: {unhashed}"


def test_node_lock_has_hashes_and_no_urls():
    lock = json.loads((ROOT / "tests/e2e/node/package-lock.json").read_text())
    for name, package in lock["packages"].items():
        if name:
            assert "resolved" not in package, name
            assert package["integrity"].startswith("sha512-"), name
