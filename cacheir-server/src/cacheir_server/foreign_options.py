"""Options of vLLM's server that this one has under another name, or has not: what to do in their place, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from cacheir.errors import UsageError

_ONE_DEVICE = "one process serves a model on one device; run a server for each and a balancer in front of them"
_NO_LORA = "merge the adapter into the weights first, and serve the merged folder"
_IN_FRONT = "put a proxy that does this in front of the server"
_OWN_FILES = "the model's own files decide: name the folder or file that has the right ones"
_NOT_THERE = "decoders of text are served, and nothing else"

# By the name without dashes in front; aliases that serve takes are not here.
INSTEAD: dict[str, str] = {
    "allow-credentials": _IN_FRONT,
    "allowed-headers": _IN_FRONT,
    "allowed-methods": _IN_FRONT,
    "allowed-origins": _IN_FRONT,
    "block-size": "pages hold 16 tokens; prompts that part inside a page share all pages before it",
    "chat-template": _OWN_FILES,
    "config-format": _OWN_FILES,
    "cpu-offload-gb": "weights are not moved to the host; --quant makes them smaller, --spill moves cold KV pages",
    "data-parallel-size": _ONE_DEVICE,
    "device": "name the backend: --backend cpu, native or cuda",
    "disable-log-requests": "requests are not logged; leave it out",
    "disable-log-stats": "statistics are not logged, /metrics has them; leave it out",
    "dtype": "--cuda-dtype says how the cuda backend holds matrices, --precise that products are made in f32",
    "enable-auto-tool-choice": "tools are there for every model whose template knows them; leave it out",
    "enable-chunked-prefill": "prompts are always computed in chunks beside the tokens of others; leave it out",
    "enable-lora": _NO_LORA,
    "enable-prefix-caching": "equal beginnings are always computed once; leave it out",
    "enforce-eager": "there is nothing to switch off: `cacheir compile` makes the program before it is served",
    "generation-config": _OWN_FILES,
    "gpu-memory-utilization": "--kv-tokens says how many positions the pages hold, `cacheir plan` how many bytes",
    "guided-decoding-backend": "llguidance is used wherever it is installed; leave it out",
    "kv-transfer-config": "pages stay with their server",
    "limit-mm-per-prompt": _NOT_THERE,
    "load-format": "the format is read from the files; leave it out",
    "lora-modules": _NO_LORA,
    "max-logprobs": "a request may ask for as many logprobs as OpenAI's API allows; leave it out",
    "max-loras": _NO_LORA,
    "max-num-batched-tokens": "the program says it: `cacheir compile --max-tokens N`, then serve the artifact",
    "middleware": _IN_FRONT,
    "model": "the model stands without an option: cacheir serve MODEL",
    "no-enable-prefix-caching": 'a request with {"cacheir": {"cache_salt": "..."}} of its own shares no prefix',
    "num-speculative-tokens": "--draft-tokens N guesses from the prompt",
    "override-generation-config": "give the values with each request",
    "pipeline-parallel-size": _ONE_DEVICE,
    "reasoning-parser": "thoughts stay in the text as the model writes them",
    "response-role": "the role is assistant",
    "revision": "a model is a folder or a file here; name the one that you downloaded",
    "root-path": _IN_FRONT,
    "rope-scaling": _OWN_FILES,
    "rope-theta": _OWN_FILES,
    "scheduling-policy": '{"cacheir": {"priority": N}} in a request lets it go first; leave it out',
    "seed": "each request has a seed of its own; leave it out",
    "speculative-config": "--draft-tokens N guesses from the prompt",
    "speculative-model": "--draft-tokens N guesses from the prompt; no second model is asked",
    "ssl-ca-certs": _IN_FRONT,
    "ssl-certfile": _IN_FRONT,
    "ssl-keyfile": _IN_FRONT,
    "swap-space": "--spill advised moves cold pages to host memory, --spill-bytes bounds it",
    "task": "completions, chat and embeddings are served together; leave it out",
    "tensor-parallel-size": _ONE_DEVICE,
    "tokenizer": _OWN_FILES,
    "tokenizer-mode": _OWN_FILES,
    "trust-remote-code": "code that comes with a model is never run; leave it out",
    "uvicorn-log-level": "the server says what went wrong on stderr, and no more; leave it out",
}


class ServeCommand(TyperCommand):
    """The command ``serve``; an option that only vLLM's server has is refused with what there is in its place."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer has it. UsageError for such an option."""
        refuse_foreign(args)
        return super().parse_args(ctx, args)


def refuse_foreign(args: Sequence[str]) -> None:
    """UsageError for the first of ``args`` that is an option of vLLM's server and none of ours."""
    for given in args:
        if given == "--":
            return
        name = given.partition("=")[0]
        if name.startswith("--") and (instead := INSTEAD.get(name[2:].replace("_", "-"))):
            raise UsageError(f"cacheir serve has no option {name}", hint=instead)
