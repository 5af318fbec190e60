"""A store on an etcd cluster, for control planes of more than one machine."""

from kedge.store.etcd.store import EtcdStore
from kedge.store.etcd.transport import EtcdTls

__all__ = ["EtcdStore", "EtcdTls"]
