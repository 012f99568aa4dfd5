// Messages between CTAs that share a row without being a cluster, in the workspace. All CTAs run at once (cooperative
// launch), so they may wait for each other. A message is complete when its words are non-zero, or when sums reach a
// known total: receivers poll the message itself, without fences or flags. CTAs of a row wait for each other by
// counters (`arrived`) on rare routes alone, and its owner does in front of the epilogue; between two rows of a CTA
// there is a fence (resident/grid.cu). Every word is zero again when the kernel ends.
#pragma once
#include "common/workspace.cuh"
#include "resident/tile.cuh"

static_assert(kFits, "its rows are resident");

// Counters of rare routes that all CTAs of a row share (resident/overfull.cuh); named as in SharedStorage.
struct alignas(16) Owner {
  struct {
    int better, equal, num_selected, tail_count;
  } descriptors[1];
  u64 tail[kTailMax];
};

// Barriers that a row may pass: at most 20, rounded up. They are a plateau's, three in each of six rounds of an
// overfull bucket, and the one behind the last list.
constexpr int kBarriers = 24;

// The mailbox, in the workspace, of CTAs that share a row. With several rows they use two mailboxes in turn, so that no
// CTA writes to a mailbox that another still reads or clears: a CTA that begins row n + 2, which uses the mailbox of
// row n again, has received a message about row n + 1 from every CTA. Each CTA sent that message behind the fence that
// follows its last access to the mailbox of row n (resident/grid.cu). Size: planning/memory.py, mailbox_bytes.
struct alignas(16) GridMailbox {
  u32 counts[2][kBins];           // sums over CTAs: counts of buckets, and of keys in a round of resident/overfull.cuh
  RingSlot brackets[kCtasPerRow]; // each CTA's bracket
  u64 listed[kTailMax];           // undecided scores of all CTAs, which the owner ranks
  u64 taken;                      // Taken: what the CTAs that have arrived write and list
  u32 num_listed;                 // places in `listed` that are taken
  u32 left;                       // CTAs that have left the mailbox
  Owner owner;
  u32 arrived[kBarriers + 1]; // CTAs that reached each barrier; the last one is in front of the epilogue
};
static_assert(sizeof(GridMailbox) == KSIEVE_MAILBOX_BYTES, "planning/memory.py mirrors this struct");
// Returns the mailbox of this CTA's row; `number` counts the mailboxes that it has used.
__device__ __forceinline__ GridMailbox* mailbox_of(const Params& p, int number) {
  return reinterpret_cast<GridMailbox*>(p.workspace + kHeaderBytes) +
         (number % 2 * gridDim.x + blockIdx.x) / kCtasPerRow;
}

// Sums over CTAs, in one word: positions that they write, scores that they list (or that are equal, where none is
// listed), and how many have arrived. Each CTA adds its own once; the sums before give its place in the answer.
struct Taken {
  static constexpr int kBits = 21;
  u64 sums;
  __device__ __forceinline__ static u64 of(u32 share) {
    return 1ull << 2 * kBits | static_cast<u64>(share >> 16) << kBits | (share & 0xffff);
  }
  __device__ __forceinline__ int field(int number) const {
    return static_cast<int>(sums >> number * kBits & ((1u << kBits) - 1));
  }
  __device__ __forceinline__ int positions() const { return field(0); }
  __device__ __forceinline__ int listed() const { return field(1); }
  __device__ __forceinline__ int arrived() const { return field(2); }
};

// State of this CTA between rows, stored in place of further row descriptors.
struct GridState {
  GridMailbox* grid_mailbox;
  int row;            // the current row
  int copies;         // bulk copies of earlier rows: their parity is the mbarrier's phase
  int mailboxes_used; // by this CTA so far: their parity says which is next
  int barriers;       // barriers of all CTAs that this row has passed
  int in_front;       // positions that CTAs write which have arrived before this one
  int equal_in_front; // equal scores of theirs
  int arrives_last;   // no CTA arrives after this one
  int leaves_last;    // this CTA is the last to leave, and clears the mailbox
};
static_assert(sizeof(GridState) <= sizeof(RowDescriptor), "two rows are described");
__device__ __forceinline__ volatile GridState& grid_state() {
  return *reinterpret_cast<volatile GridState*>(&shared_storage().descriptors[kOwn + 1]);
}
__device__ __forceinline__ GridMailbox& grid_mailbox() { return *grid_state().grid_mailbox; }
// Returns this CTA's number among the CTAs of its row; CTA 0 is the row's owner.
__device__ __forceinline__ int cta_in_row() { return static_cast<int>(blockIdx.x) % kCtasPerRow; }

// Takes the next mailbox. Call by one thread; a barrier must follow.
__device__ __forceinline__ void take_mailbox(const Params& p) {
  volatile GridState& t = grid_state();
  t.grid_mailbox = mailbox_of(p, t.mailboxes_used);
  t.barriers = 0;
}
// Prepares this CTA's state for its first row. Call by all threads; a barrier must follow.
__device__ __forceinline__ void prepare_grid_state(const Params& p) {
  if (threadIdx.x != kScribe) return;
  volatile GridState& t = grid_state();
  t.row = blockIdx.x / kCtasPerRow;
  t.copies = t.mailboxes_used = 0;
  take_mailbox(p);
}
// Moves this CTA's state on to its next row. `resident`: the current row used its mailbox. A barrier must follow.
__device__ __forceinline__ void advance_grid_state(const Params& p, bool resident) {
  if (reread_tid() != kScribe) return;
  volatile GridState& t = grid_state();
  t.row = t.row + gridDim.x / kCtasPerRow;
  t.copies = t.copies + resident;
  t.mailboxes_used = t.mailboxes_used + resident;
  take_mailbox(p);
}

// Polls a message of every CTA of the row, kMessagesPerLane in each lane, until there(message) holds for all. Call by
// one warp.
constexpr int kMessagesPerLane = (kCtasPerRow + 31) / 32;
template <class Value, class There>
__device__ __forceinline__ void poll_all(const Value* from, Value (&value)[kMessagesPerLane], There there) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  bool all;
  do {
    all = true;
#pragma unroll
    for (int i = 0; i < kMessagesPerLane; ++i)
      if (kCtasPerRow % 32 == 0 || lane < kCtasPerRow) value[i] = load_relaxed(from + 32 * i + lane);
#pragma unroll
    for (int i = 0; i < kMessagesPerLane; ++i)
      if (kCtasPerRow % 32 == 0 || lane < kCtasPerRow) all &= there(value[i]);
  } while (!all);
  __syncwarp(); // every lane has its messages, before the warp goes on
}

// The two halves of a barrier of all CTAs of a row, each called by one thread of a CTA; they also order the CTAs'
// accesses.
__device__ __forceinline__ void arrive(u32* arrived) { add_release(arrived); }
__device__ __forceinline__ void spin_until(const u32* arrived) {
  while (load_acquire(arrived) < kCtasPerRow) {
  }
}
