// The epilogue of a producer in CUDA C++: keep the scores that ksieve.running.Candidates asks for, and count them.
//
// Compute capability 7.0 and later. `ksieve.running.include_path()` is the directory of this file. The members are
// the arrays of the Candidates: pass their addresses, `candidates.scores.stride(0)` and `candidates.capacity`.
#pragma once

namespace ksieve {

// Score: float, or a type of 16 bits that converts to float: the dtype of the Candidates. `pitch` counts scores.
template <typename Score> struct Candidates {
  const float* cutoff;
  int* counts;
  Score* scores;
  int* positions;
  long long pitch;
  int capacity;
};

// Appends a score to the list of its row if it reaches the row's cutoff. Call it for valid positions alone, each once;
// any threads of a warp may call it together, for any rows. The score is compared as it is stored. NaN reaches a cutoff
// only where it is the best of all scores (`nan_first`: the largest, with nan="highest"). Elsewhere it would stand for
// a missing number. One atomic addition serves all threads that keep a score of one row at once.
template <typename Score>
__device__ __forceinline__ void keep(const Candidates<Score>& into, int row, Score score, int position,
                                     bool largest = true, bool nan_first = false) {
  const float value = static_cast<float>(score), cutoff = into.cutoff[row];
  const bool reaches = largest ? value >= cutoff : value <= cutoff;
  if (!reaches && !(nan_first && value != value)) return;
  const unsigned peers = __match_any_sync(__activemask(), row);
  unsigned lane, before;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
  const int first = __ffs(static_cast<int>(peers)) - 1;
  int slot = 0;
  if (static_cast<int>(lane) == first) slot = atomicAdd(into.counts + row, __popc(peers));
  slot = __shfl_sync(peers, slot, first) + __popc(peers & before);
  if (slot >= into.capacity) return; // counted; the row is not decided by this list
  into.scores[row * into.pitch + slot] = score;
  into.positions[row * into.pitch + slot] = position;
}

} // namespace ksieve
