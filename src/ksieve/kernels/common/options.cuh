// Options of a call beyond the plain selection (core/options.py). The host passes a define only where it is not zero;
// options that cost nothing per score are decided at run time. Included by common/params.cuh alone.
#pragma once

// The number that a define stands for; 0 if the host passes none: its text is then its name.
__device__ constexpr int number_in(const char* text) {
  int number = 0;
  for (; *text >= '0' && *text <= '9'; ++text)
    number = number * 10 + (*text - '0');
  return number;
}
#define KSIEVE_TEXT(define) #define
#define KSIEVE_OPTION(define) number_in(KSIEVE_TEXT(define))
#define KSIEVE_SLOTS (KSIEVE_COUNTS || KSIEVE_EXPAND || KSIEVE_POSITIONS)
#define KSIEVE_OPTIONS (KSIEVE_WINDOWS || KSIEVE_EPILOGUE || KSIEVE_TIES || KSIEVE_SLOTS)

constexpr bool kWindows = KSIEVE_OPTION(KSIEVE_WINDOWS);   // rows have windows, shared lengths, or a k of their own
constexpr bool kSegments = KSIEVE_OPTION(KSIEVE_SEGMENTS); // rows are segments of one flat array
constexpr bool kEpilogue = KSIEVE_OPTION(KSIEVE_EPILOGUE); // slots are sorted, transformed or given values
constexpr bool kTies = KSIEVE_OPTION(KSIEVE_TIES);         // ties at the k-th score are broken by position
constexpr bool kOverlap = KSIEVE_OPTION(KSIEVE_OVERLAP);   // starts while the previous kernel drains
constexpr bool kLongLengths = KSIEVE_OPTION(KSIEVE_LONG_LENGTHS); // lengths, or ends, have 64 bits
constexpr bool kRowK = KSIEVE_OPTION(KSIEVE_ROW_K);               // rows have a k of their own, and no epilogue
constexpr bool kBlockRows = KSIEVE_OPTION(KSIEVE_BLOCK_SIZE) > 0;
constexpr int kBlockSize = kBlockRows ? KSIEVE_OPTION(KSIEVE_BLOCK_SIZE) : 1; // scores of a block: common/blocks.cuh
constexpr int kForceFirst = KSIEVE_OPTION(KSIEVE_FORCE_FIRST); // entries at a row's beginning that rank above others
constexpr int kForceLast = KSIEVE_OPTION(KSIEVE_FORCE_LAST);   // and at its end: common/entries.cuh
constexpr int kForced = kForceFirst + kForceLast;
constexpr int kForcedInside = KSIEVE_OPTION(KSIEVE_FORCE_BESIDE) ? 0 : kForced; // those that are among a row's k
static_assert(kWindows || (!kBlockRows && kForced == 0), "rows of entries are windows");
constexpr bool kCounts = KSIEVE_OPTION(KSIEVE_COUNTS);       // the number of used slots of each row is written
constexpr bool kExpand = KSIEVE_OPTION(KSIEVE_EXPAND);       // entries stand for several positions, which are written
constexpr bool kTail = KSIEVE_OPTION(KSIEVE_TAIL);           // positions behind the last whole entry are written
constexpr bool kPositions = KSIEVE_OPTION(KSIEVE_POSITIONS); // scores have positions of their own: common/positions.cuh
constexpr bool kWritesValues = KSIEVE_OPTION(KSIEVE_VALUES); // the scores of slots are written too
constexpr bool kFold = KSIEVE_OPTION(KSIEVE_FOLD);           // rows are folded while they are scanned: stream/fold.cuh
constexpr bool kAllowed = KSIEVE_OPTION(KSIEVE_ALLOWED);     // and some of their scores count for nothing: a bitmask
static_assert(kFold || !kAllowed, "kernels of ksieve.logits have bitmasks");
enum class Order { kAny, kValue, kIndex };
constexpr Order kOrder = static_cast<Order>(KSIEVE_OPTION(KSIEVE_ORDER));
constexpr bool kSorts = kOrder != Order::kAny; // slots are sorted, where the next row's copies would lie
// Whether selections write a row's slots as they are to be: without an order each slot depends on its position alone.
// Written behind the selection, positions would be read back from memory by the CTA that ends the row.
constexpr bool kWritesSlots =
    kEpilogue && !kSorts && !kExpand && !kPositions && !kForced && !kBlockRows && !KSIEVE_STATS;
constexpr int kSortSlots =
    KSIEVE_OPTION(KSIEVE_SORT_SLOTS); // 8-byte elements of the workspace for each CTA, if sorted there
static_assert(kEpilogue || kOrder == Order::kAny, "an order is made by the finishing pass");
static_assert(kEpilogue || !kWritesValues, "values are written by what writes slots");
static_assert(kEpilogue || !kExpand, "positions of entries are written by the finishing pass");
static_assert(!kTail || (kWindows && kExpand), "a length in positions bounds the entries of a row");

// A plain call passes none: the compiler then knows every value, which is that of its initialiser.
struct Options {
  const int* starts = nullptr;     // (rows,) first score of each row's window, clamped; 64-bit with kWideStarts
                                   // with kSegments (rows + 1,): of each segment, and the end of the last one
  const int* row_k = nullptr;      // (rows,) slots of each row, clamped to [0, k]; null: k
  const int* page_table = nullptr; // (requests, max_pages) page numbers, page_pitch apart; with kPaged
  const int* request_of = nullptr; // (rows,) each row's request in the page table; null: row / next_n
  const int* offsets = nullptr;    // (rows,) added to each index; null: 0
  void* values = nullptr;          // (rows, k) the selected scores, values_pitch apart; with kWritesValues
  void* raw = nullptr;             // (rows, k) the indices before their transform, raw_pitch apart; null: none
  i64 page_pitch = 0;              // all pitches are in elements
  i64 values_pitch = 0;
  i64 raw_pitch = 0;
  int next_n = 1; // rows that share a request, and so an entry of the lengths
  int requests = 0;
  int max_pages = 0;
  int page_shift = 0; // log2 of the scores of a page
  int flags = 0;      // OptionFlags
  int reserved = 0;
#if KSIEVE_SLOTS                  // other kernels' code stays what it is
  int* counts = nullptr;          // (rows,) used slots of each row; with kCounts
  const int* tails = nullptr;     // (rows,) length of each row in positions, shared like the lengths; with kTail
  const int* positions = nullptr; // (rows, width) position of each score, or (rows, width / block) numbers of blocks,
  i64 positions_pitch = 0;        // positions_pitch apart; with kPositions
  int expand = 1;                 // positions of an entry
  int block = 0;                  // scores of a block; 0: positions are those of scores
#else
  static constexpr const int* positions = nullptr;
  static constexpr i64 positions_pitch = 0;
  static constexpr int block = 0;
  static constexpr int* counts = nullptr;
  static constexpr const int* tails = nullptr;
  static constexpr int expand = 1;
#endif
};
static_assert(sizeof(Options) == 104 + (kCounts || kExpand || kPositions ? 40 : 0),
              "the host packs 104 bytes, and 40 of what slots hold");

#if KSIEVE_FOLD
// What a row is folded to, and by what (logits/cuda.py, FOLD). Arrays are (rows,), but for those of tokens.
struct FoldOptions {
  const float* temperature; // null: usual_temperature for every row
  const int* row_k;         // slots of each row that are used; null: all
  float* logsumexp;
  double* totals;    // logarithms to base 2 of the sums; null: none
  int* flags;        // FoldFlags
  const int* tokens; // (rows, tokens_of_row), tokens_pitch apart
  float* logprobs;   // (rows, tokens_of_row), without gaps
  int* ranks;        // the same
  i64 tokens_pitch;
  int tokens_of_row;
  float usual_temperature;
#if KSIEVE_ALLOWED
  const u32* allowed; // (rows, words), allowed_pitch apart: bit i % 32 of word i / 32 says whether score i counts
  i64 allowed_pitch;
#endif
};
constexpr int kFoldBytes = sizeof(FoldOptions);
#else
constexpr int kFoldBytes = 0;
#endif

// Returns whether a score counts, by the words of its row; null: all do.
__device__ __forceinline__ bool is_allowed(const u32* words, int at) {
  const u32 number = static_cast<u32>(at);
  return !words || words[number / 32] >> number % 32 & 1;
}

enum OptionFlags {
  kEnds = 1,       // lengths are the exclusive ends of windows
  kAbsolute = 2,   // indices count from the start of the row, not of the window
  kWide = 4,       // indices are 64-bit
  kHighest = 8,    // the highest indices of a tie are selected, not the lowest
  kPaged = 16,     // indices go through the page table, which may have no entry at all
  kUnfilled = 32,  // unused slots may be left unwritten; with kCounts
  kWideStarts = 64 // starts are 64-bit
};

// Programmatic dependent launch: waits for the kernels before. Call in every CTA, before any global memory access.
__device__ __forceinline__ void wait_for_inputs() {
  if (kOverlap) wait_for_kernels_before();
}

// Programmatic dependent launch: lets the next kernel start. Call when only on-chip work of the CTA's last row is left.
__device__ __forceinline__ void release_dependents() {
  if (kOverlap) launch_next_kernel();
}
