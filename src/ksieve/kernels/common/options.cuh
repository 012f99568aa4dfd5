// Options of a call beyond the plain selection (core/options.py). The host passes a define only where it is not zero;
// options that cost nothing per score are decided at run time. Included by common/params.cuh alone.
#pragma once

#ifndef KSIEVE_WINDOWS
#define KSIEVE_WINDOWS 0 // rows have windows, entries of several rows, or a k of their own
#endif
#ifndef KSIEVE_EPILOGUE
#define KSIEVE_EPILOGUE 0 // slots are sorted, transformed or given values: epilogue/epilogue.cuh
#endif
#ifndef KSIEVE_VALUES
#define KSIEVE_VALUES 0 // the scores of slots are written too
#endif
#ifndef KSIEVE_ORDER
#define KSIEVE_ORDER 0 // 1: slots by score, 2: by index
#endif
#ifndef KSIEVE_TIES
#define KSIEVE_TIES 0 // ties at the k-th score are broken by position, lowest or highest: stream/tie_break.cuh
#endif
#ifndef KSIEVE_OVERLAP
#define KSIEVE_OVERLAP 0 // programmatic dependent launch: starts while the previous kernel drains
#endif
#ifndef KSIEVE_SORT_SLOTS
#define KSIEVE_SORT_SLOTS 0 // 8-byte elements of the workspace for each CTA, where slots do not fit shared memory
#endif
#ifndef KSIEVE_RANKING
#define KSIEVE_RANKING 0 // 1: smaller scores are better, 2: NaN is better than every number (common/ranking.cuh)
#endif
#ifndef KSIEVE_LONG_LENGTHS
#define KSIEVE_LONG_LENGTHS 0 // lengths, or ends, have 64 bits
#endif
#ifndef KSIEVE_ROW_K
#define KSIEVE_ROW_K 0 // resident/rows.cuh: rows have a k of their own, and no epilogue writes their unused slots
#endif
#ifndef KSIEVE_BLOCK_SIZE
#define KSIEVE_BLOCK_SIZE 1 // scores of a block, of which the best is an entry: common/blocks.cuh
#endif
#ifndef KSIEVE_SOURCE_DTYPE
#define KSIEVE_SOURCE_DTYPE 0 // with blocks: dtype of the scores, whose entries are float32
#endif
#ifndef KSIEVE_SOURCE_RANKING
#define KSIEVE_SOURCE_RANKING 0 // with blocks: their ranking; entries are ranked scores
#endif
#ifndef KSIEVE_FORCE_FIRST
#define KSIEVE_FORCE_FIRST 0 // entries at the beginning of a row that rank above all others: common/entries.cuh
#endif
#ifndef KSIEVE_FORCE_LAST
#define KSIEVE_FORCE_LAST 0 // and at its end
#endif
#ifndef KSIEVE_FORCE_BESIDE
#define KSIEVE_FORCE_BESIDE 0 // they are not among the k
#endif
#ifndef KSIEVE_COUNTS
#define KSIEVE_COUNTS 0 // the number of used slots of each row is written
#endif
#ifndef KSIEVE_EXPAND
#define KSIEVE_EXPAND 0 // entries stand for several positions, which are written: epilogue/epilogue.cuh
#endif
#ifndef KSIEVE_TAIL
#define KSIEVE_TAIL 0 // rows have a length in positions, and those behind the last whole entry are written
#endif
#ifndef KSIEVE_POSITIONS
#define KSIEVE_POSITIONS 0 // scores have positions of their own: common/positions.cuh
#endif
#define KSIEVE_SLOTS (KSIEVE_COUNTS || KSIEVE_EXPAND || KSIEVE_POSITIONS)
#define KSIEVE_OPTIONS (KSIEVE_WINDOWS || KSIEVE_EPILOGUE || KSIEVE_TIES || KSIEVE_SLOTS)

constexpr bool kWindows = KSIEVE_WINDOWS != 0;
constexpr bool kEpilogue = KSIEVE_EPILOGUE != 0;
constexpr bool kTies = KSIEVE_TIES != 0;
constexpr bool kOverlap = KSIEVE_OVERLAP != 0;
constexpr bool kLongLengths = KSIEVE_LONG_LENGTHS != 0;
constexpr bool kBlockRows = KSIEVE_BLOCK_SIZE > 1;
constexpr int kBlockSize = KSIEVE_BLOCK_SIZE;
constexpr int kForceFirst = KSIEVE_FORCE_FIRST;
constexpr int kForceLast = KSIEVE_FORCE_LAST;
constexpr int kForced = kForceFirst + kForceLast;
constexpr int kForcedInside = KSIEVE_FORCE_BESIDE ? 0 : kForced; // forced entries that are among a row's k
static_assert(kWindows || (!kBlockRows && kForced == 0), "rows of entries are windows");
constexpr bool kCounts = KSIEVE_COUNTS != 0;
constexpr bool kExpand = KSIEVE_EXPAND != 0;
constexpr bool kTail = KSIEVE_TAIL != 0;
constexpr bool kPositions = KSIEVE_POSITIONS != 0;
constexpr bool kWritesValues = KSIEVE_VALUES != 0;
enum class Order { kAny, kValue, kIndex };
constexpr Order kOrder = static_cast<Order>(KSIEVE_ORDER);
constexpr bool kSorts = kOrder != Order::kAny; // slots are sorted, where the next row's copies would lie
// Whether selections write a row's slots as they are to be: without an order each slot depends on its position alone.
// Written behind the selection, positions would be read back from memory by the CTA that ends the row.
constexpr bool kWritesSlots =
    kEpilogue && !kSorts && !kExpand && !kPositions && !kForced && !kBlockRows && !KSIEVE_STATS;
constexpr int kSortSlots = KSIEVE_SORT_SLOTS;
static_assert(kEpilogue || kOrder == Order::kAny, "an order is made by the finishing pass");
static_assert(kEpilogue || !kWritesValues, "values are written by what writes slots");
static_assert(kEpilogue || !kExpand, "positions of entries are written by the finishing pass");
static_assert(!kTail || (kWindows && kExpand), "a length in positions bounds the entries of a row");

struct Options {
  const int* starts;     // (rows,) first score of each row's window, clamped to [0, width]; 64-bit with kWideStarts
  const int* row_k;      // (rows,) slots of each row, clamped to [0, k]; null: k
  const int* page_table; // (requests, max_pages) page numbers, page_pitch apart; with kPaged
  const int* request_of; // (rows,) each row's request in the page table; null: row / next_n
  const int* offsets;    // (rows,) added to each index; null: 0
  void* values;          // (rows, k) the selected scores, values_pitch apart; with kWritesValues
  void* raw;             // (rows, k) the indices before their transform, raw_pitch apart; null: none
  i64 page_pitch;        // all pitches are in elements
  i64 values_pitch;
  i64 raw_pitch;
  int next_n; // rows that share a request, and so an entry of the lengths
  int requests;
  int max_pages;
  int page_shift; // log2 of the scores of a page
  int flags;      // OptionFlags
  int reserved;
#if KSIEVE_SLOTS        // other kernels' code stays what it is
  int* counts;          // (rows,) used slots of each row; with kCounts
  const int* tails;     // (rows,) length of each row in positions, shared like the lengths; with kTail
  const int* positions; // (rows, width) position of each score, or (rows, width / block) numbers of blocks,
  i64 positions_pitch;  // positions_pitch apart; with kPositions
  int expand;           // positions of an entry
  int block;            // scores of a block; 0: positions are those of scores
#else
  static constexpr const int* positions = nullptr;
  static constexpr i64 positions_pitch = 0;
  static constexpr int block = 0;
  static constexpr int* counts = nullptr;
  static constexpr const int* tails = nullptr;
  static constexpr int expand = 1;
#endif
};
constexpr int kSlotBytes = KSIEVE_SLOTS ? 40 : 0;
static_assert(sizeof(Options) == 104 + kSlotBytes, "the host packs 104 bytes, and 40 of what slots hold");

// The options of a plain call, which passes none: the compiler knows every value.
struct NoOptions {
  static constexpr const int* starts = nullptr;
  static constexpr const int* row_k = nullptr;
  static constexpr const int* page_table = nullptr;
  static constexpr const int* request_of = nullptr;
  static constexpr const int* offsets = nullptr;
  static constexpr void* values = nullptr;
  static constexpr void* raw = nullptr;
  static constexpr i64 page_pitch = 0, values_pitch = 0, raw_pitch = 0;
  static constexpr int next_n = 1, requests = 0, max_pages = 0, page_shift = 0, flags = 0, expand = 1;
  static constexpr int* counts = nullptr;
  static constexpr const int* tails = nullptr;
  static constexpr const int* positions = nullptr;
  static constexpr i64 positions_pitch = 0;
  static constexpr int block = 0;
};
constexpr int kOptionBytes = KSIEVE_OPTIONS ? sizeof(Options) : 0;

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
  if constexpr (kOverlap) wait_for_kernels_before();
}

// Programmatic dependent launch: lets the next kernel start. Call when only on-chip work of the CTA's last row is left.
__device__ __forceinline__ void release_dependents() {
  if constexpr (kOverlap) launch_next_kernel();
}
