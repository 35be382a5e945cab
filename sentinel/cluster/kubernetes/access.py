"""How to reach the API server, and as whom: the one place that knows the `kubernetes` package.

Only its configuration and its authentication are used (in-cluster tokens that rotate, kubeconfig files with
certificates, tokens and plug-ins). Its typed objects take thirty times as long to decode as the fields we need.
"""

import asyncio
import os
import ssl
from pathlib import Path

from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from sentinel.util.errors import PermanentError

LOGIN_S = 20.0  # a kubeconfig's plug-in, which may ask a cloud, must answer within this


class Access:
    """One API server and one identity. `url` has no slash at its end."""

    def __init__(self, configuration: Configuration, kubeconfig: str, context: str) -> None:
        self._configuration = configuration
        self._source = (kubeconfig, context)
        self.url = str(configuration.host).rstrip("/")
        self.server_name: str | None = configuration.tls_server_name
        self.proxy: str | None = configuration.proxy
        self.tls = _tls(configuration) if self.url.startswith("https:") else None

    async def authorization(self) -> str:
        """The header's value, "" without one. The token of a service account is read anew each minute."""
        if not self._configuration.api_key:
            return ""
        found = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return str(found or "").strip()

    def namespace(self) -> str:
        """Which the kubeconfig's context names; "" without one. Raises PermanentError."""
        kubeconfig, context = self._source
        path = kubeconfig or os.environ.get("KUBECONFIG", "")
        if not path and "KUBERNETES_SERVICE_HOST" in os.environ:
            return ""
        try:
            every, active = config.list_kube_config_contexts(path or str(Path.home() / ".kube" / "config"))
            chosen = next((one for one in every if one["name"] == context), active)
            return str((chosen.get("context") or {}).get("namespace") or "")
        except Exception as error:  # as in `load`
            raise PermanentError(
                f"the contexts of the kubeconfig cannot be read: {error}", "Unreachable"
            ) from error

    async def renewed(self) -> "Access":
        """Everything read again: after an answer 401. Raises PermanentError."""
        return await load(*self._source)


async def load(kubeconfig: str = "", context: str = "") -> Access:
    """In a pod without `kubeconfig` and $KUBECONFIG: its service account. Raises PermanentError("Unreachable")."""
    configuration: Configuration = type.__call__(
        Configuration
    )  # not the copy of a default that others may set
    named = kubeconfig or os.environ.get("KUBECONFIG", "")
    in_cluster = not named and "KUBERNETES_SERVICE_HOST" in os.environ
    path = named or str(Path.home() / ".kube" / "config")
    # The library reads what is there of several, and of none says that a key is missing.
    if not in_cluster and not any(os.path.exists(Path(one).expanduser()) for one in path.split(os.pathsep)):
        raise PermanentError(
            f"there is no kubeconfig at {path}: name one by --kubeconfig or $KUBECONFIG", "Unreachable"
        )
    try:
        if in_cluster:
            config.load_incluster_config(configuration)
        else:
            async with asyncio.timeout(LOGIN_S):
                await config.load_kube_config(
                    config_file=path,
                    context=context or None,
                    client_configuration=configuration,
                    persist_config=False,
                )
        return Access(configuration, kubeconfig, context)
    except TimeoutError:
        raise PermanentError(f"no credentials within {LOGIN_S:g} s", "Unreachable") from None
    except Exception as error:  # whatever the library and its parsers make of a file that a person wrote
        where = "the pod's service account" if in_cluster else f"the kubeconfig {path}"
        lacks = isinstance(error, TypeError | AttributeError | KeyError)  # what the library trips over
        why = f"a cluster, user or context that it names is missing in it ({error})" if lacks else error
        raise PermanentError(f"{where} cannot be used: {why}", "Unreachable") from error


def _tls(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cafile=configuration.ssl_ca_cert or None, cadata=configuration.ca_cert_data or None
    )
    # Many clusters' own authorities lack the key identifiers that Python 3.13 began to ask for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file or None)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
