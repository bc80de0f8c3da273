"""A proxy between an MCP client and its servers: every message passes as it is, and each tool call goes by the gate."""
