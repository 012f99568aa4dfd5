// Lists the rows of a matrix by length for the launches that follow: one CTA for each launch.
//
//   1. a warp loads the lengths of kAtOnce times 32 neighbouring rows together
//   2. launch b, from 0, takes the rows of more than b and at most b + 1 times kMaxResident scores; the last launch
//      also takes all longer ones
//   3. every launch has a list (length_bins.cuh). Rows of a warp stay together in it, so that CTAs that run at once
//      work on rows that are close in memory. The order of warps varies from run to run, without effect on the answer
//
// Row reads: none.
#include "length_bins.cuh"
#include "stream/filter.cuh"

constexpr int kAtOnce = 8;

// Returns the launch that rows of this length are listed for.
__device__ __forceinline__ int length_bin_of(int length) { return min(max(length - 1, 0) / kMaxResident, kLengthBin); }

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_length_bins(const __grid_constant__ Params p) {
  __shared__ int count;
  release_dependents();
  wait_for_inputs();
  if (threadIdx.x == 0) count = 0;
  __syncthreads(); // thread 0 cleared the counter, for every warp
  const int bin = static_cast<int>(blockIdx.x);
  const int own = static_cast<int>(threadIdx.x / 32 * 32 * kAtOnce + threadIdx.x % 32);
  for (int begin = 0; begin < p.rows; begin += kAtOnce * kThreads) {
    int length[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      length[i] = load_row(p, min(begin + own + i * 32, p.rows - 1)).length;
    u32 listed[kAtOnce];
    int total = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      listed[i] = __ballot_sync(kFullWarp, begin + own + i * 32 < p.rows && length_bin_of(length[i]) == bin);
      total += __popc(listed[i]);
    }
    if (total == 0) continue;
    int number = 0;
    if ((threadIdx.x & 31) == 0) number = atomicAdd(&count, total);
    number = __shfl_sync(kFullWarp, number, 0);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (listed[i] >> (threadIdx.x & 31) & 1)
        *binned_row(p, number + __popc(listed[i] & lanes_below()), bin) = {begin + own + i * 32, length[i]};
      number += __popc(listed[i]);
    }
  }
  __syncthreads(); // every warp's rows are counted, for thread 0
  if (threadIdx.x == 0) length_bin_counts(p)[bin] = count;
}
