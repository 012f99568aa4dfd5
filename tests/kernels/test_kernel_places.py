"""The kernels' 16-bit local indices, compiled for the host: what a hit stores leads back to its index, for every
thread, and so does the code that any other thread reads.

And every score of a batch is some thread's, wherever threads have moved on to.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import host_code
from ksieve.planning.memory import BATCH

HOST = """
#include <cstdio>
#include <initializer_list>
using u32 = unsigned int;
#define __device__
#define __forceinline__ inline
struct Storage { int origin; };
struct Thread { u32 x; };
static Storage storage;
static Thread threadIdx;
static Storage& shared_storage() { return storage; }
constexpr int kThreads = THREADS, kVector = VECTOR, kStep = kThreads * kVector, kBatch = BATCH;
constexpr bool kLocalIndex16 = true, kSmall = kThreads <= 256; // where threads move on
%(functions)s
int main() {
  constexpr int kTurns = 65536 / (kBatch * kVector);
  long long wrong = 0, seen = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    bool met[kThreads] = {};
    for (threadIdx.x = 0; threadIdx.x < static_cast<u32>(kThreads); ++threadIdx.x)
      met[moved_on(own_offset(), turn) / kVector] = true;
    for (bool one : met)
      wrong += !one;
  }
  for (storage.origin = 0; storage.origin < kVector; ++storage.origin) {
    for (threadIdx.x = 0; threadIdx.x < static_cast<u32>(kThreads); ++threadIdx.x) {
      for (int turn = 0; turn < kTurns; turn += turn < 3 || turn > kTurns - 4 ? 1 : 97) {
        int first = storage.origin + moved_on(own_offset(), turn) + turn * kBatch * kStep;
        %(before)s
        for (u32 bit = 0; bit < static_cast<u32>(kBatch * kVector); ++bit, ++seen) {
          u32 local = static_cast<unsigned short>(before + bit);
          wrong += index_of_local(local) != index_of_bit(bit, first);
          int code = code_of_local(local);
          Thread mine = threadIdx;
          threadIdx.x = bit; // another one reads it
          wrong += index_of_code(code) != index_of_bit(bit, first);
          threadIdx = mine;
        }
      }
    }
  }
  for (int index : {0, 1, 65535, 65536, 1 << 30, 0x7fffffff})
    wrong += index_of_code(code_of_index(index)) != index;
  std::printf("%%lld %%lld\\n", wrong, seen);
}
"""


def source() -> str:
    before = re.search(r"u32 before = .*?;", host_code.text("stream/filter.cuh"))
    assert before, "where a hit's local index is made"
    names = "moved_on own_offset index_of_bit index_of_local code_of_local code_of_index index_of_code"
    return HOST % {"functions": host_code.functions("common/storage.cuh", names), "before": before.group()}


@host_code.needs_compiler
@pytest.mark.parametrize("threads", [256, 512, 1024])
@pytest.mark.parametrize("vector", [4, 8])
def test_a_place_leads_back_to_its_index(threads, vector, tmp_path: Path):
    defines = (f"-D{name}={value}" for name, value in (("THREADS", threads), ("VECTOR", vector), ("BATCH", BATCH)))
    printed = host_code.run(tmp_path, source(), flags=defines)
    wrong, seen = map(int, printed.split())
    assert seen > threads * vector * 100
    assert wrong == 0
