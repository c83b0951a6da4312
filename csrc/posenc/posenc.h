#pragma once

/// \file
/// Everything public of posenc, the positional encodings of the Transformer for LibTorch.

#include <posenc/core/positions.h>
#include <posenc/rotary/rotary.h>
#include <posenc/rotary/rotary_module.h>
