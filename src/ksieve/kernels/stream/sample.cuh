// Phase 1, propose: a view of the row, one group of scores out of every kStride, becomes one cutoff, or two with a
// rescue cutoff.
//   1. every sampled statistic (a score, or the best of a few adjacent ones) counts into a coarse histogram
//   2. the bins that hold the requested sample ranks are found
//   3. a coarse policy takes each bin's inclusive cutoff; an exact policy the statistic of that rank itself
#pragma once
#include "common/histogram.cuh"
#include "common/keys.cuh"
#include "common/output.cuh"

// Returns which of the kStride groups of a period is in the view: the same in every period of a row, or with kJitter
// another one in each period (core/policy.py, SamplingPolicy.offsets).
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

// Returns the number of scores in a row's view: whole groups, the last one cut off by the end of the row.
__device__ __forceinline__ int view_scores(int id, int length) {
  constexpr int kPeriod = kStride * kGroup;
  int rest = length % kPeriod - view_offset(id, length / kPeriod) * kGroup;
  return length / kPeriod * kGroup + min(max(rest, 0), kGroup);
}

__device__ __forceinline__ int view_statistics(int id, int length) {
  return (view_scores(id, length) + kPool - 1) / kPool;
}

// Returns the position of a statistic's first score.
__device__ __forceinline__ int statistic_at(int ordinal, int id) {
  constexpr int kPerGroup = kGroup / kPool;
  int period = ordinal / kPerGroup;
  return (period * kStride + view_offset(id, period)) * kGroup + ordinal % kPerGroup * kPool;
}

// Returns whether one load reads all scores of a statistic. A statistic is the best of kPool scores, or of fewer at the
// row's end; NaN if all are NaN.
__device__ __forceinline__ bool loads_whole(const Row& row, int first) {
  constexpr int kBytes = kPool * sizeof(Score);
  return kPool == 1 || (first + kPool <= row.length && reinterpret_cast<u64>(row.scores + first) % kBytes == 0);
}

__device__ __forceinline__ float load_statistic(const Row& row, int first) {
  float best = allowed_score(widen(row.scores[first]), first);
#pragma unroll
  for (int i = 1; i < kPool; ++i)
    if (first + i < row.length) best = fmaxf(best, allowed_score(widen(row.scores[first + i]), first + i));
  return best;
}

// Statistics of a view, from the `from`-th on, loaded to registers; those of a thread are kThreads apart. They are
// loaded before a scan's first loads, and would otherwise queue behind these.
struct LoadedView {
  static constexpr bool kScarce = kTies || kOrder != Order::kAny;
  static constexpr int kEach = kScarce ? 1 : kLongList && !kWindows ? 4 : 2; // with more, registers would be spilled
  static constexpr int kAll = kEach * kThreads;
  Raw raw[kEach];

  // Starts the loads of statistics up to row.length, which may be a guess that is not too small.
  __device__ __forceinline__ void load(const Row& row, int from) {
    const int count = view_statistics(row.id, row.length);
#pragma unroll
    for (int b = 0; b < kEach; ++b) {
      const int ordinal = from + b * kThreads + static_cast<int>(threadIdx.x);
      raw[b] = {};
      if (ordinal >= count) continue;
      const int first = statistic_at(ordinal, row.id);
      if (loads_whole(row, first)) raw[b] = load_pool(row.scores + first);
    }
  }

  // Waits for the loads.
  __device__ __forceinline__ void wait() {
#pragma unroll
    for (Raw& some : raw)
      if (kSampled) KSIEVE_AWAIT_WORDS(some);
  }

  __device__ __forceinline__ static Raw load_pool(const Score* scores) {
    if constexpr (kPool > 1) return load_kept_in_l2<kPool * sizeof(Score)>(scores);
    Raw raw = {};
    raw.word[0] = *reinterpret_cast<const Stored::Bits*>(scores);
    return raw;
  }

  __device__ __forceinline__ float statistic(int b, const Row& row, int first) const {
    if (unlikely(!loads_whole(row, first))) return load_statistic(row, first);
    float best = allowed_score(unpack(raw[b], 0), first);
#pragma unroll
    for (int i = 1; i < kPool; ++i)
      best = fmaxf(best, allowed_score(unpack(raw[b], i), first + i));
    return best;
  }
};

// Keys of this thread's statistics, kept in the memory of candidates.
struct KeptKeys {
  int count = 0;

  __device__ __forceinline__ static int number(int at) { return at * kThreads + static_cast<int>(threadIdx.x); }

  __device__ __forceinline__ void keep(u32 key) {
    if (count < kColumns) {
      column_key(count) = key;
    } else {
      list_entry(number(count - kColumns)) = make_entry(key, 0);
    }
    ++count;
  }

  // Calls visit(key, number) for each key; numbers are distinct.
  template <class Visit> __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll 1
    for (int at = 0; at < count; ++at)
      visit(at < kColumns ? column_key(at) : entry_key(list_entry(number(at - kColumns))), number(at));
  }

  // Returns the worst key of the statistics [begin, end), of any threads. Call by a whole warp, behind a barrier after
  // the last key.
  __device__ __forceinline__ static u32 worst(int begin, int end) {
    constexpr int kInColumns = kColumns * kThreads;
    const u32* in_columns = reinterpret_cast<const u32*>(shared_storage().candidates);
    u32 worst = 0;
#pragma unroll 1
    for (int at = begin + static_cast<int>(threadIdx.x & 31); at < end; at += 32)
      worst = max(worst, at < kInColumns ? in_columns[at] : entry_key(list_entry(at - kInColumns)));
    return __reduce_max_sync(kFullWarp, worst);
  }
};

// A ranked statistic, and how many of the view have exactly its key.
struct Ranked {
  u32 key;
  int same;
};

// Returns the kept key of this rank within [best, worst], by exact digits. Call by all threads.
__device__ __forceinline__ Ranked ranked_key(const KeptKeys& keys, int rank, KeyRange range) {
  SharedStorage& s = shared_storage();
  int same = 0;
  do {
    Digit digit = digit_over(range.best, range.worst);
    keys.each([&](u32 key, int) {
      if (key >= range.best && key <= range.worst) atomicAdd(&s.histogram[bin_of(key, digit)], 1u);
    });
    __syncthreads(); // every thread's keys are counted
    FoundBin found = find_bin(rank);
    rank -= found.before;
    same = found.count;
    range = keys_of_scores(keys_of_bin(found.bin, digit, range));
  } while (range.best != range.worst);
  return {range.best, same};
}

// Returns to the first warp the kept key of this rank in a coarse bin that has at most kTailMax keys, which is usual.
// The first warp ranks them; numbers only distinguish equal keys. Call by all threads.
__device__ __forceinline__ Ranked ranked_key_of_tail(const KeptKeys& keys, int count, int rank, int bin) {
  keys.each([&](u32 key, int number) {
    if (coarse_bin(score_of_key(key)) == bin) list_tail(make_entry(key, number)); // cheaper than the bin's key range
  });
  __syncthreads(); // the keys of the bin are listed
  if (threadIdx.x >= 32) return {};
  RankedEntry mine = rank_tail(count);
  bool listed = static_cast<int>(threadIdx.x) < count;
  u32 owner = __ballot_sync(kFullWarp, listed && mine.rank == rank - 1);
  u32 wanted = __shfl_sync(kFullWarp, entry_key(mine.entry), __ffs(owner) - 1);
  return {wanted, __popc(__ballot_sync(kFullWarp, listed && entry_key(mine.entry) == wanted))};
}

// Returns the cutoff of a view of `count` statistics, the best of which may be all at one end, as of a sorted row
// (core/policy.py, tightened). Call as KeptKeys::worst.
__device__ __forceinline__ u32 tightened(u32 cutoff, int rank, int count) {
  constexpr int kEach = kGroup / kPool;
  const int groups = (count + kEach - 1) / kEach;
  const int few = (rank / 4 + 2 * kEach - 1) / kEach;
  const int most = (rank - rank / 4) / kEach;
  const auto worst = [&](int some, bool last) {
    return KeptKeys::worst(last ? (groups - some) * kEach : 0, last ? count : some * kEach);
  };
#pragma unroll 1
  for (int last = 0; last < 2 && few <= most; ++last)
    if (unlikely(worst(most, last) < cutoff)) cutoff = worst(few, last);
  return cutoff;
}

// Returns whether the view of a row has the requested ranks among its first two thirds (core/policy.py, usable): a
// cutoff further down admits most of a row, and then the two scans of the exact route cost less.
__device__ __forceinline__ bool view_usable(const Params& p, const Row& row) {
  if (!kSampled || row.length <= slots_of(p, row)) return false;
  int count = view_statistics(row.id, row.length);
  if (kExactBoundary && count > kColumns * kThreads + kListed)
    return false; // no room to rank them; the planner makes no such plan
  return 2 * count >= 3 * (kRescue ? p.rescue_rank : p.primary_rank);
}

// Most statistics with the cutoff's value for which the scores that equal it are candidates like any other. Of 16-bit
// scores some dozens to a thousand share a value at rank k, so that ties are the rule: a quarter of the candidates'
// room is left to them.
constexpr int kMostSame = !Stored::kFewValues || kStats ? 1 : kCapacity / 4 / kStride;

// Proposes the cutoffs of a usable view. Call by all threads; a barrier must follow. `view` was loaded from its first
// statistic on; `views` CTAs of the row compute the same cutoffs.
__device__ __forceinline__ void propose(const Params& p, const Row& row, LoadedView& view, int views, Proposal& to) {
  SharedStorage& s = shared_storage();
  int count = view_statistics(row.id, row.length);
  trace_set(kColSampled, view_scores(row.id, row.length) * views);

  KeptKeys keys;
  u32 best = kNanKey;
  for (int from = 0; from < count; from += LoadedView::kAll) {
    if (unlikely(from)) view.load(row, from);
#pragma unroll
    for (int b = 0; b < LoadedView::kEach; ++b) {
      const int ordinal = from + b * kThreads + static_cast<int>(threadIdx.x);
      if (ordinal >= count) break;
      const float statistic = view.statistic(b, row, statistic_at(ordinal, row.id));
      atomicAdd(&s.histogram[coarse_bin(statistic)], 1u);
      u32 key = order_key(statistic);
      best = min(best, key);
      if (kExactBoundary) keys.keep(key);
    }
  }
  best = __reduce_min_sync(kFullWarp, best);
  if ((threadIdx.x & 31) == 0) atomicMin(&to.best, best);
  __syncthreads(); // every thread's statistics are in the histogram
  find_bin(p.primary_rank, kRescue ? p.rescue_rank : 0);

#pragma unroll
  for (int which = 0; which < (kRescue ? 2 : 1); ++which) {
    FoundBin found = s.found[which];
    Ranked cutoff;
    if (kExactBoundary) {
      int rank = p.primary_rank - found.before;
      cutoff = unlikely(found.count > kTailMax) ? ranked_key(keys, rank, keys_of_bin(found.bin))
                                                : ranked_key_of_tail(keys, found.count, rank, found.bin);
      if (kPool > 1 && threadIdx.x < 32) cutoff.key = tightened(cutoff.key, p.primary_rank, count);
    } else {
      cutoff = {bin_cutoff_key(found.bin), 0};
    }
    trace_set(kColTau0 + which, kExactBoundary ? static_cast<int>(cutoff.key) : found.bin);
    if (threadIdx.x == 0) {
      to.cutoff[which] = cutoff.key;
      to.expect_plateau = kExactBoundary && (cutoff.same > kMostSame || cutoff.key == kNanKey);
    }
  }
  static_assert(!(kExactBoundary && kRescue), "an exact cutoff has no rescue: its samples are gone by then");
  if (threadIdx.x == 0) s.tail_count = 0;
}

// Lines of a view are kept in L2 until the scan reads them again. Smaller groups lie so densely that L2 would have to
// keep a large part of the row.
constexpr bool kLines = kGroup * sizeof(Score) >= 128;

// Prefetches another row's view from its `from`-th score on, assuming that the row is about as long as this one: this
// row's remaining work hides the latency.
__device__ __forceinline__ void prefetch_view(const Params& p, int id, int length, int from = 0) {
  const Score* scores = static_cast<const Score*>(p.scores) + KSIEVE_SCORES_AT(p, id);
  if constexpr (kWindows) {
    const auto start = window_start(p, id);
    scores += start;
    if constexpr (kSegments) {
      length = min(length, segment_length(p, id, start));
    } else {
      length = min(length, p.width - static_cast<int>(start));
    }
  }
  int groups = view_scores(id, min(length, p.width)) / kGroup;
  for (int group = from / kGroup + threadIdx.x; group < groups; group += kThreads)
    prefetch_to_l2<kLines>(scores + (group * kStride + view_offset(id, group)) * kGroup);
}
