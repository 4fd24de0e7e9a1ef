"""`faulty_train.py`, whose fault strikes at the first start only: what an attendant starts again is sound."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

if os.environ["CINGULUM_RESTARTS"] != "0":
    sys.argv[1] = "none"
runpy.run_path(str(Path(__file__).with_name("faulty_train.py")), run_name="__main__")
