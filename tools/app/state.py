"""What runs: one JSON file in the run folder, written whole or not at all, under a lock."""

import contextlib
import fcntl
import json
import os


class State:
    """services: name -> {url, log, processes: [identity, main one first], ...}"""

    def __init__(self, folder):
        self._folder = folder
        self._path = folder / "state.json"

    @contextlib.contextmanager
    def locked(self):
        """One `baton app` command at a time. The folder is private to the user."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._folder.stat().st_uid != os.getuid():
            raise OSError(f"{self._folder} belongs to somebody else")
        with open(self._folder / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError("another ./baton app command is at work") from None
            yield

    def read(self):
        try:
            return json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise OSError(f"{self._path} is broken; stop the processes by hand and remove it") from None

    def write(self, services):
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(services, indent=1))
        fresh.replace(self._path)
