"""A plug-in for amqtt's broker: what clients publish there is stored by a Headgate gateway, too.

Name `amqtt_headgate.HeadgatePlugin` in the broker's configuration (docs/amqtt.md). It runs in the broker's process, and
speaks MQTT 5.0 to the gateway; of this repository it needs the rules of topic filters alone.

`plugin` is what amqtt loads, `handover` delays its acknowledgements, `link` is the connection to the gateway.

Imported by: none.
Imports: gateway.
"""

from amqtt_headgate.plugin import HeadgatePlugin

__all__ = ["HeadgatePlugin"]
