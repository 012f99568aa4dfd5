// Chooses two samples between which each row's k-th composite of all processes lies, and puts this process's composites
// between them in slots that no other process uses, so that a sum over the processes joins them: one CTA for each row.
//   1. with m samples up to x, a process holds m * step to m * step + step - 1 composites up to x. Of all processes'
//      samples, `low` is the last that is surely among the k best, and `high` the first that is surely not in front of
//      the k-th
//   2. each process has room for what its samples up to `high`, but not up to `low`, allow; all compute all places
// Slots are sums of kNothing minus a composite; an empty one is zero.
#include "distributed/composites.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_distributed_between(const __grid_constant__ Shard p) {
  __shared__ i64 ends[2];
  __shared__ int start;
  __shared__ int numbers; // samples of the row that are not kNothing
  __shared__ int below[2];
  const i64 row = blockIdx.x;
  const int k = k_of_row(p, static_cast<int>(row));
  const int all = p.world * p.num_samples;
  const int surely = max(k - p.world * (p.step - 1), 0) / p.step; // samples up to `low`
  const int enough = (k + p.step - 1) / p.step;                   // samples up to `high`
  // They are searched many times: on chip, where there is room for those of all processes.
  i64* on_chip = elements_on_chip<i64>();
  const bool fits = all <= kSortSize;
  auto samples_of = [&](int process) -> const i64* {
    return fits ? on_chip + process * p.num_samples : p.gathered + process * p.words + row * p.num_samples;
  };
  for (int i = threadIdx.x; fits && i < all; i += kThreads) {
    const int process = i / p.num_samples;
    on_chip[i] = p.gathered[process * p.words + row * p.num_samples + i - process * p.num_samples];
  }
  if (threadIdx.x == 0) {
    ends[0] = -1;
    ends[1] = -1;
    start = 0;
    numbers = 0;
  }
  __syncthreads(); // samples are on chip; the ends are set, for the thread that finds a sample, and the sums are zero
  // A sample's rank among all: samples of one process are in order. Neighbours in a warp are of several processes and
  // as far behind in them, so that they are done at the same time: the farther behind, the sooner more than enough are
  // better.
  for (int i = threadIdx.x; i < all; i += kThreads) {
    const int own = i % p.world;
    int better = i / p.world;
    const i64 sample = samples_of(own)[better];
    if (sample == kNothing) continue;
    for (int process = 0; process < p.world && better < enough; ++process)
      if (process != own) better += count_up_to(samples_of(process), p.num_samples, sample);
    if (better == surely - 1) ends[0] = sample;
    if (better == enough - 1) ends[1] = sample;
  }
  for (int process = threadIdx.x; process < p.world; process += kThreads)
    atomicAdd(&numbers, count_up_to(samples_of(process), p.num_samples, kNothing));
  __syncthreads(); // the ends are known, for all threads
  const i64 low = surely > numbers ? kNothing : ends[0];
  const i64 high = enough > numbers ? kNothing : ends[1];
  for (int process = threadIdx.x; process < p.process; process += kThreads) {
    const int inside =
        count_up_to(samples_of(process), p.num_samples, high) - count_up_to(samples_of(process), p.num_samples, low);
    atomicAdd(&start, inside * p.step + p.step - 1);
  }
  const i64* best = p.best + row * p.k;
  if (threadIdx.x < 64) { // a warp for each end: behind the last sample up to it there may be less than a step more
    const int side = static_cast<int>(threadIdx.x) / 32;
    const i64 end = side ? high : low;
    const int first = count_up_to_by_warp(samples_of(p.process), p.num_samples, end) * p.step;
    const int count = first + count_up_to_by_warp(best + first, min(p.step - 1, p.k - first), end);
    if (threadIdx.x % 32 == 0) below[side] = count;
  }
  __syncthreads(); // this process's first slot and its composites are known, for all threads
  i64* merged = p.merged + row * (1 + p.room);
  if (threadIdx.x == 0) {
    merged[0] = below[0];
    p.below[row] = below[0];
  }
  for (int i = threadIdx.x; i < p.room; i += kThreads) {
    const int own = i - start;
    const bool mine = own >= 0 && own < below[1] - below[0];
    merged[1 + i] = mine ? kNothing - best[below[0] + own] : 0;
  }
}
