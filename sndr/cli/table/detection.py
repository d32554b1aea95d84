"""The parts of the table that say how to classify a request: texts around the contract library's own numbers."""

from __future__ import annotations

from typing import Any

from sndr.contract.check import PRIORITIES
from sndr.contract.detect import (
    MEDIUM_MAX_TOKENS,
    MULTI_CONC_MIN_IN_FLIGHT,
    SHORT_MAX_TOKENS,
    SUMMARIZATION_RATIO,
)

__all__ = ["concurrency_mode_detection", "fallback", "length_detection", "workload_class_detection"]

_TRIGGERS = {
    "tool_call": "tools is an array with at least one element; nothing else is looked at",
    "structured_json": "response_format.type is exactly json_object or json_schema",
    "summarization": "no tools, response_format absent or text,"
    f" input tokens > {SUMMARIZATION_RATIO} * output budget, both known",
    "code_gen": "the caller's hint category is code",
    "free_chat": "everything else, also a body that is not an object",
}


def workload_class_detection() -> dict[str, Any]:
    """Return the classes with their triggers, highest priority first: the first trigger that holds wins."""
    classes = {name: {"trigger": _TRIGGERS[name], "priority": priority} for name, priority in PRIORITIES.items()}
    return {"evaluation_order": list(classes), "classes": classes}


def concurrency_mode_detection() -> dict[str, Any]:
    """Return how the number of requests in flight becomes a mode, and whose duty the counter is."""
    return {
        "single_stream": f"<= {MULTI_CONC_MIN_IN_FLIGHT - 1} request of the model family in flight, this one included",
        "multi_conc": f">= {MULTI_CONC_MIN_IN_FLIGHT} requests of the model family in flight, this one included",
        "owner": "consumer",
        "fallback": "single_stream",
    }


def length_detection() -> dict[str, Any]:
    """Return how the output budget becomes a length bucket."""
    return {
        "short_threshold_tokens": SHORT_MAX_TOKENS,
        "caller_hint_wins": True,
        "buckets": {
            "short": f"output budget <= {SHORT_MAX_TOKENS} tokens",
            "medium": f"output budget > {SHORT_MAX_TOKENS} and <= {MEDIUM_MAX_TOKENS} tokens",
            "long": f"output budget > {MEDIUM_MAX_TOKENS} tokens, or no valid budget",
        },
    }


def fallback() -> dict[str, Any]:
    """Return what a consumer does when no rule decides."""
    return {
        "no_rule_matched": "the preset of the family with default_for_family, if there is one",
        "model_family_unknown": "no override: forward to the preset that the model's own configuration names",
        "classification_failed": "treat the request as free_chat and say so in the log",
        "default_K": 1,
    }
