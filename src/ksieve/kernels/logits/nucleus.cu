// The kept set of each row without k, of which its sorted slots are the best entries, and a sample from it
// (model/logits.py, begin and draw). A CTA has a row.
//   1. mostly the entries decide, with bounds of the row's mass from its log-sum-exp: the row is not read
//   2. else a scan adds the masses of all scores, in bins of equal width, and finds the bin in which a sum is reached
//   3. another scan lists the entries of the bin, which are sorted; if they are many, it divides the bin's keys again
// Masses are integers, so that every order gives the same bytes.
#include "logits/keep.cuh"

#include "common/keys.cuh"
#include "common/powers.cuh"
#include "common/sort.cuh"

struct Nucleus {
  Keep keep;
  const void* scores;  // (rows, width), `pitch` elements apart
  const void* lengths; // (rows,) of int32 or int64; null: the width
  i64 pitch;
  int width;
  int long_lengths;
};

constexpr int kScanned = 64;
constexpr u32 kNothing = 46;                     // a power that is so far below the unit has no mass
constexpr double kMassBits = 0x1p73;             // 2^(kFraction - kHeadroom + 32)
constexpr double kSpread = 0x1p-19;              // of the bounds of a row's mass
constexpr double kUnbounded = 0x1p63;            // more than any
constexpr u32 kWorstKey = kMinusInfinityKey - 1; // of a score above minus infinity
constexpr float kPerPower = (kBins - 1) / 44.5f; // bins of an exponent: scores of the last one have no mass
constexpr int kListed = 2 * kThreads;            // slots of a row, and entries that are sorted at once
constexpr int kEach = kBins / kThreads;          // bins of a thread
constexpr int kLoads = 4;                        // scores of a thread at a time

// A row whose scores are read.
struct Row {
  const Score* scores;
  double factor;         // log2(e) / temperature
  double least_exponent; // of min-p
  int length;
  float best;
  float base;  // what scores are reduced by
  float high;  // the factor
  float low;   // what its rounding left
  float least; // lower scores count as this one
  int unit;
  u32 worst; // key of the worst score that counts
  u32 cut;   // key of the worst score that min-p keeps
  float p;
  float uniform; // below 0: nothing is drawn

  __device__ __forceinline__ Power power(float score) const {
    const float reduced = score == base ? 0.0f : score - base; // also of infinity
    return power_of(fmaxf(reduced, least), high, low, kRound);
  }
  __device__ __forceinline__ u64 mass(float score) const {
    const Power own = power(score);
    const u32 down = min(static_cast<u32>(unit - own.exponent()), kNothing);
    return ((static_cast<u64>(own.mantissa()) << 38 >> (down + 60 - kFraction)) + 1) >> 1;
  }

  // Returns whether min-p keeps a score.
  __device__ __forceinline__ bool enough(float score) const {
    const double less = __dadd_rn(static_cast<double>(score), -static_cast<double>(best));
    return score == best || __dmul_rn(less, factor) >= least_exponent;
  }

  // Returns the bin of a score: no better one has a later bin.
  __device__ __forceinline__ u32 bin(float score) const {
    const float at = (score == best ? 0.0f : best - score) * (high * kPerPower);
    return at < kBins - 1 ? static_cast<u32>(at) : kBins - 1;
  }

  // Returns the last key that passes a test, which that of the best score does, and each one up to the last. Call by
  // whole warps.
  template <class Test> __device__ __forceinline__ u32 last_key(Test test) const {
    u64 found = order_key(best);
#pragma unroll 1
    for (int shift = 30; shift >= 0; shift -= 5) { // 31 lanes try a digit each
      const u64 key = found + (static_cast<u64>(threadIdx.x % 32 + 1) << shift);
      const bool passes = threadIdx.x % 32 < 31 && key <= kWorstKey && test(score_of_key(static_cast<u32>(key)));
      found += static_cast<u64>(__popc(__ballot_sync(kFullWarp, passes))) << shift;
    }
    return static_cast<u32>(found);
  }
  __device__ __forceinline__ KeyRange keys_of(u32 number) const {
    const u32 last = last_key([&](float score) { return bin(score) <= number; });
    if (number == 0) return {order_key(best), min(last, worst)};
    return {last_key([&](float score) { return bin(score) < number; }) + 1, min(last, worst)};
  }
};

struct Shared {
  u64 masses[kBins];
  u64 list[kListed]; // running masses of the slots, then entries
  u64 totals[kWarps];
  u32 counts[kBins];
  Row row;
  u64 entry;      // that is reached
  u64 mass;       // up to the entry, or to a bin
  u64 all;        // mass of the scores that count
  u64 kept;       // mass of the set
  u32 count;      // number of scores up to the entry, or to a bin
  u32 kept_count; // number of scores in the set
  u32 bin;
  u32 listed;
  bool divided; // whether the bins have all scores of the row, by Row::bin
};
static_assert(sizeof(Shared) <= KSIEVE_SHARED_BYTES && kBins % kThreads == 0, "the launch has less");

extern __shared__ __align__(16) unsigned char memory[];
__device__ __forceinline__ Shared& shared() { return *reinterpret_cast<Shared*>(memory); }

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

// Calls `see(row, key, score, position)` for each score, with a key beyond `worst` where there is none. Call by all
// threads; whole warps see.
template <class See> __device__ __forceinline__ void scan(See see) {
  const Row row = shared().row;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) / 32 * 32; first < row.length; first += kLoads * kThreads) {
    float score[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * kThreads + static_cast<int>(threadIdx.x % 32);
      score[i] = at < row.length ? widen(row.scores[at]) : -infinity();
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      see(row, order_key(score[i]), score[i], first + i * kThreads + static_cast<int>(threadIdx.x % 32));
  }
}

// Adds to a sum in two words: an atomic addition of 64 bits would be a loop.
__device__ __forceinline__ void add_words(u64* sum, u64 value) {
  u32* words = reinterpret_cast<u32*>(sum);
  const u32 low = static_cast<u32>(value);
  const u32 was = atomicAdd(words, low);
  const u32 high = static_cast<u32>(value >> 32) + (was + low < was);
  if (high) atomicAdd(words + 1, high);
}

// Adds the masses and numbers of the scores to bins. `find(row, key, score)` is one, or kBins; `note` sees all masses.
// Call by all threads; returns behind a barrier.
template <class Bin, class Note> __device__ __forceinline__ void divide(Bin find, Note note) {
  Shared& s = shared();
  __syncthreads(); // no thread reads the bins before
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads)
    s.masses[i] = s.counts[i] = 0;
  __syncthreads(); // every bin is empty
  scan([&](const Row& row, u32 key, float score, int) {
    const u32 number = key <= row.worst ? find(row, key, score) : kBins;
    const u32 same = __match_any_sync(kFullWarp, number < kBins ? key : kNanKey); // plateaus are added once
    if (number == kBins) return;
    const u64 own = row.mass(score);
    note(row, key, own);
    if (threadIdx.x % 32 != __ffs(same) - 1) return;
    add_words(&s.masses[number], own * __popc(same));
    atomicAdd(&s.counts[number], __popc(same));
  });
  __syncthreads(); // every score is counted
}

struct ByScore {
  __device__ __forceinline__ u32 operator()(const Row& row, u32, float score) const { return row.bin(score); }
};

// Divides the row by Row::bin; sums what min-p keeps, and all masses. Call by all threads.
__device__ __forceinline__ void divide_row() {
  Shared& s = shared();
  u64 mass = 0;
  u32 count = 0;
  auto note = [&](const Row& row, u32 key, u64 own) {
    mass += key <= row.cut ? own : 0;
    count += key <= row.cut;
  };
  divide(ByScore(), note);
  mass = sum_threads(mass).all;
  count = static_cast<u32>(sum_threads(count).all);
  if (threadIdx.x == 0) s.kept = mass;
  if (threadIdx.x == 0) s.kept_count = count;
  mass = 0;
  for (int i = 0; i < kEach; ++i)
    mass += s.masses[threadIdx.x * kEach + i];
  mass = sum_threads(mass).all;
  if (threadIdx.x == 0) s.all = mass;
  if (threadIdx.x == 0) s.divided = true;
  __syncthreads(); // the sums are there, for every thread
}

// Returns the position of the n-th score of a key. Call by all threads; has two barriers.
__device__ __forceinline__ u32 position_of(const Row& row, u32 key, u32 n) {
  Shared& s = shared();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int part = (row.length + kThreads - 1) / kThreads * 32;
  const int end = min(row.length, (warp + 1) * part);
  u32 mine = 0;
  for (int at = warp * part + lane; at < end; at += 32)
    mine += order_key(widen(row.scores[at])) == key;
  u32 seen = __shfl_sync(kFullWarp, static_cast<u32>(sum_threads(mine).before), 0); // before the warp's part
  for (int first = warp * part; first < end; first += 32) {
    const bool equal = first + lane < end && order_key(widen(row.scores[first + lane])) == key;
    const u32 votes = __ballot_sync(kFullWarp, equal);
    if (equal && seen + __popc(votes & ((2u << lane) - 1)) == n) s.bin = first + lane;
    seen += __popc(votes);
  }
  __syncthreads(); // the position is known, for every thread
  return s.bin;
}

// Finds the first entry, in order, at which the running mass reaches a target: Shared::entry, `mass` and `count`.
// `placed`: the entry's position too. Call by all threads; returns behind a barrier.
__device__ __noinline__ void reach(u64 target, bool placed) {
  Shared& s = shared();
  const Row& row = s.row;
  KeyRange keys = {};
  Digit digit = {};
  u64 mass = 0; // up to the bin
  u32 count = 0;
  u32 members = 0;
  bool divided = true;
  if (!s.divided) divide(ByScore(), [](const Row&, u32, u64) {});
#pragma unroll 1
  for (;; divided = false) {
    u64 own = 0;
    u32 number = 0;
    for (int i = 0; i < kEach; ++i) {
      own += s.masses[threadIdx.x * kEach + i];
      number += s.counts[threadIdx.x * kEach + i];
    }
    mass += sum_threads(own).before;
    count += static_cast<u32>(sum_threads(number).before);
    if (mass < target && target <= mass + own) {
      u32 i = threadIdx.x * kEach;
      for (; mass + s.masses[i] < target; ++i) {
        mass += s.masses[i];
        count += s.counts[i];
      }
      s.bin = i;
      s.mass = mass;
      s.count = count;
      s.listed = 0;
      s.divided = divided;
    }
    __syncthreads(); // the bin is known, for every thread
    mass = s.mass;
    count = s.count;
    members = s.counts[s.bin];
    keys = keys_of_scores(divided ? row.keys_of(s.bin) : keys_of_bin(static_cast<int>(s.bin), digit, keys));
    if (keys.best == keys.worst || members <= kListed) break;
    digit = digit_over(keys.best, keys.worst);
    auto by_key = [&](const Row&, u32 key, float) {
      return key >= keys.best && key <= keys.worst ? bin_of(key, digit) : kBins;
    };
    divide(by_key, [](const Row&, u32, u64) {});
  }
  if (keys.best == keys.worst) {
    const u64 own = row.mass(score_of_key(keys.best));
    const u32 n = static_cast<u32>((target - mass + own - 1) / own);
    const u32 at = placed ? position_of(row, keys.best, n) : 0;
    __syncthreads();                                  // every thread has read the bin
    s.entry = static_cast<u64>(keys.best) << 32 | at; // the same by every thread
    s.mass = mass + n * own;
    s.count = count + n;
    __syncthreads(); // the entry is known, for every thread
    return;
  }
  scan([&](const Row&, u32 key, float, u32 at) {
    if (key >= keys.best && key <= keys.worst) s.list[atomicAdd(&s.listed, 1u)] = static_cast<u64>(key) << 32 | at;
  });
  u32 sorted = kSortChunk;
  while (sorted < members)
    sorted *= 2;
  const u32 first = 2 * threadIdx.x;
  for (u32 i = first; i < first + 2; ++i)
    if (i >= members) s.list[i] = ~0ull;
  sort_area(s.list, static_cast<int>(sorted)); // behind a barrier
  u64 own[2];
  for (int i = 0; i < 2; ++i)
    own[i] = first + i < members ? row.mass(score_of_key(static_cast<u32>(s.list[first + i] >> 32))) : 0;
  mass += sum_threads(own[0] + own[1]).before;
  for (int i = 0; i < 2; ++i) {
    if (mass < target && target <= mass + own[i]) {
      s.entry = s.list[first + i];
      s.mass = mass + own[i];
      s.count = count + first + i + 1;
    }
    mass += own[i];
  }
  __syncthreads(); // the entry is known, for every thread
}

// Returns the mass that p keeps at least, and that which a draw reaches.
__device__ __forceinline__ u64 needed(float p, double all) {
  return __double2ull_ru(__dmul_rn(static_cast<double>(p), all));
}
__device__ __forceinline__ u64 drawn_at(float uniform, double all) {
  return __double2ull_rz(__dmul_rn(static_cast<double>(uniform), all)) + 1;
}

// Reads the row: Shared::kept and `kept_count`, and `entry` unless `uniform` is below 0. It has no variables, which the
// calls would move to memory. Call by all threads; returns behind a barrier.
__device__ __forceinline__ void read_row() {
  Shared& s = shared();
  divide_row();
  if (s.row.p < 1) {
    reach(needed(s.row.p, __ull2double_rn(s.all)), false);
    if (threadIdx.x == 0 && s.entry >> 32 <= s.row.cut) {
      s.kept = s.mass;
      s.kept_count = s.count;
    }
    __syncthreads(); // the set is known, for every thread
  }
  if (s.row.uniform >= 0) reach(min(drawn_at(s.row.uniform, __ull2double_rn(s.kept)), s.kept), true);
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_logits_nucleus(const __grid_constant__ Nucleus n) {
  const Keep& k = n.keep;
  const int id = static_cast<int>(blockIdx.x);
  const int own = 2 * static_cast<int>(threadIdx.x); // first of two slots
  Shared& s = shared();
  bool usable = true;
  const float temperature = number_of(id, k.temperature, k.usual_temperature, 0x1p-100f, 0x1p100f, usable);
  const float p = number_of(id, k.p, k.usual_p, 0x1p-149f, 1, usable);
  const float min_p = number_of(id, k.min_p, k.usual_min_p, 0, 1, usable);
  const float uniform = number_of(id, k.uniform, k.usual_uniform, 0, 1, usable);
  int flags = usable ? k.row_flags[id] : kIsEmpty | kIsInvalid;
  const int* positions = k.positions + static_cast<i64>(id) * k.k;
  const Score* values = static_cast<const Score*>(k.values) + static_cast<i64>(id) * k.k;
  u64 total = 1; // mass of the set
  int count = 0;
  int place = -1;
  float drawn = __uint_as_float(kNanKey);
  if (usable && !(flags & (kHasNan | kIsEmpty))) {
    if (threadIdx.x == 0) {
      Row row;
      i64 length = n.width;
      if (n.lengths && n.long_lengths) length = static_cast<const i64*>(n.lengths)[id];
      if (n.lengths && !n.long_lengths) length = static_cast<const int*>(n.lengths)[id];
      row.scores = static_cast<const Score*>(n.scores) + id * n.pitch;
      row.length = static_cast<int>(min(length, static_cast<i64>(n.width)));
      row.factor = __ddiv_rn(kLog2e, static_cast<double>(temperature));
      row.least_exponent = min_p > 0 ? log2_of(static_cast<double>(min_p)) : -static_cast<double>(infinity());
      row.best = widen(values[0]);
      row.high = static_cast<float>(row.factor);
      row.low = static_cast<float>(__dadd_rn(row.factor, -static_cast<double>(row.high)));
      row.base = fabsf(row.best * row.high) < kWithin ? 0.0f : row.best;
      row.least = -infinity();
      row.unit = row.power(row.best).exponent() + kHeadroom;
      row.least = static_cast<float>(row.unit - 64) / row.high;
      s.row = row;
    }
    __syncthreads(); // the row is known, for every thread

    // What the slots tell
    const Row& row = s.row;
    u64 found = 0; // slots that are used, and, above bit 32, that min-p keeps
    u64 mass = 0;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      if (own + i < k.k && positions[own + i] >= 0) {
        const float score = widen(values[own + i]);
        mass += row.mass(score);
        found += 1 + (static_cast<u64>(row.enough(score)) << 32);
      }
      s.list[own + i] = mass;
    }
    mass = sum_threads(mass).before;
    s.list[own] += mass;
    s.list[own + 1] += mass;
    found = sum_threads(found).all; // behind a barrier after the sums and the row
    auto below = [&](u64 target) {  // number of slots up to which the mass is less
      int number = 0;
#pragma unroll 1
      for (int step = kListed; step > 0; step /= 2)
        if (number + step <= k.k && s.list[number + step - 1] < target) number += step;
      return number;
    };
    const int there = static_cast<int>(found & 0xffffffffu);
    const int beyond = k.k + 1;
    const int whole = there < k.k ? there : beyond; // number of scores, if it is known
    int enough = static_cast<int>(found >> 32);
    if (enough == there) enough = whole;
    bool endless = !(row.least_exponent > -kUnbounded);
    const int of = k.min_p_first ? enough : whole; // how many p counts
    double least = 0;
    double most = kUnbounded;
    if (of < beyond) {
      least = most = __ull2double_rn(s.list[of - 1]);
    } else if (row.base == 0 && (endless || !k.min_p_first)) {
      const double above = __dadd_rn(k.totals[id], -static_cast<double>(row.unit - kHeadroom));
      const double size = __dmul_rn(exp2_of(__dadd_rn(above, -32.0)), kMassBits);
      least = __dmul_rn(size, 1 - kSpread);
      most = __dmul_rn(size, 1 + kSpread);
    }
    int low = of;
    int high = of;
    if (p < 1) {
      low = min(of, below(needed(p, least)) + 1);
      high = min(of, below(needed(p, most)) + 1);
      endless = false;
    }
    low = min(low, enough);
    high = min(high, enough);
    bool decided = low == high && high < beyond;
    if (decided) {
      count = low;
      total = s.list[low - 1];
      least = most = __ull2double_rn(total);
    }
    if (!k.probabilities) {
      const u64 last = decided ? total : static_cast<u64>(kUnbounded);
      const bool bounded = decided || endless;
      const int slot = below(min(drawn_at(uniform, bounded ? least : 0.0), last));
      decided = slot < k.k && slot == below(min(drawn_at(uniform, bounded ? most : kUnbounded), last));
      if (decided) {
        place = positions[slot];
        drawn = widen(values[slot]);
      }
    }

    if (!decided) {
      flags |= kScanned;
      u32 cut = kWorstKey;
      if (row.least_exponent > -kUnbounded) cut = row.last_key([&](float score) { return row.enough(score); });
      if (threadIdx.x == 0) {
        s.row.cut = cut;
        s.row.worst = k.min_p_first ? cut : kWorstKey;
        s.row.p = p;
        s.row.uniform = k.probabilities ? -1.0f : uniform;
      }
      __syncthreads(); // the row is known, for every thread
      read_row();
      total = s.kept;
      count = static_cast<int>(s.kept_count);
      place = static_cast<int>(s.entry & 0xffffffffu);
      drawn = score_of_key(static_cast<u32>(s.entry >> 32));
    }
  }
  if (k.probabilities) {
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      if (own + i >= k.columns) continue;
      const i64 at = static_cast<i64>(id) * k.columns + own + i;
      k.tokens[at] = own + i < count ? positions[own + i] : -1;
      double share = 0;
      if (own + i < count) share = __ull2double_rn(s.row.mass(widen(values[own + i])));
      k.probabilities[at] = static_cast<float>(__ddiv_rn(share, __ull2double_rn(total)));
    }
    if (count > k.columns) flags |= kOverCapacity;
    if (threadIdx.x == 0) k.counts[id] = count;
  } else if (threadIdx.x == 0) {
    const double scaled = __dmul_rn(static_cast<double>(drawn), s.row.factor);
    k.tokens[id] = place;
    k.logprobs[id] = static_cast<float>(__dmul_rn(__dadd_rn(scaled, -k.totals[id]), kLn2));
  }
  if (threadIdx.x == 0) k.flags[id] = flags;
}
