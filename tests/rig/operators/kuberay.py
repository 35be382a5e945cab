"""KubeRay: RayCluster and RayJob. Where no Ray runs, `Dashboard` says what Ray's would say of a job."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from tests.rig.binaries import Manifests
from tests.rig.operators.base import Operator
from tests.rig.processes import Daemon


class Dashboard:
    """Answers for the dashboards of all clusters. The operator reaches it as its proxy, since no name is known here."""

    def __init__(self) -> None:
        self.status = "RUNNING"  # of each job: PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED
        self.asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                self.asked.append(handler.path)
                body = json.dumps(
                    {"status": self.status, "submission_id": handler.path.split("/")[-1]}
                ).encode()
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            do_POST = do_GET

            def log_message(handler, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True, name="dashboard").start()


class KubeRay(Operator):
    """`dashboard.status` decides how a RayJob goes on."""

    name = "kuberay"
    programs: ClassVar = {"kuberay": "github.com/ray-project/kuberay/ray-operator"}
    manifests = Manifests("github.com/ray-project/kuberay/ray-operator", ("config/crd/bases/*.yaml",))

    def prepare(self) -> None:
        self.dashboard = Dashboard()

    def start(self) -> Daemon:
        return self.run(
            "kuberay",
            "--enable-leader-election=false",
            "--metrics-addr=0",
            f"--health-probe-bind-address=127.0.0.1:{self.probe_port}",
            env={"HTTP_PROXY": self.dashboard.url, "NO_PROXY": ""},
        )
