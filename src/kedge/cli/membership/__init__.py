"""Components join a cluster with a token, get a certificate for it, and renew that certificate while they run.

`join_token` is the text that `kedge token create` prints; `first_contact` verifies the server before the token is sent;
`certificates` requests and keeps certificates; `membership` is what `component` runs.
"""
