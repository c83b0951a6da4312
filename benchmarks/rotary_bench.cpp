// The rotation against the limit of the machine: a clone of the same tensor, and a copy into a
// ready one for the form in place.

#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>
#include <posenc/posenc.h>

namespace {

constexpr int64_t kBatch = 32, kHeads = 8, kHeadDim = 64;

at::Tensor input(const benchmark::State& state) {
  return at::randn({kBatch, state.range(0), kHeads, kHeadDim})
      .to(state.range(1) ? at::kBFloat16 : at::kFloat);
}

void report(benchmark::State& state, const at::Tensor& x) {
  state.SetBytesProcessed(state.iterations() * 2 * static_cast<int64_t>(x.nbytes()));
}

void clone(benchmark::State& state) {
  const at::Tensor x = input(state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(x.clone());
  }
  report(state, x);
}

void rotate(benchmark::State& state, bool interleaved) {
  const at::Tensor x = input(state);
  const auto inv_freq = posenc::rope_inv_freq(kHeadDim);
  for (auto _ : state) {
    benchmark::DoNotOptimize(posenc::rotary_embedding(x, inv_freq, {}, 0, 1, interleaved));
  }
  report(state, x);
}

void copy_into_ready(benchmark::State& state) {
  const at::Tensor x = input(state), y = at::empty_like(x);
  for (auto _ : state) {
    y.copy_(x);
  }
  report(state, x);
}

void rotate_in_place(benchmark::State& state) {
  at::Tensor x = input(state);
  const auto inv_freq = posenc::rope_inv_freq(kHeadDim);
  for (auto _ : state) {
    posenc::rotary_embedding_(x, inv_freq);
  }
  report(state, x);
}

void lengths(benchmark::internal::Benchmark* b) {
  b->ArgNames({"length", "bf16"})
      ->ArgsProduct({{128, 512, 2048}, {0, 1}})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK(clone)->Apply(lengths);
BENCHMARK_CAPTURE(rotate, pairs, true)->Apply(lengths);
BENCHMARK_CAPTURE(rotate, halves, false)->Apply(lengths);
BENCHMARK(copy_into_ready)->Apply(lengths);
BENCHMARK(rotate_in_place)->Apply(lengths);

}  // namespace
