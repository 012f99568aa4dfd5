// Rung 4: a filter with private candidates.
// Idea:  each thread samples one score; the boundary is the exact key of one of them, found without a histogram.
//        The scan compares floats, makes keys only of what passes, and stores it in a column of the thread's own.
//        No atomic and no barrier until the row has been read. A column that overflows is recovered from the row.
// Reads: 1 + 256/length per score; up to 4 more where the boundary admits too few, or a column is too short.
// Next:  rung 5 keeps the row itself in shared memory, so that nothing is read twice, not even a sample.
#include "refine.cuh"

constexpr int kColumn = 16; // candidates of a thread: enough for k up to about 1,000

struct Candidate {
  u32 key;
  int position;
};

// This thread's candidates. Neighbouring threads' n-th candidates are neighbours, so that banks do not conflict.
struct Column {
  Candidate* own;
  int admitted; // counts on when the column is full

  __device__ Column() {
    __shared__ Candidate storage[kColumn * kThreads];
    own = storage + threadIdx.x;
    admitted = 0;
  }
  __device__ void append(u32 key, int position) {
    if (admitted < kColumn) own[admitted * kThreads] = {key, position};
    ++admitted;
  }
  template <class Visit> __device__ void each(Visit visit) {
    for (int i = 0; i < admitted; ++i)
      visit(own[i * kThreads].key, own[i * kThreads].position);
  }
};

// Phase 1. One sample per thread; each thread counts the samples that are better than its own, and the one with the
// requested rank publishes its key. Returns behind a barrier.
__device__ __forceinline__ u32 propose(Row& row, int k) {
  __shared__ u32 samples[kThreads];
  __shared__ u32 cutoff;
  const int thread = threadIdx.x;
  const SampleRank rank = sample_rank(k, row.length, kThreads);
  const int wanted = min(static_cast<int>(rank.expected + rank.margin), kThreads - 1); // from 0
  const u32 own = key_of(row.load(static_cast<int>(static_cast<u64>(thread) * row.length / kThreads)));
  samples[thread] = own;
  __syncthreads(); // every sample is written
  int better = 0;
  for (int i = 0; i < kThreads; ++i)
    better += samples[i] < own || (samples[i] == own && i < thread);
  if (better == wanted) cutoff = own;
  __syncthreads(); // the cutoff is written by its one thread for all
  return cutoff;
}

extern "C" __global__ void __launch_bounds__(kThreads) ksieve_v4_filtered(const __grid_constant__ Params p) {
  __shared__ u32 admitted;
  __shared__ u32 overflows; // columns that were too short
  Row row(p);
  Output out(p);
  Column column;
  if (threadIdx.x == 0) admitted = overflows = 0; // added to behind the barriers of `propose`
  if (write_short_row(p, row, out)) return;

  // 1. Propose a boundary, as a key and as a float. NaN reaches no float, so the worst key admits without comparing.
  const u32 cutoff = propose(row, p.k);
  const bool all = cutoff == kWorstKey;
  const float least = score_of(cutoff);

  // 2. Certify: the one scan, in which no thread depends on another.
  for (int i = threadIdx.x; i < row.length; i += kThreads) {
    const float score = row.load(i);
    if (score >= least || all) column.append(key_of(score), i);
  }
  atomicAdd(&admitted, static_cast<u32>(column.admitted));
  if (column.admitted > kColumn) atomicAdd(&overflows, 1u);
  __syncthreads(); // every thread's numbers are added

  // 3. Refine the columns, or recover from the row.
  refine(column, overflows == 0, admitted, cutoff, row, p.k, out);
  row.report(p);
}
