// Grid scope: CTAs that share a row without being a cluster. They exchange messages over the workspace
// (resident/grid_mailbox.cuh), and each writes its share of the answer.
#pragma once
#include "resident/grid_mailbox.cuh"

// The scope (resident/select.cuh) of a row that CTAs of a grid share, each with a ring of its own.
struct GridScope {
  static constexpr int kWriters = kThreads - 32;
  static constexpr bool kAlone = false;
  static constexpr bool kTrimsBracket = true;
  static constexpr bool kRanksFirst = false;
  static constexpr bool kRereadsDescriptor = false;
  __device__ __forceinline__ static Owner& owner() { return grid_mailbox().owner; }
  __device__ __forceinline__ static bool owns() { return cta_in_row() == 0; }

  // A barrier of all CTAs of the row, for rare routes (resident/overfull.cuh). Call by all threads.
  __device__ __forceinline__ static void sync() {
    __syncthreads(); // every thread of this CTA has arrived
    if (threadIdx.x == 0) {
      u32* arrived = &grid_mailbox().arrived[min(grid_state().barriers, kBarriers - 1)];
      arrive(arrived);
      spin_until(arrived);
      grid_state().barriers = grid_state().barriers + 1;
    }
    __syncthreads(); // every CTA has arrived: thread 0 saw it
  }

  __device__ __forceinline__ static void begin() {}
  __device__ __forceinline__ static void prepare() {}
  __device__ __forceinline__ static void ready() {}
  // Returns the number of bulk copies of earlier rows. Call by the thread that describes the row.
  __device__ __forceinline__ static int copies() { return grid_state().copies; }

  // Publishes the bracket of this CTA's samples. Call by all threads.
  __device__ __forceinline__ static void reduce_bracket(const WarpBracket& warp, int) {
    const BracketMessage own = bracket_of_tile<kTrimsBracket>(warp);
    if (threadIdx.x == 0) store_relaxed(&grid_mailbox().brackets[cta_in_row()], own.message());
  }
  // Waits for the brackets of all CTAs, and joins them into the row's. Call by all threads.
  __device__ __forceinline__ static void await_bracket(int slot) {
    if (threadIdx.x < 32) {
      RingSlot message[kMessagesPerLane];
#pragma unroll
      for (int i = 0; i < kMessagesPerLane; ++i)
        message[i] = kNoBracket.message();
      poll_all(grid_mailbox().brackets, message, [](const RingSlot& one) { return one.word[2] != 0; });
      BracketMessage some = BracketMessage::of(message[0]);
#pragma unroll
      for (int i = 1; i < kMessagesPerLane; ++i)
        some.join(BracketMessage::of(message[i]));
      join_brackets(some, slot);
    }
    __syncthreads(); // warp 0 wrote the row's bracket, for every thread
  }

  // Adds this CTA's histogram to the sums of all CTAs and clears it; adds `more` to the sum of the last bin. Call by
  // all threads, behind a barrier after the last count.
  __device__ __forceinline__ static void add_counts(u32* sums, u32 more) {
    constexpr int kSlots = kBins / kThreads;
    u32* counts = shared_storage().histogram;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int bin = i * kThreads + static_cast<int>(threadIdx.x);
      u32 count = counts[bin];
      counts[bin] = 0;
      if (bin == kBins - 1) count += more;
      if (count) add(&sums[bin], count);
    }
  }

  // Returns the bucket of the score of this rank. Call by all threads. Sums are complete when they add up to a total
  // that is known beforehand: the scores of all tiles, and for each CTA the greatest possible number of scores outside
  // its body. Counts are only ever added: if some were subtracted, an incomplete sum could reach the total.
  template <class Then> __device__ __forceinline__ static FoundBin find_kth_bin(int rank, Then) {
    SharedStorage& s = shared_storage();
    const volatile RowDescriptor& row = descriptor_at(0);
    __syncthreads(); // every thread's scores are in this CTA's histogram
    u32* sums = grid_mailbox().counts[0];
    constexpr u32 kMostOutside = 2 * kVector;
    add_counts(sums, kMostOutside - static_cast<u32>(row.end - row.begin - row.valid));
    static_assert(kBins == 4 * kThreads, "a thread has four bins");
    const u32 lane = threadIdx.x % 32;
    const u32 warp = threadIdx.x / 32;
    const u32* from = &sums[4 * threadIdx.x];
    u32 bin[4];
    u32 sum;
    u32 theirs;
    int turn = 0;
    do {
      load_relaxed_words(from, bin);
      sum = bin[0] + bin[1] + (bin[2] + bin[3]);
      const u32 total = __reduce_add_sync(kFullWarp, sum);
      turn ^= 16;
      if (lane == 0) s.warp_totals[turn + warp] = total;
      __syncthreads(); // every warp's sum is written, for all warps
      theirs = lane < kWarps ? s.warp_totals[turn + lane] : 0;
    } while (__reduce_add_sync(kFullWarp, theirs) != kMaxResident + kCtasPerRow * kMostOutside);
    u32 before = __reduce_add_sync(kFullWarp, lane < warp ? theirs : 0) + lanes_up_to(sum) - sum;
    const u32 wanted = static_cast<u32>(rank);
    if (before < wanted && wanted <= before + sum) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (before < wanted && wanted <= before + bin[i])
          s.found[0] = {4 * static_cast<int>(threadIdx.x) + i, static_cast<int>(before), static_cast<int>(bin[i])};
        before += bin[i];
      }
    }
    __syncthreads(); // one thread wrote the found bin, for all
    return s.found[0];
  }

  // Returns the bin of the score of this rank in a further round of counts. Its total is not known beforehand: barriers
  // of all CTAs separate the steps. Call by all threads.
  __device__ __forceinline__ static FoundBin find_again(int rank) {
    __syncthreads(); // every thread's scores are in this CTA's histogram
    u32* sums = grid_mailbox().counts[1];
    add_counts(sums, 0);
    sync(); // every CTA has added its counts
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads)
      shared_storage().histogram[bin] = __ldcg(&sums[bin]);
    sync(); // every CTA has copied the sums, which the owner clears
    if (owns())
      for (int bin = threadIdx.x; bin < kBins; bin += kThreads)
        sums[bin] = 0;
    sync(); // the owner has cleared the sums, for the next round
    return find_bin(rank);
  }

  // The owner's last warp ranks the scores that all CTAs have listed.
  __device__ __forceinline__ static void write_listed(int slot, int count, int remaining_k) {
    if (!owns()) return;
    const int lane = static_cast<int>(threadIdx.x & 31);
    if (threadIdx.x >= kWriters && lane < count) shared_storage().tail[lane] = __ldcg(&owner().tail[lane]);
    __syncwarp(); // every listed score is in the tail, for the lanes of the last warp
    write_last(slot, count, remaining_k);
  }

  // Writes this CTA's share of the answer: its positions in better buckets; the undecided scores go to the owner, which
  // writes the best `remaining_k` of them. If they are `equal`, they are part of the shares instead. Shares have the
  // order in which CTAs arrive.
  __device__ __forceinline__ static void write(const Params&, int slot, const Divided& divided, bool edge_before,
                                               bool edge_within, int remaining_k, bool equal) {
    SharedStorage& s = shared_storage();
    GridMailbox& m = grid_mailbox();
    const int lane = static_cast<int>(threadIdx.x % 32);
    Share share = share_of(slot, divided, edge_before, edge_within, equal);
    Taken before = {};
    if (threadIdx.x == kWriters) before.sums = atomicAdd(&m.taken, Taken::of(share.all));
    int number = 0;
    if (const int mine = share.num_listed()) number = static_cast<int>(atomicAdd(&m.num_listed, mine));
    collect_share(share, slot, divided, edge_before, remaining_k);
    if (threadIdx.x == kWriters) {
      grid_state().in_front = before.positions();
      grid_state().equal_in_front = before.listed();
      grid_state().arrives_last = before.arrived() == kCtasPerRow - 1;
    }
    auto list = [&] {
      share.each_listed(slot, [&](int, int index, float score) {
        if (number < kTailMax) store_relaxed(&m.listed[number], make_entry(order_key(score), index));
        ++number;
      });
    };
    // No warp waits for the ranking, and the last warp, which ranks, waits for no other writes.
    if (threadIdx.x < kWriters) {
      list();
      barrier_of_writers<true, kThreads>(); // positions are collected, and the last warp wrote in_front
      int begin = grid_state().in_front;
      int count = min(static_cast<int>(share.all & 0xffff), descriptor_at(slot).slots - begin);
      if (kFewValues && equal) add_equal(share, slot, grid_state().equal_in_front, remaining_k, begin, count);
      write_collected<false>(
          descriptor_at(slot).out + begin, collected(), count, count,
          [&](int position) { return shown_position(position, slot); }, kWriters);
      if (grid_state().arrives_last) clear_broadcasts();
      return;
    }
    __syncwarp();                          // the first lane wrote in_front, before the warp arrives at the barrier
    barrier_of_writers<false, kThreads>(); // in_front is written, for the warps that write positions
    list();
    if (!owns()) return;
    // Waits until every CTA has arrived and every listed score is there: as many as the CTAs say that they list.
    int tail;
    u64 entry;
    bool there;
    do {
      entry = load_relaxed(&m.listed[lane]);
      const Taken all = {load_relaxed(&m.taken)};
      tail = kFewValues && equal ? 0 : min(all.listed(), kTailMax);
      there = all.arrived() == kCtasPerRow && (lane >= tail || entry != 0);
    } while (!__all_sync(kFullWarp, there));
    if (lane < tail) {
      store_relaxed(&m.listed[lane], 0ull);
      s.tail[lane] = entry;
    }
    if (lane == 0) {
      store_relaxed(&m.taken, 0ull);
      store_relaxed(&m.num_listed, 0u);
    }
    __syncwarp(); // every listed score is in the tail
    write_last(slot, tail, remaining_k);
  }

  // Clears what all CTAs read in the mailbox: brackets, sums, the owner's counters. Call by the warps that write
  // positions, of the last CTA to arrive: no CTA reads these any more.
  __device__ __forceinline__ static void clear_broadcasts() {
    GridMailbox& m = grid_mailbox();
    for (int i = threadIdx.x; i < kBins / 4; i += kWriters)
      reinterpret_cast<RingSlot*>(m.counts[0])[i] = {};
    if (threadIdx.x < kCtasPerRow) m.brackets[threadIdx.x] = {};
    if (threadIdx.x == 0) {
      m.owner.descriptors[0] = {};
      m.arrived[0] = 0;
    }
  }

  // Makes the owner wait, in front of the epilogue, until every CTA has written its share of the answer. Call by all
  // threads.
  __device__ __forceinline__ static void hand_over() {
    __syncthreads(); // every thread of this CTA has written its part
    if (threadIdx.x == 0) {
      u32* arrived = &grid_mailbox().arrived[kBarriers];
      arrive(arrived);
      if (owns()) {
        spin_until(arrived);
        store_relaxed(arrived, 0);
      }
    }
    __syncthreads(); // thread 0 of the owner saw that every CTA has written its part
  }

  // Leaves the mailbox after a rare route: the last CTA to leave clears it. Call by all threads.
  __device__ __noinline__ static void leave() {
    __syncthreads(); // no thread of this CTA reads the mailbox any more
    if (threadIdx.x == 0) {
      const u32 before = add_acq_rel(&grid_mailbox().left);
      grid_state().leaves_last = before == kCtasPerRow - 1;
    }
    __syncthreads(); // thread 0 wrote leaves_last, for all
    if (!grid_state().leaves_last) return;
    RingSlot* all = reinterpret_cast<RingSlot*>(&grid_mailbox());
    for (u32 i = threadIdx.x; i < sizeof(GridMailbox) / sizeof(RingSlot); i += kThreads)
      all[i] = {};
  }
};
