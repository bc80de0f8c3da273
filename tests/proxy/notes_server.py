"""The official SDK's server of two tools, on standard input and output: `python notes_server.py FILE`."""

import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")


@server.tool()
def delete_note(name: str) -> str:
    with open(sys.argv[1], "a") as file:
        file.write(f"{name}\n")
    return f"deleted {name}"


server.run("stdio")
