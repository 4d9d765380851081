// A layer of the kernel network up to its whitening, pool(|x| kappa(Z^T x / |x|)); see nn/ckn.py.
//
// Goes through a volume plane by plane. A plane has zeros around it and is seen as one long row,
// so that the neighbours of a voxel stand at fixed distances and the lanes of a vector are voxels
// one after the other; what is computed for the margins is thrown away. The last `size` planes of
// the input are held, the encoded plane is pooled as soon as it is there: nothing but the input
// and the output has the size of a volume. The backward pass does the same with the gradient.
//
// Sums over voxels are taken plane by plane and added up in a fixed order, whatever the threads.

#include "simd.h"

#include <cmath>

namespace LEVEL {

constexpr int OUT = 4;                     // channels made at a time
constexpr int CHUNK = BLOCK == 12 ? 4 : 2; // vectors side by side in a convolution
constexpr int TAPS = BLOCK == 12 ? 6 : 2;  // taps of the gradient of the filters at a time
constexpr float TINY = 1e-12f;             // _TINY of nn/ckn.py

struct Layer {
  int n, in, out, X, Y, Z, size, half, stride, linear, degree;
  float offset;
  int Xs, Ys, Zs;      // after the pooling
  int row, begin, end; // of a plane with its margins
  size_t plane;        // floats of a plane in memory
  std::vector<float> window;

  Layer(const int64_t *sizes, float kappa_offset)
      : n(sizes[0]), in(sizes[1]), out(sizes[2]), X(sizes[3]), Y(sizes[4]), Z(sizes[5]),
        size(sizes[6]), half(sizes[6] / 2), stride(sizes[7]), linear(sizes[8]), degree(sizes[9]),
        offset(kappa_offset) {
    Xs = (X + stride - 1) / stride;
    Ys = (Y + stride - 1) / stride;
    Zs = (Z + stride - 1) / stride;
    row = Z + 2 * half;
    begin = half * row + half;
    end = (Y + half - 1) * row + half + Z;
    plane = (static_cast<size_t>(Y + 2 * half) * row + 2 * CHUNK * W + W - 1) / W * W;
    double total = 0;
    std::vector<double> weights;
    for (int k = -stride; k <= stride; ++k)
      weights.push_back(std::exp(-static_cast<double>(k * k) / (stride * stride)));
    for (double w : weights)
      total += w;
    for (double w : weights)
      window.push_back(static_cast<float>(w / total));
  }
  int taps() const { return size * size * size; }
  int blocks(int channels) const { return (channels + OUT - 1) / OUT; }
};

// Filters as [block of outputs][input][tap][OUT]; turned around for the gradient of the input.
static std::vector<float> pack(const Layer &layer, const float *filters, bool transposed) {
  int in = transposed ? layer.out : layer.in, out = transposed ? layer.in : layer.out;
  int taps = layer.taps();
  std::vector<float> packed(static_cast<size_t>(layer.blocks(out)) * in * taps * OUT, 0.0f);
  for (int o = 0; o < out; ++o)
    for (int i = 0; i < in; ++i)
      for (int tap = 0; tap < taps; ++tap) {
        size_t from = transposed ? (static_cast<size_t>(i) * out + o) * taps + taps - 1 - tap
                                 : (static_cast<size_t>(o) * in + i) * taps + tap;
        packed[((static_cast<size_t>(o / OUT) * in + i) * taps + tap) * OUT + o % OUT] =
            filters[from];
      }
  return packed;
}

// The last planes of a few channels: plane x of channel c is at [x mod depth][c].
class Ring {
public:
  Ring(int depth, int channels, size_t plane)
      : depth_(depth), channels_(channels), plane_(plane),
        memory_(static_cast<size_t>(depth) * channels * plane) {
    std::memset(memory_.get(), 0, static_cast<size_t>(depth) * channels * plane * sizeof(float));
  }
  float *at(int x, int channel) const {
    int slot = (x % depth_ + depth_) % depth_;
    return memory_.get() + (static_cast<size_t>(slot) * channels_ + channel) * plane_;
  }

private:
  int depth_, channels_;
  size_t plane_;
  Scratch memory_;
};

static void clear_margins(const Layer &layer, float *plane) {
  for (int y = 0; y < layer.Y - 1; ++y)
    std::memset(plane + layer.begin + y * layer.row + layer.Z, 0, 2 * layer.half * sizeof(float));
  std::memset(plane + layer.end, 0, CHUNK * W * sizeof(float));
}

// Correlate `in` channels of a ring, planes x - half ... x + half, with packed filters.
static void correlate(const Layer &layer, const Ring &ring, int x, int in, int out,
                      const float *packed, float *result) {
  int size = layer.size, half = layer.half;
  for (int block = 0; block < layer.blocks(out); ++block) {
    const float *filters = packed + static_cast<size_t>(block) * in * layer.taps() * OUT;
    for (int at = layer.begin; at < layer.end; at += CHUNK * W) {
      vec acc[OUT][CHUNK] = {};
      const float *w = filters;
      for (int i = 0; i < in; ++i)
        for (int dx = -half; dx <= half; ++dx) {
          const float *plane = ring.at(x + dx, i) + at - layer.begin;
          for (int dy = 0; dy < size; ++dy)
            for (int dz = 0; dz < size; ++dz, w += OUT) {
              const float *from = plane + dy * layer.row + dz;
              vec v[CHUNK];
              for (int j = 0; j < CHUNK; ++j)
                v[j] = load(from + j * W);
              for (int o = 0; o < OUT; ++o)
                for (int j = 0; j < CHUNK; ++j)
                  acc[o][j] += v[j] * w[o];
            }
        }
      for (int o = 0; o < OUT && block * OUT + o < out; ++o)
        for (int j = 0; j < CHUNK; ++j)
          store(result + (block * OUT + o) * layer.plane + at + j * W, acc[o][j]);
    }
  }
}

// Sum over the patch around every voxel of plane x of a ring of one channel.
static void box_sum(const Layer &layer, const Ring &ring, int x, float *columns, float *result) {
  for (size_t at = 0; at < layer.plane; at += W) {
    vec sum = {};
    for (int dx = -layer.half; dx <= layer.half; ++dx)
      sum += load(ring.at(x + dx, 0) + at);
    store(columns + at, sum);
  }
  for (int at = layer.begin; at < layer.end; at += W) {
    vec sum = {};
    for (int dy = 0; dy < layer.size; ++dy)
      for (int dz = 0; dz < layer.size; ++dz)
        sum += load(columns + at - layer.begin + dy * layer.row + dz);
    store(result + at, sum);
  }
}

static ALWAYS_INLINE vec root(vec v) {
  vec r;
  for (int lane = 0; lane < W; ++lane)
    r[lane] = std::sqrt(v[lane]);
  return r;
}

// kappa(t) and its derivative: (offset + t)^degree.
static ALWAYS_INLINE void kappa(const Layer &layer, vec t, vec &value, vec &slope) {
  vec base = t + layer.offset, power = fill(1.0f);
  for (int k = 1; k < layer.degree; ++k)
    power *= base;
  value = power * base;
  slope = power * static_cast<float>(layer.degree);
}

// Planes of the input, of its squares, the dot products and the norms at one plane after the
// other.
class Window {
public:
  Window(const Layer &layer, const float *volume, const float *packed)
      : layer_(layer), volume_(volume), packed_(packed),
        inputs(layer.size + 1, layer.in, layer.plane), squares_(layer.size + 1, 1, layer.plane),
        work_(2 * layer.plane + layer.out * layer.plane), next_(0) {
    std::memset(work_.get(), 0, (2 + layer.out) * layer.plane * sizeof(float));
  }
  float *dots() const { return work_.get() + 2 * layer_.plane; } // [channel][plane]
  float *norms() const { return work_.get(); }

  // Compute plane x; to be called for increasing x, the first one given to `start`.
  void start(int x) { next_ = x - layer_.half; }
  void go_to(int x) {
    for (; next_ <= x + layer_.half; ++next_)
      read(next_);
    correlate(layer_, inputs, x, layer_.in, layer_.out, packed_, dots());
    if (layer_.linear)
      return;
    box_sum(layer_, squares_, x, work_.get() + layer_.plane, norms());
    for (int at = layer_.begin; at < layer_.end; at += W)
      store(norms() + at, root(load(norms() + at) + TINY));
  }

private:
  const Layer &layer_;
  const float *volume_, *packed_;

public:
  Ring inputs;

private:
  Ring squares_;
  Scratch work_;
  int next_;

  void read(int x) {
    bool inside = 0 <= x && x < layer_.X;
    float *squares = squares_.at(x, 0);
    std::memset(squares, 0, layer_.plane * sizeof(float));
    for (int c = 0; c < layer_.in; ++c) {
      float *plane = inputs.at(x, c);
      if (!inside) {
        std::memset(plane, 0, layer_.plane * sizeof(float));
        continue;
      }
      const float *from = volume_ + (static_cast<size_t>(c) * layer_.X + x) * layer_.Y * layer_.Z;
      for (int y = 0; y < layer_.Y; ++y)
        std::memcpy(plane + layer_.begin + y * layer_.row,
                    from + static_cast<size_t>(y) * layer_.Z, layer_.Z * sizeof(float));
      if (!layer_.linear)
        for (size_t at = 0; at < layer_.plane; at += W) {
          vec v = load(plane + at);
          store(squares + at, load(squares + at) + v * v);
        }
    }
  }
};

// Pool a plane along y and z and add it to the coarse planes first ... last - 1 that see plane x.
static void pool_plane(const Layer &layer, const float *encoded, int x, int first, int last,
                       float *line, float *out) {
  int s = layer.stride;
  const float *w = layer.window.data();
  float *wide = line + s, *smooth = wide + layer.Z + s, *coarse = smooth + layer.Z;
  for (int o = 0; o < layer.out; ++o)
    for (int Y = 0; Y < layer.Ys; ++Y) {
      if (s == 1) {
        std::memcpy(out + ((static_cast<size_t>(o) * layer.X + x) * layer.Y + Y) * layer.Z,
                    encoded + o * layer.plane + layer.begin + Y * layer.row,
                    layer.Z * sizeof(float));
        continue;
      }
      std::memset(wide, 0, layer.Z * sizeof(float));
      for (int y = std::max(0, s * Y - s); y <= std::min(layer.Y - 1, s * Y + s); ++y) {
        const float *from = encoded + o * layer.plane + layer.begin + y * layer.row;
        float weight = w[y - s * Y + s];
        for (int z = 0; z < layer.Z; ++z)
          wide[z] += weight * from[z];
      }
      std::memset(smooth, 0, layer.Z * sizeof(float));
      for (int k = -s; k <= s; ++k)
        for (int z = 0; z < layer.Z; ++z)
          smooth[z] += w[k + s] * wide[z + k];
      for (int z = 0; z < layer.Zs; ++z)
        coarse[z] = smooth[s * z];
      for (int X = std::max(first, (x - 1) / s); X < last && s * X - s <= x; ++X) {
        float weight = w[x - s * X + s];
        float *to = out + ((static_cast<size_t>(o) * layer.Xs + X) * layer.Ys + Y) * layer.Zs;
        for (int z = 0; z < layer.Zs; ++z)
          to[z] += weight * coarse[z];
      }
    }
}

// The transpose: gradient at plane x, margins zero, from that of the coarse volume.
static void unpool_plane(const Layer &layer, const float *grad, int x, float *line, float *coarse,
                         float *result) {
  int s = layer.stride;
  const float *w = layer.window.data();
  float *stuffed = line + s;
  size_t size = static_cast<size_t>(layer.Ys) * layer.Zs;
  for (int o = 0; o < layer.out; ++o) {
    float *to = result + o * layer.plane;
    const float *from = grad + static_cast<size_t>(o) * layer.Xs * size;
    if (s == 1) {
      for (int y = 0; y < layer.Y; ++y)
        std::memcpy(to + layer.begin + y * layer.row,
                    from + x * size + static_cast<size_t>(y) * layer.Z, layer.Z * sizeof(float));
      continue;
    }
    std::memset(coarse, 0, size * sizeof(float));
    for (int X = (x - 1) / s; X < layer.Xs && s * X - s <= x; ++X) {
      float weight = w[x - s * X + s];
      for (size_t at = 0; at < size; ++at)
        coarse[at] += weight * from[X * size + at];
    }
    for (int y = 0; y < layer.Y; ++y) {
      float *smooth = to + layer.begin + y * layer.row, *short_row = line + layer.Z + 2 * s;
      std::memset(short_row, 0, layer.Zs * sizeof(float));
      for (int Y = (y - 1) / s; Y < layer.Ys && s * Y - s <= y; ++Y) {
        float weight = w[y - s * Y + s];
        for (int z = 0; z < layer.Zs; ++z)
          short_row[z] += weight * coarse[static_cast<size_t>(Y) * layer.Zs + z];
      }
      for (int z = 0; z < layer.Zs; ++z)
        stuffed[s * z] = short_row[z];
      std::memset(smooth, 0, layer.Z * sizeof(float));
      for (int k = -s; k <= s; ++k)
        for (int z = 0; z < layer.Z; ++z)
          smooth[z] += w[s + k] * stuffed[z + k];
    }
  }
}

// Gradient of the filters from one plane: sums over voxels of gradient times input,
// [out][in][tap].
template <int N>
static ALWAYS_INLINE void filter_taps(const Layer &layer, const float *const *g, int outs,
                                      const float *const *from, float *sums, size_t step) {
  vec acc[OUT][N] = {};
  for (int at = layer.begin; at < layer.end; at += W) {
    vec v[N];
    for (int k = 0; k < N; ++k)
      v[k] = load(from[k] + at);
    for (int o = 0; o < OUT; ++o) {
      vec grad = load(g[o] + at);
      for (int k = 0; k < N; ++k)
        acc[o][k] += grad * v[k];
    }
  }
  for (int o = 0; o < outs; ++o)
    for (int k = 0; k < N; ++k) {
      float total = 0;
      for (int lane = 0; lane < W; ++lane)
        total += acc[o][k][lane];
      sums[o * step + k] = total;
    }
}

static void filter_gradient(const Layer &layer, const Ring &grads, const Ring &inputs, int x,
                            float *sums) {
  size_t step = static_cast<size_t>(layer.in) * layer.taps();
  std::vector<const float *> from;
  for (int i = 0; i < layer.in; ++i)
    for (int dx = -layer.half; dx <= layer.half; ++dx)
      for (int dy = -layer.half; dy <= layer.half; ++dy)
        for (int dz = -layer.half; dz <= layer.half; ++dz)
          from.push_back(inputs.at(x + dx, i) + dy * layer.row + dz);
  for (int first = 0; first < layer.out; first += OUT) {
    int outs = std::min(OUT, layer.out - first);
    const float *g[OUT];
    for (int o = 0; o < OUT; ++o)
      g[o] = grads.at(x, first + std::min(o, outs - 1));
    for (size_t tap = 0; tap < from.size(); tap += TAPS)
      with_constant<TAPS>(std::min<int>(TAPS, from.size() - tap), [&](auto N) {
        filter_taps<N.value>(layer, g, outs, from.data() + tap, sums + first * step + tap, step);
      });
  }
}

// Parts of a volume: with fewer volumes than threads each is cut along x.
static int parts_of(const Layer &layer, int length, int threads) {
  return std::max(1, std::min((threads + layer.n - 1) / std::max(layer.n, 1), length));
}

static void encode(const Layer &layer, const float *x, const float *filters, int threads,
                   float *out) {
  std::vector<float> packed = pack(layer, filters, false);
  int parts = parts_of(layer, layer.Xs, threads), s = layer.stride, reach = s == 1 ? 0 : s;
  size_t in_size = static_cast<size_t>(layer.in) * layer.X * layer.Y * layer.Z;
  size_t out_size = static_cast<size_t>(layer.Xs) * layer.Ys * layer.Zs;
  share(layer.n * parts, threads, [&](int task, int) {
    int volume = task / parts, part = task % parts;
    int first = layer.Xs * part / parts, last = layer.Xs * (part + 1) / parts;
    float *to = out + volume * layer.out * out_size;
    for (int o = 0; o < layer.out; ++o)
      std::memset(to + o * out_size + static_cast<size_t>(first) * layer.Ys * layer.Zs, 0,
                  static_cast<size_t>(last - first) * layer.Ys * layer.Zs * sizeof(float));
    std::vector<float> line(3 * layer.Z + 2 * s + W, 0.0f);
    Window window(layer, x + volume * in_size, packed.data());
    int begin = std::max(0, s * first - reach),
        end = std::min(layer.X - 1, s * (last - 1) + reach);
    window.start(begin);
    for (int plane = begin; plane <= end; ++plane) {
      window.go_to(plane);
      for (int o = 0; o < layer.out && !layer.linear; ++o) {
        float *encoded = window.dots() + o * layer.plane;
        for (int at = layer.begin; at < layer.end; at += W) {
          vec norm = load(window.norms() + at), value, slope;
          kappa(layer, load(encoded + at) / norm, value, slope);
          store(encoded + at, norm * value);
        }
      }
      pool_plane(layer, window.dots(), plane, first, last, line.data(), to);
    }
  });
}

// Gradients of the dot products and of half the squared norm at one plane.
static void unkappa(const Layer &layer, const Window &window, float *grads, float *halves) {
  const float *dots = window.dots();
  for (int at = layer.begin; at < layer.end; at += W) {
    vec norm = load(window.norms() + at), inverse = 1.0f / norm, sum = {};
    for (int o = 0; o < layer.out; ++o) {
      float *grad = grads + o * layer.plane + at;
      vec t = load(dots + o * layer.plane + at) * inverse, value, slope, g = load(grad);
      kappa(layer, t, value, slope);
      sum += g * (value - t * slope);
      store(grad, g * slope);
    }
    store(halves + at, sum * inverse);
  }
}

static void encode_backward(const Layer &layer, const float *grad, const float *x,
                            const float *filters, int threads, float *grad_x,
                            float *grad_filters) {
  std::vector<float> packed = pack(layer, filters, false), turned = pack(layer, filters, true);
  int parts = parts_of(layer, layer.X, threads), s = layer.stride;
  size_t in_size = static_cast<size_t>(layer.in) * layer.X * layer.Y * layer.Z;
  size_t out_size = static_cast<size_t>(layer.out) * layer.Xs * layer.Ys * layer.Zs;
  size_t count = static_cast<size_t>(layer.out) * layer.in * layer.taps();
  std::vector<float> sums(count * layer.n * layer.X);
  int reach = grad_x ? layer.half : 0;
  share(layer.n * parts, threads, [&](int task, int) {
    int volume = task / parts, part = task % parts;
    int first = layer.X * part / parts, last = layer.X * (part + 1) / parts;
    Window window(layer, x + volume * in_size, packed.data());
    // Planes of the gradients wait until their neighbours are there.
    Ring grads(layer.size, layer.out, layer.plane), halves(layer.size, 1, layer.plane);
    Scratch work((2 + layer.in) * layer.plane);
    float *columns = work.get(), *boxes = columns + layer.plane, *result = boxes + layer.plane;
    std::vector<float> line(3 * layer.Z + 4 * s + W, 0.0f);
    std::vector<float> coarse(static_cast<size_t>(layer.Ys) * layer.Zs);
    window.start(std::max(0, first - reach));
    for (int plane = first - reach; plane < last + reach; ++plane) {
      float *g = grads.at(plane, 0);
      if (plane < 0 || plane >= layer.X) {
        std::memset(g, 0, layer.out * layer.plane * sizeof(float));
        std::memset(halves.at(plane, 0), 0, layer.plane * sizeof(float));
      } else {
        window.go_to(plane);
        unpool_plane(layer, grad + volume * out_size, plane, line.data(), coarse.data(), g);
        if (!layer.linear) {
          unkappa(layer, window, g, halves.at(plane, 0));
          clear_margins(layer, halves.at(plane, 0));
        }
        for (int o = 0; o < layer.out; ++o)
          clear_margins(layer, g + o * layer.plane);
        if (first <= plane && plane < last)
          filter_gradient(layer, grads, window.inputs, plane,
                          sums.data() + (static_cast<size_t>(volume) * layer.X + plane) * count);
      }
      int ready = plane - reach;
      if (!grad_x || ready < first || ready >= last)
        continue;
      correlate(layer, grads, ready, layer.out, layer.in, turned.data(), result);
      if (!layer.linear)
        box_sum(layer, halves, ready, columns, boxes);
      for (int c = 0; c < layer.in; ++c) {
        float *to = grad_x + volume * in_size +
                    (static_cast<size_t>(c) * layer.X + ready) * layer.Y * layer.Z;
        const float *own = window.inputs.at(ready, c);
        for (int y = 0; y < layer.Y; ++y)
          for (int z = 0; z < layer.Z; ++z) {
            size_t at = layer.begin + static_cast<size_t>(y) * layer.row + z;
            float norm_part = layer.linear ? 0.0f : own[at] * boxes[at];
            to[static_cast<size_t>(y) * layer.Z + z] = result[c * layer.plane + at] + norm_part;
          }
      }
    }
  });
  for (size_t k = 0; k < count; ++k) {
    double total = 0;
    for (size_t plane = 0; plane < static_cast<size_t>(layer.n) * layer.X; ++plane)
      total += sums[plane * count + k];
    grad_filters[k] = static_cast<float>(total);
  }
}

} // namespace LEVEL

EXPORT(encode)
(const float *x, const float *filters, const int64_t *sizes, float offset, int threads,
 float *out) {
  return LEVEL::guarded(
      [&] { LEVEL::encode(LEVEL::Layer(sizes, offset), x, filters, threads, out); });
}

// grad_x may be null where nobody wants it.
EXPORT(encode_backward)
(const float *grad, const float *x, const float *filters, const int64_t *sizes, float offset,
 int threads, float *grad_x, float *grad_filters) {
  return LEVEL::guarded([&] {
    LEVEL::encode_backward(LEVEL::Layer(sizes, offset), grad, x, filters, threads, grad_x,
                           grad_filters);
  });
}
