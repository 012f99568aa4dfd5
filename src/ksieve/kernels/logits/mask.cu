// Copies rows of scores, with minus infinity in place of those whose bit is not set. A CTA has a part of a row.
#include "common/ranking.cuh"

struct Mask {
  const void* scores; // (rows, width), `pitch` elements apart
  const u32* allowed; // (rows, words), `allowed_pitch` apart: bit i % 32 of word i / 32 is that of score i
  void* out;          // (rows, width), without gaps
  i64 pitch;
  i64 allowed_pitch;
  int width;
  int parts; // CTAs of a row
};

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_logits_mask(const __grid_constant__ Mask m) {
  constexpr int kEach = 16; // scores of a thread
  const int row = static_cast<int>(blockIdx.x) / m.parts;
  const int first = static_cast<int>(blockIdx.x) % m.parts * kThreads * kEach + static_cast<int>(threadIdx.x);
  const auto* scores = static_cast<const Stored::Bits*>(m.scores) + row * m.pitch;
  auto* out = static_cast<Stored::Bits*>(m.out) + static_cast<i64>(row) * m.width;
  const u32* allowed = m.allowed + row * m.allowed_pitch;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int at = first + e * kThreads;
    if (at >= m.width) break;
    const bool kept = allowed[at / 32] >> (at % 32) & 1;
    out[at] = kept ? scores[at] : static_cast<Stored::Bits>(kWorstBits);
  }
}
