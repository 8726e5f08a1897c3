"""`gemmsweep show`: templates, one template's account, one stored run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from gemmsweep.cli.options import Command, database, db_option
from gemmsweep.errors import NothingToShow, UsageError

SCHEMA = "gemmsweep/show/1"
PARTS = ("source", "ptx", "sass", "log", "rounds")  # of a stored run


@click.command(cls=Command)
@click.argument("what", nargs=-1, metavar="[TEMPLATE | run ID]")
@click.option("--shape", metavar="MxNxK",
              help="Account for this problem. Default: 4096x4096x4096, on a CPU 1024; fewer rows where it takes few.")  # fmt: skip
@click.option("--dtype", help="Account for this dtype.")
@click.option("--layout", help="nn or nt.")
@click.option("--set", "held", multiple=True, metavar="P=V", help="Account for this value instead of the default.")
@click.option(
    "--arch", metavar="sm_NN", help="Account for this architecture. Default: this machine's GPU, else sm_90a."
)
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--source", is_flag=True, help="Of a run: the source that was compiled.")
@click.option("--ptx", is_flag=True, help="Of a run: its PTX, compiled anew.")
@click.option("--sass", is_flag=True, help="Of a run: its machine code, compiled anew.")
@click.option("--log", is_flag=True, help="Of a run: what the compiler said.")
@click.option("--rounds", is_flag=True, help="Of a run: every round's values, as CSV.")
@db_option
def show(what: tuple[str, ...], format_: str, db: Path | None, **options: Any) -> None:
    """List the templates; show one template's parameters, rules and account; or show a stored run.

    The account is arithmetic, before any run: bytes per stage, accumulators, registers, CTAs per SM, waves, roofline.
    """
    part = one_part([name for name in PARTS if options.pop(name)], format_)
    require_account(what, format_, options)
    if what[:1] == ("run",):
        if len(what) != 2:
            raise UsageError("which run? gemmsweep show run ID, with an id from gemmsweep report.")
        show_run(database(db), what[1], part, format_)
    elif len(what) > 1:
        raise UsageError("show takes one template, or: show run ID.")
    elif part is not None:
        raise UsageError(f"--{part} is for a stored run: gemmsweep show run ID --{part}")
    else:
        show_templates(database(db), what[0] if what else None, format_, options)


def one_part(asked: list[str], format_: str) -> str | None:
    """The part of a run that is asked for, if any. Raises UsageError for several, and for one as JSON."""
    if len(asked) > 1:
        raise UsageError(
            f"{' and '.join(f'--{name}' for name in asked)} are parts of their own: ask for one at a time."
        )
    if asked and format_ == "json":
        raise UsageError(
            f"--{asked[0]} is no JSON: leave out --format json, or --{asked[0]} for all that is on record."
        )
    return asked[0] if asked else None


def require_account(what: tuple[str, ...], format_: str, options: dict[str, Any]) -> None:
    """Raises UsageError for an option of the account where none is printed: of the list, a run, or JSON."""
    asked = [f"--{'set' if name == 'held' else name}" for name, value in options.items() if value]
    if asked and (not what or what[0] == "run" or format_ == "json"):
        raise UsageError(f"{asked[0]} is for an account, which is text: gemmsweep show TEMPLATE {asked[0]}")


def show_templates(path: Path, name: str | None, format_: str, options: dict[str, Any]) -> None:
    """All templates, or one with its account."""
    from gemmsweep.cli import account
    from gemmsweep.template.library import find_template, list_templates

    listing = None if name else list_templates()
    templates = listing.templates if listing else (find_template(str(name)),)
    if name:
        account.check_asked(templates[0], options)
    checks = checks_on_record(path)
    if format_ == "json":
        records = [template_record(template, checks.get(template.name, [])) for template in templates]
        sys.stdout.write(json.dumps({"schema": SCHEMA, "templates": records}, indent=1) + "\n")
    elif listing is not None:
        account.print_list(templates, {t.name: freshness(t, checks.get(t.name, [])) for t in templates}, listing.broken)
    else:
        found = checks.get(templates[0].name, [])
        account.print_template(
            templates[0], freshness(templates[0], found), history(templates[0], found), options | {"name": name}, path
        )


def checks_on_record(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Verified runs by template: device, when, source, dtype and layout; nothing where there is no database."""
    from gemmsweep.store import open_store

    if not path.exists():
        return {}
    with open_store(path, readonly=True) as store:
        return store.checks()


def template_record(template: Any, checks: list[dict[str, Any]]) -> dict[str, Any]:
    """One template of the contract."""
    missing = unchecked(template, checks)
    return {
        "name": template.name,
        "backend": template.backend,
        "arch": template.arch or None,
        "dtypes": list(template.dtypes),
        "layouts": list(template.layouts),
        "parameters": [
            {"name": p.name, "default": p.default, "values": list(p.values), "meaning": p.meaning}
            for p in template.parameters
        ],
        "source_sha256": template.source_sha256,
        "checked": by_device(checks),
        "stale": bool(missing),
        "unchecked": missing,
        "changed_since": changed_since(template, checks),
    }


def by_device(checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """When each source was last checked on each device, in which dtypes and layouts it was right or wrong; oldest first."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for check in sorted(checks, key=lambda check: str(check["at"])):
        one = {name: check[name] for name in ("device", "at", "source_sha256")}
        earlier = latest.pop((check["device"], check["source_sha256"]), {"pairs": [], "wrong": []})
        pair, wrong = f"{check['dtype']} {check['layout']}", check["wrong"]
        told = {"pairs": [] if wrong else [pair], "wrong": [f"{pair} ({wrong} of {check['checks']})"] if wrong else []}
        both = {name: sorted([*earlier[name], *told[name]]) for name in told}
        latest[check["device"], check["source_sha256"]] = {**one, **both}
    return list(latest.values())


def unchecked(template: Any, checks: list[dict[str, Any]]) -> list[str]:
    """The (dtype, layout) pairs in which the present source has not been verified on the hardware it is for."""
    from gemmsweep.verify import Extent, pairs

    done = {
        (check["dtype"], check["layout"])
        for check in checks
        if check["source_sha256"] == template.source_sha256
        and check["backend"] == template.backend
        and not check["wrong"]
    }
    return [f"{dtype} {layout}" for dtype, layout in pairs(template, Extent()) if (dtype, layout) not in done]


def changed_since(template: Any, checks: list[dict[str, Any]]) -> str | None:
    """When a source other than the present one was last checked, where the present one never was."""
    dates = [str(check["at"]) for check in checks if check["backend"] == template.backend]
    now = any(check["source_sha256"] == template.source_sha256 for check in checks)
    return max(dates) if dates and not now else None


def freshness(template: Any, checks: list[dict[str, Any]]) -> str:
    """`checked 2026-11-29`, `changed since 2026-11-29`, `found wrong 2026-11-29`, `unchecked: fp16 nn`, `never checked`."""
    missing, changed = unchecked(template, checks), changed_since(template, checks)
    if not checks:
        return "never checked"
    if changed is not None:
        return f"changed since {changed[:10]}"
    wrong = [
        str(check["wrong_at"])
        for check in checks
        if check["wrong"] and check["source_sha256"] == template.source_sha256
    ]
    if wrong:
        return f"found wrong {max(wrong)[:10]}"
    if missing:
        return "unchecked: " + ", ".join(missing)
    return "checked " + max(str(check["at"]) for check in checks)[:10]


def history(template: Any, checks: list[dict[str, Any]]) -> list[str]:
    """A line for each device: the last check of the present source there, else that of an older one."""
    last: dict[str, dict[str, Any]] = {}
    for one in by_device(checks):
        kept = last.get(one["device"])
        if kept is None or kept["source_sha256"] != template.source_sha256:
            last[one["device"]] = one
    return [
        f"{one['device']}: {found(one)}, last on {one['at'][:10]}, source {one['source_sha256'][:8]}"
        + ("" if one["source_sha256"] == template.source_sha256 else f"; now {template.source_sha256[:8]}")
        for one in last.values()
    ]


def found(one: dict[str, Any]) -> str:
    """`fp16 nn found right, fp16 nt (2 of 38) wrong`: of the checks of one source on one device."""
    right = [f"{', '.join(one['pairs'])} found right"] if one["pairs"] else []
    return ", ".join(right + ([f"{', '.join(one['wrong'])} found wrong"] if one["wrong"] else []))


def show_run(path: Path, piece: str, part: str | None, format_: str) -> None:
    """A stored run, or one part of it."""
    from gemmsweep.cli import kernels, stored_run
    from gemmsweep.store import open_store

    with open_store(path, readonly=True) as store:
        detail = kernels.stored_run(store, piece)
    if part == "rounds":
        stored_run.print_rounds(detail)
    elif part in ("ptx", "sass"):
        sys.stdout.write(stored_run.disassemble(detail, part))
    elif part is not None:
        text = detail["rendered_source" if part == "source" else "build_log"]
        if text is None:
            why = " (and no shipped template renders to it)" if part == "source" and detail["rendered_sha256"] else ""
            raise NothingToShow(f"run {piece} has no {part} on record{why}.")
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
    elif format_ == "json":
        sys.stdout.write(json.dumps(detail, indent=1) + "\n")
    else:
        stored_run.print_run(detail)
