"""RoPE with several position axes: what a frequency reads, and where tokens of grids stand."""


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
