"""PUBACK, PUBREC and PUBCOMP as bytes (MQTT 5.0, 3.4, 3.5 and 3.7): a batch of them is joined, not encoded one by one.

|0x40 PUBACK|2|Identifier 16|         |0x40 PUBACK|3|Identifier 16|Code 8|
"""

PUBACK, PUBREC, PUBCOMP = b"\x40\x02", b"\x50\x02", b"\x70\x02"
_PUBACK_CODED, _PUBREC_CODED = b"\x40\x03", b"\x50\x03"


def acknowledgement(qos: int, identifier: bytes, code: int = 0) -> bytes:
    """Returns the PUBACK or PUBREC of a message; without `code` it is the one that 3.1.1 knows, too."""
    if code:
        return (_PUBACK_CODED if qos == 1 else _PUBREC_CODED) + identifier + bytes((code,))
    return (PUBACK if qos == 1 else PUBREC) + identifier
