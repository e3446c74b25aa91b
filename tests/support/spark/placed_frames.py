"""Frames at a place in a log, for the source's columns."""

from store.format.frame import Frame, UnplacedFrame


def placed(built: UnplacedFrame, log_offset: int) -> Frame:
    header = built.header(log_offset=log_offset, epoch=1, stored_at_ms=5_000 + log_offset)
    frame = Frame.parse(header + built.rows + built.payload, log_offset=log_offset)
    assert frame is not None
    return frame
