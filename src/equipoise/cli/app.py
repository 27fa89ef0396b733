"""The `equipoise` command: a table of lazily loaded commands and the one place that turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from equipoise._interrupts import Stopped, stop_on_signals
from equipoise.errors import EquipoiseError, InputError

__all__ = ["app", "main"]

app = App(
    name="equipoise",
    help="Balance the decode ranks of large mixture-of-experts LLM deployments.",
    help_format="plaintext",  # markdown help would load a parser: 70 ms of the 300 a user should wait at most
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,  # `main` answers Ctrl-C
)


def _lazy(name: str, target: str, help_text: str) -> None:
    """Name a command without importing it: `--help` must not load the compiled kernel."""
    app.command(target, name=name, help=help_text)


_lazy(
    "compare",
    "equipoise.cli.compare:app",
    "Compare placement policies: which one, for this model and this traffic?",
)
_lazy(
    "compare-runs",
    "equipoise.cli.compare_runs:app",
    "Put finished runs side by side: what differs, and whether it is shown.",
)
_lazy(
    "simulate",
    "equipoise.cli.simulate:app",
    "Run a whole deployment: latencies, goodput, what a step is made of.",
)
_lazy("ceiling", "equipoise.cli.ceiling:app", "Is balancing worth doing here? What any router could win.")
_lazy("control", "equipoise.cli.control:app", "Control inside the engine: what verify lengths could win.")
_lazy("tune", "equipoise.cli.tune:app", "Find the best parameters of a policy, and how flat the optimum is.")
_lazy("serve", "equipoise.cli.serve:app", "Serve: place requests on the ranks of real engines.")
_lazy("live", "equipoise.cli.live:app", "Replay a trace against a real engine: which policy is better there?")
_lazy("policies", "equipoise.cli.policies:app", "List the placement policies and their parameters.")
_lazy("cost", "equipoise.cli.cost:app", "Derive, fit, show, compare and list step costs.")
_lazy("trace", "equipoise.cli.trace:app", "Look at, convert and generate traces.")
_lazy(
    "doctor", "equipoise.cli.doctor:app", "Check this installation: versions, compiled kernel, cache, extras."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 the input cannot be used.

    As the process's own command (no ``argv``) SIGTERM and SIGHUP clean up like Ctrl-C; the code is then 128 and the
    number of the signal, as shells have it.
    """
    if argv is None:
        stop_on_signals()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        _refuse_empty(arguments)
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        print(f"equipoise: {_one_line(str(error))}", file=sys.stderr)
        return 2
    except EquipoiseError as error:
        print(f"equipoise: {_one_line(str(error))}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 0
    except OSError as error:
        print(f"equipoise: {_one_line(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        words, ending = (str(stop), stop.exit_code) if isinstance(stop, Stopped) else ("interrupted", 130)
        print(f"equipoise: {words}", file=sys.stderr, flush=True)
        if argv is None:
            os._exit(ending)  # not waiting for replays under way in other threads
        return ending
    return code if isinstance(code, int) else 0


def _refuse_empty(arguments: Sequence[str]) -> None:
    """No option means anything by an empty text, but a path of it is the folder one stands in."""
    option = None
    for argument in arguments:
        name, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        if (equals or not name) and not value.strip():
            where = name or option
            raise InputError(
                "an empty value" if where else "an empty argument",
                where=where,
                fix="perhaps a shell variable is not set: give a value, or leave it out",
            )
        option = name if name and not equals else None


def _one_line(text: str) -> str:
    return " ".join(text.split())
