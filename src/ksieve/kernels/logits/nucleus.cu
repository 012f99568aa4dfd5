// The kept set of each row without k, of which its sorted slots are the best entries, and a sample from it
// (model/logits.py, begin and draw). Mostly the slots decide, with bounds of the row's mass from its log-sum-exp; the
// CTAs of a cluster read other rows (logits/reach.cuh).
#include "logits/reach.cuh"

struct Nucleus {
  Keep keep;
  const void* scores;  // (rows, width), `pitch` elements apart
  const void* lengths; // (rows,) of int32 or int64; null: the width
  const u32* allowed;  // (rows, words), `allowed_pitch` apart: a bit for each score; null: all count
  i64 pitch;
  i64 allowed_pitch;
  int width;
  int long_lengths;
};

constexpr int kScanned = 64;
constexpr double kMassBits = 0x1p73;  // 2^(kFraction - kHeadroom + 32)
constexpr double kSpread = 0x1p-19;   // of the bounds of a row's mass
constexpr double kUnbounded = 0x1p63; // more than any

// Describes a row for its masses and bins. Call by one thread.
__device__ __forceinline__ Row row_of(const Nucleus& n, const RowNumbers& own, int id, float best) {
  Row row;
  i64 length = n.width;
  if (n.lengths && n.long_lengths) length = static_cast<const i64*>(n.lengths)[id];
  if (n.lengths && !n.long_lengths) length = static_cast<const int*>(n.lengths)[id];
  row.scores = static_cast<const Score*>(n.scores) + id * n.pitch;
  row.allowed = n.allowed ? n.allowed + id * n.allowed_pitch : nullptr;
  row.length = static_cast<int>(min(length, static_cast<i64>(n.width)));
  row.factor = __ddiv_rn(kLog2e, static_cast<double>(own.temperature));
  row.least_exponent = own.min_p > 0 ? log2_of(static_cast<double>(own.min_p)) : -static_cast<double>(infinity());
  row.best = best;
  row.high = static_cast<float>(row.factor);
  row.low = static_cast<float>(__dadd_rn(row.factor, -static_cast<double>(row.high)));
  row.base = fabsf(best * row.high) < kWithin ? 0.0f : best;
  row.least = -infinity();
  row.most = row.base == 0 ? infinity() : 0.0f;
  const int exponent = power_of(row.reduced(best), row.high, row.low, kRound).exponent();
  row.unit = exponent + kHeadroom;
  row.few = UnitSum::of(row.unit);
  row.least = static_cast<float>(row.unit - 64) / row.high;
  row.p = own.p;
  row.uniform = n.keep.probabilities ? -1.0f : own.uniform;
  // The flatter the row, the narrower the bins: what a mean score lacks in exponents tells how flat it is.
  const float lack = static_cast<float>(32 - __clz(row.length)) - static_cast<float>(n.keep.totals[id] - exponent);
  row.by_span = row.high / (row.base == 0 ? fminf(fmaxf(2 * lack, 0.0f) + 1, kPowers) : kPowers);
  row.best_part = best * row.by_span;
  return row;
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_logits_nucleus(const __grid_constant__ Nucleus n) {
  const Keep& k = n.keep;
  const int id = static_cast<int>(blockIdx.x / ctas_of_row());
  const int own = 2 * static_cast<int>(threadIdx.x); // first of two slots
  Shared& s = shared();
  u64* const sums = s.lists; // of the slots
  const RowNumbers given = numbers_of(k, id);
  const int flags = given.usable ? k.row_flags[id] : kIsEmpty | kIsInvalid;
  const int* positions = k.positions + static_cast<i64>(id) * k.k;
  const Score* values = static_cast<const Score*>(k.values) + static_cast<i64>(id) * k.k;
  if (threadIdx.x == 0) s.flags = flags;
  u64 total = 1; // mass of the set
  int count = 0;
  int place = -1;
  float drawn = __uint_as_float(kNanKey);
  if (given.usable && !(flags & (kHasNan | kIsEmpty))) {
    if (threadIdx.x == 0) s.row = row_of(n, given, id, widen(values[0]));
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
      sums[own + i] = mass;
    }
    mass = sum_threads(mass).before;
    sums[own] += mass;
    sums[own + 1] += mass;
    found = sum_threads(found).all; // behind a barrier after the sums and the row
    auto below = [&](u64 target) {  // number of slots up to which the mass is less
      int number = 0;
#pragma unroll 1
      for (int step = 1 << (31 - __clz(k.k)); step > 0; step /= 2)
        if (number + step <= k.k && sums[number + step - 1] < target) number += step;
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
      least = most = __ull2double_rn(sums[of - 1]);
    } else if (row.base == 0 && (endless || !k.min_p_first)) {
      const double above = __dadd_rn(k.totals[id], -static_cast<double>(row.unit - kHeadroom));
      const double size = __dmul_rn(exp2_of(__dadd_rn(above, -32.0)), kMassBits);
      least = __dmul_rn(size, 1 - kSpread);
      most = __dmul_rn(size, 1 + kSpread);
    }
    int low = of;
    int high = of;
    if (given.p < 1) {
      low = min(of, below(needed(given.p, least)) + 1);
      high = min(of, below(needed(given.p, most)) + 1);
      endless = false;
    }
    low = min(low, enough);
    high = min(high, enough);
    bool decided = low == high && high < beyond;
    if (decided) {
      count = low;
      total = sums[low - 1];
      least = most = __ull2double_rn(total);
    }
    if (!k.probabilities) {
      const u64 last = decided ? total : static_cast<u64>(kUnbounded);
      const bool bounded = decided || endless;
      const int slot = below(min(drawn_at(given.uniform, bounded ? least : 0.0), last));
      decided = slot < k.k && slot == below(min(drawn_at(given.uniform, bounded ? most : kUnbounded), last));
      if (decided) {
        place = positions[slot];
        drawn = widen(values[slot]);
      }
    }

    if (!decided) {
      u32 cut = kWorstKey;
      if (row.least_exponent > -kUnbounded) cut = row.last_key([&](float score) { return row.enough(score); });
      if (threadIdx.x == 0) {
        s.row.cut = cut;
        s.row.worst = k.min_p_first ? cut : kWorstKey;
        s.flags |= kScanned;
      }
      __syncthreads(); // the row is known, for every thread
      read_row();
      total = s.kept;
      count = static_cast<int>(s.kept_count);
      place = static_cast<int>(s.entry & 0xffffffffu);
      drawn = score_of_key(static_cast<u32>(s.entry >> 32));
    }
  }
  if (own_cta() != 0) return;
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
    if (threadIdx.x == 0) k.counts[id] = count;
    if (threadIdx.x == 0 && count > k.columns) s.flags |= kOverCapacity;
  } else if (threadIdx.x == 0) {
    const double scaled = __dmul_rn(static_cast<double>(drawn), s.row.factor);
    k.tokens[id] = place;
    k.logprobs[id] = static_cast<float>(__dmul_rn(__dadd_rn(scaled, -k.totals[id]), kLn2));
  }
  if (threadIdx.x == 0) k.flags[id] = s.flags;
}
