"""Pure functions over kept records: no clock, no network, no cluster. They answer alike on live and recorded data."""
