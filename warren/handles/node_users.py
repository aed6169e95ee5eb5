"""What :class:`warren.Node` can be asked about users, permissions, limits and parameters: for threads."""

from __future__ import annotations

from warren.verbs.steps import blocking
from warren.verbs.user_verbs import UserVerbs
from warren.verbs.vhost_verbs import NodeVerbs


def _users(verbs: NodeVerbs) -> UserVerbs:
    return verbs.users


class NodeUsers:
    """The methods of a node that :mod:`warren.verbs.user_verbs` tells of."""

    users = blocking(UserVerbs.users, of=_users)
    add_user = blocking(UserVerbs.add_user, of=_users)
    delete_user = blocking(UserVerbs.delete_user, of=_users)
    change_password = blocking(UserVerbs.change_password, of=_users)
    set_user_tags = blocking(UserVerbs.set_user_tags, of=_users)
    authenticate = blocking(UserVerbs.authenticate, of=_users)
    set_user_limits = blocking(UserVerbs.set_user_limits, of=_users)
    clear_user_limits = blocking(UserVerbs.clear_user_limits, of=_users)

    permissions = blocking(UserVerbs.permissions, of=_users)
    set_permissions = blocking(UserVerbs.set_permissions, of=_users)
    clear_permissions = blocking(UserVerbs.clear_permissions, of=_users)
    topic_permissions = blocking(UserVerbs.topic_permissions, of=_users)
    set_topic_permissions = blocking(UserVerbs.set_topic_permissions, of=_users)
    clear_topic_permissions = blocking(UserVerbs.clear_topic_permissions, of=_users)

    vhost_metadata = blocking(UserVerbs.vhost_metadata, of=_users)
    set_vhost_metadata = blocking(UserVerbs.set_vhost_metadata, of=_users)
    vhost_limits = blocking(UserVerbs.vhost_limits, of=_users)
    set_vhost_limits = blocking(UserVerbs.set_vhost_limits, of=_users)
    clear_vhost_limits = blocking(UserVerbs.clear_vhost_limits, of=_users)

    parameters = blocking(UserVerbs.parameters, of=_users)
    set_parameter = blocking(UserVerbs.set_parameter, of=_users)
    clear_parameter = blocking(UserVerbs.clear_parameter, of=_users)
    global_parameters = blocking(UserVerbs.global_parameters, of=_users)
    set_global_parameter = blocking(UserVerbs.set_global_parameter, of=_users)
    clear_global_parameter = blocking(UserVerbs.clear_global_parameter, of=_users)
