"""What :class:`warren.aio.Node` can be asked about users, permissions, limits and parameters."""

from __future__ import annotations

from warren.aio.bridge import awaited
from warren.verbs.user_verbs import UserVerbs


class NodeUsers:
    """The methods of a node that :mod:`warren.verbs.user_verbs` tells of."""

    users = awaited(UserVerbs.users)
    add_user = awaited(UserVerbs.add_user)
    delete_user = awaited(UserVerbs.delete_user)
    change_password = awaited(UserVerbs.change_password)
    set_user_tags = awaited(UserVerbs.set_user_tags)
    authenticate = awaited(UserVerbs.authenticate)
    set_user_limits = awaited(UserVerbs.set_user_limits)
    clear_user_limits = awaited(UserVerbs.clear_user_limits)

    permissions = awaited(UserVerbs.permissions)
    set_permissions = awaited(UserVerbs.set_permissions)
    clear_permissions = awaited(UserVerbs.clear_permissions)
    topic_permissions = awaited(UserVerbs.topic_permissions)
    set_topic_permissions = awaited(UserVerbs.set_topic_permissions)
    clear_topic_permissions = awaited(UserVerbs.clear_topic_permissions)

    vhost_metadata = awaited(UserVerbs.vhost_metadata)
    set_vhost_metadata = awaited(UserVerbs.set_vhost_metadata)
    vhost_limits = awaited(UserVerbs.vhost_limits)
    set_vhost_limits = awaited(UserVerbs.set_vhost_limits)
    clear_vhost_limits = awaited(UserVerbs.clear_vhost_limits)

    parameters = awaited(UserVerbs.parameters)
    set_parameter = awaited(UserVerbs.set_parameter)
    clear_parameter = awaited(UserVerbs.clear_parameter)
    global_parameters = awaited(UserVerbs.global_parameters)
    set_global_parameter = awaited(UserVerbs.set_global_parameter)
    clear_global_parameter = awaited(UserVerbs.clear_global_parameter)
