"""``python -m specroute.reference``: reads flags, starts the server, says where it listens.

Knows flags; deliberately nothing else. ``docs/reference-server.md`` describes each of them.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from specroute.reference.access_log import AccessLog
from specroute.reference.options import CAPABILITIES, PARAMETERS, PREFILLS, QUIRKS, Options
from specroute.reference.pace import Pace
from specroute.reference.running import Listener, bind, open_backend
from specroute.reference.server import Server


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, (part.strip() for part in text.split(","))))


def parser() -> argparse.ArgumentParser:
    """All flags."""
    p = argparse.ArgumentParser(
        prog="python -m specroute.reference",
        description="A small OpenAI-format server over a local model or a known distribution.",
    )
    source = p.add_mutually_exclusive_group()
    source.add_argument("--model", type=Path, metavar="DIR", help="a transformers model's folder")
    source.add_argument(
        "--script", type=Path, metavar="FILE", help="a distribution, .toml or .json"
    )
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8000, help="0 picks a free one")
    p.add_argument("--name", action="append", default=[], help="model name; may be given again")
    p.add_argument("--pace", default="", metavar="ttft=…,tpot=…,rtt=…,prefill=…,load=…")
    p.add_argument("--disable", type=_names, default=frozenset(), help=", ".join(CAPABILITIES))
    p.add_argument("--ignore", type=_names, default=frozenset(), help=", ".join(PARAMETERS))
    p.add_argument(
        "--prefill",
        type=_names,
        default=frozenset({"continue_final_message"}),
        help=", ".join(PREFILLS),
    )
    p.add_argument("--prefill-repeats", action="store_true", help="answers start with the prefill")
    p.add_argument("--prefill-trims", action="store_true", help="white space at its end is lost")
    p.add_argument("--quirk", type=_names, default=frozenset(), help=", ".join(QUIRKS))
    p.add_argument("--max-logprobs", type=int, default=20)
    p.add_argument("--max-batch", type=int, default=256, help="sequences stepped together")
    p.add_argument("--api-key", help="refuse requests without it")
    p.add_argument("--seed", type=int, default=0, help="of requests that bring none")
    p.add_argument("--log", metavar="FILE", help="append access records; - is standard output")
    p.add_argument("--device", default="cpu", help="the model's: cpu, cuda, cuda:1")
    p.add_argument("--threads", type=int, default=1, help="torch's; one is best for a tiny model")
    p.add_argument("--until-eof", action="store_true", help="stop when standard input ends")
    return p


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal; returns the exit status. What is wrong is said in one line."""
    args = parser().parse_args(argv)
    try:
        options = Options(
            names=tuple(args.name),
            pace=Pace.parse(args.pace),
            disable=args.disable,
            ignore=args.ignore,
            prefill=args.prefill,
            prefill_repeats=args.prefill_repeats,
            prefill_trims=args.prefill_trims,
            quirks=args.quirk,
            max_logprobs=args.max_logprobs,
            api_key=args.api_key,
            seed=args.seed,
            max_batch=args.max_batch,
        )
        source = args.script or args.model
        if source is None:
            from specroute.reference.bundled import target_dir

            source = target_dir()
        backend = open_backend(source, device=args.device, threads=args.threads)
        log = AccessLog(Path("/dev/stdout" if args.log == "-" else args.log) if args.log else None)
        server = Server(backend, options, log)
        sock = bind(args.host, args.port)
    except (ValueError, OSError, ImportError) as error:
        print(f"specroute.reference: {error}", file=sys.stderr)
        return 2
    host = f"[{args.host}]" if ":" in args.host else args.host
    print(
        f"listening on http://{host}:{sock.getsockname()[1]}/v1 model {server.served.names[0]}",
        flush=True,
    )
    listener = Listener(server)
    if args.until_eof:
        threading.Thread(target=_stop_at_eof, args=(listener,), daemon=True).start()
    listener.run([sock])
    return 0


def _stop_at_eof(listener: Listener) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    listener.ready.wait()
    listener.stop()


if __name__ == "__main__":
    sys.exit(main())
