// Row descriptors and bulk copies of resident rows, kEach scores for each thread.
#pragma once
#include "stream/select.cuh"

constexpr int kVectors = kStages + kOverflowVectors; // 16-byte vectors of a row for each thread
constexpr int kEach = kHeld;
constexpr int kTile = kVectors * kStep; // most scores of a tile

// Where CTAs share a multiprocessor, 8 of 16 warps sample a row: fewer instructions (20,480 scores are 1.8 % faster).
// Where a CTA has a multiprocessor to itself all warps do: more samples narrow the bracket (with 8, 1 to 3 % slower).
constexpr int kSome = 8;
constexpr int kSamplers = kRoomy && kWarps > kSome&& KSIEVE_CTAS_PER_SM > 1 ? kSome : kWarps;
__device__ __forceinline__ bool is_sampler() {
  return kSamplers == kWarps || static_cast<int>(threadIdx.x) < 32 * kSamplers;
}

// Overflow vectors: where the ring has no room for the whole tile, one or two vectors of each piece are not copied, but
// loaded to registers where they are counted. They are every other one from a piece's second on, so that both ends of a
// tile are in the ring, where it is sampled.
__device__ __forceinline__ constexpr int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }
constexpr int kPieces = common_divisor(kVectors, kOverflowVectors);
constexpr int kPiece = kOverflowVectors ? kVectors / kPieces : kVectors;
constexpr int kOverflowPerPiece = kOverflowVectors ? kOverflowVectors / kPieces : 1;
constexpr int kCopied = kOverflowVectors ? kPiece - kOverflowPerPiece : kPiece; // vectors of a piece in the ring
static_assert(kVectors % kPiece == 0 &&
                  (kOverflowVectors == 0 ||
                   kCopied > kOverflowPerPiece && kVectors / kPiece * kOverflowPerPiece == kOverflowVectors),
              "pieces are whole, and mostly copied");
// Returns which vector of the tile an overflow vector is.
__device__ __forceinline__ constexpr int overflow_vector(int number) {
  return number / kOverflowPerPiece * kPiece + number % kOverflowPerPiece * 2 + 1;
}
// Returns which vector of the tile a stage of the ring has.
__device__ __forceinline__ constexpr int vector_of_stage(int stage) {
  const int in_piece = stage % kCopied;
  return kOverflowVectors
             ? stage / kCopied * kPiece + (in_piece < kOverflowPerPiece ? 2 * in_piece : in_piece + kOverflowPerPiece)
             : stage;
}
// Returns how many overflow vectors are counted before a stage; with `asked`, how many are loaded before it, as late as
// possible.
__device__ __forceinline__ constexpr int overflow_due(int stage, bool asked) {
  const int in_piece = stage % kCopied;
  return kOverflowVectors ? stage / kCopied * kOverflowPerPiece +
                                (asked ? in_piece * kOverflowPerPiece / kCopied : min(in_piece, kOverflowPerPiece))
                          : 0;
}

// Whether rows can be resident: kept on chip and selected from there. They are not with statistics, which count the
// paper's digits, and not with tie-breaks, which need the candidates stored. With positions, dense rows are
// (PositionedRow), unless scores are forced.
constexpr bool kFits = kMaxResident > 0 && kEach <= 128 && !kStats && !kTies && !(kPositions && kForced > 0);
static_assert(kFits || kOverflowVectors == 0, "otherwise rows are read in the ring alone");

// Most positions that a CTA collects before it writes them in order: the histogram, which is not in use then, and the
// candidates' list behind it have room for them.
constexpr int kCollected = kBins + kSharedCapacity * static_cast<int>(sizeof(u64) / sizeof(int));
__device__ __forceinline__ int* collected() { return reinterpret_cast<int*>(shared_storage().histogram); }
static_assert(!kFits || kColumnBytes == 0, "the list follows the histogram");

// Returns whether a row is resident, in the ring or in registers. Room is left for the positions outside the body, even
// if more of them than expected are selected: scores may change under a running kernel.
__device__ __forceinline__ bool fits(const Row& row, int k) {
  return kFits && row.length > k && row.length <= kMaxResident && k <= kCollected - 2 * kVector;
}

// Writes the ranks of the samples that bracket the k-th score. Each of `warps` warps samples one position in each of 32
// equal parts of the tile's capacity, kTile; in a shorter row fewer of these positions have a score. A warp's bracket
// begins with the sample that `first` others are better than, and ends with the sample that `last` others are better
// than; the row's bracket is the union of all warps' brackets.
// Where the warps' samples are independent, the number of a warp's samples that are better than the k-th score is
// binomial, for any distribution of the scores: the union then misses the k-th score in one row of 100,000
// (tests/kernels/test_held_range.py has the model). Warps that share 64 bytes are not independent where neighbouring
// scores are alike: of such rows up to 4 % are missed. A missed row takes longer, and its answer is as exact
// (resident/overfull.cuh). In sorted rows, each warp of one CTA has the same number of better samples or one more;
// warps of other CTAs have none.
// `sampled`: how many of the row's scores a warp has samples of, up to a tile.
__device__ __forceinline__ void bracket_ranks(int length, int k, int warps, RowDescriptor& to, int sampled) {
  const float seen = fminf(32.0f / kTile * static_cast<float>(sampled), 32.0f); // samples of a warp in the row
  // `mean` of these are expected to be better than the k-th score.
  const float mean = __fdividef(static_cast<float>(k), static_cast<float>(length)) * seen;
  const float worse = seen - mean;
  const float deviations = warps <= 4 ? 1.75f : warps <= 8 ? 0.85f : warps <= 16 ? 0.15f : 0.0f;
  const float variance = __fdividef(mean * worse, seen);
  const float margin = deviations * variance * rsqrtf(variance) - 0.5f;
  int first = max(static_cast<int>(floorf(mean - fmaxf(margin + 1.0f, 1.0f))), 0);
  const int last = warps > 32 ? static_cast<int>(mean) : static_cast<int>(ceilf(mean + fmaxf(margin, 0.0f)));
  // Returns 32 times the code of the bracket's extension, on a side of the k-th score where a warp expects `some`
  // samples: with few of them, all samples may be on the other side.
  auto beyond = [&](float some) {
    const float all = some * static_cast<float>(warps);
    return all > 12 ? 0 : all > 6 ? 32 : all > 2 ? 64 : 96;
  };
  const int lengthened = beyond(worse);
  if (lengthened)
    first = min(first, static_cast<int>(seen / 2)); // otherwise the bracket has next to no length to extend
  to.first = static_cast<unsigned char>(first + beyond(mean));
  to.last = static_cast<unsigned char>(min(last, 31) + lengthened);
}

// Whether the body of a window is rounded outwards, where the matrix has scores beside it: what lies in front is masked
// where the ring is read, as is what lies behind. Most windows begin or end inside a vector, and scores outside the
// body are loaded twice, one behind the other, while no thread counts.
constexpr bool kRoundsOut =
    kWindows && !kBlockRows && !kPositions && kMaxResident == kTile && !kInRegisters && kMasksEnds;

// Returns the position up to which scores may be copied with a row: behind its length too, but not behind a window.
__device__ __forceinline__ int limit_of(const Params& p) { return kWindows ? 0 : p.width; }

// Returns the body of a window, rounded outwards where the ring has room for it.
__device__ __forceinline__ Body rounded_body(const Params& p, const Row& row) {
  const i64 column = row.scores - (static_cast<const Score*>(p.scores) + KSIEVE_SCORES_AT(p, row.id));
  const int misaligned = static_cast<int>(reinterpret_cast<u64>(row.scores) / sizeof(Score) % kVector);
  Body body = body_of(row.scores, 0, row.length);
  if (misaligned <= column && row.length + misaligned <= kTile) {
    body.begin = -misaligned;
    body.end = body.begin + (row.length + misaligned) / kVector * kVector;
  }
  if (body.end < row.length && body.end + kVector <= KSIEVE_COLUMNS_OF(p) - column &&
      body.end + kVector - body.begin <= kTile)
    body.end += kVector;
  return body;
}

// Returns the body that is copied of a CTA's tile [begin, end). It includes scores behind the row, up to `limit`, which
// are masked, if then none of the tile is behind the body.
__device__ __forceinline__ Body copied_body(const Row& row, int begin, int end, int limit) {
  Body body = body_of(row.scores, begin, end);
  if (body.end < end && body.end + kVector <= limit) body.end += kVector;
  return body;
}

// Fills the descriptor of a row whose tile in this CTA is [begin, end), except what bracket_ranks writes. Scores may be
// copied up to `limit`. Call by one thread.
__device__ __forceinline__ void describe(const Params& p, const Row& row, int begin, int end, int limit,
                                         RowDescriptor& to) {
  const int k = slots_of(p, row);
  const bool resident = fits(row, k);
  const Body body = kRoundsOut ? rounded_body(p, row) : copied_body(row, begin, end, limit);
  to.body = row.scores + body.begin;
  to.bytes = static_cast<u32>(body.end - body.begin) * sizeof(Score);
  to.copy = -1;
  to.scores = row.scores;
  to.out = row_output(p, row.id);
  to.id = row.id;
  to.slots = k;
  to.begin = begin;
  to.end = end;
  to.body_begin = body.begin;
  to.valid = min(body.end, end) - body.begin;
  to.edges = (kRoundsOut ? body.begin > begin : body.begin != begin) || body.end < end;
  to.route = resident ? RowRoute::kResident : row.length <= k ? RowRoute::kShort : RowRoute::kStreamed;
  to.base = row.base;
}

// Clears the bracket and the counters of a row. Call by one thread.
__device__ __forceinline__ void clear_row(RowDescriptor& to) {
  to.bracket = {0, kNanKey, 0, 0};
  to.better = to.equal = to.num_selected = to.tail_count = 0;
}

// Returns a row's descriptor, volatile so that members are read at each use: kept in registers, they would leave too
// few for the bucket numbers.
__device__ __forceinline__ const volatile RowDescriptor& descriptor_at(int slot) {
  return shared_storage().descriptors[slot];
}

// Returns a row's bracket, in one load.
__device__ __forceinline__ Bracket bracket_of(int slot) {
  const Raw raw = load_shared_words(shared_address(&shared_storage().descriptors[slot].bracket));
  return {raw.word[0], raw.word[1], static_cast<int>(raw.word[2]), raw.word[3]};
}

// Returns the number of valid scores in the body, with those in front of the row (front_of); by a reduction, so that
// the compiler knows that all lanes have the same value. Call by whole warps.
__device__ __forceinline__ int num_valid(int slot) { return __reduce_max_sync(kFullWarp, descriptor_at(slot).valid); }

// Returns how many scores of the body lie in front of the row: fewer than a vector has.
__device__ __forceinline__ int front_of(int slot) { return kRoundsOut ? max(-descriptor_at(slot).body_begin, 0) : 0; }

// Returns the position of this thread's first score in the body.
__device__ __forceinline__ int own_first(int slot) { return descriptor_at(slot).body_begin + own_offset(); }

// Starts copying a body to the ring, each thread its own vectors (before sm_90). Call by all threads, behind a barrier
// after the ring's last use.
__device__ __forceinline__ void copy_body(const void* body, int scores) {
  const Score* first = static_cast<const Score*>(body) + own_offset();
#pragma unroll 1
  for (int stage = 0; stage < kStages && own_offset() + vector_of_stage(stage) * kStep < scores; ++stage)
    copy_ahead(own_ring() + stage * kStageBytes, first + vector_of_stage(stage) * kStep);
  commit_copies();
}

// Chunks of a tile, each with an mbarrier of its own: of a large tile, what has arrived is counted while the rest
// arrives.
constexpr int kChunks = kStages * static_cast<int>(kStageBytes) >= 128 << 10 ? kMostChunks : 1;
constexpr int kAtOnce = kChunks == 1 ? 1 : kOverflowVectors ? 3 : 2; // chunks copied first: half of the tile

// Stretches of the ring that one bulk copy fills: they lie between overflow vectors; the first is one vector.
constexpr int kStretches = kOverflowPerPiece > 1 ? kStages : kOverflowVectors ? kOverflowVectors + 1 : kChunks;
static_assert(kStretches >= kChunks, "every chunk has one");
__device__ __forceinline__ constexpr int stretch_begin(int number) { // first stage of a stretch
  return kOverflowVectors == 0 || kOverflowPerPiece > 1 ? number * kStages / kStretches
         : number                                       ? 1 + (number - 1) * kCopied
                                                        : 0;
}
// Returns the first stretch of a chunk.
__device__ __forceinline__ constexpr int chunk_begin(int chunk) { return chunk * kStretches / kChunks; }
__device__ __forceinline__ constexpr int chunk_of(int stretch) { return ((stretch + 1) * kChunks - 1) / kStretches; }

// Starts bulk copies of chunks [begin, end) of a body. Call by one warp: a lane for each stretch. A barrier must order
// the copies behind other threads' reads of the ring. Behind writes of the ring they also need a fence: the epilogue's
// sort writes it, and where scores have positions of their own, for which there is an epilogue too, the exact route.
__device__ __forceinline__ void copy_in_bulk(const void* body, u32 size, int begin = 0, int end = kChunks) {
  SharedStorage& s = shared_storage();
  const int stretch = reread_tid() % 32;
  const int chunk = chunk_of(stretch);
  const bool mine = stretch < kStretches && chunk >= begin && chunk < end;
  const int stage = stretch_begin(stretch);
  const u32 from = vector_of_stage(stage) * kStageBytes;
  const u32 most = (min(stretch_begin(stretch + 1), kStages) - stage) * kStageBytes;
  const u32 bytes = mine ? min(max(size, from) - from, most) : 0;
  if (kEpilogue && mine) fence_async_proxy();
  if (kStretches == 1) {
    if (mine) expect_bytes(bytes, &s.copied[0]);
  } else {
    if (bytes) expect_more(bytes, &s.copied[chunk]);
    __syncwarp(); // every lane's bytes are expected before the chunk's thread arrives
    if (mine && stretch == chunk_begin(chunk)) expect_bytes(0, &s.copied[chunk]);
  }
  if (mine) copy_expected(&s.ring[stage], static_cast<const unsigned char*>(body) + from, bytes, &s.copied[chunk]);
}

// Starts the bulk copies of a described row, if it is copied in bulk. Call by one warp.
__device__ __forceinline__ void copy_in_bulk(const RowDescriptor& row) {
  struct alignas(16) Copy {
    const void* body;
    u32 bytes;
    int number;
  };
  const Copy copy = reinterpret_cast<const Copy&>(row);
  if (copy.number >= 0) copy_in_bulk(copy.body, copy.bytes);
}

// Initialises the mbarriers of bulk copies. Call by one thread of the warp that starts the copies; a barrier must come
// before other warps wait for them.
__device__ __forceinline__ void prepare_copies() {
  if constexpr (kBulkCopies) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      init_mbarrier(&shared_storage().copied[chunk]);
    publish_mbarriers();
    fence_async_proxy();
  }
}

// Starts copying a tile before its row is described. Call by all threads. The loads of samples would queue behind a
// whole large tile: only half of it is copied now, and the rest once samples have arrived (copy_rest).
__device__ __forceinline__ void copy_first(const Score* body, int scores) {
  if constexpr (kBulkCopies) {
    __syncwarp(); // one lane of warp 0 has initialised the mbarriers, for the lanes that use them
    if (threadIdx.x / 32 == 0) copy_in_bulk(body, static_cast<u32>(scores) * sizeof(Score), 0, kAtOnce);
  } else {
    copy_body(body, scores);
  }
}

// Starts copying the rest of a resident row's tile. Call by all threads.
__device__ __forceinline__ void copy_rest(int slot) {
  if constexpr (kBulkCopies && kChunks > 1) {
    const RowDescriptor& row = shared_storage().descriptors[slot];
    if (threadIdx.x / 32 == 0) copy_in_bulk(row.body, row.bytes, kAtOnce, kChunks);
  }
}

// Waits until a chunk of the row is in the ring; before sm_90, until this thread's own copies are.
__device__ __forceinline__ void wait_chunk(int slot, int chunk) {
  if constexpr (kBulkCopies) {
    const int copy = descriptor_at(slot).copy;
    if (copy >= 0) wait_mbarrier(&shared_storage().copied[chunk], copy);
  } else {
    if (chunk == 0) wait_all_copies();
  }
}
// Waits until all chunks of the row are in the ring.
__device__ __forceinline__ void wait_copy(int slot) {
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
    wait_chunk(slot, chunk);
}
