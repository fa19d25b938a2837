"""The reader process: loads one text after the other and prints a line of JSON with each result.

A text that crashes the decoder crashes this process, not the test run. A request is a format and a length on one line,
then that many bytes.
"""

import json
import resource
import sys
import time

from ductile.core.errors import Unreadable
from ductile.core.formats import strict_json, strict_yaml

LOADERS = {"yaml": lambda text: strict_yaml.load(text, source="text"), "json": strict_json.loads}
CPU_LIMIT_SECONDS = 20
MAX_MEMORY_BYTES = 2 << 30


def load(format_name: str, text: bytes) -> dict[str, object]:
    started = time.process_time()
    try:
        value = LOADERS[format_name](text)
        result: dict[str, object] = {"shape": shape(value)}
    except Unreadable as error:
        result = {"reason": error.reason, "line": error.mark.line, "column": error.mark.column}
    return {**result, "cpu_seconds": time.process_time() - started}


def shape(value: object) -> str:
    return type(value.value if isinstance(value, strict_yaml.YamlNode) else value).__name__


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while request := sys.stdin.buffer.readline().split():
        text = sys.stdin.buffer.read(int(request[1]))
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_LIMIT_SECONDS, resource.RLIM_INFINITY))
        print(json.dumps(load(request[0].decode(), text)), flush=True)


main()
