"""Authorization: roles and bindings, the node authorizer, and checks of writes that would give rights away.

`authorizer` decides, `role_table` has the default roles. The service starts it; transports call it for each request.
"""
