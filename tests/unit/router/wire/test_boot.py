"""The boot file: every fault with its line, nothing ignored, nothing secret said."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sndr.router.core.projection import TierTarget
from sndr.router.wire import boot

TIER = '[[router.tiers]]\nid = "a"\nbase_url = "http://127.0.0.1:9001/v1"\nmodel = "m1"\n'
ROUTE = '[router.model_routes]\n"llm" = "a"\n'
TOKENS = {"CLIENT_KEY": "client-key-0123456789", "OPERATOR_KEY": "operator-key-0123456789"}


def parse(text: str, env: Mapping[str, str] | None = None) -> boot.BootConfig:
    return boot.parse(text, TOKENS if env is None else env, source="f.toml")


def faults(text: str, env: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(boot.BootError) as caught:
        parse(text, env)
    return [str(finding) for finding in caught.value.findings]


def server(line: str) -> str:
    return f"[server]\n{line}\n{TIER}{ROUTE}"


def tier(line: str) -> str:
    return f"{TIER}{line}\n{ROUTE}"


def test_a_small_file_gives_defaults() -> None:
    config = parse(TIER + ROUTE)
    assert config.server.listen == ["127.0.0.1:8710"]
    assert config.router.queue_limit == 64
    assert config.projection.aliases["llm"] == TierTarget("a")
    assert config.projection.tiers["a"].serves == ("chat", "completions")
    assert config.clients == ()


def test_durations_become_whole_milliseconds() -> None:
    config = parse(tier("idle_timeout_s = 1.25\ntotal_timeout_s = 3"))
    assert config.projection.tiers["a"].idle_timeout_ms == 1250
    assert config.projection.tiers["a"].total_timeout_ms == 3000


def test_aliases_are_trimmed_lowered_and_flattened() -> None:
    config = parse(TIER + '[router.model_routes]\n" Meta-LLaMA/Llama-3 " = "a"\nllm.Primary = "a"\n"qwen3:8b" = "a"\n')
    assert list(config.projection.aliases) == ["llm.primary", "meta-llama/llama-3", "qwen3:8b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (server("lissten = 1"), "f.toml:2: server.lissten: unknown key; did you mean listen?"),
        (server("zzz = 1"), "f.toml:2: server.zzz: unknown key; allowed: admission_state_path, auth_env"),
        (server("max_head_bytes = true"), "f.toml:2: server.max_head_bytes: must be an integer, got a boolean"),
        (server("max_head_bytes = 1.5"), "f.toml:2: server.max_head_bytes: must be an integer, got 1.5"),
        (server("max_head_bytes = 0"), "f.toml:2: server.max_head_bytes: must be at least 1, got 0"),
        (server("backlog = 70000"), "f.toml:2: server.backlog: must be at most 65535, got 70000"),
        (server("header_timeout_s = true"), "f.toml:2: server.header_timeout_s: must be a number, not a boolean"),
        (server('header_timeout_s = "1"'), "f.toml:2: server.header_timeout_s: must be a number, got a string"),
        (server("header_timeout_s = 0"), "f.toml:2: server.header_timeout_s: must be greater than 0, got 0"),
        (server("header_timeout_s = inf"), "f.toml:2: server.header_timeout_s: must be"),
        (server("header_timeout_s = 0.0005"), "f.toml:2: server.header_timeout_s: must be a whole number of millis"),
        (server('listen = "x"'), "f.toml:2: server.listen: must be an array, got a string"),
        (server("listen = []"), "f.toml:2: server.listen: must not be empty"),
        (server('listen = ["x"]'), "f.toml:2: server.listen[0]: must be host:port"),
        (server('listen = ["127.0.0.1:1", "127.0.0.1:1"]'), "f.toml:2: server.listen[1]: is listed twice"),
        (server('auth_env = "sk-1"'), "f.toml:2: server.auth_env: must be the name of an environment variable"),
        (server('auth_env = "AKIAIOSFODNN7EXAMPLE"'), "f.toml:2: server.auth_env: looks like a credential"),
        (server('auth_env = "UNSET"'), "f.toml:2: server.auth_env: the environment variable UNSET is not set"),
        (server('usage_path = "a/"'), "f.toml:2: server.usage_path: must name a file, not a directory"),
        (server("usage_path = 2026-01-01"), "f.toml:2: server.usage_path: must be a string, got a date or time"),
        (server('tls_cert = "x"'), "f.toml:2: server.tls_cert: needs server.tls_key beside it"),
        (tier("replicas = 2"), "f.toml:5: router.tiers[0].replicas: is reserved"),
        (tier('max_concurrency = "auto"'), 'f.toml:5: router.tiers[0].max_concurrency: must be an integer; "auto" is'),
        (tier("max_concurrency = true"), "f.toml:5: router.tiers[0].max_concurrency: must be an integer, got a boo"),
        (tier('context_limit = "x"'), "f.toml:5: router.tiers[0].context_limit: must be an integer of at least 1 or"),
        (tier("context_limit = 0"), "f.toml:5: router.tiers[0].context_limit: must be an integer of at least 1 or"),
        (tier("context_limit = true"), "f.toml:5: router.tiers[0].context_limit: must be an integer of at least 1"),
        (tier('serves = ["chta"]'), "f.toml:5: router.tiers[0].serves[0]: must be one of chat, completions"),
        (tier('serves = ["chat", "chat"]'), "f.toml:5: router.tiers[0].serves[1]: is listed twice"),
        (tier('health_path = "health"'), "f.toml:5: router.tiers[0].health_path: must be a path that starts with /"),
        (tier("extra_body = { at = 2026-01-01 }"), "f.toml:5: router.tiers[0].extra_body.at: must be a JSON value"),
        (tier("extra_body = { x = nan }"), "f.toml:5: router.tiers[0].extra_body.x: must be a finite number"),
        (TIER, "f.toml:1: router.tiers[0]: no route names the tier a"),
        (TIER + '[router.model_routes]\nllm = "aa"\n', "f.toml:6: router.model_routes.llm: there is no tier aa; did"),
        (TIER + "[router.model_routes]\nllm = 3\n", "f.toml:6: router.model_routes.llm: must be a tier id or a nested"),
        (
            TIER + '[router.model_routes]\nllm = "a"\nllm.b = "a"\n',
            "f.toml:7: is not valid TOML: cannot overwrite a value (a dotted name beside its own first part",
        ),
        (
            TIER + '[router.model_routes]\nx.y = "a"\n"X.Y" = "a"\n',
            'f.toml:7: router.model_routes."X.Y": the alias x.y is defined twice; the first time on line 6',
        ),
        (TIER + TIER + ROUTE, "f.toml:6: router.tiers[1].id: the tier a is defined twice; the first time on line 2"),
        (TIER + ROUTE + '"llm" = "a"\n', "f.toml:7: router.model_routes.llm: is defined twice; the first time on line"),
        (
            TIER + '[router.model_routes.llm]\nfamily = "f"\nnatural = "a"\n',
            "f.toml:5: router.model_routes.llm: a route with a family belongs into [router.family_routes]",
        ),
        ("[router]\n", "f.toml:1: router: needs at least one [[router.tiers]]"),
        ("router = 1\n", "f.toml:1: router: must be a table, got 1"),
        ("a = \n", "f.toml:1: is not valid TOML: invalid value"),
    ],
)
def test_a_fault_has_its_line_its_key_and_what_is_allowed(text: str, expected: str) -> None:
    found = faults(text)
    assert any(line.startswith(expected) for line in found), found


def test_a_name_that_only_looks_right_before_its_line_end_has_one_fault() -> None:
    assert [fault.split(": ")[1] for fault in faults(server('auth_env = "KEY\\n"'))] == ["server.auth_env"]


def test_all_faults_are_reported_together_in_file_order() -> None:
    text = (
        '[server]\nlissten = 1\nauth_env = "sk-1"\n'
        '[[router.tiers]]\nid = "A"\nbase_url = "ftp://x"\nmodl = "m"\n[router.model_routes]\nx = "b"\n'
    )
    assert [int(line.split(":")[1]) for line in faults(text)] == [2, 3, 4, 5, 6, 7, 9]


@pytest.mark.parametrize("entry", ["10.0.0.1/8", "proxy.example", "10.0.0.0/33", "10.0.0.1:80", "UNIX"])
def test_proxies_are_addresses(entry: str) -> None:
    found = faults(f'[server]\ntrusted_proxies = ["10.0.0.0/8", "{entry}"]\n{TIER}{ROUTE}')
    assert [line.split(": ")[1] for line in found] == ["server.trusted_proxies[1]"]


@pytest.mark.parametrize(
    "entry",
    ["https://a.example/", "https://A.example", "a.example", "null", "https://a.example:443", "http://x:0",
     "https://*.example", "https://user@a.example", "*://a", "https://", "http://[::1"],
)  # fmt: skip
def test_origins_are_written_as_browsers_send_them(entry: str) -> None:
    found = faults(f'[server.cors]\nallow_origins = ["https://b.example", "{entry}"]\n{TIER}{ROUTE}')
    assert [line.split(": ")[1] for line in found] == ["server.cors.allow_origins[1]"]


def test_proxies_and_origins_that_are_right() -> None:
    origins = '["https://a.example", "http://localhost:3000", "http://[::1]:8080", "chrome-extension://abcdef"]'
    proxies = '["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "unix"]'
    parse(f"[server]\ntrusted_proxies = {proxies}\n[server.cors]\nallow_origins = {origins}\n{TIER}{ROUTE}", {})
    parse(f'[server.cors]\nallow_origins = ["*"]\n{TIER}{ROUTE}', {})
    assert faults(f'[server.cors]\nallow_origins = ["*", "https://a.example"]\n{TIER}{ROUTE}')


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8710/v1",
        "http://localhost:8710/v1",
        "https://LOCALHOST.:8710",
        "http://[::1]:8710/v1",
        "http://[::ffff:127.0.0.1]:8710/v1",
        "http://api.localhost:8710/v1",
    ],
)
@pytest.mark.parametrize("listen", ["127.0.0.1:8710", "localhost:8710"])
def test_a_tier_is_never_the_gateway_itself(url: str, listen: str) -> None:
    text = f'[server]\nlisten = ["{listen}"]\n' + TIER.replace("http://127.0.0.1:9001/v1", url) + ROUTE
    assert faults(text) == [f"f.toml:5: router.tiers[0].base_url: is this gateway itself (it listens on {listen})"]


def test_a_listener_on_every_address_is_reached_by_this_machines_names() -> None:
    text = '[server]\nlisten = ["0.0.0.0:8710"]\nauth_env = "CLIENT_KEY"\n' + ROUTE
    for host in ("gpubox", "10.0.0.5"):
        with pytest.raises(boot.BootError, match="is this gateway itself"):
            boot.parse(
                text + TIER.replace("127.0.0.1:9001", f"{host}:8710"),
                TOKENS,
                own_hosts=frozenset({"gpubox", "10.0.0.5"}),
            )
    assert boot.parse(text + TIER.replace("127.0.0.1:9001", "10.0.0.6:8710"), TOKENS, own_hosts=frozenset({"gpubox"}))


@pytest.mark.parametrize(
    "url", ["http://127.1:9001", "http://2130706433:9001", "http://0x7f.1:9001", "http://0.0.0.0:1"]
)
def test_addresses_in_disguise_are_refused(url: str) -> None:
    assert faults(TIER.replace("http://127.0.0.1:9001", url) + ROUTE)


def test_only_loopback_may_go_without_a_key() -> None:
    assert "is open to other machines" in faults(server('listen = ["0.0.0.0:8710"]'))[0]
    assert parse(server('listen = ["0.0.0.0:8710"]\nauth_env = "CLIENT_KEY"'))
    assert parse(server('listen = ["[::1]:8710", "127.0.0.2:8710", "unix:/run/sndr.sock"]'))


def test_clients_are_distinct_and_may_use_something() -> None:
    text = (
        '[server]\nauth_env = "CLIENT_KEY"\n[[server.clients]]\nid = "default"\nauth_env = "OTHER"\n'
        '[[server.clients]]\nid = "b"\nauth_env = "SAME"\naliases = ["gpt*"]\n'
    )
    env = {**TOKENS, "OTHER": "x" * 20, "SAME": TOKENS["CLIENT_KEY"]}
    assert faults(text + TIER + ROUTE, env) == [
        "f.toml:4: server.clients[0].id: the client default is defined twice; the first time by server.auth_env",
        (
            "f.toml:8: server.clients[1].auth_env: holds the same credential as server.auth_env; every caller needs"
            " one of its own"
        ),
        "f.toml:9: server.clients[1].aliases[0]: matches no alias",
    ]


def test_secrets_are_resolved_and_never_shown() -> None:
    config = parse(server('auth_env = "CLIENT_KEY"\noperator_auth_env = "OPERATOR_KEY"'))
    assert config.secrets.get("CLIENT_KEY") == TOKENS["CLIENT_KEY"]
    assert config.secrets.get(None) is None
    assert not any(secret in repr(config) + str(config.effective) for secret in TOKENS.values())


def test_no_fault_repeats_what_could_be_a_secret() -> None:
    secret = "hunter2-Secret"
    text = (
        f'[server]\nauth_env = "{secret}"\n[[router.tiers]]\nid = "{secret}"\nbase_url = "http://u:{secret}@h/v1"\n'
        f'model = "m"\nauth_env = "{secret}"\nhealth_path = "{secret}"\nserves = ["{secret}"]\n'
    )
    assert secret not in "\n".join(faults(text))


def test_the_hash_is_of_the_meaning() -> None:
    base = parse(TIER + ROUTE)
    same = parse(f'# comment\n[server]\nlisten = ["127.0.0.1:8710"]\n{TIER}[router]\nqueue_limit = 64\n{ROUTE}')
    renamed = parse(TIER + ROUTE.replace('"llm"', "LLM"))
    other = parse(server("backlog = 10"))
    assert base.config_sha256 == same.config_sha256 == renamed.config_sha256 != other.config_sha256


def test_the_hash_has_names_of_variables_and_not_their_values() -> None:
    text = server('auth_env = "CLIENT_KEY"')
    assert parse(text, {"CLIENT_KEY": "one-0123456789"}).config_sha256 == parse(text).config_sha256
    assert parse(text).config_sha256 != parse(text.replace("CLIENT_KEY", "OPERATOR_KEY")).config_sha256


def test_without_an_environment_credentials_stay_unresolved() -> None:
    assert boot.parse(server('auth_env = "UNSET"'), None).secrets.get("UNSET") is None


def test_files_are_relative_to_the_boot_file(tmp_path: object) -> None:
    config = boot.parse(server('usage_path = "data/usage.db"'), {}, source="/etc/sndr/router.toml")
    assert config.paths.usage == "/etc/sndr/data/usage.db"


def test_listen_can_be_replaced() -> None:
    config = boot.parse(TIER + ROUTE, {}, listen=["127.0.0.1:0"])
    assert [listener.port for listener in config.listeners] == [0]


def test_a_file_that_cannot_be_read_is_one_finding(tmp_path: object) -> None:
    with pytest.raises(boot.BootError, match="cannot be read"):
        boot.load(f"{tmp_path}/none.toml", {})
    with pytest.raises(boot.BootError, match="cannot be read"):
        boot.load(str(tmp_path), {})


@pytest.mark.req("R7")
@pytest.mark.parametrize(
    ("path", "is_valid"),
    [
        ("/var/lib/sndr/routes.json", True),
        ("~/routes.json", True),
        ("/routes", True),
        ("/d/" + "a" * 128, True),
        ("routes.json", False),
        ("./routes.json", False),
        ("", False),
        ("/var/lib/", False),
        ("/var/lib/.hidden", False),
        ("/var/lib/with space", False),
        ("/d/" + "a" * 129, False),
        ("/" + "d" * 250 + ("/" + "d" * 250) * 4 + "/a", False),
    ],
)
def test_the_authoritys_path_is_absolute_and_its_name_plain(path: str, is_valid: bool) -> None:
    text = server(f'route_state_path = "{path}"')
    if is_valid:
        assert boot.parse(text, {}).paths.route_state
    else:
        with pytest.raises(boot.BootError, match="route_state_path"):
            boot.parse(text, {})


PURPOSES = """
[[router.purpose_models]]
kind = "embedding"
model = "BAAI/bge-m3"
base_url = "http://e:1/v1"
auth_env = "E_KEY"
total_timeout_s = 1.5
max_concurrency = 3
[[router.purpose_models]]
kind = "rerank"
model = "BAAI/bge-m3"
served_model = "Rr"
base_url = "http://r:1/v1"
[[router.audio_routes]]
kind = "stt"
model = "x"
base_url = "http://s:1/v1"
[[router.audio_routes]]
kind = "tts"
model = "x"
base_url = "http://t:1/v1"
"""


def test_purpose_models_are_servers_of_one_endpoint() -> None:
    config = boot.parse(TIER + ROUTE + PURPOSES, {"E_KEY": "e-secret"}, source="f.toml")
    found = {purpose.id: purpose for purpose in config.purposes}
    assert list(found) == ["embedding:baai/bge-m3", "rerank:baai/bge-m3", "stt:x", "tts:x"]
    embedding = found["embedding:baai/bge-m3"].tier
    assert (embedding.model, embedding.serves) == ("BAAI/bge-m3", ("embeddings",))
    assert (embedding.max_concurrency, embedding.total_timeout_ms) == (3, 1500)
    assert config.secrets.get(embedding.auth_env) == "e-secret"
    assert found["rerank:baai/bge-m3"].tier.model == "Rr"
    assert [found[name].tier.serves for name in ("stt:x", "tts:x")] == [("transcriptions",), ("speech",)]
    assert not set(config.projection.tiers) & set(found)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('kind = "tts"', 'kind = "stt"', "the stt model x is defined twice"),
        ('model = "BAAI/bge-m3"', 'model = "-x"', "must match [a-z0-9]"),
        ("http://t:1/v1", "http://127.0.0.1:8710/v1", "is this gateway itself"),
        ("http://t:1/v1", "ftp://t", "router.audio_routes[1].base_url"),
        ("E_KEY", "F_KEY", "the environment variable F_KEY is not set"),
        ("E_KEY", "AKIA0123456789ABCDEF", "looks like a credential"),
        ('kind = "tts"', 'kind = "ttx"', "must be one of stt, tts; did you mean"),
        ('model = "x"', 'modle = "x"', "unknown key; did you mean model?"),
    ],
)
def test_faults_of_purpose_models(before: str, after: str, expected: str) -> None:
    text = TIER + ROUTE + PURPOSES.replace(before, after)
    with pytest.raises(boot.BootError) as caught:
        boot.parse(text, {"E_KEY": "e-secret"}, source="f.toml")
    assert any(expected in str(finding) for finding in caught.value.findings), caught.value.findings


def test_a_purpose_model_is_no_alias_at_the_same_time() -> None:
    [alias] = boot.parse(TIER + ROUTE, None, source="f.toml").projection.aliases
    text = (
        TIER + ROUTE + PURPOSES.replace('kind = "rerank"\nmodel = "BAAI/bge-m3"', f'kind = "rerank"\nmodel = "{alias}"')
    )
    with pytest.raises(boot.BootError) as caught:
        boot.parse(text, {"E_KEY": "e-secret"}, source="f.toml")
    assert "is also an alias" in str(caught.value)
