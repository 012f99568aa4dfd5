// Steps that scores of a held row are counted by, and the output positions that are collected from them.
#pragma once
#include "heldrow.cuh"

// The ordered key shifted, so that +infinity is 0 and NaN of either sign needs not be asked for: it gets the worst key.
__device__ __forceinline__ u32 shifted_key(float score, u32 worst = kMinusInfinityKey - kInfinityKey + 1) {
  return min(number_key(score) - kInfinityKey, worst);
}

// Scores from `most` down to `least` in equal steps, numbered from 0; the last has whatever is no better than `least`.
// A step is a float: kOne + number, whose bits are as far apart as the numbers are.
struct Steps {
  static constexpr float kOne = 0x1p23f;
  static constexpr u32 kOneBits = 0x4b000000;
  static constexpr float kGreatest = 0x1.fffffep127f;
  float scale;
  float offset;

  // Infinity and NaN are replaced by the nearest that has steps; infinite scores are in the first step or in the last.
  __device__ __forceinline__ static float finite(float score) { return fminf(fmaxf(score, -kGreatest), kGreatest); }

  // A sixteenth of the distance: the whole one may be twice the greatest float. Of subnormal scores it may come out as
  // nothing or less.
  __device__ __forceinline__ static float sixteenth(float least, float most) {
    return finite(most) * 0x1p-4f - finite(least) * 0x1p-4f;
  }

  // `least` itself is not beyond: its product is rounded up.
  __device__ __forceinline__ Steps(float least, float most) {
    const float low = finite(least);
    scale = finite(most) > low ? __fdividef(0x1p-4f, fmaxf(sixteenth(least, most), 0x1p-126f)) : 1.0f;
    offset = -__fmul_ru(low, scale);
  }

  __device__ __forceinline__ float of(float score) const {
    return __fmaf_rd(__saturatef(fmaf(score, scale, offset)), 1.0f - kBins, kOne + (kBins - 1));
  }

  // Every score is counted, the many of the last step too: the hardware adds up what lanes do to one address.
  __device__ __forceinline__ static void count(float step) {
    u32 first = static_cast<u32>(__cvta_generic_to_shared(shared_storage().histogram)) - kOneBits * sizeof(u32);
    asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(first + __float_as_uint(step) * 4) : "memory");
  }

  // 1 for a step less than `bound`, another one, otherwise 0.
  __device__ __forceinline__ static float before(float step, float bound) { return __saturatef(bound - step); }
  __device__ __forceinline__ static float numbered(int number) { return kOne + static_cast<float>(number); }
};

// The steps of the range that was found, from shared memory. Where scores go over so many octaves that few steps are
// left for the last of them, or are too small to be multiplied, they are spread first: how far their keys are from that
// of `least` takes their place. Not where `least` is near zero by chance, as a mean of samples of either sign.
struct FoundSteps {
  static constexpr int kWide = 6 << 23; // ordered keys in 6 octaves: a step is then 1/32 of the last one
  u32 least;
  u32 most;
  bool spreads;

  __device__ __forceinline__ explicit FoundSteps(int slot) {
    const volatile HeldRow& row = held_row(slot);
    least = row.least;
    most = row.most;
    const float range = Steps::sixteenth(score_of_key(least), score_of_key(most));
    spreads = range < 0x1p-126f ? most < least : !row.signs && static_cast<int>(least - most) > kWide;
  }

  __device__ __forceinline__ Steps steps() const {
    return spreads ? Steps(0, static_cast<float>(least - most)) : Steps(score_of_key(least), score_of_key(most));
  }

  __device__ __forceinline__ float spread(float score) const {
    const u32 end = least - kInfinityKey;
    return static_cast<float>(end - shifted_key(score, end));
  }

  __device__ __forceinline__ float of(float score) const { return steps().of(spreads ? spread(score) : score); }
};

// What the samples of a warp are.
struct Sampled {
  KeyRange range;
  bool signs;  // whether its end is not positive
  u32 plateau; // the key of their value, if most are one; 0 if not
};

// The best of all begins the range, the mean of where the warps' end ends it.
__device__ __forceinline__ void fold_sampled(const Sampled& warp, HeldRow& row, u32 warps) {
  atomicMin(&row.most, warp.range.best);
  atomicAdd(&row.least, warp.range.worst / warps);
  if (warp.signs) atomicOr(&row.signs, 1);
  if (rarely(warp.plateau != 0)) atomicMax(&row.plateau, warp.plateau);
}

// Who holds a row: one CTA.
struct Alone {
  __device__ __forceinline__ static SharedStorage& owner() { return shared_storage(); }
  __device__ __forceinline__ static bool owns() { return true; }
  __device__ __forceinline__ static void sync() { __syncthreads(); }

  // Folds what a warp found in its samples into a row. A barrier of all must follow.
  __device__ __forceinline__ static void fold(const Sampled& warp, int slot) {
    if ((threadIdx.x & 31) == 0) fold_sampled(warp, shared_storage().held[slot], kWarps);
  }

  // find_boundary over what all have counted.
  __device__ __forceinline__ static Boundary find(int rank) {
    __syncthreads(); // the tail is counted
    return find_boundary(rank);
  }

  // The first of `count` output slots for this CTA; behind a barrier.
  __device__ __forceinline__ static int reserve(int) { return 0; }
};

// Output positions of this CTA before they are written in order: threads have a few each, and would write a sector of
// memory for every one.
__device__ __forceinline__ int* collected() { return reinterpret_cast<int*>(shared_list(shared_storage())); }

__device__ __forceinline__ void collect(int index, int slot) {
  collected()[atomicAdd(&shared_storage().held[slot].emitted, 1)] = index;
}

__device__ __forceinline__ void collect_bits(u32 bits, int slot) {
  int place = reserve_many(&shared_storage().held[slot].emitted, __popc(bits));
  const int first = held_first(slot);
  for (; bits; ++place)
    collected()[place] = index_of_bit(take_bit(bits), first);
}

// Lists an unresolved score for the owner of the row.
template <class Holders> __device__ __forceinline__ void list_last(int index, float score, int slot) {
  SharedStorage& owner = Holders::owner();
  int place = atomicAdd(&owner.held[slot].few_count, 1);
  if (place < kFewest) owner.few[place] = make_entry(order_key(score), index);
}
template <class Holders> __device__ __forceinline__ void list_bits_left(u32 bits, int slot) {
  const Score* scores = static_cast<const Score*>(held_row(slot).scores);
  while (bits) {
    int index = index_of_bit(take_bit(bits), held_first(slot));
    list_last<Holders>(index, widen(scores[index]), slot);
  }
}

// What is written for a position.
__device__ __forceinline__ int held_position(int index, int slot) {
  return KSIEVE_WINDOWS && !kFinish ? index + held_row(slot).base : index;
}

// Writes what was collected. Of `listed` scores, if any, the best `quota` go behind everybody's. Nobody waits for it.
template <class Holders> __device__ __forceinline__ void write_answer(int slot, int listed, int quota) {
  const int k = held_row(slot).slots;
  int* out = held_row(slot).out;
  if (listed) {
    Holders::sync(); // all are collected, and listed
  } else {
    __syncthreads(); // all are collected
  }
  if (listed && Holders::owns() && threadIdx.x < 32) {
    RankedEntry mine = rank_few(listed);
    if (static_cast<int>(threadIdx.x) < listed && mine.rank < quota)
      out[k - quota + mine.rank] = held_position(entry_index(mine.entry), slot);
  }
  const int emitted = held_row(slot).emitted;
  const int from = Holders::reserve(emitted);
  const int count = min(emitted, k - from);
  for (int i = threadIdx.x; i < count; i += kThreads)
    out[from + i] = held_position(collected()[i], slot);
}
