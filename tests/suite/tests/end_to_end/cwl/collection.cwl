# A file of a stored collection that the workflow itself names.
cwlVersion: v1.2
class: CommandLineTool
requirements:
  DockerRequirement: {dockerPull: "busybox:test"}
baseCommand: cat
inputs:
  data: {type: File, inputBinding: {position: 1}}
outputs:
  text: {type: stdout}
stdout: read.txt
