"""The commands of `cingulum`, in the order in which a newcomer meets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from trainer.commands.augment import augment
from trainer.commands.baseline import baseline
from trainer.commands.bench import bench
from trainer.commands.cancel import cancel
from trainer.commands.compare import compare
from trainer.commands.crossval import crossval
from trainer.commands.diagnose import diagnose
from trainer.commands.doctor import doctor
from trainer.commands.evaluate import evaluate
from trainer.commands.explain import explain
from trainer.commands.export import export
from trainer.commands.import_ import import_images
from trainer.commands.inspect_ import inspect_shards
from trainer.commands.jobs_ import jobs
from trainer.commands.leaks import leaks
from trainer.commands.logs import logs
from trainer.commands.models import models
from trainer.commands.phantom import phantom
from trainer.commands.predict import predict
from trainer.commands.report import report
from trainer.commands.requeue import requeue
from trainer.commands.scratch import scratch
from trainer.commands.show_job import show
from trainer.commands.submit import submit
from trainer.commands.testbed import testbed
from trainer.commands.train import train
from trainer.commands.verify import verify_shards
from trainer.commands.wait import wait

COMMANDS: dict[str, Callable[..., Any] | typer.Typer] = {
    "phantom": phantom,
    "import": import_images,
    "inspect": inspect_shards,
    "verify": verify_shards,
    "leaks": leaks,
    "baseline": baseline,
    "augment": augment,
    "models": models,
    "train": train,
    "crossval": crossval,
    "evaluate": evaluate,
    "compare": compare,
    "diagnose": diagnose,
    "predict": predict,
    "export": export,
    "explain": explain,
    "report": report,
    "submit": submit,
    "jobs": jobs,
    "show": show,
    "logs": logs,
    "wait": wait,
    "cancel": cancel,
    "requeue": requeue,
    "scratch": scratch,
    "testbed": testbed,
    "doctor": doctor,
    "bench": bench,
}
