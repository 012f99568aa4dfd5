// Where a row starts and ends, and how its scores are read: 16 bytes at a time whatever the alignment.
#pragma once
#include "params.cuh"

#if KSIEVE_DTYPE == 0
using Score = float;
#else
using Score = unsigned short;
#endif
constexpr int kVector = 16 / sizeof(Score); // scores in one 16-byte load
constexpr u32 kAllValid = (1u << kVector) - 1;

__device__ __forceinline__ float widen(Score score) {
#if KSIEVE_DTYPE == 0
  return score;
#elif KSIEVE_DTYPE == 1
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(score));
  return value;
#else
  return __uint_as_float(static_cast<u32>(score) << 16);
#endif
}

struct Row {
  const Score* scores;
  int id;
  int length; // clamped to [0, width]; 0 for a row past the live count
};

__device__ __forceinline__ Row load_row(const Params& p, int id) {
  int live = p.num_rows ? min(max(*p.num_rows, 0), p.rows) : p.rows;
  int length = p.lengths ? min(max(p.lengths[id], 0), p.width) : p.width;
  return {static_cast<const Score*>(p.scores) + id * p.pitch, id, id < live ? length : 0};
}

// The row is read once and is larger than L1: do not let it evict anything there.
struct Raw {
  u32 word[4];
};
__device__ __forceinline__ Raw load_raw(const Score* address) {
  Raw raw;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(raw.word[0]), "=r"(raw.word[1]), "=r"(raw.word[2]), "=r"(raw.word[3])
      : "l"(address));
  return raw;
}

__device__ __forceinline__ float unpack(const Raw& raw, int i) {
#if KSIEVE_DTYPE == 0
  return __uint_as_float(raw.word[i]);
#else
  return widen(static_cast<Score>(raw.word[i / 2] >> (i % 2 * 16)));
#endif
}

// Sixteen bytes that no cutoff but the lowest admits: fills what a load does not cover.
__device__ __forceinline__ Raw padding() {
#if KSIEVE_DTYPE == 0
  constexpr u32 kLowest = 0xff800000u;
#elif KSIEVE_DTYPE == 1
  constexpr u32 kLowest = 0xfc00fc00u;
#else
  constexpr u32 kLowest = 0xff80ff80u;
#endif
  return {{kLowest, kLowest, kLowest, kLowest}};
}

constexpr int kBatch = KSIEVE_DTYPE == 0 ? 4 : 2; // 16-byte loads in flight per thread

// One batch of loads of a warp. A visitor says which vectors are worth a visit, from the loaded bits alone, and
// then visits those, whole warps together. Visits run in a loop, not unrolled: the code of a visit exists once per
// scan, and its registers are not multiplied by kBatch. `first` is the index of raw[0]'s first score, `limit` one past
// the last index that counts.
template <class Visitor>
__device__ __forceinline__ void visit_batch(const Visitor& visitor, const Raw (&raw)[kBatch], int first, int limit) {
  u32 mine = 0;
#pragma unroll
  for (int u = 0; u < kBatch; ++u)
    mine |= visitor.wants(raw[u]) ? 1u << u : 0u;
  u32 pending = __reduce_or_sync(kFullWarp, mine);
  while (pending) {
    int u = __ffs(pending) - 1;
    pending &= pending - 1;
    Raw chosen = raw[0];
#pragma unroll
    for (int other = 1; other < kBatch; ++other) {
#pragma unroll
      for (int w = 0; w < 4; ++w)
        chosen.word[w] = u == other ? raw[other].word[w] : chosen.word[w];
    }
    int index = first + u * kThreads * kVector;
    u32 valid = (1u << min(max(limit - index, 0), kVector)) - 1;
    visitor.visit(chosen, index, valid, (mine >> u & 1) && valid);
  }
}

// Shows a visitor every score in [begin, end). The body is 16-byte loads, kBatch in flight per thread, whatever the
// alignment; the at most kVector - 1 scores on either side of it come first, one per lane.
template <class Visitor>
__device__ __forceinline__ void scan(const Score* scores, int begin, int end, const Visitor& visitor) {
  constexpr int kStep = kThreads * kVector;
  int misaligned = static_cast<int>(reinterpret_cast<u64>(scores + begin) / sizeof(Score) % kVector);
  int body = min(begin + (kVector - misaligned) % kVector, end);
  int body_end = body + (end - body) / kVector * kVector;

  Raw raw[kBatch];
#pragma unroll
  for (int u = 0; u < kBatch; ++u)
    raw[u] = padding();
  int edge = begin + static_cast<int>(threadIdx.x);
  if (edge >= body) edge += body_end - body;
  bool at_edge = threadIdx.x < 2 * kVector && edge < end;
  if (at_edge) {
#if KSIEVE_DTYPE == 0
    raw[0].word[0] = __float_as_uint(scores[edge]);
#else
    raw[0].word[0] = scores[edge] | (padding().word[0] & 0xffff0000u);
#endif
  }
  int first = edge;
  int limit = at_edge ? edge + 1 : 0;
  for (;;) {
    visit_batch(visitor, raw, first, limit);
    if (body >= body_end) break;
    first = body + static_cast<int>(threadIdx.x) * kVector;
    limit = body_end;
    const Score* address = scores + first;
    body += kBatch * kStep;
    if (body <= body_end) { // the same for the whole block: no predicates on the loads
#pragma unroll
      for (int u = 0; u < kBatch; ++u)
        raw[u] = load_raw(address + u * kStep);
    } else {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        raw[u] = padding();
        if (first + u * kStep < body_end) raw[u] = load_raw(address + u * kStep);
      }
    }
  }
}

// Scores per segment of a row cut into `splits`: a multiple of 32, so that segments of an aligned row are aligned.
__device__ __forceinline__ int segment_size(int length, int splits) { return ((length - 1) / splits + 32) / 32 * 32; }
