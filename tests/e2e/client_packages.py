"""Packages of clients that others wrote, pinned by version and sha256, in the build folder.

A test calls install(). As a program it installs those of the clients named, for tests that come later.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from cluster import BUILD

SKIPPED = 77


def install(client):
    """Makes what requirements-CLIENT.txt names importable. Where it cannot be installed (no package
    index, no pip), says so and ends the test as skipped: exit code 77."""
    requirements = pathlib.Path(__file__).parent / f"requirements-{client}.txt"
    environment = BUILD / f"{client}-client"
    stamp = environment / f"requirements-{sys.implementation.cache_tag}.txt"
    if not (stamp.exists() and stamp.read_text() == requirements.read_text()):
        fetch(requirements, environment)
        stamp.write_text(requirements.read_text())
    sys.path.insert(0, str(environment))


def fetch(requirements, environment):
    shutil.rmtree(environment, ignore_errors=True)
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--no-compile", "--only-binary", ":all:", "--require-hashes", "-r", requirements,
         "--target", environment], check=False, capture_output=True, text=True,
        env={**os.environ, "PIP_USER": "0", "PIP_RETRIES": "1"})
    if pip.returncode != 0:
        print(pip.stderr)
        if "DO NOT MATCH THE HASHES" in pip.stderr:
            sys.exit(1)
        print(f"SKIPPED: the packages of {requirements.name} cannot be installed here")
        sys.exit(SKIPPED)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        install(name)
