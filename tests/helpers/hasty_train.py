"""`cingulum train`, whose patience with an earlier start of the same job is a second.

python hasty_train.py [arguments of cingulum train ...]
"""

from __future__ import annotations

import sys

from cingulum.cli import app
from trainer.leases import lease_taking

lease_taking.EARLIER_S = 1.0
sys.exit(app.run(["train", *sys.argv[1:]]))
