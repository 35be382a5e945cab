"""Which nodes are known, which connections speak for them, and whether a greeting can be answered."""

from collections.abc import Callable

import msgspec

from sentinel.transport.auth import Identity
from sentinel.transport.connection import Connection, Refuse
from sentinel.transport.limits import Bucket, Limits
from sentinel.transport.node import Guest, Node
from sentinel.transport.wire import Hello, Reason, Refusal, agree

_hello = msgspec.msgpack.Decoder(Hello)


class Roster:
    """`say(event, who, what)` names a node in the log."""

    def __init__(
        self, limits: Limits, uid_of: Callable[[str], str], say: Callable[[str, str, str], None]
    ) -> None:
        self.nodes: dict[str, Node] = {}
        self._limits = limits
        self._uid_of = uid_of
        self._say = say

    def seat(self, connection: Connection, identity: Identity, now_s: float) -> None:
        """From now on this connection speaks for the token's node. Raises Refuse."""
        wanted = self._uid_of(identity.node)
        if wanted and identity.node_uid and wanted != identity.node_uid:
            text = f"the token belongs to a node {identity.node} that was replaced by another one"
            raise Refuse(Refusal(reason=Reason.REPLACED_NODE, text=text), close=True)
        guest: Guest | None = connection.guest
        if guest is not None:
            if (guest.node.name, guest.uid) != (identity.node, identity.node_uid):
                text = "this connection was another node's before"
                raise Refuse(Refusal(reason=Reason.OTHER_NODE, text=text), close=True)
            guest.until_s = identity.until_s
            return
        node = self.nodes.get(identity.node)
        if node is None:
            if len(self.nodes) >= self._limits.nodes:
                refusal = Refusal(reason=Reason.OVERLOADED, text="too many nodes", slow_down_s=60.0)
                raise Refuse(refusal, close=True)
            node = Node(identity.node, Bucket(self._limits.requests_burst, now_s), now_s)
            self.nodes[identity.node] = node
        connection.guest = Guest(until_s=identity.until_s, node=node, uid=identity.node_uid)
        node.connections.append(connection)
        if len(node.connections) > self._limits.connections_per_node:
            node.refuse("Connections")
            self._say("too_many_connections", node.name, "Connections")
            node.connections.pop(0).close()

    def leave(self, connection: Connection) -> None:
        connections = connection.guest.node.connections
        if connection in connections:
            connections.remove(connection)

    def forget(self, now_s: float) -> None:
        """Let go of nodes that have been away for long."""
        for node in list(self.nodes.values()):
            if not node.connections and now_s - node.heard_s > self._limits.forget_s:
                del self.nodes[node.name]


def greet(
    body: bytes, name: str, epoch: int, protocols: tuple[int, int], newer: Callable[[str, int], None]
) -> tuple[Hello, int]:
    """The Hello of the node `name` and the protocol agreed. Raises Refuse."""
    try:
        hello = _hello.decode(body)
    except msgspec.DecodeError:
        raise Refuse(Refusal(reason=Reason.BAD_BODY, text="the body is not a Hello")) from None
    if hello.node != name:
        text = f"the token is bound to {name}, and speaks for no other node"
        raise Refuse(Refusal(reason=Reason.OTHER_NODE, text=text), close=True)
    if hello.epoch > epoch:
        newer(name, hello.epoch)
        text = f"this agent has served epoch {hello.epoch}; here it is {epoch}"
        raise Refuse(Refusal(reason=Reason.NEWER_EPOCH, text=text, epoch=epoch), close=True)
    protocol = agree(protocols, (hello.protocol_min, hello.protocol_max))
    if protocol is None:
        ours = f"{protocols[0]} to {protocols[1]}"
        refusal = Refusal(
            reason=Reason.NO_COMMON_PROTOCOL,
            text=f"the agent speaks {hello.protocol_min} to {hello.protocol_max}, the controller {ours}",
            protocol_min=protocols[0],
            protocol_max=protocols[1],
        )
        raise Refuse(refusal, close=True)
    return hello, protocol
