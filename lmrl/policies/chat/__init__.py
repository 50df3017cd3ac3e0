"""Clients of chat models, at an endpoint or on this machine, and the policy that asks them.

A model at an endpoint needs no torch, one on this machine does. Both are imported when they are first named.
"""

from typing import TYPE_CHECKING

from lmrl.utils.lazy import exports

__all__ = ["ChatClient", "LocalChat"]

if TYPE_CHECKING:
    from lmrl.policies.chat.client import ChatClient
    from lmrl.policies.chat.local import LocalChat


__getattr__, __dir__ = exports(
    __name__, {"ChatClient": "lmrl.policies.chat.client", "LocalChat": "lmrl.policies.chat.local"}
)
