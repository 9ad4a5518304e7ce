"""Message channels between processes: ZeroMQ sockets carrying msgspec MessagePack.

Owns framing, decoding and the private socket folder. Knows no message's meaning, and never
pickle.
"""

from xllm.core.channels.address import SocketFolder
from xllm.core.channels.channel import Channel
from xllm.core.channels.client import ClientChannel
from xllm.core.channels.server import ServerChannel

__all__ = ["Channel", "ClientChannel", "ServerChannel", "SocketFolder"]
