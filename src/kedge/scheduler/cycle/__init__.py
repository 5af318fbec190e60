"""The scheduling cycle: decide for a pod or a gang, begin its bind, or make room by preemption."""
