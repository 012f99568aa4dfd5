// Rung 5: a resident row.
// Idea:  copy the row to shared memory, where looking at a score again is cheap; two of its scores, sampled there,
//        bracket the k-th. Divide the bracket into equal steps of the score: linear buckets, one multiply per score.
//        Count; write what is in better buckets; rank the few in the k-th score's bucket against each other.
// Reads: 1 per score, whatever the scores. The row has to fit in shared memory at 4 bytes per score.
// Next:  src/ksieve/kernels. There copies are asynchronous, bucket numbers stay in registers, several CTAs share a
//        row that one cannot hold, and longer rows take rung 4 as a pipeline over persistent CTAs.
#include "refine.cuh"

constexpr int kFew = 256; // a bucket of so many is ranked by comparing all with all
constexpr int kLast = kBins - 1;

extern __shared__ __align__(16) float resident[]; // the row

// Two sampled scores between which the k-th is expected. Nothing depends on it but speed.
struct Bracket {
  float best;
  float worst;
};
__device__ __forceinline__ Bracket sample_bracket(int length, int k) {
  __shared__ u32 samples[kThreads];
  __shared__ Bracket bracket;
  const int thread = threadIdx.x;
  const SampleRank rank = sample_rank(k, length, kThreads);
  const float score = resident[static_cast<int>(static_cast<u64>(thread) * length / kThreads)];
  const u32 own = samples[thread] = key_of(score);
  __syncthreads(); // every sample is written
  int better = 0;
  for (int i = 0; i < kThreads; ++i)
    better += samples[i] < own || (samples[i] == own && i < thread);
  if (better == max(static_cast<int>(rank.expected - rank.margin), 0)) bracket.best = score;
  if (better == min(static_cast<int>(rank.expected + rank.margin), kThreads - 1)) bracket.worst = score;
  __syncthreads(); // both ends are written for all
  return bracket;
}

// Bucket of a score: equal steps down from the best end, the last for all that is worse than the worst end, and NaN.
// Subtracting, multiplying and clamping never turn a worse score into a better bucket, and that is all it takes. Where
// the ends allow no finite step (equal, infinite, NaN, or too far apart) every score shares bucket 0.
struct Buckets {
  float best;
  float per_score;

  __device__ Buckets(Bracket ends) {
    const float step = static_cast<float>(kLast) / (ends.best - ends.worst);
    best = ends.best;
    per_score = step > 0.0f && step < 3.0e38f ? step : 0.0f; // infinite ends are an infinite distance, and no step
  }
  __device__ int of(float score) const {
    if (per_score == 0.0f) return 0;
    if (score != score) return kLast;
    return static_cast<int>(fminf(fmaxf((best - score) * per_score, 0.0f), static_cast<float>(kLast)));
  }
};

// The scores of one bucket.
struct Members {
  Buckets buckets;
  int bucket;
  int length;

  template <class Visit> __device__ void each(Visit visit) {
    for (int i = threadIdx.x; i < length; i += kThreads)
      if (buckets.of(resident[i]) == bucket) visit(key_of(resident[i]), i);
  }
};

extern "C" __global__ void __launch_bounds__(kThreads) ksieve_v5_resident(const __grid_constant__ Params p) {
  __shared__ u64 few[kFew]; // key and position of the k-th score's bucket
  __shared__ u32 listed;
  const int thread = threadIdx.x;
  Row row(p);
  Output out(p);
  if (thread == 0) listed = 0;
  if (write_short_row(p, row, out)) return;

  // 1. The only read of the row.
  for (int i = thread; i < row.length; i += kThreads)
    resident[i] = row.load(i);
  clear_histogram(); // its barrier also stands behind the copy
  const Buckets buckets(sample_bracket(row.length, p.k));

  // 2. Count. Most scores are worse than the bracket: those of the last bucket are counted in a register.
  u32 last = 0;
  for (int i = thread; i < row.length; i += kThreads) {
    const int bucket = buckets.of(resident[i]);
    if (bucket == kLast) {
      ++last;
    } else {
      atomicAdd(&histogram()[bucket], 1u);
    }
  }
  atomicAdd(&histogram()[kLast], last);
  __syncthreads(); // every thread has counted its share
  const Bin bin = find_bin(p.k);
  const u32 wanted = p.k - bin.better;

  // 3. Write the better buckets, and the k-th score's if all of it is wanted; list it if it is small.
  for (int i = thread; i < row.length; i += kThreads) {
    const int bucket = buckets.of(resident[i]);
    if (bucket < bin.number || (bucket == bin.number && bin.count == wanted)) {
      out.put(i);
    } else if (bucket == bin.number && bin.count <= kFew) {
      few[atomicAdd(&listed, 1u)] = static_cast<u64>(key_of(resident[i])) << 32 | static_cast<u32>(i);
    }
  }
  row.report(p);
  if (bin.count == wanted) return;

  // 4. Settle that bucket: one listed score per thread, or, of an overfull one, by the digits of its keys.
  if (bin.count > kFew) {
    Members members{buckets, bin.number, row.length};
    const Cut cut = narrow(members, 0, kWorstKey, wanted);
    emit(members, cut, out);
    return;
  }
  __syncthreads(); // the list is complete
  if (thread >= bin.count) return;
  u32 better = 0;
  for (u32 i = 0; i < bin.count; ++i)
    better += few[i] < few[thread];
  if (better < wanted) out.put(static_cast<int>(static_cast<u32>(few[thread])));
}
