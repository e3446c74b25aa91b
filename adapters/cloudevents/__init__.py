"""CloudEvents 1.0: how events are read from and written to the domain message. Shared by the adapters.

Binary mode: `from_attributes` and `attributes_of` (or `wrap`, for a message that never was an event), with attribute
names as the specification writes them; a binding adds and strips its own prefix. Structured mode and batches in JSON:
`from_structured`, `to_structured`, `from_batch`, `to_batch`.
In Protobuf: `from_protobuf`, `to_protobuf`; in Avro: `from_avro`, `to_avro`. Whatever way an event comes in and leaves,
it is the same event. Everything malformed raises `gateway.domain.errors.Refusal` (MALFORMED) whose detail begins with
the attribute's name.

Imported by: amqp, coap, http, mqtt.
Imports: gateway.domain, gateway.port, store.api.
"""

from adapters.cloudevents.attributes import (
    ADDRESS,
    CORE,
    OMITTED,
    OURS,
    PROPERTIES,
    AttributeRefusal,
    Route,
    clean,
    is_name,
    says_events,
    split,
)
from adapters.cloudevents.avro import STRUCTURED_AVRO, from_avro, to_avro
from adapters.cloudevents.event import (
    DEFAULT_TYPE,
    NATIVE,
    attributes_of,
    correlation_beside,
    from_attributes,
    is_extension,
    is_typed,
    placed,
    typed_of,
    wrap,
)
from adapters.cloudevents.protobuf import (
    BATCH_PROTOBUF,
    STRUCTURED_PROTOBUF,
    each_of_protobuf_batch,
    from_protobuf,
    to_protobuf,
    to_protobuf_batch,
)
from adapters.cloudevents.rules import EventRoute, route_by
from adapters.cloudevents.structured import (
    BATCH_JSON,
    STRUCTURED_JSON,
    BatchRefusal,
    data_type,
    each_of_batch,
    from_batch,
    from_structured,
    is_json,
    is_structured,
    to_batch,
    to_document,
    to_structured,
    whole_batch,
)
from adapters.cloudevents.timestamps import canonical_ms, format_ms, parse_ms
from adapters.cloudevents.verbatim import KEPT_BYTES_MAX, around, whole

__all__ = [
    "ADDRESS",
    "BATCH_JSON",
    "BATCH_PROTOBUF",
    "CORE",
    "DEFAULT_TYPE",
    "KEPT_BYTES_MAX",
    "NATIVE",
    "OMITTED",
    "OURS",
    "PROPERTIES",
    "STRUCTURED_AVRO",
    "STRUCTURED_JSON",
    "STRUCTURED_PROTOBUF",
    "AttributeRefusal",
    "BatchRefusal",
    "EventRoute",
    "Route",
    "around",
    "attributes_of",
    "canonical_ms",
    "clean",
    "correlation_beside",
    "data_type",
    "each_of_batch",
    "each_of_protobuf_batch",
    "format_ms",
    "from_attributes",
    "from_avro",
    "from_batch",
    "from_protobuf",
    "from_structured",
    "is_extension",
    "is_json",
    "is_name",
    "is_structured",
    "is_typed",
    "parse_ms",
    "placed",
    "route_by",
    "says_events",
    "split",
    "to_avro",
    "to_batch",
    "to_document",
    "to_protobuf",
    "to_protobuf_batch",
    "to_structured",
    "typed_of",
    "whole",
    "whole_batch",
    "wrap",
]
