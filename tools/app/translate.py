"""The tutorial's server configurations -> Baton's. Every key is acted on, accepted with a note that says
why nothing is done about it, or refused by name. Values in, values out; only model folders are looked at.
"""

import dataclasses
import json
import pathlib


class Refused(ValueError):
    """A key that cannot be honoured; the message begins with its name."""


@dataclasses.dataclass
class Translation:
    """`config` is Baton's configuration (docs of each key: baton-scheduler --help)."""

    config: dict
    notes: list


class Section:
    """One object of the file. Each key must be taken; what is left over is refused by name."""

    def __init__(self, value, name, notes):
        if not isinstance(value, dict):
            raise Refused(f"{name}: expected an object")
        self.name, self.notes = name, notes
        self._left = dict(value)

    def take(self, key, default=None):
        return self._left.pop(key, default)

    def fail(self, key, why):
        raise Refused(f"{self.name}.{key}: {why}")

    def note(self, key, why):
        self.notes.append(f"{self.name}.{key}: {why}")

    def number(self, key, default, low, high, whole=True, nullable=False):
        """Within bounds; a number in quotes is one, too (package_max_workload is published so)."""
        value = self.take(key, default)
        if value is None and nullable:
            return None
        if isinstance(value, str):
            try:
                value = int(value) if whole else float(value)
            except ValueError:
                self.fail(key, f"is {value!r}, no number")
        kinds = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            self.fail(key, f"is {value!r}; it may be {low} to {high}")
        if not low <= value <= high:
            self.fail(key, f"is {value}; it may be {low} to {high}")
        return value

    def text(self, key, default):
        value = self.take(key, default)
        if not isinstance(value, str) or not value:
            self.fail(key, f"is {value!r}, no text")
        return value

    def only(self, key, default, allowed, why):
        """A key that may hold nothing but `allowed`."""
        value = self.take(key, default)
        if value not in allowed:
            self.fail(key, f"is {value!r}: {why}")

    def noted(self, key, default, why):
        """A harmless key: told about when the file has it."""
        if key in self._left:
            self.note(key, why)
        return self.take(key, default)

    def end(self):
        for key in self._left:
            self.fail(key, "no such key")


def _section(value, name, notes):
    return Section(value.pop(name, {}), name, notes)


def _model_folder(section):
    """The folder and its config.json."""
    folder = pathlib.Path(section.text("model_name_or_path", "")).expanduser()
    try:
        facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        section.fail("model_name_or_path",
                     f"{folder} is no model folder ({error.strerror}: config.json); nothing is downloaded")
    except ValueError:
        section.fail("model_name_or_path", f"{folder}/config.json is no JSON")
    if not isinstance(facts, dict):
        section.fail("model_name_or_path", f"{folder}/config.json is no JSON object")
    return folder.resolve(), facts


def _tokenizer(section, folder):
    other = section.take("tokenizer_name_or_path")
    if other is not None and pathlib.Path(other).expanduser().resolve() != folder:
        section.fail("tokenizer_name_or_path", "the tokenizer stands in the model's own folder; leave it null")


def _is_gptq(folder, facts):
    quantization = facts.get("quantization_config") or {}
    return (folder / "quantize_config.json").exists() or quantization.get("quant_method") == "gptq"


def _dtype(section):
    """torch_dtype -> options of the worker."""
    value = section.take("torch_dtype", "float16")
    if value in ("float", "float32"):
        return {"dtype": "f32"}  # refused by a worker on a GPU
    if value == "bfloat16":
        return {"dtype": "bf16"}
    if value != "float16":
        section.fail("torch_dtype", f"is {value!r}; it may be float16, bfloat16 or float32")
    section.note("torch_dtype", "float16 is no type of weights in memory here: on CPUs they stay as they are "
                                "stored (float16 widened to float32), on GPUs they become bfloat16")
    return {}


def _common_loading(section):
    """Keys that both servers' loading sections have: (folder, its config.json, options of the worker)."""
    folder, facts = _model_folder(section)
    _tokenizer(section, folder)
    worker = _dtype(section)
    section.noted("use_fast_tokenizer", False, "there is one implementation of each tokenizer")
    section.only("trust_remote_code", False, (False,), "no code of a model's folder is run")
    return folder, facts, worker


def _gptq(section, key, wanted, folder, facts):
    if wanted and not _is_gptq(folder, facts):
        section.fail(key, f"{folder} has no quantize_config.json and no such quantization_config")
    if not wanted and _is_gptq(folder, facts):
        section.note(key, "the folder says that it is quantized; that counts")


def _device(value, section, key):
    """null, "cpu", "cuda", "cuda:1" or 1 -> options of the worker."""
    if value is None:
        return {}
    if value == "cpu":
        return {"device": "cpu"}
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 64:
        return {"gpu": str(value)}
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        number = value[5:]
        if number == "" or (number.isdigit() and int(number) < 64):
            return {"device": "cuda", **({"gpu": number} if number else {})}
    return section.fail(key, f"is {value!r}; it may be null, a GPU's number, cpu, cuda or cuda:NUMBER")


def _loading(section):
    """model_loading_config of a CB server: (options of the top level, options of the worker)."""
    folder, facts, worker = _common_loading(section)
    kind = section.text("model_type", "llama")
    if kind != facts.get("model_type"):
        section.fail("model_type", f"is {kind!r}, but the folder's config.json says "
                                   f"{facts.get('model_type')!r}")
    method = section.take("quantize_method")
    if method not in (None, "", "gptq"):
        section.fail("quantize_method", f"is {method!r}; it may be null or gptq")
    _gptq(section, "quantize_method", method == "gptq", folder, facts)
    length = section.number("model_max_length", 2048, 1, 1 << 24)
    context = facts.get("max_position_embeddings")
    if isinstance(context, int) and length > context:
        section.note("model_max_length", f"the model's own context is the limit where it is shorter; "
                                         f"config.json says {context} tokens")
    for key in ("gptq_model_base_name", "gptq_config_base_name"):
        section.only(key, None, (None,), "files are found by their usual names; leave it null")
    worker |= _device(section.take("device", None), section, "device")
    section.end()
    return {"model": str(folder), "max_context": length}, worker


def _cache(section):
    """cache_config of a CB server: (options of the worker, share of the pool that stays free)."""
    worker = {"tokens_per_block": section.number("block_size", 16, 1, 256)}
    blocks = section.number("num_blocks", 2500, 1, 16_777_216, nullable=True)
    if blocks is not None:  # null: as many as there is memory for
        worker["pool_blocks"] = blocks
    worker["host_pool_blocks"] = section.number("num_blocks_cpu", 1024, 0, 16_777_216)
    section.noted("pin_memory_on_cpu", True, "the host's blocks are page-locked where a GPU uses them, always")
    watermark = section.number("watermark", 0.01, 0, 0.5, whole=False)
    share = section.number("gpu_memory_utilization", 0.98, 0.01, 1, whole=False)
    worker["memory_fraction"] = min(share, 0.98)
    section.end()
    return worker, watermark


def continuous(value):
    """cb_server_config.json -> Translation; Refused names the key."""
    if not isinstance(value, dict):
        raise Refused("expected an object")
    value, notes = dict(value), []
    top, worker = _loading(_section(value, "model_loading_config", notes))
    batcher = _section(value, "batcher_config", notes)
    budget = batcher.number("batch_max_tokens", 56000, 1, 65536)
    beams = batcher.number("batch_max_beams", 32, 1, 4096)
    batcher.end()
    cache, watermark = _cache(_section(value, "cache_config", notes))
    worker |= cache
    parallel = _section(value, "parallel_config", notes)
    parallel.only("tp_size", 1, (1,), "a model runs on one GPU")
    parallel.end()
    Section(value, "the file", notes).end()
    return Translation({**top, "worker": worker,
                        "scheduler": {"batching": "continuous", "token_budget": budget,
                                      "prompt_chunk": min(budget, 256), "max_running": beams,
                                      "watermark": watermark, "victim": "tail", "preempted": "first"},
                        "workers": [{"name": "prefill0", "role": "prefill"},
                                    {"name": "decode0", "role": "decode"}]}, notes)


def static(value):
    """sb_server_config.json -> Translation; Refused names the key."""
    if not isinstance(value, dict):
        raise Refused("expected an object")
    value, notes = dict(value), []
    batcher = _section(value, "batcher_config", notes)
    size = batcher.number("package_max_workload", 1, 1, 256)
    interval = batcher.number("packaging_interval_seconds", 2, 0.01, 60, whole=False)
    batcher.end()
    section = _section(value, "worker_config", notes)
    folder, facts, worker = _common_loading(section)
    section.only("revision", "main", ("main",), "a folder has no revisions")
    section.noted("low_cpu_mem_usage", True, "weights are mapped from their file")
    section.noted("use_safetensors", False, "safetensors is what is read")
    _gptq(section, "is_gptq_quantized", section.take("is_gptq_quantized", False) is True, folder, facts)
    limit = section.number("batch_size", -1, -1, 1 << 20)
    if limit != -1 and limit < size:
        section.fail("batch_size", f"is {limit}: a package of {size} is computed at once; make it -1")
    worker |= _device(section.take("device"), section, "device")
    section.only("max_memory", None, (None,), "is not shared out by device; leave it null")
    where = section.take("device_map", "auto")
    if where == "cpu":
        worker |= {"device": "cpu"}
    elif where != "auto":
        section.fail("device_map", f"is {where!r}; it may be auto or cpu")
    section.end()
    Section(value, "the file", notes).end()
    return Translation({"model": str(folder), "worker": worker,
                        "scheduler": {"batching": "static", "static_batch_size": size,
                                      "static_interval_s": interval, "static_same_config": True},
                        "workers": [{"name": "mixed0", "role": "mixed"}]}, notes)
