"""Slices of the workspace (common/workspace.cuh), compiled for the host: of plans with billions of candidates, each
begins where the one before ends, and the last ends with the workspace.
"""

from __future__ import annotations

from pathlib import Path

import host_code
from flat_calls import plan_of
from ksieve.core.device import DEVICES
from ksieve.core.options import Options
from ksieve.core.problem import Device, Problem
from ksieve.planning import choose as planner
from ksieve.planning.memory import CANDIDATE_BYTES, HEADER_BYTES, sort_slots

H200 = DEVICES["h200"]
HOST = """
#include <cstdio>
using i64 = long long;
using u64 = unsigned long long;
#define __device__
#define __forceinline__ inline
struct Params { unsigned char* workspace; i64 lists; int splits; };
constexpr int kListed = %(listed)d, kSpillCapacity = %(spill)d, kSortSlots = %(sort)d, kHeaderBytes = %(header)d;
%(functions)s
int main() {
  static unsigned char first;
  Params p = {&first, %(lists)d, %(splits)d};
  auto print = [&](const void* slice) { std::printf("%%lld ", static_cast<const unsigned char*>(slice) - &first); };
  %(printed)s
}
"""


def offsets(plan, folder: Path, printed: str) -> list[int]:
    """Bytes of the workspace in front of each slice that a statement prints."""
    names = "row_list part_spill spill_slice sort_slice row_sort_slice"
    source = HOST % {
        "listed": plan.capacity, "spill": plan.spill_capacity, "sort": sort_slots(plan), "header": HEADER_BYTES,
        "lists": plan.lists_at, "splits": plan.splits, "printed": printed,
        "functions": host_code.functions("common/workspace.cuh", names),
    }  # fmt: skip
    # Sums of ints wrap, as on a GPU: otherwise the compiler may compute them in 64 bits.
    return [int(n) for n in host_code.run(folder, source, flags=["-fwrapv"]).split()]


pytestmark = host_code.needs_compiler


def test_segments_of_a_row_that_spill_more_candidates_than_an_int_counts(tmp_path: Path):
    asked = {"rows": 3, "width": 1 << 28, "k": 2048, "device": H200, "options": Options(order="value")}
    plan = plan_of(**asked, family="stream_split", policy="quads-16", splits=256)
    assert plan.splits * plan.spill_capacity >= 1 << 32 and plan.workspace_bytes > 3 << 35
    found = offsets(
        plan,
        tmp_path,
        "for (int row = 0; row < 3; ++row) {"
        "  print(row_list(p, row));"
        "  for (int part = 0; part < p.splits; ++part) print(part_spill(p, row, part));"
        "  print(row_sort_slice(p, row)); }",
    )
    sizes = [plan.capacity, *[plan.spill_capacity] * plan.splits, sort_slots(plan)] * 3
    assert found[0] == plan.lists_at
    ends = [begin + CANDIDATE_BYTES * size for begin, size in zip(found, sizes, strict=True)]
    assert ends == [*found[1:], plan.workspace_bytes]


def test_slices_of_ctas_that_spill_more_candidates_than_an_int_counts(tmp_path: Path):
    """A problem may have more slots than `ksieve.plan` takes."""
    k, width = 1 << 25, 1 << 27
    problem = Problem(500, width, width, k, "float32", Device("cuda", 0), Options(order="value"))
    plan = planner.choose(problem, H200, family="stream_unsampled")
    assert plan.ctas * (plan.spill_capacity + sort_slots(plan)) >= 1 << 33
    found = offsets(
        plan,
        tmp_path,
        f"for (int cta = 0; cta < {plan.ctas}; ++cta) {{ print(spill_slice(p, cta)); print(sort_slice(p, cta)); }}",
    )
    sizes = [plan.spill_capacity, sort_slots(plan)] * plan.ctas
    assert found[0] == HEADER_BYTES
    ends = [begin + CANDIDATE_BYTES * size for begin, size in zip(found, sizes, strict=True)]
    assert ends == [*found[1:], plan.workspace_bytes]
