"""RoPE with several position axes: what a frequency reads, and where tokens of grids stand."""

import math

import numpy as np

from reference.positions import split_axes
from reference.rotary import pair


def rope_axes(arrangement, sections):
    """The axis of each frequency; 0 is time, 1 height, 2 width."""
    axes = []
    if arrangement == "contiguous":
        for axis, count in enumerate(sections):
            axes += [axis] * count
    elif arrangement == "interleaved":
        _, height, width = sections
        for i in range(sum(sections)):
            if i % 3 == 1 and i < 3 * height:
                axes.append(1)
            elif i % 3 == 2 and i < 3 * width:
                axes.append(2)
            else:
                axes.append(0)
    elif arrangement == "alternating":
        axes = [i % len(sections) for i in range(sum(sections))]
    else:
        order = {"alternating_hwt": (1, 2, 0), "alternating_thw": (0, 1, 2)}[arrangement]
        counts = dict(zip(order, sections, strict=True))
        for _ in range(counts[1]):
            axes += [1, 2]
        axes += [0] * counts[0]
    return axes


def axial_turns(arrangement, head_dim, base=10000.0):
    """(low channel, high channel, axis, frequency) of each pair that turns; axes h, w or t, h, w.

    Written channel by channel from the models' descriptions, not from lists of frequencies.
    """
    half, quarter = head_dim // 2, head_dim // 4
    turns = []

    def f(j, width):
        return base ** (-2 * j / width)

    if arrangement == "half_thw":
        per_axis = head_dim // 3 // 2
        for axis in range(3):
            for j in range(per_axis):
                low = axis * per_axis + j
                turns.append((low, low + 3 * per_axis, axis, f(j, 2 * per_axis)))
        return turns
    for i in range(half):
        first = i < quarter
        j = i if first else i - quarter
        if arrangement in ("half_hw", "half_wh"):
            axis = int(not first) if arrangement == "half_hw" else int(first)
            turns.append((i, i + half, axis, f(j, half)))
        elif arrangement == "half_alternating_wh":
            turns.append((i, i + half, 1 if i % 2 == 0 else 0, f(i // 2, half)))
        elif arrangement == "half_parity_hw":
            member = 2 * j if first else 2 * j + 1
            turns.append((i, i + half, member % 2, f(member, head_dim)))
        elif arrangement in ("pairs_hw", "pairs_wh"):
            axis = int(not first) if arrangement == "pairs_hw" else int(first)
            turns.append((2 * i, 2 * i + 1, axis, f(j, half)))
        else:
            assert arrangement == "blocks_wh"
            start = 0 if first else half
            turns.append((start + j, start + j + quarter, int(first), f(j, half)))
    return turns


def turn(vector, low, high, angle):
    """One pair of a vector, in place."""
    a, z = vector[low], vector[high]
    vector[low] = a * math.cos(angle) - z * math.sin(angle)
    vector[high] = z * math.cos(angle) + a * math.sin(angle)


def middle_rows(x, position_ids, seq_dim, n_prefix, n_suffix):
    """(index, head, positions of all axes) of each vector that has positions."""
    batch, time, heads = split_axes(x.shape, seq_dim)
    for index in np.ndindex(*x.shape[:-1]):
        place = index[time] - n_prefix
        if 0 <= place < x.shape[time] - n_prefix - n_suffix:
            ids = np.asarray(position_ids, dtype=np.float64)
            if ids.ndim == 3:
                ids = ids[:, index[batch] if ids.shape[1] > 1 else 0]
            yield index, index[heads[0]] if heads else 0, ids[:, place]


def axial_rotary_embedding(
    x,
    inv_freq,
    axes,
    position_ids,
    offset=0,
    seq_dim=1,
    interleaved=False,
    blocks=1,
    n_prefix=0,
    n_suffix=0,
    inverse=False,
):
    out = x.astype(np.float64).copy()
    n = len(inv_freq) // blocks
    for index, _, positions in middle_rows(x, position_ids, seq_dim, n_prefix, n_suffix):
        for i, (frequency, axis) in enumerate(zip(inv_freq, axes, strict=True)):
            low, high = pair(i % n, n, interleaved, 2 * n * (i // n))
            angle = (positions[axis] + offset) * frequency
            turn(out[index], low, high, -angle if inverse else angle)
    return out


def mixed_rotary_embedding(
    x,
    freqs,
    position_ids,
    offset=0,
    seq_dim=1,
    interleaved=True,
    n_prefix=0,
    n_suffix=0,
    inverse=False,
):
    out = x.astype(np.float64).copy()
    n = freqs.shape[-1]
    for index, head, positions in middle_rows(x, position_ids, seq_dim, n_prefix, n_suffix):
        for i in range(n):
            angle = 0.0
            for axis in range(freqs.shape[0]):
                frequency = freqs[axis, head, i] if freqs.ndim == 3 else freqs[axis, i]
                angle += (positions[axis] + offset) * float(frequency)
            low, high = pair(i, n, interleaved, 0)
            turn(out[index], low, high, -angle if inverse else angle)
    return out


def vision_position_ids(grid_thw, spatial_merge_size=1, include_time=False):
    """Rows and columns of patches in blocks of m x m, for one image after the other."""
    m, tokens = spatial_merge_size, []
    for t, h, w in np.asarray(grid_thw).reshape(-1, 3).tolist():
        for frame in range(t):
            for block_row in range(h // m):
                for block_column in range(w // m):
                    for row in range(m):
                        for column in range(m):
                            place = (block_row * m + row, block_column * m + column)
                            tokens.append((frame, *place) if include_time else place)
    return np.array(tokens, dtype=np.int64).reshape(-1, 3 if include_time else 2).T


def mrope_position_ids(
    token_types,
    image_grid_thw=None,
    video_grid_thw=None,
    attention_mask=None,
    spatial_merge_size=2,
    temporal_merge_size=1,
    tokens_per_second=1.0,
    second_per_grid_ts=None,
    split_video_frames=False,
):
    """Text counts up; a grid begins at the count, which goes on past its largest position."""
    types = np.asarray(token_types)
    ids, deltas = np.zeros((3, *types.shape), dtype=np.int64), []
    m = spatial_merge_size
    images = [
        (t, h // m, w // m, 1.0) for t, h, w in ([] if image_grid_thw is None else image_grid_thw)
    ]
    videos = []
    for i, (t, h, w) in enumerate([] if video_grid_thw is None else video_grid_thw):
        t //= temporal_merge_size
        second = 1.0 if second_per_grid_ts is None else second_per_grid_ts[i]
        interval = tokens_per_second * second
        videos += (
            [(1, h // m, w // m, 0.0)] * t
            if split_video_frames
            else [(t, h // m, w // m, interval)]
        )
    for row, kinds in enumerate(types):
        keep = [i for i in range(len(kinds)) if attention_mask is None or attention_mask[row][i]]
        count, at = 0, 0
        while at < len(keep):
            if kinds[keep[at]] == 0:
                ids[:, row, keep[at]] = count
                count, at = count + 1, at + 1
                continue
            t, h, w, interval = (images if kinds[keep[at]] == 1 else videos).pop(0)
            largest = 0
            for frame in range(t):
                for y in range(h):
                    for z in range(w):
                        place = (math.floor(np.float32(frame) * np.float32(interval)), y, z)
                        ids[:, row, keep[at]] = [count + p for p in place]
                        largest, at = max(largest, *place), at + 1
            count += largest + 1
        deltas.append(count - len(keep))
    return ids, np.array(deltas, dtype=np.int64)


def grid_coordinates(height, width):
    """Centres of patches, -1 to 1, row by row: y, x."""
    out = [
        (2 * (i + 0.5) / height - 1, 2 * (j + 0.5) / width - 1)
        for i in range(height)
        for j in range(width)
    ]
    return np.array(out).T
