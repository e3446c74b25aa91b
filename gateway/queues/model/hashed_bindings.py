"""The bindings of hashed exchanges; each message takes one."""

from gateway.port.queues import HASHED
from gateway.publishing.routing.hash_choice import HashChoice
from gateway.queues.model.bindings import Binding, Exchange, binding_predicate, hash_key, hash_weight
from gateway.queues.model.queue import Predicate


class HashedBindings:
    """The choices of all hashed exchanges, by their names."""

    def __init__(self) -> None:
        self._choices: dict[str, HashChoice] = {}

    def predicate(self, exchange: Exchange, binding: Binding, target: tuple[str, str]) -> Predicate | None:
        """Returns a binding's condition on messages besides their address; for other exchanges too."""
        if exchange.routes_as != HASHED:
            return binding_predicate(exchange, binding)
        choice = self._choices.setdefault(exchange.name, HashChoice(hash_key(exchange)))
        text = repr((*target, binding.routing_key))
        return choice.add((target, binding.identity), text, hash_weight(binding))

    def remove(self, binding: Binding, target: tuple[str, str]) -> None:
        """Removes a binding that has ended."""
        choice = self._choices.get(binding.exchange)
        if choice is not None:
            choice.remove((target, binding.identity))

    def forget(self, exchange: str) -> None:
        """Forgets an exchange that is gone."""
        self._choices.pop(exchange, None)
