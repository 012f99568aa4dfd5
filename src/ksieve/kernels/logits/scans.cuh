// What CTAs share of a row without k, and their scans of it: one counts its scores, one sums and lists them.
#pragma once
#include "logits/row.cuh"

constexpr int kListed = kThreads;              // entries that are listed at most
constexpr u32 kWanted = 128;                   // entries that are listed for one, or those of one bin
constexpr int kEach = kParts / kThreads;       // bins of a thread
constexpr int kTogether = 8;                   // scores that a thread loads together
enum Target : int { kLast, kDrawn, kTargets }; // of a kept set; of a draw
#if __CUDA_ARCH__ >= 900
constexpr bool kClusters = true;
#else
constexpr bool kClusters = false;
#endif

// What the first CTA knows of an entry.
struct Search {
  KeyRange range; // in which it lies
  u64 before;     // mass of the scores better than these
  u32 ahead;      // their number
  KeyRange keys;  // whose entries are listed
  u64 better;     // mass of the scores better than these
  u32 number;     // their number
  u32 listed;
  u32 bin;     // that is guessed
  bool open;   // whether it is not found
  bool wanted; // whether it is looked for in this round
};

struct Shared {
  u64 lists[kTargets * kListed]; // running masses of the slots, then entries
  u64 masses[kListed];           // of a list
  u64 totals[kWarps];
  u32 counts[kParts + 1]; // of bins; the last one is of scores that do not count
  Row row;
  KeyRange counted;     // keys that are counted
  Digit digit;          // which divides them; `linear`: Row::bin divides the row
  float best[kTargets]; // of the scores that are listed; NaN: none is
  float worst[kTargets];
  bool linear;
  bool again; // whether another round follows
  // Of the first CTA
  Search searches[kTargets];
  int flags;      // of the row; of thread 0
  u64 all;        // mass of the scores that count
  u64 enough;     // of those that min-p keeps
  u64 kept;       // of the set; about that, until it is found
  u32 number;     // scores that min-p keeps
  u32 kept_count; // scores in the set
  u64 mass;       // up to an entry
  u64 entry;
  u32 count; // scores up to it
  u32 place; // of a score
};
static_assert(sizeof(Shared) <= KSIEVE_SHARED_BYTES && kParts % kThreads == 0, "the launch has less");

extern __shared__ __align__(16) unsigned char memory[];
__device__ __forceinline__ Shared& shared() { return *reinterpret_cast<Shared*>(memory); }

// CTAs of a row.
__device__ __forceinline__ u32 ctas_of_row() {
  u32 number = 1;
  if constexpr (kClusters) asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(number));
  return number;
}
__device__ __forceinline__ u32 own_cta() { return kClusters ? cta_in_cluster() : 0; }
__device__ __forceinline__ Shared& shared_of(u32 cta) { return kClusters ? *in_cta(&shared(), cta) : shared(); }
__device__ __forceinline__ void meet() {
  if constexpr (kClusters)
    cluster_sync();
  else
    __syncthreads();
}

// Returns the sums of `mine` over the threads before this one, and over all. Call by all threads; has two barriers.
struct Sums {
  u64 before;
  u64 all;
};
__device__ __noinline__ Sums sum_threads(u64 mine) {
  Shared& s = shared();
  u64 up_to = mine;
  for (int offset = 1; offset < 32; offset *= 2) {
    const u64 other = __shfl_up_sync(kFullWarp, up_to, offset);
    if (threadIdx.x % 32 >= offset) up_to += other;
  }
  __syncthreads(); // no thread reads the sums before
  if (threadIdx.x % 32 == 31) s.totals[threadIdx.x / 32] = up_to;
  __syncthreads(); // every warp's sum is there
  Sums sums = {up_to - mine, 0};
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp == threadIdx.x / 32) sums.before += sums.all;
    sums.all += s.totals[warp];
  }
  return sums;
}

// Adds the sum of a warp to a number of the first CTA. Call by whole warps.
template <class T> __device__ __forceinline__ void add_up(T& number, T mine) {
  for (int offset = 16; offset > 0; offset /= 2)
    mine += __shfl_down_sync(kFullWarp, mine, offset);
  if (threadIdx.x % 32 == 0 && mine) atomicAdd(&number, mine);
}

// Calls `see(score, number)` for up to eight scores of this CTA's part of the row, which are kThreads apart, and then
// `end(position)` with that of the first. Where there is none, the score is minus infinity. Call by all threads; whole
// warps call.
template <class See, class End> __device__ __forceinline__ void scan(const Row& row, See see, End end) {
  const int ctas = static_cast<int>(ctas_of_row());
  const int part = (row.length + ctas - 1) / ctas;
  const int last = min(row.length, (static_cast<int>(own_cta()) + 1) * part);
  const int lane = static_cast<int>(threadIdx.x % 32);
  int first = static_cast<int>(own_cta()) * part + static_cast<int>(threadIdx.x) - lane; // of the warp
#pragma unroll 1
  for (; first + (kTogether - 1) * kThreads + 32 <= last; first += kTogether * kThreads) {
    const int at = first + lane;
    float score[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      score[i] = widen(row.scores[at + i * kThreads]);
    if (row.allowed) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (!is_allowed(row.allowed, at + i * kThreads)) score[i] = -infinity();
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      see(score[i], i);
    end(at);
  }
#pragma unroll 1
  for (; first < last; first += kThreads) {
    see(first + lane < last ? row.score_at(first + lane) : -infinity(), 0);
    end(first + lane);
  }
}

// Counts the scores in bins; in the first round, which is linear, sums what min-p keeps too. Call by all threads;
// meets.
__device__ __forceinline__ void count_scores() {
  Shared& s = shared();
  const Row row = s.row;
  Shared& leader = shared_of(0);
  const float worst = score_of_key(row.worst);
  const float cut = score_of_key(row.cut);
  const bool limited = row.limited();
  for (int i = static_cast<int>(threadIdx.x); i <= kParts; i += kThreads)
    s.counts[i] = 0;
  __syncthreads(); // every bin is empty
  auto count = [&](float score) { atomicAdd(&s.counts[score >= worst ? row.bin(score) : kParts], 1u); };
  if (s.linear && limited) {
    u64 all = 0;
    u64 enough = 0;
    u32 number = 0;
    double sums[2] = {row.few.empty(), row.few.empty()};
    auto see = [&](float score, int) {
      count(score);
      const double own = row.term(score);
      sums[0] += own;
      if (score >= cut) {
        sums[1] += own;
        ++number;
      }
    };
    scan(row, see, [&](int) {
      all += row.few.units(sums[0]);
      enough += row.few.units(sums[1]);
      sums[0] = sums[1] = row.few.empty();
    });
    add_up(leader.all, all);
    add_up(leader.enough, enough);
    add_up(leader.number, number);
  } else if (s.linear) {
    scan(row, [&](float score, int) { count(score); }, [](int) {});
  } else {
    const KeyRange keys = s.counted;
    const Digit digit = s.digit;
    auto see = [&](float score, int) {
      const u32 key = order_key(score);
      if (key >= keys.best && key <= keys.worst) atomicAdd(&s.counts[min(bin_of(key, digit), kBins - 1u)], 1u);
    };
    scan(row, see, [](int) {});
  }
  meet(); // every CTA has counted
  const u32 ctas = ctas_of_row();
  if (ctas == 1) return;
  const u32 slice = kParts / ctas;
  for (u32 i = own_cta() * slice + threadIdx.x; i < (own_cta() + 1) * slice; i += kThreads) {
    u32 number = 0;
    for (u32 cta = 0; cta < ctas; ++cta)
      number += shared_of(cta).counts[i];
    leader.counts[i] = number;
  }
  meet(); // the first CTA has the counts of all
}

// Lists the entries from Shared::best to Shared::worst at the first CTA, and sums what is better. Call by all threads;
// meets.
__device__ __noinline__ void list_scores() {
  Shared& s = shared();
  Shared& leader = shared_of(0);
  const Row row = s.row;
  float best[kTargets];
  float worst[kTargets];
  u64 better[kTargets] = {};
  double sums[kTargets];
  u64 all = 0;
  double sum = row.few.empty(); // of all
#pragma unroll
  for (int t = 0; t < kTargets; ++t) {
    best[t] = s.best[t];
    worst[t] = s.worst[t];
    sums[t] = row.few.empty();
  }
  u32 listed = 0;
  auto see = [&](float score, int i) {
    const double own = row.term(score);
    sum += own;
    if (score > best[kLast]) sums[kLast] += own;
    if (score > best[kDrawn]) sums[kDrawn] += own;
    bool in = score <= best[kLast]; // joined without branches
    in &= score >= worst[kLast];
    bool other = score <= best[kDrawn];
    other &= score >= worst[kDrawn];
    in |= other;
    listed |= static_cast<u32>(in) << i;
  };
  scan(row, see, [&](int first) {
    all += row.few.units(sum);
    sum = row.few.empty();
#pragma unroll
    for (int t = 0; t < kTargets; ++t) {
      better[t] += row.few.units(sums[t]);
      sums[t] = row.few.empty();
    }
    for (; listed; listed &= listed - 1) { // which few lanes have
      const u32 at = static_cast<u32>(first) + static_cast<u32>(__ffs(listed) - 1) * kThreads;
      const float score = row.score_at(static_cast<int>(at));
#pragma unroll
      for (int t = 0; t < kTargets; ++t) {
        if (!(score <= s.best[t] && score >= s.worst[t])) continue;
        const u32 slot = atomicAdd(&leader.searches[t].listed, 1u);
        if (slot < kListed) leader.lists[t * kListed + slot] = static_cast<u64>(order_key(score)) << 32 | at;
      }
    }
    __syncwarp(); // apart, its lanes would go on one after another
  });
#pragma unroll
  for (int t = 0; t < kTargets; ++t)
    add_up(leader.searches[t].better, better[t]);
  if (s.linear && !row.limited()) add_up(leader.all, all);
  meet(); // the first CTA has all entries and sums
}
