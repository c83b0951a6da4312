// ALiBi attention against torch's causal attention without any bias; visited / total is the share
// of blocks that skipping leaves.

#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <benchmark/benchmark.h>
#include <posenc/posenc.h>

namespace {

constexpr int64_t kHeads = 8, kHeadDim = 64;

struct Inputs {
  at::Tensor q, k, v;
  std::vector<double> slopes = posenc::alibi_slopes(kHeads);

  explicit Inputs(const benchmark::State& state, bool train = false) {
    const auto make = [&] {
      return at::randn({1, kHeads, state.range(0), kHeadDim}).set_requires_grad(train);
    };
    q = make();
    k = make();
    v = make();
  }
};

void sdpa(benchmark::State& state) {
  const Inputs in(state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::scaled_dot_product_attention(in.q, in.k, in.v, {}, 0.0, true));
  }
}

void alibi(benchmark::State& state) {
  const Inputs in(state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(posenc::alibi_attention(in.q, in.k, in.v, in.slopes, {}, true));
  }
  const at::Tensor blocks = posenc::alibi_attention_blocks(in.q, in.k, in.v, in.slopes, {}, true);
  const auto* count = blocks.const_data_ptr<int64_t>();
  state.counters["visited"] = static_cast<double>(count[0]) / static_cast<double>(count[1]);
}

void sdpa_training(benchmark::State& state) {
  const Inputs in(state, true);
  for (auto _ : state) {
    at::scaled_dot_product_attention(in.q, in.k, in.v, {}, 0.0, true).sum().backward();
  }
}

void alibi_training(benchmark::State& state) {
  const Inputs in(state, true);
  for (auto _ : state) {
    std::get<0>(posenc::alibi_attention(in.q, in.k, in.v, in.slopes, {}, true)).sum().backward();
  }
}

void lengths(benchmark::internal::Benchmark* b) {
  b->ArgName("length")->Arg(1024)->Arg(4096)->Arg(8192)->UseRealTime()->Unit(
      benchmark::kMillisecond);
}

BENCHMARK(sdpa)->Apply(lengths);
BENCHMARK(alibi)->Apply(lengths);
BENCHMARK(sdpa_training)->Apply(lengths);
BENCHMARK(alibi_training)->Apply(lengths);

}  // namespace
