// What all rungs share: the arguments, the order of scores, the search in a histogram, and the output.
// One CTA of kThreads threads selects from one row: grid = rows, block = kThreads.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;

constexpr int kThreads = 256;
constexpr int kBinBits = 11;
constexpr int kBins = 1 << kBinBits;
constexpr u32 kWorstKey = 0xffffffffu; // of every NaN

struct Params {
  const float* scores; // [rows][width]
  const int* lengths;  // [rows], valid scores of each row; clamped to [0, width]
  int* indices;        // [rows][k], the answer: positions in any order, then -1
  u32* reads;          // [rows], zero before the launch; scores that a row's CTA loaded from global memory
  int width;
  int k;
};

// The order of scores as integers, descending: a better score has a smaller key. Adding +0 turns -0 into +0, so both
// share a key; NaN comes last.
__device__ __forceinline__ u32 key_of(float score) {
  const u32 bits = __float_as_uint(score + 0.0f);
  return score != score ? kWorstKey : bits >> 31 ? bits : bits ^ 0x7fffffffu;
}
__device__ __forceinline__ float score_of(u32 key) { return __uint_as_float(key >> 31 ? key : key ^ 0x7fffffffu); }

// A row in global memory, which counts its own loads; one copy per thread.
struct Row {
  const float* scores;
  int length;
  u32 loads;

  __device__ Row(const Params& p) {
    scores = p.scores + static_cast<u64>(blockIdx.x) * p.width;
    length = min(max(__ldg(p.lengths + blockIdx.x), 0), p.width);
    loads = 0;
  }
  __device__ float load(int position) {
    ++loads;
    return __ldg(scores + position);
  }
  // Calls visit(key, position) for this thread's share of the row: one read of the row.
  template <class Visit> __device__ void each(Visit visit) {
    for (int i = threadIdx.x; i < length; i += kThreads)
      visit(key_of(load(i)), i);
  }
  __device__ void report(const Params& p) const { atomicAdd(p.reads + blockIdx.x, loads); }
};

// The row's slots of the answer. Construct it in front of a barrier; then any thread may put positions, k in all.
struct Output {
  int* slots;
  u32* next;

  __device__ Output(const Params& p) {
    __shared__ u32 count;
    if (threadIdx.x == 0) count = 0;
    slots = p.indices + static_cast<u64>(blockIdx.x) * p.k;
    next = &count;
  }
  __device__ void put(int position) { slots[atomicAdd(next, 1u)] = position; }
};

// A row of at most k scores: all of its positions, then -1. Whether it was one.
__device__ __forceinline__ bool write_short_row(const Params& p, const Row& row, const Output& out) {
  if (row.length > p.k) return false;
  for (int i = threadIdx.x; i < p.k; i += kThreads)
    out.slots[i] = i < row.length ? i : -1;
  return true;
}

__device__ __forceinline__ u32* histogram() {
  __shared__ u32 bins[kBins];
  return bins;
}

// Leaves the histogram empty for every thread.
__device__ __forceinline__ void clear_histogram() {
  for (int i = threadIdx.x; i < kBins; i += kThreads)
    histogram()[i] = 0;
  __syncthreads(); // all bins are zero before any thread counts
}

struct Bin {
  int number;
  u32 better; // scores in the bins before it
  u32 count;  // scores in it
};

// The bin that holds the score of a rank, counted from 1 and from bin 0 up. The counts have to be complete: call it
// behind a barrier. It returns behind one.
__device__ __forceinline__ Bin find_bin(u32 rank) {
  __shared__ u32 warp_totals[kThreads / 32];
  __shared__ Bin found;
  constexpr int kOwn = kBins / kThreads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32* own = histogram() + threadIdx.x * kOwn;
  u32 sum = 0;
  for (int i = 0; i < kOwn; ++i)
    sum += own[i];
  u32 up_to = sum; // over the lanes up to this one
  for (int offset = 1; offset < 32; offset *= 2) {
    const u32 other = __shfl_up_sync(~0u, up_to, offset);
    if (lane >= offset) up_to += other;
  }
  if (lane == 31) warp_totals[warp] = up_to;
  __syncthreads(); // every warp's total is written, and the previous `found` has been read
  u32 before = up_to - sum;
  for (int i = 0; i < warp; ++i)
    before += warp_totals[i];
  if (before < rank && rank <= before + sum) { // true for one thread
    int i = 0;
    while (before + own[i] < rank)
      before += own[i++];
    found = {static_cast<int>(threadIdx.x) * kOwn + i, before, own[i]};
  }
  __syncthreads(); // `found` is written by its one thread for all
  return found;
}
