// Rung 2: radix select.
// Idea:  count the row's keys by their first 11 bits; the counts name the bin of the k-th score.
//        Count the keys of that bin by their next 11 bits, then by the last 10: now the k-th key is known.
//        Read the row once more, and write what is better, and as many equal ones as are left to take.
// Reads: 4 per score, always. Memory: one histogram, whatever the length; ties and plateaus cost nothing extra.
// Next:  rung 3 guesses the k-th score from a sample, so that one scan both proves the guess and collects.
#include "ladder.cuh"

// The three digits of a key, the most significant first: 11, 11 and 10 bits.
struct Digit {
  int shift;
  int bits;

  __device__ explicit Digit(int round) : shift(round == 0 ? 21 : round == 1 ? 10 : 0), bits(round == 2 ? 10 : 11) {}
  __device__ u32 of(u32 key) const { return key >> shift & ((1u << bits) - 1); }
  __device__ u32 before(u32 key) const { return shift + bits == 32 ? 0 : key >> (shift + bits); } // earlier digits
};

extern "C" __global__ void __launch_bounds__(kThreads) ksieve_v2_radix(const __grid_constant__ Params p) {
  __shared__ u32 ties;
  Row row(p);
  Output out(p);
  if (threadIdx.x == 0) ties = 0; // counted behind the barriers below
  if (write_short_row(p, row, out)) return;

  u32 prefix = 0;   // upper bits of the k-th key, as far as they are known
  u32 wanted = p.k; // rank of the k-th score among the keys with that prefix
  for (int round = 0; round < 3; ++round) {
    const Digit digit(round);
    clear_histogram();

    // 1. Count by this digit the keys that agree in all earlier ones. One read of the row.
    row.each([&](u32 key, int) {
      if (digit.before(key) == digit.before(prefix)) atomicAdd(&histogram()[digit.of(key)], 1u);
    });
    __syncthreads(); // every thread has counted its share

    // 2. The bin that holds the rank is the next digit of the k-th key. What is in better bins is selected.
    const Bin bin = find_bin(wanted);
    prefix |= static_cast<u32>(bin.number) << digit.shift;
    wanted -= bin.better;
  }

  // 3. Collect: all keys before the k-th, and `wanted` of those that equal it. The fourth read.
  row.each([&](u32 key, int position) {
    if (key < prefix || (key == prefix && atomicAdd(&ties, 1u) < wanted)) out.put(position);
  });
  row.report(p);
}
