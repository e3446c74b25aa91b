"""The topics of a gateway: configured, created as messages for them come, and told to the store."""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from controller.api.client import (
    ControllerClient,
    ControllerError,
    ControllerUnreachable,
    Topic,
    TopicExists,
    TopicLimit,
)
from controller.api.commands import ConfigureTopic, CreateTopic
from gateway.config.config import TopicsConfig
from gateway.domain.errors import Cause, Refusal
from gateway.publishing.routing import topic_settings
from gateway.publishing.routing.router import AMQP_TOPICS
from gateway.publishing.routing.topic_settings import TopicSettings
from gateway.publishing.topic_shares import UsedShares
from store.api.client import StoreClient
from store.base import logs
from store.base.errors import StoreError
from store.base.process_errors import ConfigError
from store.format.frame import QueueNumber
from store.format.queue_config import QueueConfig

TOPICS_INTERVAL_MS = 5_000  # between two looks whether there are queues that the store should know more of
RETRY_AFTER_MS = 5_000
_NEVER = frozenset({ControllerError, TopicExists})  # such as a name that is too long; all others may pass

log = logs.get(__name__)


class Created(Protocol):
    """Takes the end of a creation: the topic is there, or `refusal` says why not."""

    def __call__(self, name: str, refusal: Refusal | None, creator: str) -> None:
        """Continues the publishes that wait for the topic."""


class TopicKeeper:
    """Asks the controllers for topics, and tells the store the retention of their queues.

    It belongs to the event loop; `clock` counts seconds. `created` follows each `create` once.
    """

    def __init__(
        self,
        store: StoreClient,
        controller: ControllerClient,
        config: TopicsConfig,
        *,
        spawn: Callable[[Coroutine[Any, Any, object]], object],
        clock: Callable[[], float],
        created: Created,
    ) -> None:
        self._store = store
        self._controller = controller
        self._config = config
        self._spawn = spawn
        self._created = created
        self._used_shares = UsedShares(clock)
        self._changed = False  # since the store was told of their queues
        self._silent = False  # the controllers have not answered, and publishing waits for them no more
        self._looking = False  # a request to silent controllers is in flight

    async def configure(self) -> None:
        """Makes the topics that the configuration names, and tells the store the retention of all topics' queues.

        Raises `ConfigError`.
        """
        for said in self._config.configure:
            try:
                topic = await self._configured(said)
            except ControllerError as refused:
                raise ConfigError(f"topics.configure: {said.name}: {refused}") from refused
            if said.queues not in {None, len(topic.queues)}:
                log.warning(
                    "a topic keeps its number of queues: fewer than it has cannot be configured",
                    topic=said.name,
                    queues=len(topic.queues),
                    asked=said.queues,
                )
        # The store may lack settings after a crash, too: it gets those that the controller has and it does not know.
        await self._tell_store(self._controller.topics())

    def changed(self) -> None:
        """Notes that topics may have changed, for the next `follow`."""
        self._changed = True

    async def follow(self) -> None:
        """Configures queues that topics have got, as when one was moved to another group, like the others."""
        if self._changed:
            self._changed = False
            await self._tell_store([topic for topic in self._controller.topics() if topic.config])

    def create(self, name: str, creator: str) -> None:
        """Begins to create a topic, which counts in the creator's share."""
        self._spawn(self._create(name, creator))

    async def _create(self, name: str, creator: str) -> None:
        refusal = self._used_shares.refusal(creator)
        if refusal is None and not self._config.auto_create:
            refusal = Refusal(Cause.NOT_FOUND, f"there is no topic {name!r}")
        if refusal is None and self._silent:
            self._created(name, _not_now(name), creator)
            await self._look(name, creator)
            return
        outcome: Refusal | None = Refusal(Cause.UNAVAILABLE, "the controller failed", retry_after_ms=RETRY_AFTER_MS)
        try:
            outcome = refusal or await self._asked(name, creator)
        finally:
            self._created(name, outcome, creator)

    async def _look(self, name: str, creator: str) -> None:
        """Asks silent controllers for a topic that was refused, so that one after it is made when they answer again."""
        if not self._looking:
            self._looking = True
            try:
                await self._asked(name, creator)
            finally:
                self._looking = False

    async def _asked(self, name: str, creator: str) -> Refusal | None:
        """Asks the controllers for a topic; returns why there is none."""
        refusal = None
        try:
            await self._controller.do(CreateTopic(name=name, creator="" if name in AMQP_TOPICS else creator))
        except TopicLimit as full:
            refusal = self._used_shares.note(creator, Refusal(Cause.QUOTA, str(full)))
        except ControllerError as error:
            if type(error) in _NEVER:
                refusal = Refusal(Cause.MALFORMED, str(error))
            else:
                if not self._silent:
                    log.warning("a topic cannot be made now", topic=name, error=str(error))
                self._silent = isinstance(error, ControllerUnreachable)
                return _not_now(name)
        self._silent = False
        return refusal

    async def _configured(self, said: TopicSettings) -> Topic:
        topic = self._controller.topic(said.name)
        if topic is None:
            return await self._controller.do(CreateTopic(name=said.name, queues=said.queues or 0, config=said.config()))
        if dict(topic.config) != said.config():
            topic = await self._controller.do(ConfigureTopic(name=said.name, config=said.config()))
            log.info("topic configured", topic=said.name, config=topic_settings.summary(topic.config))
        return topic

    async def _tell_store(self, topics: Iterable[Topic]) -> None:
        """Tells the store the retention of topics that it does not know yet."""
        configs = [one for topic in topics for one in topic_settings.queue_configs(topic)]
        known = self._store.queues.config
        unknown = [one for one in configs if one != (known(QueueNumber(one.queue)) or QueueConfig(one.queue))]
        try:
            await self._store.queues.configure(unknown)
        except StoreError as error:  # a full disk, a group out of reach; stored messages can still be read
            log.warning("topics could not be configured yet", error=str(error))
            self._changed = True


def _not_now(name: str) -> Refusal:
    why = f"the topic {name!r} cannot be made now, as the controllers do not take it"
    return Refusal(Cause.UNAVAILABLE, why, retry_after_ms=RETRY_AFTER_MS)
