"""One rank of PyTorch's own pipeline schedules; `stages_on_hosts.py` starts one on each host.

Its stage is a module that waits as long as our emulated accelerators and sends as many bytes to the next
one: forwards, and backwards their gradients. ScheduleGPipe or Schedule1F1B of torch.distributed.pipelining,
over Gloo.

Runs in the peers' environment: nothing but Python and PyTorch. Prints seconds of steps, the seconds that it
has waited in one, and the bytes that its interface sent in one, as JSON, on a line that begins with `done`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch.distributed import pipelining

PORT = 20200
_PR_SET_TIMERSLACK = 29
_SYSTEM = ctypes.CDLL(None)


class Device:
    """A stage's accelerator, which waits; see emulated_units.py."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        self.forward_s, self.backward_s, self.busy_s = forward_s, backward_s, 0.0

    def wait(self, seconds: float) -> None:
        """Be busy for so long."""
        began = time.perf_counter()
        # Linux lets a thread sleep for up to 50 us longer than it asks for.
        _SYSTEM.prctl(_PR_SET_TIMERSLACK, 1)
        time.sleep(seconds)
        self.busy_s += time.perf_counter() - began


class Waits(torch.autograd.Function):
    """Zeros after a wait, whose gradients are zeros after another one."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, device: Device, count: int) -> Any:
        """Return `(n, count)` of x `(n, m)`; the weight is what there is to train."""
        ctx.device, ctx.shape = device, x.shape
        device.wait(device.forward_s)
        return x.new_zeros((x.shape[0], count))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return gradients of all that `forward` takes."""
        ctx.device.wait(ctx.device.backward_s)
        return gradient.new_zeros(ctx.shape), gradient.new_zeros(1), None, None


class Stage(torch.nn.Module):
    """One stage, which passes on so many numbers for each micro-batch."""

    def __init__(self, device: Device, count: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.device, self.count = device, count

    def forward(self, x: Any) -> Any:
        """Return what the next stage gets."""
        return Waits.apply(x, self.weight, self.device, self.count)


def run_first() -> None:
    """Run before all that is not in real time."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))


def main() -> None:
    """Time the steps that the command line asks for."""
    wanted = json.loads(sys.argv[1])
    rank, stages, interface = wanted["rank"], wanted["stages"], wanted["interface"]
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{wanted['address']}:{PORT}", rank=rank, world_size=len(stages)
    )
    own, micro_batches = stages[rank], wanted["micro_batches"]
    device = Device(own["forward_s"], own["backward_s"])
    is_last = rank == len(stages) - 1
    stage = pipelining.PipelineStage(
        Stage(device, max(1, own["sent_bytes"] // 4)), rank, len(stages), torch.device("cpu")
    )
    kind = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[wanted["schedule"]]
    schedule = kind(stage, micro_batches, loss_fn=lambda output, target: (output * 0).sum())

    def step() -> None:
        if rank == 0:
            schedule.step(torch.zeros(micro_batches, 1))
        elif is_last:
            schedule.step(target=torch.zeros(micro_batches, 1))
        else:
            schedule.step()

    def sent() -> int:
        return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())

    if wanted["first"]:
        run_first()
    seconds = []
    for number in range(wanted["steps"]):
        if number == 1:
            device.busy_s, before = 0.0, sent()
        distributed.barrier()
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    steps = max(1, wanted["steps"] - 1)
    found = {"seconds": seconds, "waited_s": device.busy_s / steps, "wire_bytes": (sent() - before) / steps}
    distributed.barrier()
    print(f"done {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
