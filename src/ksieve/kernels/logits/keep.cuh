// What kernels of kept sets and samples are given, and read of a row's numbers.
#pragma once
#include "common/ranking.cuh"

#include "common/doubles.cuh"

struct Keep {
  const int* positions;     // (rows, k), without gaps, best first; then -1
  const void* values;       // their scores
  const int* row_flags;     // (rows,) as stream/fold.cuh writes them
  const double* totals;     // (rows,) logarithms to base 2 of the rows' sums; for samples
  const float* temperature; // (rows,) each; null: the number below for every row
  const float* p;
  const float* min_p;
  const float* uniform;
  int* tokens;          // (rows, columns), without gaps
  float* probabilities; // the same; null: samples are drawn, one for each row
  int* counts;          // (rows,); of kept sets
  float* logprobs;      // (rows,); of samples
  int* flags;           // (rows,)
  int k;
  int columns;
  float usual_temperature, usual_p, usual_min_p, usual_uniform;
  int min_p_first;
  int reserved;
};

constexpr int kHasNan = 1, kIsEmpty = 2, kOverCapacity = 8, kIsInvalid = 16;

// Returns the row's number of an argument, and whether it is in [least, most].
__device__ __forceinline__ double number_of(const float* array, float usual, float least, float most, bool& usable) {
  const float number = array ? array[blockIdx.x] : usual;
  usable = usable && number >= least && number <= most;
  return number;
}
