"""A gateway for tests of HTTP that remembers the keys of requests."""

from typing import Any

from gateway.domain.errors import Cause, Refusal
from gateway.domain.idempotency import IdempotencyKey, KeyRepeated, StoredRequest
from gateway.port.adapter import Call, Outcome, Publish
from gateway.port.reads import RecallKey
from tests.support.http.http_driver import Gateway


class Remembering(Gateway):
    """A gateway that stores once under a key."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.keys: dict[bytes, StoredRequest] = {}
        super().__init__(*arguments, **options)

    def act(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Publish) and effect.key is not None:
                outcome = self._store_once(effect, effect.key)
                self.effects.append(effect)
                self.act(self.adapter.completed(effect.token, outcome, now_ms=self.now_ms))
            elif isinstance(effect, Call) and isinstance(effect.request, RecallKey):
                value = self.keys.get(effect.request.name)
                outcome = Outcome(value=value) if value else Outcome(error=Refusal(Cause.OVERLOAD, "too many keys"))
                self.act(self.adapter.completed(effect.token, outcome, now_ms=self.now_ms))
            else:
                super().act([effect])

    def _store_once(self, effect: Publish, key: IdempotencyKey) -> Outcome:
        if key.name in self.keys or key.name == b"full":
            return Outcome(error=KeyRepeated(3, {}))
        outcome = self._store(effect.messages)
        if outcome.first is not None:
            at = effect.messages[0].deliver_at_ms
            self.keys[key.name] = StoredRequest(fingerprint=key.fingerprint, first=outcome.first, deliver_at_ms=at)
        return outcome

    @property
    def published(self) -> list[Publish]:
        return [effect for effect in self.effects if isinstance(effect, Publish)]
