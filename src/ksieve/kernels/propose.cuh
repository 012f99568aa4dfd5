// Phase 1, propose: a fixed-stride view of the row becomes one boundary, or two with a rescue boundary.
//   1. every sampled score counts into a coarse histogram
//   2. the bins that hold the requested sample ranks are found
//   3. a coarse policy takes each bin's inclusive cutoff; an exact policy the sampled score of that rank
#pragma once
#include "block.cuh"
#include "keys.cuh"
#include "output.cuh"

__device__ __forceinline__ int view_size(int phase, int length) {
  constexpr int kPeriod = kStride * kGroup;
  int rest = length % kPeriod - phase * kGroup;
  return length / kPeriod * kGroup + min(max(rest, 0), kGroup);
}

// Key of sample rank `rank` among the shared keys [0, samples) within (above, worst], three exact digits at most.
__device__ __forceinline__ u32 sampled_key(int samples, int rank, u32 above, u32 worst) {
  SharedStorage& s = shared_storage();
  u32 best = above + 1;
  for (int round = 0; round < kRounds; ++round) {
    int shift = digit_shift(round);
    for (int i = threadIdx.x; i < samples; i += kThreads) {
      u32 key = s.keys[i];
      if (key >= best && key <= worst) atomicAdd(&s.histogram[digit_of(key, shift)], 1u);
    }
    __syncthreads(); // all samples are counted
    Boundary found = find_boundary(rank);
    rank -= found.before;
    u32 prefix = round == 0 ? 0 : best >> (shift == 0 ? 10 : 21) << (shift == 0 ? 10 : 21);
    u32 low = prefix | static_cast<u32>(found.bin) << shift;
    best = max(best, low);
    worst = min(worst, low | ((1u << shift) - 1));
  }
  return best;
}

// Leaves the inclusive ordered keys of the boundaries in shared memory, behind a barrier. False when the view does not
// reach the requested ranks: nothing is left behind then. `views` is how many CTAs of the row look at the same view.
__device__ __forceinline__ bool propose(const Params& p, const Row& row, int views) {
  constexpr int kViewBatch = 8 / kGroup > 0 ? 8 / kGroup : 1; // sampled groups in flight per thread
  SharedStorage& s = shared_storage();
  int phase = static_cast<int>(static_cast<u32>(row.id) * kPhaseMultiplier % kStride);
  int samples = view_size(phase, row.length);
  if (samples < (kRescue ? p.rescue_rank : p.primary_rank)) return false;
  if (kExactBoundary && samples > kSharedCapacity) return false;
  trace_set(kColSampled, samples * views);

  int slots = (samples + kGroup - 1) / kGroup;
  for (int first = threadIdx.x; first < slots; first += kViewBatch * kThreads) {
    float score[kViewBatch][kGroup];
#pragma unroll
    for (int b = 0; b < kViewBatch; ++b) {
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        int i = ((first + b * kThreads) * kStride + phase) * kGroup + g;
        bool valid = first + b * kThreads < slots && i < row.length;
        score[b][g] = valid ? widen(row.scores[i]) : 0.0f;
      }
    }
#pragma unroll
    for (int b = 0; b < kViewBatch; ++b) {
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        int ordinal = (first + b * kThreads) * kGroup + g;
        if (ordinal >= samples) continue;
        atomicAdd(&s.histogram[coarse_bin(score[b][g])], 1u);
        if (kExactBoundary) s.keys[ordinal] = order_key(score[b][g]);
      }
    }
  }
  __syncthreads(); // every sample is counted
  find_boundary(p.primary_rank, kRescue ? p.rescue_rank : 0);

#pragma unroll
  for (int which = 0; which < (kRescue ? 2 : 1); ++which) {
    Boundary found = s.found[which];
    u32 cutoff = bin_cutoff_key(found.bin);
    int tau = found.bin;
    if (kExactBoundary) {
      u32 above = found.bin ? bin_cutoff_key(found.bin - 1) : 0;
      cutoff = sampled_key(samples, p.primary_rank - found.before, above, cutoff);
      tau = static_cast<int>(cutoff);
    }
    trace_set(kColTau0 + which, tau);
    if (threadIdx.x == 0) s.cutoff[which] = cutoff;
  }
  static_assert(!(kExactBoundary && kRescue), "an exact boundary has no rescue: its samples are gone by then");
  __syncthreads(); // the boundaries are visible
  return true;
}
