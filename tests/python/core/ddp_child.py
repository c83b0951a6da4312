"""One process of two: every layer under DistributedDataParallel. Run by test_runtime.py."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from samples.layers import PLAIN  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


class BehindLinear(torch.nn.Module):
    """DDP refuses a module without parameters, so what is rotated comes from a Linear."""

    def __init__(self, width, inner):
        super().__init__()
        self.linear, self.inner = torch.nn.Linear(width, width), inner

    def forward(self, x, *rest):
        return self.inner(self.linear(x), *rest)


def main():
    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for sample in PLAIN:
        if not sample.parameters:
            model = BehindLinear(sample.tensors()["x"].shape[-1], sample.build(seed=rank))
        else:
            model = sample.build(seed=rank)  # ranks start apart; DDP makes them equal
        wrapped = DistributedDataParallel(model, broadcast_buffers=True)
        tensors = sample.tensors(seed=rank)
        for _ in range(2):
            out = wrapped(*tensors.values())
            out.square().mean().backward()
        for parameter in model.parameters():
            for value in (parameter.data, parameter.grad):
                both = [torch.empty_like(value) for _ in range(2)]
                dist.all_gather(both, value)
                assert torch.equal(*both), f"{sample}: the ranks differ"
        assert not list(model.buffers())
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
