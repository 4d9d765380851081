// Vectors, blocks of registers, threads and scratch memory: what all kernels share.
//
// Each source is compiled once per instruction set (build.py); the names that do not have C
// linkage live in a namespace of that instruction set, so that the linker cannot mix them up.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#ifndef LEVEL
#define LEVEL baseline
#endif
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define EXPORT(name) extern "C" int JOIN(name, LEVEL)
#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace LEVEL {

// W: floats in a vector. BLOCK: rows of two vectors that fit in the registers as accumulators.
#if defined(__AVX512F__)
constexpr int W = 16, BLOCK = 12;
#elif defined(__AVX__)
constexpr int W = 8, BLOCK = 6;
#else
constexpr int W = 4, BLOCK = 4;
#endif
constexpr int NV = 2;        // vectors side by side
constexpr int TILE = W * NV; // samples of the batch that are worked on at a time

typedef float vec __attribute__((vector_size(W * 4)));
typedef float loose __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(W * 4)));

static ALWAYS_INLINE vec load(const float *p) { return *reinterpret_cast<const loose *>(p); }
static ALWAYS_INLINE void store(float *p, vec v) { *reinterpret_cast<loose *>(p) = v; }
static ALWAYS_INLINE vec fill(float v) { return vec{} + v; }

// Call f(constant n) for 1 <= n <= MAX, so that loops over n unroll into registers.
template <int MAX, class F> static ALWAYS_INLINE void with_constant(int n, F f) {
  if constexpr (MAX > 0) {
    if (n == MAX)
      f(std::integral_constant<int, MAX>{});
    else
      with_constant<MAX - 1>(n, f);
  }
}

// Sizes of the fewest equal blocks of at most BLOCK that cover n.
static inline int block_size(int n) {
  int blocks = (n + BLOCK - 1) / BLOCK;
  return blocks ? (n + blocks - 1) / blocks : 0;
}

// Sums of the lanes of N <= W vectors, one in each lane of the result: a tree of W - 1 additions.
template <int S> static ALWAYS_INLINE vec merge(vec a, vec b) {
  ivec keep, turn;
  for (int lane = 0; lane < W; ++lane) {
    keep[lane] = lane & S ? W + lane : lane;
    turn[lane] = lane & S ? W + (lane ^ S) : (lane ^ S);
  }
#if defined(__clang__)
  vec x, y;
  for (int lane = 0; lane < W; ++lane) {
    x[lane] = lane & S ? b[lane] : a[lane];
    y[lane] = lane & S ? b[lane ^ S] : a[lane ^ S];
  }
  return x + y;
#else
  return __builtin_shuffle(a, b, keep) + __builtin_shuffle(a, b, turn);
#endif
}

template <int N, int FIRST = 0, int SPAN = W> static ALWAYS_INLINE vec lane_sums(const vec *v) {
  if constexpr (FIRST >= N)
    return vec{};
  else if constexpr (SPAN == 1)
    return v[FIRST];
  else
    return merge<SPAN / 2>(lane_sums<N, FIRST, SPAN / 2>(v),
                           lane_sums<N, FIRST + SPAN / 2, SPAN / 2>(v));
}

// Scratch memory on a cache line, given back at the end of its scope.
class Scratch {
public:
  explicit Scratch(size_t floats)
      : start_(static_cast<float *>(std::aligned_alloc(64, (floats * 4 + 127) / 64 * 64))) {
    if (start_ == nullptr)
      throw std::bad_alloc();
  }
  ~Scratch() { std::free(start_); }
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
  float *get() const { return start_; }

private:
  float *start_;
};

// Run work(task, worker) for all tasks on some threads, fewer where the system gives fewer. Who
// takes which task does not matter to the result as long as tasks write to different places.
template <class F> static void share(int tasks, int threads, F work) {
  std::atomic<int> next{0};
  std::atomic<bool> failed{false};
  auto run = [&](int worker) {
    try {
      for (int task; !failed && (task = next.fetch_add(1)) < tasks;)
        work(task, worker);
    } catch (const std::bad_alloc &) {
      failed = true;
    }
  };
  std::vector<std::thread> others;
  others.reserve(std::max(0, threads));
  try {
    for (int worker = 1; worker < threads && worker < tasks; ++worker)
      others.emplace_back(run, worker);
  } catch (const std::system_error &) { // no more threads
  }
  run(0);
  for (auto &thread : others)
    thread.join();
  if (failed)
    throw std::bad_alloc();
}

// What a kernel returns: 0, or 1 if memory ran out.
template <class F> static int guarded(F work) {
  try {
    work();
  } catch (const std::bad_alloc &) {
    return 1;
  }
  return 0;
}

} // namespace LEVEL
