#pragma once

/// \file
/// Everything public of posenc, the positional encodings of the Transformer for LibTorch.

#include <posenc/absolute/embedding.h>
#include <posenc/absolute/embedding_module.h>
#include <posenc/absolute/frequencies.h>
#include <posenc/absolute/learned.h>
#include <posenc/absolute/learned_module.h>
#include <posenc/absolute/sinusoidal.h>
#include <posenc/absolute/sinusoidal_module.h>
#include <posenc/attention/alibi_attention.h>
#include <posenc/attention/alibi_attention_module.h>
#include <posenc/attention/kv_cache.h>
#include <posenc/attention/rope_attention_module.h>
#include <posenc/bias/alibi.h>
#include <posenc/core/positions.h>
#include <posenc/rotary/axes.h>
#include <posenc/rotary/axial.h>
#include <posenc/rotary/axial_module.h>
#include <posenc/rotary/grid_positions.h>
#include <posenc/rotary/learned_rotary.h>
#include <posenc/rotary/learned_rotary_module.h>
#include <posenc/rotary/query_temperature.h>
#include <posenc/rotary/query_temperature_module.h>
#include <posenc/rotary/rotary.h>
#include <posenc/rotary/rotary_cache.h>
#include <posenc/rotary/rotary_module.h>
#include <posenc/rotary/rotary_qk.h>
#include <posenc/rotary/rotary_qkv.h>
#include <posenc/rotary/rotary_weights.h>
#include <posenc/rotary/xpos.h>
#include <posenc/rotary/xpos_module.h>
