"""How a component talks to the API: one contract, several transports."""
