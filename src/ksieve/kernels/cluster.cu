// Family cluster_exact: one thread block cluster per row, for few rows (sm_90 and later).
//
//   1. a row that the cluster holds is selected there (held.cuh), on distributed shared memory
// Otherwise, or where that cannot decide:
//   1. each CTA counts its segment into its own coarse histogram
//   2. rank 0 sums the histograms over distributed shared memory and publishes the exact boundary bin
//   3. each CTA scans its segment again: better bins go to the output, boundary-bin candidates stay local
//   4. rank 0 gathers its peers' candidates and histograms, and refines; peers stay resident until it has them
//
// Row reads: 1 held, else 2.
#include "held.cuh"
#include "workspace.cuh"

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
// The same by warps that peers need to see nothing of: it does not wait for what they have loaded.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The same shared object in another CTA of the cluster, as a generic address.
template <class T> __device__ __forceinline__ T* in_rank(T* local, u32 rank) {
  u64 remote;
  asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(local), "r"(rank));
  return reinterpret_cast<T*>(remote);
}

// Stores to another CTA of the cluster, whose arrival counts the bytes; both are given as this CTA's own.
__device__ __forceinline__ void send(u32* to, u32 value, unsigned rank, unsigned long long* arrival) {
  asm volatile("{\n"
               ".reg .u32 there, counted;\n"
               "mapa.shared::cluster.u32 there, %0, %3;\n"
               "mapa.shared::cluster.u32 counted, %2, %3;\n"
               "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %1, [counted];\n"
               "}" ::"r"(shared_address(to)),
               "r"(value), "r"(shared_address(arrival)), "r"(rank)
               : "memory");
}
__device__ __forceinline__ void send(RingSlot* to, const RingSlot& value, unsigned rank, unsigned long long* arrival) {
  asm volatile(
      "{\n"
      ".reg .u32 there, counted;\n"
      "mapa.shared::cluster.u32 there, %0, %6;\n"
      "mapa.shared::cluster.u32 counted, %5, %6;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], {%1, %2, %3, %4}, [counted];\n"
      "}" ::"r"(shared_address(to)),
      "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3]), "r"(shared_address(arrival)),
      "r"(rank)
      : "memory");
}

constexpr int kCluster = kHeld ? kHeld / kPart : 1;

constexpr int kOwn = 1; // the slot of what is known of this CTA's samples, and `edges` if they end the range; slot 0 is
                        // the row's

// How many CTAs' samples end the range: of a row that is shorter than the cluster holds, the last ones have few scores
// or none.
__device__ __forceinline__ int samplers_of(int length) { return max(length / kPart, 1); }

// What CTAs of a cluster tell each other, in place of rows to come: there are none. It is sent, and its arrival
// counted, so that nobody waits for more than what comes to him.
struct alignas(16) Exchange {
  RingSlot ranges[kCluster]; // each CTA's: where its samples begin and end, whether some ends are not positive, plateau
  u32 shares[kCluster];      // how many positions each has collected
  u64 known;                 // arrival of the ranges,
  u64 summed;                // of the row's counts,
  u64 divided;               // and of the shares
  u32 rounds;                // of counts before these
};
static_assert(!kHolds || sizeof(Exchange) <= (kHeldRows - 2) * sizeof(HeldRow), "two rows are described");
__device__ __forceinline__ Exchange& exchange() {
  return *reinterpret_cast<Exchange*>(&shared_storage().held[kOwn + 1]);
}

// By one thread, in front of a cluster barrier.
__device__ __forceinline__ void prepare_exchange() {
  Exchange& e = exchange();
  init_arrival(&e.known);
  init_arrival(&e.summed);
  init_arrival(&e.divided);
  expect_bytes(sizeof(e.ranges), &e.known);
  expect_bytes(kBins * sizeof(u32), &e.summed);
  expect_bytes(sizeof(e.shares), &e.divided);
  e.rounds = 0;
}

// Who holds a row (held.cuh): the CTAs of a cluster, a turn of the ring each.
struct Clustered {
  __device__ __forceinline__ static SharedStorage& owner() { return *in_rank(&shared_storage(), 0); }
  __device__ __forceinline__ static bool owns() { return cluster_rank() == 0; }
  __device__ __forceinline__ static void sync() { cluster_sync(); }

  // In this CTA first, then by a lane for each.
  __device__ __forceinline__ static void fold(const Sampled& warp, int) {
    HeldRow& own = shared_storage().held[kOwn];
    if ((threadIdx.x & 31) == 0) fold_sampled(warp, own);
    __syncthreads(); // every warp's samples are folded
    const bool counts = own.edges;
    const RingSlot all = {{own.most, counts ? own.least : 0, counts && own.signs, own.plateau}};
    if (threadIdx.x < kCluster) send(&exchange().ranges[cluster_rank()], all, threadIdx.x, &exchange().known);
  }
  __device__ __forceinline__ static void know(int slot) {
    if (threadIdx.x < 32) {
      wait_arrival(&exchange().known, 0);
      RingSlot range = {{kNanKey, 0, 0, 0}};
      if (threadIdx.x < kCluster) range = exchange().ranges[threadIdx.x];
      const u32 most = __reduce_min_sync(kFullWarp, range.word[0]);
      const u32 least = __reduce_max_sync(kFullWarp, range.word[1]);
      const u32 signs = __reduce_or_sync(kFullWarp, range.word[2]);
      const u32 plateau = __reduce_max_sync(kFullWarp, range.word[3]);
      if (threadIdx.x == 0) {
        HeldRow& row = shared_storage().held[slot];
        row.most = most;
        row.least = least;
        row.signs = static_cast<int>(signs);
        row.plateau = plateau;
      }
    }
    __syncthreads(); // the range is known
  }

  // Every CTA adds up a slice of the bins, for all. The sums come to the ring, once all of it has been read.
  template <class Then> __device__ __forceinline__ static Boundary find(int rank, Then) {
    constexpr u32 kSlice = kBins / kCluster;
    static_assert(!kHolds || kBins * sizeof(u32) <= sizeof(SharedStorage::ring), "there is room for the sums");
    RingSlot* sums = &shared_storage().ring[0][0];
    const u32 round = *static_cast<volatile u32*>(&exchange().rounds);
    cluster_sync(); // every segment's tail is counted, and its ring has been read
#pragma unroll 1
    for (u32 within = threadIdx.x; within < kSlice; within += kThreads) {
      const u32 bin = cluster_rank() * kSlice + within;
      RingSlot four = {}; // this bin and the next ones, of which every fourth thread tells
#pragma unroll 8
      for (u32 peer = 0; peer < kCluster; ++peer)
        four.word[0] += *in_rank(shared_storage().histogram + bin, peer);
#pragma unroll
      for (int i = 1; i < 4; ++i)
        four.word[i] = __shfl_down_sync(kFullWarp, four.word[0], i);
      if (within % 4 == 0) {
#pragma unroll 8
        for (u32 peer = 0; peer < kCluster; ++peer)
          send(&sums[bin / 4], four, peer, &exchange().summed);
      }
    }
    __syncwarp();
    cluster_arrive_relaxed(); // what was read has come
    wait_arrival(&exchange().summed, round & 1);
    cluster_wait(); // nobody reads this segment's counts any more
    const Boundary found = find_boundary(rank, 0, reinterpret_cast<u32*>(sums));
    if (threadIdx.x == 0) {
      expect_bytes(kBins * sizeof(u32), &exchange().summed);
      exchange().rounds = round + 1;
    }
    return found;
  }

  // The first output slot of this CTA, behind a barrier: all of its positions are collected.
  __device__ __forceinline__ static int first_slot(int slot) {
    __syncthreads(); // all are
    Exchange& e = exchange();
    if (threadIdx.x < kCluster)
      send(&e.shares[cluster_rank()], shared_storage().held[slot].emitted, threadIdx.x, &e.divided);
    cluster_arrive(); // what is listed
    wait_arrival(&e.divided, 0);
    const u32 lane = threadIdx.x & 31;
    return static_cast<int>(__reduce_add_sync(kFullWarp, lane < cluster_rank() ? e.shares[lane] : 0));
  }
  // Everything is listed, and nobody looks at a peer's storage any more.
  __device__ __forceinline__ static void list() { cluster_wait(); }
};

// Appends the peers' candidates, counts and histograms to rank 0's own. Behind a cluster barrier.
__device__ __forceinline__ void gather_peers(int splits) {
  SharedStorage& s = shared_storage();
  for (int rank = 1; rank < splits; ++rank) {
    SharedStorage& peer = *in_rank(&s, rank);
    int listed = min(peer.listed, kListed);
    int base = s.listed;
    for (int slot = threadIdx.x; slot < listed; slot += kThreads) {
      u64 entry = shared_list(peer)[slot];
      if (base + slot < kListed) {
        list_entry(base + slot) = entry;
      } else {
        track_overflow(entry_key(entry));
      }
    }
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads)
      if (peer.histogram[bin]) atomicAdd(&s.histogram[bin], peer.histogram[bin]);
    __syncthreads(); // everybody knows where the next peer's begin
    if (threadIdx.x == 0) {
      s.listed += listed;
      atomicAdd(&s.count, peer.count);
      atomicMin(&s.least, peer.least);
      atomicMax(&s.greatest, peer.greatest);
    }
    __syncthreads(); // and the list has its new end
  }
}

constexpr bool kResident = kHeld > 0; // the planner sees to it that rows then fit

// This CTA's segment: a turn of the ring if the cluster holds rows.
__device__ __forceinline__ RowTask segment_of(const Params& p, const Row& row, u32 rank) {
  RowTask task = whole_row(p, row, nullptr);
  const int size = kResident ? kPart : segment_size(row.length, p.splits);
  task.begin = static_cast<int>(rank) * size;
  task.end = max(min(task.begin + size, row.length), task.begin);
  return task;
}

// The exact route.
__device__ __forceinline__ void select_exact(const Params& p, int id) {
  SharedStorage& s = shared_storage();
  const RowTask task = segment_of(p, load_row(p, id), cluster_rank());
  start_scan(task.row.scores, task.begin, task.end);
  clear_storage();
  __syncthreads(); // storage is empty
  CoarseCount counting;
  scan<kResident>(task.row.scores, task.begin, task.end, counting);
  if (!kResident) {
    start_scan(task.row.scores, task.begin, task.end);
    trace_scans(1);
  }
  cluster_sync(); // every segment is counted
  if (cluster_rank() == 0) {
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      u32 sum = s.histogram[bin];
      for (int other = 1; other < p.splits; ++other)
        sum += in_rank(s.histogram, other)[bin];
      s.histogram[bin] = sum;
    }
    __syncthreads(); // the histogram is the whole row's
    find_boundary(open_slots(p));
  }
  cluster_sync(); // rank 0 has found the boundary; nobody reads a peer's coarse histogram any more
  if (cluster_rank() != 0) clear_storage();
  SharedStorage& owner = *in_rank(&s, 0);
  trace_set(kColRoute, kDirect);
  Frontier frontier = classified(task, owner.found[0]);
  if (threadIdx.x == 0) s.rule.emitted = &owner.emitted;
  if (kResident) {
    __syncthreads(); // the rule is visible
    Classify classify(s.rule);
    scan<true>(task.row.scores, task.begin, task.end, classify);
  }
  bool mine = certify(task, Stage::kClassified, kResident, frontier, [&] {
    cluster_sync(); // better bins are emitted, the boundary bin is stored in its segments
    if (cluster_rank() == 0) gather_peers(p.splits);
    cluster_sync(); // nobody reads a peer's memory any more
    return cluster_rank() == 0 ? Merged::kWhole : Merged::kOther;
  });
  if (mine) refine(frontier);
}

// Returns whether peers may still look at this CTA's storage.
__device__ __forceinline__ bool select_clustered(const Params& p, int id, u32 rank) {
  SharedStorage& s = shared_storage();
  // Where rows are held, segments do not depend on a row's length: copies start while that is fetched. It would queue
  // up behind them, and so would what is sampled.
  const Row row = load_row(p, id);
  const int from = static_cast<int>(rank) * kPart;
  auto end_of = [&](int length) { return max(min(from + kPart, length), from); };
  constexpr bool early = kHolds && !KSIEVE_WINDOWS;
  LoadedSample sample = {};
  if (kHolds && threadIdx.x == 0) prepare_copies();
  if (early) {
    const Row all = row_of_length(p, id, p.width);
    const Body body = body_of(all.scores, from, end_of(p.width));
    sample = load_sample(all.scores + body.begin, body.end - body.begin, id);
    copy_first(all.scores + body.begin, body.end - body.begin);
  }
  HeldRow& part = s.held[0];
  if (!kHolds || threadIdx.x / 32 == kWarps - 1) {
    if (kHolds && threadIdx.x % 32 == 0) {
      clear_row(part);
      clear_row(s.held[kOwn]);
      prepare_exchange();
    }
    cluster_arrive(); // peers may count here
  } else {
    cluster_arrive_relaxed();
  }
  clear_counts();
  if (kHolds && threadIdx.x == 0) {
#if KSIEVE_WINDOWS
    s.base = row.base;
#endif
    describe(p, row, from, end_of(row.length), early ? end_of(p.width) : 0, kWarps * samplers_of(row.length), part);
    s.held[kOwn].edges = static_cast<int>(rank) < samplers_of(row.length);
    if (early || part.way == Way::kHeld) part.copy = 0;
    if (!early) copy_in_bulk(part);
  }
  __syncthreads();                      // the part is described, and storage is empty
  cluster_wait();                       // everywhere
  if (row.length <= slots_of(p, row)) { // the same for the whole cluster: nobody waits
    if (kHolds) wait_copy(0);
    whole_row(p, row, nullptr);
    __syncthreads(); // the row is known
    if (rank == 0) select_short(p, row);
    return true;
  }
  if constexpr (kHolds) {
    if (part.way == Way::kHeld) {
      if (early) {
        look_at<Clustered>(sample.score, sample.place, 0);
        wait_copy(0);
      } else {
        sample_held<Clustered>(0);
      }
      return !select_held<Clustered>(0, [] {}, [] {});
    }
  }
  if (kHolds) wait_copy(0);
  select_exact(p, id);
  return true;
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_cluster(const __grid_constant__ Params p) {
  static_assert(kColumns == 0 && kSharedCapacity == kCapacity, "rank 0 keeps the whole frontier in shared memory");
  const int id = blockIdx.x / p.splits;
  wait_for_inputs();
  trace_begin();
  const bool looked_at = select_clustered(p, id, cluster_rank());
  release_dependents();
  if (looked_at || kFinish) cluster_sync(); // the row is written, and nobody looks at a peer's storage any more
  if (cluster_rank() != 0) return;
  finish_row(p, id, sort_slice(p, id));
  trace_write(p, id);
}
