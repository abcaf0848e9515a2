"""baton-supervisor with small real processes: restarts, freezes, logs, stops, orphans, successors."""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

import folders

BUILD = pathlib.Path(os.environ.get("BATON_BUILD_DIR", "build/cpu"))
SUPERVISOR = BUILD / "bin" / "baton-supervisor"


def wait_until(condition, seconds=10.0, what="condition"):
    """Polls until the condition gives something true, and returns that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def stop_at_fork(pid):
    """Waits for the process's next fork and stops it there, until it is killed; the child runs. Returns the child."""
    seize, options, message, detach, event_fork = 0x4206, 2, 0x4201, 17, 1
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if trace(seize, pid, None, options) != 0:
        raise unittest.SkipTest(f"ptrace: {os.strerror(ctypes.get_errno())}")
    _, status = os.waitpid(pid, 0)
    assert status >> 8 == signal.SIGTRAP | event_fork << 8, status
    child = ctypes.c_ulong()
    trace(message, pid, None, ctypes.addressof(child))
    os.waitpid(child.value, 0x40000000)  # __WALL: its own first stop
    trace(detach, child.value, None, None)
    return child.value


class Supervised:
    """A running supervisor and its folder."""

    def __init__(self, folder, *args, binary=SUPERVISOR):
        self.run_dir = pathlib.Path(folder)
        self.output = open(self.run_dir / "output", "wb")  # of this supervisor, not of one before it
        self.process = subprocess.Popen(
            [binary, "--run-dir", folder, *args], stdout=self.output, stderr=self.output)

    def pid(self, name, other_than=None):
        def read():
            with contextlib.suppress(FileNotFoundError, ValueError):
                pid = int((self.run_dir / f"{name}.pid").read_text())
                return pid if pid != other_than and alive(pid) else None
            return None
        return wait_until(read, what=f"{name} runs")

    def text(self):
        return (self.run_dir / "output").read_text()

    def wait_text(self, text, seconds=10.0):
        wait_until(lambda: text in self.text(), seconds, f"'{text}' in: {self.text()}")

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        return self.process.wait(20)

    def kill(self):
        """The supervisor alone: its processes go on."""
        self.process.kill()
        self.process.wait()

    def end(self):
        self.kill()
        for file in self.run_dir.glob("*.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.killpg(int(file.read_text()), signal.SIGKILL)
        self.output.close()


class SupervisorTest(unittest.TestCase):
    def setUp(self):
        self.folder = folders.temporary(self, "baton-supervisor-")

    def start(self, *args, **options):
        started = Supervised(self.folder, *args, **options)
        self.addCleanup(started.end)
        return started

    def test_a_killed_process_comes_back_and_the_other_stays(self):
        s = self.start("--process", "a=sleep 1000", "--process", "b=sleep 1000")
        a, b = s.pid("a"), s.pid("b")
        for _ in range(3):
            os.kill(a, signal.SIGKILL)
            a = s.pid("a", other_than=a)
        self.assertEqual(b, s.pid("b"))
        self.assertIn("was killed by signal 9", s.text())
        self.assertEqual(0, s.stop())
        self.assertFalse(alive(a) or alive(b))

    def test_pauses_between_restarts_double(self):
        s = self.start("--process", "a=false")
        s.wait_text("starts again in 0.8 s")
        for pause in ("0.1", "0.2", "0.4", "0.8"):
            line = rf"ended with status 1 after [\d.]+ s; it starts again in {re.escape(pause)} s"
            self.assertEqual(1, len(re.findall(line, s.text())), s.text())

    def test_a_stopped_process_is_killed_and_a_short_stop_is_not(self):
        s = self.start("--frozen-after", "1.5", "--process", "a=sleep 1000")
        a = s.pid("a")
        os.kill(a, signal.SIGSTOP)
        time.sleep(0.7)
        os.kill(a, signal.SIGCONT)
        time.sleep(1.5)
        self.assertTrue(alive(a), s.text())
        os.kill(a, signal.SIGSTOP)
        s.pid("a", other_than=a)
        self.assertIn("a is frozen (stopped by a signal for 1.5 s): killing it", s.text())

    def test_a_silent_heartbeat_is_killed_and_none_at_all_is_not(self):
        beat = f"touch {self.folder}/beats.alive; sleep 1000"
        s = self.start("--frozen-after", "1", "--process", f"beats=sh -c '{beat}'",
                       "--process", "mute=sleep 1000")
        beats, mute = s.pid("beats"), s.pid("mute")
        s.pid("beats", other_than=beats)
        self.assertIn("beats is frozen (no heartbeat for 1 s)", s.text())
        self.assertEqual(mute, s.pid("mute"))

    def test_a_steady_heartbeat_lives(self):
        beat = f"while :; do touch {self.folder}/a.alive; sleep 0.2; done"
        s = self.start("--frozen-after", "1", "--process", f"a=sh -c '{beat}'")
        a = s.pid("a")
        time.sleep(2.5)
        self.assertEqual(a, s.pid("a"), s.text())

    def test_output_has_names_and_is_kept_in_files(self):
        s = self.start("--process",
                       "talker=sh -c 'echo out; echo err >&2; printf unfinished; sleep 1000'")
        s.wait_text("talker | err")
        self.assertRegex(s.text(), r"baton +\| \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} info baton started talker, pid")
        self.assertIn("talker | out\n", s.text())
        s.stop()
        log = (s.run_dir / "logs" / "talker.log").read_text()
        self.assertEqual(["out", "err", "unfinished"], log.split("\n")[:3])

    def test_the_stop_goes_stage_by_stage(self):
        order = self.folder + "/order"

        def slow(name):
            # It takes a while to end, so that a stage that began too early would be seen.
            return (f"{name}=sh -c 'trap \"sleep 0.3; echo {name} >> {order}; exit 0\" TERM; "
                    "while :; do sleep 0.05; done'")
        s = self.start("--front-end", slow("front"), "--last", slow("scheduler"), "--process",
                       slow("worker"))
        for name in ("front", "worker", "scheduler"):
            s.pid(name)
        time.sleep(0.3)
        self.assertEqual(0, s.stop())
        self.assertEqual("front\nworker\nscheduler\n", pathlib.Path(order).read_text())

    def test_a_process_that_ignores_the_stop_is_killed_within_the_bound(self):
        s = self.start("--drain-bound", "0.5", "--stop-bound", "1", "--process",
                       "deaf=sh -c 'trap \"\" TERM; while :; do sleep 0.1; done'")
        deaf = s.pid("deaf")
        time.sleep(0.3)
        began = time.monotonic()
        self.assertEqual(1, s.stop(signal.SIGINT))
        self.assertLess(time.monotonic() - began, 5)
        self.assertFalse(alive(deaf))
        self.assertIn("deaf did not end in time", s.text())

    def test_a_second_signal_kills_at_once(self):
        s = self.start("--stop-bound", "60", "--process",
                       "deaf=sh -c 'trap \"\" TERM; while :; do sleep 0.1; done'")
        s.pid("deaf")
        time.sleep(0.3)
        s.process.send_signal(signal.SIGTERM)
        s.wait_text("stopping")
        self.assertEqual(1, s.stop())

    def test_what_a_killed_supervisor_leaves_is_adopted(self):
        processes = ("--process", "a=sleep 1000", "--front-end", "b=sleep 1000")
        first = self.start(*processes)
        a, b = first.pid("a"), first.pid("b")
        first.kill()
        time.sleep(0.3)
        self.assertTrue(alive(a) and alive(b))
        (first.run_dir / "a.pid").unlink()  # killed between the record and this file
        second = self.start(*processes)
        second.wait_text(f"adopted a, pid {a}")
        second.wait_text(f"adopted b, pid {b}")
        self.assertEqual(a, second.pid("a"))
        os.kill(a, signal.SIGKILL)  # not its child: it hears of the end all the same
        again = second.pid("a", other_than=a)
        second.wait_text(f"a (pid {a}) ended, its status is unknown")
        self.assertEqual(b, second.pid("b"))
        self.assertEqual(0, second.stop(signal.SIGINT))
        self.assertFalse(alive(again) or alive(b))
        self.assertEqual([], list(second.run_dir.glob("*.process")))
        self.assertNotIn("started b", second.text())

    def test_nothing_runs_that_its_supervisor_has_not_written_down(self):
        folder = pathlib.Path(self.folder)
        ran, script = folder / "ran", folder / "script"
        script.write_text(f"echo $$ >>{ran}\nexit 1\n")
        first = self.start("--process", f"a=/bin/sh {script}")
        first.wait_text("starts again in 0.8 s")
        before = ran.read_text()
        child = stop_at_fork(first.process.pid)
        time.sleep(0.3)
        self.assertTrue(alive(child))
        first.kill()
        wait_until(lambda: not alive(child), what="it ends with the supervisor, the only one who knows it")
        self.assertEqual(ran.read_text(), before)
        second = self.start("--process", f"a=/bin/sh {script}")
        wait_until(lambda: ran.read_text() != before, what="it runs for the next one")
        second.stop()

    def test_what_died_without_a_supervisor_is_started(self):
        first = self.start("--process", "a=sleep 1000")
        a = first.pid("a")
        first.kill()
        os.kill(a, signal.SIGKILL)
        wait_until(lambda: not alive(a), what="a is gone")
        second = self.start("--process", "a=sleep 1000")
        second.wait_text("started a")
        self.assertNotIn("adopted", second.text())
        self.assertEqual(0, second.stop())

    def test_another_command_replaces_what_was_left(self):
        first = self.start("--process", "a=sleep 1000", "--process", "b=sleep 1000")
        a, b = first.pid("a"), first.pid("b")
        first.kill()
        second = self.start("--process", "a=sleep 2000", "--process", "b=sleep 1000")
        second.wait_text(f"adopted a, pid {a}, which another command started: it is replaced")
        second.pid("a", other_than=a)
        wait_until(lambda: not alive(a), what="the old one ends")
        self.assertEqual(b, second.pid("b"))
        self.assertEqual(0, second.stop())

    def test_one_that_ignores_its_replacement_is_killed(self):
        deaf = "a=sh -c 'trap \"\" TERM; while :; do sleep 0.1; done'"
        first = self.start("--process", deaf)
        a = first.pid("a")
        time.sleep(0.3)
        first.kill()
        second = self.start("--stop-bound", "1", "--process", "a=sleep 1000")
        second.pid("a", other_than=a)
        self.assertIn("a did not end in time: killing it", second.text())
        self.assertFalse(alive(a))
        self.assertEqual(0, second.stop())

    def test_what_nobody_asks_for_any_more_is_ended(self):
        first = self.start("--process", "a=sleep 1000", "--process", "b=sleep 1000")
        a, b = first.pid("a"), first.pid("b")
        first.kill()
        second = self.start("--process", "a=sleep 1000")
        second.wait_text(f"adopted b, pid {b}, which is not asked for any more: it is ended")
        wait_until(lambda: not alive(b), what="b ends")
        second.wait_text("b (pid")
        self.assertEqual(a, second.pid("a"))
        self.assertFalse((second.run_dir / "b.process").exists())
        self.assertEqual(0, second.stop())

    def test_what_another_dead_supervisor_left_is_left_alone(self):
        first = self.start("--process", "a=sleep 1000")
        other = self.start("--process", "b=sleep 1000")
        a, b = first.pid("a"), other.pid("b")
        first.kill()
        other.kill()
        second = self.start("--process", "a=sleep 1000")
        second.wait_text(f"b, pid {b}, runs without a supervisor")
        self.assertEqual((a, b), (second.pid("a"), second.pid("b")))
        self.assertEqual(0, second.stop())
        self.assertTrue(alive(b))

    def test_writing_without_a_supervisor_neither_kills_nor_blocks(self):
        # 1 MiB is more than any FIFO holds.
        talker = ("a=sh -c 'while [ ! -e go ]; do sleep 0.05; done; i=0; "
                  "while [ $i -lt 1024 ]; do head -c 1024 /dev/zero | tr \"\\0\" x; echo; i=$((i+1)); done; "
                  "touch written; sleep 1; echo later; sleep 1000'").replace(" go ", f" {self.folder}/go ")
        talker = talker.replace("touch written", f"touch {self.folder}/written")
        first = self.start("--process", talker)
        a = first.pid("a")
        first.kill()
        pathlib.Path(self.folder, "go").touch()
        wait_until(lambda: pathlib.Path(self.folder, "written").exists(), 30, "all is written")
        second = self.start("--process", talker)
        second.wait_text("a     | later")
        self.assertEqual(a, second.pid("a"))
        self.assertEqual(0, second.stop())

    def test_it_becomes_the_binary_on_disk(self):
        s = self.start("--process", "a=sleep 1000")
        a = s.pid("a")
        for _ in range(2):
            said = s.text().count("adopted a")
            s.process.send_signal(signal.SIGUSR2)
            wait_until(lambda: s.text().count("adopted a") == said + 1, what="adopted again")
        self.assertIsNone(s.process.poll())
        os.kill(a, signal.SIGKILL)  # still its child
        again = s.pid("a", other_than=a)
        self.assertIn(f"a (pid {a}) was killed by signal 9", s.text())
        self.assertEqual(0, s.stop())
        self.assertFalse(alive(again))

    def test_a_binary_that_cannot_run_does_not_take_over(self):
        binary = pathlib.Path(self.folder, "supervisor")
        shutil.copy(SUPERVISOR, binary)
        s = self.start("--process", "a=sleep 1000", binary=binary)
        a = s.pid("a")
        broken = pathlib.Path(self.folder, "broken")
        broken.write_text("#!/bin/sh\nexit 3\n")
        broken.chmod(0o755)
        broken.rename(binary)
        s.process.send_signal(signal.SIGUSR2)
        s.wait_text("does not run with these options: going on as before")
        self.assertEqual(a, s.pid("a"))
        self.assertEqual(0, s.stop())
        self.assertFalse(alive(a))

    def test_orphans_are_reaped(self):
        orphan = f"(sleep 0.2 & echo $! > {self.folder}/orphan) ; exec sleep 1000"
        s = self.start("--process", f"a=sh -c '{orphan}'")
        pid = int(wait_until(lambda: (s.run_dir / "orphan").exists()
                             and (s.run_dir / "orphan").read_text(), what="orphan"))
        wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), what="the orphan is reaped")

    def test_a_lock_that_comes_free_is_waited_for(self):
        # A child that its dead supervisor had forked and that has not come to its exec has it still.
        with open(pathlib.Path(self.folder, "a.supervised"), "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            s = self.start("--process", "a=sleep 1000")
            time.sleep(0.3)
            self.assertIsNone(s.process.poll())
        a = s.pid("a")
        self.assertEqual(0, s.stop())
        self.assertFalse(alive(a))

    def test_a_second_supervisor_of_the_same_name_is_refused(self):
        first = self.start("--process", "a=sleep 1000")
        first.pid("a")
        second = subprocess.run(
            [SUPERVISOR, "--run-dir", self.folder, "--process", "a=sleep 1000"],
            capture_output=True, text=True, timeout=20)
        self.assertEqual(2, second.returncode)
        self.assertIn("held by another supervisor", second.stderr)

    def test_a_command_that_does_not_exist_says_so(self):
        s = self.start("--process", "a=/nonexistent/program")
        s.wait_text("/nonexistent/program")
        s.wait_text("ended with status 127")

    def test_nobody_reading_its_output_does_not_freeze_it(self):
        chatter = "sh -c 'while :; do echo 0123456789012345678901234567890123456789; done'"
        s = subprocess.Popen([SUPERVISOR, "--run-dir", self.folder, "--process",
                              f"chatter={chatter}", "--process", "a=sleep 1000"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(s.stdout.close)
        self.addCleanup(s.wait)
        self.addCleanup(s.kill)
        log = pathlib.Path(self.folder) / "logs" / "chatter.log"
        wait_until(lambda: log.exists() and log.stat().st_size > 1 << 20, what="1 MiB of log")
        s.send_signal(signal.SIGTERM)
        self.assertEqual(0, s.wait(20))

    def test_usage_errors_end_with_a_message(self):
        for args, words in (([], "no process named"),
                            (["--process", "a"], "not NAME=COMMAND"),
                            (["--process", "../a=true"], "may not hold")):
            done = subprocess.run([SUPERVISOR, "--run-dir", self.folder, *args],
                                  capture_output=True, text=True, timeout=20)
            self.assertEqual(2, done.returncode)
            self.assertIn(words, done.stderr)


class RunDirectoryTest(unittest.TestCase):
    """What another user may have put into a run directory changes nothing outside of it."""

    def setUp(self):
        self.folder = pathlib.Path(folders.temporary(self, "baton-supervisor-"))
        self.run_dir = self.folder / "run"
        self.run_dir.mkdir(mode=0o777)
        self.victim = self.folder / "victim"
        self.victim.write_text("precious")

    def start(self):
        (self.run_dir / "output").touch()
        started = Supervised(self.run_dir, "--process", "a=sleep 1000")
        self.addCleanup(started.end)
        return started

    def refused(self, run_dir, words):
        done = subprocess.run([SUPERVISOR, "--run-dir", run_dir, "--process", "a=sleep 1000"],
                              capture_output=True, text=True, timeout=20)
        self.assertEqual(2, done.returncode, done.stdout + done.stderr)
        self.assertIn(words, done.stderr)

    def sleeper(self):
        process = subprocess.Popen(["sleep", "1000"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def forge_record(self, pid):
        """A record in which a live process is both "a" and its supervisor."""
        start = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        life = f"{pid} {start} {time.time():.3f} 0"
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        record = self.run_dir / "a.process"
        record.write_text(f"name a\nkind process\nprocess {life}\nsupervisor {life}\nboot {boot}\n"
                          "tells_up 0\ncommand 1\nend\n")
        return record

    def test_a_link_in_place_of_the_directory_is_refused(self):
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        link = self.folder / "link"
        link.symlink_to(elsewhere)
        self.refused(link, "run_dir: ")
        self.assertEqual([], list(elsewhere.iterdir()))

    def test_a_link_in_place_of_the_logs_is_refused(self):
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        (self.run_dir / "logs").symlink_to(elsewhere)
        self.refused(self.run_dir, f"run_dir: {self.run_dir}/logs is not a directory")
        self.assertEqual([], list(elsewhere.iterdir()))

    def test_a_link_in_place_of_a_pid_file_is_replaced(self):
        (self.run_dir / "a.pid").symlink_to(self.victim)
        s = self.start()
        wait_until(lambda: not (self.run_dir / "a.pid").is_symlink(), what="a pid file")
        s.pid("a")
        self.assertEqual("precious", self.victim.read_text())

    def test_a_link_in_place_of_a_lock_is_refused(self):
        (self.run_dir / "a.supervised").symlink_to(self.folder / "made")
        self.refused(self.run_dir, "cannot lock")
        self.assertFalse((self.folder / "made").exists())

    def test_a_link_in_place_of_a_log_is_not_written_through(self):
        (self.run_dir / "logs").mkdir()
        (self.run_dir / "logs" / "baton.log").symlink_to(self.victim)
        self.start().pid("a")
        self.assertEqual("precious", self.victim.read_text())

    @unittest.skipUnless(os.geteuid() == 0, "only root gives files away")
    def test_a_directory_of_another_user_is_refused(self):
        process = self.sleeper()
        self.forge_record(process.pid)
        os.chown(self.run_dir, 12345, 12345)
        self.refused(self.run_dir, f"run_dir: {self.run_dir} belongs to user 12345, not to user 0")
        self.assertIsNone(process.poll())

    @unittest.skipUnless(os.geteuid() == 0, "only root gives files away")
    def test_a_record_of_another_user_names_no_process(self):
        process = self.sleeper()
        os.chown(self.forge_record(process.pid), 12345, 12345)
        s = self.start()
        self.assertNotEqual(process.pid, s.pid("a"))
        self.assertEqual(0, s.stop())
        self.assertIsNone(process.poll())

    @unittest.skipUnless(os.geteuid() == 0, "only root gives files away")
    def test_ctl_signals_processes_of_the_directorys_owner_alone(self):
        process = self.sleeper()
        os.chown(self.forge_record(process.pid), 12345, 12345)
        os.chown(self.run_dir, 12345, 12345)
        done = subprocess.run([SUPERVISOR.parent / "baton-ctl", "--run-dir", self.run_dir, "--within", "0.3", "restart", "a"],
                              capture_output=True, text=True, timeout=20)
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIsNone(process.poll())

    @unittest.skipUnless(os.geteuid() == 0, "only root becomes another user")
    def test_ctl_refuses_the_directory_of_another_user(self):
        self.folder.chmod(0o755)
        self.run_dir.chmod(0o755)
        program = shutil.copy(SUPERVISOR.parent / "baton-ctl", self.folder / "ctl")
        done = subprocess.run([program, "--run-dir", self.run_dir, "show", "processes"], user=12345, group=12345,
                              extra_groups=[], capture_output=True, text=True, timeout=20)
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIn(f"run_dir: {self.run_dir} belongs to user 0, not to user 12345", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0], *sys.argv[1:]])
