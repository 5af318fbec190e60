"""A store on an etcd cluster, for control planes of more than one machine."""

try:
    from kedge.store.etcd.access import EtcdLogin, EtcdTls
    from kedge.store.etcd.restore import restore_to_etcd
    from kedge.store.etcd.store import EtcdStore
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("grpc", "google"):
        raise
    raise ModuleNotFoundError(
        f"the etcd store needs {error.name}: pip install 'kedge[etcd]'", name=error.name
    ) from error

__all__ = ["EtcdLogin", "EtcdStore", "EtcdTls", "restore_to_etcd"]
