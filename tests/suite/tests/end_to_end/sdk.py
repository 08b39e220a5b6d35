"""What a user of the Python SDK does: data in, a container, its output back."""

import sys
import time

import arvados
import arvados.collection

api = arvados.api("v1")
words = arvados.collection.Collection(api_client=api)
with words.open("words.txt", "w") as f:
    f.write("in the beginning")
words.save_new(name="words")

# The server moves a file of the collection.
moved = api.collections().update(uuid=words.manifest_locator(), body={}, replace_files={
    "/moved/words.txt": "current/words.txt", "/words.txt": ""}).execute()
names = list(arvados.collection.CollectionReader(moved["uuid"], api_client=api))
assert names == ["moved"], names

request = api.container_requests().create(body={"container_request": {
    "name": "from Python", "state": "Committed", "priority": 1, "use_existing": False,
    "container_image": sys.argv[1], "command": ["sh", "-c", "cat /in/moved/words.txt > /out/copy.txt"],
    "cwd": "/out", "output_path": "/out",
    "mounts": {"/out": {"kind": "tmp", "capacity": 1000000},
               "/in": {"kind": "collection", "portable_data_hash": moved["portable_data_hash"]}},
    "runtime_constraints": {"vcpus": 1, "ram": 64 << 20},
}}).execute()

until = time.time() + 60
while request["state"] != "Final":
    assert time.time() < until, request
    time.sleep(0.1)
    request = api.container_requests().get(uuid=request["uuid"]).execute()

container = api.containers().get(uuid=request["container_uuid"]).execute()
assert (container["state"], container["exit_code"]) == ("Complete", 0), container
listed = api.containers().list(filters=[["state", "=", "Complete"]]).execute()
assert [c["uuid"] for c in listed["items"]] == [container["uuid"]], listed

output = arvados.collection.CollectionReader(request["output_uuid"], api_client=api)
assert list(output) == ["copy.txt"], list(output)
with output.open("copy.txt") as f:
    print("the words were read:", f.read())
log = arvados.collection.CollectionReader(request["log_uuid"], api_client=api)
names = {item.stream_name() + "/" + item.name for item in log.all_files()} if hasattr(log, "all_files") else set(log)
assert any("crunch-run.txt" in name for name in names), names

workflow = api.workflows().create(body={"workflow": {
    "name": "sort", "definition": '{"cwlVersion": "v1.2", "class": "Workflow"}'}}).execute()
contents = api.groups().contents(uuid=request["owner_uuid"], filters=[
    ["uuid", "is_a", "arvados#workflow"]]).execute()
assert [item["uuid"] for item in contents["items"]] == [workflow["uuid"]], contents
assert api.virtual_machines().list().execute()["items"] == []

project = api.groups().create(body={"group": {"name": "p", "group_class": "project"}}).execute()
api.workflows().update(uuid=workflow["uuid"], body={"workflow": {"owner_uuid": project["uuid"]}}).execute()
api.groups().trash(uuid=project["uuid"]).execute()
assert api.workflows().list(filters=[["uuid", "=", workflow["uuid"]]]).execute()["items"] == []
api.groups().untrash(uuid=project["uuid"]).execute()
assert api.workflows().get(uuid=workflow["uuid"]).execute()["name"] == "sort"
assert api.links().get_permissions(uuid=project["uuid"]).execute()["items"] == []
