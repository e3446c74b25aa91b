"""The cluster's figures: what is measured, and in how many processes; as `tests.bench.store.studies`."""

from collections.abc import Mapping

from tests.bench.store.studies import Study

_GROUP, _STORES = "tests.bench.cluster.through_proxy", "tests.bench.cluster.stores"
_COST = {
    "mqtt_per_s": "MQTT messages/s",
    "mqtt_shallow_per_s": "200 under way",
    "mqtt_deepest_per_s": "4,000 under way",
    "puback_p50_ms": "PUBACK p50 ms",
    "puback_p99_ms": "p99",
    "proxy_cpu_us": "CPU us a message: proxy",
    "master_cpu_us": "master",
    "replicas_cpu_us": "replicas",
    "frames_mb_per_s": "frames MB/s",
    "frames_master_us": "CPU us a frame: master",
    "frames_replicas_us": "replicas",
    "append_p50_ms": "append p50 ms",
}

CLUSTER_STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        Study(
            name="failover",
            title="From kill -9 of a master to the first acknowledgement of what was published behind it",
            about="Three controllers, three replicas, everything as it is by default. One MQTT client publishes at QoS "
            "1 through a proxy, one message after the other. `elected`: when a client of the controllers hears of it.",
            program=_GROUP,
            cases=[{"what": "failover", "times": 20}],
            columns={"s": "s", "elected_s": "elected s", "before_ms": "longest before ms"},
            rounds_max=1,
            smoke={"times": 1},
        ),
        Study(
            name="replicas",
            title="A group of three beside a single replica",
            about="MQTT at QoS 1 through a proxy: 4 connections with 1,000 messages of 100 bytes under way each, the "
            "same with 200 and 4,000, then one with 200 a second for the times. Processor time is that with 1,000. "
            "Then frames of 100 records of 150 bytes straight to the store, 64 under way, and one after the other. All "
            "processes and the load share the machine's cores and disk.",
            program=_GROUP,
            cases=[{"what": "cost", "replicas": replicas, "seconds": 3.0} for replicas in (1, 3)],
            columns=_COST,
            smoke={"seconds": 0.2},
        ),
        Study(
            name="distance",
            title="A group of three whose nodes are far from each other",
            about="As above, with a network of namespaces and a switch between the nodes, a process that takes part of "
            "the machine too; it holds each packet for so long. What is under way bounds what can be done in that "
            "time: from the proxy to its master, from there to the replicas, and back, it is 8 ms with 2 each way.",
            program=_GROUP,
            cases=[{"what": "cost", "replicas": 3, "seconds": 3.0, "delay_ms": delay} for delay in (0.0, 2.0)],
            columns=_COST,
            smoke={"seconds": 0.2},
        ),
        Study(
            name="proxies",
            title="One proxy and two",
            about="The same load as above over one proxy, and half of it over each of two, before a group of three.",
            program=_GROUP,
            cases=[{"what": "proxies", "proxies": proxies, "seconds": 3.0} for proxies in (1, 2)],
            columns={key: text for key, text in _COST.items() if not key.startswith(("frames", "append"))},
            smoke={"seconds": 0.2},
        ),
        Study(
            name="calls",
            title="Single records and keys, straight to the stores",
            about="Frames of one record of 150 bytes, 64 under way, then one after the other; then gets of a key, one "
            "after the other and 64 at a time, which a group answers when its replicas in sync still follow this "
            "master. CPU is that of all replicas.",
            program=_STORES,
            cases=[{"what": "calls", "replicas": replicas, "seconds": 3.0} for replicas in (1, 3)],
            columns={
                "records_per_s": "records/s",
                "cpu_us": "CPU us a record",
                "append_p50_us": "append p50 us",
                "append_p99_us": "p99",
                "get_p50_us": "get p50 us",
                "get_p99_us": "p99",
                "gets_per_s": "gets/s by 64",
            },
            smoke={"seconds": 0.1},
        ),
        Study(
            name="idle",
            title="A cluster that nobody uses",
            about="Three controllers, two groups of three replicas and two proxies, without clients: what all of them "
            "take of one core, what a process of each role takes, and how often threads go to sleep, which is how "
            "often they were woken.",
            program="tests.bench.cluster.idle",
            cases=[{"seconds": 20.0}],
            columns={
                "percent": "% of a core",
                "controller_percent": "a controller",
                "store_percent": "a store node",
                "proxy_percent": "a proxy",
                "switches_per_s": "wakes/s",
            },
            smoke={"seconds": 0.2, "settle_s": 0.0},
        ),
        Study(
            name="rebuild",
            title="A replica that has lost everything",
            about="From the start of its process with an empty directory until it is in sync again, views included; "
            "nothing else is going on.",
            program=_STORES,
            cases=[{"what": "rebuild", "mb": mb} for mb in (1_000, 5_000)],
            columns={"rebuild_s": "s", "mb_per_s": "MB/s"},
            rounds_max=1,
            smoke={"mb": 10},
        ),
        Study(
            name="commands",
            title="Commands of controllers",
            about="Topics created, each on the disks of a majority before its answer, by so many clients at a time. "
            "Failover: from the loss of the leader to the next command that is answered. "
            "`tests/bench/cluster/controllers.py`.",
            program="tests.bench.cluster.commands",
            cases=[{"seconds": 2.0, "rounds": 3, "tasks": [1, 64]}],
            columns={
                "per_s": "commands/s",
                "p50_ms": "p50 ms",
                "p99_ms": "p99",
                "failover_s": "failover s",
                "worst_s": "worst s",
            },
            rounds_max=1,
            smoke={"seconds": 0.2, "rounds": 1},
        ),
    )
}
