// The convolution of Definition 3.3, orders 1 and 2; the mathematics is in nn/fused_volterra.py.
//
//   T[i] = sum_j A[p, i, j] x_j,   Z[i, 0] = T[i],   Z[i, 1 + k] = T[i] T[k],   out = W Z.
//
// A tile of the batch (TILE samples, the lanes of the vectors) goes through all points. For one
// point T is a few kilobytes and Z exists only in registers. The operator A is sparse: a list of
// neighbours and, for each, the matrix (components, rows). The backward pass makes T again for
// GROUP points at a time, over which the gradient of W is summed in registers.
//
// The sum over tiles of the gradient of W is taken in a fixed order, whatever the threads.

#include "simd.h"

namespace LEVEL {

constexpr int GROUP = 12;        // points whose T stays in the second-level cache
constexpr int PARTIAL_SUMS = 32; // of the gradient of W, at most

// One input frequency.
struct Input {
  int components, channels, factors, rows, span; // span: where it starts along dim
  size_t t;                                      // where its T starts in the T of a point
  const float *entries;                          // (entry, component, row)
};

// Rows of T from one input frequency to one output frequency.
struct Path {
  int first, count;
};

struct Plan {
  int points_in, points_out, dim, dim_out;
  size_t t_size; // floats in the T of a point
  std::vector<Input> ins;
  std::vector<int> outs, out_starts;
  std::vector<std::vector<Path>> paths; // [input][output]
  const int32_t *starts, *columns, *order;

  Plan(const int64_t *sizes, const int32_t *const *index, const float *const *entries)
      : points_in(sizes[0]), points_out(sizes[1]), starts(index[0]), columns(index[1]),
        order(index[2]) {
    int n_in = sizes[2], n_out = sizes[3];
    const int64_t *components = sizes + 4, *channels = components + n_in,
                  *factors = channels + n_in, *rows = factors + n_in, *o = rows + n_in * n_out;
    dim = dim_out = 0;
    t_size = 0;
    for (int m = 0; m < n_out; ++m) {
      outs.push_back(o[m]);
      out_starts.push_back(dim_out);
      dim_out += o[m];
    }
    for (int n = 0; n < n_in; ++n) {
      std::vector<Path> to;
      int total = 0;
      for (int m = 0; m < n_out; ++m) {
        to.push_back({total, static_cast<int>(rows[n * n_out + m])});
        total += rows[n * n_out + m];
      }
      paths.push_back(to);
      ins.push_back({static_cast<int>(components[n]), static_cast<int>(channels[n]),
                     static_cast<int>(factors[n]), total, dim, t_size, entries[n]});
      dim += components[n] * channels[n];
      t_size += static_cast<size_t>(total) * channels[n] * TILE;
    }
  }

  // Visit the weights in their order in memory: f(n, m, o, path row, factor, channel, index).
  template <class F> void each_weight(F f) const {
    size_t at = 0;
    for (size_t n = 0; n < ins.size(); ++n)
      for (size_t m = 0; m < outs.size(); ++m)
        for (int o = 0; o < outs[m]; ++o)
          for (int i = 0; i < paths[n][m].count; ++i)
            for (int u = 0; u <= ins[n].factors; ++u)
              for (int c = 0; c < ins[n].channels; ++c)
                f(n, m, o, i, u, c, at++);
  }
};

// Where the products of each (m, n, c) start when they stand one after the other.
struct Products {
  std::vector<size_t> starts; // [(m * inputs + n)] of the first channel
  std::vector<size_t> totals; // per m
  int inputs;

  explicit Products(const Plan &plan) : inputs(plan.ins.size()) {
    for (size_t m = 0; m < plan.outs.size(); ++m) {
      size_t at = 0;
      for (size_t n = 0; n < plan.ins.size(); ++n) {
        starts.push_back(at);
        at += static_cast<size_t>(plan.ins[n].channels) * per_channel(plan, n, m);
      }
      totals.push_back(at);
    }
  }
  static int per_channel(const Plan &plan, size_t n, size_t m) {
    return plan.paths[n][m].count * (1 + plan.ins[n].factors);
  }
  size_t at(const Plan &plan, size_t n, size_t m, int c, int i, int u) const {
    return starts[m * inputs + n] + static_cast<size_t>(c) * per_channel(plan, n, m) +
           i * (1 + plan.ins[n].factors) + u;
  }
};

// Weights of output frequency m in blocks of outputs: [block][product][output of the block].
struct ByOutput {
  std::vector<size_t> starts; // per m
  std::vector<int> block;     // per m
  size_t size = 0;

  ByOutput(const Plan &plan, const Products &products) {
    for (size_t m = 0; m < plan.outs.size(); ++m) {
      int b = block_size(plan.outs[m]);
      starts.push_back(size);
      block.push_back(b);
      size += b ? (plan.outs[m] + b - 1) / b * products.totals[m] * b : 0;
    }
  }
  size_t at(const Products &products, size_t m, int o, size_t product) const {
    int b = block[m];
    return starts[m] + (o / b * products.totals[m] + product) * b + o % b;
  }
};

// T of one point, [channel][row][TILE], for one input frequency.
template <int R>
static ALWAYS_INLINE void respond_rows(const float *x, size_t stride, const Input &in,
                                       const int32_t *columns, int count, const float *a, int row,
                                       float *t) {
  vec acc[R][NV] = {};
  for (int e = 0; e < count; ++e) {
    const float *from = x + columns[e] * stride;
    for (int d = 0; d < in.components; ++d) {
      const float *value = a + (static_cast<size_t>(e) * in.components + d) * in.rows + row;
      const float *source = from + static_cast<size_t>(d) * in.channels * TILE;
      vec v[NV];
      for (int j = 0; j < NV; ++j)
        v[j] = load(source + j * W);
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < NV; ++j)
          acc[r][j] += v[j] * value[r];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < NV; ++j)
      store(t + (row + r) * TILE + j * W, acc[r][j]);
}

static void respond(const Plan &plan, const float *x, int p, float *t) {
  int start = plan.starts[p], count = plan.starts[p + 1] - start;
  size_t stride = static_cast<size_t>(plan.dim) * TILE;
  for (const Input &in : plan.ins) {
    const float *a = in.entries + static_cast<size_t>(start) * in.components * in.rows;
    int block = block_size(in.rows);
    for (int c = 0; c < in.channels; ++c) {
      const float *from = x + static_cast<size_t>(in.span + c) * TILE;
      float *to = t + in.t + static_cast<size_t>(c) * in.rows * TILE;
      for (int row = 0; row < in.rows; row += block)
        with_constant<BLOCK>(std::min(block, in.rows - row), [&](auto R) {
          respond_rows<R.value>(from, stride, in, plan.columns + start, count, a, row, to);
        });
    }
  }
}

// The transpose: adds A^T grad_t to the gradient of x.
template <int R>
static ALWAYS_INLINE void spread_rows(float *x, size_t stride, const Input &in,
                                      const int32_t *columns, int count, const float *a, int row,
                                      const float *t) {
  vec g[R][NV];
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < NV; ++j)
      g[r][j] = load(t + (row + r) * TILE + j * W);
  for (int e = 0; e < count; ++e) {
    float *to = x + columns[e] * stride;
    for (int d = 0; d < in.components; ++d) {
      const float *value = a + (static_cast<size_t>(e) * in.components + d) * in.rows + row;
      float *target = to + static_cast<size_t>(d) * in.channels * TILE;
      vec v[NV];
      for (int j = 0; j < NV; ++j)
        v[j] = load(target + j * W);
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < NV; ++j)
          v[j] += g[r][j] * value[r];
      for (int j = 0; j < NV; ++j)
        store(target + j * W, v[j]);
    }
  }
}

static void spread(const Plan &plan, float *x, int p, const float *t) {
  int start = plan.starts[p], count = plan.starts[p + 1] - start;
  size_t stride = static_cast<size_t>(plan.dim) * TILE;
  for (const Input &in : plan.ins) {
    const float *a = in.entries + static_cast<size_t>(start) * in.components * in.rows;
    int block = block_size(in.rows);
    for (int c = 0; c < in.channels; ++c) {
      float *to = x + static_cast<size_t>(in.span + c) * TILE;
      const float *from = t + in.t + static_cast<size_t>(c) * in.rows * TILE;
      for (int row = 0; row < in.rows; row += block)
        with_constant<BLOCK>(std::min(block, in.rows - row), [&](auto R) {
          spread_rows<R.value>(to, stride, in, plan.columns + start, count, a, row, from);
        });
    }
  }
}

// out[o] = sum over products of W Z for a block of outputs of frequency m at one point.
template <int O>
static ALWAYS_INLINE void mix(const Plan &plan, size_t m, const float *t, const float *w,
                              float *out) {
  vec acc[O][NV] = {};
  auto add = [&](const vec *z) {
    for (int o = 0; o < O; ++o)
      for (int j = 0; j < NV; ++j)
        acc[o][j] += z[j] * w[o];
    w += O;
  };
  for (size_t n = 0; n < plan.ins.size(); ++n) {
    const Input &in = plan.ins[n];
    const Path &path = plan.paths[n][m];
    for (int c = 0; c < in.channels; ++c) {
      const float *rows = t + in.t + static_cast<size_t>(c) * in.rows * TILE;
      for (int i = path.first; i < path.first + path.count; ++i) {
        vec v[NV], z[NV];
        for (int j = 0; j < NV; ++j)
          v[j] = load(rows + i * TILE + j * W);
        add(v);
        for (int k = 0; k < in.factors; ++k) {
          for (int j = 0; j < NV; ++j)
            z[j] = v[j] * load(rows + k * TILE + j * W);
          add(z);
        }
      }
    }
  }
  for (int o = 0; o < O; ++o)
    for (int j = 0; j < NV; ++j)
      store(out + o * TILE + j * W, acc[o][j]);
}

// grad_z[k] = sum over o of W[o, k] g[o] for a block of products of one (m, n, channel).
template <int K>
static ALWAYS_INLINE void unmix(int outs, const float *g, const float *w, float *grad_z) {
  vec acc[K][NV] = {};
  for (int o = 0; o < outs; ++o, w += K) {
    vec v[NV];
    for (int j = 0; j < NV; ++j)
      v[j] = load(g + o * TILE + j * W);
    for (int k = 0; k < K; ++k)
      for (int j = 0; j < NV; ++j)
        acc[k][j] += v[j] * w[k];
  }
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < NV; ++j)
      store(grad_z + k * TILE + j * W, acc[k][j]);
}

// d(T_i T_k) = T_k dT_i + T_i dT_k, added to grad_t.
static ALWAYS_INLINE void unmultiply(const Path &path, int factors, const float *t,
                                     const float *grad_z, float *grad_t) {
  for (int i = path.first; i < path.first + path.count; ++i)
    for (int j = 0; j < TILE; j += W) {
      vec sum = load(grad_z + j), v = load(t + i * TILE + j);
      for (int k = 0; k < factors; ++k) {
        vec g = load(grad_z + (1 + k) * TILE + j);
        sum += g * load(t + k * TILE + j);
        store(grad_t + k * TILE + j, load(grad_t + k * TILE + j) + g * v);
      }
      store(grad_t + i * TILE + j, load(grad_t + i * TILE + j) + sum);
      if (j + W == TILE)
        grad_z += (1 + factors) * TILE;
    }
}

// Two products as pointers into T of the first point of a group; step 0 stands for a constant 1.
struct Pair {
  const float *row[2], *factor[2];
  size_t step[2];
};

// Gradient of W for two products and a block of outputs, summed over a group of points.
template <int O>
static ALWAYS_INLINE void weight_gradient(int points, const Pair &pair, size_t t_step,
                                          const float *g, size_t g_step, float *const sums[2]) {
  vec acc[2][O] = {};
  for (int p = 0; p < points; ++p)
    for (int j = 0; j < TILE; j += W) {
      vec z0 = load(pair.row[0] + p * t_step + j) * load(pair.factor[0] + p * pair.step[0] + j);
      vec z1 = load(pair.row[1] + p * t_step + j) * load(pair.factor[1] + p * pair.step[1] + j);
      for (int o = 0; o < O; ++o) {
        vec v = load(g + p * g_step + o * TILE + j);
        acc[0][o] += v * z0;
        acc[1][o] += v * z1;
      }
    }
  for (int k = 0; k < 2; ++k)
    if (sums[k])
      store(sums[k], load(sums[k]) + lane_sums<O>(acc[k]));
}

// Samples first, ..., first + TILE of (rows, batch) to (rows, TILE), zeros beyond the batch.
static void take(const float *from, size_t rows, int64_t batch, int64_t first, float *to) {
  int64_t count = std::min<int64_t>(TILE, batch - first);
  for (size_t r = 0; r < rows; ++r, to += TILE) {
    const float *row = from + r * batch + first;
    if (count == TILE) {
      for (int j = 0; j < TILE; j += W)
        store(to + j, load(row + j));
    } else {
      for (int64_t j = 0; j < TILE; ++j)
        to[j] = j < count ? row[j] : 0.0f;
    }
  }
}

static void give(const float *from, size_t rows, int64_t batch, int64_t first, float *to) {
  int64_t count = std::min<int64_t>(TILE, batch - first);
  for (size_t r = 0; r < rows; ++r, from += TILE)
    std::memcpy(to + r * batch + first, from, count * sizeof(float));
}

static void forward(const Plan &plan, const float *x, const float *weight, int64_t batch,
                    int threads, float *out) {
  Products products(plan);
  ByOutput layout(plan, products);
  Scratch packed(layout.size);
  std::memset(packed.get(), 0, layout.size * sizeof(float));
  plan.each_weight([&](size_t n, size_t m, int o, int i, int u, int c, size_t at) {
    packed.get()[layout.at(products, m, o, products.at(plan, n, m, c, i, u))] = weight[at];
  });
  int tiles = (batch + TILE - 1) / TILE, workers = std::max(1, std::min(threads, tiles));
  size_t x_size = static_cast<size_t>(plan.points_in) * plan.dim * TILE;
  size_t y_size = static_cast<size_t>(plan.dim_out + BLOCK) * TILE;
  size_t each = x_size + plan.t_size + y_size;
  Scratch scratch(each * workers);
  share(tiles, workers, [&](int tile, int worker) {
    float *xs = scratch.get() + each * worker, *t = xs + x_size, *y = t + plan.t_size;
    int64_t first = static_cast<int64_t>(tile) * TILE;
    take(x, static_cast<size_t>(plan.points_in) * plan.dim, batch, first, xs);
    for (int at = 0; at < plan.points_out; ++at) {
      int p = plan.order[at];
      respond(plan, xs, p, t);
      for (size_t m = 0; m < plan.outs.size(); ++m) {
        int block = layout.block[m];
        const float *w = packed.get() + layout.starts[m];
        for (int o = 0; o < plan.outs[m]; o += block, w += products.totals[m] * block)
          with_constant<BLOCK>(block, [&](auto O) {
            mix<O.value>(plan, m, t, w, y + static_cast<size_t>(plan.out_starts[m] + o) * TILE);
          });
      }
      give(y, plan.dim_out, batch, first, out + static_cast<size_t>(p) * plan.dim_out * batch);
    }
  });
}

// Everything that the backward pass of one tile needs.
struct Backward {
  const Plan &plan;
  const Products &products;
  std::vector<size_t> sums_starts; // per m, into the sums [block][product][W]
  size_t sums_size = 0;
  std::vector<float> transposed; // [m][n][c][block of products][o][product of the block]
  std::vector<float> ones = std::vector<float>(TILE, 1.0f);

  Backward(const Plan &plan, const Products &products, const float *weight)
      : plan(plan), products(products) {
    std::vector<size_t> starts;
    size_t size = 0;
    for (size_t m = 0; m < plan.outs.size(); ++m) {
      int b = block_size(plan.outs[m]);
      sums_starts.push_back(sums_size);
      sums_size += b ? (plan.outs[m] + b - 1) / b * products.totals[m] * W : 0;
      starts.push_back(size);
      size += products.totals[m] * plan.outs[m];
    }
    transposed.resize(size);
    plan.each_weight([&](size_t n, size_t m, int o, int i, int u, int c, size_t at) {
      int per = Products::per_channel(plan, n, m), b = block_size(per);
      int k = i * (1 + plan.ins[n].factors) + u, width = std::min(b, per - k / b * b);
      size_t channel = starts[m] + products.at(plan, n, m, c, 0, 0) * plan.outs[m];
      transposed[channel + static_cast<size_t>(k / b) * b * plan.outs[m] +
                 static_cast<size_t>(o) * width + k % b] = weight[at];
    });
  }

  size_t sum_at(size_t m, int o, size_t product) const {
    int b = block_size(plan.outs[m]);
    return sums_starts[m] + (o / b * products.totals[m] + product) * W + o % b;
  }

  // Gradient of T at one point from that of the output.
  void to_responses(const float *t, const float *g, float *grad_t, float *grad_z) const {
    std::memset(grad_t, 0, plan.t_size * sizeof(float));
    const float *w = transposed.data();
    for (size_t m = 0; m < plan.outs.size(); ++m) {
      if (plan.outs[m] == 0)
        continue;
      for (size_t n = 0; n < plan.ins.size(); ++n) {
        const Input &in = plan.ins[n];
        int per = Products::per_channel(plan, n, m), block = block_size(per);
        for (int c = 0; c < in.channels; ++c) {
          for (int k = 0; k < per; k += block) {
            int width = std::min(block, per - k);
            with_constant<BLOCK>(width, [&](auto K) {
              unmix<K.value>(plan.outs[m], g + static_cast<size_t>(plan.out_starts[m]) * TILE, w,
                             grad_z + k * TILE);
            });
            w += static_cast<size_t>(width) * plan.outs[m];
          }
          size_t at = in.t + static_cast<size_t>(c) * in.rows * TILE;
          unmultiply(plan.paths[n][m], in.factors, t + at, grad_z, grad_t + at);
        }
      }
    }
  }

  // Gradient of the weights from a group of points, added to the sums.
  void to_weights(int points, const float *t, const float *g, float *sums) const {
    size_t g_step = static_cast<size_t>(plan.dim_out) * TILE;
    for (size_t m = 0; m < plan.outs.size(); ++m) {
      int block = block_size(plan.outs[m]);
      for (int o = 0; o < plan.outs[m]; o += block) {
        const float *g_block = g + static_cast<size_t>(plan.out_starts[m] + o) * TILE;
        float *at = sums + sum_at(m, o, 0);
        with_constant<BLOCK>(std::min(block, plan.outs[m] - o), [&](auto O) {
          for (size_t n = 0; n < plan.ins.size(); ++n) {
            const Input &in = plan.ins[n];
            const Path &path = plan.paths[n][m];
            int per = path.count * (1 + in.factors);
            for (int c = 0; c < in.channels; ++c) {
              const float *rows = t + in.t + static_cast<size_t>(c) * in.rows * TILE;
              for (int k = 0; k < per; k += 2, at += 2 * W) {
                Pair pair;
                for (int s = 0; s < 2; ++s) {
                  int which = std::min(k + s, per - 1), u = which % (1 + in.factors);
                  pair.row[s] = rows + (path.first + which / (1 + in.factors)) * TILE;
                  pair.factor[s] = u ? rows + (u - 1) * TILE : ones.data();
                  pair.step[s] = u ? plan.t_size : 0;
                }
                float *const here[2] = {at, k + 1 < per ? at + W : nullptr};
                weight_gradient<O.value>(points, pair, plan.t_size, g_block, g_step, here);
              }
              at -= per % 2 * W;
            }
          }
        });
      }
    }
  }
};

static void backward(const Plan &plan, const float *grad, const float *x, const float *weight,
                     int64_t batch, int threads, float *grad_x, float *grad_weight) {
  Products products(plan);
  Backward back(plan, products, weight);
  int tiles = (batch + TILE - 1) / TILE, parts = std::min(tiles, PARTIAL_SUMS);
  int workers = std::max(1, std::min(threads, parts));
  Scratch sums(back.sums_size * std::max(parts, 1));
  std::memset(sums.get(), 0, back.sums_size * parts * sizeof(float));
  size_t x_rows = static_cast<size_t>(plan.points_in) * plan.dim, x_size = x_rows * TILE;
  size_t g_size = static_cast<size_t>(plan.dim_out) * TILE, z_size = 0;
  for (size_t n = 0; n < plan.ins.size(); ++n)
    for (size_t m = 0; m < plan.outs.size(); ++m)
      z_size = std::max<size_t>(z_size, Products::per_channel(plan, n, m) * TILE);
  size_t each = (grad_x ? 2 : 1) * x_size + (GROUP + 1) * plan.t_size + GROUP * g_size + z_size;
  Scratch scratch(each * workers);
  share(parts, workers, [&](int part, int worker) {
    float *xs = scratch.get() + each * worker, *t = xs + x_size, *g = t + GROUP * plan.t_size;
    float *grad_t = g + GROUP * g_size, *grad_z = grad_t + plan.t_size, *gx = grad_z + z_size;
    int64_t begin = static_cast<int64_t>(tiles) * part / parts;
    int64_t end = static_cast<int64_t>(tiles) * (part + 1) / parts;
    for (int64_t tile = begin; tile < end; ++tile) {
      int64_t first = tile * TILE;
      take(x, x_rows, batch, first, xs);
      if (grad_x)
        std::memset(gx, 0, x_size * sizeof(float));
      for (int start = 0; start < plan.points_out; start += GROUP) {
        int count = std::min(GROUP, plan.points_out - start);
        for (int k = 0; k < count; ++k) {
          int p = plan.order[start + k];
          respond(plan, xs, p, t + k * plan.t_size);
          take(grad + static_cast<size_t>(p) * plan.dim_out * batch, plan.dim_out, batch, first,
               g + k * g_size);
        }
        back.to_weights(count, t, g, sums.get() + back.sums_size * part);
        for (int k = 0; k < count && grad_x; ++k) {
          back.to_responses(t + k * plan.t_size, g + k * g_size, grad_t, grad_z);
          spread(plan, gx, plan.order[start + k], grad_t);
        }
      }
      if (grad_x)
        give(gx, x_rows, batch, first, grad_x);
    }
  });
  plan.each_weight([&](size_t n, size_t m, int o, int i, int u, int c, size_t at) {
    size_t place = back.sum_at(m, o, products.at(plan, n, m, c, i, u));
    double total = 0;
    for (int part = 0; part < parts; ++part)
      total += sums.get()[back.sums_size * part + place];
    grad_weight[at] = static_cast<float>(total);
  });
}

} // namespace LEVEL

EXPORT(volterra_forward)
(const float *x, const float *weight, const int64_t *sizes, const int32_t *const *index,
 const float *const *entries, int64_t batch, int threads, float *out) {
  return LEVEL::guarded(
      [&] { LEVEL::forward(LEVEL::Plan(sizes, index, entries), x, weight, batch, threads, out); });
}

// grad_x may be null where nobody wants it.
EXPORT(volterra_backward)
(const float *grad, const float *x, const float *weight, const int64_t *sizes,
 const int32_t *const *index, const float *const *entries, int64_t batch, int threads,
 float *grad_x, float *grad_weight) {
  return LEVEL::guarded([&] {
    LEVEL::backward(LEVEL::Plan(sizes, index, entries), grad, x, weight, batch, threads, grad_x,
                    grad_weight);
  });
}
