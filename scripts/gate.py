"""Freeze what callers see of ksieve as JSON, and check a later tree against it. Temporary, for a reorganisation.

    python scripts/gate.py freeze FILE
    python scripts/gate.py check FILE [--gone TEXT ...]

Frozen are plans over a grid, signatures and `__all__` of public modules, schemas of the PyTorch operators, and the
errors of wrong calls. `check` prints every difference and exits 1. Entries whose key contains the TEXT of a --gone may
be missing. Import time and host cost of a ready call are printed as ratios, and never decide.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib
import inspect
import itertools
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

NAMES = (
    "ksieve ksieve.torch ksieve.tiles ksieve.distributed ksieve.captures ksieve.captures.recorder ksieve.lab.workloads "
    "ksieve.adapters ksieve.adapters.vllm ksieve.adapters.sglang ksieve.adapters.flashinfer "
    "ksieve.adapters.tensorrt_llm ksieve.adapters.plugins"
)
MODULES = {name: name for name in NAMES.split()} | {
    "ksieve.tiles": "ksieve.running",
    "ksieve.captures": "ksieve_lab.captures",
    "ksieve.captures.recorder": "ksieve_lab.captures.recorder",
    "ksieve.lab.workloads": "ksieve_lab.workloads",
}
"""Name of a public module in the frozen file -> its name today, to be changed when the module moves."""

OPERATORS = "ksieve.frontends.torch.ops"  # the module that registers the PyTorch operators
ROWS = (1, 2, 7, 16, 64, 132, 512, 1024, 4096, 65536)
WIDTHS = (1, 100, 2048, 4096, 8192, 16384, 32768, 60000, 131072, 262144, 1048576, 4194304)
KS = (1, 64, 512, 2048, 16384)
DTYPES = ("float32", "float16", "bfloat16")
DEVICES = ("h100", "h200", "h20", "a100", "l40s", "rtx4090", "b200", "rtx5090", "cpu")
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"values": True, "order": "value"}, {"transform": "pages", "page_size": 64},
    {"tie_break": "low", "order": "index"}, {"nan": "highest", "values": True}, {"largest": False},
    {"windows": "lengths", "index_base": "start"}, {"per_row_k": True, "next_n": 2},
    {"positions": True, "order": "value"}, {"block_size": 128, "force_first": 1, "force_last": 1},
    {"block_size": 64, "expand": 64, "tail": True}, {"expand": 8, "force_first": 1, "force": "beside"},
    {"counts": True, "filled": False, "index_dtype": "int64"},
    {"overlap": True, "length_dtype": "int64", "raw": True, "transform": "offsets"},
)  # fmt: skip
ALL_OPTIONS_ON = ("h100", "cpu")  # the others have the first four


def _plans() -> Iterator[tuple[str, str]]:
    """Yield the plans of a grid: family, geometry and digests of all fields and of the reason; or the error."""
    ksieve = importlib.import_module("ksieve")

    def digest(value: Any) -> str:
        return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:10]

    for device, options in itertools.product(DEVICES, OPTIONS):
        if device not in ALL_OPTIONS_ON and options not in OPTIONS[:4]:
            continue
        asked, place = ksieve.Options(**options), ksieve.DeviceInfo("cpu", threads=4) if device == "cpu" else device
        for dtype, rows, width, k in itertools.product(DTYPES, ROWS, WIDTHS, KS):
            name = f"plan {device} {options} {dtype} {rows} x {width} k={k}"
            try:
                plan = ksieve.plan(rows=rows, width=width, k=k, dtype=dtype, device=place, options=asked)
            except ksieve.KsieveError as error:
                yield name, f"{type(error).__name__}: {error}"
            else:
                fields = dataclasses.asdict(plan)
                reason = digest([fields.pop("reason"), [b.pop("reason") for b in fields["bins"]]])
                yield name, f"{plan.family} {plan.ctas} x {plan.threads} {digest(fields)} reason {reason}"


def _signature(thing: Any) -> str:
    try:
        return str(inspect.signature(thing)) if callable(thing) else type(thing).__name__
    except (TypeError, ValueError):
        return "no signature"


def _signatures() -> Iterator[tuple[str, str]]:
    """Yield the signatures of what public modules export, and of the public members of classes."""
    for frozen, today in MODULES.items():
        module = importlib.import_module(today)
        own = [n for n, x in vars(module).items() if not n.startswith("_") and getattr(x, "__module__", "") == today]
        names = sorted(getattr(module, "__all__", own))
        yield f"all of {frozen}", str(names)
        for name in names:
            thing = getattr(module, name)
            yield f"signature {frozen}.{name}", _signature(thing)
            for member in sorted(vars(thing)) if inspect.isclass(thing) else ():
                if not member.startswith("_"):
                    found = vars(thing)[member]
                    yield f"signature {frozen}.{name}.{member}", _signature(getattr(found, "__func__", found))


def _operators() -> Iterator[tuple[str, str]]:
    import torch

    importlib.import_module(OPERATORS)
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("ksieve::"):
            yield f"operator {schema.name}", str(schema)


ODD: dict[str, Any] = {
    "'x'": "x", "[1]": [1], "{}": {}, "2.5": 2.5, "-1": -1, "0": 0, "2**31": 2**31, "2**70": 2**70, "None": None,
    "True": True, "nan": float("nan"), "vector of 3 doubles": np.zeros(3), "bytes": b"x",
}  # fmt: skip
ARRAYS: dict[str, Any] = {
    "a list": [1, 2], "doubles": np.zeros((4, 64)), "three scores": np.zeros(3, np.float32),
    "int32 of 4": np.zeros(4, np.int32), "int64 of 5": np.zeros(5, np.int64),
    "int32 of 4 x 64": np.zeros((4, 64), np.int32), "int32 of 3 x 5": np.zeros((3, 5), np.int32),
    "strided": np.zeros((4, 128), np.float32)[:, ::2], "objects": np.full((4, 64), None),
    "read-only": np.broadcast_to(np.int32(1), (4, 8)),
}  # fmt: skip
"""Wrong values of every argument, and wrong arrays; an argument that takes one of them freezes "taken"."""


def _scores() -> Any:
    return np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


def _calls() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any], tuple[str, ...], tuple[str, ...]]]:
    """Yield valid calls: name, function, arguments, arguments that get odd numbers, and those that get odd arrays."""
    import jax
    import torch
    import torch.distributed as dist

    def in_jax(**more: Any) -> Any:
        return jax.jit(lambda x: ksieve.topk(x, **more))(_scores())

    public = {name: importlib.import_module(today) for name, today in MODULES.items()}
    lab = importlib.import_module("ksieve_lab")
    ksieve, tiles, ranks = (public[name] for name in ("ksieve", "ksieve.tiles", "ksieve.distributed"))
    answer = np.argsort(-_scores(), axis=1)[:, :8].astype(np.int32)
    table = np.zeros((4, 64), np.int32)
    flags = ("plan", "policy", "backend", "sorted", "tie_break", "deterministic", "largest", "nan", "index_base")
    more = ("next_n", "index_dtype", "block_size", "force_first", "force", "expand", "fill", "max_k", "page_size")
    arrays = ("scores", "lengths", "starts", "ends", "page_table", "offsets", "positions", "block_table", "tail")
    outputs = ("out", "values_out", "raw_out", "counts_out", "workspace", "num_rows", "row_to_request")
    fields = tuple(ksieve.Options.__dataclass_fields__)
    entries = ("k", "index_base", "next_n", "nan", "sorted", "tie_break", "sentinel", "block_size", "expand")
    yield "topk", ksieve.topk, {"scores": _scores(), "k": 8}, ("k", *flags, *more), (*arrays, *outputs, "k")
    yield "topk pages", ksieve.topk, {"scores": _scores(), "k": 8, "page_table": table}, ("page_size",), ("offsets",)
    tensors = {"scores": torch.from_numpy(_scores()), "k": 8}
    yield "topk torch", ksieve.topk, tensors, ("k", "num_rows", "workspace"), ("scores", "lengths", "out", "values_out")
    shape = {"rows": 4, "width": 65536, "k": 8, "device": "h100"}
    yield "plan", ksieve.plan, shape, (*shape, "pitch", "dtype", "family", "policy", "splits", "options"), ()
    yield "Options", ksieve.Options, {}, fields, ()
    yield "SamplingPolicy", ksieve.SamplingPolicy, {"name": "p", "stride": 64}, ("name", "stride", "margin"), ()
    judged = {"scores": _scores(), "lengths": None, "indices": answer}
    yield "verify", ksieve.verify, judged, entries, ("scores", "lengths", "indices", "counts", "positions", "tail")
    made = {"rows": 4, "k": 8, "max_tile": 64}
    yield "Running", ksieve.Running, made, (*made, "max_k", "dtype", "device", "largest", "nan", "block_size"), ()
    running = ksieve.Running(**made)
    pushed = {"tile": _scores(), "first_column": 0}
    yield "Running.push", ksieve.Running(**made).push, pushed, ("first_column",), ("tile", "lengths", "ends")
    yield "Running.finish", running.finish, {}, ("sorted", "index_dtype"), ("out", "values_out", "page_table")
    yield "Candidates", tiles.Candidates, {"running": running, "width": 64}, ("running", "width", "capacity"), ()
    yield (
        "record",
        lab.record,
        {"path": "a.safetensors"},
        ("path", "every", "calls", "metadata"),
        (),
    )
    yield "torch.topk", public["ksieve.torch"].topk, {"input": tensors["scores"], "k": 8}, ("k", "dim", "out"), ()
    spread = {"scores": _scores(), "k": 8, "world": 2}
    yield "simulate", lab.simulate, spread, ("k", "world", "layout", "output", "schedule"), ("scores", "lengths")
    yield "distributed.topk without a group", ranks.topk, {"local_scores": tensors["scores"], "k": 8}, (), ()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    shard = {"rows": 4, "width": 64, "k": 8}
    yield "distributed.plan", ranks.plan, shard, (*shard, "dtype", "layout", "output", "link", "schedule"), ()
    local = {"local_scores": tensors["scores"], "k": 8}
    named = ("k", "output", "tie_break", "layout", "page_size", "max_k")
    yield "distributed.topk", ranks.topk, local, named, ("local_scores", "local_lengths", "page_table")
    yield "jax.jit topk", in_jax, {"k": 8}, ("k", "policy", "backend", "block_size", "plan"), ("out",)
    lengths, slots = torch.full((4,), 64, dtype=torch.int32), torch.zeros((4, 8), dtype=torch.int32)
    vllm, sglang, flashinfer, tensorrt = (
        public[f"ksieve.adapters.{engine}"] for engine in ("vllm", "sglang", "flashinfer", "tensorrt_llm")
    )
    rows = {"logits": tensors["scores"], "next_n": 1, "seq_lens": lengths, "indices": slots}
    sizes = {"numRows": 4, "stride0": 64, "stride1": 1, "topK": 8}
    decode, numbers = vllm.top_k_per_row_decode, ("next_n", "numRows", "topK")
    yield "vllm.top_k_per_row_decode", decode, rows | sizes, numbers, ("logits",)
    asked = {"score": tensors["scores"], "lengths": lengths, "topk": 8}
    yield "sglang.fast_topk_v2", sglang.fast_topk_v2, asked, ("topk",), ("score", "lengths", "row_starts")
    yield "flashinfer.top_k", flashinfer.top_k, {"input": tensors["scores"], "k": 8}, ("k", "tie_break"), ("input",)
    decoded = rows | {"index_topk": 8}
    yield "tensorrt_llm.decode", tensorrt.indexer_topk_decode, decoded, ("index_topk", "next_n"), ("logits", "indices")


def _errors() -> Iterator[tuple[str, str]]:
    """Yield type and message of wrong calls: each a valid call with one wrong value."""
    for name, function, valid, plain, arrays in _calls():
        odd = [*itertools.product(plain, ODD.items()), *itertools.product(arrays, ARRAYS.items())]
        given = {f"{name}({argument}={text})": {argument: value} for argument, (text, value) in odd}
        for what, wrong in ({f"{name} itself": {}, f"{name}(surprise=1)": {"surprise": 1}} | given).items():
            try:
                function(**valid | wrong)
            except Exception as error:
                yield f"error {what}", f"{type(error).__name__}: {error}"
            else:
                yield f"error {what}", "taken"


def _times() -> dict[str, float]:
    """Milliseconds of the import in a new process, and microseconds of a ready NumPy call; the least of several."""
    ksieve = importlib.import_module("ksieve")
    code = "import time; t = time.perf_counter(); import ksieve; print(time.perf_counter() - t)"
    imports = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(7)]
    matrix = _scores()
    out, costs = ksieve.topk(matrix, k=8), []
    for _ in range(50):
        begin = time.perf_counter()
        for _ in range(100):
            ksieve.topk(matrix, k=8, out=out)
        costs.append((time.perf_counter() - begin) / 100)
    return {"import ms": round(min(imports) * 1e3, 1), "ready call us": round(min(costs) * 1e6, 2)}


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("freeze", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--gone", action="append", default=[], help="entries with this text may be missing")
    asked, wrong = parser.parse_args(), 0
    warnings.simplefilter("ignore")
    os.environ["NUMBA_NUM_THREADS"] = "2"
    measured = _times()
    found = dict(itertools.chain(_plans(), _signatures(), _operators(), _errors()))
    if asked.action == "freeze":
        asked.file.write_text(json.dumps({"times": measured, "entries": found}, indent=0, sort_keys=True))
        print(f"{len(found):,} entries, {measured}, {asked.file.stat().st_size:,} bytes")
        return 0
    frozen = json.loads(asked.file.read_text())
    for name, value in measured.items():
        print(f"{name}: {value}, {value / frozen['times'][name]:.2f} of the frozen one")
    for name in sorted(frozen["entries"].keys() | found.keys()):
        was, now = frozen["entries"].get(name), found.get(name)
        if was == now or (now is None and any(text in name for text in asked.gone)):
            continue
        wrong += 1
        print(f"{name}\n  was {was}\n  now {now}")
    print(f"{wrong} differences in {len(frozen['entries']):,} entries")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(_main())
