"""Filters over the attributes of events: CESQL 1.0, and the dialects of the CloudEvents Subscriptions API.

    logic      = comparison { ( AND | OR | XOR ) comparison }              from the left, all three of one rank
    comparison = sum { ( = | != | <> | < | <= | > | >= ) sum }
    sum        = product { ( + | - ) product }
    product    = test { ( * | / | % ) test }
    test       = unary { [NOT] LIKE text | [NOT] IN ( logic {, logic} ) }
    unary      = ( NOT | - ) unary | EXISTS name | atom
    atom       = whole number | 'text' | "text" | TRUE | FALSE | name | function ( [logic {, logic}] ) | ( logic )

An event is a mapping of attribute names to texts, whole numbers and booleans, which are the three types of the
language; a value that an operator does not take is cast. An expression always has a value. Where something fails, such
as a cast, a division by zero or a name that the event does not have, the operator around it has the zero value of its
type and the error is returned beside it; an event passes a filter only if the answer is true and there is no error
(CESQL 1.0, 1.2 and 3.3). AND and OR do not evaluate operands that cannot change their answer.

Operators of one rank are evaluated from the left (CESQL 1.0, 3.6). The ANTLR file beside the specification has AND, OR
and XOR from the right instead; the specification does not refer to it, and its conformance suite has no case for it.

The limits of `gateway.domain.expressions` bound the cost of one event.

Imported by: bridges, push.
Imports: domain, domain.expressions.
"""

from gateway.domain.cesql.dialects import FILTERS_MAX, EventFilter, FilterError, compile_filters
from gateway.domain.cesql.expression import Expression, compile_expression
from gateway.domain.cesql.values import ErrorKind, Event, Value

__all__ = [
    "FILTERS_MAX",
    "ErrorKind",
    "Event",
    "EventFilter",
    "Expression",
    "FilterError",
    "Value",
    "compile_expression",
    "compile_filters",
]
