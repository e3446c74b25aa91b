"""The reading of a POST, PUT or DELETE: its options once for all that have the same, its body out of blocks."""

from adapters.coap.codec.registry import REQUEST_ENTITY_TOO_LARGE
from adapters.coap.codec.wire import MessageFormatError, encode_options, read_options
from adapters.coap.exchanges.echo import EchoVerifier
from adapters.coap.exchanges.exchanges import Exchange
from adapters.coap.messages.blocks import Uploads
from adapters.coap.messages.mapping import MessagePlan, make_plan
from adapters.coap.messages.request import CoapRequest, read_request
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.topics.topic import TopicRequested, is_for_topics
from gateway.domain.errors import ProtocolError
from gateway.domain.principal import Principal

PLANS_MAX = 16_384  # option lists remembered with their meaning, of all peers of a socket or of a trusted gateway
USER_PLANS_MAX = 1_024  # of one user
CONNECTION_PLANS_MAX = 256  # of one connection, of which there may be many
PLAN_KEY_BYTES_MAX = 256  # of such a list; a longer one is parsed each time


class Plans:
    """The plans of one endpoint. `known` has those that may well come again, by their options as bytes."""

    def __init__(self, settings: CoapOptions, uploads: Uploads, echo: EchoVerifier, *, reliable: bool) -> None:
        self._settings = settings
        self._reliable = reliable
        self._uploads = uploads
        self._echo = echo
        self._device = ""  # of the peers' messages, where they have proven to be one
        self._principal: str | None = ""  # of the peers' messages, as `Message` has it
        self.known: dict[bytes, MessagePlan] = {}  # at most _count_max
        self._count_max = PLANS_MAX

    def belong(self, who: Principal) -> None:
        """Sets who speaks in requests that are read from now on; device "": the one that the address names."""
        spoken_for = who.anonymous or who.trusted_gateway
        device, principal = ("", who.device) if spoken_for else (who.device, None)
        if (device, principal) != (self._device, self._principal):
            self._device, self._principal = device, principal
            self.known.clear()
        one_max = CONNECTION_PLANS_MAX if self._reliable else USER_PLANS_MAX
        many = who.trusted_gateway or (who.anonymous and not self._reliable)
        self._count_max = PLANS_MAX if many else one_max

    def make(self, request: CoapRequest) -> MessagePlan:
        """Returns the plan of a request of these peers. Raises as `make_plan` does."""
        return make_plan(request, self._settings, device=self._device, principal=self._principal)

    def read(self, data: bytes, end: int, exchange: Exchange, now_ms: int) -> tuple[MessagePlan, bytes] | None:
        """Returns the publish of a datagram whose token ends at `end`; None for a block that is not the last.

        Raises `ProtocolError`, `TopicRequested` and, for blocks, `Refusal` (OVERLOAD).
        """
        if len(data) < end:
            raise MessageFormatError("the token is cut short")
        options, stop = read_options(data, end)
        request = read_request(options, data[1], reliable=self._reliable)
        self._echo.check_fresh(exchange.peer, request.echo, now_ms)
        if is_for_topics(request.path, self._settings):
            raise TopicRequested(request, data[stop + 1 :])
        if request.block1 is None:  # else a transfer that fails has to be told so
            exchange.silence = request.silence
        plan = self.make(request)
        body = data[stop + 1 :]
        if request.block1 is None:
            if len(body) > self._settings.max_body_bytes:
                raise ProtocolError(
                    REQUEST_ENTITY_TOO_LARGE, f"a body is at most {self._settings.max_body_bytes} bytes"
                )
            lasting = plan.lasting and not (request.echo or self._echo.wants_freshness)
            if lasting and stop - end <= PLAN_KEY_BYTES_MAX:
                if len(self.known) >= self._count_max:
                    self.known.clear()
                self.known[data[end:stop]] = plan
            return plan, body
        whole = self.body(request, body, exchange, now_ms)
        return None if whole is None else (plan, whole)

    def body(self, request: CoapRequest, part: bytes, exchange: Exchange, now_ms: int) -> bytes | None:
        """Returns a request's body, which may come in blocks; None for a block that is not the last.

        Raises `ProtocolError` and, for blocks, `Refusal` (OVERLOAD).
        """
        if request.block1 is None:
            return part
        whole = self._uploads.add(exchange.peer, request, part, now_ms)
        exchange.tail = encode_options([self._uploads.acknowledged(request)])
        return whole
