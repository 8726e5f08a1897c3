"""Every sentence of a report. Names from users, files and devices pass through `clean` on their way into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmsweep.report.figures import Record, clean, duration, percent, short_id, times

VENDOR_NAMES = {
    "cublas": "cuBLAS",
    "cublaslt_best": "cuBLASLt best",
    "pad_copy_cublas": "pad + cuBLAS",
    "numpy": "NumPy",
}
NO_BREAK = "\u00a0"  # keeps a label and its run id on one line
NOISY_PCT = 20.0  # an uncertainty above it says only that the machine was not quiet
WORTH_NAMING_PCT = 0.5  # smallest difference the decision rule names; ties are told apart from it


def kept_run_id(sweep: Record) -> str | None:
    """The run a sweep leaves behind: its winner or, of a tie or an undecided race, the value kept."""
    return sweep.get("winner_run_id") or sweep.get("kept_run_id")


def vendor_name(reference: str) -> str:
    return VENDOR_NAMES.get(reference, clean(reference))


def main_reference(runs: Sequence[Record]) -> str | None:
    """The reference that tables compare with: cuBLAS where it raced, else the first on record."""
    names = [name for run in runs for name in run.get("references") or {}]
    return "cublas" if "cublas" in names else next(iter(names), None)


def ratio_phrase(ratio: float, ci95: Sequence[float] | None, reference: str) -> str:
    """`1.03× cuBLAS (faster)`; `(not told apart)` where the 95% interval holds 1."""
    same = ratio == 1 if not ci95 else ci95[0] <= 1 <= ci95[1]
    return f"{times(ratio)}× {vendor_name(reference)} ({'not told apart' if same else 'faster' if ratio > 1 else 'slower'})"


def vendor_phrase(run: Record) -> str:
    """The run against its main reference, or nothing where none raced."""
    name = main_reference([run])
    relation = (run.get("references") or {}).get(name) or {}
    return ratio_phrase(relation["ratio"], relation.get("ci95"), str(name)) if relation.get("ratio") else ""


def config_text(config: Mapping[str, object] | None) -> str:
    return " ".join(f"{clean(name)}={clean(value)}" for name, value in (config or {}).items())


def layout_words(layout: str | None) -> str:
    """`A row, B col (nt)`: BLAS calls that one tn, so the storage order is said in words."""
    return {"nn": "A row, B row (nn)", "nt": "A row, B col (nt)"}.get(layout or "", clean(layout))


def problem_text(problem: Record, *, words: bool = False) -> str:
    """`4096x4096x4096 fp16 nt bias+relu`, with `words` the layout spelt out after a comma."""
    batch = problem.get("batch") or 1
    shape = f"{problem['m']}x{problem['n']}x{problem['k']}" + (f" batch {batch}" if batch > 1 else "")
    layout = layout_words(problem["layout"]) if words else clean(problem["layout"])
    epilogue = problem.get("epilogue") or "none"
    parts = [f"{shape} {clean(problem['dtype'])}", layout, *([clean(epilogue)] if epilogue != "none" else [])]
    return (", " if words else " ").join(parts)


def device_text(device: Record) -> str:
    """`NVIDIA H200, 132 SMs, 700 W`; a CPU has cores and no limit to name."""
    units = "SMs" if clean(device.get("arch")).startswith("sm_") else "cores"
    count = f"{device['sm_count']} {units}" if device.get("sm_count") else ""
    limit = f"{device['power_limit_w']:.0f} W" if device.get("power_limit_w") else ""
    return ", ".join(part for part in (clean(device.get("name")), count, limit) if part)


def labels(runs: Sequence[Record], varied: str | None) -> list[str]:
    """What tells each run from the others: the axis value, or of finals the template and what differs within it."""
    if varied:
        return [clean((run.get("config") or {}).get(varied)) for run in runs]
    return [_template_label(run, runs) for run in runs]


def _template_label(run: Record, runs: Sequence[Record]) -> str:
    family = [other.get("config") or {} for other in runs if other["template"] == run["template"]]
    config = run.get("config") or {}
    differing = {name: value for name, value in config.items() if any(o.get(name) != value for o in family)}
    return " ".join(part for part in (clean(run["template"]), config_text(differing)) if part)


def verdict_sentence(sweep: Record, runs: Sequence[Record]) -> str:
    """Who won and by how much, which values tie, or how far the race is from telling them apart."""
    varied = sweep.get("varied")
    names = {
        run["run_id"]: f"{clean(varied)}={label}" if varied else label
        for run, label in zip(runs, labels(runs, varied), strict=True)
    }
    raced = sorted((run for run in runs if run["status"] == "ok" and run.get("median_us")), key=_median_us)
    kept = names.get(kept_run_id(sweep) or "")
    if not sweep.get("verdict") and (raced or any(run["status"] == "unfinished" for run in runs)):
        return "The race is unfinished: the same command resumes it."
    if not raced:
        return _nothing_raced(sweep, runs)
    if sweep["verdict"] == "winner" and not kept:
        return f"The winner, run {short_id(sweep.get('winner_run_id'))}, is not among the runs shown."
    if len(raced) == 1:
        return f"{names[raced[0]['run_id']]} is the only config that raced."
    if sweep["verdict"] == "winner":
        return _winner_sentence(sweep, raced, names)
    if sweep["verdict"] == "tie":
        return _tie_sentence(sweep, raced, names, kept)
    return _undecided_sentence(sweep, raced, names, kept)


def kept_word(sweep: Record, runs: Sequence[Record]) -> str:
    """Whether the value a sweep leaves behind is the one it started from: "kept", or "taken"."""
    varied, start = sweep.get("varied"), sweep.get("start") or {}
    left = next((run for run in runs if run["run_id"] == kept_run_id(sweep)), None)
    config = (left or {}).get("config") or {}
    return "kept" if varied and varied in start and str(start[varied]) == str(config.get(varied)) else "taken"


def _undecided_sentence(sweep: Record, raced: Sequence[Record], names: Mapping[str, str], kept: str | None) -> str:
    keeps = f"; {kept} is {kept_word(sweep, raced)}." if kept else "."
    group = {*(sweep.get("ties") or ()), kept_run_id(sweep)}
    open_ = [names[run["run_id"]] for run in raced if run["run_id"] in group]
    margin, rounds = sweep.get("margin_pct"), sweep.get("rounds")
    after = f" after {rounds} rounds" if rounds else ""
    if margin is None or margin > NOISY_PCT:
        return f"Undecided{after}: the rounds differ too much to tell {_listed(open_)} apart{keeps}"
    return f"Undecided{after}: {_listed(open_)} may differ by up to {percent(margin)}%{keeps}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _winner_sentence(sweep: Record, raced: Sequence[Record], names: Mapping[str, str]) -> str:
    winner = next(run for run in raced if run["run_id"] == kept_run_id(sweep))
    second = next(run for run in raced if run is not winner)
    stored = sweep.get("margin_pct")
    margin = _gap_pct(winner, second) if stored is None else stored
    return f"{names[winner['run_id']]} wins: {percent(margin)}% faster than {names[second['run_id']]} (next)."


def _tie_sentence(sweep: Record, raced: Sequence[Record], names: Mapping[str, str], kept: str | None) -> str:
    keeps = f"; {kept} is {kept_word(sweep, raced)}" if kept else ""
    told = {*(sweep.get("ties") or ()), kept_run_id(sweep)}
    tied = [names[run["run_id"]] for run in raced if run["run_id"] in told]
    if len(tied) < 2:
        return f"A tie: no value is certainly the fastest{keeps}."
    margin = sweep.get("margin_pct")
    reach = percent(WORTH_NAMING_PCT if margin is None else margin)
    return f"{_listed(tied)} tie within {reach}%{keeps}."


def _nothing_raced(sweep: Record, runs: Sequence[Record]) -> str:
    statuses = [run["status"] for run in runs]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    what = f"No value of {clean(sweep['varied'])} raced" if sweep.get("varied") else "No config raced"
    return f"{what}: {counts}." if counts else f"{what}."


def _median_us(run: Record) -> float:
    return float(run["median_us"])


def _gap_pct(faster: Record, slower: Record) -> float:
    return 100 * (_median_us(slower) / _median_us(faster) - 1)


def conclusion(sweep: Record, runs: Sequence[Record]) -> str:
    """The verdict, how its config stands against the vendor library, and what casts doubt on it."""
    parts = [verdict_sentence(sweep, runs)]
    winner = next((run for run in runs if run["run_id"] == kept_run_id(sweep)), None)
    if winner and vendor_phrase(winner):
        parts.append(f"It runs at {vendor_phrase(winner)}.")
    if sweep.get("contended"):
        parts.append("Contended: other work ran on the device, so nothing is adopted; run it again on an idle one.")
    return " ".join(parts)


def heading(sweep: Record, runs: Sequence[Record]) -> str:
    """What was raced and how: `simt, 4096x4096x4096 fp32, A row, B row (nn): cold L2, equal-clock, 40 rounds, date`."""
    templates = ", ".join(dict.fromkeys(clean(run["template"]) for run in runs))
    problem = problem_text(runs[0]["problem"], words=True) if runs else ""
    kind = "finals" if any(run.get("finals") for run in runs) else ""
    rounds = f"{sweep['rounds']} rounds" if sweep.get("rounds") else ""
    how = [kind, f"{clean(sweep['l2'])} L2", clean(sweep["regime"]), rounds, clean(sweep["started_at"])[:10]]
    what = ", ".join(part for part in (templates, problem) if part)
    return f"{what}: {', '.join(part for part in how if part)}"


def ids_line(sweep: Record, runs: Sequence[Record]) -> str:
    """The ids to ask `gemmsweep show run` for, by label."""
    pairs = zip(labels(runs, sweep.get("varied")), runs, strict=True)
    return "Runs: " + ", ".join(f"{label} {short_id(run['run_id'])}".replace(" ", NO_BREAK) for label, run in pairs)


def reproduce_line(run: Record, sweep: Record) -> str:
    """One line to repeat the measurement: command, device, power limit, driver, L2, dtype, layout, version, commit."""
    environment = sweep.get("environment") or {}
    device = run["device"]
    driver = device.get("driver") or environment.get("driver")
    problem = run["problem"]
    where = [device_text(device), f"driver {clean(driver)}" if driver else "", f"{clean(run['l2'])} L2"]
    what = [clean(problem["dtype"]), layout_words(problem["layout"])]
    commit = environment.get("commit")
    version = f"gemmsweep {clean(environment.get('gemmsweep_version'))}" if environment else ""
    parts = (
        clean(sweep.get("command")),
        ", ".join(part for part in (*where, *what) if part),
        f"{version} ({_short_commit(commit)})" if commit else version,
    )
    return " | ".join(part for part in parts if part)


def _short_commit(commit: str) -> str:
    name, _, dirty = clean(commit).partition("-")
    return f"{name[:9]}-{dirty}" if dirty else name[:9]


def plan_line(axes: Sequence[tuple[str, int]], configs: int, seconds: float | None) -> str:
    """`BK (4), then PAD (3): 7 configs, about 25 s`, from the axes with their counts of values."""
    steps = ", then ".join(f"{clean(name)} ({count})" for name, count in axes)
    estimate = "" if seconds is None else f", about {duration(seconds)}"
    return f"{steps}: {configs} config{'' if configs == 1 else 's'}{estimate}"


def start_line(config: Mapping[str, object], origin: str) -> str:
    """The config a sweep starts from, and where it comes from."""
    return f"start: {config_text(config)} ({clean(origin)})"
