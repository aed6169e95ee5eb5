"""The paths of the API, in the order of RabbitMQ's documentation of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from warren.management.handlers import (
    connections,
    exchanges,
    health,
    live,
    mending,
    messages,
    overview,
    policies,
    queues,
    users,
    vhosts,
)
from warren.management.routing import Access, Handler, Route

_VERBS: Final = ("GET", "PUT", "POST", "DELETE")


def route(path: str, access: Access, **methods: Handler) -> Route:
    """A route; ``methods`` by their names in lower case."""
    return Route(path, access, {verb: methods[verb.lower()] for verb in _VERBS if verb.lower() in methods})


def _routes() -> Iterator[Route]:
    yield route("/overview", "any", get=overview.overview)
    yield route("/snapshot", "any", get=live.snapshot)
    yield route("/cluster-name", "any", get=overview.cluster_name, put=overview.put_cluster_name)
    yield route("/nodes", "monitor", get=overview.nodes)
    yield route("/nodes/:node", "monitor", get=overview.node)
    yield route("/nodes/:node/memory", "monitor", get=overview.node_memory)
    yield route("/extensions", "any", get=overview.extensions)
    yield route("/auth", "any", get=overview.auth)
    yield route("/whoami", "any", get=overview.whoami)
    yield route("/feature-flags", "admin", get=overview.feature_flags)
    for path in ("/definitions", "/all-configuration", "/definitions/:vhost"):
        yield route(path, "admin", get=vhosts.definitions, post=vhosts.import_definitions)

    yield route("/vhosts", "any", get=vhosts.vhosts)
    yield route("/vhosts/:vhost", "admin", get=vhosts.vhost, put=vhosts.put_vhost, delete=vhosts.delete_vhost)
    yield route("/vhosts/:vhost/start/:node", "admin", post=vhosts.start_vhost)
    yield route("/vhosts/:vhost/permissions", "admin", get=users.permissions)
    yield route("/vhosts/:vhost/topic-permissions", "admin", get=users.topic_permissions)
    yield route("/vhosts/:vhost/connections", "vhost", get=connections.connections)
    yield route("/vhosts/:vhost/channels", "vhost", get=connections.channels)

    yield route("/connections", "any", get=connections.connections)
    yield route("/connections/:connection", "any", get=connections.connection, delete=connections.delete_connection)
    yield route("/connections/:connection/channels", "any", get=connections.connection_channels)
    yield route(
        "/connections/username/:username",
        "any",
        get=connections.user_connections,
        delete=connections.delete_user_connections,
    )
    yield route("/channels", "any", get=connections.channels)
    yield route("/channels/:channel", "any", get=connections.channel)
    yield route("/consumers", "any", get=connections.consumers)
    yield route("/consumers/:vhost", "vhost", get=connections.consumers)

    yield from _queues()
    yield from _exchanges()
    yield from _users()
    yield from _policies()
    yield from _checks()


def _queues() -> Iterator[Route]:
    yield route("/queues", "any", get=queues.queues)
    yield route("/queues/:vhost", "vhost", get=queues.queues)
    yield route("/queues/:vhost/:queue", "vhost", get=queues.queue, put=queues.put_queue, delete=queues.delete_queue)
    yield route("/queues/:vhost/:queue/bindings", "vhost", get=exchanges.bindings_to_queue)
    yield route("/queues/:vhost/:queue/contents", "vhost", delete=queues.purge)
    yield route("/queues/:vhost/:queue/actions", "admin", post=queues.act)
    yield route("/queues/:vhost/:queue/get", "vhost", post=messages.get)
    yield route("/queues/:vhost/:queue/browse", "vhost", get=mending.browse)
    for handler in (mending.take, mending.move, mending.remove, mending.requeue):
        yield route(f"/queues/:vhost/:queue/{handler.__name__}", "vhost", post=handler)
    yield route("/rebalance/queues", "admin", post=health.rebalance)


def _exchanges() -> Iterator[Route]:
    yield route("/exchanges", "any", get=exchanges.exchanges)
    yield route("/exchanges/:vhost", "vhost", get=exchanges.exchanges)
    yield route(
        "/exchanges/:vhost/:exchange",
        "vhost",
        get=exchanges.exchange,
        put=exchanges.put_exchange,
        delete=exchanges.delete_exchange,
    )
    yield route("/exchanges/:vhost/:exchange/publish", "vhost", post=messages.publish)
    yield route("/exchanges/:vhost/:exchange/bindings/source", "vhost", get=exchanges.bindings_from)
    yield route("/exchanges/:vhost/:exchange/bindings/destination", "vhost", get=exchanges.bindings_to_exchange)
    yield route("/bindings", "any", get=exchanges.bindings)
    yield route("/bindings/:vhost", "vhost", get=exchanges.bindings)
    between = "/bindings/:vhost/e/:source/:type/:destination"
    yield route(between, "vhost", get=exchanges.bindings_between, post=exchanges.post_binding)
    yield route(f"{between}/:key", "vhost", get=exchanges.binding, delete=exchanges.delete_binding)


def _users() -> Iterator[Route]:
    yield route("/users", "admin", get=users.users)
    yield route("/users/without-permissions", "admin", get=users.users_without_permissions)
    yield route("/users/bulk-delete", "admin", post=users.bulk_delete)
    yield route("/users/:user", "admin", get=users.user, put=users.put_user, delete=users.delete_user)
    yield route("/users/:user/permissions", "admin", get=users.permissions)
    yield route("/users/:user/topic-permissions", "admin", get=users.topic_permissions)
    yield route("/user-limits", "any", get=users.user_limits)
    yield route("/user-limits/:user", "any", get=users.user_limits)
    yield route("/user-limits/:user/:name", "admin", put=users.put_user_limit, delete=users.delete_user_limit)
    yield route("/permissions", "admin", get=users.permissions)
    yield route(
        "/permissions/:vhost/:user",
        "admin",
        get=users.permission,
        put=users.put_permission,
        delete=users.delete_permission,
    )
    yield route("/topic-permissions", "admin", get=users.topic_permissions)
    for path in ("/topic-permissions/:vhost/:user", "/topic-permissions/:vhost/:user/:exchange"):
        yield route(
            path,
            "admin",
            get=users.topic_permission,
            put=users.put_topic_permission,
            delete=users.delete_topic_permission,
        )


def _policies() -> Iterator[Route]:
    for path in ("/policies", "/policies/:vhost", "/operator-policies", "/operator-policies/:vhost"):
        yield route(path, "vhost", get=policies.policies)
    methods = {"get": policies.policy, "put": policies.put_policy, "delete": policies.delete_policy}
    yield route("/policies/:vhost/:name", "policies", **methods)
    yield route("/operator-policies/:vhost/:name", "admin", **methods)
    for path in ("/parameters", "/parameters/:component", "/parameters/:component/:vhost"):
        yield route(path, "policies", get=policies.parameters)
    yield route(
        "/parameters/:component/:vhost/:name",
        "policies",
        get=policies.parameter,
        put=policies.put_parameter,
        delete=policies.delete_parameter,
    )
    yield route("/global-parameters", "global", get=policies.global_parameters)
    yield route(
        "/global-parameters/:name",
        "global",
        get=policies.global_parameter,
        put=policies.put_global_parameter,
        delete=policies.delete_global_parameter,
    )
    for path in ("/vhost-limits", "/vhost-limits/:vhost"):
        yield route(path, "vhost-visible", get=policies.limits)
    yield route("/vhost-limits/:vhost/:name", "admin", put=policies.put_limit, delete=policies.delete_limit)


def _checks() -> Iterator[Route]:
    yield route("/aliveness-test/:vhost", "vhost", get=health.aliveness_test)
    yield route("/healthchecks/node", "any", get=health.node)
    yield route("/healthchecks/node/:node", "any", get=health.node)
    yield route("/health/checks/alarms", "any", get=health.alarms)
    yield route("/health/checks/local-alarms", "any", get=health.alarms)
    yield route("/health/checks/certificate-expiration/:within/:unit", "any", get=health.certificate_expiration)
    yield route("/health/checks/port-listener/:port", "any", get=health.port_listener)
    yield route("/health/checks/protocol-listener/:protocol", "any", get=health.protocol_listener)
    yield route("/health/checks/virtual-hosts", "any", get=health.virtual_hosts)
    yield route("/health/checks/node-is-mirror-sync-critical", "any", get=health.single_node)
    yield route("/health/checks/node-is-quorum-critical", "any", get=health.single_node)


ROUTES: Final = tuple(_routes())
