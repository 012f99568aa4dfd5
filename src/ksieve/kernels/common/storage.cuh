// On-chip state of one selecting CTA, and the bounded candidate array built on it.
#pragma once
#include "common/params.cuh"

// One boundary found in a histogram: the bin that holds the requested rank.
struct Boundary {
  int bin;
  int before; // members of better bins
  int count;  // members of the bin itself
};

// How a scan treats the scores that reach its cutoff.
enum class Mode {
  kInclusive,    // all are candidates
  kSeparateTies, // better ones are candidates; equal ones are counted, and fill the output from its end
  kClassify,     // some are better than the candidates, some are candidates
};

// Bins of a histogram over ordered keys: bin 0 takes every key up to `base`, and the ones after it equal steps.
struct Digit {
  u32 base;
  int shift;
};

// What the current scan does with each score. Thread 0 writes it; threads read it where a score passes the cutoff.
struct ScanRule {
  Mode mode;
  u32 emit_from; // keys [emit_from, best): decided, written to the output
  u32 best;      // keys [best, worst]: candidates
  u32 worst;
  Digit digit; // bins that candidates are counted in
  int k;
  int* row_out;
  int* num_selected; // counter of output slots taken from the front: this CTA's, or its cluster's
  int* num_ties; // counter of slots taken from the back, by scores equal to an exact boundary: this CTA's or its row's
};

using RingSlot = Words;

enum class RowRoute : unsigned char {
  kNone,
  kStreamed,
  kShort,
  kResident
}; // kNone: there is no such row; kShort: every position is selected

// Two scores between which the k-th score of a row lies, almost always; see resident/select.cuh.
struct alignas(16) Bracket {
  u32 worst;   // ordered key of its end
  u32 best;    // ordered key of its beginning
  int signs;   // whether some warp's end is not positive
  u32 plateau; // key of a value that kPlateau or more samples of a warp have; 0: there is none
};

// A resident row and the tile of it in this CTA: facts that one thread computes for all, and counters.
struct alignas(16) RowDescriptor {
  const void* body;   // the 16-byte aligned part of the tile, which is copied
  u32 bytes;          // its size
  int copy;           // parity of its bulk copy's number, for the mbarrier; -1: it is not copied in bulk
  const void* scores; // the row's first score
  int* out;
  int id;
  int slots; // the row's k
  int begin; // positions [begin, end) are this CTA's tile
  int end;
  int body_begin;      // position of the body's first score
  int valid;           // scores of the tile in the body
  unsigned char first; // rank of the sample that begins a warp's bracket, plus 32 times the code of its extension
  unsigned char
      last;   // rank of the sample that ends it, plus 32 times the code: extended by 2^code - 1 times its length
  bool edges; // whether scores of the tile are outside the body
  RowRoute way;
  int base; // with windows: added to an index that is written
  Bracket range;
  int better;       // scores better than a plateau's value
  int equal;        // scores equal to it
  int num_selected; // output positions collected by this CTA
  int tail_count;   // entries of `tail`, or output slots taken by equal scores
};

template <bool kHalf> struct PlaceType {
  using Type = u32;
};
template <> struct PlaceType<true> {
  using Type = unsigned short;
};
using Place = PlaceType<kLocalIndex16>::Type;
constexpr int kColumnKeys = kColumns * kThreads * sizeof(u32); // bytes of the keys in all columns
constexpr int kColumnBytes = kColumnKeys + kColumns * kThreads * sizeof(Place);

constexpr int kMostChunks = 4;                      // of a tile: resident/descriptor.cuh
constexpr int kDescriptors = kMaxResident ? 16 : 3; // slots for row descriptors; half of them are filled at a time
constexpr int kSamples =
    kMaxResident
        ? kThreads
        : sizeof(RowDescriptor) / 2; // one of each thread; without resident rows padding, so that the size stays fixed

struct alignas(16) SharedStorage {
  RingSlot ring[kStages][kThreads]; // 16-byte loads in flight: common/load.cuh
  u32 histogram[kBins];             // all zero whenever a counting step begins
  alignas(8) unsigned char candidates[kColumnBytes + kSharedCapacity * sizeof(u64)]; // columns, then the list
  int thread_count[kColumns ? kThreads : 4];                                         // entries in each thread's column
  u64 tail[kTailMax];                           // the last undecided candidates, which one warp ranks
  alignas(16) unsigned short samples[kSamples]; // of resident rows, ranked by their warps
  u32 warp_totals[32];
  ScanRule rule;
  u64* spill; // this CTA's slice of the global workspace
  Boundary found[2];
  u32 cutoff[2];      // inclusive ordered keys of the primary and the rescue boundary
  u32 view_best;      // best ordered key of the view
  int expect_plateau; // whether the view has an exact boundary's value more than once
  int tail_count;     // entries of `tail`, or output slots taken by members of the last frontier
  int listed;         // list slots handed out; may exceed kListed, storage never does
  int count;          // candidates admitted, stored or not
  int num_selected;   // output slots taken from the front
  int num_ties;       // output slots taken from the back
  u32 least;          // least and greatest key of candidates that found no slot
  u32 greatest;
  int next; // stream: the next row of this CTA; resident: the first row without a descriptor
  int next_length;
  int origin; // position of the first score that thread 0 reads
  int flag;   // stream_split: this CTA finishes the row; resident_block: some row is not resident
  int trace[kStatsColumns];
  const void* window;                      // windows: the row's first score
  int row_slots;                           // windows: the row's own k
  int base;                                // windows: added to an index that is written
  int tie_last;                            // tie-breaks: the row's last position
  int tie_from;                            // tie-breaks: the preferred end of the row, a position
  int tie_quota;                           // tie-breaks: scores that collect_ties still has to select
  u32 tie_key;                             // tie-breaks: their key
  u64 arrival[kMostChunks];                // resident: mbarriers of bulk copies
  int copies;                              // resident: bulk copies of the rows described so far
  int next_id;                             // length bins: the row whose length was fetched
  RowDescriptor descriptors[kDescriptors]; // resident: rows of a block in turn; of a cluster or grid, one and a mailbox
};
static_assert(sizeof(SharedStorage) == KSIEVE_SHARED_BYTES, "planning/memory.py mirrors this struct");

extern __shared__ __align__(16) unsigned char shared_bytes[];

__device__ __forceinline__ SharedStorage& shared_storage() { return *reinterpret_cast<SharedStorage*>(shared_bytes); }

// A stored candidate has its ordered key in the high word and its index in the low word. Candidates are in two places:
// a column of each thread in shared memory, which that thread alone writes and reads; and a list for what outgrows
// columns, whose first kSharedCapacity slots are in shared memory and the later ones in the spill slice. The list alone
// has room for kCapacity, so that every frontier of that size is stored; stream/certify.cuh scans again for a larger
// one.
constexpr int kListed = kCapacity;

__device__ __forceinline__ u64 make_entry(u32 high, int index) {
  return static_cast<u64>(high) << 32 | static_cast<u32>(index);
}
__device__ __forceinline__ u32 entry_key(u64 entry) { return static_cast<u32>(entry >> 32); }
__device__ __forceinline__ int entry_index(u64 entry) { return static_cast<int>(entry & 0xffffffffu); }

constexpr int kVector = kDtype == Dtype::kFloat32 ? 4 : 8; // scores in one 16-byte load
constexpr int kStep = kThreads * kVector;                  // scores between two vectors of a thread

// Columns hold keys, and in a separate array an index for each: 32 bits, or with kLocalIndex16 its 16-bit place among
// the scores that the thread reads, counted vector by vector.
__device__ __forceinline__ u32& column_key(int at) {
  return reinterpret_cast<u32*>(shared_storage().candidates)[at * kThreads + static_cast<int>(threadIdx.x)];
}
__device__ __forceinline__ Place& column_place(int at) {
  return reinterpret_cast<Place*>(shared_storage().candidates +
                                  kColumnKeys)[at * kThreads + static_cast<int>(threadIdx.x)];
}

__device__ __forceinline__ u32 load_place(int at) {
  return load_shared_here<sizeof(Place)>(shared_address(&column_place(at)));
}

constexpr int kBatch = kStages / kBatches; // vectors that a thread compares together
static_assert(kStages % kBatches == 0, "a turn of the ring is whole batches");

constexpr bool kSmall = kColumns > 0 && kThreads <= 256; // few columns: candidates outgrow them sooner

// Offset of this thread's vectors in a batch, given the offset `batches` before. In small CTAs threads move by a line
// with each batch: otherwise a period in the scores would fill the same few columns. Larger CTAs would lose 1 % by it.
__device__ __forceinline__ int moved_on(int place, int batches) {
  constexpr int kLine = 128 / 16 * kVector;
  static_assert((kStep & (kStep - 1)) == 0, "places go round");
  return kSmall ? (place + batches * kLine) & (kStep - 1) : place;
}

// Registers of a thread besides the bucket numbers of a resident row in one CTA: code that needs more than are left
// would be spilled and is left out.
constexpr int kRegisters = 65536 / (kThreads * KSIEVE_CTAS_PER_SM) / 8 * 8;
constexpr bool kOwns =
    kMaxResident > 0 && kMaxResident == (kStages + kOverflowVectors) * kStep && !KSIEVE_REGISTERS && !kEpilogue;
constexpr int kSpareRegisters = kOwns ? kRegisters - kMaxResident / kThreads / 2 : 0;
constexpr bool kRoomy = kSpareRegisters >= 24;
constexpr bool kKnownEarly = kSpareRegisters >= 30; // a warp may know the row's bracket before the others arrive

// threadIdx.x where it is rarely needed: addresses made of it are then not kept from row to row, and spilled. Reading
// it takes as long as a load from shared memory, so it is kept where registers are left.
__device__ __forceinline__ int reread_tid() {
  return kSpareRegisters >= (kOverflowVectors ? 56 : 40) ? static_cast<int>(threadIdx.x) : read_tid();
}

__device__ __forceinline__ int own_place() { return static_cast<int>(threadIdx.x) * kVector; }

__device__ __forceinline__ int index_of_place(u32 place, int own = own_place()) {
  if (!kLocalIndex16) return static_cast<int>(place);
  int vector = static_cast<int>(place / kVector);
  int within = moved_on(own, vector / kBatch) + static_cast<int>(place % kVector);
  return shared_storage().origin + vector * kStep + within;
}

// An index as a code that any thread can decode: a place and its thread, or the index itself with the sign bit set.
// Encoding costs one instruction for each entry of a column; only entries that are written are decoded.
__device__ __forceinline__ int code_of_place(u32 place) {
  return static_cast<int>(kLocalIndex16 ? threadIdx.x << 16 | place : place);
}
__device__ __forceinline__ int code_of_index(int index) { return kLocalIndex16 ? index | 1 << 31 : index; }
__device__ __forceinline__ int index_of_code(int code) {
  if (!kLocalIndex16) return code;
  int index = index_of_place(code & 0xffff, (code >> 16) * kVector);
  return code < 0 ? code & 0x7fffffff : index;
}

__device__ __forceinline__ u64 column_entry(int at) {
  return make_entry(column_key(at), index_of_place(column_place(at)));
}
__device__ __forceinline__ u64* shared_list(SharedStorage& s) {
  return reinterpret_cast<u64*>(s.candidates + kColumnBytes);
}

__device__ __forceinline__ u64& list_entry(int slot) {
  SharedStorage& s = shared_storage();
  return kSharedCapacity == kListed || slot < kSharedCapacity ? shared_list(s)[slot] : s.spill[slot - kSharedCapacity];
}

__device__ __forceinline__ int own_height() { return kColumns ? shared_storage().thread_count[threadIdx.x] : 0; }

// Number of this thread's stored candidates: in its column, and in its part of the list.
__device__ __forceinline__ int own_count() {
  int listed = min(shared_storage().listed, kListed) - static_cast<int>(threadIdx.x);
  return own_height() + max(listed + kThreads - 1, 0) / kThreads;
}

__device__ __forceinline__ u64 own_entry(int i, int thread_count) {
  return i < thread_count ? column_entry(i) : list_entry((i - thread_count) * kThreads + static_cast<int>(threadIdx.x));
}

// Calls visit(entry, at) for each entry of this thread's column. Entries are loaded four at a time, so that the lanes
// of a warp wait together.
template <class Visit> __device__ __forceinline__ void each_in_column(int thread_count, Visit visit) {
#pragma unroll 1
  for (int i = 0; i < thread_count; i += 4) {
    u64 entry[4];
#pragma unroll
    for (int b = 0; b < 4; ++b)
      entry[b] = column_entry(min(i + b, thread_count - 1));
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if (i + b >= thread_count) break;
      visit(entry[b], i + b);
    }
  }
}

// Calls visit(entry) for each stored candidate of this thread.
template <class Visit> __device__ __forceinline__ void each_own(Visit visit) {
  if (kColumns) each_in_column(own_height(), [&](u64 entry, int) { visit(entry); });
  int listed = min(shared_storage().listed, kListed);
#pragma unroll 1
  for (int slot = threadIdx.x; slot < listed; slot += kThreads)
    visit(list_entry(slot));
}

// Joins the least and greatest keys of a warp into those of the CTA. A barrier must follow.
__device__ __forceinline__ void fold_extremes(SharedStorage& s, u32 least, u32 greatest) {
  least = __reduce_min_sync(kFullWarp, least);
  greatest = __reduce_max_sync(kFullWarp, greatest);
  if ((threadIdx.x & 31) == 0) {
    atomicMin(&s.least, least);
    atomicMax(&s.greatest, greatest);
  }
}

// Removes all candidates. Call between barriers.
__device__ __forceinline__ void forget_candidates() {
  SharedStorage& s = shared_storage();
  if (kColumns) s.thread_count[threadIdx.x] = 0;
  if (threadIdx.x != 0) return;
  s.listed = s.count = 0;
  s.least = kNanKey;
  s.greatest = 0;
}

// Removes all candidates and clears the histogram. A barrier must follow.
__device__ __forceinline__ void clear_counts(int thread = static_cast<int>(threadIdx.x)) {
  constexpr int kSlots = kBins / 4;
#pragma unroll
  for (int first = 0; first < kSlots; first += kThreads)
    if (first + kThreads <= kSlots || thread < kSlots - first)
      reinterpret_cast<RingSlot*>(shared_storage().histogram)[first + thread] = {};
  forget_candidates();
}

// Clears every counter for the next row. A barrier must follow.
__device__ __forceinline__ void clear_storage() {
  SharedStorage& s = shared_storage();
  clear_counts();
  if (threadIdx.x == 0) {
    s.num_selected = s.tail_count = s.num_ties = s.expect_plateau = 0;
    s.view_best = kNanKey;
    if (kTies) s.tie_quota = 0;
  }
}
