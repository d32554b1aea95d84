"""Forms as clients send them for a transcription."""

from __future__ import annotations

FORM = "multipart/form-data; boundary=frontier"
SOUND = b"RIFF\0\xff--frontier\r\n--front" * 99


def form(model: str, *, stream: bool = False, sound: bytes = SOUND) -> bytes:
    """A transcription's form, the model after the file."""
    parts = [b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + sound,
             b'Content-Disposition: form-data; name="model"\r\n\r\n' + model.encode()]  # fmt: skip
    if stream:
        parts.insert(0, b'Content-Disposition: form-data; name="stream"\r\n\r\ntrue')
    return b"".join(b"--frontier\r\n" + part + b"\r\n" for part in parts) + b"--frontier--\r\n"
