"""Addresses of Services on one node: loopback addresses that stay the same over restarts, in a file of the node.

The file is written whole or not at all. A file that cannot be read is set aside: the addresses are then chosen again,
from the names, and are mostly the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from kedge.agent.process.services.plan import ServiceName
from kedge.errors import TooManyRequests

_LOG = logging.getLogger(__name__)
_LAST = 254


def service_subnet(folder: Path) -> str:
    """The first three numbers of a node's Service addresses: apart from those of pods, and its own on this machine."""
    digest = hashlib.sha256(b"services\0" + str(folder.resolve()).encode()).digest()
    return f"127.{192 + digest[0] % 62}.{digest[1]}"


class ServiceAddresses:
    """Gives each Service an address, and keeps it until the Service is gone."""

    def __init__(self, folder: Path, *, services_max: int) -> None:
        self._path = folder / "services.json"
        self._subnet = service_subnet(folder)
        self._services_max = min(services_max, _LAST)
        self._by_service: dict[ServiceName, str] = self._read()

    @property
    def held(self) -> Mapping[ServiceName, str]:
        """The address of each Service that has one."""
        return self._by_service

    def keep(self, services: Iterable[ServiceName]) -> list[ServiceName]:
        """Give an address to each of these, and drop every other. Returns those for which none is left."""
        wanted = sorted(set(services))
        kept = {name: self._by_service[name] for name in wanted if name in self._by_service}
        left_out = []
        for name in wanted:
            if name not in kept:
                try:
                    kept[name] = self._choose(name, set(kept.values()))
                except TooManyRequests:
                    left_out.append(name)
        if kept != self._by_service:
            self._by_service = kept
            self._write()
        return left_out

    def _choose(self, name: ServiceName, taken: set[str]) -> str:
        if len(taken) >= self._services_max:
            raise TooManyRequests(f"{self._services_max} Services have an address already", retry_after_s=60.0)
        first = int.from_bytes(hashlib.sha256("/".join(name).encode()).digest()[:4], "big")
        every = (f"{self._subnet}.{1 + (first + step) % _LAST}" for step in range(_LAST))
        return next(each for each in every if each not in taken)

    def _read(self) -> dict[ServiceName, str]:
        try:
            stored = json.loads(self._path.read_bytes())
            found = {ServiceName(*key.split("/")): str(address) for key, address in stored.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _LOG.warning("%s cannot be read (%s): addresses of Services are chosen again", self._path, error)
            return {}
        return {name: address for name, address in found.items() if address.startswith(f"{self._subnet}.")}

    def _write(self) -> None:
        stored = {"/".join(name): address for name, address in self._by_service.items()}
        partial = self._path.with_suffix(".partial")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with partial.open("w") as file:
                json.dump(stored, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path)
        except OSError as error:
            _LOG.warning("%s is not written (%s): after a restart a Service may have another address", partial, error)
