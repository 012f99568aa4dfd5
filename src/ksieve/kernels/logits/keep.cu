// The kept set of each row, of which its sorted slots are the candidates, and a sample from it (model/logits.py, keep
// and draw). A warp has a row. Weights are added one after another, so that the set is the same in every batch.
#include "logits/keep.cuh"

constexpr int kMostKept = 1024;

extern __shared__ __align__(16) double weights[]; // of the row, then their running sums

// Returns how many of the first `count` numbers pass a test. Call by the warp.
template <class Test> __device__ __forceinline__ int count_of(int count, Test test) {
  int mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += 32)
    mine += test(i);
  return static_cast<int>(__reduce_add_sync(kFullWarp, mine));
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_logits_keep(const __grid_constant__ Keep k) {
  const int row = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x);
  double* const sums = weights + kMostKept;
  const RowNumbers own = numbers_of(k, row);
  int flags = own.usable ? k.row_flags[row] : kIsEmpty | kIsInvalid;
  const int* positions = k.positions + static_cast<i64>(row) * k.k;
  const Score* values = static_cast<const Score*>(k.values) + static_cast<i64>(row) * k.k;
  const double factor = __ddiv_rn(kLog2e, own.temperature);
  const double best = widen(values[0]);
  for (int i = lane; i < k.k; i += 32) {
    const double score = widen(values[i]);
    const bool there = own.usable && !(flags & kHasNan) && positions[i] >= 0;
    const double scaled = score == best ? 0.0 : __dmul_rn(__dadd_rn(score, -best), factor);
    weights[i] = there ? exp2_of(scaled) : 0.0;
  }
  __syncwarp(); // every weight is there
  int count = own.usable && !(flags & kHasNan) ? count_of(k.k, [&](int i) { return positions[i] >= 0; }) : 0;
  const int enough = count_of(count, [&](int i) { return weights[i] >= own.min_p; });
  if (k.min_p_first && !k.joint) count = enough;
  double sum = 0;
  for (int i = 0; lane == 0 && i < count; ++i)
    sums[i] = sum = __dadd_rn(sum, weights[i]);
  __syncwarp(); // the running sums are there
  if (own.p < 1 && count > 0) {
    double mass = sums[count - 1];
    if (k.joint) {
      const double above = __dadd_rn(k.totals[row], -__dmul_rn(best, factor)); // NaN for an infinite score, then 0
      mass = max(mass, __dmul_rn(exp2_of(__dadd_rn(above, -32.0)), 0x1p32));
    }
    const double least = __dmul_rn(own.p, mass);
    count = min(count, count_of(count, [&](int i) { return sums[i] < least; }) + 1);
  }
  count = min(count, enough);
  const double total = count > 0 ? sums[count - 1] : 1.0;
  if (k.probabilities) {
    for (int i = lane; i < k.columns; i += 32) {
      const i64 at = static_cast<i64>(row) * k.columns + i;
      k.tokens[at] = i < count ? positions[i] : -1;
      k.probabilities[at] = i < count ? static_cast<float>(__ddiv_rn(weights[i], total)) : 0.0f;
    }
    if (count > k.columns) flags |= kOverCapacity;
    if (lane == 0) k.counts[row] = count;
  } else {
    const double drawn = __dmul_rn(own.uniform, total);
    const int last = count_of(count, [&](int i) { return weights[i] > 0; }) - 1;
    const int slot = min(count_of(count, [&](int i) { return sums[i] <= drawn; }), last);
    const double scaled = slot < 0 ? 0.0 : __dmul_rn(widen(values[slot]), factor);
    const double logprob = __dmul_rn(__dadd_rn(scaled, -k.totals[row]), kLn2);
    if (lane == 0) k.tokens[row] = slot < 0 ? -1 : positions[slot];
    if (lane == 0) k.logprobs[row] = slot < 0 ? __uint_as_float(kNanKey) : static_cast<float>(logprob);
  }
  if (lane == 0) k.flags[row] = flags;
}
