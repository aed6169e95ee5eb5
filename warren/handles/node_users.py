"""What :class:`warren.Node` can be asked about users, permissions, limits and parameters: for threads."""

from __future__ import annotations

from warren.verbs.steps import blocking
from warren.verbs.user_verbs import UserVerbs


class NodeUsers:
    """The methods of a node that :mod:`warren.verbs.user_verbs` tells of."""

    users = blocking(UserVerbs.users)
    add_user = blocking(UserVerbs.add_user)
    delete_user = blocking(UserVerbs.delete_user)
    change_password = blocking(UserVerbs.change_password)
    set_user_tags = blocking(UserVerbs.set_user_tags)
    authenticate = blocking(UserVerbs.authenticate)
    set_user_limits = blocking(UserVerbs.set_user_limits)
    clear_user_limits = blocking(UserVerbs.clear_user_limits)

    permissions = blocking(UserVerbs.permissions)
    set_permissions = blocking(UserVerbs.set_permissions)
    clear_permissions = blocking(UserVerbs.clear_permissions)
    topic_permissions = blocking(UserVerbs.topic_permissions)
    set_topic_permissions = blocking(UserVerbs.set_topic_permissions)
    clear_topic_permissions = blocking(UserVerbs.clear_topic_permissions)

    vhost_metadata = blocking(UserVerbs.vhost_metadata)
    set_vhost_metadata = blocking(UserVerbs.set_vhost_metadata)
    vhost_limits = blocking(UserVerbs.vhost_limits)
    set_vhost_limits = blocking(UserVerbs.set_vhost_limits)
    clear_vhost_limits = blocking(UserVerbs.clear_vhost_limits)

    parameters = blocking(UserVerbs.parameters)
    set_parameter = blocking(UserVerbs.set_parameter)
    clear_parameter = blocking(UserVerbs.clear_parameter)
    global_parameters = blocking(UserVerbs.global_parameters)
    set_global_parameter = blocking(UserVerbs.set_global_parameter)
    clear_global_parameter = blocking(UserVerbs.clear_global_parameter)
