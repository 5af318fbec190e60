"""Encryption of stored values: a key file, the cipher that backends call, the record of keys, and their rotation."""

from kedge.store.encryption.cipher import ValueCipher
from kedge.store.encryption.key_file import IDENTITY, EncryptionKey, KeyFile, add_key, read_key_file
from kedge.store.encryption.rotation import RotationResult, rotate

__all__ = [
    "IDENTITY",
    "EncryptionKey",
    "KeyFile",
    "RotationResult",
    "ValueCipher",
    "add_key",
    "read_key_file",
    "rotate",
]
