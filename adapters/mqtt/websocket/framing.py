"""MQTT packets in the binary frames of a WebSocket, cut and joined in any way (MQTT-6.0.0-2)."""

from adapters.mqtt.websocket.frames import CloseCode, Frames, Opcode, close_frame, data_frames, frame


class MqttFraming:
    """See `adapters.websocket.connection.Framing`. All output of a turn leaves in one frame."""

    __slots__ = ("_frames", "_said_bye", "answers", "ended", "mistake", "refusal_code")
    data = staticmethod(data_frames)

    def __init__(self) -> None:
        self.answers = b""
        self.ended: str | None = None
        self.mistake: tuple[int, str] | None = None  # none: the connection judges packets
        self.refusal_code: int = CloseCode.POLICY_VIOLATION
        self._frames = Frames()
        self._said_bye = False  # a close frame was made

    def receive(self, data: bytes) -> bytes:
        """See `Framing`."""
        frames = self._frames
        payload = frames.receive(data)
        if frames.ping is not None or frames.closed is not None or frames.fault is not None:
            self._note(frames)
        return payload

    def _note(self, frames: Frames) -> None:
        """Takes the control frames of a read."""
        if frames.ping is not None and not self._said_bye:
            self.answers = frame(Opcode.PONG, frames.ping)
        frames.ping = None
        if frames.fault is not None:
            self.ended = frames.fault.detail
            self.answers += self.close(frames.fault.code, frames.fault.detail)
        elif frames.closed is not None:
            self.ended = ""
            self.answers += self.close(frames.closed, "")

    def close(self, code: int, reason: str) -> bytes:
        """See `Framing`."""
        if self._said_bye:
            return b""
        self._said_bye = True
        return close_frame(code, reason)

    def release(self) -> None:
        """See `Framing`: payload is passed on as it comes."""
