"""The ground floor: the parts that every process of Headgate has, whatever its role.

Here live the errors of a store (`errors`) and the root of all others (`process_errors`), structured logs (`logs`), the
runner of servers with its signals and limits (`runner`), the memory of a process (`memory`), the clock, periodic work
in step (`rhythm`), listeners on changes (`listeners`), the admin port with the rules for browsers (`admin`,
`browsers`), the ports that any host can reach (`listening`), and the parts of long-lived streams (`streams`).

Imported by: store.*, adapters.coap, adapters.http, adapters.mqtt, controller.disk, controller.incarnations,
controller.node, controller.remote, controller.wire, gateway.*, spark.job, spark.publishing, spark.source.
Imports: none.
"""
