"""Resources of a server as `kedge get`, `kedge apply` and their siblings see them: any kind that discovery lists.

One verb is one file in the folder above; here are the parts that verbs share.
"""
