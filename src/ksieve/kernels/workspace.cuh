// Layout of the global workspace; planner.py computes the same sizes. Kernels leave everything they count with zero.
//   [0, 256)   queue: next row, CTAs that have left
//   then       split family: one RowState per row, all of it zero before the first launch
//   or         persistent families: one slice of spilled candidates per CTA
#pragma once
#include "storage.cuh"

struct Queue {
  u32 next;
  u32 left;
};

struct RowState {
  u32 histogram[kBins];
  int count;     // candidates of all segments
  int ties;      // scores equal to an exact boundary
  u32 arrived;   // segments that have published
  u32 least_not; // ~least key among all candidates: zero when none, and so restored by clearing
  u32 greatest;  // greatest key among all candidates
  u32 padding[3];
  u64 candidates[kCapacity]; // key << 32 | index; needs no zero
};
constexpr int kHeaderBytes = 256;

__device__ __forceinline__ Queue* queue_of(const Params& p) { return reinterpret_cast<Queue*>(p.workspace); }

__device__ __forceinline__ int claim_row(const Params& p) { return atomicAdd(&queue_of(p)->next, 1u); }

// atomicInc wraps to zero at the last CTA, which alone then resets the queue: nobody claims any more.
__device__ __forceinline__ void leave_queue(const Params& p) {
  if (atomicInc(&queue_of(p)->left, gridDim.x - 1) == gridDim.x - 1) queue_of(p)->next = 0;
}

__device__ __forceinline__ RowState* row_state(const Params& p, int row) {
  return reinterpret_cast<RowState*>(p.workspace + kHeaderBytes) + row;
}

// Spill slice of a worker; null when nothing spills. Split and cluster plans have no spill.
__device__ __forceinline__ u64* spill_slice(const Params& p, int worker) {
  if (kSharedCapacity == kCapacity) return nullptr;
  return reinterpret_cast<u64*>(p.workspace + kHeaderBytes) + static_cast<i64>(worker) * (kCapacity - kSharedCapacity);
}
