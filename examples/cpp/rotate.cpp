// The README's program: a rotation with its gradient, and attention under ALiBi.
#include <posenc/posenc.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto q = torch::randn({2, 100, 8, 64}, torch::requires_grad());  // (B, L, H, D)
  posenc::rotary_embedding(q, posenc::rope_inv_freq(64)).pow(2).sum().backward();
  posenc::nn::ALiBiAttention attention(posenc::nn::ALiBiAttentionOptions(256, 8).is_causal(true));
  std::cout << q.grad().sizes() << " " << attention(torch::randn({2, 100, 256})).sizes() << "\n";
}
