"""How ranks agree: one number of each, of which all get the largest. PyTorch is used as the program has set it up."""

import os
import sys
from collections import deque
from typing import Any

# The newest numbers that ranks voted with. A thread of gloo that were the last to hold one would wait for the GIL,
# which the program holds where it ends the process group and waits for that thread (seen with PyTorch 1.13).
_KEPT: deque[Any] = deque(maxlen=8)
_STREAMS: dict[Any, Any] = {}  # GPU -> where votes run, beside the program's work
_USED: list[Any] = []  # the GPU that was found to be the program's
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def group() -> Any:
    """The process group of all ranks, or None."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.GroupMember.WORLD


def rank() -> int:
    return sys.modules["torch"].distributed.get_rank() if group() else int(os.environ.get("RANK", "0"))


def is_first_here() -> bool:
    """Is this the first rank of its machine, as its launcher counts? Where none says so: the first of all."""
    told = next((os.environ[name] for name in _LOCAL_RANKS if name in os.environ), None)
    return rank() == 0 if told is None else told == "0"


def gpu() -> Any:
    """The GPU on which this program keeps most, or None: the current one may be one that it does not use at all."""
    torch = sys.modules.get("torch")
    if not _USED and torch is not None and torch.cuda.is_initialized():
        sizes_bytes = [torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())]
        if any(sizes_bytes):
            _USED.append(torch.device("cuda", sizes_bytes.index(max(sizes_bytes))))
    return _USED[0] if _USED else None


class Vote:
    """A collective: all ranks make it at the same place. It begins at once and waits for nothing."""

    def __init__(self, wish: bool) -> None:
        torch = sys.modules["torch"]
        self.wish, self.group = wish, group()
        self._device = _device(torch, self.group)
        self._copied: Any = None
        if self._device.type == "cuda":
            self._on_gpu(torch)
        else:
            self._number = torch.full((1,), int(wish), dtype=torch.int32, device=self._device)
            self._work = self._reduce(torch)
        _KEPT.append(self._number)

    def _reduce(self, torch: Any) -> Any:
        largest = torch.distributed.ReduceOp.MAX
        return torch.distributed.all_reduce(self._number, op=largest, async_op=True)

    def _on_gpu(self, torch: Any) -> None:
        """In a stream of its own: neither the program's work there nor the host waits for it."""
        with torch.cuda.device(self._device):
            if self._device not in _STREAMS:
                _STREAMS[self._device] = torch.cuda.Stream()
            with torch.cuda.stream(_STREAMS[self._device]):
                self._number = torch.full((1,), int(self.wish), dtype=torch.int32, device=self._device)
                self._work = self._reduce(torch)
                self._work.wait()
                self._host = torch.empty(1, dtype=torch.int32, device="cpu", pin_memory=True)
                self._host.copy_(self._number, non_blocking=True)
                self._copied = torch.cuda.Event()
                self._copied.record()

    def result(self) -> bool:
        """Waits for the ranks that have not voted yet."""
        if self._copied is None:
            self._work.wait()
            return bool(self._number.item())
        self._copied.synchronize()
        return bool(self._host.item())


def _device(torch: Any, world: Any) -> Any:
    """Where the process group takes numbers from. The same kind on all ranks, since all made the group alike."""
    kinds = [str(kind).partition(":")[0] for kind in getattr(world, "_device_types", ())]  # PyTorch 2
    if not kinds:
        kinds = ["cuda" if torch.distributed.get_backend() == "nccl" else "cpu"]
    if "cpu" in kinds:
        return torch.device("cpu")
    if kinds[0] != "cuda":
        return torch.device(kinds[0])
    bound = getattr(world, "bound_device_id", None)
    return bound or gpu() or torch.device("cuda", torch.cuda.current_device())
