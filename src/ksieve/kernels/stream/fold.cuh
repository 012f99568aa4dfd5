// What the first scan of a row folds besides its selection: the log-sum-exp (model/logits.py), with KSIEVE_FOLD.
// Powers of two are added as integers, so that every order, split and batch gives the same bytes.
//   1. 1,024 reference positions give the unit of the sums, before the scan
//   2. each thread adds its scores' powers to a double whose last place is the unit: the sum's rounding makes integers
//      of them. Scores above the unit are rare, and are added to a second sum in shared memory
//   3. the last CTA of the row joins the sums. A row with a score far above its reference is summed again
//   4. better scores than a token's are counted among the candidates, or, if these do not have them all, in a scan
#pragma once
#include "common/doubles.cuh"
#include "common/workspace.cuh"
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
__device__ __forceinline__ void finish_fold(const Params&, const Row&, bool) {}
__device__ __forceinline__ void fold_short(const Params&, const Row&) {}
__device__ __forceinline__ void publish_fold(RowState*) {}
__device__ __forceinline__ void join_fold(RowState*) {}
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
constexpr int kTokensTogether = 4;            // tokens of a row that are ranked together
constexpr int kBias = 1023 - 127 + kFraction; // of the exponent of a double, if the unit's exponent is 0

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
  float magic;   // kRound, and what the double's exponent has besides the power's: an even number, as kRound is
  float lowest;  // lower scores count as this one, whose power is rounded to 0
  float highest; // scores up to this one are not above the unit; NaN: nothing is folded
  u32 zero;      // upper word of a double whose last place is a unit; its lower word is 0

  // Call behind the barrier after the reference, or not `folds`.
  __device__ __forceinline__ explicit Fold(bool folds) {
    const FoldState& state = FoldState::of_row();
    factor = state.high;
    rest = state.low;
    const int unit = unit_of_row();
    const int bias = kBias - unit;
    magic = kRound + static_cast<float>(bias & ~1);
    zero = 0x43380000 - ((bias & 1) << 20); // half the unit, if `magic` lacks 1
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

  // Returns a sum to which `add` adds a few scores that are not above the unit, and `keep` keeps.
  __device__ __forceinline__ double empty() const { return __hiloint2double(static_cast<int>(zero), 0); }
  __device__ __forceinline__ void keep(double sum) {
    units += __double_as_longlong(sum) - (static_cast<u64>(zero) << 32);
  }
  // The last bit of the power in a double decides halves upwards.
  __device__ __forceinline__ void add(double& sum, float score) const {
    const Power power = power_of(fmaxf(score, lowest), factor, rest, magic);
    const u32 high = (power.rounded << 20) + (power.bits >> 3);
    sum += __hiloint2double(static_cast<int>(high), static_cast<int>(power.bits << 29 | 1));
  }

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
    double sums[2] = {empty(), empty()};
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      add(sums[i % 2], unpack(raw[i / kVector], i % kVector));
    keep(sums[0]);
    keep(sums[1]);
  }

  // Adds one score, or none.
  __device__ __forceinline__ void edge(float score, bool valid) {
    if (highest != highest) return;
    if (valid && !(score <= highest) && take(score)) valid = false;
    if (!valid) return;
    double sum = empty();
    add(sum, score);
    keep(sum);
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
    if (first + threadIdx.x < kReferences && at < row.length) best = min(best, order_key(widen(row.scores[at])));
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

// Sums a row in two passes, the first of which finds its greatest score: short ones, and those whose reference is far
// below the greatest score. Call by all threads, behind note_references and a barrier.
__device__ __noinline__ void fold_whole(const Score* scores, int length) {
  FoldState& state = FoldState::of_row();
  __syncthreads(); // every thread has read the state
  if (threadIdx.x == 0) {
    state.sum = state.above = 0;
    state.reference = kNanKey;
  }
  __syncthreads(); // thread 0 cleared the sums, for all
  u32 best = kNanKey;
  u32 flags = 0;
#pragma unroll 4
  for (int at = threadIdx.x; at < length; at += kThreads) {
    const float score = widen(scores[at]);
    if (score != score) {
      flags |= kHasNan;
    } else if (score == infinity()) {
      flags |= kHasInfinity;
    } else {
      best = min(best, order_key(score));
    }
  }
  best = __reduce_min_sync(kFullWarp, best);
  flags = __reduce_or_sync(kFullWarp, flags);
  if ((threadIdx.x & 31) == 0) {
    atomicMin(&state.reference, best);
    atomicOr(&state.flags, flags);
  }
  __syncthreads(); // the greatest score is known
  const float base = Fold::within() ? 0.0f : score_of_key(state.reference);
  __syncthreads(); // every thread has asked
  if (threadIdx.x == 0) state.base = base;
  __syncthreads(); // what scores are reduced by is known, for every thread
  Fold fold(true);
#pragma unroll 1
  for (int first = 0; first < length; first += kThreads) { // the same number of iterations for every thread
    const int at = first + static_cast<int>(threadIdx.x);
    fold.edge(at < length ? widen(scores[at]) - base : 0.0f, at < length);
  }
  fold.finish();
  __syncthreads(); // every thread's sum is the row's
}

// Some tokens of a row.
struct Tokens {
  float score[kTokensTogether]; // NaN of one without a rank, which no score reaches
  int place[kTokensTogether];   // its position; -1 of one outside the row's width

  __device__ __forceinline__ Tokens(const Params& p, const Row& row, int first) {
#pragma unroll
    for (int j = 0; j < kTokensTogether; ++j) {
      const int number = min(first + j, p.fold.tokens_of_row - 1);
      const int own = p.fold.tokens[row.id * p.fold.tokens_pitch + number];
      place[j] = static_cast<u32>(own) < static_cast<u32>(p.width) ? own : -1;
    }
#pragma unroll
    for (int j = 0; j < kTokensTogether; ++j) {
      score[j] = static_cast<u32>(place[j]) < static_cast<u32>(row.length) ? widen(row.scores[place[j]]) : -infinity();
      if (!(score[j] > -infinity())) score[j] = __uint_as_float(kNanKey);
    }
  }
};

// The visitor that counts the scores that are better than tokens.
struct CountBetter {
  const Tokens& tokens;
  u32 better[kTokensTogether] = {};

  __device__ __forceinline__ void see(const Raw (&raw)[kBatch], u32, int first, Left left) {
    const u32 valid = valid_bits(left);
#pragma unroll
    for (int j = 0; j < kTokensTogether; ++j) {
      const CutoffTest test(tokens.score[j]);
      u32 found = test.reached(raw) & valid;
      if (index_of_bit(kBatch * kVector - 1, first) >= tokens.place[j]) {
        for (u32 equal = test.equalled(raw) & found; equal;) {
          const u32 bit = take_bit(equal);
          if (index_of_bit(bit, first) >= tokens.place[j]) found ^= 1u << bit;
        }
      }
      better[j] += __popc(found);
    }
  }
  __device__ __forceinline__ void edge(float score, int index, bool valid) {
#pragma unroll
    for (int j = 0; j < kTokensTogether; ++j)
      better[j] += valid && (score > tokens.score[j] || (score == tokens.score[j] && index < tokens.place[j]));
  }
  __device__ __forceinline__ void finish() const {}
};

// Ranks some tokens: among the candidates, if these are `all` that reach the cutoff, and the tokens do; else in a scan.
// Call by all threads; thread 0 has written the row's total.
__device__ __forceinline__ void rank_tokens(const Params& p, const Row& row, int first, bool all) {
  FoldState& state = FoldState::of_row();
  const ScanRule& rule = shared_storage().rule;
  const Tokens tokens(p, row, first);
  CountBetter counts{tokens};
  if (threadIdx.x < kTokensTogether) state.better[threadIdx.x] = 0;
  bool scans = !all || rule.mode != Mode::kInclusive;
#pragma unroll
  for (int j = 0; j < kTokensTogether; ++j)
    scans |= tokens.score[j] == tokens.score[j] && order_key(tokens.score[j]) > rule.worst;
  if (scans) {
    __syncthreads(); // no thread reads candidates, for the output of a row that is complete
    start_scan(row.scores, 0, row.length);
    scan(row.scores, 0, row.length, counts);
  } else {
    u64 own[kTokensTogether];
#pragma unroll
    for (int j = 0; j < kTokensTogether; ++j)
      own[j] = make_entry(order_key(tokens.score[j]), tokens.place[j]);
    each_own([&](u64 entry) {
#pragma unroll
      for (int j = 0; j < kTokensTogether; ++j)
        counts.better[j] += entry < own[j];
    });
  }
  __syncthreads(); // counters are zero, for every thread, and the total is known
#pragma unroll
  for (int j = 0; j < kTokensTogether; ++j) {
    const u32 better = __reduce_add_sync(kFullWarp, counts.better[j]);
    if ((threadIdx.x & 31) == 0 && better) atomicAdd(&state.better[j], better);
  }
  __syncthreads(); // every better score is counted
#pragma unroll
  for (int j = 0; j < kTokensTogether; ++j) {
    if (threadIdx.x != j || first + j >= p.fold.tokens_of_row) continue;
    const float score = tokens.score[j];
    const double scaled = __dmul_rn(static_cast<double>(score), state.factor);
    float logprob = static_cast<float>(__dmul_rn(__dadd_rn(scaled, -state.total), kLn2));
    if (score != score && tokens.place[j] >= 0 && state.total == state.total) logprob = -infinity();
    const i64 at = static_cast<i64>(row.id) * p.fold.tokens_of_row + first + j;
    p.fold.logprobs[at] = logprob;
    p.fold.ranks[at] = score == score ? static_cast<int>(state.better[j]) : -1;
    if (tokens.place[j] < 0) atomicOr(&state.flags, kTokenOutside);
  }
}

// Returns the base 2 logarithm of the sum of a row's powers.
__device__ __forceinline__ double log2_of_row() {
  const FoldState& state = FoldState::of_row();
  if (state.flags & kHasNan) return __longlong_as_double(-1);
  if (state.flags & kHasInfinity) return __longlong_as_double(0x7ff0000000000000ll);
  if ((state.sum | state.above) == 0) return __longlong_as_double(0xfff0000000000000ll);
  const double sum = __dadd_rn(__ull2double_rn(state.sum), __dmul_rn(__ull2double_rn(state.above), 0x1p22));
  const double found = __dadd_rn(log2_of(sum), static_cast<double>(Fold::unit_of_row() - kFraction));
  return __dadd_rn(found, __dmul_rn(static_cast<double>(state.base), state.factor));
}

// Writes what a row was folded to. `scanned`: whether it was folded by a scan, whose candidates are stored, if they
// fit. Call by all threads of the CTA that finishes the row, behind a barrier.
__device__ __forceinline__ void finish_fold(const Params& p, const Row& row, bool scanned) {
  FoldState& state = FoldState::of_row();
  if (unlikely(!scanned || state.flags & kAgain || !Fold::within())) fold_whole(row.scores, row.length);
  if (threadIdx.x == 0) state.total = log2_of_row();
  const bool all = scanned && shared_storage().count <= kCapacity;
#pragma unroll 1
  for (int first = 0; first < p.fold.tokens_of_row; first += kTokensTogether) {
    if (first > 0) __syncthreads(); // the tokens before are written
    rank_tokens(p, row, first, all);
  }
  if (threadIdx.x >= 32) return;
  __syncwarp(); // the warp's tokens are flagged
  if (threadIdx.x != 0) return;
  const double total = state.total;
  u32 flags = state.flags & (kHasNan | kHasInfinity | kTokenOutside);
  if (total == __longlong_as_double(0xfff0000000000000ll)) flags |= kIsEmpty;
  if (p.fold.totals) p.fold.totals[row.id] = total;
  p.fold.logsumexp[row.id] = static_cast<float>(__dmul_rn(total, kLn2));
  p.fold.flags[row.id] = static_cast<int>(flags | (usable(p, row.id) ? 0 : kIsInvalid));
}

// Folds a row with at most k scores. Call by all threads.
__device__ __forceinline__ void fold_short(const Params& p, const Row& row) {
  __syncthreads(); // no thread reads the state of the row before
  begin_fold();
  __syncthreads(); // thread 0 cleared the state, for all
  note_references(row);
  wait_for_references(p, row);
  finish_fold(p, row, false);
}

// Adds the sums of this part to the row's. Call by all threads, behind a barrier after the last sum; one must follow.
__device__ __forceinline__ void publish_fold(RowState* to) {
  const FoldState& state = FoldState::of_row();
  if (threadIdx.x != 0) return;
  atomicAdd(&to->sum, state.sum);
  if (state.above) atomicAdd(&to->above, state.above);
  if (state.flags) atomicOr(&to->flags, state.flags);
}

// Loads the sums of all parts, and leaves the row's state zero. Call by the last CTA; a barrier must follow.
__device__ __forceinline__ void join_fold(RowState* from) {
  FoldState& state = FoldState::of_row();
  if (threadIdx.x != 0) return;
  state.sum = __ldcg(&from->sum);
  state.above = __ldcg(&from->above);
  state.flags = __ldcg(&from->flags);
  from->sum = from->above = from->flags = 0;
}
#endif
