"""A task that notes that it was cancelled."""


class CancelledTask:
    """A task that holds something, until it is cancelled."""

    cancelled = False

    def cancel(self):
        self.cancelled = True
