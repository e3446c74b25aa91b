"""The opening of a session, later for a client whose connections end again and again for the same."""

import asyncio

from gateway.domain.errors import Cause, Refusal
from gateway.domain.session_user import SessionUser
from gateway.port.sessions import OpenedSession, OpenSession
from gateway.sessions.record import SessionHolder, session_key
from gateway.sessions.sessions import Sessions


async def open_after(
    delay_ms: int, sessions: Sessions, holder: SessionHolder, request: OpenSession, user: SessionUser | None
) -> OpenedSession:
    """Opens a session when its client has waited. Raises `Refusal` when it has connected again meanwhile."""
    if delay_ms:
        await asyncio.sleep(delay_ms / 1_000)
        held = sessions.held.get(session_key(holder.protocol, request.session_id))
        if held is not None and held.holder.id > holder.id:
            raise Refusal(Cause.CONFLICT, "the client has connected again meanwhile")
    return await sessions.open(holder, request, user)
