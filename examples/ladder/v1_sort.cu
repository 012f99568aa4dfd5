// Rung 1: sort.
// Idea:  the CTA loads the row once into shared memory as (key, position) pairs,
//        sorts all of them with a bitonic network,
//        and the first k pairs are the answer.
// Reads: 1 per score; but a row has to fit in shared memory at 8 bytes per score, and log2(n)^2 / 2 steps, each
//        with a barrier, order all scores where only the k best are asked for, in any order.
// Next:  rung 2 orders nothing. It counts, and takes rows of any length.
#include "ladder.cuh"

extern __shared__ __align__(16) u64 pairs[]; // as many as the next power of two from the width up

// One step of the network: compares pairs that are `distance` apart, so that runs of `run` become ascending and
// descending in turn. Every pair belongs to one comparison, so no two threads touch the same one.
__device__ __forceinline__ void compare_and_swap(int size, int run, int distance) {
  for (int i = threadIdx.x; i < size / 2; i += kThreads) {
    const int low = i / distance * 2 * distance + i % distance;
    const int high = low + distance;
    const bool ascending = (low & run) == 0;
    const u64 a = pairs[low];
    const u64 b = pairs[high];
    if ((a > b) == ascending) {
      pairs[low] = b;
      pairs[high] = a;
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) ksieve_v1_sort(const __grid_constant__ Params p) {
  Row row(p);
  Output out(p);
  if (write_short_row(p, row, out)) return;

  // 1. Load. The key is the upper half of a pair, so that pairs compare as keys do, and equal keys by position.
  int size = 2;
  while (size < row.length)
    size *= 2;
  for (int i = threadIdx.x + row.length; i < size; i += kThreads)
    pairs[i] = ~0ull; // what fills up to a power of two comes last, behind NaN
  row.each([&](u32 key, int position) { pairs[position] = static_cast<u64>(key) << 32 | static_cast<u32>(position); });

  // 2. Sort: runs of 2, of 4, ... of all pairs.
  for (int run = 2; run <= size; run *= 2)
    for (int distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads(); // the previous step (or the load) of all threads is written
      compare_and_swap(size, run, distance);
    }
  __syncthreads(); // the sorted pairs are written

  // 3. Output: ranks are places now.
  for (int i = threadIdx.x; i < p.k; i += kThreads)
    out.slots[i] = static_cast<int>(static_cast<u32>(pairs[i]));
  row.report(p);
}
