// Selection of a resident row, in any scope, without a second read of it.
//   1. one score of each thread is sampled: the samples give a bracket, which misses the k-th score in about one row of
//      100,000 (bracket_ranks)
//   2. every score is counted in equal buckets between the ends (resident/buckets.cuh), and the k-th score's bucket is
//      found. Threads keep bucket numbers, two in a register, not scores: the ring is free for the next row
//   3. positions in better buckets are written; the few scores of that bucket are loaded again, from global memory, and
//      ranked by one warp
// Bucket numbers are monotone in the score, so the answer is exact whatever the samples were. resident/overfull.cuh
// selects where a bucket has too many scores.
#pragma once
#include "resident/answer.cuh"
#include "resident/overfull.cuh"

// Returns which of its multiprocessor's CTAs this one is.
__device__ __forceinline__ int turn_of_cta() { return static_cast<int>(blockIdx.x) * KSIEVE_CTAS_PER_SM / grid_size(); }

// Equal samples of a warp that make a plateau: kPlateau if the warp's bracket is their value alone, kCrowd if they end
// its bracket and the k-th score is likely among them.
constexpr int kPlateau = 8;
constexpr int kCrowd = 16;

// A sample and its rank among the samples of its warp. Ranks compare 15 bits of the keys, so that one instruction
// compares two. Minus infinity and NaN cannot end a bracket: they do not count as samples.
struct RankedSample {
  u32 ordered; // ordered key of the sample
  bool there;  // the sampled position is in the row
  bool valid;  // a number, and not minus infinity
  bool lowest; // minus infinity
  u32 better;  // samples of the warp that are better
};
// Ranks the samples of a warp. Call by whole warps.
__device__ __forceinline__ RankedSample rank_sample(float sample, bool there) {
  constexpr u32 kAbsent = 0xffffffffu; // no shifted key
  const float lowest = score_of_key(Stored::kWorstKey);
  const bool valid = there && sample > lowest;
  const u32 key = valid ? shifted_key(sample) : kAbsent;
  const u32 coarse = key >> 17;
  SharedStorage& s = shared_storage();
  const u32 thread = reread_tid();
  s.samples[thread] = static_cast<unsigned short>(-coarse);
  __syncwarp(); // every lane's sample is in `samples`, for the whole warp
  const RingSlot* pairs = reinterpret_cast<const RingSlot*>(&s.samples[thread & ~31u]);
  u32 sums = 0;
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    const RingSlot some = pairs[v];
    auto less = [&](int i) { return __viaddmin_s16x2_relu(some.word[i], coarse * 0x10001u, 0x10001u); };
    sums += less(0) + less(1) + (less(2) + less(3));
  }
  return {key + kInfinityKey, there, valid, there && sample == lowest, (sums & 0xffffu) + (sums >> 16)};
}

// Returns the bracket of a warp's samples, from the one that `first` others are better than to the one that `last`
// others are better than (bracket_ranks). Call by whole warps.
__device__ __forceinline__ WarpBracket bracket_of_samples(const RankedSample& mine, int slot) {
  const bool valid = mine.valid;
  const u32 better = mine.better;
  const u32 ordered = mine.ordered;
  const u32 first = descriptor_at(slot).first;
  const u32 last = descriptor_at(slot).last;
  u32 worst = __reduce_max_sync(kFullWarp, better <= last % 32 && valid ? ordered : 0);
  // Of samples with equal ranks, the worst one ends the bracket, and the best one begins it.
  const u32 rank = __reduce_max_sync(kFullWarp, better <= first % 32 ? better : 0);
  u32 best = __reduce_min_sync(kFullWarp, better >= rank && valid && ordered > kInfinityKey ? ordered : kNanKey);
  const int alike = __popc(__ballot_sync(kFullWarp, valid && ordered == worst));
  const u32 ahead = __popc(__ballot_sync(kFullWarp, valid && ordered < worst));
  const bool crowd = alike >= kCrowd && 4 * ahead <= 3 * (first % 32) + last % 32;
  // A bracket that ends at +infinity has no length: the k-th score is then likely +infinity, which is tried as a
  // plateau.
  u32 plateau = worst == kInfinityKey || crowd || best == worst && alike >= kPlateau ? worst : 0;
  const u32 numbers = __popc(__ballot_sync(kFullWarp, valid));
  if (unlikely(numbers <= last % 32)) { // the k-th score may be minus infinity or NaN
    const u32 lowest = __popc(__ballot_sync(kFullWarp, mine.lowest));
    const u32 all = __popc(__ballot_sync(kFullWarp, mine.there));
    if (all >= numbers + kPlateau) plateau = numbers + lowest <= last % 32 ? kNanKey : Stored::kWorstKey;
  }
  if (unlikely(numbers != 0 && (first >= 32 || last >= 32))) { // in short rows a warp may have no sample
    // Extends the bracket by multiples of its length, but not past zero, where scores span many octaves.
    const float top = score_of_key(best);
    const float end = score_of_key(worst);
    auto by = [&](u32 code) { return static_cast<float>((1 << code / 32) - 1) * (top - end); };
    const float longer = end - by(last);
    if (first >= 32) best = kInfinityKey + shifted_key(top + by(first));
    if (last >= 32) worst = kInfinityKey + shifted_key(end > 0 ? fmaxf(longer, end * 0x1p-12f) : longer);
  }
  const bool signs = worst - 1 >= kZeroKey - 1; // also if the warp has no sample: `worst` is 0 then
  return {{best, worst}, signs, plateau};
}

// Returns which score of the ring this thread samples. Lane i samples somewhere in the i-th of 32 parts of the row, by
// a hash of row and warp, so that no period of the scores meets all samples. Four warps share 64 bytes: memory is slow
// at single sectors (128 rows of 65,536 scores: 15.4 us with sectors, 14.35 us with 64 bytes).
__device__ __forceinline__ int sampled_score(int id) {
  constexpr u32 kAlike = 4;
  constexpr u32 kOthers = kSamplers / kAlike;
  constexpr u32 kPerStratum = kStages * (kWarps / kSamplers);
  static_assert(!kFits || kSamplers % kAlike == 0 && kWarps % kSamplers == 0);
  const u32 thread = reread_tid();
  const u32 warp = thread / 32;
  const u32 stratum = thread % 32 * kOthers + warp % kOthers; // numbered over lanes and groups of warps
  const u32 draw = (static_cast<u32>(id) * (32 * kOthers) + stratum) * 0x9e3779b1u;
  const u32 vector =
      (stratum * kPerStratum + ((draw >> 16) * kPerStratum >> 16)) * kAlike + (warp / kOthers + thread) % kAlike;
  return static_cast<int>(vector * kVector + (draw >> 13) % kVector);
}
// Returns the offset in the tile's body of a score of the ring.
__device__ __forceinline__ int sampled_offset(int at) {
  return kOverflowVectors ? vector_of_stage(at / kStep) * kStep + at % kStep : at;
}

// Joins this thread's sample into the bracket of a described row. Call by whole warps; a barrier of all threads must
// follow.
__device__ __forceinline__ void join_sample(float sample, int offset, int slot) {
  const bool there = offset < descriptor_at(slot).valid && (!kRoundsOut || offset >= front_of(slot));
  CtaScope::reduce_bracket(bracket_of_samples(rank_sample(sample, there), slot), slot);
}

// A sample that is loaded from global memory while the row is still being copied. It is widened where it is used:
// widened here, it would let the thread wait for memory in front of the row's copies.
struct LoadedSample {
  Score score;
  int offset; // in the tile's body
};
// Starts loading this thread's sample of a body that has `scores` scores.
__device__ __forceinline__ LoadedSample load_sample(const Score* body, int scores, int id) {
  const int offset = sampled_offset(sampled_score(id));
  return {offset < scores ? body[offset] : Score{}, offset};
}

// Returns this thread's sample of a tile of blocks, from the ring. `entries`: those in the ring.
__device__ __forceinline__ RankedSample sample_of_blocks(int id, int entries) {
  const int at = sampled_score(id);
  return rank_sample(widen(reinterpret_cast<const Score*>(shared_storage().ring)[at]), at < entries);
}

// Samples a row from the ring once its tile has arrived. Before sm_90 the samples come from global memory: a thread
// cannot wait for the copies of others.
__device__ __forceinline__ void sample_resident(int slot) {
  wait_copy(slot);
  if (!is_sampler()) return;
  const volatile RowDescriptor& row = descriptor_at(slot);
  if constexpr (kBulkCopies) {
    const int at = sampled_score(row.id);
    join_sample(widen(reinterpret_cast<const Score*>(shared_storage().ring)[at]), sampled_offset(at), slot);
  } else {
    const LoadedSample sample = load_sample(static_cast<const Score*>(row.body), row.valid, row.id);
    join_sample(widen(sample.score), sample.offset, slot);
  }
}

// Counts this thread's scores in buckets, and keeps their bucket numbers. map() turns a score (unpack_vector) into what
// is counted; ready() runs in front of the first count.
template <bool kEarly, bool kAlone, bool kCounted, class Map, class Ready>
__device__ __forceinline__ void count_buckets(int slot, int valid, LinearBuckets linear, BucketIds& ids, Map map,
                                              Ready ready) {
  auto count = [&](int vector, const float (&score)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      const float bucket = linear.of(map(score[i]));
      const float next = linear.of(map(score[i + 1]));
      LinearBuckets::count(bucket);
      LinearBuckets::count(next);
      ids.put(vector * kVector + i, bucket, next);
      if (kInWord > 1 && !kEarly && kEach > 80 && i % 4 == 2) keep_apart();
    }
  };
  auto skip = [&](int vector) {
#pragma unroll
    for (int i = 0; i < kVector; i += 2)
      ids.pair[(vector * kVector + i) / 2] = (kBins - 1) * 0x10001u;
  };
  each_vector<kEarly, true, kAlone, kCounted>(slot, valid, count, skip, ready);
}

// count_buckets for key distances (BracketBuckets::key_distance). A function of its own, and without skipped vectors:
// otherwise ptxas would spill.
__device__ __noinline__ BucketIds count_key_distances(int slot) {
  const BracketBuckets buckets(slot);
  BucketIds ids;
  auto distance = [&](float score) { return buckets.key_distance(score); };
  count_buckets<false, false, false>(slot, num_valid(slot), buckets.linear(), ids, distance, [] {});
  return ids;
}

// count_buckets for buckets of one value each (ValueBuckets).
template <bool kEarly, bool kAlone, class Ready>
__device__ __forceinline__ void count_values(int slot, int valid, ValueBuckets values, BucketIds& ids, Ready ready) {
  auto count = [&](int vector, const Raw& raw) {
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      const u32 offsets = values.of(ranked_word(raw.word[i / 2]));
      count_at(offsets & 0xffffu);
      count_at(offsets >> 16);
      ids.pair[(vector * kVector + i) / 2] = offsets;
    }
  };
  auto skip = [&](int vector) {
#pragma unroll
    for (int i = 0; i < kVector; i += 2)
      ids.pair[(vector * kVector + i) / 2] = ValueBuckets::kLast;
  };
  each_vector<kEarly, true, kAlone, false, true>(slot, valid, count, skip, ready);
}

// Most equal scores that CTAs which share a row count in the upper half of a word (Share).
constexpr int kMostShared = 0x7fff;

// Selects a sampled row. Call by all threads. Counters must be zero, or be cleared in front of the next barrier.
// ahead() runs once the whole ring has been read; meanwhile() runs while most warps would wait. Returns false for rare
// rows (resident/overfull.cuh), for which meanwhile() does not run; where CTAs share a row, also for those that tried a
// plateau.
template <class Scope, class Ahead, class Meanwhile>
__device__ __forceinline__ bool select_resident(const Params& p, int slot, Ahead ahead, Meanwhile meanwhile) {
  // With kBracketKnownEarly an earlier barrier has completed the bracket of a row in one CTA: it is read before
  // await_bracket.
  constexpr bool kBracketKnown = Scope::kAlone && kBracketKnownEarly;
  if (!kBracketKnown) Scope::await_bracket(slot);
  const Bracket bracket = kBracketKnown ? bracket_of(slot) : Bracket{0, 0, 0, descriptor_at(slot).bracket.plateau};
  const int valid = num_valid(slot);
  auto await_bracket = [&] {
    if (kBracketKnown) Scope::await_bracket(slot);
  };
  if (unlikely(bracket.plateau != 0)) {
    await_bracket();
    if (select_plateau<Scope>(slot, ahead)) return false;
  }
  BucketIds ids;
  const BracketBuckets buckets = kBracketKnown ? BracketBuckets(bracket) : BracketBuckets(slot);
  const bool by_value = kByValue && buckets.by_value;
  if (by_value) {
    if constexpr (kByValue) count_values<!kHungry, Scope::kAlone>(slot, valid, buckets.values(), ids, await_bracket);
  } else if (unlikely(buckets.uses_key_distance)) {
    await_bracket();
    ids = count_key_distances(slot);
  } else {
    auto plain = [](float score) { return score; };
    count_buckets<!kHungry, Scope::kAlone, true>(slot, valid, buckets.linear(), ids, plain, await_bracket);
  }
  each_edge(slot, [&](const Edge& edge) { LinearBuckets::count(BracketBuckets(slot).of(edge.score)); });
  const FoundBin found = Scope::find_kth_bin(descriptor_at(slot).slots, ahead);
  const int remaining_k = descriptor_at(slot).slots - found.before;
  const bool beyond = found.bin == kBins - 1; // the last bucket also has every score worse than the bracket
  bool whole = found.count == remaining_k && !beyond;
  Divided divided = divide(ids, by_value ? ValueBuckets::kStride * found.bin : found.bin);
  bool one_value = false;
  bool equal = false;
  if constexpr (kFewValues) {
    // Equal scores of the bucket need no ranking: any of them complete the answer.
    one_value = !beyond && !whole && (by_value || found.count > kTailMax) && BracketBuckets::one_value(found.bin, slot);
    equal = one_value && (Scope::kAlone || found.count <= kMostShared);
    whole = whole || equal;
    if (Scope::kAlone && equal) {
      int* taken = &shared_storage().descriptors[slot].tail_count;
      divided.within.keep(remaining_k - reserve_many(taken, divided.within.count()));
    }
  }
  if (unlikely(beyond || !whole && found.count > kTailMax)) {
    int count = beyond ? kMaxResident : found.count;
    if (kFewValues && one_value) count = remaining_k; // none of them is read again
    select_overfull_bucket<Scope>(slot, divided.before, in_row(divided.within, slot), found.bin, remaining_k, count);
    return false;
  }
  if (Scope::kAlone || !equal) divided.join(whole);
  if constexpr (!Scope::kAlone) {
    bool edge_chosen = false;
    bool edge_last = false;
    each_edge(slot, [&](const Edge& edge) {
      const int number = BracketBuckets::of(edge.score, slot);
      edge_chosen = number < found.bin + (whole && !equal);
      edge_last = (!whole || equal) && number == found.bin;
    });
    Scope::write(p, slot, divided, edge_chosen, edge_last, remaining_k, equal);
    return descriptor_at(slot).bracket.plateau == 0; // else peers read the owner's counters (select_equal)
  }
  // Prefetches one score of the k-th bucket, to hide its latency.
  const bool listing = divided.within.any();
  int early = 0;
  Score early_score = {};
  if (listing) {
    early = take_mark(divided.within, own_first(slot));
    early_score = static_cast<const Score*>(descriptor_at(slot).scores)[early];
  }
  each_edge(slot, [&](const Edge& edge) {
    const float bucket = BracketBuckets(slot).of(edge.score);
    const float kth = LinearBuckets::numbered(found.bin);
    if (kFewValues && equal && bucket == kth &&
        atomicAdd(&shared_storage().descriptors[slot].tail_count, 1) >= remaining_k)
      return;
    if (bucket < kth || whole && bucket == kth) {
      collect(edge.at, slot);
    } else if (bucket == kth) {
      list_last<Scope>(edge.at, edge.score, slot);
    }
  });
  collect_marks(divided.before, slot);
  if (kRoomy) meanwhile();
  if (listing) {
    list_last<Scope>(early, widen(early_score), slot);
    list_marked<Scope>(divided.within, slot);
  }
  if (!kRoomy) meanwhile();
  write_answer(p, slot, whole ? 0 : found.count, remaining_k);
  return true;
}
