"""Odd values for every scalar argument: taken as meant, or an error that names the argument."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest

import ksieve
import ksieve_lab
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError
from ksieve.core.policy import SamplingPolicy

torch = pytest.importorskip("torch")
from flat_calls import ask, plan_of, verified  # noqa: E402
from ksieve.core.options import Options  # noqa: E402
from odd import SCALARS, Unfriendly  # noqa: E402

ROWS, WIDTH, K = 4, 64, 8
SCORES = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
ANSWER = np.argsort(-SCORES, axis=1)[:, :K].astype(np.int32)
PAGES = np.arange(ROWS * WIDTH, dtype=np.int32).reshape(ROWS, WIDTH)

TOPK = {
    "k": {}, "plan": {}, "stats": {}, "index_base": {}, "next_n": {},
    "max_k": {"k": np.full(ROWS, 3, np.int32)}, "page_size": {"page_table": PAGES}, "values": {},
    "raw": {}, "index_dtype": {}, "sorted": {}, "tie_break": {}, "deterministic": {},
    "largest": {}, "nan": {}, "num_rows": {}, "block_size": {}, "force_first": {}, "force_last": {},
    "forced_extra": {"force_first": 1}, "expand": {},
}  # fmt: skip
PLAN = ("rows", "width", "k", "pitch", "dtype", "device", "family", "policy", "splits")
VERIFY = (
    "k", "index_base", "next_n", "num_rows", "largest", "nan", "sorted", "tie_break", "sentinel", "block_bytes",
    "progress", "block_size", "force_first", "force_last", "forced_extra", "expand",
)  # fmt: skip
TAKEN = {
    "topk": {("k", "zero"), ("max_k", "zero"), ("force_first", "zero"), ("force_last", "zero")}
    | set(product(["num_rows"], ["2**31", "2**62", "2**70", "5,000 digits", "-5,000 digits", "numpy uint64", "minus"]))
    | {("num_rows", "zero")},
    "Options": {(name, "zero") for name in ("force_first", "force_last", "max_length", "mean_length")},
    "SamplingPolicy": set(product(["policy.margin", "policy.rescue_margin", "policy.sigmas"], ["float", "numpy float"]))
    | {("policy.sigmas", "zero")},
    "plan": {("rows", "zero"), ("width", "zero"), ("pitch", "zero"), ("pitch", "2**31")},
    "verify": {
        ("force_first", "zero"),
        ("force_last", "zero"),
        ("sentinel", "minus"),
        ("sentinel", "2**31"),
        ("sentinel", "2**62"),
    }
    | set(product(["block_bytes"], ["2**31", "2**62", "2**70", "5,000 digits", "numpy uint64"]))
    | {("progress", "class"), ("progress", "function")}
    | set(product(["num_rows"], ["2**31", "2**62", "2**70", "5,000 digits", "-5,000 digits", "numpy uint64", "minus"]))
    | set(product(["num_rows"], ["zero", "scalar array", "scalar tensor"])),
    "record": set(
        product(
            ["every", "calls", "rows_per_call", "max_bytes"],
            ["2**31", "2**62", "2**70", "5,000 digits", "numpy uint64"],
        )
    )
    | {("metadata", "dict"), ("path", "str"), ("path", "escape")},
}
"""Values of `SCALARS` that are good ones, by function and argument."""


def faults(function, names, run):
    """What is wrong with how a function answers odd values, as (argument, value, what)."""
    found = []
    for name in names:
        for odd, value in SCALARS.items():
            if name == "progress" and callable(value):
                continue  # a function of the caller's, whose errors are its own
            try:
                run(name, value)
            except ArgumentError as error:
                # An array k is one k per row, which wants a max_k.
                right = error.argument == name or (name == "k" and error.argument == "max_k")
                if (name, odd) in TAKEN.get(function, ()) or not right or not str(error).isascii():
                    found.append((name, odd, str(error)))
            except Exception as error:
                found.append((name, odd, repr(error)))
            else:
                if (name, odd) not in TAKEN.get(function, ()):
                    found.append((name, odd, "taken"))
    return found


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_topk_names_odd_values(library):
    def run(name, value):
        given = {"scores": SCORES, "k": K} | TOPK[name] | {name: value}
        if library == "torch":
            arrays = {n: torch.from_numpy(x) for n, x in given.items() if n != name and isinstance(x, np.ndarray)}
            given |= arrays
        ask(**given)

    assert not faults("topk", TOPK, run)


@pytest.mark.parametrize("device", ["cpu", "h100"])
def test_plan_names_odd_values(device):
    def run(name, value):
        width = 64 if device == "cpu" else 65536
        plan_of(**({"rows": 4, "width": width, "k": 8, "device": DEVICES.get(device, device)} | {name: value}))

    assert not faults("plan", PLAN, run)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_verify_names_odd_values(library):
    scores = torch.from_numpy(SCORES) if library == "torch" else SCORES

    def run(name, value):
        # Fewer live rows refute the answer.
        assert verified(scores, None, ANSWER, **{name: value}) or name == "num_rows"

    assert not faults("verify", VERIFY, run)


def test_record_names_odd_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(name, value):
        with ksieve_lab.record(**({"path": tmp_path / "a.safetensors"} | {name: value})):
            ksieve.topk(SCORES, k=K)

    assert not faults("record", ["path", "every", "calls", "rows_per_call", "max_bytes", "metadata"], run)


def test_options_name_odd_values():
    assert not faults("Options", Options.__dataclass_fields__, lambda n, v: Options(**{n: v}))


def test_policies_name_odd_numbers():
    def run(name, value):
        SamplingPolicy(**{"name": "odd", "stride": 4, name.removeprefix("policy."): value})

    numbers = ("stride", "group", "margin", "rescue_margin", "sigmas", "min_rank")
    assert not faults("SamplingPolicy", [f"policy.{name}" for name in numbers], run)


@pytest.mark.parametrize("fields", [{"peaks": "yes"}, {"boundary": ["coarse"]}, {"name": ["x"]}, {"name": "\x1b[2J"}])
def test_policies_name_other_odd_fields(fields):
    with pytest.raises(ArgumentError, match=rf"^policy\.{next(iter(fields))}: "):
        SamplingPolicy(**{"name": "odd", "stride": 4, "group": 4, **fields})


def test_numbers_of_numpy_are_kept_as_python_numbers():
    policy = SamplingPolicy("n", np.int64(64), margin=np.float32(1.5))
    assert type(policy.stride) is int and type(policy.margin) is float


ODDEST = [Unfriendly(), 10**5000, [10**5000], "a\x1b[2J\nb", "é" * 500, [1] * 10**6]


@pytest.mark.parametrize("value", ODDEST, ids=range(len(ODDEST)))
def test_an_error_shows_any_value(value):
    with pytest.raises(ArgumentError) as error:
        ksieve.plan(SCORES, k=K, policy=value)
    text = str(error.value).removeprefix("policy: got ").partition("; takes")[0]
    assert text.isascii() and text.isprintable() and 0 < len(text) <= 80


def test_a_plan_is_bounded_by_what_kernels_count():
    for name in ("rows", "width"):
        with pytest.raises(ArgumentError, match=rf"^{name}: got 2147483648; takes at most 2147483647: .*int32"):
            plan_of(**({"rows": 1, "width": 1, "k": 1} | {name: 1 << 31}))
    with pytest.raises(ArgumentError, match=r"^pitch: got 1073741824; takes at most .* with 2147483647 rows.*int64"):
        ksieve.plan(rows=2**31 - 1, width=8, k=1, pitch=1 << 30)
    assert ksieve.plan(rows=2**31 - 1, width=1 << 20, k=1).problem.rows == 2**31 - 1


PROGRAM = """
import numpy as np, ksieve
from ksieve.dispatch import select
for backend in ("cpu", "cpu", "reference"):
    try:
        scores = np.arange(9000, dtype=np.float32).reshape(3, -1)
        found = select(scores, None, 3, given={"sorted": True}, backend=backend).indices
    except ksieve.BackendError as error:
        print("error", error)
    else:
        print(found[0].tolist())
"""
RIGHT = [2999, 2998, 2997]


@pytest.mark.parametrize(
    ("variable", "refused"),
    [
        ("NUMBA_DISABLE_JIT=1", True),
        ("NUMBA_NUM_THREADS=0", True),
        ("NUMBA_NUM_THREADS=junk", False),
        ("NUMBA_NUM_THREADS=99999", False),
        ("NUMBA_DISABLE_JIT=junk", False),
    ],
)
def test_variables_of_numba_give_an_answer_or_are_named(variable, refused):
    name, _, value = variable.partition("=")
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    found = subprocess.run(command, env=os.environ | {name: value}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    *compiled, reference = found.stdout.splitlines()
    assert reference == str(RIGHT)
    assert all(line.startswith("error") and name in line if refused else line == str(RIGHT) for line in compiled)
