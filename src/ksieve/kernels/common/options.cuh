// What a call asks for around the plain selection (options.py). A define is given only when it is not zero, so that the
// plain selection compiles from the same text to the same code; what costs nothing per score is decided at run time.
// Included by common/params.cuh alone.
#pragma once

#ifndef KSIEVE_WINDOWS
#define KSIEVE_WINDOWS 0 // rows have windows, entries of several rows, or a k of their own
#endif
#ifndef KSIEVE_EPILOGUE
#define KSIEVE_EPILOGUE 0 // a row's slots take a pass after the selection: epilogue/epilogue.cuh
#endif
#ifndef KSIEVE_ORDER
#define KSIEVE_ORDER 0 // 1: slots by score, 2: by index
#endif
#ifndef KSIEVE_TIES
#define KSIEVE_TIES                                                                                                    \
  0 // which of the scores equal to the worst selected one are selected is decided: stream/tie_break.cuh
#endif
#ifndef KSIEVE_OVERLAP
#define KSIEVE_OVERLAP 0 // launched while the previous kernel drains: its results are waited for
#endif
#ifndef KSIEVE_SORT_SLOTS
#define KSIEVE_SORT_SLOTS 0 // 8-byte places per worker in the workspace, where slots do not fit shared memory to sort
#endif
#define KSIEVE_OPTIONS (KSIEVE_WINDOWS || KSIEVE_EPILOGUE || KSIEVE_TIES)

constexpr bool kEpilogue = KSIEVE_EPILOGUE != 0;
constexpr bool kTies = KSIEVE_TIES != 0;
constexpr int kSortSlots = KSIEVE_SORT_SLOTS;
static_assert(kEpilogue || KSIEVE_ORDER == 0, "an order is made by the finishing pass");

#if KSIEVE_OPTIONS
struct Options {
  const int* starts;     // (rows,) first score of each row's window, clamped to [0, width]; null: 0
  const int* row_k;      // (rows,) slots of each row, clamped to [0, k]; null: k
  const int* page_table; // (requests, max_pages), page_pitch apart, of kPaged
  const int* request_of; // (rows,) each row's request in the page table; null: row / next_n
  const int* offsets;    // (rows,) added to each index; null: 0
  void* values;          // (rows, k) the scores selected, values_pitch apart; null: not asked for
  void* raw;             // (rows, k) the indices before their transform, raw_pitch apart; null: not asked for
  i64 page_pitch;        // elements, as the other two
  i64 values_pitch;
  i64 raw_pitch;
  int next_n; // rows that share an entry of the lengths, and a request
  int requests;
  int max_pages;
  int page_shift; // log2 of the scores of a page
  int flags;      // OptionFlags
  int reserved;
};
static_assert(sizeof(Options) == 104, "the host packs 104 bytes");
constexpr int kOptionBytes = sizeof(Options);

enum OptionFlags {
  kEnds = 1,     // lengths are the exclusive ends of windows
  kAbsolute = 2, // indices count from the start of the row, not of the window
  kWide = 4,     // indices are 64-bit
  kHighest = 8,  // the highest indices of a tie are selected, not the lowest
  kPaged = 16,   // indices go through the page table, which may have no entry at all
};
#else
constexpr int kOptionBytes = 0;
#endif

// Programmatic dependent launch. Before anything in global memory is read or written; every CTA has to come here.
__device__ __forceinline__ void wait_for_inputs() {
#if KSIEVE_OVERLAP
  wait_for_kernels_before();
#endif
}

// Once a CTA needs the device no longer than its last row takes on chip: a waiting kernel may be made resident.
__device__ __forceinline__ void release_dependents() {
#if KSIEVE_OVERLAP
  launch_next_kernel();
#endif
}
