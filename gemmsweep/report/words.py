"""The lines of a report and how it names things. Names from users, files and devices pass through `clean` on their way into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmsweep.ranking import family_labels, is_ranked
from gemmsweep.report.against import main_reference, ratio_phrase, vendor_name
from gemmsweep.report.figures import ABSENT, Record, clean, first_line, percent, short_id

NOISY_PCT = 20.0  # an uncertainty above it says only that the machine was not quiet
NO_BREAK = "\u00a0"  # keeps a label and its run id on one line


def kept_run_id(sweep: Record) -> str | None:
    """The run a sweep leaves behind: its winner or, of a tie or an undecided race, the value kept."""
    return sweep.get("winner_run_id") or sweep.get("kept_run_id")


def ranks(run: Record) -> bool:
    """Whether the run is of its problem's accuracy class: only those win."""
    return is_ranked(run["problem"]["acc"])


def error_text(run: Record) -> str:
    """The relative Frobenius error, `2.1e-07`."""
    error = (run.get("error") or {}).get("rel_fro")
    return ABSENT if error is None else f"{error:.1e}"


def decision_text(best: Record, *, margin: bool = False) -> str:
    """How a config stands among the finalists, the vendor aside: `winner of 3`, `tie of 2`, `undecided`, `only one`."""
    if best["finalists"] == 1:
        return "only one"
    if best["decision"] == "tie":
        return f"tie of {1 + len(set(best.get('ties') or ()) - {best['run_id']})}"
    won = best["decision"] == "winner"
    word = f"winner of {best['finalists']}" if won else clean(best["decision"])
    if not margin or best.get("margin_pct") is None or (not won and best["margin_pct"] > NOISY_PCT):
        return word
    return f"{word}{', by ' if won else ' ±'}{percent(best['margin_pct'])}%"


def verdict_word(sweep: Record) -> str:
    """A sweep's verdict; of a config that raced alone `only one`, since it has won against nobody."""
    return "only one" if sweep.get("verdict") == "winner" and sweep.get("raced") == 1 else clean(sweep.get("verdict"))


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


def machine(device: Record) -> tuple[str, str]:
    """Devices whose results may stand in one ranking, as in `device_class`: GPUs of a kind, a CPU by itself."""
    return device_text(device), "" if clean(device.get("arch")).startswith("sm_") else clean(device.get("uuid"))


def labels(runs: Sequence[Record], varied: str | None) -> list[str]:
    """What tells each run from the others: the axis value, or of finals the template and what differs within it."""
    if varied:
        return [clean((run.get("config") or {}).get(varied)) for run in runs]
    return [clean(label) for label in family_labels([(run["template"] or "", run.get("config") or {}) for run in runs])]


def rivals_line(sweep: Record, runs: Sequence[Record]) -> str:
    """How the run kept, else the fastest, stands against each further reference; empty where there is none."""
    ok = [run for run in runs if run["status"] == "ok" and run.get("median_us")]
    kept = next((run for run in ok if run["run_id"] == kept_run_id(sweep)), None)
    run = kept or min(ok, key=lambda one: float(one["median_us"]), default=None)
    main, parts = main_reference(runs), []
    for name, relation in sorted(((run or {}).get("references") or {}).items()):
        if name != main and relation.get("ratio"):
            version = clean(relation.get("version"))
            told = f" ({version})" if version else ""
            parts.append(ratio_phrase(relation, name) + told)
    for name, reason in (sweep.get("not_raced") or {}).items():
        parts.append(f"{vendor_name(name)} not raced: {first_line(reason)}")
    return f"Also: {'; '.join(parts)}." if parts else ""


def heading(sweep: Record, runs: Sequence[Record]) -> str:
    """What was raced and how: `simt, 4096x4096x4096 fp32, A row, B row (nn): cold L2, equal-clock, 40 rounds, date`."""
    templates = ", ".join(dict.fromkeys(clean(run["template"]) for run in runs))
    problem = problem_text(runs[0]["problem"], words=True) if runs else ""
    kind = "finals" if any(run.get("finals") for run in runs) else ""
    rounds = f"{sweep['rounds']} rounds" if sweep.get("rounds") else ""
    way = "each config timed alone" if sweep.get("protocol") == "alone" else clean(sweep["regime"])
    how = [kind, f"{clean(sweep['l2'])} L2", way, rounds, clean(sweep["started_at"])[:10]]
    what = ", ".join(part for part in (templates, problem) if part)
    return f"{what}: {', '.join(part for part in how if part)}"


def held_line(sweep: Record, runs: Sequence[Record]) -> str:
    """What the configs of an axis have in common: with the axis it is the whole kernel. "" where nothing was varied."""
    varied, configs = sweep.get("varied"), [run["config"] for run in runs if run.get("config")]
    if not varied or not configs:
        return ""
    first, *others = configs
    held = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    held.pop(varied, None)
    return f"Held: {config_text(held)}." if held else ""


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
