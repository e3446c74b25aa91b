"""Errors that the analytics side raises on purpose."""


class SparkError(Exception):
    """The root."""


class BadOption(SparkError, ValueError):
    """An option that cannot be used; the text names it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why

    def __str__(self) -> str:
        return f"option {self.name} {self.why}"


class DataLoss(SparkError):
    """Records that a query still had to read are gone from the store."""

    def __init__(self, queue: int, start: int, first: int, next_: int) -> None:
        super().__init__(queue, start, first, next_)
        self.queue, self.start, self.first, self.next = queue, start, first, next_

    def __str__(self) -> str:
        return (
            f"queue {self.queue} was to be read from offset {self.start} on, but holds {self.first} to {self.next}: "
            "records are lost to this query. Set failOnDataLoss to false to go on with the rest."
        )


class DiskFull(SparkError):
    """The disk of the tables is full."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url

    def __str__(self) -> str:
        return (
            f"the disk of {self.url} is full: No space left on device. Free some of it, and start the job again: it "
            "goes on with the batch it had, and nothing is lost. `headgate spark tables expire` and `vacuum` make room "
            "where no batch is half committed"
        )


class MissingJdk(SparkError):
    """The Java that Spark needs is missing; the text is one line and names the package to install."""


class OutputBusy(SparkError):
    """The output directory is in use by another job."""


class OutputMismatch(SparkError):
    """An output directory and a checkpoint that do not belong together; writing on would lose or double records."""


class BadRow(SparkError, ValueError):
    """A row that no message can be made of; the text says which and why."""


class GatewayUnreachable(SparkError):
    """The gateway does not answer, or is overloaded for too long; asking again later is safe."""


class PublishRefused(SparkError):
    """The gateway has refused messages for good."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.status, self.detail = status, detail

    def __str__(self) -> str:
        return f"the gateway has refused it with status {self.status}: {self.detail}"
