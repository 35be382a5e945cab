"""The programs of the test cluster: built once from the pinned Go module beside this file, kept outside the checkout.

`python -m tests.rig.binaries` builds what is missing (`scripts/setup.sh test` does that); tests only look.
`KUBEBUILDER_ASSETS` is looked in first, as the field does.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.rig.toolchain import CannotBuild, cache_root, find_go, own_version

MODULES = Path(__file__).parent / "go"
KUBERNETES = "v1.34.4"  # that of go.mod; a test compares them. The programs say it as their own version.
# Folder of a Go module -> its programs: name -> package.
PROGRAMS = {
    MODULES: {
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
        "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    },
    MODULES / "kwok": {
        "kwok": "sigs.k8s.io/kwok/cmd/kwok"
    },  # does not compile with the libraries of the others
}
# Apart from those, so that another version of it does not build all of them anew.
HELM = {MODULES / "helm": {"helm": "helm.sh/helm/v3/cmd/helm"}}
# The definitions of its kinds alone.
PROMETHEUS_OPERATOR = "prometheus-operator.json"
_VERSION = "k8s.io/component-base/version"
FLAGS = (
    "-trimpath",
    "-buildvcs=false",
    "-mod=readonly",
    f"-ldflags=-s -w -X {_VERSION}.gitVersion={KUBERNETES} -X {_VERSION}.gitTreeState=clean",
)


class NotBuilt(Exception):
    """The programs are not there, and a test is no place to build them."""


@dataclass(frozen=True)
class Manifests:
    """YAML files that a Go module carries: custom resources and webhooks of an operator."""

    module: str  # e.g. sigs.k8s.io/jobset
    files: tuple[str, ...]  # patterns below its folder

    def read(self, go: Path, pinned_in: Path) -> str:
        """All their documents as one JSON list, which loads faster than megabytes of YAML. Raises CannotBuild."""
        for command in (["mod", "download", self.module], ["list", "-m", "-f", "{{.Dir}}", self.module]):
            done = subprocess.run([go, *command], cwd=pinned_in, capture_output=True, text=True, timeout=600)
            if done.returncode:
                raise CannotBuild(f"{self.module} cannot be had ({done.returncode}):\n{done.stderr}")
        folder = Path(done.stdout.strip())
        documents: list[object] = []
        for pattern in self.files:
            paths = sorted(folder.glob(pattern))
            if not paths:
                raise CannotBuild(f"{self.module} has no {pattern}")
            for path in paths:
                documents += filter(None, yaml.load_all(path.read_text(), _YAML))
        return json.dumps(documents, default=str)


_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Binaries:
    """Programs of some Go modules. `modules`: folder of a module -> name of the program -> package of its main.

    `manifests`: name of a file beside them -> folder of a module, and what is in the file.
    """

    modules: Mapping[Path, Mapping[str, str]]
    cache: Path
    manifests: Mapping[str, tuple[Path, Manifests]] = field(default_factory=dict)
    how: str = "`scripts/setup.sh test`"  # to build them

    @property
    def names(self) -> list[str]:
        return [name for packages in self.modules.values() for name in packages] + list(self.manifests)

    def key(self) -> str:
        """Changes with everything that the programs are made of."""
        digest = hashlib.sha256()
        for module, packages in self.modules.items():
            for path in (module / "go.mod", module / "go.sum"):
                digest.update(path.read_bytes() if path.exists() else b"")
            digest.update(repr((FLAGS, sorted(packages.items()))).encode())
        for name, (_, manifests) in self.manifests.items():
            digest.update(repr((name, manifests)).encode())
        return digest.hexdigest()[:20]

    @property
    def folder(self) -> Path:
        return self.cache / self.key()

    def path(self, name: str) -> Path:
        """The program; never builds it, raises NotBuilt."""
        found = self._find(name)
        if not found:
            raise NotBuilt(f"{name} of the test cluster is not built: run {self.how} (minutes, once)")
        return found

    def _find(self, name: str) -> Path | None:
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        if assets and os.access(Path(assets) / name, self._needs(name)):
            return Path(assets) / name
        return self.folder / name if self._whole(name) else None

    def _needs(self, name: str) -> int:
        return os.R_OK if name in self.manifests else os.X_OK

    def missing(self) -> list[str]:
        return [name for name in self.names if not self._find(name)]

    def _whole(self, name: str) -> bool:
        """A program counts only with the size that its build noted: a copy cut short by a full disk does not."""
        try:
            sizes = json.loads((self.folder / "sizes.json").read_text())
            path = self.folder / name
            return os.access(path, self._needs(name)) and path.stat().st_size == sizes.get(name)
        except (OSError, ValueError, AttributeError):
            return False

    def build(self) -> None:
        """Builds what is missing, under a lock, and moves it into place whole. Raises CannotBuild."""
        if not self.missing():
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise CannotBuild(f"cannot write the cache {self.cache}: {e}. XDG_CACHE_HOME moves it.") from None
        with self._lock():
            missing = self.missing()  # another run may have built them while we waited
            if missing:
                go = find_go()
                _say(f"building {', '.join(missing)} with {own_version(go)}; some minutes, once")
                started = time.monotonic()
                with tempfile.TemporaryDirectory(dir=self.folder, prefix="building.") as partial:
                    for module, packages in self.modules.items():
                        wanted = {name: package for name, package in packages.items() if name in missing}
                        if wanted:
                            _compile(go, module, wanted, Path(partial))
                            self._place(Path(partial), {n: _go_names(p) for n, p in wanted.items()})
                    for name, (module, manifests) in self.manifests.items():
                        if name in missing:
                            (Path(partial) / name).write_text(manifests.read(go, module))
                            self._place(Path(partial), {name: name})
                _say(f"built in {time.monotonic() - started:.0f} s, kept in {self.folder}")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with open(self.folder / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _say("another run builds the test cluster's programs; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            for left in self.folder.glob("building.*"):  # of a build that was killed
                shutil.rmtree(left, ignore_errors=True)
            yield

    def _place(self, built: Path, files: Mapping[str, str]) -> None:
        """Name here -> name as it was built. The note of sizes comes last: what it does not name is not whole."""
        for name, made in files.items():
            os.replace(built / made, self.folder / name)
        sizes = {
            name: (self.folder / name).stat().st_size for name in self.names if (self.folder / name).exists()
        }
        (built / "sizes.json").write_text(json.dumps(sizes, indent=1))
        os.replace(built / "sizes.json", self.folder / "sizes.json")


def _compile(go: Path, module: Path, packages: Mapping[str, str], target: Path) -> None:
    command = ["nice", "-n", "19", str(go), "build", *FLAGS, "-o", f"{target}/", *packages.values()]
    done = subprocess.run(
        command,
        cwd=module,
        env={**os.environ, "CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if not line.startswith("go: downloading")]
        raise CannotBuild(f"`go build` in {module} failed ({done.returncode}):\n" + "\n".join(lines[-20:]))


def _go_names(package: str) -> str:
    """What `go build` calls the program of a package: its last element that is no major version."""
    parts = package.split("/")
    return parts[-2] if parts[-1][:1] == "v" and parts[-1][1:].isdigit() else parts[-1]


def _say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def shipped() -> Binaries:
    """The programs that this project pins."""
    return Binaries(PROGRAMS, cache_root())


def helm() -> Binaries:
    """Helm, for the chart."""
    return Binaries(HELM, cache_root())


def prometheus_operator() -> Binaries:
    """The kinds of the Prometheus operator that this project ships objects of."""
    folder = MODULES / "prometheus-operator"
    kinds = ("podmonitors", "prometheusrules")
    files = tuple(f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml" for kind in kinds)
    module = Manifests("github.com/prometheus-operator/prometheus-operator", files)
    return Binaries({folder: {}}, cache_root(), {PROMETHEUS_OPERATOR: (folder, module)})


def main() -> int:
    try:
        for programs in (shipped(), helm(), prometheus_operator()):
            programs.build()
    except CannotBuild as e:
        print(f"setup: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
