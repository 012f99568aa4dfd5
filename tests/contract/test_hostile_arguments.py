"""Odd policies and arguments in the wrong place are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
from ksieve.core.errors import ArgumentError
from ksieve.core.policy import SamplingPolicy

HOSTILE = [
    {"min_rank": 2**62},
    {"min_rank": 2.5},
    {"min_rank": True},
    {"margin": 1e18},
    {"margin": float("inf")},
    {"margin": "1"},
    {"rescue_margin": 1e18},
    {"rescue_margin": float("nan")},
    {"sigmas": 5e9},
    {"sigmas": float("inf")},
    {"stride": 2**62, "group": 4},
    {"stride": True},
    {"group": 2**40},
    {"stride": 10**5000},
    {"peaks": "yes", "group": 4},
    {"boundary": ["coarse"]},
    {"name": ["x"]},
    {"name": "\x1b[2J"},
]


@pytest.mark.parametrize("fields", HOSTILE, ids=[f"{number}-{next(iter(f))}" for number, f in enumerate(HOSTILE)])
def test_numbers_of_a_policy_are_bounded_where_they_are_read(fields):
    with pytest.raises(ArgumentError, match=r"^policy\."):
        SamplingPolicy(**{"name": "h", "stride": 1, **fields})


def test_numbers_of_numpy_are_kept_as_python_numbers():
    policy = SamplingPolicy("n", np.int64(64), margin=np.float32(1.5))
    assert type(policy.stride) is int and type(policy.margin) is float


def test_a_k_in_the_place_of_lengths_is_told_where_it_goes():
    with pytest.raises(ArgumentError, match=r"^lengths: got int; takes .*did you mean k=16\?"):
        ksieve.topk(np.zeros((2, 64), np.float32), 16)


def test_jax_never_narrows_int64(monkeypatch):
    import sys
    import types

    class JaxArray(np.ndarray):
        __module__ = "jaxlib"

    jax = types.SimpleNamespace(config=types.SimpleNamespace(jax_enable_x64=False))
    monkeypatch.setitem(sys.modules, "jax", jax)
    with pytest.raises(ArgumentError, match=r"^index_dtype: .*jax_enable_x64"):
        ksieve.topk(np.zeros((2, 64), np.float32).view(JaxArray), k=4, index_dtype="int64")
