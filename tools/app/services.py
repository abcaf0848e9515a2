"""Starting each of the three services: its command, its logs, and when it is ready."""

import http.client
import json
import pathlib
import subprocess
import sys
import urllib.parse

from app import process, translate
from gateway import relaxed_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
TITLES = {"client": "llm_inference_client", "cb_server": "llm_inference_cb_server",
          "sb_server": "llm_inference_sb_server"}


class CannotStart(Exception):
    pass


def local_url(options, name):
    host = "127.0.0.1" if options.host in ("0.0.0.0", "::") else options.host
    return f"http://{host}:{getattr(options, f'{name}_port')}"


def get(url, path, timeout_s=2.0):
    """(status, text); status 0: nobody there."""
    return _ask("GET", url, path, None, timeout_s)


def post(url, path, body, timeout_s=5.0):
    return _ask("POST", url, path, json.dumps(body), timeout_s)


def _ask(method, url, path, body, timeout_s):
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read(1 << 20).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()


def logs(options, name):
    """(access, error) paths."""
    options.log_dir.mkdir(parents=True, exist_ok=True)
    return tuple(options.log_dir / f"{TITLES[name]}_{what}.log" for what in ("access", "error"))


def binaries(device):
    return ROOT / "build" / ("cuda" if device == "cuda" else "cpu") / "bin"


class Server:
    """A Baton cluster of its own: scheduler, workers, front end under baton-supervisor."""

    def __init__(self, options, name):
        self.options, self.name = options, name
        self.kind = name[:2]
        self.url = local_url(options, name)
        self.folder = options.run_dir / self.kind
        self.config_path = self.folder / "config.yaml"
        self.notes = []

    def prepare(self):
        """Translates the configuration and lets the supervisor judge it, before anything starts."""
        path = getattr(self.options, f"{self.name}_config_file_path")
        work = translate.continuous if self.kind == "cb" else translate.static
        try:
            translation = work(relaxed_json.load(path))
        except translate.Refused as error:
            raise CannotStart(f"{path}: {error}") from None
        except (OSError, ValueError) as error:
            raise CannotStart(str(error)) from None
        self.notes = [f"{path}: {note}" for note in translation.notes]
        config = self._complete(translation.config)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config_path.write_text(json.dumps(config, indent=1))  # JSON is YAML
        self._check()

    def _complete(self, config):
        options = self.options
        config["run_dir"] = str(self.folder / "run")
        config["model_name"] = (getattr(options, f"{self.name}_model_id")
                                or pathlib.Path(config["model"]).name)
        config["log_level"] = "debug" if getattr(options, f"{self.name}_debug") else "info"
        config["frontend"] = {"host": options.host, "port": getattr(options, f"{self.name}_port"),
                              "dialects": "openai,tutorial",
                              **({"client_url": options.client_url} if options.client_url else {})}
        config["worker"] = {"device": options.device, **config["worker"]}
        self.device = config["worker"]["device"]
        self.model_id = config["model_name"]
        return config

    def command(self):
        return [binaries(self.device) / "baton-supervisor", "--config", self.config_path]

    def _check(self):
        try:
            done = subprocess.run([*self.command(), "--print-plan"], capture_output=True, text=True,
                                  timeout=60)
        except FileNotFoundError:
            raise CannotStart(f"{self.command()[0]} is not built yet: ./baton build") from None
        if done.returncode != 0:
            raise CannotStart(f"{self.name}: {done.stderr.strip() or done.stdout.strip()}")

    def start(self):
        access, error = logs(self.options, self.name)
        splitter = process.spawn([sys.executable, ROOT / "tools" / "app" / "split_log.py", access, error],
                                 stdin=subprocess.PIPE)
        main = process.spawn(self.command(), stdout=splitter.stdin, stderr=subprocess.STDOUT)
        splitter.stdin.close()
        return {"url": self.url, "kind": self.kind, "model_id": self.model_id,
                "logs": [str(access), str(error)],
                "processes": [process.identity(main.pid), process.identity(splitter.pid)]}


class Gateway:
    def __init__(self, options, name):
        self.options, self.name = options, name
        self.url = local_url(options, name)
        self.notes = []

    def prepare(self):
        from gateway import config
        try:
            config.load(self.options.client_config_file_path)
        except (OSError, ValueError) as error:
            raise CannotStart(str(error)) from None
        if self.options.gunicorn_config_file_path:
            self.notes.append("--gunicorn_config_file_path: nothing is done about it, for there is no gunicorn")

    def start(self):
        options = self.options
        access, error = logs(options, self.name)
        command = [sys.executable, ROOT / "tools" / "gateway",
                   "--client_config_file_path", pathlib.Path(options.client_config_file_path).absolute(),
                   "--client_config_hot_update_interval_minutes",
                   options.client_config_hot_update_interval_minutes,
                   "--host", options.host, "--port", options.client_port,
                   "--access_log", access, "--error_log", error]
        if options.client_debug:
            command.append("--debug")
        if options.openai_base_url:
            command += ["--openai_base_url", options.openai_base_url]
        with open(error, "ab") as file:  # what it says before its log is open
            main = process.spawn(command, stdout=file, stderr=file)
        return {"url": self.url, "kind": "client", "logs": [str(access), str(error)],
                "processes": [process.identity(main.pid)]}


def make(options, name):
    return (Gateway if name == "client" else Server)(options, name)
