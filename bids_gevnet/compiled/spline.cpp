// Cubic B-splines read at any points; see dwi/model_corrector/splines.py.
//
// A point needs 4 x 4 x 4 coefficients. Along the last axis they lie side by side, so they are one
// vector of four lanes: 16 multiplications by the product of two weights, and the weights of the
// last axis once at the end.

#include "simd.h"
#include <cmath>

namespace LEVEL {

typedef float quad __attribute__((vector_size(16)));
typedef float loose_quad __attribute__((vector_size(16), aligned(4), may_alias));

constexpr int64_t POINTS = 16384; // in a task

// Weights of the four neighbours at 0 to 1 from the second.
static ALWAYS_INLINE quad weights(float offset) {
  float rest = 1 - offset;
  return quad{rest * rest * rest / 6, 2.0f / 3 - offset * offset * (1 + rest) / 2,
              2.0f / 3 - rest * rest * (1 + offset) / 2, offset * offset * offset / 6};
}

// A coefficient's index beyond the edge: mirrored at the outermost voxel centres.
static ALWAYS_INLINE int64_t mirrored(int64_t index, int64_t count) {
  int64_t period = std::max<int64_t>(2 * (count - 1), 1);
  index %= period;
  index = index < 0 ? index + period : index;
  return std::min(std::min(index, period - index), count - 1);
}

static ALWAYS_INLINE float read(const float *values, const int64_t *shape, const float *at) {
  int64_t first[3];
  quad weight[3];
  bool inner = true;
  for (int axis = 0; axis < 3; ++axis) {
    float position = at[axis];
    if (!(position >= -0.5f && position <= static_cast<float>(shape[axis]) - 0.5f))
      return 0.0f; // NaN, too
    float whole = std::floor(position);
    weight[axis] = weights(position - whole);
    first[axis] = static_cast<int64_t>(whole) - 1;
    inner = inner && first[axis] >= 0 && first[axis] + 4 <= shape[axis];
  }
  quad sum{};
  if (inner) {
    const float *corner = values + (first[0] * shape[1] + first[1]) * shape[2] + first[2];
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) {
        const float *row = corner + (i * shape[1] + j) * shape[2];
        sum += *reinterpret_cast<const loose_quad *>(row) * (weight[0][i] * weight[1][j]);
      }
  } else {
    int64_t last[4];
    for (int k = 0; k < 4; ++k)
      last[k] = mirrored(first[2] + k, shape[2]);
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) {
        const float *row = values + (mirrored(first[0] + i, shape[0]) * shape[1] +
                                     mirrored(first[1] + j, shape[1])) *
                                        shape[2];
        sum += quad{row[last[0]], row[last[1]], row[last[2]], row[last[3]]} *
               (weight[0][i] * weight[1][j]);
      }
  }
  sum *= weight[2];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

} // namespace LEVEL

// coefficients: (shape), positions: (count, 3) in voxels, out: (count); 0 more than half a voxel
// beyond the outermost voxel centres.
EXPORT(sample_spline)
(const float *coefficients, const int64_t *shape, const float *positions, int64_t count,
 int threads, float *out) {
  using namespace LEVEL;
  return guarded([&] {
    int tasks = static_cast<int>((count + POINTS - 1) / POINTS);
    share(tasks, threads, [&](int task, int) {
      int64_t end = std::min(count, (task + 1) * POINTS);
      for (int64_t k = task * POINTS; k < end; ++k)
        out[k] = read(coefficients, shape, positions + 3 * k);
    });
  });
}
