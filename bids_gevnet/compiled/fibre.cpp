// Regular nonlinearity with its normalisation, and the moments; see nn/nonlinearity.py,
// nn/norm.py.
//
//   h = scale x (+ shift for the scalar),  samples = S h,  out = S^T relu(samples) / N.
//
// The N samples of a few numbers exist only in registers. Lanes are the numbers of one
// coefficient, channels and batch together. Sums over points are taken in a fixed order, whatever
// the threads.

#include "simd.h"

namespace LEVEL {

constexpr int SIDE = 2; // vectors side by side
constexpr int STEP = SIDE * W;
constexpr int POINTS = 16;        // points in a task
constexpr int64_t LEAST = 200000; // numbers that are worth a thread

struct Fibre {
  int64_t points, n, channels; // n = channels * batch
  int samples;
  const float *synthesis; // (samples, coefficients)
};

static int workers_for(int64_t numbers, int threads) {
  return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, numbers / LEAST)));
}

// One number per channel to one per number of a row, the filling at the end included.
static std::vector<float> widen(const Fibre &fibre, const float *values, float filling) {
  std::vector<float> wide(fibre.n + STEP, filling);
  int64_t batch = fibre.channels ? fibre.n / fibre.channels : 0;
  for (int64_t k = 0; values && k < fibre.n; ++k)
    wide[k] = values[k / batch];
  return wide;
}

// Coefficients [d][STEP] of numbers first ... first + STEP of a point, zeros beyond the end.
template <int D>
static ALWAYS_INLINE void fetch(const float *point, int64_t n, int64_t first, vec (&h)[D][SIDE]) {
  if (first + STEP <= n) {
    for (int d = 0; d < D; ++d)
      for (int j = 0; j < SIDE; ++j)
        h[d][j] = load(point + d * n + first + j * W);
    return;
  }
  float padded[STEP];
  for (int d = 0; d < D; ++d) {
    for (int64_t k = 0; k < STEP; ++k)
      padded[k] = first + k < n ? point[d * n + first + k] : 0.0f;
    for (int j = 0; j < SIDE; ++j)
      h[d][j] = load(padded + j * W);
  }
}

template <int D>
static ALWAYS_INLINE void put(float *point, int64_t n, int64_t first, const vec (&h)[D][SIDE]) {
  for (int d = 0; d < D; ++d) {
    if (first + STEP <= n) {
      for (int j = 0; j < SIDE; ++j)
        store(point + d * n + first + j * W, h[d][j]);
    } else {
      float padded[STEP];
      for (int j = 0; j < SIDE; ++j)
        store(padded + j * W, h[d][j]);
      std::memcpy(point + d * n + first, padded, (n - first) * sizeof(float));
    }
  }
}

template <int D>
static ALWAYS_INLINE void normalise(vec (&h)[D][SIDE], const float *scale, const float *shift) {
  for (int j = 0; j < SIDE; ++j) {
    vec factor = load(scale + j * W);
    h[0][j] = h[0][j] * factor + load(shift + j * W);
    for (int d = 1; d < D; ++d)
      h[d][j] = h[d][j] * factor;
  }
}

template <int D>
static void forward_points(const Fibre &fibre, const float *x, const float *scale,
                           const float *shift, int64_t begin, int64_t end, float *out) {
  float mean = 1.0f / fibre.samples;
  for (int64_t p = begin; p < end; ++p)
    for (int64_t first = 0; first < fibre.n; first += STEP) {
      vec h[D][SIDE], sum[D][SIDE] = {};
      fetch<D>(x + p * D * fibre.n, fibre.n, first, h);
      normalise<D>(h, scale + first, shift + first);
      const float *s = fibre.synthesis;
      for (int k = 0; k < fibre.samples; ++k, s += D)
        for (int j = 0; j < SIDE; ++j) {
          vec v = h[0][j] * s[0];
          for (int d = 1; d < D; ++d)
            v += h[d][j] * s[d];
          v = v > 0 ? v : vec{};
          for (int d = 0; d < D; ++d)
            sum[d][j] += v * s[d];
        }
      for (int d = 0; d < D; ++d)
        for (int j = 0; j < SIDE; ++j)
          sum[d][j] *= mean;
      put<D>(out + p * D * fibre.n, fibre.n, first, sum);
    }
}

// sums: (2, n + STEP) gradients of scale and shift of these points, or null.
template <int D>
static void backward_points(const Fibre &fibre, const float *grad, const float *x,
                            const float *scale, const float *shift, int64_t begin, int64_t end,
                            float *grad_x, float *sums) {
  float mean = 1.0f / fibre.samples;
  for (int64_t first = 0; first < fibre.n; first += STEP) {
    vec to_scale[SIDE] = {}, to_shift[SIDE] = {};
    for (int64_t p = begin; p < end; ++p) {
      vec h[D][SIDE], g[D][SIDE], sum[D][SIDE] = {}, own[D][SIDE];
      fetch<D>(x + p * D * fibre.n, fibre.n, first, own);
      fetch<D>(grad + p * D * fibre.n, fibre.n, first, g);
      for (int d = 0; d < D; ++d)
        for (int j = 0; j < SIDE; ++j)
          h[d][j] = own[d][j];
      normalise<D>(h, scale + first, shift + first);
      const float *s = fibre.synthesis;
      for (int k = 0; k < fibre.samples; ++k, s += D)
        for (int j = 0; j < SIDE; ++j) {
          vec v = h[0][j] * s[0], back = g[0][j] * s[0];
          for (int d = 1; d < D; ++d) {
            v += h[d][j] * s[d];
            back += g[d][j] * s[d];
          }
          back = v > 0 ? back : vec{};
          for (int d = 0; d < D; ++d)
            sum[d][j] += back * s[d];
        }
      for (int j = 0; j < SIDE; ++j) {
        to_shift[j] += sum[0][j] * mean;
        for (int d = 0; d < D; ++d) {
          sum[d][j] *= mean;
          to_scale[j] += sum[d][j] * own[d][j];
          sum[d][j] *= load(scale + first + j * W);
        }
      }
      put<D>(grad_x + p * D * fibre.n, fibre.n, first, sum);
    }
    for (int j = 0; sums && j < SIDE; ++j) {
      store(sums + first + j * W, to_scale[j]);
      store(sums + fibre.n + STEP + first + j * W, to_shift[j]);
    }
  }
}

template <class F> static void with_coefficients(int coefficients, F f) {
  if (coefficients == 1)
    f(std::integral_constant<int, 1>{});
  else if (coefficients == 3)
    f(std::integral_constant<int, 3>{});
  else
    f(std::integral_constant<int, 5>{});
}

// Sum of w (x - k) and of w (x - k)^2 over a row, k its first number: no cancellation later on.
static void row_sums(const float *row, int64_t n, float k, double &first, double &second) {
  constexpr int64_t PART = 4096; // added up in float32, the parts in float64
  for (int64_t begin = 0; begin < n; begin += PART) {
    int64_t end = std::min(n, begin + PART), at = begin;
    vec s[SIDE] = {}, q[SIDE] = {};
    for (; at + STEP <= end; at += STEP)
      for (int j = 0; j < SIDE; ++j) {
        vec v = load(row + at + j * W) - k;
        s[j] += v;
        q[j] += v * v;
      }
    float rest = 0, rest_squared = 0;
    for (; at < end; ++at) {
      float v = row[at] - k;
      rest += v;
      rest_squared += v * v;
    }
    for (int j = 0; j < SIDE; ++j)
      for (int lane = 0; lane < W; ++lane) {
        rest += s[j][lane];
        rest_squared += q[j][lane];
      }
    first += rest;
    second += rest_squared;
  }
}

} // namespace LEVEL

// x, out: (points, coefficients, channels * batch); scale and shift may be null.
EXPORT(regular_relu)
(const float *x, const float *scale, const float *shift, const float *synthesis,
 const int64_t *sizes, int threads, float *out) {
  using namespace LEVEL;
  return guarded([&] {
    Fibre fibre{sizes[0], sizes[2] * sizes[3], sizes[2], static_cast<int>(sizes[4]), synthesis};
    std::vector<float> factors = widen(fibre, scale, 1.0f), offsets = widen(fibre, shift, 0.0f);
    int tasks = (fibre.points + POINTS - 1) / POINTS;
    share(tasks, workers_for(fibre.points * fibre.n * fibre.samples / 8, threads),
          [&](int task, int) {
            int64_t begin = static_cast<int64_t>(task) * POINTS;
            int64_t end = std::min(fibre.points, begin + POINTS);
            with_coefficients(sizes[1], [&](auto D) {
              forward_points<D.value>(fibre, x, factors.data(), offsets.data(), begin, end, out);
            });
          });
  });
}

// grad_affine: (2, channels), or null where scale and shift are.
EXPORT(regular_relu_backward)
(const float *grad, const float *x, const float *scale, const float *shift, const float *synthesis,
 const int64_t *sizes, int threads, float *grad_x, float *grad_affine) {
  using namespace LEVEL;
  return guarded([&] {
    Fibre fibre{sizes[0], sizes[2] * sizes[3], sizes[2], static_cast<int>(sizes[4]), synthesis};
    std::vector<float> factors = widen(fibre, scale, 1.0f), offsets = widen(fibre, shift, 0.0f);
    int tasks = (fibre.points + POINTS - 1) / POINTS;
    size_t each = 2 * (fibre.n + STEP);
    std::vector<float> sums(grad_affine ? each * tasks : 0);
    share(tasks, workers_for(fibre.points * fibre.n * fibre.samples / 8, threads),
          [&](int task, int) {
            int64_t begin = static_cast<int64_t>(task) * POINTS;
            int64_t end = std::min(fibre.points, begin + POINTS);
            with_coefficients(sizes[1], [&](auto D) {
              backward_points<D.value>(fibre, grad, x, factors.data(), offsets.data(), begin, end,
                                       grad_x, grad_affine ? sums.data() + each * task : nullptr);
            });
          });
    for (int64_t c = 0; grad_affine && c < 2 * fibre.channels; ++c) {
      int64_t batch = sizes[3],
              from = c / fibre.channels * (fibre.n + STEP) + c % fibre.channels * batch;
      double total = 0;
      for (int task = 0; task < tasks; ++task)
        for (int64_t k = 0; k < batch; ++k)
          total += sums[each * task + from + k];
      grad_affine[c] = static_cast<float>(total);
    }
  });
}

// Mean and variance of each row of (outer, rows, inner), weighted along the first axis or not.
EXPORT(row_moments)
(const float *x, const float *weights, const int64_t *sizes, int threads, double *moments) {
  using namespace LEVEL;
  return guarded([&] {
    int64_t outer = sizes[0], rows = sizes[1], inner = sizes[2];
    std::vector<double> sums(2 * outer * rows);
    share(static_cast<int>(outer), workers_for(outer * rows * inner, threads), [&](int o, int) {
      for (int64_t r = 0; r < rows; ++r) {
        double *here = sums.data() + 2 * (o * rows + r);
        row_sums(x + (o * rows + r) * inner, inner, x[r * inner], here[0], here[1]);
      }
    });
    for (int64_t r = 0; r < rows; ++r) {
      double first = 0, second = 0, total = 0;
      for (int64_t o = 0; o < outer; ++o) {
        double weight = weights ? weights[o] : 1.0;
        total += weight * inner;
        first += weight * sums[2 * (o * rows + r)];
        second += weight * sums[2 * (o * rows + r) + 1];
      }
      double mean = first / total;
      moments[r] = mean + x[r * inner];
      moments[rows + r] = std::max(0.0, second / total - mean * mean);
    }
  });
}
