#!/usr/bin/env python3
"""What a machine with one GPU, and no internet, can tell in nine minutes: steps, memory, predictions.

    .venv/bin/python benchmarks/on_a_gpu.py --out on_a_gpu --torch-python python3

Each part writes a file of its own into `--out`, the most useful first; started again, what is there is not
measured again. A part that fails, or does not end in time, is said, and the others go on. `page.md` is made
of what is there. Without a GPU `--tiny` tries the program out: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "gpu"))

import page  # noqa: E402

from trainer import atomic  # noqa: E402
from trainer.bench.loader import volumes  # noqa: E402
from trainer.bench.loader.job import LoaderJob  # noqa: E402

NETWORKS = ("resnet18", "unet3d", "sfcn", "vgg", "densenet121")
DENSE = ("unet3d",)
# Of a run.
VOLUMES, EPOCHS = 24, 6
MOST_S = {"run": 120, "ours": 120, "keras": 120, "torch": 150, "profile": 120, "predicted": 60}


@dataclass(frozen=True)
class Part:
    """One thing to measure.

    Attributes:
        name: of its file, without `.json`.
        kind: a key of `MOST_S`.
        network: its name.
        precision: of a run.
    """

    name: str
    kind: str
    network: str = ""
    precision: str = "float32"


def parts(networks: Sequence[str]) -> list[Part]:
    """Return what to measure, the most useful first."""
    first, *others = networks
    return [
        Part(f"ours-{first}", "ours", first),
        Part(f"run-{first}", "run", first),
        *(Part(f"{kind}-{first}", kind, first) for kind in ("keras", "torch")),
        *(Part(f"{kind}-{name}", kind, name) for name in others for kind in ("ours", "torch")),
        Part(f"run-{first}-bfloat16", "run", first, "mixed_bfloat16"),
        # The volumes have no label maps.
        *(Part(f"predicted-{name}", "predicted", name) for name in networks if name not in DENSE),
        Part(f"profile-{first}", "profile", first),
        *(Part(f"keras-{name}", "keras", name) for name in others),
    ]


def main() -> None:
    """Measure what is not measured yet, as far as the time goes; write the page."""
    arguments = _arguments()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * arguments.minutes
    due = [part for part in parts(arguments.networks) if not (out / f"{part.name}.json").is_file()]
    for number, part in enumerate(due, start=1):
        left = ends - time.monotonic()
        if left < 20:
            print(f"no time is left for {', '.join(one.name for one in due[number - 1 :])}; start it again")
            break
        print(f"[{number}/{len(due)}] {part.name} ...", flush=True)
        began = time.monotonic()
        found = _measured(part, arguments, min(left, MOST_S[part.kind]))
        if "failed" not in found:
            atomic.write_text(out / f"{part.name}.json", json.dumps(found, indent=1))
        print(f"    {found.get('failed', 'done')} ({time.monotonic() - began:.0f} s)", flush=True)
    known = {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}
    atomic.write_text(out / "page.md", page.text(known, arguments.networks))
    print(f"page: {out / 'page.md'}")


def _measured(part: Part, arguments: argparse.Namespace, most_s: float) -> dict[str, Any]:
    """What a part has found; `failed` in one line where it has not."""
    try:
        if part.kind in ("ours", "keras"):
            job = {"network": part.network, "way": part.kind, **_sizes(arguments)}
            return _told(_run([sys.executable, HERE / "gpu" / "tensorflow_part.py", json.dumps(job)], most_s))
        if part.kind == "torch":
            return _by_torch(part, arguments, most_s)
        if part.kind == "run":
            return _a_run(part, arguments, most_s)
        config = _config(part, arguments)
        if part.kind == "profile":
            return _told(_run([*CINGULUM, "profile", config, "--json"], most_s))
        options = ["--ranks", "1", "--cluster", arguments.cluster, "--strategy", "data", "--json"]
        return _told(_run([*CINGULUM, "simulate", config, *options], most_s))
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        return {"failed": f"failed: {str(error).strip()[-300:]}"}


CINGULUM = (sys.executable, "-m", "cingulum")


def _by_torch(part: Part, arguments: argparse.Namespace, most_s: float) -> dict[str, Any]:
    known = arguments.out / f"ours-{part.network}.json"
    if not known.is_file():
        return {"failed": f"waits for {known.name}, which has the network's layers"}
    layers = json.loads(known.read_text())["layers"]
    dense = layers[-1]["kind"] == "convolution"
    job = {"layers": layers, "dense": dense, **_sizes(arguments)}
    line = [*arguments.torch_python.split(), HERE / "gpu" / "torch_part.py", json.dumps(job)]
    return _told(_run(line, most_s))


def _a_run(part: Part, arguments: argparse.Namespace, most_s: float) -> dict[str, Any]:
    """Steps of a run from the command line, with loader, telemetry and all."""
    config = _config(part, arguments)
    began = time.monotonic()
    _run([*CINGULUM, "train", config], most_s)
    folder = arguments.out / "runs" / part.name
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "epochs": [row["timeline"] for row in rows],
        "update": json.loads((folder / "run.json").read_text())["update"],
        "seconds": time.monotonic() - began,
    }


def _config(part: Part, arguments: argparse.Namespace) -> Path:
    """The configuration of a run of a part, and the volumes that it trains on."""
    job = LoaderJob(str(arguments.out / "volumes"), size=arguments.size, volumes=VOLUMES)
    volumes.make(job)
    tree = {
        "name": part.name,
        "runs": str(arguments.out / "runs"),
        "data": {
            "shards": str(job.path("shards")),
            "split": {"validation": 0, "test": 0.2},
            "leaks": "ignore",
        },
        "model": {"name": part.network, **({"width": arguments.width} if arguments.width else {})},
        "train": {
            "epochs": EPOCHS,
            "global_batch": arguments.batch,
            "precision": part.precision,
            "optimizer": {"name": "adamw"},
        },
    }
    path: Path = arguments.out / f"{part.name}.yaml"
    atomic.write_text(path, yaml.safe_dump(tree, sort_keys=False))
    return path


def _sizes(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("size", "batch", "width", "steps", "blocks")
    return {name: getattr(arguments, name) for name in names}


def _run(line: Sequence[object], most_s: float) -> str:
    """Run a command in a session of its own, all of which is ended where it takes too long.

    Raises:
        SubprocessError: it failed, or took too long; with the last of what it said.
    """
    words = [str(word) for word in line]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            out, error = process.communicate(timeout=most_s)
        except subprocess.TimeoutExpired:
            raise subprocess.SubprocessError(f"did not end within {most_s:.0f} s") from None
        finally:  # also after Ctrl-C, and with all that it has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise subprocess.SubprocessError(f"exit code {process.returncode}: {error.strip()[-280:]}")
    return out


def _told(out: str) -> dict[str, Any]:
    """The JSON object at the end of what a program has written; others may have written before it."""
    found: dict[str, Any] = json.loads(out[out.index("{") :])
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("on_a_gpu"), help="folder of all that is found")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no part after these")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS, metavar="NAME")
    parser.add_argument("--size", type=int, default=96, help="edge of the volumes, in voxels")
    parser.add_argument("--batch", type=int, default=4, help="volumes of a step")
    parser.add_argument("--width", type=int, help="channels of the first stage; default: the network's own")
    parser.add_argument("--steps", type=int, default=20, help="of a block that is timed")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--cluster", default="dgx-h200", help="that predictions are made for")
    parser.add_argument("--torch-python", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument("--tiny", action="store_true", help="networks as small as they get: no figures")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.size, arguments.batch, arguments.width, arguments.steps, arguments.blocks = 32, 2, 2, 2, 2
    return arguments


if __name__ == "__main__":
    main()
