"""The bytes of the log: frames, their records, and the values that records carry.

Here live the frame (`frame`) and its compression, the store's own records (`records`) and their settings of queues
(`policy`, `queue_config`, `dead_letters`), and the chunks and ranges that frames are cut into. It does no input or
output.

Imported by: store.*, adapters.amqp, adapters.http, adapters.mqtt, gateway.*, spark.source.
Imports: base.
"""
