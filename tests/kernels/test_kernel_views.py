"""The kernels' view arithmetic, compiled for the host: the positions and counts of `SamplingPolicy.view`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import host_code
import ksieve
from ksieve.backends.cuda.jit import spec
from ksieve.core import policy as policies
from ksieve.core.device import DEVICES
from ksieve.core.policy import LINES_64, PAPER_64, PAPER_128, PEAK, QUADS_16, SamplingPolicy

REGULAR = replace(LINES_64, name="regular-lines", jitter=False)
PAPER_JITTER = replace(PAPER_128, name="paper-jitter", jitter=True)
EVERY_SCORE = SamplingPolicy("every-score", 1, jitter=True)

HOST = """
#include <algorithm>
#include <cstdio>
#include <cstdlib>
using std::max;
using std::min;
using u32 = unsigned int;
using u64 = unsigned long long;
#define __device__
#define __forceinline__ inline
static u32 __umulhi(u32 a, u32 b) { return static_cast<u32>(static_cast<u64>(a) * b >> 32); }
constexpr int kPool = KSIEVE_POOLING ? 4 : 1, kStride = KSIEVE_STRIDE, kGroup = KSIEVE_GROUP;
constexpr int kPhaseMultiplier = KSIEVE_PHASE_MULTIPLIER;
constexpr bool kJitter = KSIEVE_JITTER != 0;
%(constants)s
%(functions)s
int main(int count, char** words) {
  for (int i = 1; i + 1 < count; i += 2) {
    int id = atoi(words[i]), length = atoi(words[i + 1]);
    std::printf("%%d", view_scores(id, length));
    for (int ordinal = 0; ordinal < view_statistics(id, length); ++ordinal)
      std::printf(" %%d", statistic_at(ordinal, id));
    std::printf("\\n");
  }
}
"""


def source() -> str:
    """The functions of sample.cuh and the constants of params.cuh as a program."""
    begin, end = (f"__device__ __forceinline__ {name}" for name in ("int view_offset", "bool loads_whole"))
    params = host_code.text("common/params.cuh")
    return HOST % {
        "constants": "\n".join(re.findall(r"^constexpr \w+ kJitter(?:Row|Shift).*$", params, flags=re.MULTILINE)),
        "functions": host_code.between("stream/sample.cuh", begin, end),
    }


def test_the_hash_has_the_policys_constants():
    params = host_code.text("common/params.cuh")
    found = {name.upper(): int(value, 0) for name, value in re.findall(r"kJitter(\w+) = (0x\w+|\d+)", params)}
    assert found == {name: getattr(policies, f"JITTER_{name}") for name in ("ROW", "PERIOD", "MIX", "SHIFT")}


@pytest.mark.parametrize("policy", [LINES_64, QUADS_16, PAPER_64, REGULAR, PAPER_JITTER], ids=lambda p: p.name)
def test_a_plan_says_whether_its_kernel_jitters(policy):
    plan = ksieve.plan(rows=64, width=131_072, k=512, device=DEVICES["h200"], policy=policy, family="stream")
    assert dict(spec.kernel_spec(plan).defines)["KSIEVE_JITTER"] == policy.jitter


@host_code.needs_compiler
@pytest.mark.parametrize(
    "policy", [LINES_64, QUADS_16, PAPER_64, REGULAR, PAPER_JITTER, EVERY_SCORE], ids=lambda p: p.name
)
def test_the_kernels_look_where_the_model_does(policy, tmp_path: Path):
    defines = {
        "STRIDE": policy.stride, "GROUP": policy.group, "POOLING": int(policy.peaks), "JITTER": int(policy.jitter),
        "PHASE_MULTIPLIER": policy.phase_multiplier,
    }  # fmt: skip
    flags = [f"-DKSIEVE_{name}={value}" for name, value in defines.items()]
    period = policy.stride * policy.group
    lengths = [0, 1, period - 1, period, *(5 * period + np.linspace(0, period, 9).astype(int)), 70_001]
    rows = [(row, int(length)) for row in (0, 1, 63, 4097, 10_000_019) for length in lengths]
    words = [str(number) for row in rows for number in row]
    printed = host_code.run(tmp_path, source(), *words, flags=flags).splitlines()
    share = PEAK if policy.peaks else 1
    for (row, length), line in zip(rows, printed, strict=True):
        count, *firsts = map(int, line.split())
        view = policy.view(row, length)
        assert count == view.size
        assert np.array_equal(firsts, view[::share])
