"""Threads that send one request each."""

import threading
import time

_STACK_BYTES = 512 * 1024  # a burst has thousands of threads


class Fleet:
    """Runs `job(i)` in a thread of its own at `start + due[i]` seconds (open loop: nobody waits for
    anybody), or with at most `at_once` of them at a time (closed loop)."""

    def __init__(self, job):
        self._job = job
        self._threads = []

    def _start(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _join(self):
        for thread in self._threads:
            thread.join()

    def open_loop(self, due):
        previous = threading.stack_size(_STACK_BYTES)
        try:
            start = time.monotonic()
            for i, at in enumerate(due):
                time.sleep(max(0.0, start + at - time.monotonic()))
                self._start(self._job, i)
        finally:
            threading.stack_size(previous)
        self._join()

    def closed_loop(self, count, at_once):
        numbers = iter(range(count))
        lock = threading.Lock()

        def work():
            while True:
                with lock:
                    i = next(numbers, None)
                if i is None:
                    return
                self._job(i)

        for _ in range(min(at_once, count)):
            self._start(work)
        self._join()
