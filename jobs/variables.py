"""Check environment variables and texts of a job: what a program can be given, and no secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trainer.errors import JobError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# bash sets these itself, or reads its own script by them; those of Slurm tell the script where it runs.
_OF_THE_SHELL = re.compile(
    r"_|BASH.*|COMP_.*|DIRSTACK|ENV|EPOCH.*|EUID|FUNCNAME|GLOBIGNORE|GROUPS|HISTCMD|IFS|LINENO|MAPFILE|OLDPWD"
    r"|OPTARG|OPTERR|OPTIND|PIPESTATUS|POSIXLY_CORRECT|PPID|PS[0-4]|PWD|RANDOM|READLINE_.*|REPLY|SECONDS"
    r"|SHELLOPTS|SHLVL|SLURM_.*|SBATCH_.*|SRANDOM|UID"
)
# Words in the name of a variable that holds a secret, rather than the path of a file with one.
_SECRET = re.compile(
    r"(?!.*_(FILE|PATH)$).*(PASSW(OR)?D|PASSPHRASE|_(PASS|PWD)$|CREDENTIAL|API_?KEY|(PRIVATE|ACCESS)_KEY"
    r"|(SECRET|TOKEN)S?(_|$))",
    re.IGNORECASE,
)
# user:password@ in a URL; without its scheme, which would take quadratic time to look for in a long word.
_SECRET_URL = re.compile(r"://[^\s/:@]*:[^\s/@]+@")
# Linux hands no longer single text to a program (MAX_ARG_STRLEN, with its end).
LONGEST = 128 * 1024 - 1


def check_variables(environment: Mapping[str, str]) -> None:
    """Raise JobError for a variable that cannot be set, would change how a script is read, or is a secret.

    Scripts, the store and a job's folder hold these variables in clear.
    """
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            raise JobError(f"environment: {name!r} is not the name of a variable.")
        if _OF_THE_SHELL.fullmatch(name):
            raise JobError(f"environment: {name} belongs to the shell or to Slurm, and cannot be set.")
        if _SECRET.match(name):
            raise JobError(
                f"environment: {name} looks like a secret, and would be written into a script.",
                cure=f"Export {name} in the shell from which you submit, or keep it in a file of mode 0600.",
            )
        check_texts(f"environment: {name}", [f"{name}={value}"])


def check_texts(what: str, texts: Iterable[str]) -> None:
    """Raise JobError for a text that no program can be given, or a URL with a password in it.

    `what` names it in the message, which does not repeat it.
    """
    for text in texts:
        if "\0" in text:
            raise JobError(f"{what} holds a NUL byte.")
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise JobError(f"{what} holds bytes that are not UTF-8 text.", cure="Rename the file.") from None
        if size > LONGEST:
            raise JobError(f"{what}: {size} bytes are more than a program's argument may hold ({LONGEST}).")
        if _SECRET_URL.search(text):
            raise JobError(
                f"{what} holds a URL with a password, and jobs are kept and shown in plain text.",
                cure="Leave the password out; keep it in a file such as ~/.netrc or ~/.pgpass.",
            )
