"""The boot TOML as pydantic models: every key, its type, its default and one sentence of reference.

The published JSON Schema and the reference page are generated from these models, and they are what parses the file.
Sentences in ``description`` are the reference text of the key. Durations are seconds, sizes are bytes.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, RootModel, Tag

from sndr.router.core import projection

__all__ = [
    "ENV_NAME_PATTERN",
    "TIER_ID_PATTERN",
    "AudioRoute",
    "Boot",
    "Client",
    "Cors",
    "FamilyRoutes",
    "PurposeModel",
    "RouteTree",
    "Router",
    "RoutingTable",
    "Server",
    "TierKeys",
]

TIER_ID_PATTERN: Final = f"^{projection.TIER_ID_PATTERN.pattern}$"
ENV_NAME_PATTERN: Final = r"^[A-Z][A-Z0-9_]*$"

_MAX_SECONDS: Final = 31_536_000.0


def _no_bool(value: object) -> object:
    """True is an int for Python; a configuration that says `true` where a number belongs is a mistake."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not a boolean")  # noqa: TRY004 - pydantic collects ValueError only
    return value


def _whole_ms(value: float) -> float:
    ms = value * 1000
    if not math.isclose(ms, round(ms), rel_tol=0, abs_tol=1e-6):
        raise ValueError("must be a whole number of milliseconds")
    return value


def _no_control(value: str) -> str:
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError("must not contain control characters")
    return value


Seconds = Annotated[
    float, Field(gt=0, le=_MAX_SECONDS, allow_inf_nan=False), BeforeValidator(_no_bool), AfterValidator(_whole_ms)
]
Count = Annotated[int, Field(strict=True, ge=1)]
Text = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_no_control)]
Path = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_no_control)]
EnvName = Annotated[str, Field(pattern=ENV_NAME_PATTERN, max_length=128)]
TierId = Annotated[str, Field(pattern=TIER_ID_PATTERN)]
Endpoint = Literal["chat", "completions", "responses", "messages", "embeddings", "rerank"]
JsonObject = dict[str, Any]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class Cors(_Table):
    """Cross-origin answers for browser clients."""

    allow_origins: list[Text] = Field(
        default=[],
        description="Origins that a browser may call from. `OPTIONS` is answered only when the list is not empty.",
    )


class Client(_Table):
    """One caller with a key of its own."""

    id: TierId = Field(description="Name of the client in the ledger, the log and the status.")
    auth_env: EnvName = Field(description="Environment variable that holds the client's key.")
    aliases: list[Text] = Field(
        default=["*"], description="Globs over alias names that this client may use.", min_length=1
    )
    max_concurrency: Count | None = Field(
        default=None, le=1 << 20, description="Most requests of this client at one time."
    )


class Server(_Table):
    """Listeners, credentials, files and limits of the process."""

    listen: list[Text] = Field(
        default=["127.0.0.1:8710"],
        min_length=1,
        description="Addresses to listen on: `host:port`, `[v6]:port` or `unix:/path`. Port 0 takes a free one.",
    )
    auth_env: EnvName | None = Field(
        default=None,
        description="Environment variable with the key of the client `default`. Without it, and without `clients`,"
        " callers need no key; that is allowed only when every listener is loopback or a unix socket.",
    )
    operator_auth_env: EnvName | None = Field(
        default=None,
        description="Environment variable with the operator's credential. Without it every `/v1/admin` path is 404.",
    )
    metrics_auth_env: EnvName | None = Field(
        default=None, description="Environment variable with a credential that may read `/metrics` and nothing else."
    )
    usage_path: Path | None = Field(default=None, description="The usage ledger (SQLite). Absent: no ledger.")
    admission_state_path: Path | None = Field(
        default=None, description="File that keeps operator quiescence across restarts."
    )
    decision_log_path: Path | None = Field(
        default=None, description="JSON Lines file of routing and management decisions."
    )
    route_state_path: Path | None = Field(
        default=None,
        description="The live route authority, by an absolute path. Absent: routes change only by a restart.",
    )
    tls_cert: Path | None = Field(default=None, description="PEM certificate chain for the TCP listeners.")
    tls_key: Path | None = Field(default=None, description="PEM private key that belongs to `tls_cert`.")
    trusted_proxies: list[Text] = Field(
        default=[], description="Addresses or networks of proxies in front whose forwarding headers are believed."
    )
    max_head_bytes: Count = Field(default=32768, le=1 << 20, description="Most bytes of a request's head (431 beyond).")
    max_body_bytes: Count = Field(
        default=33554432, le=1 << 32, description="Most bytes of a request's body (413 beyond)."
    )
    header_timeout_s: Seconds = Field(default=10.0, description="Time for a whole request head to arrive.")
    body_timeout_s: Seconds = Field(default=30.0, description="Time without progress in a request body (408 beyond).")
    keepalive_idle_s: Seconds = Field(default=75.0, description="Time that an idle client connection stays open.")
    max_connections: Count = Field(default=4096, le=1 << 20, description="Most client connections at one time.")
    backlog: Count = Field(default=4096, le=65535, description="Length of the kernel's accept queue.")
    shutdown_grace_s: Seconds = Field(
        default=30.0, description="Time that running requests get to finish after SIGTERM or SIGINT."
    )
    cors: Cors = Field(default=Cors(), description="Cross-origin answers.")
    clients: list[Client] = Field(default=[], description="Callers with keys of their own.")


class TierKeys(_Table):
    """One model server as a routing target."""

    id: TierId = Field(description="Name of the tier in routes, status and metrics.")
    base_url: Text = Field(description="Where the server's API starts, prefix included: `http://host:8000/v1`.")
    model: Text = Field(description="The name that the server itself uses for the model.")
    serves: list[Endpoint] = Field(
        default=["chat", "completions"], min_length=1, description="Endpoints that may be sent to this tier."
    )
    context_limit: Annotated[Count | Literal["upstream"] | None, BeforeValidator(_no_bool)] = Field(
        default=None,
        description='Most tokens of prompt and answer together, or `"upstream"`: read from the server\'s model list.',
    )
    max_output_tokens: Count | None = Field(
        default=None, description="Larger `max_tokens` in a request are lowered to this."
    )
    max_concurrency: Count | None = Field(
        default=None, description="Most requests at one time; more wait in the queue."
    )
    auth_env: EnvName | None = Field(
        default=None, description="Environment variable with the credential that is sent to the server as Bearer."
    )
    health_path: Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=1024)] | None = Field(
        default=None,
        description="Path that is probed at the server's origin (not below the prefix). Absent: the tier is not probed"
        " and counts as ready.",
    )
    model_identity: bool = Field(
        default=True, description="After the health path, the server's model list must contain exactly `model`."
    )
    admission_timeout_s: Seconds | None = Field(default=None, description="Overrides `router.admission_timeout_s`.")
    first_byte_timeout_s: Seconds | None = Field(default=None, description="Overrides `router.first_byte_timeout_s`.")
    idle_timeout_s: Seconds | None = Field(default=None, description="Overrides `router.idle_timeout_s`.")
    total_timeout_s: Seconds | None = Field(default=None, description="Overrides `router.total_timeout_s`.")
    extra_body: JsonObject | None = Field(
        default=None,
        description="Members set in every request, over the client's own; not `background`, `model`, `stream`, "
        "`stream_options`.",
    )
    extra_body_defaults: JsonObject | None = Field(
        default=None,
        description="Members set in a request that does not have them; not those of `extra_body` that are excepted.",
    )
    tool_support: bool = Field(default=True, description="False: requests with tools are refused.")
    stream_usage: bool = Field(
        default=True, description="Ask the server for a usage event at the end of a stream, for the ledger."
    )
    engine: Text | None = Field(default=None, description="Descriptive: the server's software.")
    quantization: Text | None = Field(default=None, description="Descriptive: the weights' format.")
    preset: Text | None = Field(default=None, description="Key of a preset of the routing table that this tier runs.")
    params: JsonObject | None = Field(default=None, description="Descriptive: anything worth showing beside the tier.")


def _route_kind(value: object) -> str | None:
    return "tier" if isinstance(value, str) else "nested" if isinstance(value, dict) else None


class RouteTree(RootModel[dict[str, Any]]):
    """Alias to tier id; a nested table is the dotted alias (`llm.primary = "x"` needs no quotes)."""

    model_config = ConfigDict(strict=True)
    root: dict[
        str,
        Annotated[
            Annotated[str, Field(description="Tier id."), Tag("tier")] | Annotated[RouteTree, Tag("nested")],
            Discriminator(
                _route_kind, custom_error_type="route", custom_error_message="must be a tier id or a nested table"
            ),
        ],
    ]


class FamilyLeaf(_Table):
    """A model family behind one alias; the workload decides which of its tiers answers."""

    family: Text = Field(description="Model family of the routing table.")
    natural: TierId = Field(description="Tier for everything that no rule sends elsewhere.")
    on_unready: Literal["refuse", "family_default"] = Field(
        default="refuse", description="What happens when the chosen tier is not ready."
    )


class FamilyRoutes(RootModel[dict[str, Any]]):
    """Alias to a family leaf; nested tables flatten as in `model_routes`."""

    root: dict[str, Any]


class PurposeModel(_Table):
    """A model for embeddings or reranking, selected by its own name."""

    kind: Literal["embedding", "rerank"] = Field(description="What the model is for.")
    model: Text = Field(description="Name that clients ask for.")
    base_url: Text = Field(description="Where the server's API starts, prefix included.")
    served_model: Text | None = Field(default=None, description="The server's own name of the model, when it differs.")
    auth_env: EnvName | None = Field(default=None, description="Environment variable with the server's credential.")
    max_concurrency: Count | None = Field(default=None, le=1 << 20, description="Most requests at one time.")
    total_timeout_s: Seconds | None = Field(default=None, description="Overrides `router.total_timeout_s`.")


class AudioRoute(PurposeModel):
    """A model for speech to text or text to speech, selected by its own name."""

    kind: Literal["stt", "tts"] = Field(description="What the model is for.")  # type: ignore[assignment]  # narrower set


class RoutingTable(_Table):
    """Where the routing table comes from; read once at start, before anything is locked or listened on."""

    path: Path | None = Field(
        default=None, description="A file with the routing table's JSON. Either this or `command`."
    )
    command: list[Text] | None = Field(
        default=None,
        min_length=1,
        description="A command that prints it, without a shell, in the boot file's directory, without the credentials"
        " that the boot file names.",
    )
    timeout_s: Seconds = Field(default=10.0, description="Longest time that the command may take.")
    max_bytes: Count = Field(default=1 << 20, le=1 << 26, description="Largest table that is read.")
    on_table_error: Literal["natural", "refuse", "drop"] = Field(
        default="natural",
        description="A table that is unreadable or invalid: `natural` does not use it (one warning, family aliases lead"
        " to their natural tiers), `refuse` does not start (exit 2), `drop` uses what the contract's loader can use of"
        " it. A table of an unknown version is never used and never a reason not to start.",
    )


class Router(_Table):
    """Probing, deadlines, queues, tiers and routes."""

    probe_interval_s: Seconds = Field(default=5.0, description="Time between two probes of a tier.")
    probe_timeout_s: Seconds = Field(default=1.0, description="Deadline of one probe request.")
    probe_failures: Count = Field(default=2, le=1000, description="Failed probes in a row that make a tier unready.")
    probe_successes: Count = Field(default=1, le=1000, description="Passed probes in a row that make a tier ready.")
    admission_timeout_s: Seconds = Field(default=30.0, description="Longest wait in a tier's queue (503 beyond).")
    first_byte_timeout_s: Seconds = Field(default=300.0, description="Longest wait for the first byte of an answer.")
    idle_timeout_s: Seconds = Field(default=60.0, description="Longest silence inside an answer.")
    total_timeout_s: Seconds = Field(default=3600.0, description="Longest whole request.")
    queue_limit: Annotated[int, Field(strict=True, ge=0, le=1 << 20)] = Field(
        default=64, description="Most requests that wait for one tier (429 beyond)."
    )
    response_model: Literal["served", "alias"] = Field(
        default="served",
        description="The `model` in answers: the server's own (`served`, bytes untouched) or the alias asked for.",
    )
    receipt_headers: bool = Field(default=False, description="Send the `X-Sndr-…` headers that explain a route.")
    tiers: list[TierKeys] = Field(default=[], description="The model servers.")
    model_routes: RouteTree = Field(default=RouteTree({}), description="Alias to tier id.")
    family_routes: FamilyRoutes = Field(default=FamilyRoutes({}), description="Alias to model family.")
    purpose_models: list[PurposeModel] = Field(default=[], description="Embedding and rerank models.")
    audio_routes: list[AudioRoute] = Field(default=[], description="Speech models.")
    routing_table: RoutingTable | None = Field(
        default=None, description="Where the routing table comes from. Absent: family aliases lead to `natural`."
    )


class Boot(_Table):
    """Boot configuration of `sndr router`."""

    server: Server = Field(default=Server(), description="Listeners, credentials, files and limits.")
    router: Router = Field(default=Router(), description="Probing, deadlines, queues, tiers and routes.")
