"""The processor: its name, its instructions, and whether TensorFlow computes with oneDNN on it.

TensorFlow switches oneDNN on by itself only on processors made for neural networks (AVX512_VNNI, AVX512_BF16,
AVX_VNNI, AMX: `IsMKLEnabled` in tensorflow/core/util/util.cc). On all others, every AMD before Zen 4 among
them, 3D convolutions take Eigen's generic path, up to a hundred times as long
(docs/decisions/0071-onednn.md). TensorFlow reads its environment when it is imported, so `import trainer`
prepares it.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Collection, MutableMapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
# Of oneDNN itself: no newer instructions than these.
CAP = "ONEDNN_MAX_CPU_ISA"

# What TensorFlow itself looks for.
_FOR_NETWORKS = frozenset({"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"})

# Instruction sets that oneDNN has kernels for, oldest first: name, flags of /proc/cpuinfo, names in `CAP`.
_SETS = (
    ("SSE4.1", {"sse4_1"}, {"SSE41"}),
    ("AVX", {"avx"}, {"AVX"}),
    ("AVX2", {"avx2"}, {"AVX2"}),
    ("AVX2 VNNI", {"avx2", "avx_vnni"}, {"AVX2_VNNI", "AVX2_VNNI_2"}),
    ("AVX-512", {"avx512f", "avx512bw", "avx512vl", "avx512dq"}, {"AVX512_CORE"}),
    ("AVX-512 VNNI", {"avx512f", "avx512_vnni"}, {"AVX512_CORE_VNNI"}),
    ("AVX-512 BF16", {"avx512f", "avx512_bf16"}, {"AVX512_CORE_BF16"}),
    ("AVX-512 FP16", {"avx512f", "avx512_fp16"}, {"AVX512_CORE_FP16", "AVX10_1_512"}),
    ("AMX", {"avx512f", "amx_tile"}, {"AVX512_CORE_AMX", "AVX512_CORE_AMX_FP16", "AVX10_1_512_AMX"}),
)

_imported_too_late = False


@dataclass(frozen=True)
class HostProcessor:
    """One host's processor, as one process computes on it.

    Attributes:
        model: its name.
        instructions: newest instruction set that oneDNN may use here, such as `AVX2`; None where not known.
        onednn: whether TensorFlow computes with oneDNN; None where not known (no x86-64).
    """

    model: str
    instructions: str | None
    onednn: bool | None

    def __str__(self) -> str:
        """Return such as 'AMD EPYC, AVX2, with oneDNN'."""
        with_or_without = {True: "with oneDNN", False: "without oneDNN", None: None}[self.onednn]
        return ", ".join(part for part in (self.model, self.instructions, with_or_without) if part)


def instruction_set(flags: Collection[str], cap: str | None = None) -> str | None:
    """Return the newest instruction set among `flags` of /proc/cpuinfo that oneDNN may use; None without any.

    Args:
        flags: of the processor.
        cap: value of ONEDNN_MAX_CPU_ISA; what oneDNN does not know limits nothing.
    """
    highest = next((at for at, (_, _, names) in enumerate(_SETS) if (cap or "").upper() in names), len(_SETS))
    usable = [name for name, needs, _ in _SETS[: highest + 1] if needs <= set(flags)]
    return usable[-1] if usable else None


def is_on_by_default(flags: Collection[str]) -> bool:
    """Return whether TensorFlow itself switches oneDNN on for a processor of these flags."""
    return not _FOR_NETWORKS.isdisjoint(flags)


def is_faster(flags: Collection[str]) -> bool:
    """Return whether oneDNN makes 3D convolutions faster: wherever it has kernels, on every x86-64.

    Measured down to SSE4.1 (docs/decisions/0071-onednn.md); `cingulum bench step` measures it here.
    """
    return instruction_set(flags) is not None


def is_used(flags: Collection[str], setting: str | None) -> bool:
    """Return whether TensorFlow computes with oneDNN.

    Args:
        flags: of the processor.
        setting: value of TF_ENABLE_ONEDNN_OPTS when TensorFlow is imported; one that it cannot read counts
            as none, as it does there.
    """
    return {"0": False, "false": False, "1": True, "true": True}.get(
        (setting or "").lower(), is_on_by_default(flags)
    )


def prepare_tensorflow(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let TensorFlow compute with oneDNN where that is faster, unless the user has decided it.

    Where TensorFlow has been imported, nothing is changed: `slow_import` tells what it costs.
    """
    global _imported_too_late
    if "tensorflow" in sys.modules:
        _imported_too_late = ONEDNN not in environment
    elif is_faster(_flags()):
        environment.setdefault(ONEDNN, "1")


def slow_import() -> str | None:
    """Return a line where a script imported TensorFlow before us and computes without oneDNN; else None."""
    if not _imported_too_late or is_used(_flags(), None) or not is_faster(_flags()):
        return None
    return (
        f"warning: TensorFlow was imported before trainer, so it computes without oneDNN on this processor "
        f"({instruction_set(_flags())}): 3D convolutions take several times as long. "
        f"Import trainer first, or: export {ONEDNN}=1"
    )


def here() -> HostProcessor:
    """Return this host's processor, and how TensorFlow computes on it in this process."""
    flags = _flags()
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return HostProcessor(
        model=_model(),
        instructions=instruction_set(flags, os.environ.get(CAP)),
        onednn=is_used(flags, os.environ.get(ONEDNN)) if is_x86 else None,
    )


@cache
def _cpuinfo() -> dict[str, str]:
    """First value of each key; empty where the kernel has no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = [line.partition(":")[::2] for line in lines]
    return {key.strip(): value.strip() for key, value in reversed(pairs)}


def _flags() -> frozenset[str]:
    return frozenset(_cpuinfo().get("flags", "").split())


def _model() -> str:
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()
