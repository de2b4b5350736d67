"""benchmark-norms: the lab's command."""

from __future__ import annotations

import datetime
import json
import secrets
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from enum import StrEnum
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from onepass.fp8.presets import SCALINGS
from onepass.lab.data.case import DTYPES, OPS, Case, directions_of
from onepass.lab.data.profile import Profiled
from onepass.lab.data.row import SCHEMA, Checked, Measured
from onepass.lab.data.run import Run, RunError
from onepass.lab.data.verdict import RERUN, Verdict

if TYPE_CHECKING:
    from onepass.lab.runner import Executor

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Examples:  benchmark-norms --backend all --device cuda --rows 4096 --cols 4096 --dtype float16  |  "
        "benchmark-norms --suite models --run-id tuesday  |  benchmark-norms --run-id tuesday --resume  |  "
        "benchmark-norms compare runs/monday runs/tuesday"
    ),
)
decisions = typer.Typer(no_args_is_help=True, help="Decision records, and whether their evidence still holds.")
app.add_typer(decisions, name="decisions")


class Passes(StrEnum):
    forward = "forward"
    backward = "backward"
    both = "both"


def refuse(sentence: object) -> NoReturn:
    """One sentence to the person, exit code 2."""
    print(f"benchmark-norms: {sentence}", file=sys.stderr)
    raise typer.Exit(2)


@contextmanager
def in_a_sentence() -> Iterator[None]:
    try:
        yield
    except (ValueError, RunError) as error:
        refuse(error)


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    backend: Annotated[list[str] | None, typer.Option(help="all, a backend's name, or my_module:function")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; by default the GPU if there is one")] = None,
    rows: Annotated[int | None, typer.Option(help="rows of a single case")] = None,
    cols: Annotated[int | None, typer.Option(help="columns of a single case")] = None,
    dtype: Annotated[str, typer.Option(help=" or ".join(DTYPES))] = "bfloat16",
    op: Annotated[str, typer.Option(help=" or ".join(OPS))] = "rms_norm",
    scaling: Annotated[str | None, typer.Option(help=f"of an FP8 output: {' or '.join(SCALINGS)}")] = None,
    columnwise: Annotated[bool, typer.Option("--columnwise", help="of an FP8 output: its transpose too")] = False,
    passes: Annotated[
        Passes, typer.Option("--pass", help="which pass of a single case; FP8 outputs have the forward alone")
    ] = Passes.both,
    case: Annotated[
        list[str] | None, typer.Option(help="a case by its id, as runs name it; may be given again")
    ] = None,
    suite: Annotated[list[str] | None, typer.Option(help="a suite's name; may be given again")] = None,
    sweep: Annotated[bool, typer.Option("--include-rmsnorm-shape-sweep", help="add the suite shape-sweep")] = False,
    random: Annotated[int, typer.Option(help="add so many cases drawn at random, sizes that nobody listed")] = 0,
    seed: Annotated[int | None, typer.Option(help="of --random; by default another one each time")] = None,
    run_id: Annotated[str | None, typer.Option(help="the run's name; by default the time")] = None,
    resume: Annotated[bool, typer.Option(help="go on with the run of that name")] = False,
    rerun: Annotated[bool, typer.Option(help="sample again what was too noisy or throttled in the run")] = False,
    executor: Annotated[str | None, typer.Option(help="local, or ray: over a cluster; by default local")] = None,
    runs: Annotated[Path, typer.Option(help="where runs are kept")] = Path("runs"),
    jobs: Annotated[
        int, typer.Option(help="prepare backends in so many processes first: tuning takes up to a minute a shape")
    ] = 1,
    baseline: Annotated[str, typer.Option(help="the backend that others are compared with")] = "eager",
    seconds: Annotated[float, typer.Option(help="time limit of one case, all backends together")] = 20.0,
    with_profiling: Annotated[
        bool, typer.Option("--with-profiling", help="the hardware's counters too, by ncu")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="verdicts as JSON, for machines")] = False,
) -> None:
    """Measure normalization backends side by side, and say only what the measurement carries."""
    if context.invoked_subcommand is not None:
        return
    with in_a_sentence():
        begun = _begun(runs, run_id, "--rerun" if rerun else "--resume") if resume or rerun else None
        by = executor or (begun.header.get("executor") if begun else None) or "local"
        if jobs < 1:
            raise ValueError(f"--jobs must be a number of processes, not {jobs}")
        if jobs > 1 and by == "ray":
            raise ValueError("--jobs needs --executor local: a cluster's machines find nothing on this one's disk")
        if with_profiling and by == "ray":
            raise ValueError(
                "--with-profiling needs --executor local: ncu reads this machine's GPU, which need not be what measured"
            )
        with _executor(by) as chosen:
            place = _device(begun.header["device"] if begun else device, chosen)
            if begun is None:
                single = _single(rows, cols, dtype, op, passes, scaling, columnwise)
                single += [Case.from_id(name) for name in case or []]
                names = [*(suite or []), *(["shape-sweep"] if sweep else [])]
                cases = _cases(place, single, names, random, seed)
                header = _header(place, chosen.name, cases, backend or ["all"], baseline, seconds)
                begun = Run.begin(runs, run_id or _now_id(), header)
            current = begun
            again = _undecided(current) if rerun else set()
            if jobs > 1:
                _prepare(current, jobs, again)
            _execute(current, chosen, again)
        if with_profiling:
            _profile(current)
        verdicts, sentences = _judged(current)
        made = _report(current, verdicts, sentences)
    if as_json:
        print(json.dumps({"run": str(current.path), "verdicts": [asdict(verdict) for verdict in verdicts]}))
    else:
        _show(current, verdicts, sentences)
        what = "report" if made.suffix == ".html" else "rows, of which benchmark-norms report makes a page elsewhere"
        print(f"{what}: {made}")


@app.command()
def compare(
    a: Path,
    b: Path,
    relative: Annotated[bool, typer.Option(help="by each run's own baseline: for two machines of one kind")] = False,
    backend: Annotated[list[str] | None, typer.Option(help="a backend that counts; may be given again")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """What changed from run A to run B. Significant regressions make exit code 1, noise never does."""
    from onepass.lab.judge.compare import compare as compared

    with in_a_sentence():
        result = compared(Run.open(a), Run.open(b), relative=relative, only=backend)
    if as_json:
        print(json.dumps(asdict(result)))
    else:
        print(result)
    raise typer.Exit(int(result.regressed))


@app.command()
def report(path: Path, out: Annotated[Path | None, typer.Option(help="where to write the page")] = None) -> None:
    """Make the page of a run that was measured here or elsewhere."""
    with in_a_sentence():
        current = Run.open(path)
        verdicts, sentences = _judged(current)
        print(_page(current, verdicts, sentences, out or current.path / "report.html"))


@app.command()
def profile(
    path: Path,
    case: Annotated[list[str] | None, typer.Option(help="a case's id; may be given again")] = None,
    backend: Annotated[list[str] | None, typer.Option(help="a backend's name; may be given again")] = None,
) -> None:
    """Read the hardware's counters (ncu) for the measured rows of a run, all or those named, and renew its page."""
    with in_a_sentence():
        current = Run.open(path)
        _known("case", case or [], [case.id for case in current.cases])
        _known("backend", backend or [], current.backends)
        _profile(current, case or [], backend or [])
        made = _report(current, *_judged(current))
    table = Table("case", "backend", "DRAM", "occupancy", "bytes / needed", "kernels", box=None)
    for found in current.profiles()[0].values():
        if isinstance(found, Profiled):
            figures = (f"{found.dram_percent:.0f} %", f"{found.occupancy_percent:.0f} %", f"{found.traffic:.2f}")
            table.add_row(found.case, found.backend, *figures, str(len(found.kernels)))
        else:
            table.add_row(found.case, found.backend, f"unprofiled: {found.why}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    print(made)


@app.command()
def tune(
    suite: Annotated[list[str] | None, typer.Option(help="a suite's name; may be given again")] = None,
    random: Annotated[int, typer.Option(help="and so many cases drawn at random")] = 0,
    seed: Annotated[int | None, typer.Option(help="of --random; by default another one each time")] = None,
    again: Annotated[bool, typer.Option(help="also what is tuned already")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Search for the fastest plans on this GPU, keep them for every later call, and say how good the planner was."""
    from onepass.lab.runner import Local
    from onepass.lab.tuning import tune_cases

    with in_a_sentence():
        _device("cuda", Local())
        names = suite or ([] if random else ["models"])
        cases = _cases("cuda", [], names, random, seed)

        def tell(number: int, case: Case) -> None:
            print(f"[{number}/{len(cases)}] {case.id}", file=sys.stderr, flush=True)

        tuned = tune_cases(cases, again, tell)
    if as_json:
        print(json.dumps([asdict(found) for found in tuned.found]))
        return
    table = Table("problem", "won", "us", "planner's", "gain", box=None)
    for found in tuned.found:
        won = f"{found.schedule}: {found.tile.rows} x {found.tile.block or found.tile.cols}, {found.tile.warps} warps"
        table.add_row(found.signature, won, f"{found.us:,.1f}", f"{found.model_us:,.1f}", f"{tuned.gain(found):.1%}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    print(tuned)


@decisions.command()
def check(
    directory: Annotated[Path, typer.Argument(help="where the records are")] = Path("evidence/decisions"),
    runs: Annotated[list[Path] | None, typer.Option(help="where runs are kept; may be given again")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Judge the rows that decisions rest on again. One that is missing or gets another call makes exit code 1."""
    from onepass.lab.decisions import RUNS
    from onepass.lab.decisions import check as checked

    with in_a_sentence():
        records = checked(directory, runs or RUNS)
    if as_json:
        print(json.dumps({"records": [asdict(record) for record in records]}))
    else:
        print("\n".join(map(str, records)) or f"no decision records in {directory}")
    raise typer.Exit(int(any(record.faults for record in records)))


@app.command(name="list")
def listing(runs: Annotated[Path, typer.Option(help="where runs are kept")] = Path("runs")) -> None:
    """Suites, backends and runs."""
    from onepass.lab.backends import NAMES, backend
    from onepass.lab.suite import suites

    table = Table("suite", "cases", "about", box=None)
    for name, found in suites().items():
        table.add_row(name, str(len(found.cases)), found.about)
    others = Table("backend", "here", box=None)
    for name in NAMES:
        others.add_row(name, backend(name).probe() or "yes")
    past = Table("run", "created", "rows", box=None)
    with in_a_sentence():
        for path in sorted(runs.glob("*/run.json")):
            found_run = Run.open(path.parent)
            past.add_row(found_run.id, str(found_run.header.get("created", "")), str(len(found_run.rows()[0])))
    console = Console()
    for part in (table, others, past):
        console.print(part)


def _begun(runs: Path, run_id: str | None, option: str) -> Run:
    if run_id is None:
        raise ValueError(f"{option} needs the --run-id of the run to go on with")
    return Run.open(runs / run_id)


def _executor(name: str) -> AbstractContextManager[Executor]:
    if name == "local":
        from onepass.lab.runner import Local

        return nullcontext(Local())
    if name == "ray":
        from onepass.lab.cluster import cluster

        return cluster()
    raise ValueError(f"--executor must be local or ray, not {name}")


def _device(asked: str | None, executor: Executor) -> str:
    if asked not in (None, "cuda", "cpu"):
        raise ValueError(f"--device must be cuda or cpu, not {asked}")
    if asked == "cuda" and not executor.has_gpu():
        raise ValueError(f"--device cuda was asked for, and there is no CUDA GPU {executor.where}")
    return asked or ("cuda" if executor.has_gpu() else "cpu")


def _single(
    rows: int | None, cols: int | None, dtype: str, op: str, passes: Passes, scaling: str | None, columnwise: bool
) -> list[Case]:
    """The case that rows and columns ask for, in the passes that it has; none without them."""
    if (rows is None) != (cols is None):
        raise ValueError("--rows and --cols go together")
    if rows is None or cols is None:
        return []
    directions = directions_of(op) if passes is Passes.both else (passes.value,)
    return [Case(op, each, rows, cols, dtype, scaling=scaling, columnwise=columnwise) for each in directions]


def _cases(device: str, single: list[Case], names: list[str], random: int, seed: int | None) -> list[Case]:
    """Single cases, random ones, suites; where nothing is asked for, the suite that fits the device."""
    from onepass.lab.suite import random_cases, suite

    if random < 0:
        raise ValueError(f"--random must be a number of cases, not {random}")
    if seed is not None and not random:
        raise ValueError("--seed goes with --random")
    found = list(single)
    if random:
        seed = secrets.randbelow(2**32) if seed is None else seed
        print(f"{random} cases by --seed {seed}", file=sys.stderr)
        found += random_cases(random, seed)
    if not found and not names:
        names = ["seed"] if device == "cuda" else ["cpu"]
    for name in names:
        found += suite(name).cases
    return list(dict.fromkeys(found))


def _header(
    device: str, executor: str, cases: list[Case], asked: list[str], baseline: str, seconds: float
) -> dict[str, Any]:
    from onepass.lab.backends import NAMES, backend
    from onepass.lab.environment import environment
    from onepass.lab.measure.sampling import Rules

    names = list(dict.fromkeys(name for each in asked for name in (NAMES if each == "all" else [each])))
    for name in [*names, baseline]:
        backend(name)  # an unknown one is refused here, before anything is written
    rules = Rules(seconds=seconds) if device == "cuda" else Rules(seconds=min(seconds, 4.0), warm_up_seconds=0.05)
    return {
        "schema": SCHEMA,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["benchmark-norms", *sys.argv[1:]],
        "device": device,
        "executor": executor,
        "backends": names if baseline in names else [baseline, *names],
        "baseline": baseline,
        "cases": [case.to_json() for case in cases],
        "method": asdict(rules),
        # Who only hands out cases need not have the GPU that they run on.
        "environment": environment(device if executor == "local" else "cpu"),
    }


def _now_id() -> str:
    return datetime.datetime.now().strftime("%Y%m%d-%H%M%S")


def _prepare(current: Run, jobs: int, again: set[str]) -> None:
    from onepass.lab.preparing import orders, prepare

    wanted = orders(current.unfinished(again), current.backends)
    with _progress(len(wanted)) as step:

        def done(case: Case, backend: str) -> None:
            with step(f"prepared {case.id}, {backend}"):
                pass

        prepare(wanted, current.header["device"], jobs, done)


def _execute(current: Run, executor: Executor, again: set[str]) -> None:
    from onepass.lab.runner import execute

    with _progress(len(current.unfinished(again))) as step:
        execute(current, executor, lambda case: step(case.id), again)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """Steps by name: with a bar and a time estimate on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        number = count(1)

        @contextmanager
        def line(name: str) -> Iterator[None]:
            print(f"[{next(number)}/{total}] {name}", file=sys.stderr, flush=True)
            yield

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)

        @contextmanager
        def step(name: str) -> Iterator[None]:
            progress.update(task, description=name)
            yield
            progress.advance(task)

        yield step


def _profile(current: Run, cases: Sequence[str] = (), backends: Sequence[str] = ()) -> None:
    from onepass.lab.profiling import profile_run

    def tell(case: str, backend: str) -> None:
        print(f"profiling {case}, {backend}", file=sys.stderr, flush=True)

    profile_run(current, cases, backends, tell)


def _known(what: str, asked: Sequence[str], there: Sequence[str]) -> None:
    for name in asked:
        if name not in there:
            raise ValueError(f"--{what} must be one of the run's: {', '.join(there)}; not {name}")


def _undecided(current: Run) -> set[str]:
    """The cases with a row that another sampling may settle."""
    return {verdict.case for verdict in _judged(current)[0] if verdict.call in RERUN}


def _judged(current: Run) -> tuple[list[Verdict], list[str]]:
    from onepass.lab.judge.boundary import boundary
    from onepass.lab.judge.judge import judge_run

    verdicts = judge_run(current, current.header["baseline"])
    return verdicts, [*boundary(current, verdicts), *current.rows()[1], *current.profiles()[1]]


def _report(current: Run, verdicts: list[Verdict], sentences: list[str]) -> Path:
    """The page, or the rows where what makes pages is not installed: they can be taken to where it is."""
    if any(find_spec(module) is None for module in ("altair", "vl_convert")):
        return current.path / "rows.jsonl"
    return _page(current, verdicts, sentences, current.path / "report.html")


def _page(current: Run, verdicts: list[Verdict], sentences: list[str], out: Path) -> Path:
    from onepass.lab.judge.judge import controls_of
    from onepass.lab.judge.stats import smallest_effect
    from onepass.lab.report import write_report

    effects = [smallest_effect(control) for control in controls_of(current.rows()[0]).values()]
    effect = statistics.median(effects) if effects else None
    return write_report(current, verdicts, sentences, out, smallest_effect=effect)


def _show(current: Run, verdicts: list[Verdict], sentences: list[str]) -> None:
    rows, _ = current.rows()
    table = Table("case", "backend", "call", "us", "speed-up", "95 %", box=None)
    for verdict in verdicts:
        row = rows.get((verdict.case, verdict.backend))
        time = ""
        call = "checked, not timed" if isinstance(row, Checked) else verdict.call
        if isinstance(row, Measured):
            time = f"{(row.timings.get('gpu') or row.timings['call']).p50:,.1f}"
        speedup = "" if verdict.speedup is None else f"{verdict.speedup:.2f}"
        between = "" if verdict.low is None else f"{verdict.low:.2f} to {verdict.high:.2f}"
        table.add_row(verdict.case, verdict.backend, call, time, speedup, between)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    for sentence in sentences:
        console.print(f"- {sentence}", markup=False, highlight=False)


def main() -> None:
    app()
