"""What the scheduler knows of the cluster: the snapshot it decides on, and the caches that keep it current."""
