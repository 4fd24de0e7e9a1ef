import json
import subprocess
import sys
from pathlib import Path


def test_the_doctor_finds_this_installation_fit():
    line = [str(Path(sys.executable).parent / "cingulum"), "doctor", "--json"]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=200)
    findings = {finding["name"]: finding for finding in json.loads(ran.stdout)}
    assert ran.returncode == 0, ran.stdout
    assert "ring" in findings["two ranks"]["said"]
    assert findings["optimizer"]["state"] == findings["exchange"]["state"] == "ok"
    assert "reduces nothing" in findings["Keras trap"]["said"]
