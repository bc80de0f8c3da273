import json
import sys

tool = {"name": "delete_note", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": True}}
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "tools/list":
        result = {"tools": [tool]}
    else:
        result = {"content": [{"type": "text", "text": "deleted " + message["params"]["arguments"]["name"]}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
