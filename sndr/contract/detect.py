"""What a request is: hints, budget, workload class, output length, concurrency mode.

Everything here reads the members that it names and nothing else: no prompt text, no message. Bodies of other dialects
are mapped to the members of a chat request first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeGuard

from sndr.contract.table import OUTPUT_LENGTHS

__all__ = [
    "HINT_HEADERS",
    "HINT_MEMBERS",
    "MEDIUM_MAX_TOKENS",
    "READ_MEMBERS",
    "SHORT_MAX_TOKENS",
    "Dialect",
    "Headers",
    "Hints",
    "budget_of",
    "concurrency_mode",
    "output_length",
    "read_hints",
    "strip_hints",
    "to_chat",
    "workload_class",
]

SHORT_MAX_TOKENS: Final = 256
MEDIUM_MAX_TOKENS: Final = 512
MULTI_CONC_MIN_IN_FLIGHT: Final = 2
SUMMARIZATION_RATIO: Final = 2

HINT_MEMBERS: Final = ("expected_length", "category")
HINT_HEADERS: Final = ("x-sndr-expected-length", "x-sndr-category")
_HINT_VALUES: Final = (OUTPUT_LENGTHS, ("code",))

Dialect: TypeAlias = Literal["chat", "responses", "messages"]
Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]


# What a decision looks at in a body. A consumer that keeps the rest of the body as raw bytes decodes these alone.
_COMMON: Final = ("model", "tools", "extra_body", *HINT_MEMBERS)
READ_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "chat": (*_COMMON, "max_completion_tokens", "max_tokens", "response_format"),
    "responses": (*_COMMON, "max_output_tokens", "text"),
    "messages": (*_COMMON, "max_tokens", "output_config"),
}


class Hints(NamedTuple):
    """What the caller declared, with the place of the value that won (`body`, `extra_body` or `header`)."""

    expected_length: str | None = None
    category: str | None = None
    expected_length_from: str | None = None
    category_from: str | None = None


_NO_HINTS: Final = Hints()


def to_chat(body: Mapping[str, Any], dialect: Dialect = "chat") -> Mapping[str, Any]:
    """The members that the decision reads, under their chat names; hints and `model` are kept.

    `responses`: `max_output_tokens` is the budget, `text.format` the response format, `tools` as it is.
    `messages`: `max_tokens` is the budget, `output_config.format` the response format, `tools` as it is.
    """
    if dialect == "chat":
        return body
    if dialect == "responses":
        budget, holder = body.get("max_output_tokens"), body.get("text")
    elif dialect == "messages":
        budget, holder = body.get("max_tokens"), body.get("output_config")
    else:
        raise ValueError(f"dialect {dialect!r} is not known; chat, responses or messages")
    mapped = {name: body[name] for name in _COMMON if name in body}
    mapped["max_tokens"] = budget
    if isinstance(holder, dict):
        mapped["response_format"] = holder.get("format")
    return mapped


def read_hints(body: Mapping[str, Any], headers: Headers | None = None) -> Hints:
    """The first valid value of body member, `extra_body` member and header, for each hint on its own."""
    extra = body.get("extra_body")
    places: list[tuple[str, Any, Any]] = []
    if "expected_length" in body or "category" in body:
        places.append(("body", body.get("expected_length"), body.get("category")))
    if isinstance(extra, dict) and ("expected_length" in extra or "category" in extra):
        places.append(("extra_body", extra.get("expected_length"), extra.get("category")))
    if headers:
        for name, value in headers.items() if isinstance(headers, Mapping) else headers:
            if len(name) in (15, 22):  # the lengths of the two names: most headers are not looked at further
                lower = name.lower()
                if lower == HINT_HEADERS[0]:
                    places.append(("header", value, None))
                elif lower == HINT_HEADERS[1]:
                    places.append(("header", None, value))
    if not places:
        return _NO_HINTS
    length = category = length_from = category_from = None
    for place, length_value, category_value in places:
        if length is None and isinstance(length_value, str) and length_value in _HINT_VALUES[0]:
            length, length_from = length_value, place
        if category is None and isinstance(category_value, str) and category_value in _HINT_VALUES[1]:
            category, category_from = category_value, place
    return Hints(length, category, length_from, category_from)


def strip_hints(body: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without the hint members, for forwarding; the argument is not changed."""
    kept = {name: value for name, value in body.items() if name not in HINT_MEMBERS}
    extra = kept.get("extra_body")
    if isinstance(extra, dict):
        kept["extra_body"] = {name: value for name, value in extra.items() if name not in HINT_MEMBERS}
    return kept


def budget_of(body: Mapping[str, Any]) -> int | None:
    """The output budget in tokens: `max_completion_tokens` unless null, else `max_tokens`; None unless valid.

    Valid is an integral number of at least 1 (256.0 is 256); a boolean is not a number here.
    """
    value = body.get("max_completion_tokens")
    if value is None:
        value = body.get("max_tokens")
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        if not value.is_integer():
            return None
        value = int(value)
    return value if isinstance(value, int) and value >= 1 else None


def workload_class(
    body: Mapping[str, Any], *, budget: int | None, input_tokens: int | None = None, category: str | None = None
) -> str:
    """The class of a request in the chat form: the first of the five whose condition holds."""
    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        return "tool_call"
    response_format = body.get("response_format")
    format_type = response_format.get("type") if isinstance(response_format, dict) else None
    if isinstance(format_type, str) and format_type in ("json_object", "json_schema"):
        return "structured_json"
    if (
        budget is not None
        and is_token_count(input_tokens)
        and (response_format is None or format_type == "text")
        and input_tokens > SUMMARIZATION_RATIO * budget
    ):
        return "summarization"
    return "free_chat" if category is None else "code_gen"


def is_token_count(value: object) -> TypeGuard[int]:
    """Whether a count of input tokens is known: an integer of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def output_length(budget: int | None, hint: str | None = None) -> str:
    """short, medium or long; a valid hint wins, and a request without a budget is long."""
    if hint is not None:
        return hint
    if budget is None or budget > MEDIUM_MAX_TOKENS:
        return "long"
    return "short" if budget <= SHORT_MAX_TOKENS else "medium"


def concurrency_mode(in_flight: int | None) -> str:
    """The mode from the requests in flight in the whole family, this one included; unknown is single_stream."""
    if isinstance(in_flight, int) and not isinstance(in_flight, bool) and in_flight >= MULTI_CONC_MIN_IN_FLIGHT:
        return "multi_conc"
    return "single_stream"
