// On-chip state of one selecting CTA, and the bounded candidate array built on it.
#pragma once
#include "params.cuh"

// One boundary found in a histogram: the bin that holds the requested rank.
struct Boundary {
  int bin;
  int before; // members of better bins
  int count;  // members of the bin itself
};

// What the current scan does with each score; written by thread 0, read only where a score passes the cutoff.
struct ScanRule {
  u32 emit_from; // keys [emit_from, best): part of the answer already, straight to the output
  u32 best;      // keys [best, worst]: candidates
  u32 worst;
  u32 tie;   // exact policies: this key is counted apart; 0: none (no score has key 0)
  int shift; // of the digit that candidates are counted by
  int k;
  int* row_out;
  int* emitted; // output slots taken from the front: this CTA's counter, or its cluster's
  int* ties;    // and from the back, by scores equal to an exact boundary: this CTA's, or its row's
};

struct alignas(16) SharedStorage {
  u32 histogram[kBins]; // all zero whenever a counting step begins
  u32 keys[kSharedCapacity];
  int index[kSharedCapacity];
  u32 warp_totals[32];
  ScanRule rule;
  Boundary found[2];
  u32 cutoff[2];   // inclusive ordered keys of the primary and the rescue boundary
  int small[32];   // slots of the last few unresolved candidates
  int small_count; // and how many
  int count;       // candidates admitted; may exceed kCapacity, storage never does
  int emitted;     // output slots taken from the front
  int ties;        // and from the back
  u32 least;       // least and greatest key among candidates that found no slot
  u32 greatest;
  int next[2]; // next row of a persistent CTA, alternating so that a fast warp cannot overwrite it
  int flag;    // block-wide broadcast of the split family
  int trace[kStatsColumns];
  int reserved[19]; // up to planner_cuda.STORAGE_BYTES besides the candidates
};
static_assert(sizeof(SharedStorage) == KSIEVE_SHARED_BYTES, "planner_cuda.STORAGE_BYTES mirrors this struct");

extern __shared__ __align__(16) unsigned char shared_bytes[];

__device__ __forceinline__ SharedStorage& shared_storage() { return *reinterpret_cast<SharedStorage*>(shared_bytes); }

// Candidates 0..kSharedCapacity-1 live in shared memory, the rest of kCapacity in this worker's slice of global
// workspace. A frontier larger than kCapacity is counted, not stored: refine.cuh scans again.
struct Candidates {
  u64* spill;

  __device__ __forceinline__ void store(int slot, u32 key, int index) const {
    SharedStorage& s = shared_storage();
    if (slot < kSharedCapacity) {
      s.keys[slot] = key;
      s.index[slot] = index;
    } else if (slot < kCapacity) {
      spill[slot - kSharedCapacity] = static_cast<u64>(key) << 32 | static_cast<u32>(index);
    }
  }

  __device__ __forceinline__ u32 key(int slot) const {
    if (kSharedCapacity == kCapacity || slot < kSharedCapacity) return shared_storage().keys[slot];
    return static_cast<u32>(spill[slot - kSharedCapacity] >> 32);
  }

  __device__ __forceinline__ int index(int slot) const {
    if (kSharedCapacity == kCapacity || slot < kSharedCapacity) return shared_storage().index[slot];
    return static_cast<int>(spill[slot - kSharedCapacity] & 0xffffffffu);
  }
};

// Empties everything a row leaves behind. A barrier must follow.
__device__ __forceinline__ void clear_storage() {
  SharedStorage& s = shared_storage();
  for (int i = threadIdx.x; i < kBins; i += kThreads)
    s.histogram[i] = 0;
  if (threadIdx.x == 0) {
    s.count = s.emitted = s.small_count = s.ties = 0;
    s.least = kNanKey;
    s.greatest = 0;
  }
}
