// Rung 3: propose, certify, refine. The method of Siran Liu et al., "Sample-Guided Exact Top-K Selection for
// Long-Context Sparse Attention" (https://github.com/Tencent/hpc-ops).
// Idea:  propose a boundary: the coarse bin of a sampled score that is a little worse than the k-th should be.
//        Certify it during one scan, which stores what reaches it: k stored scores prove that the answer is there.
//        Refine: rank those few by their keys, in shared memory. A wrong guess costs reads, never the answer.
// Reads: 1 + 1/32 per score; up to 4 more where the boundary admits too few scores, or more than can be stored.
// Next:  rung 4 has no atomic counter in the scan, which serialises its threads, and fewer barriers around it.
#include "refine.cuh"

constexpr int kStride = 32;      // one score of so many is sampled
constexpr int kCapacity = 4096;  // candidates that can be stored
constexpr int kCoarseShift = 21; // the first 11 bits of a key are its coarse bin

struct Candidate {
  u32 key;
  int position;
};

// What the scan admitted: a list in shared memory that all threads append to.
struct List {
  Candidate* stored;
  u32* admitted; // counts on when the list is full

  __device__ List() {
    __shared__ Candidate storage[kCapacity];
    __shared__ u32 count;
    if (threadIdx.x == 0) count = 0;
    stored = storage;
    admitted = &count;
  }
  __device__ void append(u32 key, int position) {
    const u32 at = atomicAdd(admitted, 1u);
    if (at < kCapacity) stored[at] = {key, position};
  }
  template <class Visit> __device__ void each(Visit visit) {
    for (u32 i = threadIdx.x; i < *admitted; i += kThreads)
      visit(stored[i].key, stored[i].position);
  }
};

// Phase 1. Reads one score in kStride, and returns the worst key of the coarse bin that holds the sample's rank.
__device__ __forceinline__ u32 propose(Row& row, int k) {
  const int samples = (row.length + kStride - 1) / kStride;
  const SampleRank rank = sample_rank(k, row.length, samples);
  const u32 wanted = static_cast<u32>(rank.expected + rank.margin) + 1;
  if (wanted >= samples) return kWorstKey; // too short a row for a guess: admit all of it
  clear_histogram();
  for (int i = threadIdx.x; i < samples; i += kThreads)
    atomicAdd(&histogram()[key_of(row.load(i * kStride)) >> kCoarseShift], 1u);
  __syncthreads(); // every thread has counted its samples
  const u32 bin = find_bin(wanted).number;
  return bin << kCoarseShift | ((1u << kCoarseShift) - 1);
}

extern "C" __global__ void __launch_bounds__(kThreads) ksieve_v3_sampled(const __grid_constant__ Params p) {
  Row row(p);
  Output out(p);
  List list;
  if (write_short_row(p, row, out)) return;

  // 1. Propose a boundary.
  const u32 cutoff = propose(row, p.k);
  __syncthreads(); // the counters of list and output are zero, whatever the way through `propose`

  // 2. Certify: the one scan. Any k admitted scores are no worse than any score that was not.
  row.each([&](u32 key, int position) {
    if (key <= cutoff) list.append(key, position);
  });
  __syncthreads(); // the list is complete

  // 3. Refine what was admitted, or recover from the row.
  refine(list, *list.admitted <= kCapacity, *list.admitted, cutoff, row, p.k, out);
  row.report(p);
}
