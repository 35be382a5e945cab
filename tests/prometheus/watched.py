"""A Prometheus and an Alertmanager that watch controllers and agents of a test, with the rules that are shipped."""

import contextlib
import json
import math
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import yaml

from tests.notify.mail_world import MailServer
from tests.rig.processes import free_port

RULES = Path(__file__).parents[2] / "rules" / "prometheus"
ALERTS_TO = "oncall@example.com"
EVERY = "1s"
CLUSTER = "c1"  # as people name theirs in what they scrape
Sample = tuple[dict[str, str], list[float]]


class Watched:
    """A context manager. `targets`: host:port of what is scraped, by the name of its job. `hour_s`: how long an hour
    lasts for alerts about what has lasted for long."""

    def __init__(
        self, folder: Path, targets: dict[str, list[str]], smtp_port: int, *, hour_s: float = 3600.0
    ) -> None:
        self.folder, self._hour_s = folder, hour_s
        folder.mkdir()
        self.port, self._alert_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.began_s = time.time()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._write(targets, smtp_port)

    def _write(self, targets: dict[str, list[str]], smtp_port: int) -> None:
        for name in ("recording.yaml", "alerts.yaml"):
            document = yaml.safe_load((RULES / name).read_text())
            for group in document["groups"]:
                group["interval"] = EVERY
                for rule in group["rules"]:
                    rule.pop("for", None)  # at once: nobody waits for minutes here
                    rule["expr"] = self._shortened(rule["expr"])
            (self.folder / name).write_text(yaml.safe_dump(document))
        prometheus = {
            "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
            "rule_files": ["recording.yaml", "alerts.yaml"],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self._alert_port}"]}]}]
            },
            "scrape_configs": [
                {
                    "job_name": name,
                    "static_configs": [{"targets": where, "labels": {"cluster": CLUSTER}}],
                }
                for name, where in targets.items()
            ],
        }
        (self.folder / "prometheus.yaml").write_text(yaml.safe_dump(prometheus))
        alertmanager = {
            "global": {
                "smtp_smarthost": f"127.0.0.1:{smtp_port}",
                "smtp_from": "alertmanager@example.com",
                "smtp_require_tls": False,
            },
            "route": {
                "receiver": "mail",
                "group_by": ["alertname"],
                "group_wait": "1s",
                "group_interval": "1s",
                "repeat_interval": "1h",
            },
            "receivers": [
                {
                    "name": "mail",
                    "email_configs": [{"to": ALERTS_TO, "send_resolved": True, "hello": "localhost"}],
                }
            ],
        }
        (self.folder / "alertmanager.yaml").write_text(yaml.safe_dump(alertmanager))

    def _shortened(self, expr: str) -> str:
        """What is compared with an age, in seconds, is shorter in hours of `hour_s`."""
        share = self._hour_s / 3600.0
        if "time() - max" not in expr:
            return expr
        return re.sub(r"(?<=> )\d{3,}\b", lambda found: f"{int(found[0]) * share:g}", expr)

    def __enter__(self) -> "Watched":
        self._watch()
        self._start(
            "prometheus-alertmanager",
            "--config.file=alertmanager.yaml",
            f"--storage.path={self.folder}/alerts",
            f"--web.listen-address=127.0.0.1:{self._alert_port}",
            "--cluster.listen-address=",
        )
        return self

    def _watch(self) -> None:
        self._prometheus = self._start(
            "prometheus",
            "--config.file=prometheus.yaml",
            f"--storage.tsdb.path={self.folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
        )

    def _start(self, name: str, *words: str) -> "subprocess.Popen[bytes]":
        with open(self.folder / f"{name}.log", "ab") as log:
            made = subprocess.Popen([name, *words], cwd=self.folder, stdout=log, stderr=log)
        self._processes.append(made)
        return made

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Prometheus is killed, and comes back."""
        self._prometheus.kill()
        self._prometheus.wait(20)
        yield
        self._watch()

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(180)

    def story(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))

    # ------------------------------------------------------------ what it says

    def _get(self, path: str, **words: object) -> Any:
        try:
            return self._ask(path, **words)
        except ConnectionError:  # closed before there was an answer: once more
            return self._ask(path, **words)

    def _ask(self, path: str, **words: object) -> Any:
        asked = urllib.parse.urlencode(words)
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{asked}", timeout=10) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{words}: {error.read().decode()}") from None

    def up(self) -> bool:
        try:
            return bool(self._get("/api/v1/query", query="up")["result"])
        except (OSError, AssertionError):  # it does not listen yet, or reads what it has stored
            return False

    def value(self, expr: str) -> float | None:
        """Of the only series, now."""
        found = self._get("/api/v1/query", query=expr)["result"]
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def values(self, expr: str) -> list[float]:
        """Of all series, now."""
        return [float(one["value"][1]) for one in self._get("/api/v1/query", query=expr)["result"]]

    def choices(self, variable: str) -> list[str]:
        """What a variable that asks for `label_values(METRIC, LABEL)` offers, asked as Grafana does."""
        (found,) = re.findall(r"^label_values\((.+), (\w+)\)$", filled(variable, {"cluster": ".*"}))
        metric, label = found
        words = {"match[]": metric, "start": self.began_s, "end": time.time()}
        return self._get(f"/api/v1/label/{label}/values", **words)  # type: ignore[no-any-return]

    def story_of(self, expr: str) -> list[Sample]:
        """All finite numbers since the beginning, by labels."""
        words = {"start": self.began_s, "end": time.time(), "step": 1}
        made = []
        for one in self._get("/api/v1/query_range", query=expr, **words)["result"]:
            numbers = [number for _, text in one["values"] if math.isfinite(number := float(text))]
            if numbers:
                made.append((one["metric"], numbers))
        return made

    def firing(self) -> set[str]:
        found = self._get("/api/v1/alerts")["alerts"]
        return {one["labels"]["alertname"] for one in found if one["state"] == "firing"}


class OnCall:
    """The mails of the person on call. `page`: of the controllers, host:port."""

    def __init__(self, server: MailServer, page: str) -> None:
        self._server, self._page = server, page
        self.knows: set[str] = set()  # alerts of which `told` was true

    @property
    def mails(self) -> int:
        """How many came until now, to whomever."""
        return len(self._server.mails)

    def mailed(self, alert: str, since: int = 0, says: str = "FIRING") -> list[str]:
        """The texts that say that it fires, of all mails but the first `since`."""
        texts = []
        for to, mail in self._server.mails[since:]:
            part, subject = mail.get_body(("html", "plain")), str(mail["Subject"])
            if alert in subject and says in subject and part is not None and ALERTS_TO in to:
                texts.append(unescape(part.get_content()))
        return texts

    def told_over(self, alert: str, since: int = 0) -> bool:
        """It was mailed that all of it is over."""
        return bool(self.mailed(alert, since, "[RESOLVED]"))

    def told(self, alert: str, since: int = 0, says: str = "") -> bool:
        """It was mailed, with the way to what to do and with these words."""
        link = f"http://{self._page}/runbooks#{alert.lower()}"
        found = any(link in text and says in text for text in self.mailed(alert, since))
        if found:
            self.knows.add(alert)
        return found


def filled(expr: str, chosen: dict[str, str]) -> str:
    """As Grafana asks it, with these variables."""
    for name, text in {**chosen, "__rate_interval": "10s", "__range": "5m"}.items():
        expr = re.sub(rf"\$(?:{name}\b|\{{{name}\}})", text.replace("\\", r"\\"), expr)
    assert "$" not in expr, expr
    return expr
