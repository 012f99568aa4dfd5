// Messages between CTAs that share a row without being a cluster, in the workspace. All CTAs are resident (cooperative
// launch). Messages validate themselves (non-zero words, sums with a known total): receivers spin, without fences or
// flags, and barriers of all CTAs are on rare routes alone. All words are zero again at the end.
#pragma once
#include "common/workspace.cuh"
#include "resident/tile.cuh"

static_assert(kFits, "its rows are resident");

struct OwnerRow {
  int better;
  int equal;
  int num_selected;
  int tail_count;
};
// Counters of rare routes that all CTAs of a row share (resident/overfull.cuh).
struct alignas(16) Owner {
  OwnerRow descriptors[1];
  u64 tail[kTailMax];
};

constexpr int kBarriers = 24; // of a row, at most: a plateau has one, a overfull step three each round and one more

// In the workspace, one for the CTAs that share a row; with several rows they use two in turn. A CTA that receives a
// message about the next row but one has seen all of them begin the next. planning/memory.py, meeting_bytes.
struct alignas(16) GridMailbox {
  u32 counts[2][kBins];                 // all CTAs' together: of steps, and of keys in a round of overfull ones
  RingSlot ranges[kCtasPerRow];         // each CTA's Range
  u64 listed[kCtasPerRow][kTailMax];    // entries that each has sent to the owner, which ranks them
  u32 shares[kCtasPerRow][kCtasPerRow]; // for whom, from whom: kPresent, how many positions it has collected, and 2^16
                                        // times as many as it has listed
  Owner owner;
  u32 arrived[kBarriers + 1]; // at each barrier of all, and in front of the finishing pass
  u32 left[3];                // how many have left
};
static_assert(sizeof(GridMailbox) == KSIEVE_MAILBOX_BYTES, "planning/memory.py mirrors this struct");
__device__ __forceinline__ GridMailbox* meeting_of(const Params& p, int number) {
  return reinterpret_cast<GridMailbox*>(p.workspace + kHeaderBytes) +
         (number % 2 * gridDim.x + blockIdx.x) / kCtasPerRow;
}
constexpr u32 kPresent = 0x80000000u;

// This CTA's knowledge of it, in place of rows to come: there are none.
struct GridState {
  GridMailbox* grid_mailbox;
  int row;    // the current one
  int copies; // that came to the ring for those before
  int meetings;
  int barriers;
  int in_front;
  int leaves_last;
};
static_assert(sizeof(GridState) <= sizeof(RowDescriptor), "two rows are described");
__device__ __forceinline__ volatile GridState& grid_state() {
  return *reinterpret_cast<volatile GridState*>(&shared_storage().descriptors[kOwn + 1]);
}
__device__ __forceinline__ GridMailbox& grid_mailbox() { return *grid_state().grid_mailbox; }
__device__ __forceinline__ int holder() { return static_cast<int>(blockIdx.x) % kCtasPerRow; }

// By one thread; a barrier must follow.
__device__ __forceinline__ void meet(const Params& p) {
  volatile GridState& t = grid_state();
  t.grid_mailbox = meeting_of(p, t.meetings);
  t.barriers = 0;
}
__device__ __forceinline__ void prepare_meetings(const Params& p) {
  if (threadIdx.x != kScribe) return;
  volatile GridState& t = grid_state();
  t.row = blockIdx.x / kCtasPerRow;
  t.copies = t.meetings = 0;
  meet(p);
}
__device__ __forceinline__ void next_meeting(const Params& p, bool resident) {
  if (reread_tid() != kScribe) return;
  volatile GridState& t = grid_state();
  t.row = t.row + gridDim.x / kCtasPerRow;
  t.copies = t.copies + resident;
  t.meetings = t.meetings + resident;
  meet(p);
}

// Polls a message of every CTA of the row, some for each lane of a warp.
constexpr int kHeard = (kCtasPerRow + 31) / 32;
template <class Value, class There>
__device__ __forceinline__ void poll_all(const Value* from, Value (&value)[kHeard], There there) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  bool all;
  do {
    all = true;
#pragma unroll
    for (int i = 0; i < kHeard; ++i)
      if (kCtasPerRow % 32 == 0 || lane < kCtasPerRow) value[i] = load_relaxed(from + 32 * i + lane);
#pragma unroll
    for (int i = 0; i < kHeard; ++i)
      if (kCtasPerRow % 32 == 0 || lane < kCtasPerRow) all &= there(value[i]);
  } while (!all);
  __syncwarp();
}

// A barrier of all CTAs of a row, by one thread of each; it also orders their accesses.
__device__ __forceinline__ void arrive(u32* arrived) { add_release(arrived); }
__device__ __forceinline__ void spin_until(const u32* arrived) {
  while (load_acquire(arrived) < kCtasPerRow) {
  }
}
