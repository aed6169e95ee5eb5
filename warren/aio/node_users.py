"""What :class:`warren.aio.Node` can be asked about users, permissions, limits and parameters."""

from __future__ import annotations

from warren.aio.bridge import awaited
from warren.verbs.user_verbs import UserVerbs
from warren.verbs.vhost_verbs import NodeVerbs


def _users(verbs: NodeVerbs) -> UserVerbs:
    return verbs.users


class NodeUsers:
    """The methods of a node that :mod:`warren.verbs.user_verbs` tells of."""

    users = awaited(UserVerbs.users, of=_users)
    add_user = awaited(UserVerbs.add_user, of=_users)
    delete_user = awaited(UserVerbs.delete_user, of=_users)
    change_password = awaited(UserVerbs.change_password, of=_users)
    set_user_tags = awaited(UserVerbs.set_user_tags, of=_users)
    authenticate = awaited(UserVerbs.authenticate, of=_users)
    set_user_limits = awaited(UserVerbs.set_user_limits, of=_users)
    clear_user_limits = awaited(UserVerbs.clear_user_limits, of=_users)

    permissions = awaited(UserVerbs.permissions, of=_users)
    set_permissions = awaited(UserVerbs.set_permissions, of=_users)
    clear_permissions = awaited(UserVerbs.clear_permissions, of=_users)
    topic_permissions = awaited(UserVerbs.topic_permissions, of=_users)
    set_topic_permissions = awaited(UserVerbs.set_topic_permissions, of=_users)
    clear_topic_permissions = awaited(UserVerbs.clear_topic_permissions, of=_users)

    vhost_metadata = awaited(UserVerbs.vhost_metadata, of=_users)
    set_vhost_metadata = awaited(UserVerbs.set_vhost_metadata, of=_users)
    vhost_limits = awaited(UserVerbs.vhost_limits, of=_users)
    set_vhost_limits = awaited(UserVerbs.set_vhost_limits, of=_users)
    clear_vhost_limits = awaited(UserVerbs.clear_vhost_limits, of=_users)

    parameters = awaited(UserVerbs.parameters, of=_users)
    set_parameter = awaited(UserVerbs.set_parameter, of=_users)
    clear_parameter = awaited(UserVerbs.clear_parameter, of=_users)
    global_parameters = awaited(UserVerbs.global_parameters, of=_users)
    set_global_parameter = awaited(UserVerbs.set_global_parameter, of=_users)
    clear_global_parameter = awaited(UserVerbs.clear_global_parameter, of=_users)
