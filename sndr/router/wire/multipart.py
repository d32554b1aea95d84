"""`multipart/form-data` as it arrives: where the member `model` is, and nothing else.

The body is never taken apart: the reader looks at the bytes as they pass, remembers the place of one value, and the
body goes on with at most that value replaced. What form parsers disagree about is refused, so that the gateway and the
server cannot read two different forms in the same bytes: anything before the first or after the last boundary, a
boundary after a bare line end, folded or repeated fields, names written in two ways, escaped quotes, characters other
than UTF-8, a second `model`.

Source: RFC 7578 (forms), RFC 2046 5.1 (boundaries).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sndr.router.wire.openai_api import Refused

__all__ = ["Form", "FormReader"]

PART_HEAD_MAX: Final = 8_192
PART_FIELDS_MAX: Final = 8
PARAMETERS_MAX: Final = 8
PARTS_MAX: Final = 1_000
"""As many as form parsers take where nobody says otherwise; with the limits above, what one read can cost the loop."""
MODEL_MAX: Final = 1_024
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=?-]{1,70}")
_PARAMETER: Final = re.compile(rb'[ \t]*;[ \t]*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=(?:"([^"\r\n]*)"|([^\s";,]+))')
_REST: Final = re.compile(rb"[ \t;]*\Z")
_TYPE: Final = re.compile(rb"[ \t]*multipart/form-data(?=[ \t]*;)", re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"[ \t]*form-data(?=[ \t]*;)", re.IGNORECASE)
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\r\n\0]*)")
_PLAIN_ENCODINGS: Final = frozenset((b"7bit", b"8bit", b"binary"))
_CHARSETS: Final = frozenset((b"utf-8", b"utf8", b"us-ascii", b"ascii", b"iso-8859-1"))
"""Some clients say the last one of whatever they send; of ASCII it makes the same."""
_YES: Final = frozenset((b"true", b"1", b"yes", b"on"))

# What comes next: a boundary line, the fields of a part, or nothing.
_DATA, _LINE, _HEAD, _END = range(4)


class Form:
    """A whole form, as far as the gateway reads it.

    Attributes:
        model: The model name as sent.
        start, end: Where its bytes are in the body.
        stream: The form asks for a stream.
        length: Bytes of the body.
    """

    __slots__ = ("end", "length", "model", "start", "stream")

    def __init__(self, model: str, start: int, end: int, length: int, *, stream: bool) -> None:
        self.model = model
        self.start = start
        self.end = end
        self.length = length
        self.stream = stream


class FormReader:
    """Looks at a form's bytes in order, however they are split; needs a bounded amount of memory."""

    __slots__ = (
        "_at",
        "_buffer",
        "_charsets",
        "_dashed",
        "_model",
        "_name",
        "_parts",
        "_place",
        "_start",
        "_state",
        "_stream",
        "_value",
    )

    def __init__(self, content_type: bytes) -> None:
        """Take the boundary from the request's content type.

        Raises:
            Refused: It is not that of a form.
        """
        boundary, charset = _boundary(content_type)
        self._dashed = b"--" + boundary
        self._charsets = {charset}
        # The first boundary stands at the very start: a line end before it makes it like all others.
        self._buffer = b"\r\n"
        self._place = 0
        self._at = -2
        self._state = _DATA
        self._parts = 0
        self._name = b""
        self._start = 0
        self._value: bytearray | None = bytearray()
        self._model: tuple[bytes, int, int] | None = None
        self._stream = False

    def feed(self, data: bytes) -> None:
        """Look at the next bytes.

        Raises:
            Refused: The form is ambiguous.
        """
        self._buffer = self._buffer + data if self._buffer else data
        while self._step():
            pass
        # What has been looked at goes now, and not part by part: each time, all the rest would be copied.
        self._buffer = self._buffer[self._place :]
        self._place = 0

    def finish(self) -> Form:
        """The body is complete.

        Raises:
            Refused: The form is not.
        """
        if self._state != _END:
            raise _malformed("the form has no end")
        length = self._at + len(self._buffer)
        if self._model is None:
            raise Refused(400, "invalid_request", "the member `model` is missing", param="model")
        value, start, end = self._model
        if not value.isascii() and b"iso-8859-1" in self._charsets:
            raise _malformed("a model that is not UTF-8")
        try:
            model = value.decode()
        except UnicodeDecodeError:
            raise Refused(400, "invalid_request", "the member `model` is not UTF-8", param="model") from None
        return Form(model, start, end, length, stream=self._stream)

    def _step(self) -> bool:
        """Make one step; False when bytes are missing for it."""
        state, buffer, place = self._state, self._buffer, self._place
        if state == _DATA:
            return self._data(buffer, place)
        if state == _LINE:
            if len(buffer) - place < 2:
                return False
            if buffer.startswith(b"\r\n", place):
                self._state = _HEAD
            elif buffer.startswith(b"--", place):
                self._state = _END
            else:
                raise _malformed("a line that only begins like a boundary")
            self._skip(2)
            return True
        if state == _HEAD:
            end = buffer.find(b"\r\n\r\n", place)
            if (len(buffer) if end < 0 else end) - place > PART_HEAD_MAX:
                raise _malformed("the fields of a part are too large")
            if end < 0:
                return False
            self._part(buffer[place:end])
            self._skip(end + 4 - place)
            self._start = self._at
            self._state = _DATA
            return True
        if buffer[place : place + 3] not in (b"", b"\r", b"\r\n"):
            raise _malformed("bytes after the end of the form")
        return False

    def _data(self, buffer: bytes, place: int) -> bool:
        found = self._find(buffer, place)
        used = found - place if found >= 0 else max(0, len(buffer) - place - len(self._dashed) - 1)
        value = self._value
        if value is not None:
            value += buffer[place : place + used]
            if len(value) > MODEL_MAX:
                raise Refused(400, "invalid_request", "a plain member of the form is too long", param=self._named())
        if found < 0:
            self._skip(used)
            return False
        self._end_of_part(self._at + used)
        self._skip(used + 2 + len(self._dashed))
        self._state = _LINE
        return True

    def _find(self, buffer: bytes, place: int) -> int:
        """Where the line end before the next boundary is; -1 when none is here. Other line ends are no line ends."""
        # Only what stands at the beginning of somebody's line is looked for: a form may be full of the boundary's text.
        dashed = self._dashed
        line = buffer.find(b"\n" + dashed, place)
        before = buffer.find(b"\r" + dashed, place, line if line >= 0 else len(buffer))
        at_start = self._at == self._start and self._parts and buffer.startswith(dashed, place)
        if before >= 0 or at_start or line == place or (line >= 0 and buffer[line - 1] != 0x0D):
            raise _malformed("a boundary after something that only some take for a line end")
        return line - 1 if line >= 0 else -1

    def _end_of_part(self, end: int) -> None:
        value = self._value
        self._value = None
        if not self._parts:
            if value:
                raise _malformed("bytes before the first boundary")
        elif value is not None:
            if self._name == b"model":
                self._model = (bytes(value), self._start, end)
            else:
                self._stream = bytes(value).strip().lower() in _YES
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise _malformed("the form has too many parts")

    def _part(self, head: bytes) -> None:
        fields: dict[bytes, bytes] = {}
        if head.count(b"\r\n") >= PART_FIELDS_MAX:
            raise _malformed("a part with too many fields")
        for line in head.split(b"\r\n"):
            match = _FIELD.fullmatch(line)
            if match is None:
                raise _malformed("a part with a malformed field")
            name = match[1].lower()
            if name in fields:
                raise _malformed("a part with a field twice")
            fields[name] = match[2]
        disposition = fields.get(b"content-disposition", b"")
        kind = _DISPOSITION.match(disposition)
        if kind is None:
            raise _malformed("a part without its name")
        if b'\\"' in disposition:
            raise _malformed("a name with an escaped quote")
        parameters = _parameters(disposition, kind.end())
        name = parameters.get(b"name")
        if name is None or b"\\" in name:
            raise _malformed("a part whose name can be read in two ways, or is missing")
        if name == b"_charset_":
            raise _malformed("a part that says in which characters the others are written")
        self._name = name
        if name not in (b"model", b"stream"):
            return
        if any(parameter.startswith(b"filename") for parameter in parameters):
            raise Refused(400, "invalid_request", "a plain member of the form is a file", param=self._named())
        encoding = fields.get(b"content-transfer-encoding", b"binary").strip().lower()
        if encoding not in _PLAIN_ENCODINGS:
            raise _malformed("a part with a transfer encoding")
        media = fields.get(b"content-type", b"")
        if b";" in media:
            self._charsets.add(_charset(_parameters(media, media.find(b";"))))
        if name == b"model" and self._model is not None:
            raise Refused(400, "invalid_request", "the member `model` is present twice", param="model")
        self._value = bytearray()

    def _named(self) -> str:
        return self._name.decode("ascii")

    def _skip(self, count: int) -> None:
        self._place += count
        self._at += count


def _boundary(content_type: bytes) -> tuple[bytes, bytes]:
    kind = _TYPE.match(content_type)
    parameters = {} if kind is None else _parameters(content_type, kind.end())
    boundary = parameters.get(b"boundary")
    if boundary is None or _BOUNDARY.fullmatch(boundary) is None:
        raise Refused(
            400, "invalid_request", "the body must be multipart/form-data with a boundary", param="content-type"
        )
    return boundary, _charset(parameters)


def _parameters(text: bytes, at: int) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    while _REST.match(text, at) is None:
        match = _PARAMETER.match(text, at)
        if match is None:
            raise _malformed("malformed parameters")
        name = match[1].lower()
        if name in found or len(found) == PARAMETERS_MAX:
            raise _malformed("a parameter twice, or too many")
        if b"*" in name and not name.startswith(b"filename*"):
            # Extended, or a piece of one: some servers put `name*0` and `name*1` together, and some do not.
            raise _malformed("a parameter that can be read in two ways")
        found[name] = match[2] if match[2] is not None else match[3]
        at = match.end()
    return found


def _charset(parameters: Mapping[bytes, bytes]) -> bytes:
    """What names and values are written in, as is said: they are read as UTF-8, and the server must find the same."""
    charset = parameters.get(b"charset", b"utf-8").lower()
    if charset not in _CHARSETS:
        raise _malformed("characters other than UTF-8")
    return charset


def _malformed(what: str) -> Refused:
    return Refused(400, "invalid_request", f"the form cannot be read safely: {what}")
