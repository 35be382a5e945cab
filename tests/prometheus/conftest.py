"""Controllers at a control plane of a file's own, as tests of Kubernetes have them."""

from tests.kubernetes.conftest import behind, fleet, kubelets, own_plane, plane

__all__ = ["behind", "fleet", "kubelets", "own_plane", "plane"]
