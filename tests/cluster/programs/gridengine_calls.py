"""Calls a method of the launcher for Grid Engine on a host of its cell, and prints the answer as JSON.

python gridengine_calls.py start SPEC [EXTERNAL ...]
python gridengine_calls.py METHOD EXTERNAL [TASK [NUMBER]]
"""

from __future__ import annotations

import dataclasses
import json
import sys

from cingulum_gridengine.launcher import GridEngine

from jobs import home
from jobs.sites import HERE
from jobs.spec import JobSpec

launcher = GridEngine()
name, *words = sys.argv[1:]
if name == "start":
    spec = JobSpec.from_json(words[0])
    token = home.new_token()
    folder = home.job_path(token)
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(spec.to_json())
    told = launcher.preflight(spec, HERE)
    external = launcher.start(launcher.plan(spec, HERE, folder, token), folder, words[1:])
    answer: object = {"external": external, "folder": str(folder), "token": token, "told": told}
elif name == "states":
    found = launcher.states([words[0]]).get(words[0], [])
    answer = [dataclasses.asdict(task) for task in found]
elif name == "look":
    answer = dataclasses.asdict(launcher.look())  # type: ignore[call-overload]
elif name == "find":
    answer = launcher.find(words[0])
else:
    answer = getattr(launcher, name)(words[0], *(int(word) if word else None for word in words[1:]))
print(json.dumps(answer))
