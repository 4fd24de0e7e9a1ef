"""Submit what is asked for once, however often it is asked for, and whoever is killed meanwhile.

1. The key that the caller drew, a digest of all that is asked for, and a token for each job are in the store.
2. Each job is submitted under its token (`submission.py`); the store takes no second job of a token.

Who asks again by the same key gets the jobs of these tokens. A token that no job has was never given to a
launcher, so what is missing is submitted then.
"""

from __future__ import annotations

from collections.abc import Callable

from jobs.home import new_token
from jobs.job import Job
from jobs.requests import known, submitting
from jobs.store.store import Store


def submit(
    prepare: Callable[[], submitting.PreparedJobs],
    store: Store,
    looks: submitting.Checks,
    warn: known.Warn,
    *,
    who: str,
    key: str | None,
    digest: str,
) -> list[Job]:
    """Return the jobs of a key, submitted now where they were not before.

    Args:
        prepare: checks what is asked for, and makes the jobs; called where one is to be submitted.
        store: of all jobs.
        looks: see `submitting.Checks`.
        warn: see `known.refresh`.
        who: asks for it, as the jobs' history tells.
        key: drawn by the caller for this submission, the same when it asks again; None: each call submits.
        digest: SHA-256 of all that is asked for.

    Raises:
        KeyUsedError: something else was asked for by this key.
        TakenError: another process submits the same at this moment.
        CingulumError: as `submitting.submit`.
    """
    if key is None:
        return submitting.submit(prepare(), store, looks, warn, who=who)
    tokens = store.submission(key, digest)
    if tokens:
        known.refresh(store, warn=warn)  # what was cut short is looked for by its token
        found = [store.of_token(token) for token in tokens]
        if None not in found:
            return [job for job in found if job is not None]
    prepared = prepare()
    tokens = store.submission(key, digest, tokens or [new_token() for _ in prepared.chain])
    return submitting.submit(prepared, store, looks, warn, who=who, tokens=tokens)
