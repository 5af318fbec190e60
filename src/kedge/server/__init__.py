"""The API server: the service carries requests out; `http` serves it over HTTPS."""
