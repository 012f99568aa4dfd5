// Selection of a row that the registers of one CTA or of a cluster hold: the boundary costs no second read.
//   1. one score of each thread is sampled: that gives a range where the k-th score is looked for
//   2. what is better than its end is counted in equal steps of the score (steps.cuh); the step of the k-th is found
//   3. better steps are written to the output; of that step, few scores are left, which one warp ranks
// Steps are monotone in the score, so the answer is exact whatever the sample. crowded.cuh has what they do not decide.
#pragma once
#include "crowded.cuh"

// Where a row's boundary is looked for, from the samples of a warp: from the best one down to the worst of what the
// best of each pool are. Unless few are selected, one odd sample does not stretch it: of two halves, the worse best one
// counts. Scores that are not finite have no steps.
__device__ __forceinline__ Sampled look_at_samples(float sample, int slot) {
  const float kNone = __uint_as_float(kMinusInfinityKey);
  const int pool = held_row(slot).pool;
  float best = fabsf(sample) <= Steps::kGreatest ? sample : kNone;
  float pooled = best;
  // Half a warp apart first, then neighbours: a pool sees half of a thread's stages, and neither a row that ascends nor
  // a few odd neighbours mislead all pools.
#pragma unroll
  for (int size = 2; size <= 16; size *= 2) {
    best = fmaxf(best, __shfl_xor_sync(kFullWarp, best, size == 2 ? 16 : size / 4));
    if (pool >= size) pooled = best;
  }
  const float other = __shfl_xor_sync(kFullWarp, best, 8);
  if (pool == 32) pooled = fmaxf(best, other);
  best = pool <= 8 ? fminf(best, other) : fmaxf(best, other);
  const u32 key = number_key(pooled);
  const bool found = pooled > kNone;
  const float first = __shfl_sync(kFullWarp, pooled, 0);
  const u32 alike = __ballot_sync(kFullWarp, found && pooled == first);
  const u32 worst = __reduce_max_sync(kFullWarp, found ? key : 0);
  return {{best > kNone ? number_key(best) : kNanKey, worst ? worst : kMinusInfinityKey},
          worst - 1 >= kZeroKey - 1,                   // or there is none
          __popc(alike) >= 24 && pool < 32 ? key : 0}; // lane 0's
}

// Selects a described row: its part is in the ring, as far as this thread reads it, and the histogram is empty.
// `ahead()` runs when all of the ring has gone on to registers, `meanwhile()` where most warps wait for others, but for
// rare rows: whether it has.
template <class Holders, class Ahead, class Meanwhile>
__device__ __forceinline__ bool select_held(int slot, Ahead ahead, Meanwhile meanwhile) {
  // Neighbouring threads sample different scores of theirs, and warps too: no period of the row is met by one alone.
  float sample = read_back(own_ring(), (threadIdx.x + (threadIdx.x >> 5) + held_row(slot).id) % kEach);
  Holders::fold(look_at_samples(sample, slot), slot);
  float score[kEach];
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    Raw raw = read_ring(own_ring() + stage * kStageBytes);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      score[stage * kVector + i] = unpack(raw, i);
  }
  Holders::sync(); // the row is in registers, and the range is known
  ahead();
  if (rarely(held_row(slot).plateau != 0) && select_plateau<Holders>(score, slot)) return false;
  const FoundSteps range(slot);
  Steps steps = Steps(score_of_key(range.least), score_of_key(range.most));
  if (rarely(range.spreads)) {
    steps = range.steps();
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      score[i] = range.spread(score[i]);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    Steps::count(score[i] = steps.of(score[i])); // registers do not suffice for both
  each_edge(slot, [&](const Edge& edge) { Steps::count(FoundSteps(slot).of(edge.score)); });
  const Boundary found = Holders::find(held_row(slot).slots);
  const int quota = held_row(slot).slots - found.before;
  const bool beyond = found.bin == kBins - 1; // nothing is known of the last step
  const bool whole = found.count == quota && !beyond;
  const float bound = Steps::numbered(found.bin + whole);
  u32 chosen = gather_tests<kEach>([&](int i) { return Steps::before(score[i], bound); });
  u32 last = 0;
  if (!whole) {
    bool any[4] = {}; // apart: each waits for the one before it
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      any[i % 4] |= score[i] == bound;
    if (any[0] || any[1] || any[2] || any[3])
      last = gather_tests<kEach>([&](int i) { return Steps::before(score[i], bound + 1); }) & ~chosen;
    if (rarely(beyond || found.count > kFewest)) {
      select_crowded<Holders>(slot, chosen, last & row_bits(slot), found.bin, quota);
      return false;
    }
  }
  // One of the last is fetched while the others are collected.
  int early = -1;
  float early_score = 0;
  if (last) {
    early = index_of_bit(take_bit(last), held_first(slot));
    early_score = widen(static_cast<const Score*>(held_row(slot).scores)[early]);
  }
  each_edge(slot, [&](const Edge& edge) {
    float step = FoundSteps(slot).of(edge.score);
    if (step < bound) {
      collect(edge.at, slot);
    } else if (!whole && step == bound) {
      list_last<Holders>(edge.at, edge.score, slot);
    }
  });
  collect_bits(chosen, slot);
  if (early >= 0) list_last<Holders>(early, early_score, slot);
  list_bits_left<Holders>(last, slot);
  meanwhile();
  write_answer<Holders>(slot, whole ? 0 : found.count, quota);
  return true;
}
