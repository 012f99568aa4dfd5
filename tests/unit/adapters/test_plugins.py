"""The switch from outside: entry points under the loaders of (fake) engines, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

pytest.importorskip("torch")

from conftest import ROOT

ENGINES = ROOT / "tests" / "support" / "fake_engines"
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]

CALL = """
import torch
from vllm import _custom_ops as ops
scores, lengths = torch.randn(3, 50), torch.full((3,), 50, dtype=torch.int32)
out = torch.zeros(3, 8, dtype=torch.int32)
def decode():
    ops.top_k_per_row_decode(scores, 1, lengths, out, 3, 50, 1, 8)
"""


@pytest.fixture
def run(tmp_path):
    """Run Python code where the engines and an installed ksieve can be found; returns what it printed."""
    info = tmp_path / "ksieve-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ksieve\nVersion: 0\n", encoding="utf-8")
    groups = (f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in names.items()) for group, names in GROUPS.items())
    (info / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    paths = (str(tmp_path), str(ENGINES), str(ROOT / "src"))

    def run(code, path=paths, **variables):
        switches = ("KSIEVE_VLLM", "KSIEVE_SGLANG", "KSIEVE_VERIFY")
        environment = {k: v for k, v in os.environ.items() if k not in switches}
        script = tmp_path / "script.py"
        script.write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, check=False,
            env=environment | {"PYTHONPATH": os.pathsep.join(path)} | variables,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return run


def test_without_the_variable_nothing_is_done(run):
    code = """
import sys
from vllm.plugins import load_general_plugins
from sglang.srt.plugins import load_plugins
load_general_plugins(), load_plugins()
heavy = ("torch", "numba", "ksieve.adapters.vllm", "ksieve.adapters.plugins")
print(sorted(name for name in heavy if name in sys.modules))
print(len([finder for finder in sys.meta_path if "ksieve.adapters" in type(finder).__module__]))
"""
    assert run(code, KSIEVE_VLLM="0") == ("['ksieve.adapters.plugins']\n0\n", "")


def test_vllm_s_loader_switches_it_on_in_every_process(run):
    code = """
from vllm.plugins import load_general_plugins
load_general_plugins()
WORK
load_general_plugins()
decode()
import selection
print(selection.CALLS)
""".replace("WORK", CALL)
    out, err = run(code, KSIEVE_VLLM="1")
    assert out == "[]\n"
    first, then, last = err.splitlines()
    assert first.startswith("ksieve 0.") and first.count(" replaces in vllm: nothing yet; when they are imported") == 1
    names = ("top_k_per_row_prefill", "top_k_per_row_decode", "persistent_topk")
    assert then == "ksieve replaces in vllm: " + ", ".join(f"torch.ops._C.{name}" for name in names)
    assert last.startswith("ksieve served 1 calls (torch.ops._C.top_k_per_row_decode cpu/direct float32 1); 0 kernels")
    out, err = run(code, KSIEVE_VLLM="1", KSIEVE_VERIFY="1")
    assert out == "['decode']\n"
    assert "1 calls, 3 rows verified: 3 equal, 0 tied" in err


def test_sglang_s_loader(run):
    code = """
import logging
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
import sgl_kernel, torch
from sglang.srt.plugins import load_plugins
load_plugins()
sgl_kernel.fast_topk_v2(torch.randn(3, 50), torch.full((3,), 50, dtype=torch.int32), 8)
import selection
print(selection.CALLS)
"""
    assert run(code)[0] == "['fast_topk_v2']\n"
    out, err = run(code, KSIEVE_SGLANG="1")
    assert out == "[]\n"
    lines = [line for line in err.splitlines() if "ksieve" in line]
    assert len(lines) == 2 and all(line.startswith("INFO ksieve ") for line in lines)


def test_an_operator_that_is_not_known_runs_without_ksieve(run):
    code = f"""
{CALL}
from vllm.plugins import load_general_plugins
load_general_plugins()
decode()
import selection
print(selection.CALLS)
"""
    out, err = run(code, KSIEVE_VLLM="1", FAKE_VLLM="newer")
    assert out == "['decode']\n"
    first, then = err.splitlines()
    assert " replaces in vllm: torch.ops._C.top_k_per_row_prefill, torch.ops._C.persistent_topk" in first
    assert then.startswith("ksieve leaves operators of vllm alone, whose signatures it does not know: torch.ops._C.top")
    out, err = run(code, KSIEVE_VLLM="1", KSIEVE_VERIFY="often")
    assert (out, err) == (
        "['decode']\n",
        "KSIEVE_VLLM is set, and ksieve is off: KSIEVE_VERIFY: got 'often'; takes a share of calls, from 0 to 1\n",
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_process_reports_when_it_ends(run, method):
    code = f"""
import multiprocessing
from vllm.plugins import load_general_plugins
def work(times):
    load_general_plugins()
    import call
    for _ in range(times):
        call.decode()
if __name__ == "__main__":
    work(2)
    process = multiprocessing.get_context("{method}").Process(target=work, args=(3,))
    process.start()
    process.join()
"""
    prepared = "import pathlib\npathlib.Path(__file__).with_name('call.py').write_text('''" + CALL + "''')\n"
    _, err = run(prepared + code, KSIEVE_VLLM="1")
    served = [line for line in err.splitlines() if line.startswith("ksieve served")]
    assert [line.split()[2] for line in served] == ["3", "2"]


def test_under_torch_compile(run):
    code = f"""
{CALL}
from ksieve.adapters import vllm
vllm.install(verify=1)
def step(scores, lengths, out):
    ops.top_k_per_row_decode(scores * 1.0, 1, lengths, out, 3, 50, 1, 8)
    return out + 0
found = torch.compile(step, backend="aot_eager", fullgraph=True)(scores, lengths, out)
import ksieve, selection
print(bool(ksieve.verify(scores, lengths, found)), selection.CALLS)
"""
    assert run(code)[0] == "True []\n"
