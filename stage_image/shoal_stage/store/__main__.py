"""`python -m shoal_stage.store sizes|report|serve|pull …`: for the model's Jobs, the store and init containers."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from shoal.errors import ShoalError, UsageError
from shoal.manifest import Precision, read_manifest
from shoal.plan.facts import ModelFacts
from shoal.plan.facts_json import facts_to_json
from shoal_stage.store.pull import Pull
from shoal_stage.store.serve import StoreServer


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str]) -> int:
    """Run one command; errors become one line and an exit code."""
    try:
        arguments = _parser().parse_args(argv)
        arguments.run(arguments)
    except ShoalError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command's own output
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m shoal_stage.store", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="sizes|report|serve|pull")
    sizes = commands.add_parser("sizes", help="say a source's sizes before it is compiled", allow_abbrev=False)
    sizes.add_argument("source", help="as `python -m shoal_stage compile` takes it")
    sizes.add_argument("--cache", type=Path, required=True, help="where downloads are kept")
    sizes.add_argument("--precision", choices=[str(each) for each in Precision], default=str(Precision.INT4))
    sizes.add_argument("--group-size", type=int)
    sizes.add_argument("--keep-stored", action="store_true", help="INT4: as `compile --keep-stored`")
    sizes.add_argument("--sha256", help="expected digest of the source file")
    sizes.add_argument("--to", type=Path, required=True, help="file to write, such as /dev/termination-log")
    sizes.set_defaults(run=_sizes)
    report = commands.add_parser("report", help="say a model directory's sizes and digest", allow_abbrev=False)
    report.add_argument("--directory", type=Path, required=True, help="model directory")
    report.add_argument("--to", type=Path, required=True, help="file to write, such as /dev/termination-log")
    report.set_defaults(run=_report)
    serve = commands.add_parser("serve", help="serve model directories by digest", allow_abbrev=False)
    serve.add_argument("--directory", type=Path, required=True, help="folder that holds model directories")
    serve.add_argument("--listen", required=True, metavar="HOST:PORT")
    serve.set_defaults(run=_serve)
    pull = commands.add_parser("pull", help="fetch what a stage needs of a model", allow_abbrev=False)
    pull.add_argument("--from", dest="source", required=True, metavar="URL", help="the store")
    pull.add_argument("--digest", required=True, help="digest of the model's manifest")
    pull.add_argument("--into", type=Path, required=True, help="folder that gets DIGEST/")
    pull.add_argument("--blocks", metavar="START:END", help="blocks of the stage; without them only the tokenizer")
    pull.set_defaults(run=_pull)
    return parser


def _sizes(arguments: argparse.Namespace) -> None:
    from shoal_stage.compile.progress import shown  # the readers take a second to import
    from shoal_stage.compile.sizes import sizes_of_source

    with shown() as progress:
        facts = sizes_of_source(
            arguments.source,
            arguments.cache,
            Precision(arguments.precision),
            arguments.group_size,
            arguments.sha256,
            keep_stored=arguments.keep_stored,
            progress=progress,
        )
    arguments.to.write_text(facts_to_json(facts), encoding="utf-8")


def _report(arguments: argparse.Namespace) -> None:
    facts = ModelFacts.of_manifest(read_manifest(arguments.directory))
    # Not renamed into place: the kubelet has put the file there, and reads this one.
    arguments.to.write_text(facts_to_json(facts), encoding="utf-8")


def _serve(arguments: argparse.Namespace) -> None:
    server = StoreServer(arguments.directory, arguments.listen)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.stop, daemon=True).start())
    print(f"serving {arguments.directory} on {server.url}", file=sys.stderr, flush=True)  # noqa: T201
    server.run()


def _pull(arguments: argparse.Namespace) -> None:
    blocks = None if arguments.blocks is None else _range(arguments.blocks)
    pulled = Pull(arguments.source, arguments.digest, arguments.into).run(blocks)
    print(f"{pulled.directory}: {pulled.fetched} bytes fetched, {pulled.present} were there", file=sys.stderr)  # noqa: T201


def _range(text: str) -> tuple[int, int]:
    start, colon, end = text.partition(":")
    if not colon or not start.isdecimal() or not end.isdecimal() or int(start) >= int(end):
        raise UsageError(f"argument --blocks: {text!r} is not START:END, such as 0:17")
    return int(start), int(end)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
