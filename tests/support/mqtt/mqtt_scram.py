"""An MQTT client that proves its password by SCRAM, and the gateway's side of it, for tests: no socket and no clock."""

from typing import Any

from scramp import ScramClient

from adapters.mqtt.codec.packets import Auth, Connack, Connect
from adapters.mqtt.codec.properties import Properties
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate, Call, Challenge, Effect, Outcome
from gateway.security.scram import MECHANISM, ScramExchange, derive
from tests.support.mqtt.mqtt_driver import Driver

CONTINUE, REAUTHENTICATE = 0x18, 0x19
VERIFIER = derive("pencil", salt=b"0123456789abcdef", iterations=4_096)


class ScramDriver(Driver):
    """A connection whose gateway knows SCRAM; `user`'s password is "pencil" whoever it is."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.asks: list[Authenticate] = []
        self.held_back = False  # the gateway takes its time: what it is asked waits in `effects`
        self.expires_at_ms: int | None = None

    def client(self, name: str = "user", password: str = "pencil") -> ScramClient:
        return ScramClient([MECHANISM], name, password)

    def begin(self, client: ScramClient, **fields: Any) -> list[Any]:
        """Sends CONNECT with the client's first message, and returns the answer."""
        data = client.get_client_first().encode()
        return self.send(Connect(version=5, client_id="c1", properties=said(data), **fields))

    def prove(self, client: ScramClient, challenge: Any) -> list[Any]:
        """Sends the client's final message, and returns the answer."""
        client.set_server_first(challenge.properties.authentication_data.decode())
        return self.send(auth(client.get_client_final().encode()))

    def join(self, client: ScramClient | None = None, **fields: Any) -> Connack:
        """Makes the whole exchange, and returns the CONNACK."""
        client = client or self.client()
        (challenge,) = self.begin(client, **fields)
        (connack,) = self.prove(client, challenge)
        assert isinstance(connack, Connack)
        return connack

    def authenticate(self, request: Authenticate) -> Outcome:
        """Answers as the gateway would."""
        self.asks.append(request)
        exchange = request.exchange or ScramExchange(lambda name: VERIFIER)
        try:
            if not request.data:
                if request.exchange is not None:
                    raise Refusal(Cause.UNAUTHENTICATED, "wrong name or password")
                return Outcome(value=Challenge(data=b"", exchange=exchange))
            data = exchange.step(request.data)
        except Refusal as refusal:
            return Outcome(error=refusal)
        if not exchange.over:
            return Outcome(value=Challenge(data=data, exchange=exchange))
        return Outcome(value=Principal(name=exchange.name, final=data, expires_at_ms=self.expires_at_ms))

    def answer_effect(self, effect: Effect) -> Outcome | None:
        if (
            isinstance(effect, Call)
            and isinstance(effect.request, Authenticate)
            and effect.request.mechanism == MECHANISM
        ):
            return None if self.held_back else self.authenticate(effect.request)
        return super().answer_effect(effect)


def said(data: bytes | None, method: str | None = MECHANISM) -> Properties:
    return Properties(authentication_method=method, authentication_data=data)


def auth(data: bytes | None, code: int = CONTINUE, method: str | None = MECHANISM) -> Auth:
    return Auth(code=code, properties=said(data, method))
