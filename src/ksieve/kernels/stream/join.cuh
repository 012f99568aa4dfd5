// Joins the candidates of a row's parts (stream/split.cu).
#pragma once
#include "common/workspace.cuh"
#include "stream/select.cuh"

// Copies the stored candidates of this part to the row's list. Call by all threads.
__device__ __forceinline__ void publish(RowState* state, u64* list) {
  SharedStorage& s = shared_storage();
  int own = own_count();
  int thread_count = own_height();
  int before = lanes_before(own);
  int slot = 0;
  if ((threadIdx.x & 31) == 31 && before + own) slot = state_count(state, before + own);
  slot = __shfl_sync(kFullWarp, slot, 31) + before;
#pragma unroll 4
  for (int i = 0; i < own; ++i)
    if (static_cast<u32>(slot + i) < static_cast<u32>(kListed)) list[slot + i] = own_entry(i, thread_count);
  // Candidates that found no slot here are only counted: the row then outgrows its list as well.
  if (threadIdx.x == 0 && s.listed > kListed) state_count(state, s.listed - kListed);
}

// Returns whether this CTA is the last of its row to publish; then everything published is visible to all its threads,
// and `s.count` is the number of candidates. What one thread releases and acquires, barriers pass on to all. Call by
// all threads.
__device__ __forceinline__ bool arrive_last(RowState* state, int splits) {
  SharedStorage& s = shared_storage();
  __syncthreads(); // every thread's part of the publication is written
  clear_counts();
  if (threadIdx.x == 0) {
    u64 progress = state_arrive(state);
    s.finishes_row = progress >> 32 == static_cast<u32>(splits) - 1;
    s.count = static_cast<int>(progress);
  }
  __syncthreads(); // thread 0 wrote s.finishes_row, for all
  return s.finishes_row;
}

// Loads the row's list into empty storage and counts its candidates in the histogram. Of a long list, what columns and
// shared memory cannot hold stays where it is: the spill slice then begins there, and ends inside that of the first
// part, which is not needed any more. Call by all threads; a barrier must follow.
__device__ __forceinline__ void gather(RowState* state, u64* list) {
  SharedStorage& s = shared_storage();
  int count = s.count;
  Digit digit = s.rule.digit;
  int thread_count = 0;
  constexpr int kTogether = 4;
  constexpr int kOnChip = kColumns * kThreads + kSharedCapacity;
  static_assert(!kLongList || kColumns * kThreads <= kSpillCapacity, "a slice's worth of memory follows the list");
  for (int first = threadIdx.x; first < count; first += kTogether * kThreads) {
    u64 entry[kTogether];
#pragma unroll
    for (int b = 0; b < kTogether; ++b)
      if (first + b * kThreads < count) entry[b] = __ldcg(&list[first + b * kThreads]);
#pragma unroll
    for (int b = 0; b < kTogether; ++b) {
      int at = first + b * kThreads;
      if (at >= count) break;
      atomicAdd(&s.histogram[bin_of(entry_key(entry[b]), digit)], 1u);
      if (thread_count < kColumns) {
        column_key(thread_count) = entry_key(entry[b]);
        column_index(thread_count++) = entry_index(entry[b]);
      } else if (!kLongList || at < kOnChip) {
        list_entry(at - kColumns * kThreads) = entry[b];
      }
    }
  }
  if (kColumns) s.thread_count[threadIdx.x] = thread_count;
  if (threadIdx.x == 0) {
    s.listed = max(count - kColumns * kThreads, 0);
    s.num_ties = __ldcg(&state->num_ties);
    if (kLongList) s.spill = list + kOnChip;
  }
}

// Prepares the last CTA to finish the row; leaves the row's state in the workspace zero. Call by all threads; a barrier
// must follow.
__device__ __forceinline__ Merged join(RowState* state, u64* list) {
  SharedStorage& s = shared_storage();
  bool fits = s.count <= kCapacity;
  if (fits) gather(state, list);
  __syncthreads(); // the row's candidates are loaded and counted, or every thread knows that they do not fit
  if (threadIdx.x == 0) {
    state->progress = 0;
    state->num_ties = 0;
    s.rule.num_ties = &s.num_ties;
    if (!fits) s.count = s.num_ties = 0;
  }
  return fits ? Merged::kWhole : Merged::kOutgrown;
}
