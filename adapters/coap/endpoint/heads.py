"""The first bytes of responses to requests that store something, made once for all."""

from adapters.coap.codec.registry import ACK, CHANGED, CON, CREATED, DELETE, DELETED, NON, POST, PUT
from adapters.coap.codec.wire import TOKEN_BYTES_MAX


def _heads() -> dict[bytes, bytes]:
    """Returns the first two bytes of a response that says that all is well, by those of its POST, PUT or DELETE.

    A Confirmable request is answered in its acknowledgement, another in a Non-confirmable message.
    """
    heads = {}
    for request, response in ((CON, ACK), (NON, NON)):
        for method, code in ((POST, CREATED), (PUT, CHANGED), (DELETE, DELETED)):
            for length in range(TOKEN_BYTES_MAX + 1):
                asked, told = 0x40 | request << 4 | length, 0x40 | response << 4 | length
                heads[bytes((asked, method))] = bytes((told, code))
    return heads


HEADS = _heads()
