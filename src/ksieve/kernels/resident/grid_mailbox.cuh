// What CTAs tell each other of a row that they hold together without being a cluster: over the workspace, where all of
// them are resident (cooperative launch). What is told is never zero, or adds up to a number that is known, so that
// whoever waits reads until it is there: no fences, and no barriers of all but on rare routes. All that was told is
// zero again at the end.
#pragma once
#include "common/workspace.cuh"
#include "resident/tile.cuh"

static_assert(kHolds, "its rows are held");

struct OwnerRow {
  int better;
  int equal;
  int emitted;
  int few_count;
};
// Of rare routes: what all holders count, as resident/overfull.cuh knows it.
struct alignas(16) Owner {
  OwnerRow held[1];
  u64 few[kFewest];
};

constexpr int kBarriers = 24; // of a row, at most: a plateau has one, a crowded step three each round and one more

// In the workspace, for as many CTAs as hold a row, which use two in turn if they hold more than one: whoever is told
// something of the next row but one has seen all of them begin with the next. planning/memory.py, meeting_bytes.
struct alignas(16) Meeting {
  u32 counts[2][kBins];           // all CTAs' together: of steps, and of keys in a round of crowded ones
  RingSlot ranges[kHolders];      // each CTA's Range
  u64 listed[kHolders][kFewest];  // entries that each has sent to the owner, which ranks them
  u32 shares[kHolders][kHolders]; // for whom, from whom: kTold, how many positions it has collected, and 2^16 times as
                                  // many as it has listed
  Owner owner;
  u32 arrived[kBarriers + 1]; // at each barrier of all, and in front of the finishing pass
  u32 left[3];                // how many have left
};
static_assert(sizeof(Meeting) == KSIEVE_MEETING_BYTES, "planning/memory.py mirrors this struct");
__device__ __forceinline__ Meeting* meeting_of(const Params& p, int number) {
  return reinterpret_cast<Meeting*>(p.workspace + kHeaderBytes) + (number % 2 * gridDim.x + blockIdx.x) / kHolders;
}
constexpr u32 kTold = 0x80000000u;

// This CTA's knowledge of it, in place of rows to come: there are none.
struct Together {
  Meeting* meeting;
  int row;    // the current one
  int copies; // that came to the ring for those before
  int meetings;
  int barriers;
  int in_front;
  int leaves_last;
};
static_assert(sizeof(Together) <= sizeof(HeldRow), "two rows are described");
__device__ __forceinline__ volatile Together& together() {
  return *reinterpret_cast<volatile Together*>(&shared_storage().held[kOwn + 1]);
}
__device__ __forceinline__ Meeting& meeting() { return *together().meeting; }
__device__ __forceinline__ int holder() { return static_cast<int>(blockIdx.x) % kHolders; }

// By one thread; a barrier must follow.
__device__ __forceinline__ void meet(const Params& p) {
  volatile Together& t = together();
  t.meeting = meeting_of(p, t.meetings);
  t.barriers = 0;
}
__device__ __forceinline__ void prepare_meetings(const Params& p) {
  if (threadIdx.x != kScribe) return;
  volatile Together& t = together();
  t.row = blockIdx.x / kHolders;
  t.copies = t.meetings = 0;
  meet(p);
}
__device__ __forceinline__ void next_meeting(const Params& p, bool held) {
  if (thread_again() != kScribe) return;
  volatile Together& t = together();
  t.row = t.row + gridDim.x / kHolders;
  t.copies = t.copies + held;
  t.meetings = t.meetings + held;
  meet(p);
}

// Relaxed accesses to what others write or read meanwhile, each a whole.
__device__ __forceinline__ void tell(u32* to, u32 value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void tell(u64* to, u64 value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ __forceinline__ void tell(RingSlot* to, const RingSlot& value) {
  asm volatile("{\n"
               ".reg .b64 low;\n"
               ".reg .b64 high;\n"
               ".reg .b128 all;\n"
               "mov.b64 low, {%1, %2};\n"
               "mov.b64 high, {%3, %4};\n"
               "mov.b128 all, {low, high};\n"
               "st.relaxed.gpu.global.b128 [%0], all;\n"
               "}" ::"l"(to),
               "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
               : "memory");
}
__device__ __forceinline__ u32 heard(const u32* from) {
  u32 value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ u64 heard(const u64* from) {
  u64 value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ RingSlot heard(const RingSlot* from) {
  RingSlot value;
  asm volatile("{\n"
               ".reg .b64 low;\n"
               ".reg .b64 high;\n"
               ".reg .b128 all;\n"
               "ld.relaxed.gpu.global.b128 all, [%4];\n"
               "mov.b128 {low, high}, all;\n"
               "mov.b64 {%0, %1}, low;\n"
               "mov.b64 {%2, %3}, high;\n"
               "}"
               : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
               : "l"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ void add(u32* to, u32 value) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// What the lanes of a warp hear from all holders, each from some.
constexpr int kHeard = (kHolders + 31) / 32;
template <class Value, class There>
__device__ __forceinline__ void hear_all(const Value* from, Value (&value)[kHeard], There there) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  bool all;
  do {
    all = true;
#pragma unroll
    for (int i = 0; i < kHeard; ++i)
      if (kHolders % 32 == 0 || lane < kHolders) value[i] = heard(from + 32 * i + lane);
#pragma unroll
    for (int i = 0; i < kHeard; ++i)
      if (kHolders % 32 == 0 || lane < kHolders) all &= there(value[i]);
  } while (!all);
  __syncwarp();
}

// A barrier of all holders, by one thread of each, that also orders what they access.
__device__ __forceinline__ void arrive(u32* arrived) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
}
__device__ __forceinline__ void await(const u32* arrived) {
  u32 come;
  do
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(come) : "l"(arrived) : "memory");
  while (come < kHolders);
}
