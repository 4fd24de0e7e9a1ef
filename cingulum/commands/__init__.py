"""The commands of `cingulum`, in the order in which a newcomer meets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from cingulum.commands.advise import advise
from cingulum.commands.augment import augment
from cingulum.commands.baseline import baseline
from cingulum.commands.bench import bench
from cingulum.commands.cancel import cancel
from cingulum.commands.compare import compare
from cingulum.commands.crossval import crossval
from cingulum.commands.defer import defer
from cingulum.commands.diagnose import diagnose
from cingulum.commands.doctor import doctor
from cingulum.commands.evaluate import evaluate
from cingulum.commands.explain import explain
from cingulum.commands.export import export
from cingulum.commands.hold import hold
from cingulum.commands.import_ import import_images
from cingulum.commands.inspect_ import inspect_shards
from cingulum.commands.jobs_ import jobs
from cingulum.commands.leaks import leaks
from cingulum.commands.logs import logs
from cingulum.commands.models import models
from cingulum.commands.phantom import phantom
from cingulum.commands.plan import plan
from cingulum.commands.predict import predict
from cingulum.commands.profile import profile
from cingulum.commands.release import release
from cingulum.commands.report import report
from cingulum.commands.requeue import requeue
from cingulum.commands.scratch import scratch
from cingulum.commands.serve import serve
from cingulum.commands.share import share
from cingulum.commands.show_job import show
from cingulum.commands.simulate import simulate
from cingulum.commands.submit import submit
from cingulum.commands.testbed import testbed
from cingulum.commands.train import train
from cingulum.commands.verify import verify_shards
from cingulum.commands.wait import wait

COMMANDS: dict[str, Callable[..., Any] | typer.Typer] = {
    "phantom": phantom,
    "import": import_images,
    "inspect": inspect_shards,
    "verify": verify_shards,
    "leaks": leaks,
    "baseline": baseline,
    "augment": augment,
    "models": models,
    "profile": profile,
    "plan": plan,
    "simulate": simulate,
    "advise": advise,
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
    "hold": hold,
    "release": release,
    "defer": defer,
    "share": share,
    "serve": serve,
    "scratch": scratch,
    "testbed": testbed,
    "doctor": doctor,
    "bench": bench,
}
