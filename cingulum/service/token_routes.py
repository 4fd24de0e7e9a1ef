"""Routes by which who may administer lists and revokes tokens; the guard keeps all others out."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel

from cingulum.service.api import ERRORS
from cingulum.service.failures import NotHere
from cingulum.service.guard import ADMIN
from cingulum.service.tokens import TokenFile
from jobs.requests import describing
from trainer.errors import InputError

Name = Annotated[str, Path(max_length=64)]


class TokenRow(BaseModel):
    """A token, without what it is."""

    name: str
    may: Literal["read", "write", "admin"]
    created: str
    expires: str
    valid: bool


class Tokens(BaseModel):
    """All tokens that are kept."""

    tokens: list[TokenRow]


def routes(file: TokenFile) -> APIRouter:
    """Return the routes about the tokens in a file."""
    router = APIRouter(prefix=ADMIN, tags=["tokens"], responses=ERRORS)

    @router.get("")
    def tokens() -> Tokens:
        """List the tokens, those that have expired, too."""
        return Tokens(
            tokens=[
                TokenRow(
                    name=token.name,
                    may=token.may,
                    created=describing.iso(token.created) or "",
                    expires=describing.iso(token.expires) or "",
                    valid=token.is_valid,
                )
                for token in file.all()
            ]
        )

    @router.delete("/{name}", status_code=204)
    def revoke(name: Name) -> Response:
        """Revoke a token: it is refused from the next request on, and so is who signed in with it."""
        try:
            file.revoke(name)
        except InputError as error:
            raise NotHere(error.message, cure="GET /api/v1/tokens lists them.") from None
        return Response(status_code=204)

    return router
