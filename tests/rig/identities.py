"""Who may speak to the API server: its certificate authority, its users, and the kubeconfig files that name them."""

import base64
import json
from pathlib import Path
from threading import Lock
from typing import Any

import trustme


class Identities:
    """One certificate authority for servers and clients; files below `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca))
        self._lock = Lock()
        self._users: dict[tuple[str, str], tuple[Path, Path]] = {}

    def server(self, name: str, *hosts: str) -> tuple[Path, Path]:
        """Certificate and key of a server with these names and addresses."""
        return self._write(name, self._ca.issue_cert(*hosts))

    def user(self, user: str, group: str) -> tuple[Path, Path]:
        """Certificate and key of a user of the API server, in one group. Nodes that start at once share them."""
        with self._lock:
            if (user, group) not in self._users:
                # Without a name of a host trustme's certificates have an empty critical extension, which Go refuses.
                leaf = self._ca.issue_cert("rig.invalid", common_name=user, organization_name=group)
                self._users[user, group] = self._write(user.replace(":", "-"), leaf)
            return self._users[user, group]

    def key_pair(self, name: str) -> Path:
        """A private key, for signing service accounts' tokens."""
        path = self._folder / f"{name}.key"
        self._ca.issue_cert(name).private_key_pem.write_to_path(str(path))
        return path

    def _write(self, name: str, leaf: trustme.LeafCert) -> tuple[Path, Path]:
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        key.touch(0o600)
        leaf.private_key_pem.write_to_path(str(key))
        leaf.cert_chain_pems[0].write_to_path(str(certificate))
        return certificate, key

    def kubeconfig(
        self, path: Path, url: str, *, token: str = "", files: tuple[Path, Path] | None = None
    ) -> Path:
        """A kubeconfig file (JSON is YAML) with all data in it. The server is verified as "kubernetes"."""
        user: dict[str, Any] = {"token": token}
        if files:
            user = {"client-certificate-data": base64_of(files[0]), "client-key-data": base64_of(files[1])}
        cluster = {
            "server": url,
            "certificate-authority-data": base64_of(self.ca),
            "tls-server-name": "kubernetes",
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "rig", "cluster": cluster}],
            "users": [{"name": "rig", "user": user}],
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "rig"}}],
            "current-context": "rig",
        }
        path.touch(0o600)
        path.write_text(json.dumps(document, indent=1))
        return path


def base64_of(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
