"""Write what this rank was given (arguments, variables, folder) to TASK-RANK.json in the folder $V_NOTES."""

import json
import os
import sys
from pathlib import Path

environment = {os.fsencode(key): os.fsencode(value) for key, value in os.environ.items()}
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["SLURM_PROCID"]
task = os.environ.get("SLURM_ARRAY_TASK_ID", "0")
noted = {
    "arguments": [os.fsencode(word).decode() for word in sys.argv[1:]],
    "environment": {key.decode(): value.decode(errors="replace") for key, value in environment.items()},
    "folder": str(Path.cwd()),
    "host": os.environ["SLURMD_NODENAME"],
}
path = Path(os.environ["V_NOTES"]) / f"{task}-{rank}.json"
path.write_text(json.dumps(noted))
