// Tie-breaks: of the scores equal to the worst selected one, those with the lowest or the highest positions. A position
// counts as its distance from the preferred end of the row, so that both are one search for the least distances. Scores
// that have positions of their own go by these, which may be in any order.
//   1. equal scores that are all stored: the distance of the quota's last one is found by digits (last_tie_distance)
//   2. equal scores that were counted but not stored, or found no room: one more traversal collects them in order,
//      starting from the preferred end and ending with the quota (collect_ties); with positions of their own, the
//      distance of the quota's last one is found first (collect_by_position)
#pragma once
#include "stream/filter.cuh"

constexpr int kMaxTieDistance = 0x7fffffff; // no distance is greater

__device__ __forceinline__ int tie_distance(int index) {
  return abs((kPositions ? PositionedRow::of_row().position_of(index) : index) - shared_storage().tie_from);
}

__device__ __forceinline__ int tie_position(int distance) {
  int from = shared_storage().tie_from;
  return from ? from - distance : distance;
}

// Leaves the rest of a row's answer, `remaining_k` scores of one key, to collect_ties.
__device__ __forceinline__ void leave_ties(u32 key, int remaining_k) {
  SharedStorage& s = shared_storage();
  if (threadIdx.x != 0) return;
  s.tie_key = key;
  s.tie_quota = remaining_k;
}

// Returns the distance of the `remaining_k`-th of the stored candidates with keys in a range, which has more of them.
// Call by all threads, when none counts any more.
__device__ __forceinline__ int last_tie_distance(KeyRange keys, int remaining_k) {
  SharedStorage& s = shared_storage();
  for (int i = threadIdx.x; i < kBins; i += kThreads)
    s.histogram[i] = 0;
  __syncthreads(); // the histogram is empty
  int low = 0;     // inclusive range of distances
  int high = kMaxTieDistance;
  for (int shift = s.tie_last >> 22 ? 22 : s.tie_last >> 11 ? 11 : 0;; shift -= 11) {
    each_own([&](u64 entry) {
      int distance = tie_distance(entry_index(entry));
      bool in = entry_key(entry) >= keys.best && entry_key(entry) <= keys.worst && distance >= low && distance <= high;
      if (in) atomicAdd(&s.histogram[(distance - low) >> shift], 1u);
    });
    __syncthreads(); // every thread's distances are counted by this digit
    FoundBin found = find_bin(remaining_k);
    remaining_k -= found.before;
    low |= found.bin << shift;
    high = low | ((1 << shift) - 1);
    if (shift == 0 || found.count == remaining_k) return high;
  }
}

// number_of(index) returns a number for each of a row's scores: more than `wanted` that differ, and negative ones,
// which do not count. Returns a number that exactly `wanted` of them do not exceed. Call by all threads, when none
// counts any more; ends with a barrier.
template <class NumberOf> __device__ __forceinline__ int last_of_least(const Row& row, int wanted, NumberOf number_of) {
  SharedStorage& s = shared_storage();
  for (int i = threadIdx.x; i < kBins; i += kThreads)
    s.histogram[i] = 0;
  __syncthreads(); // the histogram is empty
  int low = 0;     // inclusive range of numbers, as in last_tie_distance
  int high = kMaxTieDistance;
  for (int shift = 22;; shift -= 11) {
#pragma unroll 1
    for (int index = threadIdx.x; index < row.length; index += kThreads) {
      const int number = number_of(index);
      if (number >= low && number <= high) atomicAdd(&s.histogram[(number - low) >> shift], 1u);
    }
    __syncthreads(); // every thread's numbers are counted by this digit
    const FoundBin found = find_bin(wanted);
    wanted -= found.before;
    low |= found.bin << shift;
    high = low | ((1 << shift) - 1);
    if (shift == 0 || found.count == wanted) return high;
  }
}

// Selects the ties that leave_ties has recorded, where scores have positions of their own: call as collect_ties.
__device__ __forceinline__ void collect_by_position(const Row& row, int slots) {
  SharedStorage& s = shared_storage();
  PositionedRow& own = PositionedRow::of_row();
  __syncthreads(); // thread 0 wrote tie_quota and tie_key, for all
  const int remaining_k = s.tie_quota;
  if (remaining_k == 0) return;
  trace_scans(1);
  const u32 key = s.tie_key;
  auto distance_of = [&](int index) {
    return order_key(widen(row.scores[index])) == key && own.at(index) >= 0 ? tie_distance(index) : -1;
  };
  const int last = last_of_least(row, remaining_k, distance_of);
#pragma unroll 1
  for (int index = threadIdx.x; index < row.length; index += kThreads) {
    const int distance = distance_of(index);
    const int number = distance >= 0 && distance <= last ? atomicAdd(&own.taken, 1) : remaining_k;
    if (number < remaining_k) write_front(slots - remaining_k + number, index);
  }
}

// tie_bits returns one bit for each score of kTieVectors vectors of a thread: whether it has the key. The vectors begin
// at `first` and are kWarpStep apart.
constexpr int kTieVectors = kVector > 8 ? 2 : 4;
constexpr int kWarpStep = 32 * kVector;
static_assert(kTieVectors * kVector <= 32, "a thread's matches are the bits of one word");
static_assert(kTieVectors <= 4, "their counts are 16 bits each of one word");

__device__ __forceinline__ u32 tie_bits(const Row& row, int first, u32 key) {
  u32 bits = 0;
  if (first >= 0 && first + (kTieVectors - 1) * kWarpStep + kVector <= row.length) {
    Raw raw[kTieVectors];
#pragma unroll
    for (int u = 0; u < kTieVectors; ++u)
      raw[u] = load_scores(row.scores + first + u * kWarpStep);
    if constexpr (kAllowed) {
#pragma unroll
      for (int u = 0; u < kTieVectors; ++u)
        keep_allowed(raw[u], allowed_bits(first + u * kWarpStep));
    }
#pragma unroll
    for (int u = 0; u < kTieVectors; ++u) {
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        bits |= order_key(unpack(raw[u], i)) == key ? 1u << (u * kVector + i) : 0u;
    }
  } else {
    for (int bit = 0; bit < kTieVectors * kVector; ++bit) {
      int at = first + bit / kVector * kWarpStep + bit % kVector;
      if (at >= 0 && at < row.length && order_key(allowed_score(widen(row.scores[at]), at)) == key) bits |= 1u << bit;
    }
  }
  return bits;
}

__device__ __forceinline__ u32 vector_of(u32 bits, int u) { return bits >> (u * kVector) & ((1u << kVector) - 1); }

// Selects the ties that leave_ties has recorded, for the row's last slots. Call by all threads, behind the selection of
// a row with more than `slots` scores; starts with a barrier.
__device__ __forceinline__ void collect_ties(const Row& row, int slots) {
  SharedStorage& s = shared_storage();
  constexpr int kChunk = kWarps * kTieVectors * kWarpStep;
  __syncthreads(); // thread 0 wrote tie_quota and tie_key, for all
  int remaining_k = s.tie_quota;
  if (remaining_k == 0) return;
  trace_scans(1);
  u32 key = s.tie_key;
  bool backwards = s.tie_from != 0;
  int lane = threadIdx.x & 31;
  int warp = threadIdx.x >> 5;
  // Chunks start at the 16-byte boundary before the row, so that all but the outermost loads are whole vectors.
  int before_row = static_cast<int>(reinterpret_cast<u64>(row.scores) / sizeof(Score) % kVector);
  int chunks = (row.length - 1 + before_row) / kChunk + 1;
  int taken = 0;
  for (int turn = 0; turn < chunks && taken < remaining_k; ++turn) {
    int chunk = backwards ? chunks - 1 - turn : turn;
    int first = chunk * kChunk - before_row + warp * kTieVectors * kWarpStep + lane * kVector;
    u32 bits = tie_bits(row, first, key);
    u64 counts = 0; // matches of each vector, in 16 bits each
#pragma unroll
    for (int u = 0; u < kTieVectors; ++u)
      counts |= static_cast<u64>(__popc(vector_of(bits, u))) << (u * 16);
    u64 through = counts; // matches of the lanes up to this one
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      u64 others = __shfl_up_sync(kFullWarp, through, offset);
      if (lane >= offset) through += others;
    }
    u64 totals = __shfl_sync(kFullWarp, through, 31);
    int mine = 0;            // matches of this warp
    int before[kTieVectors]; // matches of this warp in front of this lane's in vector u
#pragma unroll
    for (int u = 0; u < kTieVectors; ++u) {
      before[u] = mine + static_cast<int>((through - counts) >> (u * 16) & 0xffffu);
      mine += static_cast<int>(totals >> (u * 16) & 0xffffu);
    }
    if (lane == 0) s.warp_totals[warp] = mine;
    __syncthreads(); // every warp's matches are in warp_totals
    int other = lane < kWarps ? static_cast<int>(s.warp_totals[lane]) : 0;
    int all = __reduce_add_sync(kFullWarp, other);
    int ahead = __reduce_add_sync(kFullWarp, lane < warp ? other : 0);
    __syncthreads(); // every warp has read warp_totals
#pragma unroll
    for (int u = 0; u < kTieVectors; ++u) {
      u32 vector = vector_of(bits, u);
      for (int number = ahead + before[u]; vector; vector &= vector - 1, ++number) {
        int rank = taken + (backwards ? all - 1 - number : number);
        if (rank < remaining_k) write_front(slots - remaining_k + rank, first + u * kWarpStep + __ffs(vector) - 1);
      }
    }
    taken += all;
  }
}
