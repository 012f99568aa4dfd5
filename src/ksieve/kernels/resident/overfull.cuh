// Resident rows that buckets do not decide. A plateau shows in the samples, and its value is tried at once. An overfull
// bucket, or the last one, which has every score no better than the bracket's worse end, is read once more and divided
// by keys.
#pragma once
#include "resident/buckets.cuh"

// Writes the positions of marked scores to the output at once: the memory of collected positions is a histogram of keys
// here. All CTAs of a row take output slots from one counter. Call by whole warps.
template <class Scope> __device__ __forceinline__ void emit_marks(const Marks& marks, int slot) {
  int out_slot = reserve_many(&Scope::owner().descriptors[slot].num_selected, marks.count());
  const int first = own_first(slot);
  const int k = descriptor_at(slot).slots;
  int* out = descriptor_at(slot).out;
#pragma unroll
  for (int w = 0; w < kWords; ++w)
    for (u32 bits = marks.word[w]; bits && out_slot < k; ++out_slot)
      out[out_slot] = shown_position(index_of_mark(w, take_bit(bits), first), slot);
}
// Writes the position of this thread's score outside the body to the output.
template <class Scope> __device__ __forceinline__ void emit_edge(int slot) {
  int out_slot = atomicAdd(&Scope::owner().descriptors[slot].num_selected, 1);
  if (out_slot < descriptor_at(slot).slots)
    descriptor_at(slot).out[out_slot] = shown_position(load_edge(slot).at, slot);
}

// Writes any `remaining_k` of the `count` equal scores of all CTAs to the last of the row's slots. Call by whole warps.
// Where equal scores are many, or registers few, threads reserve slots for one vector at a time: otherwise a few
// threads would write them all.
template <class Scope>
__device__ __forceinline__ void emit_equal(const Marks& equal, bool edge_equal, int count, int remaining_k, int slot) {
  int* taken = &Scope::owner().descriptors[slot].tail_count;
  const int first = own_first(slot);
  int* out = descriptor_at(slot).out + (descriptor_at(slot).slots - remaining_k);
  auto write = [&](int w, u32 some, int out_slot) {
    for (; some && out_slot < remaining_k; ++out_slot)
      out[out_slot] = shown_position(index_of_mark(w, take_bit(some), first), slot);
    return out_slot;
  };
  int out_slot = reserve_many(taken, edge_equal);
  if (edge_equal && out_slot < remaining_k) out[out_slot] = shown_position(load_edge(slot).at, slot);
  const bool many = !Scope::kAlone || count > descriptor_at(slot).valid / 8;
  if (!many) out_slot = reserve_many(taken, equal.count());
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    if (!many) out_slot = write(w, equal.word[w], out_slot);
#pragma unroll 1
    for (u32 vector = (1u << kVector) - 1; many && vector && __any_sync(kFullWarp, out_slot < remaining_k);
         vector <<= kVector) {
      const u32 offered = equal.word[w] & vector;
      out_slot = reserve_many(taken, __popc(offered));
      write(w, offered, out_slot);
    }
  }
}

// Returns the marks of positions in the row; the others lie past its end, or in front of it.
__device__ __forceinline__ Marks in_row(Marks marks, int slot) {
  const int left = descriptor_at(slot).valid - own_offset();
  const int vectors = max(left + kStep - 1, 0) / kStep;
  const int count = vectors * kVector - max(vectors * kStep - (kStep - kVector) - left, 0);
#pragma unroll
  for (int w = 0; w < kWords; ++w)
    marks.word[w] &= static_cast<u32>((1ull << min(max(count - 32 * w, 0), 32)) - 1);
  if (kRoundsOut) marks.word[0] &= ~0u << max(front_of(slot) - own_offset(), 0);
  return marks;
}

// Marks this thread's scores that are better than a value (`before`), and those that equal it (`within`).
template <class Scope, bool kIsNan>
__device__ __forceinline__ void mark_by_value(int slot, float value, Divided& found, bool& edge_better,
                                              bool& edge_equal) {
  auto beats = [&](float score) { return kIsNan ? score == score : score > value; };
  auto equals = [&](float score) { return kIsNan ? score != score : score == value; };
  each_edge(slot, [&](const Edge& edge) {
    edge_better = beats(edge.score);
    edge_equal = equals(edge.score);
  });
  auto mark = [&](int vector, const float (&score)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int at = vector * kVector + i;
      found.before.word[at / 32] |= beats(score[i]) ? 1u << at % 32 : 0u;
      found.within.word[at / 32] |= equals(score[i]) ? 1u << at % 32 : 0u;
    }
  };
  constexpr bool kSkips = Scope::kAlone && !kEpilogue; // elsewhere ptxas would spill
  each_vector<Scope::kAlone, false, kSkips, false>(slot, num_valid(slot), mark, [](int) {}, [] {});
}

// Returns whether the k-th score equals the value of `key`, or is better or worse. If it is equal, the row is selected:
// no bucket is divided, and nothing is read again; ahead() runs once no thread needs the ring. Call by all threads.
enum class Kth { kEqual, kBetter, kWorse };
template <class Scope, class Ahead> __device__ __forceinline__ Kth select_equal(u32 key, int slot, Ahead ahead) {
  const float value = score_of_key(key);
  Divided found = {};
  bool edge_better = false;
  bool edge_equal = false;
  if (Scope::kAlone && value != value) { // elsewhere ptxas would spill
    mark_by_value<Scope, true>(slot, value, found, edge_better, edge_equal);
  } else {
    mark_by_value<Scope, false>(slot, value, found, edge_better, edge_equal);
  }
  const Marks better =
      in_row(found.before, slot); // scores past the row's end are read as minus infinity (clear_behind)
  const Marks equal = in_row(found.within, slot);
  auto& counted = Scope::owner().descriptors[slot];
  reserve_many(&counted.better, better.count() + edge_better);
  reserve_many(&counted.equal, equal.count() + edge_equal);
  Scope::sync(); // every thread's better and equal scores are counted, and the ring has been read
  const int remaining_k = descriptor_at(slot).slots - counted.better;
  if (remaining_k < 0) return Kth::kBetter;
  if (remaining_k > counted.equal) return Kth::kWorse;
  ahead();
  if (edge_better) emit_edge<Scope>(slot);
  emit_marks<Scope>(better, slot);
  emit_equal<Scope>(equal, edge_equal, counted.equal, remaining_k, slot);
  return Kth::kEqual;
}

// Selects a row in which samples show a plateau, if its value is the k-th score. If it is not, the value at the
// bracket's better end is tried as well, where registers suffice. Returns whether the row is selected. Call by all
// threads.
template <class Scope, class Ahead> __device__ __forceinline__ bool select_plateau(int slot, Ahead ahead) {
  const u32 plateau = descriptor_at(slot).bracket.plateau;
  if constexpr (!Scope::kAlone || !kTriesBothEnds) return select_equal<Scope>(plateau, slot, ahead) == Kth::kEqual;
  u32 key = plateau;
#pragma unroll 1
  for (;;) {
    const Kth kth = select_equal<Scope>(key, slot, ahead);
    if (kth == Kth::kEqual) return true;
    const u32 best = descriptor_at(slot).bracket.best;
    if (kth == Kth::kWorse || key == best) return false;
    key = best;
    __syncthreads(); // every thread has read the counts, which thread 0 clears
    auto& counted = shared_storage().descriptors[slot];
    if (threadIdx.x == 0) counted.better = counted.equal = 0;
    __syncthreads(); // thread 0 cleared the counts, for all
  }
}

// Bins of equal width over shifted keys, which divide the scores of one bucket. Minus infinity and NaN, the last two
// keys, have bins of their own, since many rows have masked scores. Keys better than the range are in the first bin,
// worse ones in the last but two: the k-th score may be anywhere, and still its bin is right.
struct KeyBins : Digit {
  static constexpr u32 kLowest = kMinusInfinityKey - kInfinityKey; // the shifted key of minus infinity
  static constexpr u32 kLowestBin = kBins - 2;
  static constexpr u32 kNone = kBins; // for scores that are decided already

  __device__ __forceinline__ explicit KeyBins(Digit digit) : Digit(digit) {}

  // Bins over the shifted keys of [best, worst]; the first bin lies in front of this range.
  __device__ __forceinline__ explicit KeyBins(KeyRange keys) : Digit() {
    const u32 worst = min(keys.worst, kLowest - 1);
    const u32 span = worst - min(keys.best, worst);
    shift = max(0, 32 - __clz(span) - kBinBits);
    shift += span >> shift > kBins - 5;
    base = keys.best - min(keys.best, 1u << shift);
  }

  __device__ __forceinline__ u32 of(u32 key) const {
    const u32 number = min((max(key, base) - base) >> shift, kLowestBin - 1);
    return key >= kLowest ? key - kLowest + kLowestBin : number;
  }

  // Returns the keys of `all` that fall into a bin.
  __device__ __forceinline__ KeyRange keys_of(u32 bin, KeyRange all) const {
    if (bin >= kLowestBin) return {kLowest + bin - kLowestBin, kLowest + bin - kLowestBin};
    const u32 low = base + (bin << shift);
    const u32 high = bin == kLowestBin - 1 ? kLowest - 1 : low + ((1u << shift) - 1);
    return {bin ? max(all.best, low) : all.best, min(all.worst, high)};
  }
};

// Adds one to a key's bin, unless it is kNone.
__device__ __forceinline__ void count_key(u32 bin) {
  count_shared_unless<KeyBins::kNone>(shared_address(shared_storage().histogram) + bin * 4, bin);
}

// Loads this thread's undecided scores again, which `left` marks, and calls visit(bin, w, bit) for each; for the other
// scores of their vectors the bin is kNone. With kUnrolled, `bit` is a constant for the compiler. Call by whole warps.
template <class Bins, bool kUnrolled, class Visit>
__device__ __forceinline__ void each_undecided(const Marks& left, int slot, KeyBins keys, Visit visit) {
  const Score* scores = static_cast<const Score*>(descriptor_at(slot).scores) + own_first(slot);
  constexpr int kInWord = 32 / kVector;
  constexpr int kScores = kUnrolled && kSmThreads <= 512 ? 32 : kEach > 32 && kSmThreads >= 1024 ? 8 : 16;
  constexpr int kTogether = kScores / kVector;
  auto look = [&](int w, int from) {
    const u32 marks = left.word[w] >> from * kVector;
    Raw raw[kTogether] = {};
#pragma unroll
    for (int v = 0; v < kTogether; ++v)
      if (marks >> v * kVector & ((1u << kVector) - 1)) raw[v] = Bins::read_again(scores, w * kInWord + from + v);
#pragma unroll
    for (int v = 0; v < kTogether; ++v)
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int bit = v * kVector + i;
        visit(marks >> bit & 1 ? keys.of(shifted_key(unpack_ranked(raw[v], i))) : KeyBins::kNone, w,
              from * kVector + bit);
      }
    keep_apart(); // the loads of several words
  };
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const int vectors = min(kInWord, kVectors - w * kInWord);
    if constexpr (kUnrolled) {
#pragma unroll
      for (int from = 0; from < vectors; from += kTogether)
        look(w, from);
    } else {
#pragma unroll 1
      for (int from = 0; from < vectors; from += kTogether)
        look(w, from);
    }
  }
}

// Counts the undecided scores in bins, returns the bin of the `remaining_k`-th, and divides the scores by it. Call by
// all threads. In one CTA registers keep the scores' bins; where several CTAs share a row the bins would spill, and the
// scores are loaded once more.
template <class Scope, class Bins>
__device__ __forceinline__ FoundBin divide_keys(const Marks& left, int slot, KeyBins keys, int remaining_k,
                                                Divided& divided) {
  if constexpr (Scope::kAlone && kKeepsBins) {
    BucketIds bins = {};
    each_undecided<Bins, true>(left, slot, keys, [&](u32 bin, int w, int bit) {
      const int at = w * 32 + bit;
      count_key(bin);
      if (at < kEach) bins.pair[at / 2] |= bin << at % 2 * 16;
    });
    const FoundBin found = Scope::find_again(remaining_k);
    divided = divide(bins, found.bin);
    return found;
  } else {
    each_undecided<Bins, false>(left, slot, keys, [&](u32 bin, int, int) { count_key(bin); });
    const FoundBin found = Scope::find_again(remaining_k);
    divided = {};
    each_undecided<Bins, false>(left, slot, KeyBins(shared_storage().rule.digit), [&](u32 bin, int w, int bit) {
      divided.before.word[w] |= bin < static_cast<u32>(found.bin) ? 1u << bit : 0u;
      divided.within.word[w] |= bin == static_cast<u32>(found.bin) ? 1u << bit : 0u;
    });
    return found;
  }
}

// Most undecided scores that are ranked at once: in one CTA by a thread each, elsewhere by one warp.
template <class Scope> constexpr int kMaxRanked = Scope::kAlone && kSharedCapacity >= 256 ? 256 : kTailMax;

// Ranks `listed` scores, one in each thread, and writes the best `remaining_k` to the last of the row's slots. Call by
// all threads, behind a barrier.
__device__ __forceinline__ void write_ranked(int slot, int listed, int remaining_k) {
  const u64* list = shared_list(shared_storage());
  const int at = static_cast<int>(threadIdx.x);
  if (at >= listed) return;
  int rank = 0;
#pragma unroll 4
  for (int other = 0; other < listed; ++other)
    rank += list[other] < list[at];
  if (rank < remaining_k)
    descriptor_at(slot).out[descriptor_at(slot).slots - remaining_k + rank] =
        shown_position(entry_index(list[at]), slot);
}

// Selects from bucket `bin` (or a coarse bin) that has more scores (`count`) than are ranked at once, or from the last
// bucket, where nothing is known of the scores. `better` marks scores in better buckets. The bucket's scores (`last`)
// are loaded again and divided by their keys, until few are left, or all have one value, or exactly `remaining_k` are
// left. A round is one traversal; the range of the bucket's keys is nearly known, so one round mostly suffices. A score
// outside the body is loaded each time: few threads have one. Call by all threads.
template <class Scope, class Bins = BracketBuckets>
__device__ __noinline__ void select_overfull_bucket(int slot, Marks better, Marks last, int bin, int remaining_k,
                                                    int count) {
  constexpr int kMost = kMaxRanked<Scope>;
  SharedStorage& s = shared_storage();
  constexpr int kDivisions = 6; // 1 that may miss, 4 for all 32 bits of a key, 1 in case scores change under the kernel
  auto edge_key = [&] { return shifted_key(load_edge(slot).score); };
  bool edge_last = false;
  each_edge(slot, [&](const Edge& edge) {
    const int number = Bins::of(edge.score, slot);
    if (number < bin) emit_edge<Scope>(slot);
    edge_last = number == bin;
  });
  emit_marks<Scope>(better, slot);
  KeyRange keys = {0, KeyBins::kLowest + 1}; // range that contains the k-th score's key
  KeyRange likely = Bins::keys_of(bin, slot);
#pragma unroll 1
  for (int round = 0; count > kMost && count != remaining_k && keys.best != keys.worst && round < kDivisions; ++round) {
    const KeyBins likely_bins(likely);
    if (edge_last) count_at(likely_bins.of(edge_key()) * 4);
    if (threadIdx.x == 0) { // kept in registers, they would be spilled by the search
      s.rule.digit = likely_bins;
      s.rule.best = keys.best;
      s.rule.worst = keys.worst;
    }
    Divided divided;
    const FoundBin found = divide_keys<Scope, Bins>(last, slot, likely_bins, remaining_k, divided);
    const KeyBins bins(s.rule.digit);
    likely = keys = bins.keys_of(found.bin, {s.rule.best, s.rule.worst});
    if (kFewValues && keys.worst - keys.best < Source::kKeyStep) keys.best = keys.worst; // they have one value
    const u32 edge_bin = edge_last ? bins.of(edge_key()) : KeyBins::kNone;
    if (edge_bin < static_cast<u32>(found.bin)) emit_edge<Scope>(slot);
    edge_last = edge_bin == static_cast<u32>(found.bin);
    emit_marks<Scope>(divided.before, slot);
    last = divided.within;
    remaining_k -= found.before;
    count = found.count;
    __syncthreads(); // every thread has read the rule and the histogram, which the next round writes
  }
  if (count != remaining_k && count <= kMost && keys.best != keys.worst) {
    list_marked<Scope, kMost>(last, slot);
    if (edge_last) list_last<Scope, kMost>(load_edge(slot).at, load_edge(slot).score, slot);
    Scope::sync(); // every thread's undecided scores are listed
    if constexpr (kMost > kTailMax) {
      write_ranked(slot, count, remaining_k);
    } else {
      Scope::write_listed(slot, count, remaining_k);
    }
  } else {
    emit_equal<Scope>(last, edge_last, count, remaining_k, slot);
  }
}
