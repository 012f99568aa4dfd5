// What the first scan of a row folds besides its selection: the log-sum-exp (model/logits.py), with KSIEVE_FOLD.
// Powers of two are added as integers, so that every order, split and batch gives the same bytes.
//   1. 1,024 reference positions give the unit of the sums, before the scan
//   2. each thread adds its scores' powers to a double whose last place is the unit: the sum's rounding makes integers
//      of them. Scores above the unit are rare, and are added to a second sum in shared memory
//   3. the last CTA of the row joins the sums. A row with a score far above its reference is summed again
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
__device__ __forceinline__ void prefetch_references(const Params&, const Row&) {}
__device__ __forceinline__ void begin_fold() {}
__device__ __forceinline__ void note_references(const Params&, const Row&) {}
__device__ __forceinline__ void wait_for_references(const Params&, const Row&, bool) {}
__device__ __forceinline__ void finish_fold(const Params&, const Row&, bool) {}
__device__ __forceinline__ void fold_short(const Params&, const Row&) {}
__device__ __forceinline__ void publish_fold(const Params&, const Row&, RowState*) {}
__device__ __forceinline__ void join_fold(const Params&, const Row&, RowState*) {}
#else
// Bits of a row's flags: model/logits.py. kAgain is never written: the row has to be summed again.
enum FoldFlags : u32 {
  kHasNan = 1,
  kIsEmpty = 2,
  kTokenOutside = 4,
  kIsInvalid = 16,
  kHasInfinity = 32,
  kAgain = 1u << 16
};

constexpr float kRound = 12582912.0f; // 1.5 * 2^23: what is added to it is rounded to an integer
constexpr int kHeadroom = 3;          // of the unit's exponent above the reference's
constexpr int kFraction = 44;         // near powers are below 2^(kFraction + 1) units
constexpr int kAbove = 20;            // most that an exponent may be above the unit's
constexpr float kWithin = 2097152.0f; // scores whose exponents are larger are reduced first
constexpr int kReferences = 1024;
constexpr int kBias = 1023 - 127 + kFraction; // of the exponent of a double, if the unit's exponent is 0

using SharedBits = Choose<sizeof(Score) == 2, unsigned short, int>::Type;
constexpr int kTokensTogether = 16; // tokens of a row that are ranked together

// A token of a row, and how many scores are better.
struct Token {
  float score; // NaN if it is outside the row's width
  int place;   // its position; -1 if it has no rank
  int rank;
};

// State of a row in shared memory, where no row is described.
struct alignas(16) FoldState {
  u64 sum;       // of powers up to the unit's exponent, in units
  u64 above;     // of the others, in units * 2^22
  float high;    // log2(e) / temperature
  float low;     // what its rounding left
  float base;    // what scores are reduced by, before they are scaled
  u32 reference; // ordered key of the best reference score
  u32 flags;
  u32 counted; // tokens whose better scores the scan counts, as bits
  Token tokens[kTokensTogether];
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
  static constexpr u32 kNothing = 0xffffffffu, kNoSum = 0x7fffffffu; // NaN: nothing is folded, or only tokens are

  u64 units;     // sum of the thread's powers
  float factor;  // FoldState::high
  float rest;    // FoldState::low
  float magic;   // kRound, and what the double's exponent has besides the power's: an even number, as kRound is
  float lowest;  // lower scores count as this one, whose power is rounded to 0
  float highest; // scores up to this one are not above the unit; kNothing or kNoSum
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
    if (!within()) highest = __uint_as_float(kNoSum);
    if (!folds) highest = __uint_as_float(kNothing);
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

  // The power of a score: a float in [0.7, 1.42), times a power of two whose exponent is added to `magic`.
  struct Power {
    u32 bits;
    u32 rounded;
    __device__ __forceinline__ int exponent() const { // of the whole, with kRound
      return static_cast<int>((bits >> 23) + rounded - 127 - __float_as_uint(kRound));
    }
    __device__ __forceinline__ u32 mantissa() const { return (bits & 0x7fffffu) | 0x800000u; }
  };
  __device__ __forceinline__ static Power power_of(float score, float factor, float rest, float magic) {
    const float rounded = fmaf(score, factor, magic);
    const float f = fmaf(score, rest, fmaf(score, factor, -(rounded - magic)));
    float power = 0x1.416b5ep-13f;
    power = fmaf(power, f, 0x1.5f0830p-10f);
    power = fmaf(power, f, 0x1.3b2de0p-7f);
    power = fmaf(power, f, 0x1.c6af7cp-5f);
    power = fmaf(power, f, 0x1.ebfbdcp-3f);
    power = fmaf(power, f, 0x1.62e430p-1f);
    power = fmaf(power, f, 1.0f);
    return {__float_as_uint(power), __float_as_uint(rounded)};
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

  __device__ __forceinline__ u32 counted() const {
    return kTokens && __float_as_uint(highest) != kNothing ? FoldState::of_row().counted : 0;
  }

  // Counts the scores of a batch that are better than a token; they are read back, for want of registers. Call by
  // whole warps.
  __device__ __forceinline__ static void count(Token& token, u32 ring, int first) {
    u32 better = 0;
#pragma unroll 1
    for (u32 bit = 0; bit < kBatch * kVector; ++bit) {
      const float score = read_back(ring, bit);
      better += score > token.score || (score == token.score && index_of_bit(bit, first) < token.place);
    }
    better = __reduce_add_sync(kFullWarp, better);
    if ((threadIdx.x & 31) == 0) atomicAdd(&token.rank, static_cast<int>(better));
  }

  // Adds a batch, whose shared address in the ring is `ring`. Call by whole warps.
  __device__ __forceinline__ void see(Raw (&raw)[kBatch], u32 ring, int first) {
    constexpr int kScores = kBatch * kVector;
    if (!kTokens && highest != highest) return;
    const float greatest = greatest_of(raw);
#pragma unroll 1
    for (u32 left = counted(); left; left &= left - 1) {
      Token& token = FoldState::of_row().tokens[__ffs(left) - 1];
      if (__any_sync(kFullWarp, !(greatest < token.score))) count(token, ring, first);
    }
    if (kTokens && highest != highest) return;
    if (unlikely(!(greatest <= highest))) {
      u32 high = 0;
      u32 taken = 0;
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        high |= unpack(raw[i / kVector], i % kVector) <= highest ? 0u : 1u << i;
      while (high) {
        const u32 bit = take_bit(high);
        if (!take(read_back(ring, bit))) continue;
        taken |= 1u << bit;
        if (kTokens) store_shared_at<0>(shared_of_bit(ring, bit), static_cast<SharedBits>(kWorstBits));
      }
#pragma unroll
      for (int u = 0; kTokens && u < kBatch; ++u)
        raw[u] = load_shared_words(ring + u * kStageBytes);
#pragma unroll
      for (int i = 0; !kTokens && i < kScores; ++i)
        if (taken >> i & 1) Stored::put(raw[i / kVector], i % kVector, kWorstBits);
    }
    double sums[2] = {empty(), empty()};
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      add(sums[i % 2], unpack(raw[i / kVector], i % kVector));
    keep(sums[0]);
    keep(sums[1]);
  }

  // Adds one score, or none. Call by whole warps.
  __device__ __forceinline__ void edge(float score, int index, bool valid) {
#pragma unroll 1
    for (u32 left = counted(); left; left &= left - 1) {
      Token& token = FoldState::of_row().tokens[__ffs(left) - 1];
      if (valid && (score > token.score || (score == token.score && index < token.place))) atomicAdd(&token.rank, 1);
    }
    add_one(score, valid);
  }
  __device__ __forceinline__ void add_one(float score, bool valid) {
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
    fold.see(own, ring, first);
  }
  __device__ __forceinline__ void edge(float score, int index, bool valid) {
    Visitor::edge(score, index, valid);
    fold.edge(score, index, valid);
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

// Returns the place of a row's token; -1 of one that it does not have.
__device__ __forceinline__ int load_place(const Params& p, const Row& row, int number) {
  if (!kTokens || threadIdx.x >= kTokensTogether || number >= p.fold.tokens_of_row) return -1;
  const int place = p.fold.tokens[row.id * p.fold.tokens_pitch + number];
  return static_cast<u32>(place) < static_cast<u32>(p.width) ? place : -1;
}

// Returns the token at a place.
__device__ __forceinline__ Token token_at(const Row& row, int place) {
  if (place < 0) return {__uint_as_float(kNanKey), -1, 0};
  const float score = place < row.length ? widen(row.scores[place]) : -infinity();
  return {score, score > -infinity() ? place : -1, 0};
}

// Returns a reference position: all of a short row's are, else 32 groups of 32 in equal distances.
__device__ __forceinline__ int reference_at(u32 number, int length) {
  constexpr u32 kLast = kReferences / 32 - 1;
  if (length <= kReferences) return static_cast<int>(number);
  return static_cast<int>(number / 32 * static_cast<u32>(length - 32) / kLast + number % 32);
}

// Prefetches what note_references loads: held in registers until then, it would be spilled. Call by all threads.
__device__ __forceinline__ void prefetch_references(const Params& p, const Row& row) {
  const int at = reference_at(threadIdx.x / 2 * 32 + threadIdx.x % 2 * 31, row.length); // the ends of a group
  if (threadIdx.x < kReferences / 16 && at < row.length) prefetch_to_l2<false>(row.scores + at);
  if (kTokens && threadIdx.x == kThreads - 1) prefetch_to_l2<false>(p.fold.tokens + row.id * p.fold.tokens_pitch);
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

// Returns log2(e) over the temperature of a row.
__device__ __forceinline__ double factor_of(const Params& p, int id) {
  const float temperature = p.fold.temperature ? p.fold.temperature[id] : p.fold.usual_temperature;
  return __ddiv_rn(kLog2e, static_cast<double>(temperature));
}

// Notes the best reference score of a row, whose sums have begun behind a barrier, and its tokens. Call by all threads;
// a barrier must follow.
__device__ __forceinline__ void note_references(const Params& p, const Row& row) {
  FoldState& state = FoldState::of_row();
  u32 best = kNanKey;
#pragma unroll
  for (u32 first = 0; first < kReferences; first += kThreads) {
    const int at = reference_at(first + threadIdx.x, row.length);
    if (first + threadIdx.x < kReferences && at < row.length) best = min(best, order_key(widen(row.scores[at])));
  }
  best = __reduce_min_sync(kFullWarp, best);
  if ((threadIdx.x & 31) == 0) atomicMin(&state.reference, best);
  if (kTokens && threadIdx.x < kTokensTogether) {
    const int place = load_place(p, row, static_cast<int>(threadIdx.x));
    state.tokens[threadIdx.x].place = place;
    if (static_cast<u32>(place) < static_cast<u32>(row.length)) prefetch_to_l2<false>(row.scores + place);
  }
}

// Returns whether the scan of a proposal stores the scores that are better than a token: these are counted then.
__device__ __forceinline__ bool stores_better(const Token& token) {
  const ScanRule& rule = shared_storage().rule;
  return rule.mode == Mode::kInclusive && order_key(token.score) <= rule.worst;
}

// Loads the scores of tokens and decides which of them the first scan counts; waits for the references. `proposed`:
// thread 0 has written the rule of a proposal. Call by all threads.
__device__ __forceinline__ void wait_for_references(const Params& p, const Row& row, bool proposed) {
  FoldState& state = FoldState::of_row();
  if (threadIdx.x == kThreads - 1) {
    const double factor = factor_of(p, row.id);
    state.high = static_cast<float>(factor);
    state.low = static_cast<float>(__dadd_rn(factor, -static_cast<double>(state.high)));
  }
  if (kTokens && threadIdx.x < 32) {
    __syncwarp(); // the rule is visible
    bool counts = false;
    if (threadIdx.x < kTokensTogether) {
      const Token token = token_at(row, state.tokens[threadIdx.x].place);
      state.tokens[threadIdx.x] = token;
      counts = token.place >= 0 && !(proposed && stores_better(token));
    }
    const u32 counted = __ballot_sync(kFullWarp, counts);
    if (threadIdx.x == 0) state.counted = counted;
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
    fold.add_one(at < length ? widen(scores[at]) - base : 0.0f, at < length);
  }
  fold.finish();
  __syncthreads(); // every thread's sum is the row's
}

// Ranks the tokens that the scan has not counted: among the candidates, if these are all scores that reach the cutoff,
// else among the row. Call by all threads; a barrier must follow.
KSIEVE_RANK_OTHERS void rank_others(const Score* scores, int length, bool by_candidates) {
  FoldState& state = FoldState::of_row();
#pragma unroll 1
  for (int number = 0; number < kTokensTogether; ++number) {
    Token& token = state.tokens[number];
    if (token.place < 0 || state.counted >> number & 1) continue;
    const u64 own = make_entry(order_key(token.score), token.place);
    int better = 0;
    if (by_candidates && stores_better(token)) {
      each_own([&](u64 entry) { better += entry < own; });
    } else {
#pragma unroll 2
      for (int at = threadIdx.x; at < length; at += kThreads)
        better += make_entry(order_key(widen(scores[at])), at) < own;
    }
    better = static_cast<int>(__reduce_add_sync(kFullWarp, better));
    if ((threadIdx.x & 31) == 0 && better) atomicAdd(&token.rank, better);
  }
}

// Returns the base 2 logarithm of the sum of a row's powers.
__device__ __forceinline__ double log2_of_row(double factor) {
  const FoldState& state = FoldState::of_row();
  if (state.flags & kHasNan) return __longlong_as_double(-1);
  if (state.flags & kHasInfinity) return __longlong_as_double(0x7ff0000000000000ll);
  if ((state.sum | state.above) == 0) return __longlong_as_double(0xfff0000000000000ll);
  const double sum = __dadd_rn(__ull2double_rn(state.sum), __dmul_rn(__ull2double_rn(state.above), 0x1p22));
  const double found = __dadd_rn(log2_of(sum), static_cast<double>(Fold::unit_of_row() - kFraction));
  return __dadd_rn(found, __dmul_rn(static_cast<double>(state.base), factor));
}

// Writes what a row was folded to. `scanned`: whether it was folded by a scan, whose candidates are stored, if they
// fit. Call by all threads of the CTA that finishes the row, behind a barrier.
__device__ __forceinline__ void finish_fold(const Params& p, const Row& row, bool scanned) {
  FoldState& state = FoldState::of_row();
  if (unlikely(!scanned || state.flags & kAgain || !Fold::within())) fold_whole(row.scores, row.length);
  const bool by_candidates = scanned && shared_storage().count <= kCapacity;
  double total = 0;
  u32 flags = 0;
  if (threadIdx.x < 32) {
    total = log2_of_row(factor_of(p, row.id));
    if (total == __longlong_as_double(0xfff0000000000000ll)) flags |= kIsEmpty;
  }
  const int count = kTokens ? p.fold.tokens_of_row : 0;
#pragma unroll 1
  for (int first = 0; first < count; first += kTokensTogether) {
    if (first > 0) {
      __syncthreads(); // the tokens before are written
      if (threadIdx.x < kTokensTogether)
        state.tokens[threadIdx.x] = token_at(row, load_place(p, row, first + static_cast<int>(threadIdx.x)));
      if (threadIdx.x == 0) state.counted = 0;
      __syncthreads(); // the tokens are known, for every thread
    }
    rank_others(row.scores, row.length, by_candidates);
    __syncthreads(); // every better score is counted
    const int number = first + static_cast<int>(threadIdx.x);
    if (threadIdx.x >= kTokensTogether || number >= count) continue;
    const Token& token = state.tokens[threadIdx.x];
    const double scaled = __dmul_rn(static_cast<double>(token.score), factor_of(p, row.id));
    float logprob = static_cast<float>(__dmul_rn(__dadd_rn(scaled, -total), kLn2));
    if (token.score == -infinity() && total == total) logprob = -infinity();
    const i64 at = static_cast<i64>(row.id) * count + number;
    p.fold.logprobs[at] = logprob;
    p.fold.ranks[at] = token.place < 0 ? -1 : token.rank;
    const int place = p.fold.tokens[row.id * p.fold.tokens_pitch + number];
    if (static_cast<u32>(place) >= static_cast<u32>(p.width)) flags |= kTokenOutside;
  }
  if (threadIdx.x >= 32) return;
  flags = __reduce_or_sync(kFullWarp, flags);
  if (threadIdx.x != 0) return;
  if (p.fold.totals) p.fold.totals[row.id] = total;
  p.fold.logsumexp[row.id] = static_cast<float>(__dmul_rn(total, kLn2));
  flags |= (state.flags & (kHasNan | kHasInfinity)) | (usable(p, row.id) ? 0 : kIsInvalid);
  p.fold.flags[row.id] = static_cast<int>(flags);
}

// Folds a row with at most k scores. Call by all threads.
__device__ __forceinline__ void fold_short(const Params& p, const Row& row) {
  __syncthreads(); // no thread reads the state of the row before
  begin_fold();
  __syncthreads(); // thread 0 cleared the state, for all
  note_references(p, row);
  wait_for_references(p, row, false);
  if (threadIdx.x == 0) FoldState::of_row().counted = 0; // by no scan
  finish_fold(p, row, false);
}

// Returns where the parts of a row count for this thread's token.
__device__ __forceinline__ int* rank_of_row(const Params& p, const Row& row) {
  return p.fold.ranks + static_cast<i64>(row.id) * p.fold.tokens_of_row + threadIdx.x;
}

// Adds the sums of this part to the row's. Call by all threads, behind a barrier after the last sum; one must follow.
__device__ __forceinline__ void publish_fold(const Params& p, const Row& row, RowState* to) {
  const FoldState& state = FoldState::of_row();
  if (kTokens && threadIdx.x < kTokensTogether && state.counted >> threadIdx.x & 1) {
    const int better = state.tokens[threadIdx.x].rank;
    if (better) atomicAdd(rank_of_row(p, row), better);
  }
  if (threadIdx.x != 0) return;
  atomicAdd(&to->sum, state.sum);
  if (state.above) atomicAdd(&to->above, state.above);
  if (state.flags) atomicOr(&to->flags, state.flags);
}

// Loads the sums of all parts, and leaves the row's state zero. Call by the last CTA; a barrier must follow.
__device__ __forceinline__ void join_fold(const Params& p, const Row& row, RowState* from) {
  FoldState& state = FoldState::of_row();
  if (kTokens && threadIdx.x < kTokensTogether && state.counted >> threadIdx.x & 1)
    state.tokens[threadIdx.x].rank = __ldcg(rank_of_row(p, row));
  if (threadIdx.x != 0) return;
  state.sum = __ldcg(&from->sum);
  state.above = __ldcg(&from->above);
  state.flags = __ldcg(&from->flags);
  from->sum = from->above = from->flags = 0;
}
#endif
