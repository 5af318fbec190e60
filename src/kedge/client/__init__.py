"""The client of the API: one contract, several transports."""
