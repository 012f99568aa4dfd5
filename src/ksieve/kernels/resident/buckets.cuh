// The buckets that scores of a resident row are counted in, and the output positions that are collected from them.
#pragma once
#include "resident/visits.cuh"

// Returns the ordered key minus the key of +infinity, at most `worst`. NaN of either sign gets `worst` without a test
// of its own.
__device__ __forceinline__ u32 shifted_key(float score, u32 worst = kMinusInfinityKey - kInfinityKey + 1) {
  return min(number_key(score) - kInfinityKey, worst);
}

// Adds one to the histogram's bin at a byte offset. The hardware combines the lanes of a warp that add to one bin.
__device__ __forceinline__ void count_at(u32 bytes) {
  constexpr int kBehind = sizeof(SharedStorage::ring); // the histogram follows the ring
  count_shared<kBehind>(shared_address(shared_bytes) + bytes);
}

// Equal buckets from `best` down to `worst`, numbered from 0; the last one has every score no better than `worst`.
// A bucket number is kept as the float kOne + number * kUnit: consecutive numbers have consecutive bit patterns, and
// subtracting the bits of kOne gives the integer.
struct LinearBuckets {
  static constexpr float kOne = 2.0f;
  static constexpr float kUnit = 0x1p-22f;
  static constexpr u32 kOneBits = 0x40000000;
  static constexpr float kGreatest = 0x1.fffffep127f;
  float scale;
  float offset;

  // Returns the nearest finite score: the ends of a bracket are finite, and infinite scores fall into the first or last
  // bucket.
  __device__ __forceinline__ static float finite(float score) { return fminf(fmaxf(score, -kGreatest), kGreatest); }

  // Returns a sixteenth of the distance between the ends, since the distance may be twice the greatest float. Between
  // subnormal ends rounding may make it zero or negative.
  __device__ __forceinline__ static float sixteenth(float worst, float best) {
    return finite(best) * 0x1p-4f - finite(worst) * 0x1p-4f;
  }

  // The product is rounded up: a score equal to `worst` then gives zero or less in of(), and falls into the last
  // bucket, as every worse score does.
  __device__ __forceinline__ LinearBuckets(float worst, float best) {
    const float low = finite(worst);
    scale = finite(best) > low ? __fdividef(0x1p-4f, sixteenth(worst, best)) : 1.0f;
    offset = -__fmul_ru(low, scale);
  }

  // The result is kOne + number * kUnit. Saturation makes NaN 0: with kNanFirst that is the first bucket, else the
  // last.
  __device__ __forceinline__ float of(float score) const {
    if constexpr (kRanking == Ranking::kNanFirst)
      return __fmaf_rd(__saturatef(fmaf(score, -scale, 1.0f - offset)), (kBins - 1) * kUnit, kOne);
    const float direction = kRanking == Ranking::kSmallest ? -scale : scale;
    return __fmaf_rd(__saturatef(fmaf(score, direction, offset)), (1 - kBins) * kUnit, kOne + (kBins - 1) * kUnit);
  }

  // Adds one to the bucket's bin. Most scores are in the last bucket; they are counted as well, without a branch.
  __device__ __forceinline__ static void count(float bucket) { count_at((__float_as_uint(bucket) - kOneBits) * 4); }

  __device__ __forceinline__ static float numbered(int number) { return kOne + static_cast<float>(number) * kUnit; }
};

// Buckets of one bfloat16 value each, from a positive one up, `floor`. Two scores are counted together, as they are in
// memory. The last bucket has every score that is no better than `floor`, and NaN; the first one every score that is
// too good for a bucket of its own. Numbers are kept times kStride: they are the offsets of bins.
constexpr bool kByValue =
    Stored::kPairs == Pairs::kBfloat16 && kBulkCopies; // before sm_90 such steps take more instructions
struct ValueBuckets {
  static constexpr int kStride = 4;
  static constexpr u32 kPair = 0x10001u;
  static constexpr u32 kLast = kStride * (kBins - 1) * kPair;
  u32 floor; // bits of the value

  // Returns the offsets of the bins of two ranked scores.
  __device__ __forceinline__ u32 of(u32 pair) const {
    const u32 height = __viaddmin_s16x2_relu(greater_halves(pair, floor * kPair), (-floor & 0xffffu) * kPair,
                                             (kBins - 1) * kPair); // values above the floor
    return kLast - kStride * height;
  }
};

// The bucket numbers of this thread's scores, two in a word.
struct BucketIds {
  u32 pair[kEach / 2];

  __device__ __forceinline__ void put(int at, float bucket, float next) {
    pair[at / 2] = __byte_perm(__float_as_uint(bucket), __float_as_uint(next), 0x5410);
  }
};

// Marks of this thread's scores: `before`, in buckets before a given one; `within`, in that bucket.
struct Divided {
  Marks before;
  Marks within;

  // With `all`, every score within is part of the answer and is moved to `before`.
  __device__ __forceinline__ void join(bool all) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      before.word[w] |= all ? within.word[w] : 0;
      within.word[w] = all ? 0 : within.word[w];
    }
  }
};

// Divides this thread's scores by comparing their bucket numbers with `number`. Each comparison gives a two-bit digit,
// 0 before it, 1 equal, 2 behind it. The digits of eight pairs fill the two halves of a word; byte permutes then
// interleave them into one bit for each score.
__device__ __forceinline__ Divided divide(const BucketIds& ids, int number) {
  const u32 less = (static_cast<u32>(1 - number) & 0xffffu) * 0x10001u;
  auto digits = [&](int from) {
    u32 all = 0;
#pragma unroll
    for (int i = from + 7; i >= from; --i)
      all = all * 4 + (i < kEach / 2 ? __viaddmin_s16x2_relu(ids.pair[i < kEach / 2 ? i : 0], less, 0x20002u) : 0);
    return all;
  };
  constexpr u32 kEven = 0x55555555u;
  Divided found;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const u32 low = digits(16 * w);
    const u32 high = digits(16 * w + 8);
    const u32 even = __byte_perm(low, high, 0x5410);
    const u32 odd = __byte_perm(low, high, 0x7632);
    const u32 behind = (odd & ~kEven) | (even >> 1 & kEven);
    constexpr int kRest = kEach % 32;
    const u32 all = kRest && w == kWords - 1 ? (1u << kRest) - 1 : ~0u;
    found.within.word[w] = (odd << 1 & ~kEven) | (even & kEven);
    found.before.word[w] = all & ~(behind | found.within.word[w]);
  }
  return found;
}

// The buckets of a row's bracket. Where the bracket spans so many octaves that the last of them gets few buckets, or is
// so narrow that its scale overflows, a score is replaced by the distance of its key from the key of `worst`. Scores
// are kept where samples of both signs show that `worst` is near zero by chance.
// Many scores of few values equal an end of their bracket: it is extended by one value on either side, so that these
// scores are neither in the last bucket nor in the first one.
struct BracketBuckets {
  static constexpr int kWide = 6 << 23; // ordered keys in 6 octaves: a linear bucket is then 1/32 of the last octave
  u32 worst;
  u32 best;
  bool uses_key_distance;
  bool by_value; // buckets have one value each (ValueBuckets): both ends are positive, and near enough

  __device__ __forceinline__ explicit BracketBuckets(int slot) : BracketBuckets(descriptor_at(slot).bracket) {}
  template <class AnyBracket>
  __device__ __forceinline__ explicit BracketBuckets(AnyBracket& bracket) : worst(bracket.worst), best(bracket.best) {
    if constexpr (kFewValues) {
      worst += Source::kKeyStep;
      best = max(best - Source::kKeyStep, kInfinityKey);
    }
    const float sixteenth = LinearBuckets::sixteenth(score_of_key(worst), score_of_key(best));
    uses_key_distance = sixteenth < 0x1p-126f ? best < worst : !bracket.signs && static_cast<int>(worst - best) > kWide;
    by_value = kByValue && best >= kInfinityKey && best <= worst && worst < kZeroKey && worst - best < kBins - 1 << 16;
  }

  __device__ __forceinline__ ValueBuckets values() const { return {score_bits(worst)}; }
  // Returns the bits of a positive bfloat16 score, given its ordered key.
  __device__ __forceinline__ static u32 score_bits(u32 key) { return ~key << 1 >> 17; }

  __device__ __forceinline__ LinearBuckets linear() const {
    return uses_key_distance ? LinearBuckets(0, static_cast<float>(worst - best))
                             : LinearBuckets(score_of_key(worst), score_of_key(best));
  }

  // Returns the distance of a ranked score's key from the key of `worst`; with kSmallest negated, as scores are.
  __device__ __forceinline__ float key_distance(float score) const {
    const u32 end = worst - kInfinityKey;
    const float distance = static_cast<float>(end - shifted_key(score, end));
    return kRanking == Ranking::kSmallest ? -distance : distance;
  }

  __device__ __forceinline__ float of(float score) const {
    if (by_value) {
      const u32 height = score > score_of_key(worst) ? (worst - number_key(score)) >> 16 : 0;
      return LinearBuckets::numbered(kBins - 1 - static_cast<int>(min(height, u32{kBins - 1})));
    }
    return linear().of(uses_key_distance ? key_distance(score) : score_of_ranked(score));
  }

  // For resident/overfull.cuh: read_again loads a vector of ranked scores once more, and `of` returns a score's bucket
  // number.
  __device__ __forceinline__ static Raw read_again(const Score* scores, int vector) {
    return ranked_words(load_scores(scores + vector * kStep));
  }
  __device__ __forceinline__ static int of(float score, int slot) {
    return static_cast<int>(__float_as_uint(BracketBuckets(slot).of(score)) - LinearBuckets::kOneBits);
  }

  // Returns whether a bucket's scores have one of few values, as far as that is known. Bucket numbers are monotone in
  // the score: that is so if of three neighbouring values the middle one alone is in the bucket.
  __device__ __forceinline__ static bool one_value(int bin, int slot) {
    if constexpr (!kFewValues) return false;
    const BracketBuckets buckets(slot);
    if (buckets.by_value) return bin != 0;
    const LinearBuckets linear = buckets.linear();
    const float fraction = 1.0f - (static_cast<float>(bin) + 0.5f) * (1.0f / (kBins - 1)); // the bucket's middle
    const float at = __fdividef(fraction - linear.offset, linear.scale);
    const u32 distance = static_cast<u32>(fmaxf(at, 0.0f));
    const float middle = buckets.uses_key_distance ? score_of_key(buckets.worst - distance) : at;
    const u32 key = narrow_key(middle);
    const bool ranked = kRanking != Ranking::kNanFirst || buckets.uses_key_distance; // else `middle` is a score
    auto in = [&](u32 other) {
      const float score = score_of_narrow_key(other);
      return (ranked ? buckets.of(score) : linear.of(score)) == LinearBuckets::numbered(bin);
    };
    return in(key) && !in(key - 1) && !in(key + 1);
  }

  // Returns a range of shifted keys that surely contains those of a bucket: one bucket more on either side, since
  // rounding may put scores there. The first bucket also has scores better than the bracket: two octaves more.
  __device__ __forceinline__ static KeyRange keys_of(int bin, int slot) {
    constexpr u32 kRounding = 8;
    const BracketBuckets buckets(slot);
    const u32 end = buckets.worst - kInfinityKey;
    if (bin == kBins - 1) return {end, kNanKey};
    if (buckets.by_value) return {0, end - (static_cast<u32>(kBins - 1 - bin) << 16)}; // the first has several values
    const LinearBuckets linear = buckets.linear();
    auto key_of = [&](int number) { // shifted key of the best score in the bucket
      const float fraction = 1.0f - static_cast<float>(number) * (1.0f / (kBins - 1));
      const float at = __fdividef(fraction - linear.offset, linear.scale);
      return buckets.uses_key_distance ? end - min(static_cast<u32>(fmaxf(at, 0.0f)), end) : shifted_key(at);
    };
    const u32 best = bin ? key_of(bin - 1) : buckets.best - kInfinityKey;
    return {best - min(best, bin ? kRounding : 2u << 23), key_of(bin + 2) + kRounding};
  }
};

// The bracket of one warp's samples.
struct WarpBracket {
  KeyRange ends;
  bool signs;  // the bracket's worse end is not positive
  u32 plateau; // ordered key of a value that is tried first as the k-th score (Bracket::plateau); 0: there is none
};

// Widens a row's bracket to include a warp's. Call by one lane of the warp; a barrier must follow.
__device__ __forceinline__ void widen_bracket(const WarpBracket& warp, RowDescriptor& row) {
  atomicMin(&row.bracket.best, warp.ends.best);
  atomicMax(&row.bracket.worst, warp.ends.worst);
  if (warp.signs) atomicOr(&row.bracket.signs, 1);
  if (unlikely(warp.plateau != 0)) atomicMax(&row.bracket.plateau, warp.plateau);
}

__device__ __forceinline__ void write_last(int slot, int listed, int remaining_k);

// Functions that resident/overfull.cuh needs of a scope, where its counters are in shared memory.
template <class Self> struct OnChip {
  // Returns the bin of the score of this rank, in a further round of counts.
  __device__ __forceinline__ static FoundBin find_again(int rank) {
    return Self::find_kth_bin(rank, [] {});
  }

  // Writes the best `remaining_k` of the listed scores, in the CTA that ranks them. Call behind a barrier of the scope.
  __device__ __forceinline__ static void write_listed(int slot, int count, int remaining_k) {
    if (Self::owns()) write_last(slot, count, remaining_k);
  }
};

// The scope of a row in one CTA.
struct CtaScope : OnChip<CtaScope> {
  static constexpr bool kAlone = true;
  __device__ __forceinline__ static SharedStorage& owner() { return shared_storage(); }
  __device__ __forceinline__ static bool owns() { return true; }
  __device__ __forceinline__ static void sync() { __syncthreads(); }

  // Widens the row's bracket to include this warp's. A barrier of all threads must follow.
  __device__ __forceinline__ static void reduce_bracket(const WarpBracket& warp, int slot) {
    KSIEVE_OPAQUE(slot); // otherwise the compiler aggregates the atomics of one lane over the warp
    if ((threadIdx.x & 31) == 0) widen_bracket(warp, shared_storage().descriptors[slot]);
  }

  __device__ __forceinline__ static void await_bracket(int) { __syncthreads(); } // every warp's bracket is in the row's

  // Returns the bucket of the score of this rank, after then() has run. Call by all threads.
  template <class Then> __device__ __forceinline__ static FoundBin find_kth_bin(int rank, Then then) {
    __syncthreads(); // every thread's scores are in the histogram
    then();
    return find_bin(rank);
  }
};

// Appends a position to the collected ones.
__device__ __forceinline__ void collect(int index, int slot) {
  collected()[atomicAdd(&shared_storage().descriptors[slot].num_selected, 1)] = index;
}

// Writes the positions of marked scores to the collected ones, from `number` on; returns the next free number.
__device__ __forceinline__ int collect_at(const Marks& marks, int first, int number) {
  u32 to = shared_address(collected() + number);
#pragma unroll
  for (int w = 0; w < kWords; ++w)
    for (u32 bits = marks.word[w]; bits;) { // two at a time: their positions are computed in parallel
      const int one = index_of_mark(w, take_bit(bits), first);
      const u32 more = bits;
      const int other = index_of_mark(w, take_bit(bits), first);
      store_shared_one_or_two(to, one, other, more);
      to += more ? 2 * sizeof(int) : sizeof(int);
    }
  return number + marks.count();
}
__device__ __forceinline__ void collect_marks(const Marks& marks, int slot) {
  const int number = reserve_many(&shared_storage().descriptors[slot].num_selected, marks.count());
  collect_at(marks, own_first(slot), number);
}

// Appends an undecided score to the list of the CTA that ranks them. The list has room for kMost: it is `tail`, or
// where kMost exceeds kTailMax the memory of the candidates' list.
template <class Scope, int kMost = kTailMax>
__device__ __forceinline__ void list_last(int index, float score, int slot) {
  auto& owner = Scope::owner();
  int number = atomicAdd(&owner.descriptors[slot].tail_count, 1);
  u64* list = owner.tail;
  if constexpr (kMost > kTailMax) list = shared_list(owner);
  if (number < kMost) list[number] = make_entry(order_key(score), index);
}
template <class Scope, int kMost = kTailMax> __device__ __forceinline__ void list_marked(const Marks& marks, int slot) {
  const Score* scores = static_cast<const Score*>(descriptor_at(slot).scores);
#pragma unroll
  for (int w = 0; w < kWords; ++w)
    for (u32 bits = marks.word[w]; bits;) {
      int index = index_of_mark(w, take_bit(bits), own_first(slot));
      list_last<Scope, kMost>(index, widen(scores[index]), slot);
    }
}

// Returns the index that is written for a position.
__device__ __forceinline__ int shown_position(int index, int slot) {
  return kWindows && !kEpilogue ? index + descriptor_at(slot).base : index;
}

// Whether the ring keeps a row until its slots are written, where they have values: L2 returns 32 bytes for each score
// that is read again, which is most of a short row. A CTA that has a multiprocessor to itself would wait for each copy.
constexpr bool kKeepsScores = kWritesValues && kFits && !kBlockRows && !kInRegisters && kOverflowVectors == 0 &&
                              (kMaxResident > kTile ? kWritesShares : kWritesSlots && KSIEVE_CTAS_PER_SM > 1);

// Returns the writer of a described row's slots. The ring has the scores of a tile from `from` on.
__device__ __forceinline__ SlotWriter writer_of(const Params& p, SlotFacts facts, int slot, int from = 0) {
  const volatile RowDescriptor& row = descriptor_at(slot);
  const int base = kWindows && !kPositions ? row.base * (kExpand ? p.options.expand : 1) : 0;
  KeptScores kept;
  if (kKeepsScores && row.route == RowRoute::kResident) {
    kept.scores = reinterpret_cast<const Score*>(shared_storage().ring) + from;
    kept.begin = row.body_begin + from;
    kept.count = static_cast<u32>(max(row.valid - from, 0));
  }
  return {p, static_cast<const Score*>(row.scores), row.id, base, facts, kept};
}

// Ranks the listed scores, and calls put(rank, position) for each of the best `remaining_k`. Call by all threads,
// behind a barrier; the last warp works, since the first ones prepare the next rows.
template <class Put> __device__ __forceinline__ void rank_last(int listed, int remaining_k, Put put) {
  if (!listed || threadIdx.x < kThreads - 32) return;
  RankedEntry mine = rank_tail(listed);
  if (static_cast<int>(threadIdx.x & 31) < listed && mine.rank < remaining_k) put(mine.rank, entry_index(mine.entry));
}
// Writes them to the last of the row's slots.
__device__ __forceinline__ void write_last(int slot, int listed, int remaining_k) {
  rank_last(listed, remaining_k, [&](int rank, int position) {
    descriptor_at(slot).out[descriptor_at(slot).slots - remaining_k + rank] = shown_position(position, slot);
  });
}
