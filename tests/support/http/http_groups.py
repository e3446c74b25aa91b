"""A gateway for tests of `/groups`: what is asked is noted, and answered as a test says."""

from typing import Any

from gateway.domain.errors import Refusal
from gateway.port import groups
from gateway.port.adapter import Call, Outcome
from tests.support.http.http_driver import Gateway


class GroupsGateway(Gateway):
    """The gateway behind the adapter."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.asked: list[Any] = []
        self.answers: list[Any] = []  # in order; the last one again and again
        super().__init__(*args, **kwargs)

    def answer_effect(self, call: Call) -> Outcome:
        if type(call.request).__module__ != groups.__name__:
            return super().answer_effect(call)
        self.asked.append(call.request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return Outcome(error=answer) if isinstance(answer, Refusal) else Outcome(value=answer)
