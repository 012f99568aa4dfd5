// What kernels of kept sets and samples are given, and read of a row's numbers.
#pragma once
#include "common/ranking.cuh"

#include "common/doubles.cuh"

struct Keep {
  const int* positions;     // (rows, k), without gaps, best first; then -1
  const void* values;       // their scores
  const int* row_flags;     // (rows,) as stream/fold.cuh writes them
  const double* totals;     // (rows,) logarithms to base 2 of the rows' sums; for samples, and p of the whole row
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
  int joint;
};

constexpr int kHasNan = 1, kIsEmpty = 2, kOverCapacity = 8, kIsInvalid = 16;

// Returns the row's number of an argument, and whether it is in [least, most].
__device__ __forceinline__ float number_of(int row, const float* array, float usual, float least, float most,
                                           bool& usable) {
  const float number = array ? array[row] : usual;
  usable = usable && number >= least && number <= most;
  return number;
}

struct RowNumbers {
  float temperature, p, min_p, uniform;
  bool usable; // whether each is in its range
};
__device__ __forceinline__ RowNumbers numbers_of(const Keep& k, int row) {
  RowNumbers own;
  own.usable = true;
  own.temperature = number_of(row, k.temperature, k.usual_temperature, 0x1p-100f, 0x1p100f, own.usable);
  own.p = number_of(row, k.p, k.usual_p, 0x1p-149f, 1, own.usable);
  own.min_p = number_of(row, k.min_p, k.usual_min_p, 0, 1, own.usable);
  own.uniform = number_of(row, k.uniform, k.usual_uniform, 0, 1, own.usable);
  return own;
}
