"""What is in deploy/ fits the server: metrics, labels, options, paths."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest
import yaml

from headway.cli.arguments import parse
from headway.cli.serve_config import resolved
from headway.server.app import build_app
from headway.server.gate import Gate
from headway.server.metrics import Metrics
from headway.server.routes import ServerOptions, Service
from tests.packaging.project import ROOT
from tests.server.fake_engine import FakeEngine
from tests.server.live import BYTES
from tests.server.metric_names import every_metric, label_values

DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\b(headway_\w+)(?:\{(.*?)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"(.*?)"')
GROUPING = re.compile(r"\bby \((.*?)\)")
PLACEHOLDER = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")
ADDED_BY_PROMETHEUS = {"instance", "job"}


def board_expressions() -> Iterator[tuple[str, str]]:
    """Expression and legend of every line of the board."""
    board = json.loads((DEPLOY / "grafana/headway.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"], target["legendFormat"]


def alerts() -> list[dict[str, object]]:
    text = (DEPLOY / "prometheus/alerts.yml").read_text()
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def alert_expressions() -> Iterator[tuple[str, str]]:
    for rule in alerts():
        yield str(rule["expr"]), str(rule["annotations"])


def family(name: str) -> str:
    """The family of a sample's name."""
    return re.sub(r"_seconds_(bucket|sum|count)$", "_seconds", name)


def faults(expression: str, legend: str = "") -> list[str]:
    """What an expression asks for and nobody gives."""
    metrics, values, found, allowed = every_metric(), label_values(), [], set[str]()
    for name, matchers in METRIC.findall(expression):
        if family(name) not in metrics:
            found.append(f"metric {name}")
            continue
        labels = metrics[family(name)] | ADDED_BY_PROMETHEUS | {"le"}
        allowed |= labels
        for label, _, value in MATCHER.findall(matchers):
            if label not in labels:
                found.append(f"label {label} of {name}")
            known = values[family(name)].get(label)
            if known and label in ("service_class", "state", "tier", "kind", "reason", "outcome"):
                found += [f"{label}={v} of {name}" for v in value.split("|") if v not in known]
    grouped = [
        label.strip() for group in GROUPING.findall(expression) for label in group.split(",")
    ]
    found += [f"grouping by {label}" for label in grouped if label not in allowed]
    kept = set(grouped) if grouped else allowed
    found += [f"legend {word}" for word in PLACEHOLDER.findall(legend) if word not in kept]
    return found


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(headway_tokens_total[5m])", None),
        ("sum by (le, lane) (rate(headway_step_seconds_bucket[5m]))", None),
        ("headway_token_total", "metric headway_token_total"),
        ("headway_queue_seconds_total", "metric headway_queue_seconds_total"),
        ('headway_requests{class="batch"}', "label class of headway_requests"),
        ('headway_requests{state="idle"}', "state=idle of headway_requests"),
        ("sum by (kind) (headway_requests)", "grouping by kind"),
    ],
)
def test_the_check_sees_what_is_wrong(expression: str, fault: str | None) -> None:
    assert faults(expression) == ([] if fault is None else [fault])


@pytest.mark.parametrize(("expression", "legend"), [*board_expressions()])
def test_the_board_shows_what_there_is(expression: str, legend: str) -> None:
    assert METRIC.search(expression)
    assert faults(expression, legend) == []


@pytest.mark.parametrize(("expression", "text"), [*alert_expressions()])
def test_alerts_watch_what_there_is(expression: str, text: str) -> None:
    assert METRIC.search(expression)
    assert [f for f in faults(expression, text) if "legend value" not in f] == []


def test_alerts_say_what_to_do() -> None:
    assert len({str(rule["alert"]) for rule in alerts()}) == len(alerts())
    for rule in alerts():
        annotations = rule["annotations"]
        assert isinstance(annotations, dict) and {"summary", "action"} <= set(annotations)


def test_every_metric_is_on_the_board() -> None:
    shown = {family(name) for e, _ in board_expressions() for name, _ in METRIC.findall(e)}
    assert set(every_metric()) - shown == {"headway_build_info"}


def test_panels_of_the_board_do_not_overlap() -> None:
    board = json.loads((DEPLOY / "grafana/headway.json").read_text())
    ids = [panel["id"] for panel in board["panels"]]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in board["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(ids) == len(set(ids)) and len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)


def command_of_unit() -> list[str]:
    text = (DEPLOY / "systemd/headway.service").read_text()
    found = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert found is not None
    return found[1].split()


def command_of_container() -> list[str]:
    text = (DEPLOY / "Containerfile").read_text()
    parts = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)
    return [word for part in parts for word in json.loads(part)]


@pytest.mark.parametrize("command", [command_of_unit(), command_of_container()])
def test_commands_are_ones_that_headway_understands(command: list[str]) -> None:
    settings = parse(command[1:])
    assert (settings.command, settings.log_format) == ("serve", "json")


def test_the_manifest_asks_paths_that_exist_and_waits_for_the_drain() -> None:
    service = Service(FakeEngine(), BYTES, Metrics(), Gate(), ServerOptions())
    paths = set(build_app(service).openapi()["paths"])
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes/headway.yaml").read_text()))
    (deployment,) = [d for d in documents if d["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {probe["path"] for probe in probes} <= paths
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {probe["port"] for probe in probes} <= set(ports)
    drain_s = resolved(parse(command_of_container()[1:])).drain_timeout
    assert pod["terminationGracePeriodSeconds"] > drain_s
    stop = re.search(r"^TimeoutStopSec=(\d+)$", unit_text(), re.MULTILINE)
    assert stop is not None and int(stop[1]) > drain_s


def unit_text() -> str:
    return (DEPLOY / "systemd/headway.service").read_text()


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """By its own check where it is here; by the sections and keys we use elsewhere."""
    unit = tmp_path / "headway.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit_text(), flags=re.M))
    analyze = which("systemd-analyze")
    if analyze is not None:
        command = [analyze, "verify", "--man=no", str(unit)]
        check = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (check.returncode, check.stderr) == (0, "")
    assert re.findall(r"^\[(\w+)\]$", unit_text(), re.MULTILINE) == ["Unit", "Service", "Install"]
    lines = [line for line in unit_text().splitlines() if line and line[0] not in "#["]
    assert all(re.fullmatch(r"[A-Z]\w+=.*", line) for line in lines)
