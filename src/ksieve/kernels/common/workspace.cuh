// Layout of the global workspace; planning/memory.py computes the same sizes. Kernels leave the queue, the RowStates
// and the mailboxes zero. Nothing else needs to be zero: lists, slices and the counts of length bins are written before
// they are read.
//   [0, 256)  Queue: rows claimed, CTAs that have left
//   then      stream/split.cu: a RowState for each row. From Params::lists on, for each row: its list of candidates, a
//             spill slice for each of its CTAs, and kSortSlots elements
//   or        resident/grid.cu: two GridMailboxes for each row that is worked on at a time (resident/grid_mailbox.cuh)
//   or        other kernels: a spill slice and kSortSlots elements for each CTA. With length bins the launches share
//             these; length_bin_counts and the lists of rows (length_bins.cuh) begin at Params::lists
//             With blocks, a slice for the entries of a row begins there for each CTA (stream/cta.cu)
#pragma once
#include "common/storage.cuh"

struct Queue {
  u32 next; // rows claimed from the queue so far
  u32 left; // CTAs that claim no more rows
};

struct RowState {
  u64 progress; // high word: parts published; low word: candidates of all parts
  int num_ties; // scores equal to an exact cutoff, which fill the output from its end
#if KSIEVE_FOLD
  u32 flags; // and what FoldState has of its parts
  u64 sum;
  u64 above;
#else
  u32 padding[5];
#endif
};
constexpr int kHeaderBytes = 256;

__device__ __forceinline__ Queue* queue_of(const Params& p) { return reinterpret_cast<Queue*>(p.workspace); }

__device__ __forceinline__ int claim_row(const Params& p) { return atomicAdd(&queue_of(p)->next, 1u); }

// Counts a CTA that claims no more rows; the last one resets the queue. Call by one thread. atomicInc wraps to zero at
// the last CTA.
__device__ __forceinline__ void leave_queue(const Params& p) {
  if (atomicInc(&queue_of(p)->left, gridDim.x - 1) == gridDim.x - 1) queue_of(p)->next = 0;
}

__device__ __forceinline__ RowState* row_state(const Params& p, int row) {
  return reinterpret_cast<RowState*>(p.workspace + kHeaderBytes) + row;
}

// Adds candidates of a part to the row's; returns how many came before.
__device__ __forceinline__ int state_count(RowState* state, int candidates) {
  return static_cast<int>(atomicAdd(&state->progress, static_cast<u64>(candidates)));
}

// Counts a part as published; returns the progress before. Its low word is final when no other part is missing.
// Releases what this CTA wrote before its last barrier, and acquires what the parts counted before released.
__device__ __forceinline__ u64 state_arrive(RowState* state) { return add_acq_rel(&state->progress, 1ull << 32); }

__device__ __forceinline__ u64* row_list(const Params& p, int row) {
  i64 candidates = kListed + static_cast<i64>(p.splits) * kSpillCapacity + kSortSlots;
  return reinterpret_cast<u64*>(p.workspace + p.lists) + row * candidates;
}

__device__ __forceinline__ u64* part_spill(const Params& p, int row, int part) {
  return row_list(p, row) + kListed + static_cast<i64>(part) * kSpillCapacity;
}

// Returns the spill slice of a CTA in kernels other than stream/split.cu; null if there is none. kSortSlots elements to
// sort slots in follow it.
__device__ __forceinline__ u64* spill_slice(const Params& p, int worker) {
  constexpr i64 kSlice = static_cast<i64>(kSpillCapacity) + kSortSlots;
  if (kSlice == 0) return nullptr;
  return reinterpret_cast<u64*>(p.workspace + kHeaderBytes) + worker * kSlice;
}

__device__ __forceinline__ u64* sort_slice(const Params& p, int worker) {
  return kSortSlots ? spill_slice(p, worker) + kSpillCapacity : nullptr;
}

// Returns where this CTA pools its rows of blocks; planning/memory.py computes the same size.
__device__ __forceinline__ float* block_slice(const Params& p) {
  constexpr i64 kAligned = 256;
  const i64 bytes = ((p.width / kBlockSize + 1) * static_cast<i64>(sizeof(float)) + kAligned - 1) / kAligned * kAligned;
  return reinterpret_cast<float*>(p.workspace + p.lists + blockIdx.x * bytes);
}

// Returns a row with the address of its scores, where the slice has those of a row of blocks.
template <class AnyRow> __device__ __forceinline__ AnyRow in_memory(const Params& p, AnyRow row) {
  if constexpr (kBlockRows && kMaxResident == 0) row.scores = block_slice(p);
  return row;
}

__device__ __forceinline__ u64* row_sort_slice(const Params& p, int row) { return part_spill(p, row, p.splits); }
