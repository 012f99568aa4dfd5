// Selection of a short row whose scores stay in registers. With hardly more rows than CTAs, latency decides, so nothing
// is sampled:
//   1. scores are counted by coarse bin as they arrive; the bin of the k-th score is found
//   2. positions in better bins are collected, scores of that bin listed
//   3. collected positions are written while the listed scores are ranked
// An overfull bin is divided by keys: from the ring (count_again), or by resident/overfull.cuh. Of 16-bit scores each
// new bin has one value, and is not ranked. The row is waited for once, and there are six barriers.
#pragma once
#include "resident/overfull.cuh"

static_assert(kInRegisters && kFits && kMaxResident == kTile, "one CTA has all of a row");
constexpr int kRankListMax = kThreads < 512 ? kThreads / 2 : 256; // scores of the k-th bin that are ranked at once
constexpr int kTogether = kThreads < 512 ? 32 : 64;               // listed scores that a thread compares in one step
constexpr int kPickBits = kEach <= 8 ? 3 : kEach <= 16 ? 4 : 5;
static_assert(kWords == 1 && kOverflowVectors == 0 && kOrder == Order::kAny);

// The coarse bins of this thread's scores, kept as bucket numbers are (BucketIds).
struct CoarseBins {
  static constexpr u32 kNone = kBins; // bin of scores that are not in the row; counted as well, without a branch

  __device__ __forceinline__ static void count(u32 bin) { count_at(bin * 4); }

  // Returns the 16-bit keys of two neighbouring scores (coarse_keys). Of 16-bit scores, -0 may be worse than +0 here:
  // they are equal, and any of them complete an answer.
  __device__ __forceinline__ static u32 keys_of_pair(const Raw& raw, int i) {
    if constexpr (Stored::kPairs == Pairs::kFloat16) return coarse_keys_of_halves(raw.word[i / 2]);
    if constexpr (kFewValues) return coarse_keys_of_halves(halves_of(unpack_ranked(raw, i + 1), unpack_ranked(raw, i)));
    return coarse_keys(unpack_ranked(raw, i), unpack_ranked(raw, i + 1));
  }

  // Counts two neighbouring scores, of which the first `left` are in the row; returns their bins.
  __device__ __forceinline__ static u32 count_pair(const Raw& raw, int i, int left) {
    const u32 bins = keys_of_pair(raw, i) >> 5 & 0x07ff07ff;
    const u32 there = left > 1 ? bins : left == 1 ? __byte_perm(bins, kNone, 0x5410) : kNone * 0x10001u;
    count(there & 0xffff);
    count(there >> 16);
    return there;
  }

  // For resident/overfull.cuh: read_again loads a vector of scores once more, and `of` returns a score's bin.
  __device__ __forceinline__ static Raw read_again(const Score*, int vector) {
    return load_shared_words(own_ring() + vector * kStageBytes);
  }
  __device__ __forceinline__ static int of(float score, int) { return coarse_bin(score); }
  __device__ __forceinline__ static KeyRange keys_of(int bin, int) {
    const KeyRange keys = ::keys_of_bin(bin);
    return {max(keys.best, kInfinityKey) - kInfinityKey, max(keys.worst, kInfinityKey) - kInfinityKey};
  }
};

// A row in registers: 16-byte vectors, and in a few threads a score outside the body.
struct LoadedRow {
  Row row;
  Body body;
  Raw raw[kVectors];
  Edge edge;

  __device__ __forceinline__ int first() const { return body.begin + own_offset(); }

  __device__ __forceinline__ LoadedRow(const Row& all, int limit)
      : row(all), body(copied_body(all, 0, all.length, limit)), raw(), edge() {
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      if (first() + v * kStep < body.end) raw[v] = ranked_words(load_once(row.scores + first() + v * kStep));
    if (!unlikely(body.begin != 0 || body.end < row.length)) return;
    edge.at = static_cast<int>(threadIdx.x);
    if (edge.at >= body.begin) edge.at += body.end - body.begin;
    edge.valid = threadIdx.x < 2 * kVector && edge.at < row.length;
    if (edge.valid) edge.score = widen(row.scores[edge.at]);
  }

  // Returns one of this thread's scores, by binary choice: registers have no addresses.
  __device__ __forceinline__ float pick(u32 at) const {
    float some[1 << kPickBits];
#pragma unroll
    for (int i = 0; i < 1 << kPickBits; ++i)
      some[i] = i < kEach ? unpack_ranked(raw[i < kEach ? i / kVector : 0], i % kVector) : 0.0f;
#pragma unroll
    for (int bit = kPickBits - 1; bit >= 0; --bit)
#pragma unroll
      for (int i = 0; i < 1 << (kPickBits - 1); ++i)
        if (i < 1 << bit) some[i] = at >> bit & 1 ? some[i + (1 << bit)] : some[i];
    return some[0];
  }
};

// Lower bits of a key, which distinguish the keys of a bin: 5 of the mantissa's 23 bits distinguish bins.
constexpr int kKeyBits = 18;

// The list of scores in the k-th score's bin: the number that each is ranked by, and its position. Keys of a bin are
// close to each other (keys_are_close), so their low bits, followed by the number in the list, rank the scores. The
// numbers are stored negated, so that one instruction compares two.
struct RankList {
  int negated[kRankListMax + kTogether];
  unsigned short position[kRankListMax];

  static constexpr int kNumberBits = 8;
  static_assert(kRankListMax <= 1 << kNumberBits, "numbers fit");

  __device__ __forceinline__ static int rank_by(u32 key, u32 number) {
    return -static_cast<int>(key << kNumberBits | number);
  }
  __device__ __forceinline__ static RankList& of_row() {
    return *reinterpret_cast<RankList*>(shared_list(shared_storage()));
  }
  // Ends the list with a value worse than any score of the bin: the low 24 bits of its keys begin at 2^18 times its
  // number.
  __device__ __forceinline__ void end(u32 bin, int number) {
    negated[number] = rank_by((bin << kKeyBits) + (1 << 21), 0);
  }

  // Stores a score and its position as entry `number` of the list.
  __device__ __forceinline__ void put(int number, float score, int at) {
    negated[number] = rank_by(number_key(score), number);
    position[number] = static_cast<unsigned short>(at);
  }
};
static_assert(sizeof(RankList) <= kSharedCapacity * sizeof(u64) && kMaxResident <= 1 << 16);

// Returns whether the keys of a bin are less than 2^22 apart: not with infinities, nor with numbers that are subnormal
// in float16.
__device__ __forceinline__ bool keys_are_close(int bin) {
  constexpr int kOctave = 1024 / 32; // bins of an octave
  constexpr int kSign = kBins / 2;
  return static_cast<u32>(bin % kSign - kOctave) < kSign - 2 * kOctave;
}

// Ranks `count` listed scores, four threads for each, and gives the best `remaining_k` to put(rank, position). Call by
// whole warps, behind a barrier.
template <class Put> __device__ __forceinline__ void write_listed(int count, int remaining_k, Put put) {
  constexpr int kSharers = 4;
  const RankList& listed = RankList::of_row();
  const int thread = reread_tid(); // read here, not kept since before the row's length arrived
  const RingSlot* others = reinterpret_cast<const RingSlot*>(listed.negated) + thread % kSharers;
#pragma unroll 1
  for (int at = thread / kSharers; (at & ~7) < count; at += kThreads / kSharers) {
    const int mine = -listed.negated[at];
    const int position = listed.position[at < count ? at : 0];
    int rank = 0;
    int from = 0;
#pragma unroll 1
    do {
#pragma unroll
      for (int i = 0; i < kTogether / 4; i += kSharers) {
        const RingSlot some = others[from / 4 + i];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          rank += __viaddmin_s32_relu(mine, static_cast<int>(some.word[j]), 1);
      }
      from += kTogether;
    } while (from < count);
    rank += __shfl_xor_sync(kFullWarp, rank, 1);
    rank += __shfl_xor_sync(kFullWarp, rank, 2);
    if (thread % kSharers == 0 && at < count && rank < remaining_k) put(rank, position);
  }
}

// Describes the row for resident/overfull.cuh. Call by all threads. It is rare, so it is a function of its own, which
// loads the row's facts again.
__device__ __noinline__ void describe_loaded(const Params& p, int id) {
  const Row row = load_row(p, id);
  RowDescriptor& to = shared_storage().descriptors[0];
  if (threadIdx.x == 0) {
    describe(p, row, 0, row.length, limit_of(p), to);
    clear_row(to);
  }
  __syncthreads(); // thread 0 described the row, for all
}

// Result of count_again.
struct Again {
  u32 chosen; // marks of scores better than the k-th score's new bin; `last` marks those in it
  u32 last;
  int remaining_k;
  FoundBin found;
};

// Divides the marked scores of a bin, which are in the ring, by the distance of their keys from the bin's first: into
// bins of 2^7 keys, then of one key if needed. Of 16-bit scores, 2^7 keys are one value: the values of a bin whose keys
// are close are float16 without rounding. Call by all threads. It is rare, so it is a function of its own.
__device__ __noinline__ Again count_again(u32 marks, int bin, int remaining_k) {
  constexpr int kUpper = 8; // bits of a key that carry no information
  Again again = {0, marks, remaining_k, {}};
  u32 base = static_cast<u32>(bin) << kKeyBits;
#pragma unroll 1
  for (int shift = kKeyBits - kBinBits; shift >= 0; shift -= kKeyBits - kBinBits) {
    BucketIds bins;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Raw raw = load_shared_words(own_ring() + v * kStageBytes);
      auto number = [&](int i) {
        const int beyond = static_cast<int>((number_key(unpack_ranked(raw, i)) - base) << kUpper) >> (kUpper + shift);
        return again.last >> (v * kVector + i) & 1 ? static_cast<u32>(min(max(beyond, 0), kBins - 1))
                                                   : CoarseBins::kNone;
      };
#pragma unroll
      for (int i = 0; i < kVector; i += 2) {
        const u32 one = number(i);
        const u32 next = number(i + 1);
        CoarseBins::count(one);
        CoarseBins::count(next);
        bins.pair[(v * kVector + i) / 2] = one | next << 16;
      }
    }
    again.found = CtaScope::find_kth_bin(again.remaining_k, [] {});
    const Divided divided = divide(bins, again.found.bin);
    again.chosen |= divided.before.word[0];
    again.last = divided.within.word[0];
    again.remaining_k -= again.found.before;
    if (kFewValues || again.found.count == again.remaining_k || again.found.count <= kRankListMax) break;
    base += static_cast<u32>(again.found.bin) << shift;
  }
  return again;
}

// Positions that a CTA collects, in place of its histogram.
__device__ __forceinline__ int* collected_loaded() { return reinterpret_cast<int*>(shared_storage().ring); }

// Selects a row of more than k scores. Call by all threads. The histogram is zero before; afterwards it may hold
// positions, where the ring has no room for all. With kWritesShares, returns whether positions are collected, for whom
// a barrier must follow, and loads what their slots need; otherwise they are written.
__device__ __forceinline__ bool select_loaded(const Params& p, const LoadedRow& loaded, int k, SlotFacts& facts) {
  SharedStorage& s = shared_storage();
  const Edge& edge = loaded.edge;
  const int valid = min(loaded.body.end, loaded.row.length) - loaded.first();
  BucketIds bins;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int i = 0; i < kVector; i += 2)
      bins.pair[(v * kVector + i) / 2] = CoarseBins::count_pair(loaded.raw[v], i, valid - v * kStep - i);
  const int edge_bin = edge.valid ? coarse_bin(edge.score) : CoarseBins::kNone;
  if (unlikely(edge.valid)) CoarseBins::count(edge_bin);
  FoundBin found = CtaScope::find_kth_bin(k, release_dependents);
  const int bin = found.bin;
  int remaining_k = k - found.before;
  const Divided divided = divide(bins, bin);
  u32 chosen = divided.before.word[0];
  u32 last = divided.within.word[0];
  bool equal = false; // the scores of the bin have one value
  auto overfull = [&] { return found.count != remaining_k && (found.count > kRankListMax || !keys_are_close(bin)); };
  if (unlikely(overfull())) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      s.ring[v][threadIdx.x] = reinterpret_cast<const RingSlot&>(loaded.raw[v]);
    // count_again divides scores of the body alone: it needs a row without scores outside the body.
    if (keys_are_close(bin) && loaded.body.begin == 0 && loaded.body.end >= loaded.row.length) {
      const Again again = count_again(last, bin, remaining_k);
      chosen |= again.chosen;
      last = again.last;
      remaining_k = again.remaining_k;
      found = again.found;
      equal = kFewValues && found.count != remaining_k && found.count > kRankListMax;
    }
    if (!equal && overfull()) {
      describe_loaded(p, loaded.row.id);
      select_overfull_bucket<CtaScope, CoarseBins>(0, {chosen}, {last}, bin, remaining_k, found.count);
      return false;
    }
  }
  const bool whole = found.count == remaining_k;
  const bool edge_chosen = edge_bin < bin + whole;
  const bool edge_last = !whole && edge_bin == bin; // not if the scores are equal: count_again has no edges
  if (whole) {
    chosen |= last;
    last = 0;
  }
  // One sum gives both offsets: of collected positions in the low half, of listed scores in the high half.
  const u32 mine = __popc(chosen) + edge_chosen + (__popc(last) + edge_last << 16);
  if (!whole && !equal && threadIdx.x < kTogether) RankList::of_row().end(bin, found.count + threadIdx.x);
  if (kWritesShares) facts = SlotFacts::of(p, loaded.row.id);
  const u32 before = sum_threads(mine).before;
  int* positions = collected_loaded(); // k of them: also where the histogram is, which is not in use now
  u32 to = shared_address(positions + (before & 0xffff));
  const int first = loaded.first();
#pragma unroll
  for (int at = 0; at < kEach; ++at)
    store_shared_if(to, chosen & 1u << at, index_of_bit(at, first));
  if (edge_chosen) store_shared(to, edge.at);
  int number = static_cast<int>(before >> 16);
  if (kFewValues && equal) // any of them complete the answer
    for (int place = k - remaining_k + number; last && place < k; ++place)
      positions[place] = index_of_bit(take_bit(last), first);
  while (last && !(kFewValues && equal)) { // two at a time, for more parallelism
    const u32 one = take_bit(last);
    const bool more = last != 0;
    const u32 other = more ? take_bit(last) : one;
    const float score = loaded.pick(one);
    const float next = loaded.pick(other);
    RankList::of_row().put(number, score, index_of_bit(one, first));
    if (more) RankList::of_row().put(number + 1, next, index_of_bit(other, first));
    number += 1 + more;
  }
  if (edge_last) RankList::of_row().put(number, edge.score, edge.at);
  __syncthreads(); // every thread's positions are collected, and its scores listed
  auto shown = [&](int position) { return kWindows && !kEpilogue ? position + loaded.row.base : position; };
  int* out = row_output(p, loaded.row.id);
  const int collected = whole || equal ? k : k - remaining_k;
  // Some warps rank while the others write, if no more than three quarters of the warps are needed for the list.
  const int ranking = whole || equal ? 0 : (found.count + 7) / 8 * 32;
  const bool apart = ranking <= kThreads / 4 * 3;
  const int writer = static_cast<int>(threadIdx.x) - (apart ? ranking : 0);
  if constexpr (kWritesShares) {
    if (!whole && !equal)
      write_listed(found.count, remaining_k, [&](int rank, int position) { positions[collected + rank] = position; });
    return true;
  }
  if (!whole && !equal && (!apart || writer < 0))
    write_listed(found.count, remaining_k,
                 [&, last = out + collected](int rank, int position) { last[rank] = shown(position); });
  if (writer >= 0)
    write_collected<false>(out, positions, collected, collected, shown, apart ? kThreads - ranking : kThreads, writer);
  return true;
}
