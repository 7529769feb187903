"""Arguments of the command line, and errors made readable."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from actorflow import __version__
from actorflow.errors import ActorflowError, visible

DEFAULT_PORT = 8080
#: Exit code where standard output was closed: 128 + SIGPIPE, as shells report it.
NOBODY_READS = 141


def dispatch(argv: Sequence[str] | None) -> int:
    """Parse the arguments, run the command, and report an expected error in one line.

    Returns:
        The exit code; see `actorflow.cli.main`.
    """
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as done:  # argparse has printed help, the version or what is wrong
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
    """Have what is still to be written to standard output go nowhere, the buffer's rest among it."""
    with contextlib.suppress(OSError, ValueError):  # where it is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _problem(error: Exception) -> str:
    """An error in words, without the number that the system has for it."""
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
    _add_demo(commands.add_parser("demo", help="train a small network and watch it live", description=_DEMO))
    doctor = commands.add_parser("doctor", help="show devices and libraries, and what to install for the rest")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.set_defaults(command=_doctor)
    docs = commands.add_parser("docs", help="show the documentation", description=_DOCS)
    docs.add_argument("name", nargs="?", metavar="NAME", help="name of a page; without one all are listed")
    docs.add_argument("--search", metavar="WORDS", help="list the pages with all of these words, and where")
    docs.set_defaults(command=_docs)
    _add_serve(commands.add_parser("serve", help="serve models by the Open Inference Protocol", description=_SERVE))
    _add_watch(commands.add_parser("watch", help="show a running graph of another process live", description=_WATCH))
    _add_show(commands.add_parser("show", help="show what a model is, without running it", description=_SHOW))
    _add_measure(commands.add_parser("measure", help="measure whether batching pays", description=_MEASURE))
    _add_trace(commands.add_parser("trace", help="show where the time of a saved trace went", description=_TRACE))
    return parser


_DEMO = """Train a small Network-in-Network on images of handwritten digits, or on Fashion-MNIST, while a web page in
the same process shows what runs. Ends with the accuracy on the test images and a table of where the time went. Ctrl-C
ends it at any moment, with exit code 130."""


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", choices=("digits", "fashion-mnist"), default="digits", help="what to train on (default: %(default)s)"
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where the four IDX files of Fashion-MNIST are, .gz or not"
    )
    parser.add_argument(
        "--epochs",
        type=_positive,
        metavar="N",
        help="times to go through the images (default: 20 for digits, 1 for fashion-mnist)",
    )
    parser.add_argument("--batch", type=_positive, default=32, metavar="N", help="images per step (default: 32)")
    parser.add_argument(
        "--seed", type=_natural, default=0, metavar="N", help="of weights, dropout, order and split (default: 0)"
    )
    parser.add_argument(
        "--port", type=_port, metavar="N", help=f"of the page, 0 for any (default: {DEFAULT_PORT} if it is free)"
    )
    parser.add_argument("--no-web", dest="web", action="store_false", help="no page")
    parser.add_argument("--values", action="store_true", help="let the page show values: pictures, histograms, norms")
    parser.add_argument(
        "--exit",
        action=argparse.BooleanOptionalAction,
        help="end after training, or serve the page until Ctrl-C (default: serve at a terminal, else end)",
    )
    parser.set_defaults(command=_demo)


_DOCS = (
    """List the pages of the documentation, or show one of them. Errors and warnings name the page that says more."""
)


def _docs(arguments: argparse.Namespace) -> int:
    from actorflow.cli.docs import docs

    return docs(arguments.name, arguments.search)


_SERVE = """Serve models over HTTP by the Open Inference Protocol (KServe, version 2, REST), with batched runs, the live
page of each, and /metrics. SIGTERM or Ctrl-C end it when all requests in flight have their answers, a second one at
once."""


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a file .onnx or .af, or module:attribute; NAME=MODEL and NAME/VERSION=MODEL name it",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s); beyond the loopback it needs a token",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=DEFAULT_PORT,
        metavar="N",
        help="port to listen on, 0 for any (default: %(default)s)",
    )
    parser.add_argument("--token", help="what clients must show (default: $ACTORFLOW_TOKEN, which others cannot see)")
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="HOST",
        help="further name of this machine that clients may ask for, as behind a proxy; again for each",
    )
    parser.add_argument(
        "--allowed-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin whose pages may ask from a browser, as https://app.example.com, or * with a token; again for each",
    )
    _add_source(
        parser,
        "axis of an input, of all files .onnx: INPUT:POSITION=NAME opens one that the file fixes, as images:0=batch; "
        "NAME=N fixes an open one, NAME=NAME names it anew; several by commas, or again",
    )
    parser.add_argument(
        "--page",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="serve the live page of each model, at /graph/NAME/",
    )
    parser.add_argument(
        "--values",
        action="store_true",
        help="let the pages show values, those of requests and results among them; with a token, to those who have it",
    )
    parser.add_argument(
        "--max-rows",
        type=_natural,
        default=32,
        metavar="N",
        help="most rows that are computed in one run, 0 to run each request by itself (default: 32)",
    )
    parser.add_argument(
        "--max-wait",
        type=_seconds,
        default=0.002,
        metavar="S",
        help="longest time in seconds that a request waits for others to share a run (default: 0.002)",
    )
    parser.add_argument(
        "--batch-axis",
        metavar="NAME",
        help="open axis whose rows do not know each other, where it is not called batch, something with it, or N",
    )
    parser.add_argument(
        "--state",
        action="append",
        type=_pair,
        default=[],
        metavar="INPUT=OUTPUT",
        help="an input that each sequence of requests keeps, and the output that gives its next value; again for each",
    )
    parser.add_argument(
        "--fixed",
        action="append",
        type=_fixed,
        default=[],
        metavar="INPUT=NUMBER",
        help="an input that is the same number for all requests; again for each",
    )
    parser.add_argument(
        "--feedback",
        action="append",
        type=_pair,
        default=[],
        metavar="INPUT=OUTPUT",
        help="an input that steps of `generate` are fed, and the output of the step before; again for each",
    )
    parser.add_argument("--until", metavar="OUTPUT", help="output that is true for the last step of `generate`")
    parser.add_argument("--limit", type=_natural, default=1024, metavar="N", help="most steps of `generate` (1024)")
    parser.add_argument(
        "--max-body", type=_positive, metavar="BYTES", help="largest body of a request (default: 67108864)"
    )
    parser.add_argument(
        "--queue-rows", type=_positive, metavar="N", help="most rows that may wait for each model (default: 1024)"
    )
    parser.add_argument(
        "--memory-budget",
        type=_positive,
        metavar="BYTES",
        help="most bytes that a model of a file takes on a device, with what its requests need (default: no limit)",
    )
    parser.add_argument(
        "--max-plans",
        type=_positive,
        metavar="N",
        help="plans that a model of a file keeps, one for each combination of lengths (default: 64, or what it says)",
    )
    parser.add_argument(
        "--timeout", type=_seconds, metavar="S", help="longest time in seconds to a result (default: 60)"
    )
    parser.add_argument(
        "--drain",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="longest time in seconds for requests in flight at the end (default: 30)",
    )
    parser.add_argument(
        "--keep-alive",
        type=_seconds,
        default=75.0,
        metavar="S",
        help="time in seconds for which a connection without a request stays open (default: 75)",
    )
    parser.set_defaults(command=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from actorflow.cli.serve import ServeOptions, serve

    limits = {"body_bytes": arguments.max_body, "queue_rows": arguments.queue_rows, "timeout_s": arguments.timeout}
    return serve(
        ServeOptions(
            models=arguments.models,
            host=arguments.host,
            port=arguments.port,
            source=_source(arguments)._replace(limits=_given(arguments, "memory_budget", "max_plans")),
            drain_s=arguments.drain,
            keep_alive_s=arguments.keep_alive,
            limits={name: value for name, value in limits.items() if value is not None},
            app={
                "token": arguments.token or os.environ.get("ACTORFLOW_TOKEN"),
                "allowed_hosts": arguments.allowed_host,
                "allowed_origins": arguments.allowed_origin,
                "page": arguments.page,
                "values": arguments.values,
                "max_rows": arguments.max_rows,
                "max_wait": arguments.max_wait,
                "batch_axis": arguments.batch_axis,
                "state": dict(arguments.state),
                "fixed": dict(arguments.fixed),
                "feedback": dict(arguments.feedback),
                "until": arguments.until,
                "limit": arguments.limit,
            },
        )
    )


_WATCH = """Show a graph that runs in another process and serves its live page: frames, ops by cost, states, memory,
what frames wait for, failures, the newest values of curves. Comes back when the connection is lost, and ends with
Ctrl-C; elsewhere than to a terminal it prints all that once."""


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address", type=_address, metavar="HOST:PORT", help="of the page; a whole address, as the server prints it, too"
    )
    parser.add_argument("--token", help="what the page asks for (default: $ACTORFLOW_TOKEN, which others cannot see)")
    parser.add_argument("--top", type=_positive, default=50, metavar="N", help="ops that are shown (default: 50)")
    parser.set_defaults(command=_watch)


def _watch(arguments: argparse.Namespace) -> int:
    from actorflow.cli.watch import watch

    address = arguments.address
    token = arguments.token or address.token or os.environ.get("ACTORFLOW_TOKEN")
    return watch(address._replace(token=token), rows=arguments.top)


def _address(text: str) -> Any:
    from actorflow.web.client import Address  # aiohttp is not loaded where nothing is watched

    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_SHOW = """Show the ops of a model, their results' shapes, their parameters, and what they compute and move by their
formulas, for one frame; nothing is run. What follows from open axes is shown as a formula: give them lengths."""


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a file .onnx or .af, or module:attribute")
    _add_source(
        parser,
        "length of an open axis; of files .onnx another name, too, and INPUT:POSITION=NAME opens an axis that the file "
        "fixes; several by commas, or again",
    )
    parser.add_argument("--page", action="store_true", help="serve the live page of the graph, too, until Ctrl-C")
    parser.add_argument(
        "--port", type=_port, metavar="N", help=f"of the page, 0 for any (default: {DEFAULT_PORT} if it is free)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=_show)


def _show(arguments: argparse.Namespace) -> int:
    from actorflow.cli.show import show

    return show(arguments.model, _source(arguments), page=arguments.page, port=arguments.port, as_json=arguments.json)


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"expected INPUT=VALUE, got {text!r}")
    return name, value


def _fixed(text: str) -> tuple[str, int | float]:
    name, value = _pair(text)
    try:
        return name, int(value) if value.lstrip("-").isdecimal() else float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected INPUT=NUMBER, got {text!r}") from None


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
    """The options of models in files."""
    parser.add_argument("--axes", action="append", type=_axes, default=[], metavar="AXIS=N", help=axes)
    parser.add_argument(
        "--function",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="a function that files .af may name, and so have called; again for each",
    )
    parser.add_argument(
        "--backend",
        choices=("actorflow", "onnxruntime"),
        help="what computes files .onnx (default: actorflow, by operations of its own)",
    )


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Arguments that were given, by name."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def _source(arguments: argparse.Namespace) -> Any:
    from actorflow.cli.source import SourceOptions

    axes: dict[str, Any] = {}
    for name, position, said in [each for given in arguments.axes for each in given]:
        if position is None:
            axes[name] = said
        elif isinstance(axes.setdefault(name, {}), dict):
            axes[name][position] = said
    return SourceOptions(arguments.backend, axes, arguments.function)


_MEASURE = """Measure what rows cost a model by the size of a batch, on one core and on all, and where the time goes,
and say whether batching pays and what to serve the model with. The feeds are random numbers, and zeros as
integers."""


def _add_measure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a file .onnx or .af, or module:attribute")
    _add_source(parser, "length of an open axis besides that of the rows; several by commas, or again")
    parser.add_argument(
        "--rows", type=_sizes, default=(1, 8, 32), metavar="N,N", help="sizes of batches (default: 1,8,32)"
    )
    parser.add_argument("--against", choices=("actorflow", "onnxruntime"), help="another backend to compare with")
    parser.add_argument("--seconds", type=_seconds, default=1.0, metavar="S", help="time for each size (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=_measure)


def _measure(arguments: argparse.Namespace) -> int:
    from actorflow.cli.measure import measure

    return measure(
        arguments.model,
        _source(arguments),
        rows=arguments.rows,
        against=arguments.against,
        seconds=arguments.seconds,
        as_json=arguments.json,
    )


def _sizes(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


_TRACE = """Show where the time of a saved trace went: lanes, ops, frames, the critical path of one frame, and the
longest stretches in which nothing ran. FILE is what Graph.save_trace or the live page has saved, gzipped or not; of
another program's trace for chrome://tracing as much is shown as its events say."""


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the trace")
    parser.add_argument(
        "--frame", type=_natural, metavar="N", help="whose critical path (default: one with the median latency)"
    )
    parser.add_argument("--top", type=_positive, default=20, metavar="N", help="rows of a table, at most (default: 20)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=_trace)


def _trace(arguments: argparse.Namespace) -> int:
    from actorflow.cli.trace import show_trace

    return show_trace(arguments.file, frame=arguments.frame, top=arguments.top, as_json=arguments.json)


def _demo(arguments: argparse.Namespace) -> int:
    if (arguments.data == "fashion-mnist") != (arguments.data_dir is not None):
        problem = "needs" if arguments.data_dir is None else "reads no files: leave out"
        print(f"actorflow demo: error: --data {arguments.data} {problem} --data-dir DIR", file=sys.stderr)
        return 2
    from actorflow.cli.demo import DemoOptions, demo

    return demo(
        DemoOptions(
            data_dir=arguments.data_dir,
            epochs=arguments.epochs or {"digits": 20, "fashion-mnist": 1}[arguments.data],
            batch=arguments.batch,
            seed=arguments.seed,
            port=arguments.port,
            web=arguments.web,
            values=arguments.values,
            serve=sys.stdout.isatty() if arguments.exit is None else not arguments.exit,
        )
    )


def _doctor(arguments: argparse.Namespace) -> int:
    from actorflow.cli.doctor import doctor

    return doctor(as_json=arguments.json)


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
