"""The leasing of a queue's messages to one group, as sets and dictionaries of offsets."""

from store.format.policy import DEFAULT

NEVER_MS = 1 << 62  # until when a lease lasts that does not end by itself


class LeaseModel:
    """The messages of a queue for one group: settled, leased, kept back, given up."""

    def __init__(self, policy=DEFAULT):
        self.policy = policy
        self.settled = set()
        self.held = {}  # offset -> (owner, until)
        self.kept_back = {}  # offset -> until
        self.deliveries = {}  # offset -> how often it has come back
        self.dead = []  # (offset, reason, deliveries) of what was given up, in some order

    def free(self, keys):
        """Returns the offsets that may be leased, of messages with these keys (0: none).

        Of an ordered group they are the first of each key of which none is leased or kept back.
        """
        out = self.settled | set(self.held) | set(self.kept_back)
        found = [offset for offset in range(len(keys)) if offset not in out]
        if not self.policy.ordered:
            return found
        busy = {keys[offset] for offset in (*self.held, *self.kept_back)} - {0}
        firsts = {}
        for offset in found:
            firsts.setdefault(keys[offset] or ("none", offset), offset)
        return sorted(offset for key, offset in firsts.items() if key not in busy)

    def of(self, owner):
        """Returns the offsets that an owner has been leased, in the order of leasing."""
        return [offset for offset, (by, _) in self.held.items() if by == owner]

    def lease(self, offsets, owner, until_ms=NEVER_MS):
        self.held.update(dict.fromkeys(offsets, (owner, until_ms)))

    def settle(self, offsets):
        self.settled.update(offsets)
        for offset in offsets:
            self.held.pop(offset, None)

    def reject(self, offsets):
        for offset in offsets:
            del self.held[offset]
            self._give_up(offset, "rejected")

    def come_back(self, offsets, *, now_ms=0, delay_ms=None, delivered=True):
        """Ends leases; what was `delivered` too often is given up, other messages wait as the policy says."""
        for offset in sorted(offsets):
            del self.held[offset]
            if delivered:
                self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
                if self.policy.exhausted(self.deliveries[offset]):
                    self._give_up(offset, "delivery_limit")
                    continue
            wait_ms = delay_ms
            if wait_ms is None:
                wait_ms = self.policy.delay_ms(self.deliveries[offset]) if delivered else 0
            if wait_ms:
                self.kept_back[offset] = now_ms + wait_ms

    def pass_time(self, now_ms):
        """Ends what lasts no longer than until now."""
        over = [offset for offset, (_, until) in self.held.items() if until <= now_ms]
        self.kept_back = {offset: until for offset, until in self.kept_back.items() if until > now_ms}
        self.come_back(over, now_ms=now_ms)

    def restart(self):
        """Forgets all leases, as a store does that starts: it counts one delivery of what lies before a settled one."""
        self.end()
        self.deliveries = dict.fromkeys(range(max(self.settled, default=-1)), 1)

    def end(self):
        """Ends all leases; no message counts as delivered before."""
        self.held, self.kept_back, self.deliveries = {}, {}, {}

    def _give_up(self, offset, reason):
        self.settled.add(offset)
        self.dead.append((offset, reason, self.deliveries.get(offset, 0)))
