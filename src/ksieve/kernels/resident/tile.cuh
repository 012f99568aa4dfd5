// A row that several CTAs share, a tile of kTile scores each: how a CTA loads and samples its tile, and the bracket of
// the samples of all CTAs. Scopes exchange the messages: resident/cluster_scope.cuh over distributed shared memory,
// resident/grid_scope.cuh over the workspace.
#pragma once
#include "resident/block_rows.cuh"

constexpr int kCtasPerRow = kMaxResident ? kMaxResident / kTile : 1;

// Threads of three warps that prepare the row's facts in parallel, while warp 0 starts copies.
constexpr int kScribe = 64;
constexpr int kRanksBracket = 32;
constexpr int kChoosesEnds = 96;
static_assert(!kFits || kThreads > kChoosesEnds);

// Slot 0 describes the row. Slot kOwn has the bracket of this CTA's samples alone, and two members of it have a meaning
// of their own: `edges` says whether this CTA's samples count for the worse end of the row's bracket; `last` says which
// of its warps' worse ends the CTA then reports, by rank (ends_of).
constexpr int kOwn = 1;

// Returns how many CTAs decide the bracket's worse end by their samples: in a row shorter than all tiles together, the
// last CTAs have few scores.
__device__ __forceinline__ int sampling_ctas(int length) { return max(length / kTile, 1); }

// Every warp of a CTA has a bracket of its own. Of the worse ends of these, a CTA reports the n-th best; the row's
// bracket ends at the worst one that any CTA reports. Returns n. It may be less than the number of warps, since one CTA
// with a late end suffices: a CTA expects `mean` samples better than the k-th score if tiles are alike, and that every
// CTA has more than n happens in fewer than one row of 100,000. Where good scores are clumped in some tiles it is rarer
// still, since the other CTAs have fewer.
__device__ __forceinline__ int ends_of(int length, int k, int ctas, float samples = kThreads) {
  const float mean = __fdividef(static_cast<float>(k), static_cast<float>(length)) * samples;
  const float deviations = ctas >= 64   ? -0.9f
                           : ctas >= 32 ? -0.5f
                           : ctas >= 16 ? 0.1f
                           : ctas >= 8  ? 0.8f
                           : ctas >= 4  ? 1.7f
                           : ctas >= 2  ? 2.8f
                                        : 4.4f;
  const float ends = mean + deviations * mean * rsqrtf(mean) + 1.5f;
  return max(static_cast<int>(fminf(ends, static_cast<float>(kWarps))), 1);
}

// The message of a CTA: the bracket of its samples.
struct BracketMessage {
  static constexpr u32 kPresent = 2; // set in `signs`: a message is never zero
  u32 best;                          // ordered keys of the bracket's ends
  u32 worst;
  u32 signs;   // kPresent; bit 0: the worse end is not positive
  u32 plateau; // key of a plateau's value; 0: there is none

  __device__ __forceinline__ static BracketMessage of(const RingSlot& message) {
    return {message.word[0], message.word[1], message.word[2], message.word[3]};
  }
  __device__ __forceinline__ RingSlot message() const { return {{best, worst, signs, plateau}}; }

  __device__ __forceinline__ void join(const BracketMessage& other) {
    best = min(best, other.best);
    worst = max(worst, other.worst);
    signs |= other.signs;
    plateau = max(plateau, other.plateau);
  }
};
constexpr BracketMessage kNoBracket = {kNanKey, 0, 0, 0};

// Returns the bracket of this CTA's samples to the first warp. Call by all threads. Without kTrimsBracket it is the
// union of the warps' brackets. With it, the worse end is that of one warp, chosen by rank (ends_of), so the bracket is
// shorter: choosing takes 0.1 us, which clusters do not win back on rows of up to 131,072 scores.
template <bool kTrimsBracket> __device__ __forceinline__ BracketMessage bracket_of_tile(const WarpBracket& warp) {
  SharedStorage& s = shared_storage();
  RowDescriptor& own = s.descriptors[kOwn];
  const u32 lane = threadIdx.x % 32;
  if (lane == 0) {
    widen_bracket(warp, own);
    if (kTrimsBracket) s.warp_totals[threadIdx.x / 32] = warp.ends.worst - 1; // without samples: 0 - 1, the worst key
  }
  __syncthreads(); // every warp's bracket is in the CTA's, and its end in warp_totals, for the first warp
  if (threadIdx.x >= 32) return kNoBracket;
  u32 worst = own.edges ? own.bracket.worst : 0;
  if (kTrimsBracket && worst && own.last < kWarps && s.descriptors[0].last == 0) {
    const u32 mine = s.warp_totals[lane % kWarps];
    u32 no_worse = 0;
#pragma unroll
    for (int v = 0; v < kWarps / 4; ++v) {
      const RingSlot some = reinterpret_cast<const RingSlot*>(s.warp_totals)[v];
#pragma unroll
      for (u32 end : some.word)
        no_worse += end <= mine;
    }
    worst = min(worst, __reduce_min_sync(kFullWarp, no_worse >= own.last ? mine : worst - 1) + 1);
  }
  return {own.bracket.best, worst, BracketMessage::kPresent | (own.edges && worst - 1 >= kZeroKey - 1),
          own.bracket.plateau};
}

// Joins the brackets of all CTAs, one or more in each lane, into the row's. Call by the first warp; a barrier must
// follow.
__device__ __forceinline__ void join_brackets(const BracketMessage& some, int slot) {
  const u32 best = __reduce_min_sync(kFullWarp, some.best);
  const u32 worst = __reduce_max_sync(kFullWarp, some.worst);
  const u32 signs = __reduce_or_sync(kFullWarp, some.signs);
  const u32 plateau = __reduce_max_sync(kFullWarp, some.plateau);
  if (threadIdx.x != 0) return;
  shared_storage().descriptors[slot].bracket = {worst, best, static_cast<int>(signs & ~BracketMessage::kPresent),
                                                plateau};
}

// This thread's part of its CTA's share of the answer. `before` and `all` count positions to collect in their low 16
// bits, and scores of the k-th bucket in their high 16 bits, which are listed unless they are equal. One listed score
// of each thread (`early`) is loaded at once, to hide its latency.
struct Share {
  Marks listed;
  int first;
  bool listing;
  int early;
  Score early_score;
  bool edge_listed;
  bool equal; // they are not listed: those wanted are collected
  u32 before; // counts of the threads before this one
  u32 all;    // counts of all threads of the CTA

  // Returns how many scores this thread lists.
  __device__ __forceinline__ int num_listed() const {
    return kFewValues && equal ? 0 : listed.count() + listing + edge_listed;
  }

  // Calls list(number, index, score) for each listed score of this thread.
  template <class List> __device__ __forceinline__ void each_listed(int slot, List list) {
    if (kFewValues && equal) return;
    int number = static_cast<int>(before >> 16);
    const Score* scores = static_cast<const Score*>(descriptor_at(slot).scores);
    if (listing) list(number++, early, widen(early_score));
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      while (listed.word[w]) {
        const int index = index_of_mark(w, take_bit(listed.word[w]), first);
        list(number++, index, widen(scores[index]));
      }
    if (edge_listed) list(number, load_edge(slot).at, load_edge(slot).score);
  }
};
// Counts the scores that this thread collects and lists, and sums the counts over the CTA. Call by all threads.
__device__ __forceinline__ Share share_of(int slot, const Divided& divided, bool edge_before, bool edge_listed,
                                          bool equal) {
  Share share;
  share.listed = divided.within;
  share.first = own_first(slot);
  share.edge_listed = edge_listed;
  const u32 mine = divided.before.count() + edge_before + (share.listed.count() + edge_listed << 16);
  share.listing = share.listed.any();
  share.equal = equal;
  if (kFewValues) share.listing = share.listing && !equal;
  share.early = 0;
  share.early_score = Score{};
  if (share.listing) {
    share.early = take_mark(share.listed, share.first);
    share.early_score = static_cast<const Score*>(descriptor_at(slot).scores)[share.early];
  }
  const Sums sums = sum_threads(mine);
  share.before = sums.before;
  share.all = sums.all;
  return share;
}

// Collects this thread's positions behind those of the threads before it. Equal scores of the k-th bucket, at most
// `remaining_k` of the CTA, come behind all that are better.
__device__ __forceinline__ void collect_share(const Share& share, int slot, const Divided& divided, bool edge_before,
                                              int remaining_k) {
  const int number = collect_at(divided.before, share.first, static_cast<int>(share.before & 0xffff));
  if (edge_before) collected()[number] = load_edge(slot).at;
  if constexpr (kFewValues) {
    if (!share.equal) return;
    const int better = static_cast<int>(share.all & 0xffff);
    const int before = static_cast<int>(share.before >> 16);
    Marks some = share.listed;
    some.keep(remaining_k - before);
    collect_at(some, share.first, better + before);
    const int last = before + share.listed.count();
    if (share.edge_listed && last < remaining_k) collected()[better + last] = load_edge(slot).at;
  }
}

// Adds the collected equal scores to a CTA's part of the output, which begins at `begin` without those of the CTAs in
// front of it. They have `in_front` equal scores.
__device__ __forceinline__ void add_equal(const Share& share, int slot, int in_front, int remaining_k, int& begin,
                                          int& count) {
  const int taken = min(in_front, remaining_k);
  begin += taken;
  count = min(count + min(static_cast<int>(share.all >> 16), remaining_k - taken), descriptor_at(slot).slots - begin);
}

// Whether a row is resident, and whether its CTAs wrote their shares of the answer and read no counter of the row's
// owner (`written`); on rare routes (resident/overfull.cuh) they read some.
struct TileResult {
  bool resident;
  bool written;
};

// Clears the brackets and counters of a tile, and prepares what its scope exchanges. Call by all threads; a barrier
// must follow.
template <class Scope> __device__ __forceinline__ void clear_tile() {
  if (threadIdx.x == kThreads - 1) {
    clear_row(shared_storage().descriptors[0]);
    clear_row(shared_storage().descriptors[kOwn]);
    Scope::prepare();
  }
  clear_counts();
}

// Selects a row of blocks of which this CTA has a tile, which it pools to its ring. Call by all threads of the row's
// CTAs; the planner gives it no rows that are not resident (planning/blocks.py). A function template, since rows
// without blocks lack members.
template <class Scope, class AnyRow>
__device__ __forceinline__ TileResult select_tile_of_blocks(const Params& p, const AnyRow& row, int cta) {
  SharedStorage& s = shared_storage();
  Scope::begin();
  const int k = row.slots;
  // What takes time are scores: tiles are equal, and not as large as possible.
  constexpr int kAligned = 32; // entries: their scores are then as aligned as the row's
  const int tile_size = ((row.length - 1) / kCtasPerRow / kAligned + 1) * kAligned;
  const int begin = min(cta * tile_size, row.length);
  const int end = min(begin + tile_size, row.length);
  const int sampling = max(row.length / tile_size, 1); // CTAs with a whole tile
  RowDescriptor& tile = s.descriptors[0];
  clear_tile<Scope>();
  if (threadIdx.x == kScribe) {
    s.base = row.base;
    describe_blocks(p, row, begin, end, tile);
    s.descriptors[kOwn].edges = cta < sampling;
  } else if (threadIdx.x == kRanksBracket) {
    bracket_ranks(row.length, k, kWarps * sampling, tile, tile_size);
  } else if (Scope::kTrimsBracket && threadIdx.x == kChoosesEnds) {
    const float samples = static_cast<float>(kThreads) / kTile * static_cast<float>(tile_size);
    s.descriptors[kOwn].last = static_cast<unsigned char>(ends_of(row.length, k, sampling, samples));
  }
  const bool resident = row.length > k;
  if (resident) pool_to_ring(row, begin, end);
  __syncthreads(); // the row is described and all counters are zero, for every thread
  Scope::ready();
  if (!resident) return {false, false};
  Scope::reduce_bracket(bracket_of_samples(sample_of_blocks(row.id, end - begin), 0), 0);
  return {true, select_resident<Scope>(p, 0, [] {}, [] {})};
}

// Selects a row of which this CTA has a tile, if the row is resident. Call by all threads. Tiles do not depend on the
// row's length, so samples are loaded while the length arrives: issued later, their loads would queue behind the
// copies. `first`: this is the CTA's first row, for which the mbarriers are initialised.
template <class Scope> __device__ __forceinline__ TileResult select_tile(const Params& p, int id, int cta, bool first) {
  SharedStorage& s = shared_storage();
  if (first && threadIdx.x == 0) prepare_copies();
  Scope::begin(); // before any load: peers wait for this CTA's mbarriers
  Row row = load_row(p, id);
  const int from = cta * kTile;
  auto end_of = [&](int length) { return max(min(from + kTile, length), from); };
  const Row all = kWindows ? row : widest_row(p, id); // a window's start is known with its row alone
  const Body sampled = body_of(all.scores, from, end_of(all.length));
  const LoadedSample sample = load_sample(all.scores + sampled.begin, sampled.end - sampled.begin, id);
  bool there = sampled.begin + sample.offset < row.length;
  if (fits(row, slots_of(p, row))) {
    const Body body = copied_body(row, from, end_of(row.length), end_of(limit_of(p)));
    copy_first(row.scores + body.begin, body.end - body.begin);
  }
  bool copied = false;
  if constexpr (kPositions) {
    copied = fits(row, slots_of(p, row));
    find_present(p, row); // while the scores arrive
    row = present_part(row);
    there = sampled.begin + sample.offset < row.length;
  }
  RowDescriptor& tile = s.descriptors[0];
  clear_tile<Scope>();
  if (threadIdx.x == kScribe) {
    if (kWindows) s.base = row.base;
    describe(p, row, from, end_of(row.length), end_of(limit_of(p)), tile);
    if (kPositions && !PositionedRow::of_row().dense()) tile.route = RowRoute::kStreamed;
    s.descriptors[kOwn].edges = cta < sampling_ctas(row.length);
    tile.copy = Scope::copies() & 1;
  } else if (threadIdx.x == kRanksBracket) {
    bracket_ranks(row.length, slots_of(p, row), kWarps * sampling_ctas(row.length), tile, row.length);
  } else if (Scope::kTrimsBracket && threadIdx.x == kChoosesEnds) {
    const int ends = ends_of(row.length, slots_of(p, row), sampling_ctas(row.length));
    s.descriptors[kOwn].last = static_cast<unsigned char>(ends);
  }
  // Samples are ranked in front of the barrier only where they arrive before the row is described. On a grid they
  // arrive later, and waiting for them here would delay the description: one row of 1,048,576 scores takes 8.50 us
  // instead of 8.26.
  RankedSample ranked = {};
  if (Scope::kRanksFirst) ranked = rank_sample(widen(sample.score), there);
  __syncthreads(); // the row is described and all counters are zero, for every thread
  Scope::ready();
  const bool known = tile.route == RowRoute::kResident;
  if (known) {
    if (!Scope::kRanksFirst) ranked = rank_sample(widen(sample.score), there);
    Scope::reduce_bracket(bracket_of_samples(ranked, 0), 0);
    copy_rest(0);
    if (kChunks == 1) wait_copy(0);
  }
  if constexpr (kPositions) { // the ring has the tile, but not for buckets
    if (copied && !known) {
      copy_rest(0);
      wait_copy(0);
    }
  }
  const bool resident = Scope::kRereadsDescriptor ? tile.route == RowRoute::kResident : known;
  return {resident, resident && select_resident<Scope>(p, 0, [] {}, [] {})};
}
