"""Every sentence of a report. Names from users, files and devices pass through `clean` on their way into one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gemmsweep.ranking import family_labels, is_ranked
from gemmsweep.references import (
    VENDOR,
    WORTH_NAMING,
    certainly_faster,
    is_level,
    is_wide,
    library_ahead,
    library_ways,
    stronger_way,
    winner,
    yardstick,
)
from gemmsweep.report.figures import (
    ABSENT,
    NO_FIGURE,
    Record,
    clean,
    first_line,
    percent,
    says_nothing,
    short_id,
    significant,
    span,
    times,
)

VENDOR_NAMES = {
    "cublas": "cuBLAS",
    "cublaslt_best": "cuBLASLt best",
    "pad_copy_cublas": "pad + cuBLAS",
    "numpy": "NumPy",
}
UNSTABLE, NOT_TOLD_APART, LEVEL = "unstable", "not told apart", f"within {100 * WORTH_NAMING:.1f}%"
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


def vendor_name(reference: str) -> str:
    return VENDOR_NAMES.get(reference, clean(reference))


def main_reference(runs: Sequence[Record]) -> str | None:
    """The reference that tables compare with: the vendor library where it raced, else the first on record."""
    return yardstick(name for run in runs for name in run.get("references") or {})


def standing(relation: Record) -> str:
    """The one word for a kernel against a reference: faster, slower, `not told apart` where the 95% interval holds 1, or
    there is none, as of two rounds.

    `within 0.5%` where it does not, but the difference is no larger than between two races of the same configs.
    `unstable` where it would be faster, but the ratio or the reference's own time is anybody's guess: a library that
    stumbles is no praise for the kernel.
    """
    ratio, ci95 = relation["ratio"], relation.get("ci95")
    if not ci95 or ci95[0] <= 1 <= ci95[1]:
        return NOT_TOLD_APART
    if is_level(ratio):
        return LEVEL
    if ratio < 1:
        return "slower"
    return UNSTABLE if is_wide(ratio, ci95) or reference_stumbled(relation) else "faster"


def reference_stumbled(relation: Record) -> bool:
    """Whether the reference's own rounds are too far apart for a yardstick."""
    return is_wide(relation.get("median_us"), relation.get("ci95_us"))


def ratio_phrase(relation: Record, reference: str, on: str = "") -> str:
    """`1.03× cuBLAS (faster)`, with the word of `standing` and, where the figure does not show it, why it is unstable.
    `on`: `1 thread`, as in `1.07× NumPy on 1 thread (faster)`.

    A ratio that is too wide for a figure as its interval, `1.9–64× NumPy`, or where that says nothing, as `no figure`.
    """
    ratio, ci95 = relation["ratio"], relation.get("ci95")
    name, word = vendor_name(reference), standing(relation)
    what = f"{name} on {on}" if on else name
    if not ci95 or not is_wide(ratio, ci95):
        why = f": {name}'s own time varies" if word == UNSTABLE else ""
        return f"{times(ratio)}× {what} ({word}{why})"
    if says_nothing(ratio, ci95):
        return f"{NO_FIGURE} against {what} ({word})"
    return f"{span(ci95)}× {what} ({word})"


def vendor_relation(run: Record) -> tuple[str | None, Record]:
    """The run's main reference and how it stands to that; None and nothing where none raced."""
    name = main_reference([run])
    return name, (run.get("references") or {}).get(name) or {}


THREADS = re.compile(r", (\d+ threads?)$")  # at the end of a CPU library's version


def vendor_phrase(run: Record) -> str:
    """The run against its main reference, or nothing where none raced. On a CPU with the library's threads: `tune` gives it
    all there are, a race as many as its kernels have at most, and one table may hold both.
    """
    name, relation = vendor_relation(run)
    if not relation.get("ratio"):
        return ""
    threads = THREADS.search(clean(relation.get("version")))
    return ratio_phrase(relation, str(name), threads[1] if threads else "")


def vendor_phrases(run: Record) -> str:
    """The same; another way of the vendor's, too, where only it is certainly faster than the run or it beats the usual one; and
    a regime that is not the usual one.
    """
    relations = run.get("references") or {}
    usual, relation = vendor_relation(run)
    other = None if certainly_faster(relation) else library_ahead(relations)
    other = other or stronger_way(relations, str(usual))
    parts = [vendor_phrase(run)]
    if other is not None:
        parts.append(ratio_phrase(relations[other], other))
    if run.get("regime") not in (None, "equal-clock"):
        parts.append(clean(run["regime"]))
    return ", ".join(part for part in parts if part)


def vendor_sentence(run: Record) -> str:
    """The run against its main reference, as a sentence; nothing where none raced."""
    name, relation = vendor_relation(run)
    ratio, ci95 = relation.get("ratio"), relation.get("ci95")
    if not ratio:
        return ""
    if not ci95 or not is_wide(ratio, ci95):
        return f"It runs at {ratio_phrase(relation, str(name))}."
    if says_nothing(ratio, ci95):
        return f"There is {ratio_phrase(relation, str(name))}: the rounds lie orders of magnitude apart."
    low, high = (significant(edge, 2) for edge in ci95)
    return f"It runs at anything from {low} to {high}× {vendor_name(str(name))} ({standing(relation)})."


def hardest_reference(run: Record) -> tuple[str | None, Record]:
    """The vendor's way that is certainly faster than the run, else the one that beats its usual one, else that."""
    relations = run.get("references") or {}
    usual, relation = vendor_relation(run)
    hardest = library_ahead(relations) or stronger_way(relations, str(usual))
    return (hardest, relations[hardest]) if hardest is not None else (usual, relation)


def fastest(best: Record) -> str:
    """Who is certainly the fastest on a problem: `vendor` or the family; else `unstable` or `not told apart`."""
    relations = best.get("references") or {}
    taken = winner(clean(best["template"]), relations)
    if taken == VENDOR:
        return taken
    ways = [relations[name] for name in library_ways(relations)] or [vendor_relation(best)[1]]
    found = {standing(relation) if relation else NOT_TOLD_APART for relation in ways} - {"faster"}
    return taken if not found else UNSTABLE if found == {UNSTABLE} else NOT_TOLD_APART


def decision_text(best: Record, *, margin: bool = False) -> str:
    """How a config stands among the finalists, the vendor aside: `winner of 3`, `tie of 2`, `undecided`, `only one`."""
    if best["finalists"] == 1:
        return "only one"
    if best["decision"] == "tie":
        return f"tie of {1 + len(set(best.get('ties') or ()) - {best['run_id']})}"
    won = best["decision"] == "winner"
    word = f"winner of {best['finalists']}" if won else clean(best["decision"])
    if not margin or best.get("margin_pct") is None:
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
