// Puts each row's k best of this process in order, as composites, and takes the samples that are sent to all processes
// with the tag: one CTA for each row.
#include "distributed/composites.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_distributed_best(const __grid_constant__ Shard p) {
  const i64 row = blockIdx.x;
  if (row == 0 && threadIdx.x == 0) *p.sent_tag = p.tag;
  i64 own[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const i64 slot = row * p.k + slot_of(e);
    own[e] = slot_of(e) < p.k ? composite(p, p.ids[slot], p.values[slot]) : kNothing;
  }
  i64* best = p.best + row * p.k;
  order_by_buckets(own, kNothing, [&](int rank, i64 element) {
    if (rank < p.k) best[rank] = element;
  });
  __syncthreads(); // all composites are written, for the threads that take samples
  for (int i = threadIdx.x; i < p.num_samples; i += kThreads)
    p.samples[row * p.num_samples + i] = best[(i + 1) * p.step - 1];
}
