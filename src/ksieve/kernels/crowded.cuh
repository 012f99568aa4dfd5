// Held rows that their steps do not decide. A plateau is told by the samples and taken at once; a crowded step, or the
// last one, which has whatever is no better than the sampled range, is read once more and divided by keys.
#pragma once
#include "steps.cuh"

// Collects `quota` of all holders' equal scores, any of them: a vector of each thread at a time, since otherwise few
// threads would have to write them all.
template <class Holders>
__device__ __forceinline__ void collect_equal(u32 equal, bool edge_equal, int quota, int slot) {
  int* taken = &Holders::owner().held[slot].few_count;
  int place = reserve_many(taken, edge_equal);
  if (edge_equal && place < quota) collect(load_edge(slot).at, slot);
#pragma unroll 1
  for (int stage = 0; stage < kStages && __any_sync(kFullWarp, place < quota); ++stage) {
    u32 offered = equal & ((1u << kVector) - 1) << stage * kVector;
    place = reserve_many(taken, __popc(offered));
    u32 chosen = 0;
    for (int at = place; offered && at < quota; ++at)
      chosen |= 1u << take_bit(offered);
    collect_bits(chosen, slot);
  }
}

// Samples are mostly one value. If the k-th score is that, nothing need be divided, or read again.
template <class Holders> __device__ __forceinline__ bool select_plateau(const float (&score)[kEach], int slot) {
  const float value = score_of_key(held_row(slot).plateau);
  u32 better = 0;
  u32 equal = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    better |= score[i] > value ? 1u << i : 0u;
    equal |= score[i] == value ? 1u << i : 0u;
  }
  bool edge_better = false;
  bool edge_equal = false;
  each_edge(slot, [&](const Edge& edge) {
    edge_better = edge.score > value;
    edge_equal = edge.score == value;
  });
  HeldRow& counted = Holders::owner().held[slot];
  reserve_many(&counted.better, __popc(better) + edge_better);
  reserve_many(&counted.equal, __popc(equal) + edge_equal);
  Holders::sync(); // both are counted
  const int quota = held_row(slot).slots - counted.better;
  if (quota < 0 || quota > counted.equal) return false;
  if (edge_better) collect(load_edge(slot).at, slot);
  collect_bits(better, slot);
  collect_equal<Holders>(equal, edge_equal, quota, slot);
  write_answer<Holders>(slot, 0, 0);
  return true;
}

// Extremes of the keys of all holders; behind a barrier of all, and in front of one.
template <class Holders> __device__ __forceinline__ KeyRange range_of_all(u32 best, u32 worst) {
  SharedStorage& owner = Holders::owner();
  fold_extremes(owner, best, worst);
  Holders::sync(); // the extremes are known
  KeyRange range = {owner.least, owner.greatest};
  Holders::sync(); // to everybody
  if (threadIdx.x == 0) {
    shared_storage().least = kNanKey;
    shared_storage().greatest = 0;
  }
  return range;
}

// Counts a key by a digit that begins with the best one, unless it is kGone.
constexpr u32 kGone = 0xffffffffu; // no shifted key
__device__ __forceinline__ void count_key(u32 key, Digit digit) {
  u32 bin = (key - digit.base) >> digit.shift;
  u32 at = static_cast<u32>(__cvta_generic_to_shared(shared_storage().histogram)) + bin * sizeof(u32);
  asm volatile("{\n.reg .pred there;\nsetp.ne.u32 there, %1, %2;\n@there red.shared.add.u32 [%0], 1;\n}" ::"r"(at),
               "r"(key), "n"(kGone)
               : "memory");
}

// The step of the k-th score, number `bin`, is crowded, or is the last, of which nothing is known yet. Its scores,
// `last`, are divided until few are left, or one value, or as many as are wanted: any of those will do. Whatever is
// decided gets the key kGone. The score beside the body is loaded whenever it is looked at: few threads have one.
template <class Holders>
__device__ __noinline__ void select_crowded(int slot, u32 better, u32 last, int bin, int quota) {
  SharedStorage& s = shared_storage();
  auto edge_key = [&] { return shifted_key(load_edge(slot).score); };
  bool edge_last = false;
  each_edge(slot, [&](const Edge& edge) {
    const float step = FoundSteps(slot).of(edge.score);
    if (step < Steps::numbered(bin)) collect(edge.at, slot);
    edge_last = step == Steps::numbered(bin);
  });
  collect_bits(better, slot);
  u32 key[kEach];
  const Score* scores = static_cast<const Score*>(held_row(slot).scores) + held_first(slot);
  asm volatile("" : "+l"(scores)); // one address for all loads
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    Raw raw = {};
    if (last >> stage * kVector & ((1u << kVector) - 1)) raw = load_raw(scores + stage * kStep);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      key[stage * kVector + i] = shifted_key(unpack(raw, i));
  }
  int count = 0; // of the last ones; 0: they are one value
  do {
    u32 best = edge_last ? edge_key() : kGone;
    u32 behind = best + 1; // the worst key and 1; 0: none
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!(last >> i & 1)) key[i] = kGone; // not above, where loads need the registers
      best = min(best, key[i]);
      behind = max(behind, key[i] + 1);
    }
    const KeyRange range = range_of_all<Holders>(best, behind ? behind - 1 : 0);
    count = 0;
    if (range.best >= range.worst) break;
    const Digit counted = digit_over(range.best, range.worst);
    if (threadIdx.x == 0) s.rule.digit = counted; // the search leaves it no registers
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      count_key(key[i], counted);
    if (edge_last) count_key(edge_key(), counted);
    const Boundary found = Holders::find(quota);
    const volatile Digit& kept = s.rule.digit;
    const u32 size = 1u << kept.shift;
    const u32 first = kept.base + found.bin * size;
    if (edge_last) {
      const u32 mine = edge_key();
      if (mine < first) collect(load_edge(slot).at, slot);
      edge_last = mine - first < size;
    }
    u32 chosen = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      chosen |= key[i] < first ? 1u << i : 0u;
      key[i] = key[i] - first < size ? key[i] : kGone;
    }
    collect_bits(chosen, slot);
    quota -= found.before;
    count = found.count;
  } while (count != quota && count > kFewest);
  last = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    last |= key[i] != kGone ? 1u << i : 0u;
  const bool ranked = count != 0 && count != quota;
  if (ranked) {
    list_bits_left<Holders>(last, slot);
    if (edge_last) list_last<Holders>(load_edge(slot).at, load_edge(slot).score, slot);
  } else {
    collect_equal<Holders>(last, edge_last, quota, slot);
  }
  write_answer<Holders>(slot, ranked ? count : 0, quota);
}

// Those of this thread's places that hold scores of the row, as bits.
__device__ __forceinline__ u32 row_bits(int slot) {
  const int left = held_row(slot).valid - own_place();
  const int vectors = max(left + kStep - 1, 0) / kStep;
  const int count = vectors * kVector - max(vectors * kStep - (kStep - kVector) - left, 0);
  return static_cast<u32>((1ull << max(count, 0)) - 1);
}
