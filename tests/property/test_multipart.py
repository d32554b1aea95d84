"""Forms, whatever they contain: one reading, however the bytes are split, and the one of the standard library."""

from __future__ import annotations

import email.parser
import email.policy
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from sndr.router.wire.multipart import Form, FormReader
from sndr.router.wire.openai_api import Refused

TYPE = b"multipart/form-data; boundary=b"

#: Pieces that forms are made of, and pieces that only look like it.
PIECES = st.sampled_from([
    b"--b", b"--b--", b"--b\r\n", b"\r\n", b"\n", b"\r", b"--", b"-", b"b", b"model", b"stream", b"x", b"\0", b"\xff",
    b" ", b";", b'Content-Disposition: form-data; name="model"\r\n\r\n', b"\n--b\n",
    b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n',
    b"content-disposition:form-data;name=model\r\n\r\n", b'Content-Disposition: form-data; name="stream"\r\n\r\n',
    b"Content-Type: text/plain\r\n", b"Content-Transfer-Encoding: base64\r\n", b'name="model"', b"name*=utf-8''model",
    b'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b', b"\r\n--b--\r\n", b"true",
])  # fmt: skip
SOUP = st.lists(PIECES, max_size=14).map(b"".join)


def is_plain(value: bytes) -> bool:
    """Whether nobody takes a part of the value for a boundary."""
    return re.search(rb"[\r\n]--b", b"\n" + value) is None


VALUES = st.one_of(st.binary(max_size=40), st.lists(PIECES, max_size=6).map(b"".join)).filter(is_plain)
NAMES = st.sampled_from(["file", "prompt", "Model", "mode", "model ", "stream_options", "x[]"])
MODELS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda name: is_plain(name.encode()))


@st.composite
def forms(draw: st.DrawFn) -> tuple[bytes, str]:
    """A form with one model, and the model."""
    model = draw(MODELS)
    parts = [
        f'Content-Disposition: form-data; name="{name}"; filename="f"\r\n\r\n'.encode() + value
        for name, value in draw(st.lists(st.tuples(NAMES, VALUES), max_size=4))
    ]
    place = draw(st.integers(0, len(parts)))
    parts.insert(place, b'Content-Disposition: form-data; name="model"\r\n\r\n' + model.encode())
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + b"--b--" + draw(
        st.sampled_from([b"", b"\r\n"])
    ), model


def read(data: bytes, cuts: list[int]) -> Form | str:
    reader = FormReader(TYPE)
    try:
        start = 0
        for cut in sorted({min(cut, len(data)) for cut in cuts} | {len(data)}):
            reader.feed(data[start:cut])
            start = cut
        return reader.finish()
    except Refused as refused:
        return refused.code


CUTS = st.lists(st.integers(0, 400), max_size=8)


@settings(max_examples=150, deadline=None)
@given(forms(), CUTS)
def test_a_form_has_its_model(made: tuple[bytes, str], cuts: list[int]) -> None:
    data, model = made
    found = read(data, cuts)
    assert isinstance(found, Form), found
    assert (found.model, found.length) == (model, len(data))
    assert data[found.start : found.end] == model.encode()


@settings(max_examples=300, deadline=None)
@given(SOUP, CUTS)
def test_splits_do_not_matter_and_another_parser_agrees(data: bytes, cuts: list[int]) -> None:
    whole, pieces = read(data, []), read(data, cuts)
    if isinstance(whole, str) or isinstance(pieces, str):
        assert whole == pieces
        return
    assert (whole.model, whole.start, whole.end, whole.stream) == (
        pieces.model,
        pieces.start,
        pieces.end,
        pieces.stream,
    )
    parsed = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(
        b"Content-Type: " + TYPE + b"\r\n\r\n" + data
    )
    named = [part for part in parsed.iter_parts() if part.get_param("name", header="content-disposition") == "model"]
    assert len(named) == 1
    payload = named[0].get_payload(decode=True)
    assert isinstance(payload, bytes)
    assert payload.replace(b"\r\n", b"\n") == whole.model.encode().replace(b"\r\n", b"\n")
