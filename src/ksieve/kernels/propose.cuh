// Phase 1, propose: a fixed-stride view of the row becomes one boundary, or two with a rescue boundary.
//   1. every sampled statistic (a score, or the best of a few adjacent ones) counts into a coarse histogram
//   2. the bins that hold the requested sample ranks are found
//   3. a coarse policy takes each bin's inclusive cutoff; an exact policy the statistic of that rank itself
#pragma once
#include "block.cuh"
#include "keys.cuh"
#include "output.cuh"

__device__ __forceinline__ int view_phase(int id) {
  return static_cast<int>(static_cast<u32>(id) * kPhaseMultiplier % kStride);
}

// Scores of a row's view: whole groups, the last of which may be cut off by the end of the row.
__device__ __forceinline__ int view_scores(int phase, int length) {
  constexpr int kPeriod = kStride * kGroup;
  int rest = length % kPeriod - phase * kGroup;
  return length / kPeriod * kGroup + min(max(rest, 0), kGroup);
}

__device__ __forceinline__ int view_statistics(int phase, int length) {
  return (view_scores(phase, length) + kPool - 1) / kPool;
}

// Position of a statistic's first score.
__device__ __forceinline__ int statistic_at(int ordinal, int phase) {
  constexpr int kPerGroup = kGroup / kPool;
  return (ordinal / kPerGroup * kStride + phase) * kGroup + ordinal % kPerGroup * kPool;
}

// One statistic: the best of kPool scores, as far as the row goes. All NaN gives NaN.
__device__ __forceinline__ float load_statistic(const Row& row, int first) {
  if constexpr (kPool % kVector == 0) {
    if (first + kPool <= row.length && reinterpret_cast<u64>(row.scores + first) % 16 == 0) {
      Raw raw = load_raw(row.scores + first);
      float best = unpack(raw, 0);
#pragma unroll
      for (int i = 1; i < kVector; ++i)
        best = fmaxf(best, unpack(raw, i));
      return best;
    }
  }
  float best = widen(row.scores[first]);
#pragma unroll
  for (int i = 1; i < kPool; ++i)
    if (first + i < row.length) best = fmaxf(best, widen(row.scores[first + i]));
  return best;
}

// A ranked statistic, and how many of the view have exactly its key.
struct Ranked {
  u32 key;
  int same;
};

// Sample rank `rank` among the shared keys [0, count) within [best, worst], three exact digits at most.
__device__ __forceinline__ Ranked ranked_key(int count, int rank, u32 best, u32 worst) {
  SharedStorage& s = shared_storage();
  int same = 0;
  for (int round = 0; round < kRounds; ++round) {
    int shift = digit_shift(round);
    for (int i = threadIdx.x; i < count; i += kThreads) {
      u32 key = entry_key(load_entry(i));
      if (key >= best && key <= worst) atomicAdd(&s.histogram[digit_of(key, shift)], 1u);
    }
    __syncthreads(); // all of them are counted
    Boundary found = find_boundary(rank);
    rank -= found.before;
    same = found.count;
    u32 fixed = round == 0 ? 0 : round == 1 ? best >> 21 << 21 : best >> 10 << 10;
    u32 low = fixed | static_cast<u32>(found.bin) << shift;
    best = max(best, low);
    worst = min(worst, low | ((1u << shift) - 1));
  }
  return {best, same};
}

// The same where at most 32 keys are in the range, as is usual for one coarse bin: every warp ranks them for itself.
__device__ __forceinline__ Ranked ranked_key_of_few(int count, int rank, u32 best, u32 worst) {
  SharedStorage& s = shared_storage();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    u32 key = entry_key(load_entry(i));
    if (key >= best && key <= worst) s.small[atomicAdd(&s.small_count, 1)] = static_cast<int>(key);
  }
  __syncthreads(); // the keys of the bin are listed
  int listed = s.small_count;
  int lane = threadIdx.x & 31;
  u32 key = lane < listed ? static_cast<u32>(s.small[lane]) : kNanKey;
  int better = 0;
  for (int other = 0; other < listed; ++other) {
    u32 rival = __shfl_sync(kFullWarp, key, other);
    better += rival < key || (rival == key && other < lane);
  }
  u32 owner = __ballot_sync(kFullWarp, lane < listed && better == rank - 1);
  u32 wanted = __shfl_sync(kFullWarp, key, __ffs(owner) - 1);
  return {wanted, __popc(__ballot_sync(kFullWarp, lane < listed && key == wanted))};
}

// Whether the view of a row reaches the requested ranks.
__device__ __forceinline__ bool view_usable(const Params& p, const Row& row) {
  if (!kSampled || row.length <= slots_of(p, row)) return false;
  int count = view_statistics(view_phase(row.id), row.length);
  if (kExactBoundary && count > kSlots) return false; // no room to rank them; no plan of ours comes here
  return count >= (kRescue ? p.rescue_rank : p.primary_rank);
}

// Leaves the inclusive ordered keys of the boundaries of a usable view in shared memory, behind a barrier. `views` is
// how many CTAs of the row look at the same view.
__device__ __forceinline__ void propose(const Params& p, const Row& row, int views) {
  constexpr int kInFlight = 4; // statistics per thread
  SharedStorage& s = shared_storage();
  int phase = view_phase(row.id);
  int count = view_statistics(phase, row.length);
  trace_set(kColSampled, view_scores(phase, row.length) * views);

  for (int first = threadIdx.x; first < count; first += kInFlight * kThreads) {
    float statistic[kInFlight];
#pragma unroll
    for (int b = 0; b < kInFlight; ++b) {
      int ordinal = first + b * kThreads;
      if (ordinal < count) statistic[b] = load_statistic(row, statistic_at(ordinal, phase));
    }
#pragma unroll
    for (int b = 0; b < kInFlight; ++b) {
      int ordinal = first + b * kThreads;
      if (ordinal >= count) break;
      atomicAdd(&s.histogram[coarse_bin(statistic[b])], 1u);
      if (kExactBoundary) store_entry(ordinal, make_entry(order_key(statistic[b]), 0)); // the plan has room for all
    }
  }
  __syncthreads(); // every statistic is counted
  find_boundary(p.primary_rank, kRescue ? p.rescue_rank : 0);

#pragma unroll
  for (int which = 0; which < (kRescue ? 2 : 1); ++which) {
    Boundary found = s.found[which];
    Ranked boundary = {bin_cutoff_key(found.bin), 0};
    int tau = found.bin;
    if (kExactBoundary) {
      u32 best = found.bin ? bin_cutoff_key(found.bin - 1) + 1 : 0;
      int rank = p.primary_rank - found.before;
      boundary = found.count <= 32 ? ranked_key_of_few(count, rank, best, boundary.key)
                                   : ranked_key(count, rank, best, boundary.key);
      tau = static_cast<int>(boundary.key);
    }
    trace_set(kColTau0 + which, tau);
    if (threadIdx.x == 0) {
      s.cutoff[which] = boundary.key;
      s.apart = boundary.same > 1 && boundary.key != kNanKey;
    }
  }
  static_assert(!(kExactBoundary && kRescue), "an exact boundary has no rescue: its samples are gone by then");
  __syncthreads(); // the boundaries are visible, and every warp has read the list of few
  if (threadIdx.x == 0) s.small_count = 0;
}

// Starts fetching another row's view, on the guess that it is about as long as this one: its latency is hidden behind
// whatever this row still has to do.
__device__ __forceinline__ void prefetch_view(const Params& p, int id, int length) {
  const Score* scores = static_cast<const Score*>(p.scores) + id * p.pitch;
  int phase = view_phase(id);
#if KSIEVE_WINDOWS
  int start = window_start(p, id);
  scores += start;
  length = min(length, p.width - start);
#endif
  int groups = view_scores(phase, min(length, p.width)) / kGroup;
  for (int group = threadIdx.x; group < groups; group += kThreads)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(scores + (group * kStride + phase) * kGroup));
}
