// Selection of a narrow row by one warp, whose lanes keep the scores in registers. With many rows, instructions decide:
//   1. each lane finds its best score; bisection of these 32 gives a cutoff that hardly more than k scores reach
//   2. each lane marks its scores that reach the cutoff; the range of keys behind it is halved until at most 32 scores
//      are between two cutoffs that fewer than k and at least k scores reach, or all of them are equal
//   3. scores that reach the better cutoff are selected; those between are listed, one for each lane, and ranked by
//      comparing each with all
// Scores are compared as floats, so that none but each lane's best is turned into a key. NaN reaches no cutoff: a row
// of fewer than k numbers takes all of them, and then others.
#pragma once
#include "epilogue/epilogue.cuh"
#include "length_bins.cuh"

constexpr int kLanes = 32;
constexpr int kLaneVectors = kMaxResident / kWarpStep; // vectors of a lane, for the longest row
static_assert(kInRegisters && kLaneVectors * kWarpStep == kMaxResident && kLaneVectors * kVector <= 64, "marks fit");
static_assert(kOrder == Order::kAny && !kTies && !kStats, "the planner takes another family");

// Lanes whose best score reaches the first cutoff, at most, unless k is larger: so many that the scores which reach it
// are mostly fewer than 32.
constexpr int kMostBest = 14;

constexpr float kEmptySum = 1 << 23; // integers are added to the low bits of its mantissa

constexpr u32 kLowKeyBits = Stored::kKeyRest; // no cutoff lies between keys that differ in these alone

// What a warp lists in shared memory: where the candidates of other families are.
struct alignas(16) WarpList {
  float score[kLanes];
  int along[kLanes]; // LaneScores::wrapped
  __device__ __forceinline__ static WarpList& own() {
    return reinterpret_cast<WarpList*>(shared_list(shared_storage()))[threadIdx.x / kLanes];
  }
};
static_assert(kWarps * sizeof(WarpList) <= kSharedCapacity * sizeof(u64), "planning/memory.py: storage_of");

// The lane's scores of a row, in vectors that are aligned: the first may begin before the row, and has the row's last
// scores in the place of those if the others have no room for them. Where no score is, there is NaN.
template <int kVectors> struct LaneScores {
  static constexpr int kScores = kVectors * kVector, kRoom = kVectors * kWarpStep; // of the lane, of the warp
  using Marks = typename Choose<(kScores > 32), u64, u32>::Type; // a bit for each of the lane's scores

  Raw raw[kVectors];
  int first; // position of the lane's first score

  __device__ __forceinline__ LaneScores(const Params& p, const Row& row, int lane) : raw() {
    const int misaligned = static_cast<int>(reinterpret_cast<u64>(row.scores) / sizeof(Score) % kVector);
    first = lane * kVector - misaligned;
    if constexpr (kSegments) {
      load_rounded(p, row, misaligned);
      return;
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      raw[v] = {kNothing, kNothing, kNothing, kNothing};
      if (whole(v, row.length)) raw[v] = ranked_words(load_once(row.scores + first + v * kWarpStep));
    }
    if (!unlikely(misaligned != 0 || row.length % kVector != 0)) return;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (whole(v, row.length) || first + v * kWarpStep >= row.length) continue;
#pragma unroll
      for (int at = v * kVector; at < (v + 1) * kVector; ++at)
        if (position(at) < row.length) put(raw[v], at % kVector, row.scores[position(at)]);
    }
  }

  // Loads a segment as vectors that may have scores of its neighbours, which are replaced.
  __device__ __forceinline__ void load_rounded(const Params& p, const Row& row, int misaligned) {
    const Score* flat = static_cast<const Score*>(p.scores);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      raw[v] = {kNothing, kNothing, kNothing, kNothing};
      const int begin = first + v * kWarpStep;
      if (begin >= row.length) continue;
      const Score* from = row.scores + begin;
      const bool inside = from >= flat && from + kVector <= flat + p.pitch;
      if (inside) raw[v] = ranked_words(load_once(from));
      if (inside && whole(v, row.length)) continue;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const bool own = static_cast<u32>(begin + i) < static_cast<u32>(row.length);
        if (own && !inside) put(raw[v], i, row.scores[begin + i]);
        if (!own) Stored::put(raw[v], i, kNothing);
      }
    }
    if (!unlikely(row.length + misaligned > kRoom)) return;
#pragma unroll
    for (int at = 0; at < kVector; ++at)
      if (along(at) < 0 && position(at) < row.length) put(raw[0], at, row.scores[position(at)]);
  }

  // Returns whether all of a vector is in a row.
  __device__ __forceinline__ bool whole(int v, int length) const {
    return (v > 0 || first >= 0) && first + v * kWarpStep + kVector <= length;
  }

  // Returns the position of the lane's score `at`.
  __device__ __forceinline__ int position(u32 at) const { return wrapped(along(at)); }
  __device__ __forceinline__ int along(u32 at) const {
    return first + static_cast<int>(at + at / kVector * (kWarpStep - kVector));
  }
  __device__ __forceinline__ static int wrapped(int along) { return along < 0 ? along + kRoom : along; }

  __device__ __forceinline__ float best() const {
    float found = score_of_key(kMinusInfinityKey);
#pragma unroll
    for (int at = 0; at < kScores; ++at)
      found = fmaxf(found, unpack_ranked(raw[at / kVector], at % kVector)); // the number, if one of them is NaN
    return found;
  }

  // Marks the scores that reach a cutoff: adds powers of two to the mantissa of a float, 16 of them at a time.
  __device__ __forceinline__ Marks reaching(float cutoff) const {
    float sums[4] = {kEmptySum, kEmptySum, kEmptySum, kEmptySum};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      Raw some = raw[v];
      if (kInWord > 1) KSIEVE_AWAIT_WORDS(some); // otherwise two registers for each word are kept
#pragma unroll
      for (int at = v * kVector; at < (v + 1) * kVector; ++at)
        sums[at / 16] = fmaf(one_if_at_least(unpack_ranked(some, at % kVector), cutoff),
                             static_cast<float>(1 << at % 16), sums[at / 16]);
    }
    const auto joined = [](float low, float high) {
      return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x5410);
    };
    const u32 low = joined(sums[0], sums[1]);
    if constexpr (kScores <= 32) {
      return low;
    } else {
      return static_cast<u64>(joined(sums[2], sums[3])) << 32 | low;
    }
  }

  // Marks the scores of a row.
  __device__ __forceinline__ Marks all(int length) const {
    Marks marks = 0;
#pragma unroll 1
    for (int at = 0; at < kScores; ++at)
      if (position(at) < length) marks |= Marks{1} << at;
    return marks;
  }

private:
  static constexpr u32 kNothing = 0x7fff7fff; // NaN in each score of a word
  __device__ __forceinline__ static void put(Raw& to, int i, Score score) {
    Stored::put(to, i, ranked_word(bits_of(score)));
  }
};

__device__ __forceinline__ u32 count_of(u32 marks) { return __popc(marks); }
__device__ __forceinline__ u32 count_of(u64 marks) { return __popcll(marks); }

// Removes the lowest mark and returns its number, as take_bit does.
__device__ __forceinline__ u32 take_bit(u64& marks) {
  const u64 rest = marks & (marks - 1);
  const u32 bit = 63 - __clzll(static_cast<i64>(marks ^ rest));
  marks = rest;
  return bit;
}

// Scores of a warp that reach a cutoff: the lane's marks, and how many they are in all lanes.
template <class Marks> struct Reached {
  Marks marks;
  int count;
};

// What is known of the k-th score's key: `better` reach the last key in front of the range, and are fewer than k;
// `within` reach its worst key.
template <class Marks> struct KthBracket {
  KeyRange keys;
  Reached<Marks> better;
  Reached<Marks> within;

  // Halves the range, by what reaches its middle.
  template <class Reach> __device__ __forceinline__ void halve(int k, Reach reach) {
    const u32 middle = (keys.best + (keys.worst - keys.best) / 2) | kLowKeyBits;
    const Reached<Marks> found = reach(middle);
    if (found.count < k) {
      keys.best = middle + 1;
      better = found;
    } else {
      keys.worst = middle;
      within = found;
    }
  }
  __device__ __forceinline__ bool divisible() const { return keys.worst - keys.best > kLowKeyBits; }
};

// Returns a bracket of the k-th score, with hardly more than kLanes scores that are within and not better, unless these
// are equal.
template <int kVectors, class Marks = typename LaneScores<kVectors>::Marks>
__device__ __forceinline__ KthBracket<Marks> bracket_of(const LaneScores<kVectors>& mine, int k) {
  const u32 key = number_key(mine.best());
  const auto reaching = [&](u32 cutoff) {
    const Marks marks = mine.reaching(score_of_key(cutoff));
    return Reached<Marks>{marks, static_cast<int>(__reduce_add_sync(kFullWarp, count_of(marks)))};
  };
  const auto lanes_reaching = [&](u32 cutoff) {
    return Reached<Marks>{0, __popc(__ballot_sync(kFullWarp, key <= cutoff))};
  };
  const KeyRange bests = {__reduce_min_sync(kFullWarp, key) & ~kLowKeyBits, __reduce_max_sync(kFullWarp, key)};
  KthBracket<Marks> found = {bests, {0, 0}, {0, kLanes}};
  if (k <= kLanes) {
    const int most = max(k, kMostBest);
#pragma unroll 1
    while (found.within.count > most && found.divisible())
      found.halve(k, lanes_reaching);
  }
  const Reached<Marks> first = reaching(found.keys.worst);
  found.keys.best = bests.best;
  found.better = {0, 0};
  found.within = first;
  if (first.count < k) { // more than there are lanes, or than numbers
    found = {{found.keys.worst + 1, kMinusInfinityKey}, first, reaching(kMinusInfinityKey)};
    found.keys.best &= ~kLowKeyBits;
  }
  found.keys.worst |= kLowKeyBits;
#pragma unroll 1
  while (found.within.count - found.better.count > kLanes && found.within.count != k && found.divisible())
    found.halve(k, reaching);
  return found;
}

// Ranks up to 32 listed scores, one for each lane; returns whether the lane's is one of the best k. Lanes have the
// positions of `count` of them.
__device__ __forceinline__ bool rank_listed(WarpList& list, const Row& row, int position, int count, int k, int lane) {
  const float score = lane < count ? widen(row.scores[position]) : score_of_key(kMinusInfinityKey);
  list.score[lane] = score;
  __syncwarp(); // every lane's score is listed
  float better = kEmptySum;
#pragma unroll 1
  for (int from = 0; from < count; from += 4) {
    const Words others = load_shared_words(shared_address(list.score + from));
#pragma unroll
    for (int i = 0; i < 4; ++i)
      better += one_if_above(__uint_as_float(others.word[i]), score);
  }
  int rank = static_cast<int>(__float_as_uint(better) & 0xffff);
  // Equal scores have equal ranks. Where too many have one of the first k, lanes below come first.
  if (__popc(__ballot_sync(kFullWarp, rank < k)) > k) rank += __popc(__match_any_sync(kFullWarp, rank) & lanes_below());
  return rank < k;
}

// Selects a row of more than k scores. Call by a warp.
template <int kVectors, class Shown>
__device__ __forceinline__ void select_narrow(const Params& p, int* out, const Row& row, int k, int lane, Shown shown) {
  // Segments differ more than rows do: fewer vectors take fewer instructions.
  if constexpr (kSegments && kVectors > 1)
    if (row.length <= kVectors / 2 * kWarpStep) return select_narrow<kVectors / 2>(p, out, row, k, lane, shown);
  using Lane = LaneScores<kVectors>;
  const Lane mine(p, row, lane);
  const auto found = bracket_of(mine, k);
  auto sure = found.better;
  decltype(sure) others = {found.within.marks & ~sure.marks, found.within.count - sure.count};
  if (found.within.count <= k) {
    sure = found.within;
    others = {0, 0};
    if (unlikely(sure.count < k)) others = {mine.all(row.length) & ~sure.marks, row.length - sure.count};
  }
  // One sum gives both offsets: of the sure ones in the low half, of the others in the high half.
  const u32 own = count_of(sure.marks) | count_of(others.marks) << 16;
  const u32 before = lanes_up_to(own) - own;
  int slot = static_cast<int>(before & 0xffff);
  while (sure.marks)
    out[slot++] = shown(mine.position(take_bit(sure.marks)));
  if (others.count == 0) return;
  int number = static_cast<int>(before >> 16);
  if (others.count > kLanes) { // all of them equal: any
    for (slot = sure.count + number; others.marks && slot < k; ++slot)
      out[slot] = shown(mine.position(take_bit(others.marks)));
    return;
  }
  WarpList& list = WarpList::own();
  while (others.marks)
    list.along[number++] = mine.along(take_bit(others.marks));
  __syncwarp(); // every position is listed
  const int position = Lane::wrapped(list.along[lane]);
  const bool chosen = rank_listed(list, row, position, others.count, k - sure.count, lane);
  slot = sure.count + __popc(__ballot_sync(kFullWarp, chosen) & lanes_below());
  if (chosen && slot < k) out[slot] = shown(position);
}

// Writes the answer of a row with at most k scores: every position, then -1, in all slots. Call by a warp.
template <class Shown>
__device__ __forceinline__ void write_all(int* out, int length, int slots, int lane, Shown shown) {
#pragma unroll 1
  for (int i = lane; i < slots; i += kLanes)
    out[i] = i < length ? shown(i) : -1;
}
