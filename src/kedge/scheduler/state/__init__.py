"""The scheduler's state of the cluster: the snapshot it decides on, and the caches that keep it current."""
