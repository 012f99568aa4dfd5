// How rungs 3 to 5 settle what a guess left open. A source is anything with each(visit), which calls
// visit(key, position) for the calling thread's share: candidates in shared memory, or the row itself.
#pragma once
#include "ladder.cuh"

// What is selected: every key before `best`, and any `wanted` of those in [best, worst].
struct Cut {
  u32 best;
  u32 worst;
  u32 wanted;
};

__device__ __forceinline__ u32& taken() { // of those in [best, worst]
  __shared__ u32 count;
  return count;
}

// Finds the key of a rank among the keys in [best, worst], 2048 ways at a time. At most three rounds visit the source
// once each. There have to be at least `rank` keys. Ends early when a whole bin is wanted.
template <class Source> __device__ __forceinline__ Cut narrow(Source& source, u32 best, u32 worst, u32 rank) {
  if (threadIdx.x == 0) taken() = 0; // read behind the barriers below
  for (;;) {
    const int shift = max(0, 32 - __clz(worst - best) - kBinBits);
    clear_histogram();
    source.each([&](u32 key, int) {
      if (key >= best && key <= worst) atomicAdd(&histogram()[(key - best) >> shift], 1u);
    });
    __syncthreads(); // every thread has counted its share
    const Bin bin = find_bin(rank);
    const u32 span = (1u << shift) - 1;
    rank -= bin.better;
    best += static_cast<u32>(bin.number) << shift;
    if (worst - best > span) worst = best + span;
    if (shift == 0 || bin.count == rank) return {best, worst, rank};
  }
}

// Writes what a cut selects from a source that holds all of it.
template <class Source> __device__ __forceinline__ void emit(Source& source, Cut cut, Output& out) {
  source.each([&](u32 key, int position) {
    if (key < cut.best || (key <= cut.worst && atomicAdd(&taken(), 1u) < cut.wanted)) out.put(position);
  });
}

// Selects k scores after one scan has admitted all keys up to a cutoff. k admitted scores prove that the answer is
// among them. If they are all stored, no score is read again; otherwise the row is, with what the scan proved.
template <class Candidates>
__device__ __forceinline__ void refine(Candidates& candidates, bool stored, u32 admitted, u32 cutoff, Row& row, u32 k,
                                       Output& out) {
  if (admitted >= k && stored) { // certified
    const Cut cut = narrow(candidates, 0, cutoff, k);
    emit(candidates, cut, out);
  } else if (admitted >= k) { // certified, but too many to store
    const Cut cut = narrow(row, 0, cutoff, k);
    emit(row, cut, out);
  } else { // refuted: all that was admitted is selected, and the k-th score is beyond the cutoff
    const Cut cut = narrow(row, cutoff + 1, kWorstKey, k - admitted);
    emit(row, cut, out);
  }
}

// How many of `samples` scores to expect among the k best of a row, and three standard deviations of that number.
struct SampleRank {
  float expected;
  float margin;
};
__device__ __forceinline__ SampleRank sample_rank(int k, int length, int samples) {
  const float expected = static_cast<float>(k) * static_cast<float>(samples) / static_cast<float>(length);
  return {expected, 3.0f * sqrtf(expected) + 1.0f};
}
