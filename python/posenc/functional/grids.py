"""RoPE with more than one position axis: which axis a frequency reads, and positions in grids."""

import torch


def rope_axes(arrangement: str, sections: list[int], n: int | None = None) -> list[int]:
    """Which position axis each frequency of RoPE reads: the ``axes`` of `rotary_embedding`.

    Args:
        arrangement: (axis 0 is time t, 1 height h, 2 width w)

            - ``"contiguous"``: the first section's frequencies read axis 0, the next ones axis 1,
              ... for any number of axes. Qwen2-VL and Qwen2.5-VL [16, 24, 24], GLM-4.1V
              [8, 12, 12], XD-RoPE of HunYuan-VL.
            - ``"interleaved"``: sections (t, h, w); h where ``i % 3 == 1`` and ``i < 3 n_h``, w
              where ``i % 3 == 2`` and ``i < 3 n_w``, else t. Qwen3-VL [24, 20, 20], Qwen3.5
              [11, 11, 10].
            - ``"alternating"``: the axes in turn. NeoMME (rows, columns).
            - ``"alternating_hwt"``: sections (h, w, t); h and w in turn, then t. ERNIE-4.5-VL
              [22, 22, 20].
            - ``"alternating_thw"``: the same axes from sections (t, h, w). VideoRoPE [16, 24, 24].
        sections: frequencies of each axis.
        n: number of frequencies, checked against the sum where given.

    Returns:
        one axis for each frequency.

    Raises:
        ValueError: an unknown arrangement, or sections that it has no rule for or whose sum is
            not n.

    Sources: Qwen2-VL, arXiv:2409.12191; Qwen3-VL, arXiv:2511.21631; VideoRoPE, arXiv:2502.05173.
    """
    return torch.ops.posenc.rope_axes(arrangement, sections, n)


def mrope_axes(sections: list[int], interleaved: bool = False, n: int | None = None) -> list[int]:
    """`rope_axes` of a configuration's ``mrope_section`` and ``mrope_interleaved``.

    Args:
        sections: frequencies that read time, height and width (or any number of axes).
        interleaved: the ``"interleaved"`` arrangement in place of ``"contiguous"``.
        n: number of frequencies, checked against the sum where given.
    """
    return torch.ops.posenc.rope_axes("interleaved" if interleaved else "contiguous", sections, n)


# They make lists of integers out of constants; torch.compile calls them while it traces.
rope_axes._dynamo_marked_constant = True
mrope_axes._dynamo_marked_constant = True
