"""The settings of `headway serve`, declared once: the command line, the environment, the file and
docs/configuration.md follow from this table."""

from headway.cli.kinds import (
    CLASSES,
    COUNT,
    COUNTS_BY_CLASS,
    GIGABYTES,
    MEGABYTES,
    MILLISECONDS,
    NAMES,
    NATURAL,
    PATH,
    PORT,
    SECONDS,
    SECONDS_BY_CLASS,
    SWITCH,
    TEXT,
    choice,
)
from headway.cli.settings import Option

_MODEL = "model"
_HTTP = "HTTP"
_ACCESS = "who may do what"
_LIMITS = "limits"
_LIFE = "life cycle"
_JOBS = "Batch jobs"
_MEMORY = "memory and steps; what isn't given fits the machine"
_RULES = "scheduling"

MODEL = Option(
    "model",
    TEXT,
    _MODEL,
    "GGUF file, Hugging Face folder, or name; default: the embedded smollm2",
    positional=True,
)
API_KEY = Option(
    "api-key", TEXT, _ACCESS, "one key with every right, beside those of keys-file", secret=True
)
KEYS_FILE = Option("keys-file", PATH, _ACCESS, "keys made by headway keys; read anew on change")
DATA_DIR = Option(
    "data-dir", PATH, _JOBS, "where jobs, files and usage are kept; default: $XDG_DATA_HOME/headway"
)

ENGINE_OPTIONS = (
    Option("kv-blocks", COUNT, _MEMORY, "KV blocks in the pool"),
    Option("host-blocks", NATURAL, _MEMORY, "blocks to swap into"),
    Option("block-size", COUNT, _MEMORY, "tokens of a block", "16"),
    Option("max-seqs", COUNT, _MEMORY, "seats: sequences that are in a step at once"),
    Option("max-step-tokens", COUNT, _MEMORY, "most tokens of a step"),
    Option(
        "max-model-len",
        COUNT,
        _MEMORY,
        "most tokens of prompt and answer together, which the KV pool has to hold",
    ),
    Option("threads", COUNT, _MEMORY, "threads that compute"),
    Option(
        "executor",
        choice(("native", "torch")),
        _MEMORY,
        "native: the CPU's own kernels; torch: PyTorch, experimental, with the extra `torch`",
        "native",
    ),
    Option("device", TEXT, _MEMORY, "of the torch executor: cpu, cuda or cuda:N", "cpu"),
    Option(
        "dtype",
        choice(("auto", "bf16", "fp16", "fp32")),
        _MEMORY,
        "of the torch executor; auto is bf16 on a GPU and fp32 on a CPU",
        "auto",
    ),
    Option(
        "attention",
        choice(("auto", "gathered", "paged")),
        _MEMORY,
        "of the torch executor: PyTorch's over gathered blocks, or Triton's over block tables; "
        "auto is paged on a GPU that can",
        "auto",
    ),
    Option(
        "graphs",
        choice(("auto", "on", "off")),
        _MEMORY,
        "of the torch executor: CUDA graphs for decode; auto has them beside paged attention",
        "auto",
    ),
    Option(
        "weight-cache",
        TEXT,
        _MEMORY,
        "folder of packed weights, or none; default: weights in $XDG_CACHE_HOME/headway",
    ),
    Option("policy", TEXT, _RULES, "tiered, weighted, fcfs or static", "tiered"),
    Option(
        "lanes",
        choice(("unified", "split", "auto")),
        _RULES,
        "prefill and decode on the same cores, on cores of their own, or as it turns out best",
        "auto",
    ),
    Option("itl-target", MILLISECONDS, _RULES, "realtime's ITL; derived from measured steps"),
    Option("ttft-target", MILLISECONDS, _RULES, "realtime's TTFT; derived from measured steps"),
)

SERVE_OPTIONS = (
    MODEL,
    Option("served-model-name", NAMES, _MODEL, "the model's names in the API; default: the file's"),
    Option("chat-template", PATH, _MODEL, "a Jinja file to use instead of the model's own"),
    Option(
        "default-class",
        choice(CLASSES),
        _MODEL,
        "service class of requests that don't say",
        "standard",
    ),
    Option("host", TEXT, _HTTP, "another than loopback needs keys", "127.0.0.1"),
    Option("port", PORT, _HTTP, "0 takes any that is free", "8000"),
    Option("root-path", TEXT, _HTTP, "path that a proxy serves this under, such as /llm"),
    Option("cors-origin", NAMES, _HTTP, "origins whose pages may call, or *"),
    Option(
        "allowed-host",
        NAMES,
        _HTTP,
        "without keys: names besides localhost that a proxy calls this by, or *",
    ),
    Option("tls-cert", PATH, _HTTP, "certificate chain, PEM; with tls-key it serves HTTPS"),
    Option("tls-key", PATH, _HTTP, "the certificate's private key, PEM"),
    API_KEY,
    KEYS_FILE,
    Option(
        "admin-port", PORT, _ACCESS, "a second port where metrics and the dashboard need no key"
    ),
    Option("admin-host", TEXT, _ACCESS, "where the admin port listens", "127.0.0.1"),
    Option(
        "queue-requests",
        COUNTS_BY_CLASS,
        _LIMITS,
        "most answers that may wait to begin; beyond them 429, unless none waits yet",
        "realtime=10000,standard=10000,batch=100000",
    ),
    Option(
        "queue-tokens",
        COUNTS_BY_CLASS,
        _LIMITS,
        "most prompt tokens that may wait to begin; beyond them 429, unless none waits yet",
        "realtime=2000000,standard=4000000,batch=8000000",
    ),
    Option(
        "timeout",
        SECONDS_BY_CLASS,
        _LIMITS,
        "time limit of requests that bring none; without one they have none",
    ),
    Option("max-body", MEGABYTES, _LIMITS, "larger bodies get 413; files have limits apart", "16"),
    Option(
        "drain-timeout", SECONDS, _LIFE, "how long running answers may go on after SIGTERM", "30"
    ),
    Option(
        "log-level",
        choice(("debug", "info", "warning", "error")),
        _LIFE,
        "what is logged; info has a line for each request",
        "warning",
    ),
    Option("log-format", choice(("text", "json")), _LIFE, "json is an object a line", "text"),
    Option("log-prompts", SWITCH, _LIFE, "bodies of requests too, at level info"),
    DATA_DIR,
    Option("data-quota", GIGABYTES, _JOBS, "most bytes of files", "20"),
    Option("no-batches", SWITCH, _JOBS, "serve without /v1/batches"),
    *ENGINE_OPTIONS,
)
