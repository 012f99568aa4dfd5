"""`ksieve build --for` and `warm_up`: no kernel that an engine's call needs is missing."""

from __future__ import annotations

import itertools
import math
import random
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from cuda_fakes import fake_backend  # noqa: E402
from ksieve import dispatch  # noqa: E402
from ksieve.adapters import _forms, _select, flashinfer, sglang, tensorrt_llm, vllm  # noqa: E402
from ksieve.backends.cuda.jit import bundle, cache  # noqa: E402
from ksieve.backends.cuda.jit.compile import Cubin, shipped_sources  # noqa: E402
from ksieve.backends.cuda.jit.spec import kernel_spec  # noqa: E402
from ksieve.core.device import DEVICES  # noqa: E402
from ksieve.core.errors import ArgumentError, BackendError  # noqa: E402
from ksieve.core.options import Options  # noqa: E402
from ksieve.core.problem import Device, Problem  # noqa: E402
from ksieve.planning import length_bins  # noqa: E402

ADAPTERS = {"vllm": vllm, "sglang": sglang, "flashinfer": flashinfer, "tensorrt_llm": tensorrt_llm}


@pytest.mark.parametrize("engine", ADAPTERS)
def test_every_function_has_forms_that_are_calls(engine):
    adapter = ADAPTERS[engine]
    selecting = set(adapter.__all__) - {"install", "uninstall", "warm_up", "plan_topk_v2"}
    functions = _forms.functions(engine)
    # FlashInfer has one function under two names.
    assert {each.__name__ for each in functions} == selecting - ({"topk"} if engine == "flashinfer" else set())
    for function in functions:
        scores, arguments = next(_forms.forms(function))
        assert _forms.seen(function, scores, **arguments).k
    assert _select.observer is None


def test_the_options_are_those_that_the_adapters_pass():
    assert set(_forms.options_of("vllm")) == {
        Options(windows="ends", index_base="start", nan="highest"),
        Options(nan="highest"),
        Options(nan="highest", next_n=2),
        Options(),
    }
    assert set(_forms.options_of("sglang")) <= set(_forms.options_of("all"))
    assert Options(transform="pages", mapped=True, windows="lengths", index_base="start") in _forms.options_of("sglang")


def test_another_thread_s_selection_is_not_stopped(monkeypatch):
    """Only this thread's call is stopped, and an observer that was there stays."""
    seen, out = [], torch.full((2, 3), -7, dtype=torch.int32)
    before = lambda *call: seen.append(call)  # noqa: E731
    monkeypatch.setattr(_select, "observer", before)

    def other():
        vllm.top_k_per_row_decode(torch.rand(2, 9), 1, torch.full((2,), 9, dtype=torch.int32), out, 2, 9, 1, 3)

    def call(scores):  # as an adapter's function
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        _select.select({}, scores, None, 2, sorted=True)

    assert _forms.seen(call, torch.zeros(2, 4)).options == Options(order="value")
    assert (out >= 0).all()
    assert len(seen) == 1
    assert _select.observer is before


def specs_of(device, rows, width, k, dtype, options):
    """Kernels of a call without a plan, as `ksieve.topk` comes to its plan."""
    asked = Problem(rows, width, width, k, dtype, Device("cuda", 0), options)
    return {kernel_spec(part) for part in length_bins.launches(dispatch._choose(asked, device, None))}


def shapes(max_rows, max_width, count):
    """A dense grid: small numbers, those beside powers of two, the largest, and many between; all bounds of widths."""
    near = [[*range(1, 9), *(2**n + d for n in range(3, 21) for d in (-1, 0, 1))] for _ in range(2)]
    whole = SimpleNamespace(shape=(1, max_width), is_cuda=False)
    bounds = {_select.columns_of(whole, 2**n * eighths // 8) for n in range(10, 21) for eighths in range(8, 16)}
    some_rows = [n for n in (1, 16, 132, 1000) if n <= max_rows]
    yield from itertools.product(some_rows, filter(None, sorted(bounds)))
    rows, widths = (
        [n for n in numbers if n < most] + [most] for numbers, most in zip(near, (max_rows, max_width), strict=True)
    )
    some = random.Random(7)
    pairs = list(itertools.product(rows, widths))
    yield from some.sample(pairs, min(count, len(pairs)))
    for _ in range(count):
        yield tuple(min(int(math.exp(some.uniform(0, math.log(most + 1)))), most) for most in (max_rows, max_width))


CASES = [
    ("all", "a100", 2048, "float32", 4096, 131_072, 150),
    ("all", "h200", 512, "bfloat16", 100, 5000, 15),
    ("sglang", "h100", 1024, "float32", 700, 20_000, 30),
    pytest.param("vllm", "h200", 2048, "float32", 4096, 131_072, 800, marks=pytest.mark.extended),
]


@pytest.mark.parametrize(("engine", "card", "k", "dtype", "max_rows", "max_width", "count"), CASES)
def test_no_kernel_is_missing(engine, card, k, dtype, max_rows, max_width, count):
    device = DEVICES[card]
    steps = []
    wanted = _forms.needed(
        engine, device, ks=[k], max_rows=max_rows, max_width=max_width, dtypes=[dtype],
        progress=lambda done, total: steps.append((done, total)),
    )  # fmt: skip
    assert steps[-1][0] == steps[-1][1] == len(steps) - 1
    for options in _forms.options_of(engine):
        numbers = [options]
        if options.next_n > 1:
            numbers.append(replace(options, next_n=4))
        if options.transform == "pages":
            numbers.append(replace(options, page_size=64))
        for asked in numbers:
            for rows, width in shapes(max_rows // 4 * 4, max_width, count // len(numbers)):
                needs = specs_of(device, rows, width, k, dtype, asked)
                assert needs <= wanted.keys(), (rows, width, asked)
    for spec, part in wanted.items():
        assert kernel_spec(part) == spec


@pytest.fixture
def driver(monkeypatch):
    yield from fake_backend(monkeypatch)


def test_warm_up_compiles_and_loads_every_kernel_once(driver, monkeypatch, tmp_path):
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path))
    compiled = []

    def compile_all(specs):
        compiled.extend(specs)
        return [(spec, (Cubin(b"code", ""), True)) for spec in specs]

    monkeypatch.setattr(cache, "compile_all", compile_all)
    count = vllm.warm_up(k=(64, 128), max_rows=66, max_width=9000)
    assert count == len(compiled) == len(set(compiled)) == len(driver.loads) > 8
    assert vllm.warm_up(k=(64, 128), max_rows=66, max_width=9000) == count == len(driver.loads)
    for rows, width, k, next_n in ((1, 100, 64, 1), (66, 9000, 128, 2), (40, 5000, 64, 1)):
        asked = Problem(rows, width, width, k, "float32", Device("cuda", 0), Options(nan="highest", next_n=next_n))
        dispatch.choose(asked).prepare()
    assert len(driver.loads) == count, "a call loads a kernel after warm_up"


def test_warm_up_reports_a_kernel_that_cannot_be_compiled(driver, monkeypatch, tmp_path):
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "compile_all", lambda specs: [(next(iter(specs)), BackendError("NVRTC is missing"))])
    with pytest.raises(BackendError, match="NVRTC is missing"):
        sglang.warm_up(64, max_rows=2, max_width=100)


def test_a_cache_that_cannot_be_written_costs_no_processes(driver, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    monkeypatch.setattr(cache, "compile_all", lambda specs: 1 / 0)
    assert vllm.warm_up(64, max_rows=2, max_width=100) == len(driver.loads)


def test_numbers_out_of_range(driver):
    with pytest.raises(ArgumentError, match=r"^k: got 0"):
        vllm.warm_up(0, max_rows=2, max_width=100)
    with pytest.raises(ArgumentError, match=r"^max_rows: got 0"):
        vllm.warm_up(4, max_rows=0, max_width=100)


def test_warm_up_compiles_nothing_that_a_bundle_has(driver, monkeypatch, tmp_path):
    wanted = _forms.needed("vllm", driver.device_info(0), ks=(64,), max_rows=2, max_width=100, dtypes=["float32"])
    path = tmp_path / "kernels.zip"
    bundle.write(path, {spec: Cubin(b"code", "") for spec in wanted}, shipped_sources(), "a test")
    monkeypatch.setenv("KSIEVE_BUNDLE", str(path))
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path))
    asked = []
    monkeypatch.setattr(cache, "compile_all", lambda specs: asked.extend(specs) or [])
    assert vllm.warm_up(64, max_rows=2, max_width=100) == len(wanted) == len(driver.loads) and not asked
