"""What a sweep decided, in sentences: who won, why a faster one did not, and what casts doubt on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmsweep.errors import counted
from gemmsweep.race import LOOKS
from gemmsweep.ranking import is_timed
from gemmsweep.references import WORTH_NAMING
from gemmsweep.report import against, words
from gemmsweep.report.figures import Record, clean, percent, short_id


def verdict_sentence(sweep: Record, runs: Sequence[Record]) -> str:
    """Who won and by how much, which values tie, or how far the race is from telling them apart."""
    varied = sweep.get("varied")
    names = {
        run["run_id"]: f"{clean(varied)}={label}" if varied else label
        for run, label in zip(runs, words.labels(runs, varied), strict=True)
    }
    raced = sorted(filter(words.ranks, _timed(runs)), key=_median_us)
    kept = names.get(words.kept_run_id(sweep) or "")
    if (
        not sweep.get("verdict")
        and sweep.get("kind") != "verify"
        and (raced or any(run["status"] == "unfinished" for run in runs))
    ):
        stored = counted(sweep["rounds"], "round") if sweep.get("rounds") else "no round"
        return f"The race is unfinished, {stored} stored: the same command resumes it."
    if not raced and _timed(runs):
        return "Nothing wins: every config that raced is of another accuracy class than the problem's."
    if not raced:
        return _nothing_raced(sweep, runs)
    if sweep["verdict"] == "winner" and not kept:
        return f"The winner, run {short_id(sweep.get('winner_run_id'))}, is not among the runs shown."
    if len(raced) == 1:
        of_class = "" if len(_timed(runs)) == 1 else " of the problem's accuracy class"
        return f"{names[raced[0]['run_id']]} is the only config{of_class} that raced."
    if sweep["verdict"] == "winner":
        return _winner_sentence(sweep, raced, names)
    if sweep["verdict"] == "tie":
        return _tie_sentence(sweep, raced, names, kept)
    return _undecided_sentence(sweep, raced, names, kept)


def _timed(runs: Sequence[Record]) -> list[Record]:
    return [run for run in runs if is_timed(run)]


def unranked_sentence(sweep: Record, runs: Sequence[Record]) -> str:
    """Why a config that is faster than what the sweep leaves behind did not win."""
    varied = sweep.get("varied")
    kept = next((run for run in runs if run["run_id"] == words.kept_run_id(sweep)), None)
    if kept is None or not kept.get("median_us"):
        return ""
    faster = [
        f"{f'{clean(varied)}={label}' if varied else label} (error {words.error_text(run)})"
        for label, run in zip(words.labels(runs, varied), runs, strict=True)
        if not words.ranks(run) and is_timed(run) and _median_us(run) < _median_us(kept)
    ]
    if not faster:
        return ""
    verb = "is faster but" if len(faster) == 1 else "are faster but each"
    told = f"{_listed(faster)} {verb} of another accuracy class, which never wins"
    return f"{told} (kept: error {words.error_text(kept)})."


def wrong_since_sentence(sweep: Record, runs: Sequence[Record]) -> str:
    """Which of the configs a later race or check found wrong: they are never exported, nor does a sweep start from them."""
    varied, since = sweep.get("varied"), sweep.get("wrong_since") or {}
    found = [
        f"{f'{clean(varied)}={label}' if varied else label} (on {since[run['run_id']][:10]})"
        for label, run in zip(words.labels(runs, varied), runs, strict=True)
        if run["run_id"] in since
    ]
    return f"Found wrong since: {_listed(found)}." if found else ""


def kept_word(sweep: Record, runs: Sequence[Record]) -> str:
    """Whether the value a sweep leaves behind is the one it started from: "kept", or "taken"."""
    varied, start = sweep.get("varied"), sweep.get("start") or {}
    left = next((run for run in runs if run["run_id"] == words.kept_run_id(sweep)), None)
    config = (left or {}).get("config") or {}
    return "kept" if varied and varied in start and str(start[varied]) == str(config.get(varied)) else "taken"


def _undecided_sentence(sweep: Record, raced: Sequence[Record], names: Mapping[str, str], kept: str | None) -> str:
    keeps = f"; {kept} is {kept_word(sweep, raced)}." if kept else "."
    group = {*(sweep.get("ties") or ()), words.kept_run_id(sweep)}
    open_ = [names[run["run_id"]] for run in raced if run["run_id"] in group]
    margin, rounds = sweep.get("margin_pct"), sweep.get("rounds")
    cut = sweep.get("stopped") == "time" and sweep.get("regime") == "equal-clock" and rounds and rounds < LOOKS[-1]
    after = f" after {rounds} rounds{', out of time' if cut else ''}" if rounds else ""
    if margin is None or margin > words.NOISY_PCT:
        return f"Undecided{after}: the rounds differ too much to tell {_listed(open_)} apart{keeps}"
    return f"Undecided{after}: {_listed(open_)} may differ by up to {percent(margin)}%{keeps}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _winner_sentence(sweep: Record, raced: Sequence[Record], names: Mapping[str, str]) -> str:
    winner = next(run for run in raced if run["run_id"] == words.kept_run_id(sweep))
    second = _next(winner, raced)
    stored = sweep.get("margin_pct")
    margin = _gap_pct(winner, second) if stored is None else stored
    return f"{names[winner['run_id']]} wins: {percent(margin)}% faster than {names[second['run_id']]} (next)."


def _next(winner: Record, raced: Sequence[Record]) -> Record:
    """Who comes after the winner: by ratios of the same rounds, which the margin is of, where there are any."""
    others = [run for run in raced if run is not winner]
    reference = against.main_reference(raced)

    def ratio(run: Record) -> float:
        return ((run.get("references") or {}).get(reference) or {}).get("ratio") or 0.0

    return max(others, key=ratio) if all(map(ratio, others)) else others[0]


def _tie_sentence(sweep: Record, raced: Sequence[Record], names: Mapping[str, str], kept: str | None) -> str:
    keeps = f"; {kept} is {kept_word(sweep, raced)}" if kept else ""
    told = {*(sweep.get("ties") or ()), words.kept_run_id(sweep)}
    tied = [names[run["run_id"]] for run in raced if run["run_id"] in told]
    if len(tied) < 2:
        return f"A tie: no value is certainly the fastest{keeps}."
    margin = sweep.get("margin_pct")
    reach = percent(100 * WORTH_NAMING if margin is None else margin)
    return f"{_listed(tied)} tie within {reach}%{keeps}."


def _nothing_raced(sweep: Record, runs: Sequence[Record]) -> str:
    statuses = [run["status"] for run in runs]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    what = f"No value of {clean(sweep['varied'])} raced" if sweep.get("varied") else "No config raced"
    if sweep.get("kind") == "verify":
        what = "Checked, not raced"
    return f"{what}: {counts}." if counts else f"{what}."


def _median_us(run: Record) -> float:
    return float(run["median_us"])


def _gap_pct(faster: Record, slower: Record) -> float:
    return 100 * (_median_us(slower) / _median_us(faster) - 1)


def conclusion(sweep: Record, runs: Sequence[Record]) -> str:
    """The verdict, how its config stands against the vendor library, and what casts doubt on it."""
    parts = [verdict_sentence(sweep, runs)]
    winner = next((run for run in runs if run["run_id"] == words.kept_run_id(sweep)), None)
    if winner and (told := against.vendor_sentence(winner)):
        parts.append(told)
    if reason := unranked_sentence(sweep, runs):
        parts.append(reason)
    if told := wrong_since_sentence(sweep, runs):
        parts.append(told)
    if sweep.get("contended"):
        parts.append("Contended: other work ran on the device, so nothing is adopted; run it again on an idle one.")
    return " ".join(parts)
