// The absolute family against the limit of the machine: a clone of the same tensor, and the bare
// lookup for embeddings.

#include <ATen/ops/embedding.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>
#include <posenc/posenc.h>

namespace {

constexpr int64_t kBatch = 32, kWidth = 512, kVocabulary = 10000;

at::Tensor input(const benchmark::State& state) {
  return at::randn({kBatch, state.range(0), kWidth});
}

void report(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * 2 * kBatch * state.range(0) * kWidth * 4);
}

void clone(benchmark::State& state) {
  const at::Tensor x = input(state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(x.clone());
  }
  report(state);
}

void add_sinusoidal(benchmark::State& state) {
  const at::Tensor x = input(state);
  const auto inv_freq = posenc::sinusoidal_inv_freq(kWidth);
  for (auto _ : state) {
    benchmark::DoNotOptimize(posenc::add_sinusoidal(x, inv_freq));
  }
  report(state);
}

void add_learned(benchmark::State& state) {
  const at::Tensor x = input(state), weight = at::randn({state.range(0), kWidth});
  for (auto _ : state) {
    benchmark::DoNotOptimize(posenc::add_positions(x, weight));
  }
  report(state);
}

void lookup(benchmark::State& state) {
  const at::Tensor weight = at::randn({kVocabulary, kWidth});
  const at::Tensor ids = at::randint(kVocabulary, {kBatch, state.range(0)}, at::kLong);
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::embedding(weight, ids));
  }
  report(state);
}

void embed_tokens(benchmark::State& state) {
  const at::Tensor weight = at::randn({kVocabulary, kWidth});
  const at::Tensor ids = at::randint(kVocabulary, {kBatch, state.range(0)}, at::kLong);
  const auto inv_freq = posenc::sinusoidal_inv_freq(kWidth);
  for (auto _ : state) {
    benchmark::DoNotOptimize(posenc::embed_tokens(ids, weight, inv_freq));
  }
  report(state);
}

void lengths(benchmark::internal::Benchmark* b) {
  b->ArgName("length")->Arg(128)->Arg(512)->Arg(2048)->UseRealTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK(clone)->Apply(lengths);
BENCHMARK(add_sinusoidal)->Apply(lengths);
BENCHMARK(add_learned)->Apply(lengths);
BENCHMARK(lookup)->Apply(lengths);
BENCHMARK(embed_tokens)->Apply(lengths);

}  // namespace
