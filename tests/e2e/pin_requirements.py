"""Pins the wheels of a client for client_packages.py: versions and sha256, of CPython 3.11, 3.12 and 3.13 on this kind of host.

    python3.11 tests/e2e/pin_requirements.py smolagents 'smolagents[openai]' > tests/e2e/requirements-smolagents.txt

The first Python resolves the versions; the others add the hashes of wheels with machine code. It needs pip and a package index.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

OTHERS = ("3.12", "3.13")


def report(*arguments):
    """What pip would install, or None."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "report.json"
        pip = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--quiet",
             "--disable-pip-version-check", "--target", folder, "--report", file, *arguments],
            check=False, capture_output=True, text=True)
        if pip.returncode != 0:
            print(pip.stderr, file=sys.stderr)
            return None
        return json.loads(file.read_text())["install"]


def pins(requirements):
    """Name and version -> sha256 of its wheels; which other Pythons lack one."""
    resolved = report(*requirements)
    if resolved is None:
        sys.exit(1)
    hashes, lacking = {}, {}

    def add(wheels):
        for wheel in wheels:
            name = re.sub(r"[-_.]+", "-", wheel["metadata"]["name"]).lower()
            known = hashes.setdefault((name, wheel["metadata"]["version"]), set())
            known.add(wheel["download_info"]["archive_info"]["hashes"]["sha256"])
    add(resolved)
    native = [f"{wheel['metadata']['name']}=={wheel['metadata']['version']}" for wheel in resolved
              if not wheel["download_info"]["url"].endswith("-none-any.whl")]
    for version in OTHERS if native else ():
        options = ("--no-deps", "--python-version", version)
        wheels = report(*options, *native)
        for pin in native if wheels is None else ():
            found = report(*options, pin)
            add(found or [])
            if found is None:
                lacking.setdefault(version, []).append(pin)
        add(wheels or [])
    return hashes, lacking


def main(client, *requirements):
    hashes, lacking = pins(requirements)
    pythons = [f"{sys.version_info.major}.{sys.version_info.minor}", *(version for version in OTHERS if version not in lacking)]
    print(f"# {', '.join(requirements)}, for tests/e2e/agents/test_{client}.py: by version and sha256.\n"
          f"# Wheels with machine code: of CPython {', '.join(pythons)} on x86-64 Linux.")
    for (name, version), known in sorted(hashes.items()):
        print(f"{name}=={version} \\\n" + " \\\n".join(f"    --hash=sha256:{sha256}" for sha256 in sorted(known)))


if __name__ == "__main__":
    main(*sys.argv[1:])
