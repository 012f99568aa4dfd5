// Phase 1, propose: a view of the row, one group of scores out of every kStride, becomes one boundary, or two with a
// rescue boundary.
//   1. every sampled statistic (a score, or the best of a few adjacent ones) counts into a coarse histogram
//   2. the bins that hold the requested sample ranks are found
//   3. a coarse policy takes each bin's inclusive cutoff; an exact policy the statistic of that rank itself
#pragma once
#include "block.cuh"
#include "keys.cuh"
#include "output.cuh"

// Which of the kStride groups of a period the view takes: one and the same in every period of a row, or with kJitter
// another one in each (policy.py, SamplingPolicy.offsets).
__device__ __forceinline__ int view_offset(int id, int period) {
  u32 row = static_cast<u32>(id);
  if constexpr (!kJitter) {
    return static_cast<int>(row * kPhaseMultiplier % kStride);
  } else {
    u32 mixed = row * kJitterRow + static_cast<u32>(period) * kJitterPeriod;
    mixed = (mixed ^ mixed >> kJitterShift) * kJitterMix;
    return static_cast<int>(__umulhi(mixed, kStride)); // its leading bits
  }
}

// Scores of a row's view: whole groups, the last of which may be cut off by the end of the row.
__device__ __forceinline__ int view_scores(int id, int length) {
  constexpr int kPeriod = kStride * kGroup;
  int rest = length % kPeriod - view_offset(id, length / kPeriod) * kGroup;
  return length / kPeriod * kGroup + min(max(rest, 0), kGroup);
}

__device__ __forceinline__ int view_statistics(int id, int length) {
  return (view_scores(id, length) + kPool - 1) / kPool;
}

// Position of a statistic's first score.
__device__ __forceinline__ int statistic_at(int ordinal, int id) {
  constexpr int kPerGroup = kGroup / kPool;
  int period = ordinal / kPerGroup;
  return (period * kStride + view_offset(id, period)) * kGroup + ordinal % kPerGroup * kPool;
}

// One statistic: the best of kPool scores, as far as the row goes. All NaN gives NaN.
__device__ __forceinline__ float load_statistic(const Row& row, int first) {
  if constexpr (kPool > 1) {
    constexpr int kBytes = kPool * sizeof(Score);
    if (!rarely(first + kPool > row.length || reinterpret_cast<u64>(row.scores + first) % kBytes != 0)) {
      Raw raw = load_kept<kBytes>(row.scores + first);
      float best = unpack(raw, 0);
#pragma unroll
      for (int i = 1; i < kPool; ++i)
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

// Sample rank `rank` among the stored keys within [best, worst], by exact digits.
__device__ __forceinline__ Ranked ranked_key(int rank, KeyRange range) {
  SharedStorage& s = shared_storage();
  int same = 0;
  do {
    Digit digit = digit_over(range.best, range.worst);
    each_own([&](u64 entry) {
      u32 key = entry_key(entry);
      if (key >= range.best && key <= range.worst) atomicAdd(&s.histogram[bin_of(key, digit)], 1u);
    });
    __syncthreads(); // all of them are counted
    Boundary found = find_boundary(rank);
    rank -= found.before;
    same = found.count;
    range = range_of(found.bin, digit, range);
  } while (range.best != range.worst);
  return {range.best, same};
}

// The same where at most kFewest keys are in the range, as is usual for one coarse bin: the first warp ranks them and
// alone knows the answer. Their indices only tell equal keys apart.
__device__ __forceinline__ Ranked ranked_key_of_few(int count, int rank, KeyRange range) {
  each_own([&](u64 entry) {
    u32 key = entry_key(entry);
    if (key >= range.best && key <= range.worst) list_few(entry);
  });
  __syncthreads(); // the keys of the bin are listed
  if (threadIdx.x >= 32) return {};
  RankedEntry mine = rank_few(count);
  bool listed = static_cast<int>(threadIdx.x) < count;
  u32 owner = __ballot_sync(kFullWarp, listed && mine.rank == rank - 1);
  u32 wanted = __shfl_sync(kFullWarp, entry_key(mine.entry), __ffs(owner) - 1);
  return {wanted, __popc(__ballot_sync(kFullWarp, listed && entry_key(mine.entry) == wanted))};
}

// Whether the view of a row has the requested ranks among its first two thirds (policy.py, usable): a boundary further
// down admits most of a row, and then two scans of the exact route cost less.
__device__ __forceinline__ bool view_usable(const Params& p, const Row& row) {
  if (!kSampled || row.length <= slots_of(p, row)) return false;
  int count = view_statistics(row.id, row.length);
  if (kExactBoundary && count > kColumns * kThreads + kListed)
    return false; // no room to rank them; no plan of ours comes here
  return 2 * count >= 3 * (kRescue ? p.rescue_rank : p.primary_rank);
}

// Leaves the inclusive ordered keys of the boundaries of a usable view in shared memory, behind a barrier. `views` is
// how many CTAs of the row look at the same view.
__device__ __forceinline__ void propose(const Params& p, const Row& row, int views) {
  constexpr int kInFlight = 4; // statistics per thread
  SharedStorage& s = shared_storage();
  int count = view_statistics(row.id, row.length);
  trace_set(kColSampled, view_scores(row.id, row.length) * views);

  int height = 0;
  u32 best = kNanKey;
  for (int first = threadIdx.x; first < count; first += kInFlight * kThreads) {
    float statistic[kInFlight] = {}; // not the last ones, which would be carried along and spilled
#pragma unroll
    for (int b = 0; b < kInFlight; ++b) {
      int ordinal = first + b * kThreads;
      if (ordinal < count) statistic[b] = load_statistic(row, statistic_at(ordinal, row.id));
    }
#pragma unroll
    for (int b = 0; b < kInFlight; ++b) {
      int ordinal = first + b * kThreads;
      if (ordinal >= count) break;
      atomicAdd(&s.histogram[coarse_bin(statistic[b])], 1u);
      u32 key = order_key(statistic[b]);
      best = min(best, key);
      if (!kExactBoundary) continue;
      if (height < kColumns) {
        column_key(height) = key;
        column_place(height) = any_place(height);
        ++height;
      } else {
        list_entry(ordinal - kColumns * kThreads) = make_entry(key, index_of_place(any_place(height++)));
      }
    }
  }
  if (kExactBoundary) {
    if (kColumns) s.height[threadIdx.x] = min(height, kColumns);
    if (threadIdx.x == 0) s.listed = max(count - kColumns * kThreads, 0);
  }
  best = __reduce_min_sync(kFullWarp, best);
  if ((threadIdx.x & 31) == 0) atomicMin(&s.view_best, best);
  __syncthreads(); // every statistic is counted
  find_boundary(p.primary_rank, kRescue ? p.rescue_rank : 0);

#pragma unroll
  for (int which = 0; which < (kRescue ? 2 : 1); ++which) {
    Boundary found = s.found[which];
    Ranked boundary = {bin_cutoff_key(found.bin), 0};
    int tau = found.bin;
    if (kExactBoundary) {
      KeyRange range = {bin_best_key(found.bin), boundary.key};
      int rank = p.primary_rank - found.before;
      boundary = rarely(found.count > kFewest) ? ranked_key(rank, range) : ranked_key_of_few(found.count, rank, range);
      tau = static_cast<int>(boundary.key);
    }
    trace_set(kColTau0 + which, tau);
    if (threadIdx.x == 0) {
      s.cutoff[which] = boundary.key;
      s.apart = kExactBoundary && (boundary.same > 1 || boundary.key == kNanKey);
    }
  }
  static_assert(!(kExactBoundary && kRescue), "an exact boundary has no rescue: its samples are gone by then");
  __syncthreads(); // the boundaries are visible, and nobody needs the few any more
  if (threadIdx.x == 0) s.few_count = 0;
  forget_candidates();
}

// Whole lines of a view are kept in L2, if it can be helped, until the scan reads them again. Groups that are less lie
// so densely that it would have to keep a good part of the row.
constexpr bool kLines = kGroup * sizeof(Score) >= 128;
__device__ __forceinline__ void prefetch(const Score* scores) {
  if (kLines) {
    asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(scores));
  } else {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(scores));
  }
}

// Starts fetching another row's view, on the guess that it is about as long as this one: its latency is hidden behind
// whatever this row still has to do.
__device__ __forceinline__ void prefetch_view(const Params& p, int id, int length) {
  const Score* scores = static_cast<const Score*>(p.scores) + id * p.pitch;
#if KSIEVE_WINDOWS
  int start = window_start(p, id);
  scores += start;
  length = min(length, p.width - start);
#endif
  int groups = view_scores(id, min(length, p.width)) / kGroup;
  for (int group = threadIdx.x; group < groups; group += kThreads)
    prefetch(scores + (group * kStride + view_offset(id, group)) * kGroup);
}
