// Operators and modules of posenc on plain tensors: a rotation, its gradient, and attention under
// ALiBi.
#include <posenc/posenc.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  torch::manual_seed(0);
  auto q = torch::randn({2, 100, 8, 64}, torch::requires_grad());  // (B, L, H, D)
  auto rotated = posenc::rotary_embedding(q, posenc::rope_inv_freq(64));
  rotated.pow(2).sum().backward();
  std::cout << "rotated " << rotated.sizes() << ", gradient " << q.grad().sizes() << "\n";

  posenc::nn::ALiBiAttention attention(posenc::nn::ALiBiAttentionOptions(256, 8).is_causal(true));
  std::cout << "attended " << attention(torch::randn({2, 100, 256})).sizes() << "\n";
}
