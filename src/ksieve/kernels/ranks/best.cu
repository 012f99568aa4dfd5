// Puts each row's k best of this rank in order, as composites, and takes the samples that are sent to all ranks: one
// CTA for each row.
#include "ranks/composites.cuh"

extern "C" __global__ void __launch_bounds__(kThreads) ksieve_ranks_best(const __grid_constant__ Shard p) {
  const i64 row = blockIdx.x;
  i64* sorted = sort_buffer();
  for (int i = threadIdx.x; i < kSortSize; i += kThreads)
    sorted[i] = i < p.k ? composite(p, p.ids[row * p.k + i], p.values[row * p.k + i]) : kNothing;
  sort_area(sorted, kSortSize);
  for (int i = threadIdx.x; i < p.k; i += kThreads)
    p.best[row * p.k + i] = sorted[i];
  for (int i = threadIdx.x; i < p.num_samples; i += kThreads)
    p.samples[row * p.num_samples + i] = sorted[(i + 1) * p.step - 1];
}
