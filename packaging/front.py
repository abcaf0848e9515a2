"""The installed `baton`: packaging/front.sh with the functions that it shares with the launcher."""

import re

# Lifted from ./baton as they stand there, so that nothing is written twice.
SHARED = ["serve_usage", "say", "die", "now", "have", "listeners", "port_taken", "plan_value", "ctl_options", "one_socket", "show_setup", "ask_scheduler", "runs",
          "all_up", "cannot_run", "left_out", "one_served", "announce", "gpu_count", "default_config", "spelled", "refuse_foreign", "check_model", "model_of", "check_run_dir", "supervisor_of", "left_behind", "baton_on_port",
          "processes", "plan_of", "check", "serve", "doctor_options", "gpu_pairs", "doctor_reach", "doctor_model"]


def function(launcher, name):
    """The text of a shell function at the top level, with the comment above it."""
    found = re.search(rf"(?m)^((?:#(?!.*---).*\n)*)({name}\(\) (?:\{{.*\}}(?: #.*)?$|[{{(].*\n(?:.*\n)*?[}})]$))", launcher)
    if not found:
        raise SystemExit(f"packaging/front.py: ./baton has no function {name}")
    return found.group(1) + found.group(2) + "\n"


def front(launcher, template, version, has_top):
    text = "\n".join(function(launcher, name) for name in SHARED)
    text = text.replace("./baton ", "baton ")
    text = text.replace("Installs what is missing, builds, starts all processes and says", "Starts all processes and says")
    text = re.sub(r"; build/cpu/bin/baton-scheduler --help lists them\n *once it is built", "; baton.yaml(5) lists them", text)
    text = text.replace("cuda where a GPU and nvcc 13 are found", "cuda where a GPU and the package baton-cuda are found")
    text = text.replace("a GPU and nvcc are here", "a GPU is here")
    text = text.replace("on more configs/", "on more /etc/baton/").replace("one GPU configs/", "one GPU /etc/baton/")
    text = text.replace("(demo/model)", "(the demo model)").replace("(configs/", "(/etc/baton/")
    if not has_top:
        template = re.sub(r"(?m)^  top .*\n", "", template)
    return template.replace("@FUNCTIONS@\n", text + "\n").replace("@VERSION@", version)
