"""The API server: what the API means, and later how it is spoken."""
