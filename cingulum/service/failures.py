"""Errors as the API answers them: a status, a code for programs, and words for people."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from cingulum.service.outlooks import BusyError
from jobs.requests.actions import NoQueueError
from jobs.requests.known import NotYoursError
from jobs.store.keys import KeyUsedError, TakenError
from trainer.errors import CingulumError, InputError, LauncherError, StoreError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

_STATUSES: tuple[tuple[type[CingulumError], int], ...] = (
    (NotYoursError, 403),
    (KeyUsedError, 409),
    (TakenError, 409),
    (NoQueueError, 409),
    (BusyError, 503),
    (InputError, 400),
    (LauncherError, 502),
    (StoreError, 503),
    (CingulumError, 500),
)


class NotHere(InputError, code="NOT_FOUND"):
    """What was asked for is not there, or not the caller's."""


def failure(
    status: int,
    code: str,
    message: str,
    *,
    cure: str | None = None,
    objects: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return an answer that is an error, in the form that commands print with --json."""
    error = {"code": code, "message": message, "cure": cure, **(objects or {})}
    return JSONResponse({"error": error}, status, headers)


def answer_errors(app: FastAPI) -> None:
    """Have every error of a route answered as JSON."""

    @app.exception_handler(CingulumError)
    def ours(request: Request, error: CingulumError) -> JSONResponse:
        status = 404 if isinstance(error, NotHere) else _status(error)
        return failure(status, error.code, error.message, cure=error.cure, objects=error.objects)

    @app.exception_handler(PermissionError)
    def unreadable(request: Request, error: PermissionError) -> JSONResponse:
        said = "The permissions of the files do not let you read this."
        return failure(403, "UNREADABLE", said, cure="Its user can change them: chmod g+rX, and chgrp.")

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        wrong = [f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors()]
        return failure(422, "REQUEST_INVALID", "; ".join(wrong) or "The request cannot be read.")

    @app.exception_handler(HTTPException)
    def of_http(request: Request, error: HTTPException) -> JSONResponse:
        code = HTTPStatus(error.status_code).name
        return failure(error.status_code, code, f"{error.detail}.", headers=error.headers)

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> JSONResponse:
        cure = "The service's own output says more."
        return failure(500, "INTERNAL", f"The service failed ({type(error).__name__}).", cure=cure)


def _status(error: CingulumError) -> int:
    return next(status for kind, status in _STATUSES if isinstance(error, kind))
