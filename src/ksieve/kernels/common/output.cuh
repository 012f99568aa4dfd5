// Output: the selection writes its result through these functions alone.
#pragma once
#include "common/load.cuh"
#include "common/storage.cuh"

// Returns the current row's own k, from shared memory, where it takes no register. Call behind the barrier that follows
// whole_row.
__device__ __forceinline__ int open_slots(const Params& p) { return kWindows ? shared_storage().row_slots : p.k; }

// Returns the index that is written for a position: with windows it counts from where the caller does, unless the
// epilogue writes the slots.
__device__ __forceinline__ int shown_position(int index) {
  return kWindows && !kEpilogue ? index + shared_storage().base : index;
}

// Writes an index to a slot of the current row, counted from the front. Slots are bounded here once more: scores that
// change under a running kernel may break the counts, never memory.
__device__ __forceinline__ void write_front(int slot, int index) {
  const SharedStorage& s = shared_storage();
  if (static_cast<u32>(slot) < static_cast<u32>(s.rule.k)) s.rule.row_out[slot] = shown_position(index);
}

// Writes the index of the t-th score equal to an exact cutoff: such ties fill the row from its end.
__device__ __forceinline__ void write_back(int t, int index) { write_front(shared_storage().rule.k - 1 - t, index); }

// Returns the slots of a row in the output.
__device__ __forceinline__ int columns_of(const Params& p) {
  const int entries = p.k + kForced;
  return kExpand ? entries * p.options.expand + (kTail ? p.options.expand - 1 : 0) : entries;
}

// Returns how many of a row's slots are written, or of `slots` of them, given that `used` of them are in use.
__device__ __forceinline__ int written_slots(const Params& p, int used, int slots) {
  return kCounts && p.options.flags & kUnfilled ? min(used, slots) : slots;
}

// Returns where the selection writes a row's positions. The epilogue reads them there and writes the slots in order:
// where these take more room, the positions lie in the last part of the row's output, so that none is overwritten
// before it is read. Behind them is room for forced scores that have positions of their own.
__device__ __forceinline__ int* row_output(const Params& p, int id) {
  const int staged = p.k + (kPositions ? kForced : 0);
  if constexpr (kExpand) {
    const int columns = columns_of(p);
    const i64 first = KSIEVE_ROW_AT(p, kIndices, id, p.out_pitch);
    int* out = p.options.flags & kWide ? reinterpret_cast<int*>(reinterpret_cast<i64*>(p.indices) + first) + columns
                                       : p.indices + first;
    return out + (columns - staged);
  }
  if (kEpilogue && p.options.flags & kWide)
    return reinterpret_cast<int*>(reinterpret_cast<i64*>(p.indices) + KSIEVE_ROW_AT(p, kIndices, id, p.out_pitch)) +
           staged;
  return p.indices + KSIEVE_ROW_AT(p, kIndices, id, p.out_pitch);
}

// Writes the first `count` of `taken` positions collected in shared memory to `out`, in order, 16 bytes at a time where
// `out` is aligned: if threads wrote their few positions themselves, each would cost a sector of memory. Each is
// written as shown(position). With kClear all `taken` are replaced by zero. Call by `writers` threads, numbered by
// `writer`.
struct alignas(16) Four {
  int position[4];
};
// Returns how many groups of four positions can be written 16 bytes at a time.
__device__ __forceinline__ int whole_fours(const int* out, int count) {
  return reinterpret_cast<u64>(out) % sizeof(Four) == 0 ? max(count, 0) / 4 : 0;
}
template <bool kClear, class Shown>
__device__ __forceinline__ void write_collected(int* out, int* from, int taken, int count, Shown shown,
                                                int writers = kThreads, int writer = static_cast<int>(threadIdx.x)) {
  const int fours = whole_fours(out, count);
#pragma unroll 1
  for (int i = writer; i < fours; i += writers) {
    Four& at = reinterpret_cast<Four*>(from)[i];
    Four four = at;
    if (kClear) at = {};
#pragma unroll
    for (int& position : four.position)
      position = shown(position);
    reinterpret_cast<Four*>(out)[i] = four;
  }
#pragma unroll 1
  for (int i = 4 * fours + writer; i < taken; i += writers) {
    if (i < count) out[i] = shown(from[i]);
    if (kClear) from[i] = 0;
  }
}

// Writes the answer of a row with at most k scores: every valid index, then -1, in all `slots` of the output.
__device__ __forceinline__ void write_short(int* out, int length, int slots, int base) {
  const int shown = kWindows && !kEpilogue ? base : 0;
  auto position = [&](int i) { return i < length ? i + shown : -1; };
  const int fours = whole_fours(out, slots);
#pragma unroll 1
  for (int i = threadIdx.x; i < fours; i += kThreads)
    reinterpret_cast<Four*>(out)[i] = {position(4 * i), position(4 * i + 1), position(4 * i + 2), position(4 * i + 3)};
#pragma unroll 1
  for (int i = 4 * fours + static_cast<int>(threadIdx.x); i < slots; i += kThreads)
    out[i] = position(i);
}

// Per-row statistics, in KSIEVE_STATS builds alone: thread 0 keeps them in shared memory and writes them once.
__device__ __forceinline__ void trace_set(int column, int value) {
  if (kStats && threadIdx.x == 0) shared_storage().trace[column] = value;
}

__device__ __forceinline__ void trace_scans(int times) {
  if (kStats && threadIdx.x == 0) shared_storage().trace[kColScans] += times;
}

__device__ __forceinline__ void trace_begin() {
  for (int i = 0; i < kStatsColumns; ++i) {
    bool absent = i == kColTau0 || i == kColTau0 + 1 || i == kColAdmitted0 || i == kColAdmitted0 + 1;
    trace_set(i, absent ? -1 : 0);
  }
}

__device__ __forceinline__ void trace_write(const Params& p, int row) {
  int* out = p.stats + static_cast<i64>(row) * kStatsColumns;
  if (kStats && threadIdx.x == 0) {
    for (int i = 0; i < kStatsColumns; ++i)
      out[i] = shared_storage().trace[i];
  }
}
