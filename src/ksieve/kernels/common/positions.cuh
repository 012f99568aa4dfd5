// Rows whose scores have positions of their own, or lie in blocks that have numbers: a score without a position is no
// part of its row. Scans take it for one behind the row: minus infinity, and not valid. So they do with forced ones,
// which are those of the lowest and the highest positions, and the epilogue adds.
#pragma once
#include "common/ranking.cuh"
#include "common/storage.cuh"

struct PositionedRow {
  const int* positions; // of the matrix's row, or the numbers of its blocks
  int start;            // column of the row's first score
  int block;            // scores of a block; 0: each score has a position
  u32 limit;            // no position of the row reaches it
  int count;            // scores that have a position and are not forced
  int end;              // index behind the last of these
  int taken;            // slots that have been given to scores: where all of them, equal ones, or forced ones get some
  // Positions of selected forced scores are in [first, first_end) or [last, last_end), those of the others between.
  u32 first;
  u32 first_end;
  u32 last;
  u32 last_end;

  // Lies in the last row descriptor, which no row is described in.
  __device__ __forceinline__ static PositionedRow& of_row() {
    return *reinterpret_cast<PositionedRow*>(&shared_storage().descriptors[kDescriptors - 1]);
  }

  // Returns whether no score without a position lies in front of one that has any, as where a level before has written
  // its selection: scores behind the last one then are cut off (present_part). Forced scores leave gaps.
  __device__ __forceinline__ bool dense() const { return kForced == 0 && count == end; }

  // Returns the position of a score of the row; -1 if it has none.
  __device__ __forceinline__ int position_of(int index) const {
    const u32 column = static_cast<u32>(start + index);
    if (block == 0) {
      const int position = positions[column];
      return static_cast<u32>(position) < limit ? position : -1;
    }
    const u32 number = column / static_cast<u32>(block);
    const i64 position = static_cast<i64>(positions[number]) * block + (column - number * block);
    return static_cast<u64>(position) < limit ? static_cast<int>(position) : -1;
  }

  // The same, and -1 if the score is forced.
  __device__ __forceinline__ int at(int index) const {
    const int position = position_of(index);
    if constexpr (kForced == 0) return position;
    return between(position, first_end, last) ? position : -1;
  }

  // Returns whether the score of a position is forced, and has a slot.
  __device__ __forceinline__ bool forces(int position) const {
    return kForced > 0 && (between(position, first, first_end) || between(position, last, last_end));
  }

  __device__ __forceinline__ static bool between(int position, u32 begin, u32 end) {
    return position >= 0 && static_cast<u32>(position) >= begin && static_cast<u32>(position) < end;
  }
};
static_assert(sizeof(PositionedRow) <= sizeof(RowDescriptor), "it lies in the place of one");
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
