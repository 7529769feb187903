"""Arguments of the command line, and errors made readable."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from actorflow import __version__
from actorflow.errors import ActorflowError, visible

DEFAULT_PORT = 8080
#: Exit code where standard output was closed: 128 + SIGPIPE, as shells report it.
NOBODY_READS = 141


def dispatch(argv: Sequence[str] | None) -> int:
    """Parse the arguments, run the command, and report an expected error in one line; returns the exit code."""
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as done:  # argparse has printed help, the version or an error
        return done.code if isinstance(done.code, int) else 2
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        code = command(arguments)
        sys.stdout.flush()  # or Python would find out at its end that nobody reads
        return code
    except BrokenPipeError:  # as of `actorflow show MODEL | head`
        _drop_output()
        return NOBODY_READS
    except (ActorflowError, OSError) as error:
        page = getattr(error, "page", "")
        more = f" (more: actorflow docs {page})" if page else ""
        print(f"actorflow: error: {visible(_problem(error), lines=True)}{more}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Drop all that is still to be written to standard output, the buffer's rest included."""
    with contextlib.suppress(OSError, ValueError):  # where it is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _problem(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _help(parser: argparse.ArgumentParser, _: argparse.Namespace) -> int:
    parser.print_help()
    return 0


def parser() -> argparse.ArgumentParser:
    """The arguments of all commands."""
    parser = argparse.ArgumentParser(
        prog="actorflow",
        description="Numeric dataflow graphs on your own asyncio loop.",
        epilog="`actorflow docs` lists the pages of the documentation: begin with `actorflow docs start`.",
    )
    parser.add_argument("--version", action="version", version=f"actorflow {__version__}")
    parser.set_defaults(command=partial(_help, parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add, name, text, description in (
        (_add_demo, "demo", "train a small network and watch it live", _DEMO),
        (_add_doctor, "doctor", "show devices and libraries, and what to install for the rest", None),
        (_add_docs, "docs", "show the documentation", _DOCS),
        (_add_serve, "serve", "serve models by the Open Inference Protocol", _SERVE),
        (_add_watch, "watch", "show a running graph of another process live", _WATCH),
        (_add_show, "show", "show what a model is, without running it", _SHOW),
        (_add_measure, "measure", "measure whether batching pays", _MEASURE),
        (_add_trace, "trace", "show where the time of a saved trace went", _TRACE),
    ):
        add(commands.add_parser(name, help=text, description=description))
    return parser


_DEMO = """Train a small Network-in-Network on images of handwritten digits, or on Fashion-MNIST, while a web page in
the same process shows what runs. Ends with the accuracy on the test images and a table of where the time went. Ctrl-C
ends it at any moment, with exit code 130."""
_DOCS = (
    """List the pages of the documentation, or show one of them. Errors and warnings name the page that says more."""
)
_SERVE = """Serve models over HTTP by the Open Inference Protocol (KServe, version 2, REST), with batched runs, the live
page of each, and /metrics. SIGTERM or Ctrl-C end it when all requests in flight have their answers, a second one at
once."""
_WATCH = """Show a graph that runs in another process and serves its live page: frames, ops by cost, states, memory,
what frames wait for, failures, the newest values of curves. Comes back when the connection is lost, and ends with
Ctrl-C; elsewhere than to a terminal it prints all that once."""
_SHOW = """Show the ops of a model, their results' shapes, their parameters, and what they compute and move by their
formulas, for one frame; nothing is run. What follows from open axes is shown as a formula: give them lengths."""
_MEASURE = """Measure what rows cost a model by the size of a batch, on one core and on all, and where the time goes,
and say whether batching pays and what to serve the model with. The feeds are random numbers, and zeros as
integers."""
_TRACE = """Show where the time of a saved trace went: lanes, ops, frames, the critical path of one frame, and the
longest stretches in which nothing ran. FILE is what Graph.save_trace or the live page has saved, gzipped or not; of
another program's trace for chrome://tracing as much is shown as its events say."""
_MODEL = "a file .onnx or .af, or module:attribute"
_PORT = f"of the page, 0 for any (default: {DEFAULT_PORT} if it is free)"


def _option(
    parser: argparse.ArgumentParser, flag: str, kind: Callable[[str], Any], text: str, default: Any = None
) -> None:
    """An option, ``--flag METAVAR``, with a value of a kind; its help ends with the default, if there is one."""
    name, _, metavar = flag.partition(" ")
    shown = "" if default is None else " (default: %(default)s)"
    parser.add_argument(name, type=kind, metavar=metavar, help=text + shown, default=default)


def _several(parser: argparse.ArgumentParser, flag: str, kind: Callable[[str], Any], text: str) -> None:
    name, _, metavar = flag.partition(" ")
    parser.add_argument(name, action="append", default=[], type=kind, metavar=metavar, help=text)


def _runs(parser: argparse.ArgumentParser, module: str, function: str | None = None) -> None:
    """Have a command call a function of a module, loaded then, with its arguments by name."""

    def call(arguments: argparse.Namespace) -> int:
        given = {name: value for name, value in vars(arguments).items() if name != "command"}
        if "axes" in given:
            given["options"] = _source(given.pop("axes"), given.pop("function"), given.pop("backend"))
        code: int = getattr(import_module(f"actorflow.cli.{module}"), function or module)(**given)
        return code

    parser.set_defaults(command=call)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    _runs(parser, "doctor")


def _add_docs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of a page; without one all are listed")
    parser.add_argument(
        "--search", dest="words", metavar="WORDS", help="list the pages with all of these words, and where"
    )
    _runs(parser, "docs")


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", choices=("digits", "fashion-mnist"), default="digits", help="what to train on (default: %(default)s)"
    )
    _option(parser, "--data-dir DIR", Path, "where the four IDX files of Fashion-MNIST are, .gz or not")
    text = "times to go through the images (default: 20 for digits, 1 for fashion-mnist)"
    _option(parser, "--epochs N", _positive, text)
    _option(parser, "--batch N", _positive, "images per step", 32)
    _option(parser, "--seed N", _natural, "of weights, dropout, order and split", 0)
    _option(parser, "--port N", _port, _PORT)
    parser.add_argument("--no-web", dest="web", action="store_false", help="no page")
    parser.add_argument("--values", action="store_true", help="let the page show values: pictures, histograms, norms")
    text = "end after training, or serve the page until Ctrl-C (default: serve at a terminal, else end)"
    parser.add_argument("--exit", action=argparse.BooleanOptionalAction, help=text)
    parser.set_defaults(command=_demo)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    text = f"{_MODEL}; NAME=MODEL and NAME/VERSION=MODEL name it"
    parser.add_argument("models", nargs="+", metavar="MODEL", help=text)
    text = "address to listen on (default: %(default)s); beyond the loopback it needs a token"
    parser.add_argument("--host", default="127.0.0.1", help=text)
    _option(parser, "--port N", _port, "port to listen on, 0 for any", DEFAULT_PORT)
    parser.add_argument("--token", help="what clients must show (default: $ACTORFLOW_TOKEN, which others cannot see)")
    text = "further name of this machine that clients may ask for, as behind a proxy; again for each"
    _several(parser, "--allowed-host HOST", str, text)
    text = "origin whose pages may ask from a browser, as https://app.example.com, or * with a token; again for each"
    _several(parser, "--allowed-origin ORIGIN", str, text)
    _add_source(
        parser,
        "axis of an input, of all files .onnx: INPUT:POSITION=NAME opens one that the file fixes, as images:0=batch; "
        "NAME=N fixes an open one, NAME=NAME names it anew; several by commas, or again",
    )
    text = "serve the live page of each model, at /graph/NAME/"
    parser.add_argument("--page", action=argparse.BooleanOptionalAction, default=True, help=text)
    text = "let the pages show values, those of requests and results among them; with a token, to those who have it"
    parser.add_argument("--values", action="store_true", help=text)
    _option(
        parser, "--max-rows N", _natural, "most rows that are computed in one run, 0 to run each request by itself", 32
    )
    text = "longest time in seconds that a request waits for others to share a run"
    _option(parser, "--max-wait S", _seconds, text, 0.002)
    text = "open axis whose rows do not know each other, where it is not called batch, something with it, or N"
    _option(parser, "--batch-axis NAME", str, text)
    text = "share of requests that name no version, in any unit, of those that have one; again for each"
    _several(parser, "--share NAME/VERSION=NUMBER", _fixed, text)
    text = "an input that each sequence of requests keeps, and the output that gives its next value; again for each"
    _several(parser, "--state INPUT=OUTPUT", _pair, text)
    text = "an input that is the same number for all requests; again for each"
    _several(parser, "--fixed INPUT=NUMBER", _fixed, text)
    text = "an input that steps of `generate` are fed, and the output of the step before; again for each"
    _several(parser, "--feedback INPUT=OUTPUT", _pair, text)
    _option(parser, "--until OUTPUT", str, "output that is true for the last step of `generate`")
    parser.add_argument("--limit", type=_natural, default=1024, metavar="N", help="most steps of `generate` (1024)")
    _option(parser, "--max-body BYTES", _positive, "largest body of a request (default: 67108864)")
    _option(parser, "--queue-rows N", _positive, "most rows that may wait for each model (default: 1024)")
    text = "most bytes that a model of a file takes on a device, with what its requests need (default: no limit)"
    _option(parser, "--memory-budget BYTES", _positive, text)
    text = "plans that a model of a file keeps, one for each combination of lengths (default: 64, or what it says)"
    _option(parser, "--max-plans N", _positive, text)
    _option(parser, "--timeout S", _seconds, "longest time in seconds to a result (default: 60)")
    text = "longest time in seconds for requests in flight at the end (default: 30)"
    parser.add_argument("--drain", type=_seconds, default=30.0, metavar="S", help=text)
    text = "time in seconds for which a connection without a request stays open (default: 75)"
    parser.add_argument("--keep-alive", type=_seconds, default=75.0, metavar="S", help=text)
    parser.set_defaults(command=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from actorflow.cli.serve import ServeOptions, serve

    given = vars(arguments)
    limits = {"body_bytes": arguments.max_body, "queue_rows": arguments.queue_rows, "timeout_s": arguments.timeout}
    source = _source(arguments.axes, arguments.function, arguments.backend)
    as_they_are = ("page", "values", "max_rows", "max_wait", "batch_axis", "until", "limit")
    return serve(
        ServeOptions(
            models=arguments.models,
            host=arguments.host,
            port=arguments.port,
            source=source._replace(limits=_given({name: given[name] for name in ("memory_budget", "max_plans")})),
            drain_s=arguments.drain,
            keep_alive_s=arguments.keep_alive,
            limits=_given(limits),
            app={
                "token": arguments.token or os.environ.get("ACTORFLOW_TOKEN"),
                "allowed_hosts": arguments.allowed_host,
                "allowed_origins": arguments.allowed_origin,
                **{name: given[name] for name in as_they_are},
                **{name: dict(given[name]) for name in ("state", "fixed", "feedback")},
                "shares": dict(given["share"]),
            },
        )
    )


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _add_watch(parser: argparse.ArgumentParser) -> None:
    text = "of the page; a whole address, as the server prints it, too"
    parser.add_argument("address", type=_address, metavar="HOST:PORT", help=text)
    parser.add_argument("--token", help="what the page asks for (default: $ACTORFLOW_TOKEN, which others cannot see)")
    parser.add_argument(
        "--top", dest="rows", type=_positive, default=50, metavar="N", help="ops that are shown (default: 50)"
    )
    _runs(parser, "watch")


def _address(text: str) -> Any:
    from actorflow.web.client import Address  # aiohttp is not loaded where nothing is watched

    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="MODEL", help=_MODEL)
    _add_source(
        parser,
        "length of an open axis; of files .onnx another name, too, and INPUT:POSITION=NAME opens an axis that the file "
        "fixes; several by commas, or again",
    )
    parser.add_argument("--page", action="store_true", help="serve the live page of the graph, too, until Ctrl-C")
    _option(parser, "--port N", _port, _PORT)
    _add_json(parser)
    _runs(parser, "show")


def _add_measure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="MODEL", help=_MODEL)
    _add_source(parser, "length of an open axis besides that of the rows; several by commas, or again")
    text = "sizes of batches (default: 1,8,32)"
    parser.add_argument("--rows", type=_sizes, default=(1, 8, 32), metavar="N,N", help=text)
    parser.add_argument("--against", choices=("actorflow", "onnxruntime"), help="another backend to compare with")
    parser.add_argument("--seconds", type=_seconds, default=1.0, metavar="S", help="time for each size (default: 1)")
    _add_json(parser)
    _runs(parser, "measure")


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="FILE", help="the trace")
    _option(parser, "--frame N", _natural, "whose critical path (default: one with the median latency)")
    _option(parser, "--top N", _positive, "rows of a table, at most", 20)
    _add_json(parser)
    _runs(parser, "trace", "show_trace")


def _demo(arguments: argparse.Namespace) -> int:
    if (arguments.data == "fashion-mnist") != (arguments.data_dir is not None):
        problem = "needs" if arguments.data_dir is None else "reads no files: leave out"
        print(f"actorflow demo: error: --data {arguments.data} {problem} --data-dir DIR", file=sys.stderr)
        return 2
    from actorflow.cli.demo import DemoOptions, demo

    given = vars(arguments)
    serve = sys.stdout.isatty() if arguments.exit is None else not arguments.exit
    epochs = arguments.epochs or {"digits": 20, "fashion-mnist": 1}[arguments.data]
    same = {name: given[name] for name in ("data_dir", "batch", "seed", "port", "web", "values")}
    return demo(DemoOptions(**same, epochs=epochs, serve=serve))


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _fixed(text: str) -> tuple[str, int | float]:
    name, value = _pair(text)
    try:
        return name, int(value) if value.lstrip("-").isdecimal() else float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER, got {text!r}") from None


def _axes(text: str) -> list[tuple[str, int | None, int | str]]:
    """Axes by name, or by input and position: ``batch=1,steps=4``, ``images:0=batch``."""
    found = []
    for part in text.split(","):
        where, _, said = part.rpartition("=")
        source, colon, position = where.rpartition(":")
        is_position = bool(colon and source) and position.isdecimal()
        is_name = said.isidentifier()
        if not where or not said or not (is_name or said.lstrip("-").isdecimal()):
            raise argparse.ArgumentTypeError(f"expected NAME=N, NAME=NAME or INPUT:POSITION=NAME, got {part!r}")
        name, place = (source, int(position)) if is_position else (where, None)
        found.append((name, place, said if is_name else _natural(said)))
    return found


def _add_source(parser: argparse.ArgumentParser, axes: str) -> None:
    _several(parser, "--axes AXIS=N", _axes, axes)
    text = "a function that files .af may name, and so have called; again for each"
    _several(parser, "--function MODULE:NAME", str, text)
    parser.add_argument(
        "--backend",
        choices=("actorflow", "onnxruntime"),
        help="what computes files .onnx (default: actorflow, by operations of its own)",
    )


def _source(given: Sequence[Any], functions: Sequence[str], backend: str | None) -> Any:
    from actorflow.cli.source import SourceOptions

    axes: dict[str, Any] = {}
    for name, position, said in itertools.chain.from_iterable(given):
        if position is None:
            axes[name] = said
        elif isinstance(axes.setdefault(name, {}), dict):
            axes[name][position] = said
    return SourceOptions(backend, axes, functions)


def _sizes(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a time in seconds, got {text!r}")
    return number


def _port(text: str) -> int:
    if (number := _natural(text)) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {number}")
    return number


def _at_least(text: str, low: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if number < low:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {low}, got {text!r}")
    return number


_positive, _natural = partial(_at_least, low=1), partial(_at_least, low=0)
