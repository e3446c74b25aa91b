"""`/openapi.json` and `/docs`: the description of this interface, for programs and for readers."""

from typing import Final

from adapters.http.handlers.actions import Action, HandlerContext, Respond
from adapters.http.handlers.parsing.query import read_query
from adapters.http.openapi import document, page
from adapters.http.wire.request import HttpRequest
from adapters.http.wire.response import Response

_SAFE: Final = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache"),
)


def get_document(request: HttpRequest, context: HandlerContext) -> Action:
    """Gives the OpenAPI document."""
    read_query(request)
    return Respond(Response(status=200, headers=((b"content-type", b"application/json"), *_SAFE), body=document()))


def get_page(request: HttpRequest, context: HandlerContext) -> Action:
    """Gives the page for readers."""
    read_query(request)
    kind = (b"content-type", b"text/html; charset=utf-8")
    return Respond(Response(status=200, headers=(kind, *_SAFE), body=page()))
