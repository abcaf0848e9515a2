"""Several models in one Baton, as real processes: cluster.py's, with a list `models`.

    with SeveralModels({"small": {"workers": PAIR}, "big": {"workers": MIXED, "model": FOLDER}}) as baton:
        baton.kill("small.decode0"); baton.kill("big.scheduler")
"""

import json
import subprocess

from cluster import DEMO_MODEL, Cluster


class SeveralModels(Cluster):
    def __init__(self, models, **options):
        """`models`: by name, each with workers=[(name, role)], and keys of the configuration as they stand in an entry."""
        self.models = list(models)
        entries = [{"model": str(DEMO_MODEL), **entry, "name": name,
                    "workers": [{"name": worker, "role": role} for worker, role in entry["workers"]]}
                   for name, entry in models.items()]
        workers = [(f"{entry['name']}.{worker['name']}", worker["role"])
                   for entry in entries for worker in entry["workers"]]
        super().__init__(workers=workers, **options)
        config = json.loads(self.config.read_text())
        for key in ("model", "model_name", "workers"):
            del config[key]
        self.config.write_text(json.dumps({**config, "models": entries}, indent=1))

    def start_all(self):
        schedulers = [f"{name}.scheduler" for name in self.models]
        for name in [*self.keepers, *schedulers, *self.workers, *self.frontends]:
            self.start(name)

    def start(self, name):
        if "." not in name:
            super().start(name)
            return
        model, _, process = name.partition(".")
        command = (["baton-scheduler"] if process == "scheduler" else ["baton-worker", "--name", process])
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [self.bin / command[0], *command[1:], "--for", model, "--config", str(self.config)],
                stdout=log, stderr=log, cwd=self.folder)
        self.pids.add(self.processes[name].pid)

    def ask_scheduler(self, model, command, seconds=10):
        return self.ask_admin(f"{model}.admin.sock", command, seconds)

    def show(self, what):
        """Of all schedulers together, those that do not answer included: an OSError."""
        return [each for model in self.models for each in json.loads(self.ask_scheduler(model, f"show {what} json"))]

    def ctl(self, command, seconds=10):
        """The same answer of every scheduler."""
        answers = {self.ask_scheduler(model, command, seconds) for model in self.models}
        return answers.pop() if len(answers) == 1 else "\n".join(sorted(answers))

    def worker_state(self, name):
        process = self.processes.get(name)
        if process is not None and process.poll() is not None:
            raise AssertionError(f"{name} has exited with {process.returncode}")
        try:
            workers = json.loads(self.ask_scheduler(name.partition(".")[0], "show workers json"))
        except (OSError, ValueError):
            return None
        return next((worker["state"] for worker in workers if worker["name"] == name), None)

    def baton_ctl(self, *words):
        """The program itself, which reads the configuration: (exit code, what it printed, what it complained about)."""
        command = [self.bin / "baton-ctl", "--config", str(self.config), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr
