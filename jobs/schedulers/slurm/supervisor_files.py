"""Files of the supervisor of a Slurm job, copied into the job's folder at submission.

So a job is looked after by what it was submitted with, whatever is installed meanwhile, and where the program
itself lies in an image.
"""

from __future__ import annotations

from importlib import resources

from jobs.schedulers.base import SUPERVISOR


def sources() -> dict[str, str]:
    """Return texts by path below the job's folder; `python3 FOLDER` runs them."""
    package = resources.files("jobs")
    texts = {"jobs/__init__.py": (package / "__init__.py").read_text(encoding="utf-8")}
    for part in (package / "supervisor").iterdir():
        if part.name.endswith(".py"):
            texts[f"jobs/supervisor/{part.name}"] = part.read_text(encoding="utf-8")
    texts["__main__.py"] = texts.pop("jobs/supervisor/__main__.py")
    return {f"{SUPERVISOR}/{path}": text for path, text in sorted(texts.items())}
