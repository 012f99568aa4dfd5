"""Score production and selection as one chain: the arithmetic, the flow and the judging, without a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
from conftest import ROOT

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import BackendError
from ksieve.planning.plan import Plan
from ksieve.tuning import tasks, timing
from ksieve.tuning.timing import Timing
from ksieve_lab.bench import catalog, chain, floor
from ksieve_lab.captures import factors
from ksieve_lab.chain import producers

torch = pytest.importorskip("torch")

SMALL = replace(
    catalog.find("chain"),
    fixed={"producer": "triton", "heads": 64, "dim": 32, "step_tokens": 700, "budget_bytes": 4 * 1000 * 90},
)


def statement(f, buffer, masked):
    """The formula, in float32 on the host."""
    dots = torch.einsum("thd,sd->ths", f.q.float(), f.keys.float()).relu_()
    buffer.copy_(torch.einsum("th,ths->ts", f.weights, dots) * f.key_scale)
    if masked:
        buffer.masked_fill_(torch.arange(buffer.shape[1]) >= f.lengths[:, None], -torch.inf)
    return buffer


def small_factors(queries=5, width=700, heads=4, dim=32, seed=3):
    keys = producers.make_keys(width, dim, seed=seed, device="cpu")
    lengths = np.array([width, 0, width - 9, 650, 12], np.int32)[:queries]
    return producers.make_queries(keys, lengths, heads, seed=seed, device="cpu")


def test_the_terminal_steps_are_the_papers():
    for prompt, rows, calls in ((245_000, 48_392, 8), (430_000, 36_784, 11)):
        step = chain.terminal_step(prompt)
        assert sum(c.rows for c in step) == rows
        assert len(step) == calls
        assert {c.width for c in step} == {prompt}
        assert int(step[-1].lengths()[-1]) == prompt
    assert chain.terminal_step(0) == []


def test_made_factors_are_fp8_and_their_scores_lean_to_both_ends():
    f = small_factors()
    assert (f.q.dtype, f.keys.dtype) == (torch.float8_e4m3fn, torch.float8_e4m3fn)
    assert f.keys.float().abs().amax() == 448
    assert f.operations == 2 * 4 * 32 * int(f.lengths.long().sum())
    scores, keys = statement(f, torch.empty(5, 700), False), f.keys.float().numpy()
    want = factors.evaluate(f.q.float().numpy(), f.weights.numpy(), 700, lambda a, b: keys[a:b], f.key_scale.numpy())
    np.testing.assert_allclose(scores.numpy(), want, rtol=1e-4, atol=1e-4)
    wide = small_factors(1, 20_000, producers.HEADS, producers.DIM)
    best = statement(wide, torch.empty(1, 20_000), False)[0].topk(160).indices / 20_000
    ends = float(((best < 0.1) | (best >= 0.9)).float().mean())
    assert 0.45 < ends < 0.85, f"{ends:.2f} of the top 0.8 % lie in the end deciles"


def test_a_missing_producer_is_named():
    if not producers.installed("deep_gemm"):
        with pytest.raises(BackendError, match="needs the package deep_gemm"):
            producers.load("deep_gemm")


def fake_measure(log, wrong=()):
    """Runs every contender once as the timing engine would, judges it, and makes up its clock readings."""

    def measure(contenders, sets, read_bytes, **settings):
        made = []
        for number, c in enumerate(contenders):
            c.run(0)
            t = Timing(c.name, [1000.0 + 100 * number] * 3)
            if c.check is not None:
                c.poison(0)
                if c.name not in wrong:
                    c.run(0)
                t.exact = c.check(0)
            log.append(c.name)
            made.append(t)
        return made

    return measure


@pytest.fixture
def on_the_host(monkeypatch):
    monkeypatch.setattr(chain, "DEVICE", "cpu")
    monkeypatch.setattr(tasks, "require_device", lambda: DeviceInfo("cpu"))
    monkeypatch.setattr(Plan, "workspace", lambda self: None)
    monkeypatch.setattr(floor, "available", lambda device: [])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 30))
    monkeypatch.setattr(producers, "load", lambda name: statement)
    # A PyTorch for CUDA brings Triton, and kernels that keep no matrix need a device.
    monkeypatch.setattr(producers, "installed", lambda name: False)


def run_small(peers="torch.topk"):
    return SMALL.run(shapes="1000:2", k=40, peers=peers)


def test_the_chain_runs_every_call_and_judges_every_answer(on_the_host, monkeypatch):
    log = []
    monkeypatch.setattr(timing, "measure", fake_measure(log))
    payload = run_small()
    (request,) = payload["results"]["requests"]
    assert request["calls"] == [[90, 1000]] * 3 + [[30, 1000]]
    assert log == ["scores", "masked scores", "ksieve", "torch.topk"]
    ours, torchs = request["selectors"]["ksieve"], request["selectors"]["torch.topk"]
    assert ours["exact"] is True
    assert torchs["exact"] is True
    # 1000 us of scores, 1200 us of our chain; torch's chain is set against masked scores.
    assert ours["select_ms"] == pytest.approx(0.2)
    assert ours["select_share"] == pytest.approx(0.2 / 1.2)
    assert torchs["select_ms"] == pytest.approx(0.2)
    assert payload["results"]["paper"]["430K"]["select_ms"]["HPC-Ops"] == 24.06


def test_a_chain_that_leaves_no_answer_is_not_exact(on_the_host, monkeypatch):
    monkeypatch.setattr(timing, "measure", fake_measure([], wrong=("ksieve",)))
    (request,) = run_small("none")["results"]["requests"]
    assert request["selectors"]["ksieve"]["exact"] is False


def test_what_does_not_fit_is_skipped_with_the_reason(on_the_host, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 1000))
    (request,) = run_small()["results"]["requests"]
    assert "GB are needed" in request["skipped"]


def test_the_command_prints_the_share_and_the_papers(on_the_host, monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from ksieve_lab.cli.app import app

    monkeypatch.setattr(timing, "measure", fake_measure([]))
    payload = run_small()
    payload["results"]["requests"][0]["request"] = "245K"
    monkeypatch.setattr(catalog, "BENCHES", [replace(SMALL, measure=lambda settings, live: payload)])
    words = ["bench", "chain", "--shapes", "1000:2"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "gpu-chain.json").exists()
    shown = done.output + done.stderr
    for text in ("16.7%", "HPC-Ops, paper on an H20 with DeepGEMM", "18.15"):
        assert text in shown, text
    payload["results"]["requests"][0]["selectors"]["ksieve"]["exact"] = False
    assert CliRunner().invoke(app, words).exit_code == 1


@pytest.mark.extended
def test_the_triton_kernel_computes_the_formula_in_its_interpreter():
    """Under Triton's interpreter: needs the package alone, and with NumPy 2.4 Triton 3.9."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    numpy, triton = (tuple(map(int, version(name).split(".")[:2])) for name in ("numpy", "triton"))
    if numpy >= (2, 4) and triton < (3, 9):
        pytest.skip("the interpreter of this Triton does not work with NumPy 2.4")
    checks = ("check_all", "check_candidates", "check_ways", "check_example")
    code = "import chain_checks\n" + "\n".join(f"chain_checks.{name}('cpu')" for name in checks)
    path = os.pathsep.join([str(ROOT / "tests" / "support"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
