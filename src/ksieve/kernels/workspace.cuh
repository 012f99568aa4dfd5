// Layout of the global workspace; planner_cuda.py computes the same sizes. Kernels leave everything they count with
// zero.
//   [0, 256)   queue: next row, CTAs that have left
//   then       split family: per row a RowState, all of it zero before the first launch, its list of candidates, a
//              spill slice for each of its CTAs, and kSortSlots
//   or         other families: a spill slice and kSortSlots for each CTA
#pragma once
#include "storage.cuh"

struct Queue {
  u32 next;
  u32 left;
};

struct RowState {
  u32 histogram[kBins];
  int count;     // candidates of all segments
  int ties;      // scores equal to an exact boundary, set apart
  u32 arrived;   // segments that have published
  u32 least_not; // ~least key among candidates that are not in the list: zero when none, so restored by clearing
  u32 greatest;  // greatest key among them
  u32 padding[3];
};
constexpr int kHeaderBytes = 256;

__device__ __forceinline__ Queue* queue_of(const Params& p) { return reinterpret_cast<Queue*>(p.workspace); }

__device__ __forceinline__ int claim_row(const Params& p) { return atomicAdd(&queue_of(p)->next, 1u); }

// atomicInc wraps to zero at the last CTA, which alone then resets the queue: nobody claims any more.
__device__ __forceinline__ void leave_queue(const Params& p) {
  if (atomicInc(&queue_of(p)->left, gridDim.x - 1) == gridDim.x - 1) queue_of(p)->next = 0;
}

__device__ __forceinline__ RowState* row_state(const Params& p, int row) {
  i64 bytes = sizeof(RowState) + (kCapacity + static_cast<i64>(p.splits) * kSpillCapacity + kSortSlots) * sizeof(u64);
  return reinterpret_cast<RowState*>(p.workspace + kHeaderBytes + row * bytes);
}

__device__ __forceinline__ u64* row_list(RowState* state) { return reinterpret_cast<u64*>(state + 1); }

__device__ __forceinline__ u64* segment_spill(RowState* state, int part) {
  return row_list(state) + kCapacity + part * kSpillCapacity;
}

// Spill slice of a worker of the other families; null when nothing spills. Slots are sorted behind it.
__device__ __forceinline__ u64* spill_slice(const Params& p, int worker) {
  constexpr int kSlice = kSpillCapacity + kSortSlots;
  if (kSlice == 0) return nullptr;
  return reinterpret_cast<u64*>(p.workspace + kHeaderBytes) + static_cast<i64>(worker) * kSlice;
}

__device__ __forceinline__ u64* sort_slice(const Params& p, int worker) {
  return kSortSlots ? spill_slice(p, worker) + kSpillCapacity : nullptr;
}

__device__ __forceinline__ u64* row_sort_slice(const Params& p, RowState* state) {
  return segment_spill(state, p.splits);
}
