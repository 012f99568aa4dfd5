// What the first scan of a row folds besides its selection: the log-sum-exp (model/logits.py), with KSIEVE_FOLD.
// Powers of two are added as integers, so that every order, split and batch gives the same bytes.
//   1. 1,024 reference positions give the unit of the sums, before the scan
//   2. each thread adds its scores' powers to a double whose last place is the unit: the sum's rounding makes integers
//      of them. Scores above the unit are rare, and are added to a second sum in shared memory
// What follows behind the scan is in stream/fold_end.cuh.
#pragma once
#include "common/doubles.cuh"
#include "stream/filter.cuh"

#if !KSIEVE_FOLD
// Scans with a visitor, and folds what it sees if `folds`, which is then false.
template <class Visitor>
__device__ __forceinline__ void scan_and_fold(const Score* scores, int begin, int end, Visitor& visitor, bool&) {
  scan(scores, begin, end, visitor);
}
__device__ __forceinline__ void prefetch_references(const Row&) {}
__device__ __forceinline__ void begin_fold() {}
__device__ __forceinline__ void note_references(const Row&) {}
__device__ __forceinline__ void wait_for_references(const Params&, const Row&) {}
#else
#include "common/powers.cuh"

// Bits of a row's flags: model/logits.py. kAgain is never written: the row has to be summed again.
enum FoldFlags : u32 {
  kHasNan = 1,
  kIsEmpty = 2,
  kTokenOutside = 4,
  kIsInvalid = 16,
  kHasInfinity = 32,
  kAgain = 1u << 16
};

constexpr int kAbove = 20; // most that an exponent may be above the unit's
constexpr int kReferences = 1024;
constexpr int kTokensTogether = 4; // tokens of a row that are ranked together

// State of a row in shared memory, where no row is described.
struct alignas(16) FoldState {
  u64 sum;       // of powers up to the unit's exponent, in units
  u64 above;     // of the others, in units * 2^22
  double factor; // log2(e) / temperature
  double total;  // logarithm to base 2 of the sum
  float high;    // the factor
  float low;     // what its rounding left
  float base;    // what scores are reduced by, before they are scaled
  u32 reference; // ordered key of the best reference score
  u32 flags;
  u32 better[kTokensTogether]; // scores that are better than a token
  __device__ __forceinline__ static FoldState& of_row() {
    return *reinterpret_cast<FoldState*>(&shared_storage().descriptors[0]);
  }
};
static_assert(sizeof(FoldState) <= sizeof(SharedStorage::descriptors) && kMaxResident == 0, "rows are streamed");

// Returns the greatest score of a batch; NaN if one is.
__device__ __forceinline__ float greatest_of(const Raw (&raw)[kBatch]) {
  Raw most = raw[0];
  auto join = [](u32 a, u32 b) {
    if constexpr (kInWord == 2) return greater_or_nan_halves<!Stored::kConverts>(a, b);
    return __float_as_uint(greater_or_nan(__uint_as_float(a), __uint_as_float(b)));
  };
#pragma unroll
  for (int w = 1; w < kBatch * 4; ++w)
    most.word[0] = join(most.word[0], raw[w / 4].word[w % 4]);
  return kInWord == 2 ? greater_or_nan(unpack(most, 0), unpack(most, 1)) : unpack(most, 0);
}

// Adds the scores that a thread reads to the sums of the row.
struct Fold {
  u64 units;     // sum of the thread's powers
  float factor;  // FoldState::high
  float rest;    // FoldState::low
  float lowest;  // lower scores count as this one, whose power is rounded to 0
  float highest; // scores up to this one are not above the unit; NaN: nothing is folded
  UnitSum few;   // of powers

  // Call behind the barrier after the reference, or not `folds`.
  __device__ __forceinline__ explicit Fold(bool folds) {
    const FoldState& state = FoldState::of_row();
    factor = state.high;
    rest = state.low;
    const int unit = unit_of_row();
    few = UnitSum::of(unit);
    units = 0;
    const float inverse = __fdividef(1.0f, factor);
    const float limit = static_cast<float>(unit + 1);
    lowest = static_cast<float>(unit - 64) * inverse;
    highest = (limit - fmaxf(0x1p-14f, fabsf(limit) * 0x1p-21f)) * inverse;
    if (!folds || !within()) highest = __uint_as_float(kNanKey);
  }

  // Returns whether scores up to the reference can be reduced.
  __device__ __forceinline__ static bool within() {
    const FoldState& state = FoldState::of_row();
    return fabsf((score_of_key(state.reference) - state.base) * state.high) < kWithin;
  }

  // Returns the exponent of the unit: a unit is 2^-kFraction times its power.
  __device__ __forceinline__ static int unit_of_row() {
    const FoldState& state = FoldState::of_row();
    return power_of(score_of_key(state.reference) - state.base, state.high, state.low, kRound).exponent() + kHeadroom;
  }

  // Returns what a score adds to a sum, if it is not above the unit.
  __device__ __forceinline__ double term(float score) const { return few.term(fmaxf(score, lowest), factor, rest); }

  // Takes a score that is above the unit, or no number. Returns whether there was such a score.
  __device__ __forceinline__ bool take(float score) const {
    FoldState& state = FoldState::of_row();
    if (!(score < infinity())) {
      atomicOr(&state.flags, score != score ? kHasNan : kHasInfinity);
      return true;
    }
    const Power power = power_of(score, factor, rest, kRound);
    const int over = power.exponent() - unit_of_row();
    if (over <= 0) return false;
    if (over > kAbove) {
      atomicOr(&state.flags, kAgain);
    } else {
      atomicAdd(&state.above, static_cast<u64>(power.mantissa()) << (over - 1));
    }
    return true;
  }

  // Adds the thread's sum to the row's. Call by whole warps.
  __device__ __forceinline__ void finish() const {
    constexpr int kPart = 22; // bits that 32 lanes add in 32
    u64 total = 0;
#pragma unroll
    for (int bit = 0; bit < 64; bit += kPart)
      total += static_cast<u64>(__reduce_add_sync(kFullWarp, static_cast<u32>(units >> bit) & ((1u << kPart) - 1)))
               << bit;
    if ((threadIdx.x & 31) == 0) atomicAdd(&FoldState::of_row().sum, total);
  }

  // Adds a batch, whose shared address in the ring is `ring`. Call by whole warps.
  __device__ __forceinline__ void see(Raw (&raw)[kBatch], u32 ring) {
    constexpr int kScores = kBatch * kVector;
    if (highest != highest) return;
    if (unlikely(!(greatest_of(raw) <= highest))) {
      u32 high = 0;
      u32 taken = 0;
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        high |= unpack(raw[i / kVector], i % kVector) <= highest ? 0u : 1u << i;
      while (high) {
        const u32 bit = take_bit(high);
        if (take(read_back(ring, bit))) taken |= 1u << bit;
      }
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        if (taken >> i & 1) Stored::put(raw[i / kVector], i % kVector, kWorstBits);
    }
    double sums[2] = {few.empty(), few.empty()};
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      sums[i % 2] += term(unpack(raw[i / kVector], i % kVector));
    units += few.units(sums[0]);
    units += few.units(sums[1]);
  }

  // Adds one score, or none.
  __device__ __forceinline__ void edge(float score, bool valid) {
    if (highest != highest) return;
    if (valid && !(score <= highest) && take(score)) valid = false;
    if (!valid) return;
    units += few.units(few.empty() + term(score));
  }
};

// A visitor of a scan that folds too, if `folds`.
template <class Visitor> struct Folding : Visitor {
  Fold fold;
  __device__ __forceinline__ Folding(const Visitor& visitor, bool folds) : Visitor(visitor), fold(folds) {}
  __device__ __forceinline__ void see(const Raw (&raw)[kBatch], u32 ring, int first, Left left) {
    Visitor::see(raw, ring, first, left);
    Raw own[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
      own[u] = raw[u];
    fold.see(own, ring);
  }
  __device__ __forceinline__ void edge(float score, int index, bool valid) {
    Visitor::edge(score, index, valid);
    fold.edge(score, valid);
  }
  __device__ __forceinline__ void finish() {
    Visitor::finish();
    fold.finish();
  }
};

template <class Visitor>
__device__ __forceinline__ void scan_and_fold(const Score* scores, int begin, int end, Visitor& visitor, bool& folds) {
  Folding<Visitor> both(visitor, folds);
  folds = false;
  scan(scores, begin, end, both);
}

// Returns a reference position: all of a short row's are, else 32 groups of 32 in equal distances.
__device__ __forceinline__ int reference_at(u32 number, int length) {
  constexpr u32 kLast = kReferences / 32 - 1;
  if (length <= kReferences) return static_cast<int>(number);
  return static_cast<int>(number / 32 * static_cast<u32>(length - 32) / kLast + number % 32);
}

// Prefetches what note_references loads: held in registers until then, it would be spilled. Call by all threads.
__device__ __forceinline__ void prefetch_references(const Row& row) {
  const int at = reference_at(threadIdx.x / 2 * 32 + threadIdx.x % 2 * 31, row.length); // the ends of a group
  if (threadIdx.x < kReferences / 16 && at < row.length) prefetch_to_l2<false>(row.scores + at);
}

// Begins the sums of a row. Call by all threads; a barrier must follow.
__device__ __forceinline__ void begin_fold() {
  FoldState& state = FoldState::of_row();
  if (threadIdx.x != 0) return;
  state.sum = state.above = 0;
  state.base = 0.0f;
  state.reference = kNanKey;
  state.flags = 0;
}

// Notes the best reference score of a row, whose sums have begun behind a barrier. Call by all threads; a barrier must
// follow.
__device__ __forceinline__ void note_references(const Row& row) {
  u32 best = kNanKey;
#pragma unroll
  for (u32 first = 0; first < kReferences; first += kThreads) {
    const int at = reference_at(first + threadIdx.x, row.length);
    if (first + threadIdx.x < kReferences && at < row.length)
      best = min(best, order_key(allowed_score(widen(row.scores[at]), at)));
  }
  best = __reduce_min_sync(kFullWarp, best);
  if ((threadIdx.x & 31) == 0) atomicMin(&FoldState::of_row().reference, best);
}

// Waits for the references, and finds the factor of scores. Call by all threads.
__device__ __forceinline__ void wait_for_references(const Params& p, const Row& row) {
  FoldState& state = FoldState::of_row();
  if (threadIdx.x == kThreads - 1) {
    const float temperature = p.fold.temperature ? p.fold.temperature[row.id] : p.fold.usual_temperature;
    const double factor = __ddiv_rn(kLog2e, static_cast<double>(temperature));
    state.factor = factor;
    state.high = static_cast<float>(factor);
    state.low = static_cast<float>(__dadd_rn(factor, -static_cast<double>(state.high)));
  }
  __syncthreads(); // the reference and the temperature are known, for every thread
}

#endif
