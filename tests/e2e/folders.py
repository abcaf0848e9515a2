"""Folders of tests whose processes are killed."""

import shutil
import tempfile
import time


def temporary(case, prefix):
    """The path of a new folder, removed when the test case ends."""
    folder = tempfile.mkdtemp(prefix=prefix)
    case.addCleanup(remove, folder)
    return folder


def remove(folder, seconds=10.0):
    """Removes a folder into which the last children of a killed process may still write."""
    end = time.monotonic() + seconds
    while True:
        try:
            return shutil.rmtree(folder)
        except OSError:  # a file appeared behind rmtree's back, or went
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
