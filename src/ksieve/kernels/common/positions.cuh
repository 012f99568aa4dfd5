// Rows whose scores have positions of their own, or lie in blocks that have numbers: a score without a position is no
// part of its row. Scans take it for one behind the row: minus infinity, and not valid.
#pragma once
#include "common/ranking.cuh"
#include "common/storage.cuh"

struct PositionedRow {
  const int* positions; // of the matrix's row, or the numbers of its blocks
  int start;            // column of the row's first score
  int block;            // scores of a block; 0: each score has a position
  u32 limit;            // no position of the row reaches it
  int count;            // scores that have a position
  int taken;            // slots that have been given to such scores, where all of them, or equal ones, are selected

  // Lies where resident rows would have their samples: all rows take the exact route.
  __device__ __forceinline__ static PositionedRow& of_row() {
    return *reinterpret_cast<PositionedRow*>(shared_storage().samples);
  }

  // Returns the position of a score of the row; -1 if it has none.
  __device__ __forceinline__ int at(int index) const {
    const u32 column = static_cast<u32>(start + index);
    if (block == 0) {
      const int position = positions[column];
      return static_cast<u32>(position) < limit ? position : -1;
    }
    const u32 number = column / static_cast<u32>(block);
    const i64 position = static_cast<i64>(positions[number]) * block + (column - number * block);
    return static_cast<u64>(position) < limit ? static_cast<int>(position) : -1;
  }
};
static_assert(!kPositions || sizeof(PositionedRow) <= sizeof(SharedStorage::samples), "without samples there is room");
static_assert(!kPositions || (!kSampled && kEpilogue), "the planner takes families that do not sample");

// How many scores the body has from a batch's first on; with positions, also which scores of the batch have one.
struct PositionedLeft {
  int left;
  u32 present;
};
using Left = Choose<kPositions, PositionedLeft, int>::Type;
template <class Some> __device__ __forceinline__ Some left_of(int left, u32 present) {
  if constexpr (kPositions) {
    return Some{left, present};
  } else {
    return left;
  }
}
