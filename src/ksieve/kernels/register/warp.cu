// Family register_warp: one warp per row, which stays in registers. For many narrow rows.
//
// Row reads, from global memory: 1, and the few scores that are ranked once more. No barrier of the CTA, no workspace.
// Rows are taken round robin.
#include "register/warp.cuh"

// Selects a row, and completes it. Call by a warp.
template <class Before>
__device__ __forceinline__ void select_any(const Params& p, const Row& row, int lane, Before before_last) {
  const int k = slots_of(p, row);
  int* out = row_output(p, row.id);
  const auto shown = [&](int position) { return kWindows && !kEpilogue ? position + row.base : position; };
  if (row.length <= k) {
    write_all(out, row.length, written_slots(p, row.length, p.k), lane, shown);
  } else {
    select_narrow<kLaneVectors>(p, out, row, k, lane, shown);
  }
  before_last();
  __syncwarp(); // the slots are written, and the list is read
  run_epilogue<kLanes>(p, row.id, nullptr);
}

// Selects the segments of a warp: up to kLanes neighbours at a time, whose ends lanes load together. Those that are
// too long for it are listed for the next launch.
template <class AnyRow>
__device__ __forceinline__ void select_segments(const Params& p, u32 warp, u32 warps, int lane) {
  const u32 each = min((p.rows + warps - 1) / warps, u32{kLanes});
#pragma unroll 1
  for (u32 first = warp * each; first < p.rows; first += warps * each) {
    const bool one = lane < each && first + lane < p.rows;
    const AnyRow mine = load_row(p, one ? first + lane : first);
    const u32 longer = kPassesOn ? __ballot_sync(kFullWarp, one && mine.length > kMaxResident) : 0;
    u32 rest = __ballot_sync(kFullWarp, one) & ~longer;
    if (longer) {
      int number = 0;
      if (lane == 0) number = list_rows(p, __popc(longer));
      number = __shfl_sync(kFullWarp, number, 0) + __popc(longer & lanes_below());
      if (longer >> lane & 1) *binned_row(p, number, kLengthBin) = {mine.id, mine.length};
    }
#pragma unroll 1
    while (rest) {
      const u32 from = take_bit(rest);
      AnyRow row = mine;
      row.scores = reinterpret_cast<const Score*>(__shfl_sync(kFullWarp, reinterpret_cast<u64>(mine.scores), from));
      row.length = __shfl_sync(kFullWarp, mine.length, from);
      row.id = first + from;
      row.slots = __shfl_sync(kFullWarp, mine.slots, from);
      select_any(p, row, lane, [] {});
    }
  }
  release_dependents();
}

// Selects the rows of a warp.
__device__ __forceinline__ void select_narrow_rows(const Params& p) {
  const int lane = threadIdx.x % kLanes;
  const u32 warp = __shfl_sync(kFullWarp, threadIdx.x / kLanes, 0); // the compiler then knows that all lanes agree
  const u32 warps = gridDim.x * kWarps;
  if constexpr (kSegments) return select_segments<Row>(p, blockIdx.x * kWarps + warp, warps, lane);
  const int live = kWindows ? 0 : live_rows(p);
#pragma unroll 1
  for (u32 number = blockIdx.x * kWarps + warp; number < p.rows; number += warps) {
    const Row row = [&] {
      if constexpr (kWindows) {
        return load_row(p, number);
      } else {
        return row_of(p, number, length_of(p, number), live);
      }
    }();
    select_any(p, row, lane, [&] {
      if (number + warps >= p.rows) release_dependents();
    });
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_register_warp(const __grid_constant__ Params p) {
  wait_for_inputs();
  select_narrow_rows(p);
}
