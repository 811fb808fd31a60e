"""A device plugin for the machine of the tests: two devices, both the root disk, to be read only.

  python3 device_plugin.py SOCKETS      SOCKETS is the agent's folder device-plugins

Goes on until it is ended, and registers again whenever the agent has made its socket anew. It writes its few messages by
itself: the machine has python3-grpcio, and nothing that compiles .proto files."""
import os
import sys
import time
from concurrent import futures

import grpc

RESOURCE = "example.com/disk"
folder = sys.argv[1]


def varint(number):
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def part(number, value):
    """A field with text or an embedded message."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def parts(raw):
    """(number, bytes) of each field; all fields of the messages that we are sent have a length."""
    at = 0

    def read():
        nonlocal at
        number = shift = 0
        while True:
            byte = raw[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(raw):
        key, length = read(), read()
        assert key & 7 == 2, key
        yield key >> 3, raw[at : at + length]
        at += length


def options(_request, _context):
    return b""


def list_and_watch(_request, context):
    yield b"".join(part(1, part(1, f"disk{n}") + part(2, "Healthy")) for n in range(2))
    while context.is_active():
        time.sleep(1)


def allocate(request, _context):
    answer = b""
    for _, container in parts(request):
        names = ",".join(sorted(name.decode() for _, name in parts(container)))
        device = part(1, "/dev/given") + part(2, "/dev/vda") + part(3, "r")
        answer += part(1, part(1, part(1, "DISKS") + part(2, names)) + part(3, device))
    return answer


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(4))
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    methods = {"GetDevicePluginOptions": unary(options), "ListAndWatch": stream(list_and_watch), "Allocate": unary(allocate)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
    server.add_insecure_port(f"unix://{folder}/disk.sock")
    server.start()
    return server


def register():
    with grpc.insecure_channel(f"unix://{folder}/kubelet.sock") as channel:
        request = part(1, "v1beta1") + part(2, "disk.sock") + part(3, RESOURCE)
        channel.unary_unary("/v1beta1.Registration/Register")(request, timeout=20)


known = server = None
while True:
    try:
        now = os.stat(f"{folder}/kubelet.sock").st_ino
        # The agent removes the sockets of plugins when it starts.
        if now != known or not os.path.exists(f"{folder}/disk.sock"):
            if server:
                server.stop(None).wait()
            server = serve()
            register()
            known = now
            print("registered", flush=True)
    except (OSError, grpc.RpcError) as error:
        print(error, flush=True)
    time.sleep(1)
