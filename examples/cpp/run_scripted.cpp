// Continues a text with a model that `posenc train` trained, scripted and saved. No Python at
// run time:
//
//   run_scripted demo_out/alibi_scripted.pt "def "
#include <torch/script.h>

#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: %s MODEL.pt [TEXT]\n", argv[0]);
    return 2;
  }
  try {
    torch::NoGradGuard no_grad;
    auto model = torch::jit::load(argv[1], torch::kCPU);
    model.eval();
    std::string text = argc == 3 ? argv[2] : "def ";
    std::vector<int64_t> bytes;
    for (unsigned char byte : text) {
      bytes.push_back(byte);
    }
    if (bytes.empty()) {
      std::fprintf(stderr, "%s: TEXT must not be empty\n", argv[0]);
      return 2;
    }
    for (int i = 0; i < 100; ++i) {
      auto tokens = torch::tensor(bytes, torch::kInt64).unsqueeze(0);  // (1, L)
      auto logits = model.forward({tokens}).toTensor();                // (1, L, 256)
      bytes.push_back(logits.select(1, -1).argmax(-1).item<int64_t>());
      text.push_back(static_cast<char>(bytes.back()));
    }
    std::printf("%s\n", text.c_str());
  } catch (
      const std::exception& error) {  // a missing or foreign file: torch's first line says which
    std::istringstream lines(error.what());
    std::string reason;
    while (reason.empty() && std::getline(lines, reason)) {
    }
    std::fprintf(stderr, "%s: %s\n", argv[0], reason.c_str());
    return 1;
  }
}
