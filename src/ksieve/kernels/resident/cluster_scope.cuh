// Cluster scope: the CTAs of a cluster share a row. Messages are pushed: st.async stores them in each peer's mailbox
// and completes an mbarrier there, one for each kind of message. On the ordinary route no CTA reads a peer's memory.
// Rare routes (resident/overfull.cuh) update counters and the tail of CTA 0 by atomics and read the counters; rows
// that are not selected by buckets are gathered from peers (gather_peers, resident/cluster_rows.cuh).
#pragma once
#include "resident/tile.cuh"

// Bucket counts that peers send here, and the sums over all CTAs, in 16 bits each. Sums saturate: a saturated one
// exceeds any k. They lie where candidates would be stored, or in the ring where that memory is too small.
struct alignas(16) Counts {
  RingSlot partials[kBins / 8]; // each CTA's counts of the slice of bins that this CTA adds up
  RingSlot sums[kBins / 8];     // sums of all bins
};
// Packs two counts into 16 bits each.
__device__ __forceinline__ u32 halves(u32 low, u32 high) {
  constexpr bool kFit = kTile + 2 * kVector < 1 << 16; // the counts of a tile fit 16 bits
  return kFit ? low | high << 16 : min(low, 0xffffu) | min(high, 0xffffu) << 16;
}
static_assert(!kFits || kCollected < 1 << 16, "no k is more than a sum holds, nor a share");
constexpr bool kCountsHaveOwnBuffer = kSharedCapacity * sizeof(u64) >= sizeof(Counts);
static_assert(!kFits || !kBlockRows || kCountsHaveOwnBuffer, "the ring keeps the entries");
__device__ __forceinline__ Counts& counts_of_all() {
  SharedStorage& s = shared_storage();
  return *reinterpret_cast<Counts*>(kCountsHaveOwnBuffer ? reinterpret_cast<void*>(s.candidates) : s.ring);
}

// Messages to this CTA, stored in place of further row descriptors: a cluster has one row.
struct alignas(16) ClusterMailbox {
  RingSlot brackets[kCtasPerRow]; // each CTA's bracket
  u32 shares[kCtasPerRow];        // each CTA's Share::all
  u64 known;                      // mbarrier: the brackets arrived
  u64 counted;                    // mbarrier: the counts that this CTA adds up arrived
  u64 summed;                     // mbarrier: all sums arrived
  u64 divided;                    // mbarrier: the shares arrived
  u64 listed;                     // mbarrier, at CTA 0: the undecided scores arrived
  u32 rounds;                     // exchanges of counts so far: their parity is the mbarriers' phase
};
static_assert(!kFits || sizeof(ClusterMailbox) <= (kDescriptors - 3) * sizeof(RowDescriptor),
              "two rows are described, and the last slot is a PositionedRow");
__device__ __forceinline__ ClusterMailbox& cluster_mailbox() {
  return *reinterpret_cast<ClusterMailbox*>(&shared_storage().descriptors[kOwn + 1]);
}

// Sets how many bytes the mbarriers of an exchange of counts wait for. Call by one thread, in front of a cluster
// barrier.
__device__ __forceinline__ void expect_counts() {
  expect_bytes(sizeof(Counts::partials), &cluster_mailbox().counted);
  expect_bytes(sizeof(Counts::sums), &cluster_mailbox().summed);
}

// The scope (resident/select.cuh) of a row that a cluster shares.
struct ClusterScope : OnChip<ClusterScope> {
  static constexpr bool kAlone = false;
  static constexpr bool kTrimsBracket = kMaxResident > 131072; // takes 0.1 us, which narrower rows do not win back
  static constexpr bool kRanksFirst = true;
  static constexpr bool kRereadsDescriptor = true; // kept in a register, the route would be spilled
  __device__ __forceinline__ static SharedStorage& owner() { return *in_cta(&shared_storage(), 0); }
  __device__ __forceinline__ static bool owns() { return cta_in_cluster() == 0; }
  __device__ __forceinline__ static void sync() { cluster_sync(); }

  // Initialises this CTA's mbarriers; peers may send to them behind ready(). Call by all threads.
  __device__ __forceinline__ static void begin() {
    ClusterMailbox& m = cluster_mailbox();
    if (threadIdx.x == kThreads - 1) {
      for (u64* mbarrier : {&m.known, &m.counted, &m.summed, &m.divided, &m.listed})
        init_mbarrier(mbarrier);
      publish_mbarriers();
    }
    __syncwarp(); // one lane initialised the mbarriers, before its warp arrives at the cluster barrier
    cluster_arrive_relaxed();
  }
  // Prepares the mailbox. Call by one thread.
  __device__ __forceinline__ static void prepare() {
    ClusterMailbox& m = cluster_mailbox();
    expect_bytes(sizeof(m.brackets), &m.known);
    expect_counts();
    expect_bytes(sizeof(m.shares), &m.divided);
    m.rounds = 0;
  }
  __device__ __forceinline__ static void ready() { cluster_wait(); }
  __device__ __forceinline__ static int copies() { return 0; } // bulk copies of earlier rows: a cluster has one row

  // Sends the bracket of this CTA's samples to every CTA. Call by all threads.
  __device__ __forceinline__ static void reduce_bracket(const WarpBracket& warp, int) {
    const BracketMessage own = bracket_of_tile<kTrimsBracket>(warp);
    if (threadIdx.x < kCtasPerRow)
      send(&cluster_mailbox().brackets[cta_in_cluster()], own.message(), threadIdx.x, &cluster_mailbox().known);
  }
  // Waits for the brackets of all CTAs, and joins them into the row's. Call by all threads.
  __device__ __forceinline__ static void await_bracket(int slot) {
    if (threadIdx.x < 32) {
      wait_mbarrier(&cluster_mailbox().known, 0);
      join_brackets(
          threadIdx.x < kCtasPerRow ? BracketMessage::of(cluster_mailbox().brackets[threadIdx.x]) : kNoBracket, slot);
    }
    __syncthreads(); // warp 0 wrote the row's bracket, for every thread
  }

  // Returns the bucket of the score of this rank. Call by all threads. Every CTA adds up the counts of a slice of the
  // bins and sends the sums to all CTAs.
  template <class Then> __device__ __forceinline__ static FoundBin find_kth_bin(int rank, Then) {
    constexpr u32 kSlice = kBins / 8 / kCtasPerRow; // bins that a CTA adds up, in groups of eight
    static_assert(!kFits || kCountsHaveOwnBuffer || sizeof(Counts) <= sizeof(SharedStorage::ring),
                  "there is room for counts");
    ClusterMailbox& m = cluster_mailbox();
    if (kCountsHaveOwnBuffer) {
      __syncthreads(); // every thread's scores are in this CTA's histogram
    } else {
      cluster_sync(); // every histogram is counted, and every CTA has read its ring, where peers now write
    }
    const u32 round = *static_cast<volatile u32*>(&m.rounds); // read behind the barrier, since thread 0 wrote it
    Counts& all = counts_of_all();
    const RingSlot* counts = reinterpret_cast<const RingSlot*>(shared_storage().histogram);
#pragma unroll
    for (u32 at = threadIdx.x; at < kBins / 8; at += kThreads) {
      const RingSlot low = counts[2 * at];
      const RingSlot high = counts[2 * at + 1];
      const RingSlot eight = {{halves(low.word[0], low.word[1]), halves(low.word[2], low.word[3]),
                               halves(high.word[0], high.word[1]), halves(high.word[2], high.word[3])}};
      send(&all.partials[cta_in_cluster() * kSlice + at % kSlice], eight, at / kSlice, &m.counted);
    }
#pragma unroll 1
    for (u32 within = threadIdx.x; within < 4 * kSlice; within += kThreads) {
      wait_mbarrier(&m.counted, round & 1);
      u32 low = 0;
      u32 high = 0;
#pragma unroll
      for (u32 peer = 0; peer < kCtasPerRow; ++peer) {
        const u32 two = reinterpret_cast<const u32*>(all.partials)[peer * 4 * kSlice + within];
        low += two & 0xffff;
        high += two >> 16;
      }
      const u32 sums = min(low, 0xffffu) | min(high, 0xffffu) << 16;
      RingSlot eight; // sums of four neighbouring threads, each of which sends all four to every fourth CTA
#pragma unroll
      for (int i = 0; i < 4; ++i)
        eight.word[i] = __shfl_sync(kFullWarp, sums, i, 4);
#pragma unroll
      for (u32 peer = 0; peer < kCtasPerRow; peer += 4)
        if (kCtasPerRow % 4 == 0 || peer + threadIdx.x % 4 < kCtasPerRow)
          send(&all.sums[cta_in_cluster() * kSlice + within / 4], eight, peer + threadIdx.x % 4, &m.summed);
    }
    __syncwarp(); // every lane has sent its sums, before the warp waits for all sums
    wait_mbarrier(&m.summed, round & 1);
    const FoundBin found = find_bin(rank, 0, reinterpret_cast<const unsigned short*>(all.sums));
    if (threadIdx.x == 0) {
      expect_counts();
      m.rounds = round + 1;
    }
    return found;
  }

  // Writes this CTA's share of the answer: its positions in better buckets; the undecided scores go to CTA 0, which
  // writes the best `remaining_k` of them. If they are `equal`, they are part of the shares instead.
  __device__ __forceinline__ static void write(const Params& p, int slot, const Divided& divided, bool edge_before,
                                               bool edge_within, int remaining_k, bool equal) {
    SharedStorage& s = shared_storage();
    ClusterMailbox& m = cluster_mailbox();
    const u32 lane = threadIdx.x % 32;
    Share share = share_of(slot, divided, edge_before, edge_within, equal);
    SlotFacts facts;
    if (kWritesShares) facts = SlotFacts::of(p, descriptor_at(slot).id);
    if (threadIdx.x < kCtasPerRow) send(&m.shares[cta_in_cluster()], share.all, threadIdx.x, &m.divided);
    collect_share(share, slot, divided, edge_before, remaining_k);

    wait_mbarrier(&m.divided, 0);
    const u32 shared = lane < kCtasPerRow ? m.shares[lane] : 0;
    const u32 in_front = __reduce_add_sync(kFullWarp, lane < cta_in_cluster() ? shared : 0);
    int tail = min(static_cast<int>(__reduce_add_sync(kFullWarp, shared) >> 16), kTailMax);
    if (kFewValues && equal) tail = 0;
    if (threadIdx.x == 0 && owns() && tail) expect_bytes(tail * sizeof(u64), &m.listed);
    share.before += in_front & 0xffff0000u;
    share.each_listed(slot, [&](int number, int index, float score) {
      if (number < kTailMax) send(&s.tail[number], make_entry(order_key(score), index), 0, &m.listed);
    });
    __syncthreads(); // every thread's positions are collected
    int begin = static_cast<int>(in_front & 0xffff);
    int count = min(static_cast<int>(share.all & 0xffff), descriptor_at(slot).slots - begin);
    if (kFewValues && equal) add_equal(share, slot, static_cast<int>(in_front >> 16), remaining_k, begin, count);
    if (kWritesShares && descriptor_at(slot).bracket.plateau == 0 &&
        slots_stay(p, load_row(p, descriptor_at(slot).id))) {
      constexpr int kOverwritten = kCountsHaveOwnBuffer ? 0 : sizeof(Counts) / sizeof(Score); // of the ring
      const SlotWriter slots = writer_of(p, facts, slot, kOverwritten);
      int* positions = collected();
      slots.write_entries(begin, begin + count, [&](int i) { return positions[i - begin]; });
      if (cta_in_cluster() == kCtasPerRow - 1) { // what follows
        if constexpr (kWritesSlots) {
          slots.finish(descriptor_at(slot).slots);
        } else {
          write_slots_from(p, load_row(p, descriptor_at(slot).id), facts, descriptor_at(slot).slots,
                           [](int) { return -1; });
        }
      }
      if (!owns() || !tail || threadIdx.x < kThreads - 32) return;
      wait_mbarrier(&m.listed, 0);
      rank_last(tail, remaining_k, [&](int rank, int position) { positions[count + rank] = position; });
      __syncwarp(); // the last positions are collected, for the whole warp
      const int last = descriptor_at(slot).slots - remaining_k;
      slots.write_entries(last, last + remaining_k, [&](int i) { return positions[count + i - last]; }, 32, lane);
      return;
    } // else an epilogue follows (select_resident)
    write_collected<false>(descriptor_at(slot).out + begin, collected(), count, count,
                           [&](int position) { return shown_position(position, slot); });
    if (!owns() || !tail || threadIdx.x < kThreads - 32) return;
    wait_mbarrier(&m.listed, 0);
    write_last(slot, tail, remaining_k);
  }
};
