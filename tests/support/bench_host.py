"""The GPU benches on the host: real scores, real selections on the CPU and real verdicts, a clock that is made up."""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest

import ksieve
from ksieve import api
from ksieve.backends.cuda.jit import cache
from ksieve.core.device import DEVICES
from ksieve.planning.plan import Plan
from ksieve.tuning import tasks, timing
from ksieve_lab.bench import catalog, floor, record
from ksieve_lab.chain import producers

H200 = DEVICES["h200"]
FLOOR_US, OWN_US, OTHER_US = 10.0, 12.5, 20.0
ENVIRONMENT = {
    "command": "__main__.py bench gpu", "date": "2026-01-02T03:04:05Z", "commit": "0123456789abcdef",
    "gpu": {"devices": [{"name": "NVIDIA H200", "driver_version": "1.2"}]},
    "packages": {"nvidia-cuda-nvrtc": "13.0", "torch": "2.11"},
}  # fmt: skip


def clock(name):
    """Microseconds of a contender: names tell reads, the planner's choice, and everybody else apart."""
    return {"read a": FLOOR_US, "read b": 11.0, "ksieve": OWN_US}.get(name, OTHER_US)


def measure(contenders, sets, read_bytes, *, rounds=7, **_):
    found = []
    for contender in contenders:
        result = timing.Timing(contender.name)
        found.append(result)
        try:
            for i in range(sets):
                if contender.poison is not None:
                    contender.run(i)  # peers allocate in their first run
                    contender.poison(i)
                contender.run(i)
            if contender.check is not None:
                result.exact = all(contender.check(i) for i in range(sets))
        except Exception as error:
            if timing.failed(found, result, error):
                return found + [timing.Timing(c.name, error=result.error) for c in contenders[len(found) :]]
            continue
        result.rounds = [clock(contender.name)] * min(rounds, contender.rounds or rounds)
    return found


def produce(factors, scores, overlap):
    scores.copy_(factors.q[:, 0].float() @ factors.keys.float().T)


def gather(cache, at, out, overlap):
    out.zero_()[:, 0] = cache[at.long()].float().sum(1)


@pytest.fixture
def host(monkeypatch):
    """Let every GPU bench run here, on small shapes; yields the plans that were run."""
    torch = pytest.importorskip("torch")
    importlib.import_module("ksieve.distributed.ranks")  # imported later, it would keep the function below for good
    ran = []

    def select(scores, lengths=None, k=None, *, plan, workspace, **asked):
        ran.append(plan)
        flat = plan.problem.options.windows == "segments"
        assert flat or scores.shape == (plan.problem.rows, plan.problem.width)
        assert workspace == "workspace"
        return ksieve.select(scores, lengths, plan.problem.k if k is None else k, **asked)

    def allocate(rows, width, dtype, most=None, valid=None):
        element = getattr(torch, dtype)
        pitch = tasks.pitch_of(width, element.itemsize)
        return [tasks.aligned(rows, pitch, element, "cpu").fill_(7.0)[:, :width] for _ in range(2)]

    reads = [timing.Contender("read a", lambda i: None), timing.Contender("read b", lambda i: None)]
    monkeypatch.setattr(tasks, "require_device", lambda: H200)
    monkeypatch.setattr(cache, "compile_all", lambda specs: iter(()))
    monkeypatch.setattr(tasks, "allocate", allocate)
    monkeypatch.setattr(floor, "contenders", lambda *_: list(reads))
    monkeypatch.setattr(timing, "measure", measure)
    monkeypatch.setattr(api, "select", select)
    monkeypatch.setattr(api, "topk", lambda *given, **asked: select(*given, **asked).indices)
    monkeypatch.setattr(Plan, "workspace", lambda self: "workspace")
    monkeypatch.setattr(producers, "load_layer", lambda: (produce, gather))
    monkeypatch.setattr(record, "environment", lambda *, gpu: dict(ENVIRONMENT))
    return ran


def run(*words):
    """A command of the command line."""
    from typer.testing import CliRunner

    from ksieve_lab.cli.app import app

    return CliRunner().invoke(app, [*map(str, words)], prog_name="ksieve")


def invoke(*words):
    """`ksieve bench` with these words."""
    return run("bench", *words)


def payload(name, **asked):
    """Results of a bench whose options are as on the command line."""
    return catalog.find(name).run(**asked)


def factor_file(path, queries=5, keys=40, heads=2):
    from safetensors.numpy import save_file

    draw = np.random.default_rng(0)
    tensors = {
        "k": draw.integers(-127, 128, (keys, 16)).astype(np.int8),
        "k_scale": draw.random(keys, dtype=np.float32) / 127,
        "q": draw.standard_normal((queries, heads, 16)).astype(np.float16),
        "w": draw.random((queries, heads), dtype=np.float32),
    }
    save_file(tensors, path)
    return tensors
