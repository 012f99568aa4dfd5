// Selection of a row that one CTA or a cluster holds: the boundary costs no second read.
//   1. one score of each thread is sampled: that gives a range where the k-th score is looked for
//   2. what is better than its end is counted in equal steps of the score (steps.cuh); the step of the k-th is found.
//      Two steps share a register, and the scores themselves are needed no more: the ring takes the next row
//   3. better steps are written to the output; of that step, few scores are left, which one warp ranks
// Steps are monotone in the score, so the answer is exact whatever the sample. crowded.cuh has what they do not decide.
#pragma once
#include "crowded.cuh"

// Where a row's boundary is looked for, from the samples of a warp: from near the best one down to the worst of what
// the best of each pool are. Unless few are selected, one odd line does not stretch it: of what the best of four groups
// are, the second best counts. Scores that are not finite have no steps.
__device__ __forceinline__ Sampled look_at_samples(float sample, int slot) {
  const float kNone = __uint_as_float(kMinusInfinityKey);
  const int pool = held_row(slot).pool;
  float best = fabsf(sample) <= Steps::kGreatest ? sample : kNone;
  float pooled = best;
#pragma unroll
  for (int size = 2; size <= 8; size *= 2) {
    best = fmaxf(best, __shfl_xor_sync(kFullWarp, best, size / 2));
    if (pool >= size) pooled = best;
  }
  const float beside = __shfl_xor_sync(kFullWarp, best, 8);
  const float better = fmaxf(best, beside);
  const float worse = fminf(best, beside);
  const float other = __shfl_xor_sync(kFullWarp, better, 16);
  const float second = fmaxf(fminf(better, other), fmaxf(worse, __shfl_xor_sync(kFullWarp, worse, 16)));
  const int raise = held_row(slot).raise;
  float top = raise < 0 ? fmaxf(better, other) : second;
  const u32 key = number_key(pooled);
  const bool found = pooled > kNone;
  const float first = __shfl_sync(kFullWarp, pooled, 0);
  const u32 alike = __ballot_sync(kFullWarp, found && pooled == first);
  u32 worst = __reduce_max_sync(kFullWarp, found ? key : 0);
  const float end = score_of_key(worst);
  const bool plateau = __popc(alike) >= (pool == 1 ? 12 : 24);
  if (rarely(pool == 1) && worst && top > kNone) {
    // The k-th may be worse than all samples: as much again, but not beyond zero where scores go over many octaves.
    const float longer = fmaf(2.0f, end, -top);
    worst = number_key(end > 0 ? fmaxf(longer, end * 0x1p-12f) : longer);
  }
  if (raise) top = fmaf(static_cast<float>(raise < 0 ? ~raise : raise), top - end, top); // or better than all
  const u32 from = top > kNone ? number_key(top) : kNanKey;
  const bool signs = worst - 1 >= kZeroKey - 1;                                 // or there is none
  return {{from, worst ? worst : kMinusInfinityKey}, signs, plateau ? key : 0}; // lane 0's
}

// Which of its scores this thread samples of a row. A warp samples all over what its threads hold, and other warps
// other scores: no period of the row is met by one alone. Of 32 parts of a row, pools are two neighbours, with the two
// half a row apart, with two more neighbours each: what ascends misleads none. Eight lanes in turn, who hold a line of
// the row, are one group: an odd line misleads no other.
__device__ __forceinline__ u32 sampled_score(int id) {
  constexpr int kCandidates = kStages * kVector;
  const u32 lane = threadIdx.x & 31;
  const u32 part = (lane & 1) | (lane & 2) << 3 | (lane & 28) >> 1;
  return (part * kCandidates / 32 + (threadIdx.x >> 5) + id) % kCandidates;
}
// Where that is in the part's body.
__device__ __forceinline__ int sampled_place(u32 at) {
  return own_place() + vector_of_stage(static_cast<int>(at / kVector)) * kStep + static_cast<int>(at % kVector);
}

// Finds out where a described row's boundary is looked for, given what this thread has sampled. A barrier of all must
// follow.
template <class Holders> __device__ __forceinline__ void look_at(float sample, int place, int slot) {
  const bool valid = place < held_row(slot).valid;
  Holders::fold(look_at_samples(valid ? sample : __uint_as_float(kMinusInfinityKey), slot), slot);
}

// The same as soon as the row's part is in the ring.
template <class Holders> __device__ __forceinline__ void sample_held(int slot) {
  wait_copy(slot);
  const u32 at = sampled_score(held_row(slot).id);
  look_at<Holders>(read_back(own_ring(), at), sampled_place(at), slot);
}

// A sample that is loaded while the row is still being copied, from the `scores` of a body.
struct EarlySample {
  float score;
  int place;
};
__device__ __forceinline__ EarlySample load_sample(const Score* body, int scores, int id) {
  const int place = sampled_place(sampled_score(id));
  return {place < scores ? widen(body[place]) : 0.0f, place};
}

// Counts the scores that this thread holds, and keeps which steps they are in.
template <bool kEarly, class Spread>
__device__ __forceinline__ void count_steps(int slot, Steps linear, HeldSteps& steps, Spread spread) {
  each_held<kEarly>(slot, [&](int vector, const float (&score)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      const float step = linear.of(spread(score[i]));
      const float next = linear.of(spread(score[i + 1]));
      Steps::count(step);
      Steps::count(next);
      steps.put(vector * kVector + i, step, next);
    }
  });
}

// The same for scores that are spread first (FoundSteps): called, since inlined it would be spilled.
__device__ __noinline__ HeldSteps count_spread(int slot) {
  const FoundSteps range(slot);
  HeldSteps steps;
  count_steps<false>(slot, range.steps(), steps, [&](float score) { return range.spread(score); });
  return steps;
}

// Selects a sampled row; what counts it is zero, or becomes so in front of a barrier. `ahead()` runs when all of the
// ring has been read, `meanwhile()` where most warps wait for others, but for rare rows: whether it has.
template <class Holders, class Ahead, class Meanwhile>
__device__ __forceinline__ bool select_held(int slot, Ahead ahead, Meanwhile meanwhile) {
  Holders::sync(); // the range is known
  if (rarely(held_row(slot).plateau != 0) && select_plateau<Holders>(slot, ahead)) return false;
  HeldSteps steps;
  const FoundSteps range(slot);
  if (rarely(range.spreads)) {
    steps = count_spread(slot);
  } else {
    count_steps<!kFinish>(slot, range.steps(), steps, [&](float score) { return score; });
  }
  each_edge(slot, [&](const Edge& edge) { Steps::count(FoundSteps(slot).of(edge.score)); });
  const Boundary found = Holders::find(held_row(slot).slots, ahead);
  const int quota = held_row(slot).slots - found.before;
  const bool beyond = found.bin == kBins - 1; // nothing is known of the last step
  const bool whole = found.count == quota && !beyond;
  Divided divided = divide(steps, found.bin);
  if (rarely(beyond || !whole && found.count > kFewest)) {
    select_crowded<Holders>(slot, divided.before, in_row(divided.within, slot), found.bin, quota);
    return false;
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const u32 last = divided.within.word[w];
    divided.before.word[w] |= whole ? last : 0;
    divided.within.word[w] = whole ? 0 : last;
  }
  // One of the last is fetched while the others are collected.
  const bool listing = divided.within.any();
  int early = 0;
  float early_score = 0;
  if (listing) {
    early = take_mark(divided.within, held_first(slot));
    early_score = widen(static_cast<const Score*>(held_row(slot).scores)[early]);
  }
  each_edge(slot, [&](const Edge& edge) {
    const float step = FoundSteps(slot).of(edge.score);
    const float bound = Steps::numbered(found.bin);
    if (step < bound || whole && step == bound) {
      collect(edge.at, slot);
    } else if (step == bound) {
      list_last<Holders>(edge.at, edge.score, slot);
    }
  });
  collect_marks(divided.before, slot);
  if (listing) {
    list_last<Holders>(early, early_score, slot);
    list_marked<Holders>(divided.within, slot);
  }
  meanwhile();
  write_answer<Holders>(slot, whole ? 0 : found.count, quota);
  return true;
}
