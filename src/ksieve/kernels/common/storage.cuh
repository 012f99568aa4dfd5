// On-chip state of one selecting CTA, and the bounded candidate array built on it.
#pragma once
#include "common/keys.cuh"

// The bin of a histogram that holds a rank. It is no cutoff: it has every score of the bin, whatever its key.
struct FoundBin {
  int bin;
  int before; // members of all better bins
  int count;  // members of this bin
};

// How a scan treats the scores that reach its cutoff.
enum class Mode {
  kInclusive,    // all of them are candidates
  kSeparateTies, // better ones are candidates; equal ones are counted, and fill the output from its end
  kClassify,     // those better than the candidates are written to the output, the others are candidates
};

// What the current scan does with each score. Thread 0 writes it (set_rule), between two barriers; threads read it when
// they begin a scan, and where a score reaches the cutoff.
//
// A cutoff is the worst key that a scan admits. Each is written, and read, at one time:
//   ScanRule::worst          of the current scan: set_rule writes it; the visitors of the scan copy it to registers
//   ScanRule::emit_from      of earlier scans, which have written, or stored, the better scores: as `worst`
//   Proposal::cutoff         of the sample: thread 0 writes it at the end of propose; set_proposal_rule and certify
//                            read it, behind a barrier, to write the next rule
//   SharedStorage::tie_key   not of a scan, but of the scores among which a tie-break chooses: thread 0 writes it in
//                            leave_ties; collect_ties reads it, behind a barrier, before the epilogue
//   register/warp.cuh        in registers of a warp, the same in each lane: bracket_of writes and reads it
//   Push::cutoffs            of a row of ksieve.Running, exclusive: thread 0 writes it at the end of a launch, and all
//                            threads read it at the beginning of the next (running/keep.cu)
// resident/ and register/select.cuh have none: they look for the bin of the k-th score (FoundBin), resident/ within the
// two ends of a Bracket. Params has the ranks that the cutoffs of the sample have in it, primary_rank and rescue_rank.
struct ScanRule {
  Mode mode;
  u32 emit_from; // keys [emit_from, best): selected; this scan writes them to the output
  u32 best;      // keys [best, worst]: candidates
  u32 worst;     // the cutoff
  Digit digit;   // digit that candidates are counted by
  int k;
  int* row_out;
  int* num_selected; // counter of output slots taken from the front: this CTA's, or its cluster's
  int* num_ties; // counter of slots taken from the back, by scores equal to an exact cutoff: this CTA's or its row's
};

// What a sample proposes, in shared memory: propose writes it, certify reads it.
struct Proposal {
  u32 cutoff[2];      // inclusive ordered keys of the primary and the rescue cutoff
  u32 best;           // best ordered key of the view
  int expect_plateau; // whether the view has an exact cutoff's value more than once
};

using RingSlot = Words;

// What a resident kernel does with a row. kNone: there is no such row; kShort: every position is selected.
enum class RowRoute : unsigned char { kNone, kStreamed, kShort, kResident };

// Two scores between which the k-th score lies in nearly every row (bracket_ranks, resident/descriptor.cuh).
struct alignas(16) Bracket {
  u32 worst; // ordered key of the worse end
  u32 best;  // ordered key of the better end
  int signs; // not zero: the worse end of some warp's bracket is not positive
  // ordered key of a value that is tried first as the k-th score: one that many samples of a warp share, or plus or
  // minus infinity or NaN, which end no bracket of finite length; 0: there is none
  u32 plateau;
};

// A row of a resident kernel and this CTA's tile of it: facts that one thread computes for all, and counters.
struct alignas(16) RowDescriptor {
  const void* body;   // the 16-byte aligned part of the tile, which is copied to the ring
  u32 bytes;          // bytes of the body
  int copy;           // parity of the bulk copy's number, for the mbarrier; -1: the body is not copied in bulk
  const void* scores; // the row's first score
  int* out;
  int id;
  int slots; // the row's k
  int begin; // positions [begin, end) are this CTA's tile
  int end;
  int body_begin; // position of the body's first score
  int valid;      // scores of the tile that are in the body
  // Ranks of the samples that begin and end a warp's bracket, plus 32 times a code each: the bracket is extended beyond
  // that sample by 2^code - 1 times its length.
  unsigned char first;
  unsigned char last;
  bool edges; // whether scores of the tile are outside the body
  RowRoute route;
  int base; // with windows: added to each index that is written
  Bracket bracket;
  int better;       // scores better than a plateau's value
  int equal;        // scores equal to a plateau's value
  int num_selected; // output positions collected by this CTA
  int tail_count;   // entries of `tail`, or output slots taken by equal scores
};

using LocalIndex = Choose<kLocalIndex16, unsigned short, u32>::Type;
constexpr int kColumnKeys = kColumns * kThreads * sizeof(u32); // bytes of the keys in all columns
constexpr int kColumnBytes = kColumnKeys + kColumns * kThreads * sizeof(LocalIndex);

constexpr int kMostChunks = 4;                      // most chunks of a tile: resident/descriptor.cuh
constexpr int kDescriptors = kMaxResident ? 16 : 3; // slots for row descriptors; half of them are filled at a time
// One sample for each thread. Without resident rows this is padding, so that the size stays fixed.
constexpr int kSamples = kMaxResident ? kThreads : sizeof(RowDescriptor) / 2;

struct alignas(16) SharedStorage {
  RingSlot ring[kStages][kThreads]; // 16-byte loads in flight: common/load.cuh
  u32 histogram[kBins];             // all zero whenever a counting step begins
  alignas(8) unsigned char candidates[kColumnBytes + kSharedCapacity * sizeof(u64)]; // columns, then the list
  int thread_count[kColumns ? kThreads : 4];                                         // entries in each thread's column
  u64 tail[kTailMax];                           // the last undecided candidates, which one warp ranks
  alignas(16) unsigned short samples[kSamples]; // resident: a sample of each thread, ranked within its warp
  u32 warp_totals[32];
  ScanRule rule;
  u64* spill;          // this CTA's slice of the global workspace
  FoundBin found[2];   // the bins that find_bin found last: of `rank` and of `second_rank`
  Proposal proposal;   // of the current row
  int tail_count;      // entries of `tail`, or output slots taken by members of the last frontier
  int listed;          // list slots reserved; may exceed kListed, but no entry is stored beyond it
  int count;           // candidates admitted, stored or not
  int num_selected;    // output slots taken from the front
  int num_ties;        // output slots taken from the back
  u32 least;           // least ordered key of candidates that found no slot
  u32 greatest;        // greatest ordered key of candidates that found no slot
  int next;            // stream: the next row of this CTA; resident: the first row without a descriptor
  int next_length;     // length of the row that fetch_row loads
  int origin;          // position of the first score that thread 0 reads
  union {              // each kernel has one of them
    int finishes_row;  // stream_split: this CTA finishes the row
    int has_fallback;  // resident_block: some row of this CTA is not resident
    int assumes_dense; // resident_block with positions: resident/positioned_rows.cuh
  };
  int trace[kStatsColumns]; // statistics of the current row
  union {
    const void* window; // windows: the row's first score
    const u32* allowed; // KSIEVE_ALLOWED: the row's words of the bitmask
  };
  int row_slots;                           // windows: the row's own k
  int base;                                // windows: added to each index that is written
  int tie_last;                            // tie-breaks: the row's last position
  int tie_from;                            // tie-breaks: the preferred end of the row, a position
  int tie_quota;                           // tie-breaks: scores that collect_ties still has to select
  u32 tie_key;                             // tie-breaks: ordered key of the scores that collect_ties selects
  u64 copied[kMostChunks];                 // resident: an mbarrier for the bulk copies of each chunk
  int copies;                              // resident: number of bulk copies of the rows described so far
  int next_id;                             // length bins: the row that fetch_row loads
  RowDescriptor descriptors[kDescriptors]; // resident_block: rows in turn; cluster, grid: one row and a mailbox
};
static_assert(sizeof(SharedStorage) == KSIEVE_SHARED_BYTES, "planning/memory.py mirrors this struct");

extern __shared__ __align__(16) unsigned char shared_bytes[];

__device__ __forceinline__ SharedStorage& shared_storage() { return *reinterpret_cast<SharedStorage*>(shared_bytes); }

// A stored candidate has its ordered key in the high word and its index in the low word. Candidates are stored in two
// ways: a column of each thread in shared memory, which that thread alone writes and reads; and a list for what
// outgrows columns, whose first kSharedCapacity slots are in shared memory and the later ones in the spill slice. The
// list alone has room for kCapacity, so that every frontier of that size is stored; stream/certify.cuh scans again for
// a larger one.
constexpr int kListed = kCapacity;

// A list that may be mostly in global memory, as for a huge row or a large k. A thread loads several of its entries at
// a time, which would only add code where lists are short, and the CTA that finishes a split row leaves them where they
// were published.
constexpr bool kLongList = kSpillCapacity > 1 << 16;
constexpr int kListTogether = kLongList ? 2 : 1; // with more, CTAs of 1,024 threads spill registers

__device__ __forceinline__ u64 make_entry(u32 high, int index) {
  return static_cast<u64>(high) << 32 | static_cast<u32>(index);
}
__device__ __forceinline__ u32 entry_key(u64 entry) { return static_cast<u32>(entry >> 32); }
__device__ __forceinline__ int entry_index(u64 entry) { return static_cast<int>(entry & 0xffffffffu); }

constexpr int kStep = kThreads * kVector; // scores between two vectors of a thread

// Columns hold keys, and in a separate array an index for each: 32 bits, or with kLocalIndex16 its 16-bit number
// among the scores that the thread reads, counted vector by vector.
__device__ __forceinline__ u32& column_key(int at) {
  return reinterpret_cast<u32*>(shared_storage().candidates)[at * kThreads + static_cast<int>(threadIdx.x)];
}
__device__ __forceinline__ LocalIndex& column_index(int at) {
  return reinterpret_cast<LocalIndex*>(shared_storage().candidates +
                                       kColumnKeys)[at * kThreads + static_cast<int>(threadIdx.x)];
}

__device__ __forceinline__ u32 load_column_index(int at) {
  return load_shared_here<sizeof(LocalIndex)>(shared_address(&column_index(at)));
}

constexpr int kBatch = kStages / kBatches; // vectors that a thread compares together
static_assert(kStages % kBatches == 0, "a turn of the ring is whole batches");

constexpr bool kSmall = kColumns > 0 && kThreads <= 256; // few columns: candidates outgrow them sooner

// Returns the offset of this thread's vectors in a batch, given their offset `batches` batches before. In small CTAs
// each thread moves on by a line with every batch: otherwise a period in the scores would fill the same few columns.
// Larger CTAs would lose 1 % by that.
__device__ __forceinline__ int moved_on(int offset, int batches) {
  constexpr int kLine = 128 / 16 * kVector;
  static_assert((kStep & (kStep - 1)) == 0, "offsets go round");
  return kSmall ? (offset + batches * kLine) & (kStep - 1) : offset;
}

// Returns the offset of this thread's first score from the beginning of the body.
__device__ __forceinline__ int own_offset() { return static_cast<int>(threadIdx.x) * kVector; }

// A vector's scores are neighbours, and vectors are kStep apart: returns the index of a bit's score.
__device__ __forceinline__ int index_of_bit(u32 bit, int first) {
  return first + static_cast<int>(bit) + static_cast<int>(bit / kVector) * (kStep - kVector);
}

// Returns the position of an entry of a column; `own` is own_offset() of the column's thread.
__device__ __forceinline__ int index_of_local(u32 local, int own = own_offset()) {
  if (!kLocalIndex16) return static_cast<int>(local);
  int vector = static_cast<int>(local / kVector);
  int within = moved_on(own, vector / kBatch) + static_cast<int>(local % kVector);
  return shared_storage().origin + vector * kStep + within;
}

// An index is encoded so that any thread can decode it: a local index with its thread, or the row's index with the
// sign bit set. Encoding costs one instruction for each entry of a column; only entries that are written are
// decoded.
__device__ __forceinline__ int code_of_local(u32 local) {
  return static_cast<int>(kLocalIndex16 ? threadIdx.x << 16 | local : local);
}
__device__ __forceinline__ int code_of_index(int index) { return kLocalIndex16 ? index | 1 << 31 : index; }
__device__ __forceinline__ int index_of_code(int code) {
  if (!kLocalIndex16) return code;
  int index = index_of_local(code & 0xffff, (code >> 16) * kVector);
  return code < 0 ? code & 0x7fffffff : index;
}

__device__ __forceinline__ u64 column_entry(int at) {
  return make_entry(column_key(at), index_of_local(column_index(at)));
}
__device__ __forceinline__ u64* shared_list(SharedStorage& s) {
  return reinterpret_cast<u64*>(s.candidates + kColumnBytes);
}

__device__ __forceinline__ u64& list_entry(int slot) {
  SharedStorage& s = shared_storage();
  return kSharedCapacity == kListed || slot < kSharedCapacity ? shared_list(s)[slot] : s.spill[slot - kSharedCapacity];
}

__device__ __forceinline__ int own_height() { return kColumns ? shared_storage().thread_count[threadIdx.x] : 0; }

// Returns the number of this thread's stored candidates: those in its column, and every kThreads-th in the list.
__device__ __forceinline__ int own_count() {
  int listed = min(shared_storage().listed, kListed) - static_cast<int>(threadIdx.x);
  return own_height() + max(listed + kThreads - 1, 0) / kThreads;
}

// Returns this thread's i-th stored candidate, given that its column has `thread_count`.
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
  for (int first = threadIdx.x; first < listed; first += kListTogether * kThreads) {
    u64 entry[kListTogether];
#pragma unroll
    for (int b = 0; b < kListTogether; ++b)
      if (b == 0 || first + b * kThreads < listed) entry[b] = list_entry(first + b * kThreads);
#pragma unroll
    for (int b = 0; b < kListTogether; ++b)
      if (b == 0 || first + b * kThreads < listed) visit(entry[b]);
  }
}

// Joins the least and greatest keys of the lanes of a warp into those of the CTA. Call by whole warps; a barrier must
// follow.
template <class Shared> __device__ __forceinline__ void fold_extremes(Shared& s, u32 least, u32 greatest) {
  least = __reduce_min_sync(kFullWarp, least);
  greatest = __reduce_max_sync(kFullWarp, greatest);
  if ((threadIdx.x & 31) == 0) {
    atomicMin(&s.least, least);
    atomicMax(&s.greatest, greatest);
  }
}

// Removes all candidates. Call by all threads, between barriers.
__device__ __forceinline__ void forget_candidates() {
  SharedStorage& s = shared_storage();
  if (kColumns) s.thread_count[threadIdx.x] = 0;
  if (threadIdx.x != 0) return;
  s.listed = s.count = 0;
  s.least = kNanKey;
  s.greatest = 0;
}

// Removes all candidates and clears the histogram. Call by all threads; a barrier must follow.
__device__ __forceinline__ void clear_counts(int thread = static_cast<int>(threadIdx.x)) {
  constexpr int kSlots = kBins / 4;
#pragma unroll
  for (int first = 0; first < kSlots; first += kThreads)
    if (first + kThreads <= kSlots || thread < kSlots - first)
      reinterpret_cast<RingSlot*>(shared_storage().histogram)[first + thread] = {};
  forget_candidates();
}

// Clears every counter for the next row. Call by all threads; a barrier must follow.
__device__ __forceinline__ void clear_storage() {
  SharedStorage& s = shared_storage();
  clear_counts();
  if (threadIdx.x == 0) {
    s.num_selected = s.tail_count = s.num_ties = s.proposal.expect_plateau = 0;
    s.proposal.best = kNanKey;
    if (kTies) s.tie_quota = 0;
  }
}
