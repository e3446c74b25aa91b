"""Programs that publish: transactions, messages that come back, exchanges of all kinds, properties of all types."""

import datetime
from decimal import Decimal

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.support.amqp.programs.stage import Stage, bodies, waiting


def work_in_transactions(stage: Stage) -> None:
    """Publishes and acknowledges in transactions, some of which are rolled back."""
    with stage.connect() as connection:
        channel, watcher = connection.channel(), connection.channel()
        queue = stage.queue(watcher, "q")
        channel.tx_select()
        channel.basic_publish("", queue, b"1")
        stage.say("before the commit", waiting(watcher, queue))
        channel.tx_commit()
        channel.basic_publish("", queue, b"2")
        channel.tx_rollback()
        stage.say("after commit and rollback", bodies(watcher, queue))
        watcher.basic_publish("", queue, b"3")
        method, _, _ = stage.next(channel, queue)
        channel.basic_ack(method.delivery_tag)
        channel.tx_rollback()
        channel.basic_ack(method.delivery_tag)  # it is unacknowledged again
        channel.basic_publish("", queue, b"4")
        channel.tx_commit()
        stage.say("after both", bodies(watcher, queue))
        channel.basic_publish(stage.name("nowhere"), "", b"5")
        try:
            channel.tx_commit()
        except ChannelClosedByBroker as error:
            stage.say(error.reply_code, error.reply_text)
    stage.mistake("a commit without a transaction", lambda c: c.tx_commit())
    stage.mistake("a rollback without a transaction", lambda c: c.tx_rollback())
    stage.mistake("confirms in a transaction", lambda c: (c.tx_select(), c.confirm_delivery()))
    stage.mistake("a transaction with confirms", lambda c: (c.confirm_delivery(), c.tx_select()))


def messages_that_come_back(stage: Stage) -> None:
    """Publishes mandatory messages to where no queue is bound, and asks for immediate delivery."""
    with stage.channel() as channel:
        queue = stage.queue(channel, "q")
        channel.confirm_delivery()
        for exchange, key in (("", stage.name("nobody")), ("amq.direct", "k"), ("amq.fanout", "")):
            try:
                channel.basic_publish(exchange, key, b"x", pika.BasicProperties(type="t"), mandatory=True)
            except UnroutableError as error:
                (back,) = error.messages
                method = back.method
                stage.say(method.reply_code, method.reply_text, repr(method.exchange), repr(method.routing_key))
                stage.say(back.body, back.properties.type)
        channel.basic_publish("", queue, b"x", mandatory=True)
        stage.say(waiting(channel, queue))

    def immediate(channel: BlockingChannel) -> None:
        impl = channel._impl
        impl._send_method(
            pika.spec.Basic.Publish(exchange="", routing_key="q", immediate=True), (pika.BasicProperties(), b"x")
        )

    stage.mistake("immediate", immediate)


def mistakes_of_beginners(stage: Stage) -> None:
    """Makes mistakes whose words applications are known to look at."""
    with stage.channel() as channel:
        queue, other = stage.queue(channel, "q"), stage.name("other")
        common, exchange = stage.name("common"), stage.name("x")
        channel.queue_declare(common, arguments={"x-max-length": 5})
        channel.exchange_declare(exchange, "direct")
        channel.queue_bind(common, exchange, "k")
        channel.basic_publish("", common, b"x")
        for what, act in (
            ("another durability", lambda c: c.queue_declare(common, durable=True, arguments={"x-max-length": 5})),
            ("another argument", lambda c: c.queue_declare(common, arguments={"x-max-length": 6})),
            ("no argument", lambda c: c.queue_declare(common)),
            (
                "one more argument",
                lambda c: c.queue_declare(common, arguments={"x-max-length": 5, "x-expires": 90_000}),
            ),
            ("another kind of exchange", lambda c: c.exchange_declare(exchange, "fanout")),
            ("an unknown kind of exchange", lambda c: c.exchange_declare(other, "x-nothing")),
            ("a queue that is not there", lambda c: c.queue_declare(other, passive=True)),
            ("an exchange that is not there", lambda c: c.exchange_declare(other, passive=True)),
            ("publishing to no exchange", lambda c: c.basic_publish(other, "k", b"")),
            ("consuming from no queue", lambda c: c.basic_consume(other, lambda *_: None)),
            ("fetching from no queue", lambda c: c.basic_get(other)),
            ("purging no queue", lambda c: c.queue_purge(other)),
            ("deleting no queue", lambda c: c.queue_delete(other)),
            ("deleting no exchange", lambda c: c.exchange_delete(other)),
            ("binding no queue", lambda c: c.queue_bind(other, "amq.direct", "k")),
            ("binding to no exchange", lambda c: c.queue_bind(common, other, "k")),
            ("unbinding what is not bound", lambda c: c.queue_unbind(common, "amq.direct", "never")),
            ("unbinding from no exchange", lambda c: c.queue_unbind(common, other, "never")),
            ("binding to the default exchange", lambda c: c.queue_bind(common, "", "k")),
            ("a reserved queue", lambda c: c.queue_declare("amq.mine")),
            ("a reserved exchange", lambda c: c.exchange_declare("amq.mine", "direct")),
            ("deleting a reserved exchange", lambda c: c.exchange_delete("amq.direct")),
            ("deleting a queue that is not empty", lambda c: c.queue_delete(common, if_empty=True)),
            ("deleting an exchange that is used", lambda c: c.exchange_delete(exchange, if_unused=True)),
            ("an unknown delivery tag", lambda c: c.basic_ack(7)),
            ("an unknown delivery tag, rejected", lambda c: c.basic_reject(7)),
            ("acknowledging all of nothing", lambda c: c.basic_ack(0, multiple=True)),
            (
                "acknowledging twice",
                lambda c: [c.basic_ack(tag) for tag in (stage.next(c, common)[0].delivery_tag,) * 2],
            ),
            ("a prefetch in bytes", lambda c: c.basic_qos(prefetch_size=5)),
            ("recovering without requeue", lambda c: c.basic_recover(requeue=False)),
            ("somebody else's name", lambda c: c.basic_publish("", common, b"", pika.BasicProperties(user_id="me"))),
            ("a consumer tag that is used", lambda c: [_consume_raw(c, common) for _ in range(2)]),
            ("no queue declared before", lambda c: c.queue_bind("", "amq.direct", "k")),
        ):
            stage.mistake(what, act)
        stage.say(waiting(channel, queue))
        channel.queue_delete(common)
        channel.exchange_delete(exchange)


def _consume_raw(channel: BlockingChannel, queue: str) -> None:
    """Begins a consumer past pika, which looks for the mistake itself."""
    impl = channel._impl
    impl._send_method(pika.spec.Basic.Consume(queue=queue, consumer_tag="t", nowait=True))


def exchanges_of_all_kinds(stage: Stage) -> None:
    """Publishes to exchanges that lead to others, and to an alternate exchange."""
    with stage.channel() as channel:
        names = {kind: stage.name(kind) for kind in ("fanout", "direct", "topic", "headers")}
        unrouted = stage.name("unrouted")
        channel.exchange_declare(unrouted, "fanout", auto_delete=True)
        for kind, name in names.items():
            channel.exchange_declare(name, kind, auto_delete=True, arguments={"alternate-exchange": unrouted})
        queues = {text: stage.queue(channel, text) for text in ("all", "topic", "headers", "unrouted")}
        channel.queue_bind(queues["all"], names["fanout"])
        channel.queue_bind(queues["topic"], names["topic"], "*.error.#")
        channel.queue_bind(queues["headers"], names["headers"], "", {"x-match": "any", "level": 3, "urgent": True})
        channel.queue_bind(queues["unrouted"], unrouted)
        channel.exchange_bind(names["topic"], names["fanout"])
        channel.exchange_bind(names["fanout"], names["direct"], "go")
        channel.confirm_delivery()
        for exchange, key, headers in (
            ("fanout", "a.error", {}),
            ("direct", "go", {}),
            ("direct", "stay", {}),
            ("topic", "a.error.disk.full", {}),
            ("topic", "error", {}),
            ("headers", "", {"level": 3}),
            ("headers", "", {"level": "3"}),
            ("headers", "", {"urgent": True, "level": 1}),
            ("headers", "", {"urgent": "true"}),
            ("headers", "", {"urgent": 1}),
        ):
            said = pika.BasicProperties(headers=headers)
            channel.basic_publish(names[exchange], key, f"{exchange}:{key}:{headers}".encode(), said, mandatory=True)
        for text, queue in queues.items():
            stage.say(text, bodies(channel, queue))


def headers_of_all_types(stage: Stage) -> None:
    """Publishes properties and headers of all types that pika can write, large ones too; they come as they went."""
    now = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    headers = {
        "text": "é",
        "empty": "",
        "yes": True,
        "no": False,
        "nothing": None,
        "small": 1,
        "negative": -1,
        "large": 1 << 40,
        "decimal": Decimal("3.14"),
        "time": now,
        "bytes": b"\x00\xff",
        "list": [1, "a", None, [True], {"b": 2}],
        "table": {"a": {"b": {"c": [1, 2]}}},
        "x-custom": "kept",
        **{f"h{number}": "v" * 100 for number in range(300)},
    }
    with stage.channel() as channel:
        queue = stage.queue(channel, "q")
        said = pika.BasicProperties(
            content_type="application/json",
            content_encoding="utf-8",
            headers=headers,
            delivery_mode=2,
            priority=3,
            correlation_id="c" * 255,
            reply_to="r",
            expiration="60000",
            message_id="m",
            timestamp=1_700_000_000,
            type="t",
            user_id="guest",
            app_id="app",
            cluster_id="",
        )
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"\x00" * 300_000, said)
        method, found, body = stage.next(channel, queue, auto_ack=True)
        stage.say(len(body), method.message_count, found == said)
        stage.say({name: value for name, value in found.headers.items() if not name.startswith("h")})
        for name, value in headers.items():
            if found.headers.get(name) != value:
                stage.say("differs", name, repr(value), repr(found.headers.get(name)))


def fetched_one_by_one(stage: Stage) -> None:
    """Fetches messages in a loop, with and without acknowledgements."""
    with stage.channel() as channel:
        queue = stage.queue(channel, "q")
        stage.say(channel.basic_get(queue))
        for number in range(4):
            channel.basic_publish("amq.direct" if number == 3 else "", queue, b"%d" % number)
            channel.queue_bind(queue, "amq.direct", queue)
        while (found := channel.basic_get(queue, auto_ack=len(channel.consumer_tags) > 0))[0] is not None:
            method, _, body = found
            stage.say(
                method.delivery_tag, method.redelivered, repr(method.exchange), method.message_count, body.decode()
            )
        declared = channel.queue_declare(queue, passive=True).method
        stage.say(declared.message_count, declared.consumer_count)
        channel.basic_nack(0, multiple=True, requeue=True)
        stage.say(bodies(channel, queue))
        stage.say(channel.queue_delete(queue).method.message_count)


PROGRAMS = (
    work_in_transactions,
    messages_that_come_back,
    mistakes_of_beginners,
    exchanges_of_all_kinds,
    headers_of_all_types,
    fetched_one_by_one,
)
