"""Objects that give callers an identity: default accounts, bootstrap tokens, certificate signing requests.

`access` decides what an identity may do; `account_tokens` has tokens of ServiceAccounts.
"""
