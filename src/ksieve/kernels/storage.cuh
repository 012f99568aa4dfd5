// On-chip state of one selecting CTA, and the bounded candidate array built on it.
#pragma once
#include "params.cuh"

// One boundary found in a histogram: the bin that holds the requested rank.
struct Boundary {
  int bin;
  int before; // members of better bins
  int count;  // members of the bin itself
};

// How a scan treats the scores that reach its cutoff.
enum class Mode {
  kInclusive, // all are candidates
  kApart,     // better ones are candidates; equal ones are counted, and fill the output from its end
  kClassify,  // the exact key decides: better than the candidates, candidate, or neither
};

// What the current scan does with each score; written by thread 0, read only where a score passes the cutoff.
struct ScanRule {
  Mode mode;
  u32 emit_from; // keys [emit_from, best): part of the answer already, straight to the output
  u32 best;      // keys [best, worst]: candidates
  u32 worst;
  int shift; // of the digit that candidates are counted by
  int k;
  int* row_out;
  int* emitted; // output slots taken from the front: this CTA's counter, or its cluster's
  int* ties;    // and from the back, by scores equal to an exact boundary: this CTA's, or its row's
};

constexpr int kSlack = (kRescue ? 64 : 32) * kWarps; // slots: each warp may leave a chunk of 32 partly empty per scan
constexpr int kSharedSlots = kSharedCapacity + kSlack;
constexpr int kSlots = kCapacity + kSlack;

struct alignas(16) RingSlot {
  u32 word[4];
};

struct alignas(16) SharedStorage {
  RingSlot ring[kStages][kThreads]; // 16-byte loads in flight: row.cuh
  u32 histogram[kBins];             // all zero whenever a counting step begins
  u64 entries[kSharedSlots];        // stored candidates
  u32 warp_totals[32];
  ScanRule rule;
  u64* spill; // this worker's slice of global workspace
  Boundary found[2];
  u32 cutoff[2];   // inclusive ordered keys of the primary and the rescue boundary
  int apart;       // an exact boundary that the view saw more than once: expect a plateau
  int small[32];   // slots of the last few unresolved candidates
  int small_count; // and how many
  int slots;       // candidate slots handed out to warps; may exceed kSlots, storage never does
  int count;       // candidates admitted, stored or not
  int emitted;     // output slots taken from the front
  int ties;        // and from the back
  u32 least;       // least and greatest key among candidates that found no slot
  u32 greatest;
  int next; // next row of a persistent CTA
  int flag; // block-wide broadcast of the split family
  int trace[kStatsColumns];
  const void* window; // of windows: the row's first score
  int row_slots;      // its own k
  int base;           // and what is added to an index that is written
  int tie_last;       // of tie-breaks: the row's last position
  int tie_from;       // and the position that ties are preferred from, one end of the row
  int tie_quota;      // what one more traversal has to collect: this many scores
  u32 tie_key;        // of this key
  int reserved[5];    // up to planner_cuda.STORAGE_BYTES besides the candidates
};
static_assert(sizeof(SharedStorage) == KSIEVE_SHARED_BYTES, "planner_cuda.STORAGE_BYTES mirrors this struct");

extern __shared__ __align__(16) unsigned char shared_bytes[];

__device__ __forceinline__ SharedStorage& shared_storage() { return *reinterpret_cast<SharedStorage*>(shared_bytes); }

// A stored candidate: high word its ordered key, low word its index. Slots
// 0..kSharedSlots-1 live in shared memory, later ones in the spill slice. A frontier larger than kCapacity is
// counted, not stored: certify.cuh scans again.
constexpr u64 kEmptyEntry = ~0ull; // a negative index: nobody's

__device__ __forceinline__ u64 make_entry(u32 high, int index) {
  return static_cast<u64>(high) << 32 | static_cast<u32>(index);
}
__device__ __forceinline__ u32 entry_key(u64 entry) { return static_cast<u32>(entry >> 32); }
__device__ __forceinline__ int entry_index(u64 entry) { return static_cast<int>(entry & 0xffffffffu); }

__device__ __forceinline__ u64 load_entry(int slot) {
  const SharedStorage& s = shared_storage();
  return kSharedSlots == kSlots || slot < kSharedSlots ? s.entries[slot] : s.spill[slot - kSharedSlots];
}

__device__ __forceinline__ void store_entry(int slot, u64 entry) {
  SharedStorage& s = shared_storage();
  if (slot < kSharedSlots) {
    s.entries[slot] = entry;
  } else if (slot < kSlots) {
    s.spill[slot - kSharedSlots] = entry;
  }
}

__device__ __forceinline__ int stored_slots() { return min(shared_storage().slots, kSlots); }

// Forgets all candidates. By thread 0, between barriers.
__device__ __forceinline__ void forget_candidates() {
  SharedStorage& s = shared_storage();
  s.slots = s.count = 0;
  s.least = kNanKey;
  s.greatest = 0;
}

// Empties everything a row leaves behind. A barrier must follow.
__device__ __forceinline__ void clear_storage() {
  SharedStorage& s = shared_storage();
  for (int i = threadIdx.x; i < kBins; i += kThreads)
    s.histogram[i] = 0;
  if (threadIdx.x == 0) {
    forget_candidates();
    s.emitted = s.small_count = s.ties = s.apart = 0;
    if (kTies) s.tie_quota = 0;
  }
}
