"""Forms: the model is found wherever it stands and however the bytes are split; what is ambiguous is refused."""

from __future__ import annotations

import pytest

from sndr.router.wire.multipart import Form, FormReader
from sndr.router.wire.openai_api import Refused

TYPE = b"multipart/form-data; boundary=xYz"
FILE = b'Content-Disposition: form-data; name="file"; filename="C:\\a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\n'


PARAMETERS = (b"; name=a", *(b"; p%d=1" % number for number in range(1, 8)))


def form(*parts: bytes, end: bytes = b"--xYz--\r\n") -> bytes:
    return b"".join(b"--xYz\r\n" + part + b"\r\n" for part in parts) + end


def read(data: bytes, size: int = 1 << 20, content_type: bytes = TYPE) -> Form:
    reader = FormReader(content_type)
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    return reader.finish()


AUDIO = FILE + b"RIFF\r\n--xY\r\n--\r\n\r\n\0\xff" * 7
STREAM = b'Content-Disposition: form-data; name="stream"\r\n\r\nTrue'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_model_is_found_in_any_place(place: int, size: int) -> None:
    parts = [AUDIO, STREAM]
    parts.insert(place, MODEL + b"whisper-1")
    data = form(*parts)
    found = read(data, size)
    assert (found.model, found.stream, found.length) == ("whisper-1", True, len(data))
    assert data[found.start : found.end] == b"whisper-1"


@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        (b'Multipart/Form-Data; charset=utf-8; boundary="xYz"', form(MODEL + b"m")),
        (TYPE + b";", form(MODEL + b"m", end=b"--xYz--")),
        (TYPE, form(b"content-type: text/plain\r\ncontent-disposition: form-data;name=model\r\n\r\nm")),
        (TYPE, form(b"CONTENT-DISPOSITION: form-data ; name=model\r\ncontent-transfer-encoding: 8bit\r\n\r\nm")),
        (TYPE, form(b"Content-Type: text/plain; charset=ISO-8859-1\r\n" + MODEL + b"m")),
        (TYPE, form(b"Content-Disposition: form-data; name=f; filename*=utf-8''%C3%A9\r\n\r\nq", MODEL + b"m")),
        (TYPE, form(b'Content-Disposition: form-data; name="Model"\r\n\r\nq', MODEL + b"m")),
        (TYPE, form(b'Content-Disposition: form-data; name="file"; filename="model"\r\n\r\nq', MODEL + b"m")),
        (TYPE, form(b'Content-Disposition: form-data; name="f"; filename="; name=model"\r\n\r\nq', MODEL + b"m")),
    ],
)
def test_ways_to_write_it(content_type: bytes, data: bytes) -> None:
    found = read(data, content_type=content_type)
    assert (found.model, found.stream) == ("m", False)
    assert data[found.start : found.end] == b"m"


AMBIGUOUS = {
    "two models": form(MODEL + b"a", MODEL + b"a"),
    "no model": form(AUDIO),
    "no end": form(MODEL + b"a", end=b""),
    "half an end": form(MODEL + b"a", end=b"--xYz-"),
    "empty": b"",
    "before the first boundary": b"x\r\n" + form(MODEL + b"a"),
    "after the end": form(MODEL + b"a") + b"--xYz\r\n" + MODEL + b"b\r\n--xYz--\r\n",
    "a longer boundary": form(MODEL + b"a", end=b"--xYzz--\r\n"),
    "blanks after a boundary": form(MODEL + b"a", end=b"--xYz \r\n" + MODEL + b"b\r\n--xYz--"),
    "bare line ends": form(MODEL + b"a").replace(b"\r\n", b"\n"),
    "a boundary after a bare LF": form(FILE + b"x\n--xYz\n" + MODEL + b"b\n", MODEL + b"a"),
    "a boundary after a bare CR": form(FILE + b"x\r--xYz--", MODEL + b"a"),
    "a boundary right after the fields": form(FILE + b"--xYz\r\n" + MODEL + b"a"),
    "no fields": form(b"\r\na", MODEL + b"a"),
    "no name": form(b"Content-Disposition: form-data\r\n\r\na", MODEL + b"a"),
    "another disposition": form(b'Content-Disposition: attachment; name="model"\r\n\r\na', MODEL + b"a"),
    "two dispositions": form(b"Content-Disposition: form-data; name=a\r\n" + MODEL + b"b", MODEL + b"a"),
    "folded": form(b'Content-Disposition: form-data;\r\n name="model"\r\n\r\na'),
    "two names": form(b'Content-Disposition: form-data; name="a"; name="model"\r\n\r\na', MODEL + b"a"),
    "an extended name": form(b"Content-Disposition: form-data; name=a; name*=utf-8''model\r\n\r\na", MODEL + b"a"),
    "a name in pieces": form(b"Content-Disposition: form-data; name=a; name*0=mo; name*1=del\r\n\r\na", MODEL + b"a"),
    "a file's name in pieces": form(b'Content-Disposition: form-data; name="model"; filename*0=x\r\n\r\na'),
    "an escaped name": form(b'Content-Disposition: form-data; name="mod\\el"\r\n\r\na', MODEL + b"a"),
    "an escaped quote": form(b'Content-Disposition: form-data; name="a"; filename="\\"; name=\\"model"\r\n\r\na'),
    "NUL in a field": form(b'Content-Disposition: form-data; name="mo\0del"\r\n\r\na', MODEL + b"a"),
    "a file": form(b'Content-Disposition: form-data; name="model"; filename="x"\r\n\r\na'),
    "base64": form(b"Content-Transfer-Encoding: base64\r\n" + MODEL + b"YQ=="),
    "not UTF-8": form(MODEL + b"\xff"),
    "characters of its own": form(b"Content-Type: text/plain; charset=utf-7\r\n" + MODEL + b"a"),
    "Latin-1": form(b"Content-Type: text/plain; charset=ISO-8859-1\r\n" + MODEL + "\u00e9".encode()),
    "characters in a part": form(b'Content-Disposition: form-data; name="_charset_"\r\n\r\nutf-7', MODEL + b"a"),
    "too long": form(MODEL + b"a" * 2000),
    "large fields": form(b"A: " + b"a" * 9000 + b"\r\n" + MODEL + b"a"),
    "many fields": form(b"".join(b"X-%d: b\r\n" % number for number in range(8)) + MODEL + b"a"),
    "many parameters": form(
        b"".join([b"Content-Disposition: form-data", *PARAMETERS, b"; p8=1\r\n\r\na"]), MODEL + b"a"
    ),
    "many parts": form(*[b'Content-Disposition: form-data; name="a"\r\n\r\nb'] * 1001, MODEL + b"a"),
}


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
@pytest.mark.parametrize("name", sorted(AMBIGUOUS))
def test_what_is_ambiguous_is_refused(name: str, size: int) -> None:
    with pytest.raises(Refused) as caught:
        read(AMBIGUOUS[name], size)
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    "content_type",
    [b"", b"application/json", b"multipart/form-data", b"multipart/mixed; boundary=a",
     b"multipart/form-data; boundary=", b'multipart/form-data; boundary=""',
     b"multipart/form-data; boundary=a; boundary=b",
     b"multipart/form-data; boundary=" + b"a" * 71, b'multipart/form-data; boundary="a b"',
     b"multipart/form-data; boundary=a; boundary*0=b", b"multipart/form-data; boundary=a; charset=utf-16",
     b"multipart/form-data; boundary=a; charset*=utf-8''utf-7",
     b"multipart/form-data; boundary=a junk"],
)  # fmt: skip
def test_content_types_that_are_no_form(content_type: bytes) -> None:
    with pytest.raises(Refused):
        FormReader(content_type)


def test_as_many_fields_and_parameters_as_are_allowed() -> None:
    fields = b"".join(b"X-%d: b\r\n" % number for number in range(7))
    other = b"".join([b"Content-Disposition: form-data", *PARAMETERS, b"\r\n\r\na"])
    assert read(form(other, fields + MODEL + b"a")).model == "a"


def test_memory_stays_bounded() -> None:
    reader = FormReader(TYPE)
    reader.feed(b"--xYz\r\n" + FILE)
    for _ in range(64):
        reader.feed(b"\r\n--xY" * 10_000)
        assert len(reader._buffer) < 64
