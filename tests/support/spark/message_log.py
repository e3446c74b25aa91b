"""A gateway's `GET /messages?queue=...` over samples of `sample_tables`, one message a sample."""

from datetime import UTC, datetime

import httpx

LOOKED_MAX = 400  # offsets that one answer looks at: a page takes several requests


def text_of(instant):
    """Returns a time as the gateway writes it."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class MessageLog:
    """One queue. `asked` are the parameters of requests; `body_of` makes the data of a sample."""

    def __init__(self, samples, *, looked_max=LOOKED_MAX, body_of=None):
        self.rows = {row["offset"]: row for row in samples.to_pylist()}
        self.asked = []
        self.forbidden = ""  # an address that nobody may read
        self._looked_max = looked_max
        self._body_of = body_of or (lambda row: {row["metric"]: row["value"]})

    def __call__(self, request):
        asked = request.url.params
        self.asked.append(dict(asked) | {"addresses": asked.get_list("address")})
        if self.forbidden in asked.get_list("address"):
            return httpx.Response(
                403, json={"title": "Forbidden", "detail": f"subscribe {self.forbidden}: not allowed"}
            )
        offset, limit = int(asked["offset"]), int(asked["limit"])
        until = datetime.fromtimestamp(int(asked["to"]) / 1000, UTC) if "to" in asked else None
        end = max(self.rows) + 1
        if until is not None:
            end = max((n + 1 for n, row in self.rows.items() if row["stored_at"] < until), default=0)
        events = []
        stop = min(end, offset + self._looked_max)
        for at in range(offset, stop):
            row = self.rows[at]
            if row["address"] in asked.get_list("address"):
                if len(events) == limit:
                    return self._answer(events, at)
                events.append(self._event(row))
        return self._answer(events, stop if stop < end else None)

    def _answer(self, events, after):
        headers = {} if after is None else {"link": f'</messages?queue=16&after={after}>; rel="next"'}
        return httpx.Response(200, json=events, headers=headers)

    def _event(self, row):
        return {
            "specversion": "1.0",
            "id": f"{row['offset']}.0",
            "source": "//headgate/telemetry",
            "type": "headgate.message.v1",
            "subject": row["address"],
            "time": text_of(row["time"]),
            "datacontenttype": "application/json",
            "data": self._body_of(row),
            "headgatetopic": "telemetry",
            "headgatequeue": "16",
            "headgateoffset": str(row["offset"]),
            "headgatestored": text_of(row["stored_at"]),
            "headgateprotocol": "mqtt",
            "headgatedevice": row["device"],
        }
